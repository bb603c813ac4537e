"""A set of ids that takes little memory."""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from heapq import merge


class IdSet:
    """A set of ids with 8 bytes for each: digests in a sorted array, and the latest ones in a set."""

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._latest: set[int] = set()

    def add(self, text: str) -> bool:
        """Add an id. Return False if the set already has it."""
        one = digest(text)
        index = bisect_left(self._sorted, one)
        if one in self._latest or self._sorted[index : index + 1] == array("Q", [one]):
            return False
        self._latest.add(one)
        # 64 Ki: for a million ids the array is merged 16 times.
        if len(self._latest) >= 1 << 16:
            self._sorted = array("Q", merge(self._sorted, sorted(self._latest)))
            self._latest.clear()
        return True


def digest(key: object) -> int:
    """Return a 64-bit digest of a key. Among a million keys the chance of a collision is 1 in 37 million."""
    return int.from_bytes(blake2b(repr(key).encode(errors="replace"), digest_size=8).digest(), "big")
