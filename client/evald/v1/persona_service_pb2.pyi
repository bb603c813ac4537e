from evald.v1 import context_pb2 as _context_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreatePersonaRequest(_message.Message):
    __slots__ = ("persona",)
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    persona: _context_pb2.Persona
    def __init__(self, persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ...) -> None: ...

class CreatePersonaResponse(_message.Message):
    __slots__ = ("persona",)
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    persona: _context_pb2.Persona
    def __init__(self, persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ...) -> None: ...

class GetPersonaRequest(_message.Message):
    __slots__ = ("persona_id",)
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    persona_id: str
    def __init__(self, persona_id: _Optional[str] = ...) -> None: ...

class GetPersonaResponse(_message.Message):
    __slots__ = ("persona",)
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    persona: _context_pb2.Persona
    def __init__(self, persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ...) -> None: ...

class ListPersonasRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "name")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    name: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListPersonasResponse(_message.Message):
    __slots__ = ("personas", "next_page_token")
    PERSONAS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    personas: _containers.RepeatedCompositeFieldContainer[_context_pb2.Persona]
    next_page_token: str
    def __init__(self, personas: _Optional[_Iterable[_Union[_context_pb2.Persona, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdatePersonaRequest(_message.Message):
    __slots__ = ("persona", "update_mask", "expected_update_time")
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    persona: _context_pb2.Persona
    update_mask: _field_mask_pb2.FieldMask
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UpdatePersonaResponse(_message.Message):
    __slots__ = ("persona",)
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    persona: _context_pb2.Persona
    def __init__(self, persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ...) -> None: ...

class DeletePersonaRequest(_message.Message):
    __slots__ = ("persona_id", "expected_update_time")
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    persona_id: str
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, persona_id: _Optional[str] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeletePersonaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
