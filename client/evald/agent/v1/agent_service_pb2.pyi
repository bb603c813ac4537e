from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InvokeRequest(_message.Message):
    __slots__ = ("thread_id", "turn", "messages", "request_id")
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread_id: str
    turn: int
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    request_id: str
    def __init__(self, thread_id: _Optional[str] = ..., turn: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class InvokeResponse(_message.Message):
    __slots__ = ("invocation",)
    INVOCATION_FIELD_NUMBER: _ClassVar[int]
    invocation: _context_pb2.Invocation
    def __init__(self, invocation: _Optional[_Union[_context_pb2.Invocation, _Mapping]] = ...) -> None: ...
