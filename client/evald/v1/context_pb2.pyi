from evald.v1 import message_pb2 as _message_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureCriteriaMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CRITERIA_MODE_UNSPECIFIED: _ClassVar[FailureCriteriaMode]
    FAILURE_CRITERIA_MODE_EVERY_TURN: _ClassVar[FailureCriteriaMode]
    FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES: _ClassVar[FailureCriteriaMode]
FAILURE_CRITERIA_MODE_UNSPECIFIED: FailureCriteriaMode
FAILURE_CRITERIA_MODE_EVERY_TURN: FailureCriteriaMode
FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES: FailureCriteriaMode

class EvaluatorContext(_message.Message):
    __slots__ = ("messages", "messages_json", "last_invocation", "scenario", "persona", "turn", "is_final", "correlation", "metadata", "expected", "attempt", "run_duration")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    LAST_INVOCATION_FIELD_NUMBER: _ClassVar[int]
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RUN_DURATION_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    messages_json: str
    last_invocation: Invocation
    scenario: Scenario
    persona: Persona
    turn: int
    is_final: bool
    correlation: Correlation
    metadata: _struct_pb2.Struct
    expected: Expected
    attempt: int
    run_duration: _duration_pb2.Duration
    def __init__(self, messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., messages_json: _Optional[str] = ..., last_invocation: _Optional[_Union[Invocation, _Mapping]] = ..., scenario: _Optional[_Union[Scenario, _Mapping]] = ..., persona: _Optional[_Union[Persona, _Mapping]] = ..., turn: _Optional[int] = ..., is_final: bool = ..., correlation: _Optional[_Union[Correlation, _Mapping]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., expected: _Optional[_Union[Expected, _Mapping]] = ..., attempt: _Optional[int] = ..., run_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Expected(_message.Message):
    __slots__ = ("text", "data", "messages")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    text: str
    data: _struct_pb2.Value
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    def __init__(self, text: _Optional[str] = ..., data: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ...) -> None: ...

class Invocation(_message.Message):
    __slots__ = ("latency", "messages", "messages_json", "token_usage", "cost", "time_to_first_token", "start_time", "model", "metadata")
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    latency: _duration_pb2.Duration
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    messages_json: str
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    time_to_first_token: _duration_pb2.Duration
    start_time: _timestamp_pb2.Timestamp
    model: str
    metadata: _struct_pb2.Struct
    def __init__(self, latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., messages_json: _Optional[str] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., time_to_first_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., model: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class Scenario(_message.Message):
    __slots__ = ("name", "instructions", "max_messages", "success_criteria", "failure_criteria", "failure_criteria_mode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CRITERIA_MODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    instructions: str
    max_messages: int
    success_criteria: str
    failure_criteria: str
    failure_criteria_mode: FailureCriteriaMode
    def __init__(self, name: _Optional[str] = ..., instructions: _Optional[str] = ..., max_messages: _Optional[int] = ..., success_criteria: _Optional[str] = ..., failure_criteria: _Optional[str] = ..., failure_criteria_mode: _Optional[_Union[FailureCriteriaMode, str]] = ...) -> None: ...

class Persona(_message.Message):
    __slots__ = ("name", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class Correlation(_message.Message):
    __slots__ = ("conversation_id", "run_id", "response_id")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    run_id: str
    response_id: str
    def __init__(self, conversation_id: _Optional[str] = ..., run_id: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...
