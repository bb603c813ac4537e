from evald.v1 import evaluator_pb2 as _evaluator_pb2
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

class AssertionFailurePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ASSERTION_FAILURE_POLICY_UNSPECIFIED: _ClassVar[AssertionFailurePolicy]
    ASSERTION_FAILURE_POLICY_STOP: _ClassVar[AssertionFailurePolicy]
    ASSERTION_FAILURE_POLICY_CONTINUE: _ClassVar[AssertionFailurePolicy]

class CriteriaPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CRITERIA_POLICY_UNSPECIFIED: _ClassVar[CriteriaPolicy]
    CRITERIA_POLICY_BOTH: _ClassVar[CriteriaPolicy]
    CRITERIA_POLICY_EVALUATORS_ONLY: _ClassVar[CriteriaPolicy]

class FailureCriteriaMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CRITERIA_MODE_UNSPECIFIED: _ClassVar[FailureCriteriaMode]
    FAILURE_CRITERIA_MODE_EVERY_TURN: _ClassVar[FailureCriteriaMode]
    FAILURE_CRITERIA_MODE_ON_MAX_MESSAGES: _ClassVar[FailureCriteriaMode]
ASSERTION_FAILURE_POLICY_UNSPECIFIED: AssertionFailurePolicy
ASSERTION_FAILURE_POLICY_STOP: AssertionFailurePolicy
ASSERTION_FAILURE_POLICY_CONTINUE: AssertionFailurePolicy
CRITERIA_POLICY_UNSPECIFIED: CriteriaPolicy
CRITERIA_POLICY_BOTH: CriteriaPolicy
CRITERIA_POLICY_EVALUATORS_ONLY: CriteriaPolicy
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
    __slots__ = ("name", "instructions", "max_messages", "success_criteria", "failure_criteria", "failure_criteria_mode", "id", "messages", "evaluators", "persona_ids", "criteria_policy", "on_assertion_failure", "goal", "create_time", "update_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CRITERIA_MODE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    PERSONA_IDS_FIELD_NUMBER: _ClassVar[int]
    CRITERIA_POLICY_FIELD_NUMBER: _ClassVar[int]
    ON_ASSERTION_FAILURE_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    instructions: str
    max_messages: int
    success_criteria: str
    failure_criteria: str
    failure_criteria_mode: FailureCriteriaMode
    id: str
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    persona_ids: _containers.RepeatedScalarFieldContainer[str]
    criteria_policy: CriteriaPolicy
    on_assertion_failure: AssertionFailurePolicy
    goal: str
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., instructions: _Optional[str] = ..., max_messages: _Optional[int] = ..., success_criteria: _Optional[str] = ..., failure_criteria: _Optional[str] = ..., failure_criteria_mode: _Optional[_Union[FailureCriteriaMode, str]] = ..., id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., persona_ids: _Optional[_Iterable[str]] = ..., criteria_policy: _Optional[_Union[CriteriaPolicy, str]] = ..., on_assertion_failure: _Optional[_Union[AssertionFailurePolicy, str]] = ..., goal: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Persona(_message.Message):
    __slots__ = ("name", "description", "id", "system_prompt", "headers", "script", "judge", "create_time", "update_time")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_PROMPT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    JUDGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    id: str
    system_prompt: str
    headers: _containers.ScalarMap[str, str]
    script: _containers.RepeatedScalarFieldContainer[str]
    judge: str
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., id: _Optional[str] = ..., system_prompt: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., script: _Optional[_Iterable[str]] = ..., judge: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Correlation(_message.Message):
    __slots__ = ("conversation_id", "run_id", "response_id")
    CONVERSATION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    conversation_id: str
    run_id: str
    response_id: str
    def __init__(self, conversation_id: _Optional[str] = ..., run_id: _Optional[str] = ..., response_id: _Optional[str] = ...) -> None: ...
