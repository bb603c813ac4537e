from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import evaluator_pb2 as _evaluator_pb2
from evald.v1 import message_pb2 as _message_pb2
from evald.v1 import result_pb2 as _result_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_PROGRESS: _ClassVar[Capability]
    CAPABILITY_CANCEL: _ClassVar[Capability]
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_PROGRESS: Capability
CAPABILITY_CANCEL: Capability

class PluginInfo(_message.Message):
    __slots__ = ("name", "version", "contract_versions", "evaluator_types", "max_concurrency", "capabilities", "sdk")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_TYPES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    contract_versions: _containers.RepeatedScalarFieldContainer[str]
    evaluator_types: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorType]
    max_concurrency: int
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    sdk: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., contract_versions: _Optional[_Iterable[str]] = ..., evaluator_types: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorType, _Mapping]]] = ..., max_concurrency: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., sdk: _Optional[str] = ...) -> None: ...

class EvaluationTask(_message.Message):
    __slots__ = ("task_id", "type", "version", "context", "config", "timeout", "trace_context", "attempt")
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    type: str
    version: str
    context: _context_pb2.EvaluatorContext
    config: _struct_pb2.Struct
    timeout: _duration_pb2.Duration
    trace_context: _containers.ScalarMap[str, str]
    attempt: int
    def __init__(self, task_id: _Optional[str] = ..., type: _Optional[str] = ..., version: _Optional[str] = ..., context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., trace_context: _Optional[_Mapping[str, str]] = ..., attempt: _Optional[int] = ...) -> None: ...

class EvaluationOutput(_message.Message):
    __slots__ = ("verdict", "value", "reason", "metadata", "error", "token_usage", "cost", "score", "checks", "pending", "unproven")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_FIELD_NUMBER: _ClassVar[int]
    verdict: _result_pb2.Verdict
    value: float
    reason: str
    metadata: _struct_pb2.Struct
    error: _result_pb2.EvaluationError
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    score: float
    checks: _containers.RepeatedCompositeFieldContainer[_result_pb2.Check]
    pending: bool
    unproven: bool
    def __init__(self, verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., value: _Optional[float] = ..., reason: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., error: _Optional[_Union[_result_pb2.EvaluationError, _Mapping]] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., score: _Optional[float] = ..., checks: _Optional[_Iterable[_Union[_result_pb2.Check, _Mapping]]] = ..., pending: bool = ..., unproven: bool = ...) -> None: ...
