from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import message_pb2 as _message_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateScenarioRequest(_message.Message):
    __slots__ = ("scenario",)
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    scenario: _context_pb2.Scenario
    def __init__(self, scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ...) -> None: ...

class CreateScenarioResponse(_message.Message):
    __slots__ = ("scenario",)
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    scenario: _context_pb2.Scenario
    def __init__(self, scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ...) -> None: ...

class GetScenarioRequest(_message.Message):
    __slots__ = ("scenario_id",)
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    scenario_id: str
    def __init__(self, scenario_id: _Optional[str] = ...) -> None: ...

class GetScenarioResponse(_message.Message):
    __slots__ = ("scenario",)
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    scenario: _context_pb2.Scenario
    def __init__(self, scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ...) -> None: ...

class ListScenariosRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "name")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    name: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListScenariosResponse(_message.Message):
    __slots__ = ("scenarios", "next_page_token")
    SCENARIOS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    scenarios: _containers.RepeatedCompositeFieldContainer[_context_pb2.Scenario]
    next_page_token: str
    def __init__(self, scenarios: _Optional[_Iterable[_Union[_context_pb2.Scenario, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateScenarioRequest(_message.Message):
    __slots__ = ("scenario", "update_mask", "expected_update_time")
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    scenario: _context_pb2.Scenario
    update_mask: _field_mask_pb2.FieldMask
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UpdateScenarioResponse(_message.Message):
    __slots__ = ("scenario",)
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    scenario: _context_pb2.Scenario
    def __init__(self, scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ...) -> None: ...

class DeleteScenarioRequest(_message.Message):
    __slots__ = ("scenario_id", "expected_update_time")
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    scenario_id: str
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, scenario_id: _Optional[str] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeleteScenarioResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetScenarioPromptRequest(_message.Message):
    __slots__ = ("scenario_id", "persona_id")
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    scenario_id: str
    persona_id: str
    def __init__(self, scenario_id: _Optional[str] = ..., persona_id: _Optional[str] = ...) -> None: ...

class GetScenarioPromptResponse(_message.Message):
    __slots__ = ("system_prompt", "messages")
    SYSTEM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    system_prompt: str
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    def __init__(self, system_prompt: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ...) -> None: ...
