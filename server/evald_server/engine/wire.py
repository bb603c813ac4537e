"""Parts of messages, written as bytes where making a message object costs more than all checks."""


def delimited(field: int, data: bytes) -> bytes:
    """Text, bytes or a serialised message as the field of that number, 1 to 15, of another message.

    Source: protobuf.dev, Encoding, "Length-Delimited Records".
    """
    size = len(data)
    if size < 128:
        return bytes((field << 3 | 2, size)) + data
    head = bytearray((field << 3 | 2,))
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + data
