from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluatorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATOR_KIND_UNSPECIFIED: _ClassVar[EvaluatorKind]
    EVALUATOR_KIND_ASSERTION: _ClassVar[EvaluatorKind]
    EVALUATOR_KIND_METRIC: _ClassVar[EvaluatorKind]

class Enforcement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENFORCEMENT_UNSPECIFIED: _ClassVar[Enforcement]
    ENFORCEMENT_ENFORCED: _ClassVar[Enforcement]
    ENFORCEMENT_SHADOW: _ClassVar[Enforcement]

class ErrorPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_POLICY_UNSPECIFIED: _ClassVar[ErrorPolicy]
    ERROR_POLICY_FAIL_CLOSED: _ClassVar[ErrorPolicy]
    ERROR_POLICY_FAIL_OPEN: _ClassVar[ErrorPolicy]

class ReasoningPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASONING_POLICY_UNSPECIFIED: _ClassVar[ReasoningPolicy]
    REASONING_POLICY_STRIP: _ClassVar[ReasoningPolicy]
    REASONING_POLICY_KEEP: _ClassVar[ReasoningPolicy]

class TurnPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TURN_POLICY_UNSPECIFIED: _ClassVar[TurnPolicy]
    TURN_POLICY_EVERY_TURN: _ClassVar[TurnPolicy]
    TURN_POLICY_FINAL_TURN: _ClassVar[TurnPolicy]
EVALUATOR_KIND_UNSPECIFIED: EvaluatorKind
EVALUATOR_KIND_ASSERTION: EvaluatorKind
EVALUATOR_KIND_METRIC: EvaluatorKind
ENFORCEMENT_UNSPECIFIED: Enforcement
ENFORCEMENT_ENFORCED: Enforcement
ENFORCEMENT_SHADOW: Enforcement
ERROR_POLICY_UNSPECIFIED: ErrorPolicy
ERROR_POLICY_FAIL_CLOSED: ErrorPolicy
ERROR_POLICY_FAIL_OPEN: ErrorPolicy
REASONING_POLICY_UNSPECIFIED: ReasoningPolicy
REASONING_POLICY_STRIP: ReasoningPolicy
REASONING_POLICY_KEEP: ReasoningPolicy
TURN_POLICY_UNSPECIFIED: TurnPolicy
TURN_POLICY_EVERY_TURN: TurnPolicy
TURN_POLICY_FINAL_TURN: TurnPolicy

class EvaluatorSpec(_message.Message):
    __slots__ = ("type", "name", "config", "version", "timeout", "enforcement", "error_policy", "weight", "required", "threshold", "negate", "turn_policy", "reasoning")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_POLICY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    NEGATE_FIELD_NUMBER: _ClassVar[int]
    TURN_POLICY_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    config: _struct_pb2.Struct
    version: str
    timeout: _duration_pb2.Duration
    enforcement: Enforcement
    error_policy: ErrorPolicy
    weight: float
    required: bool
    threshold: float
    negate: bool
    turn_policy: TurnPolicy
    reasoning: ReasoningPolicy
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., version: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., enforcement: _Optional[_Union[Enforcement, str]] = ..., error_policy: _Optional[_Union[ErrorPolicy, str]] = ..., weight: _Optional[float] = ..., required: bool = ..., threshold: _Optional[float] = ..., negate: bool = ..., turn_policy: _Optional[_Union[TurnPolicy, str]] = ..., reasoning: _Optional[_Union[ReasoningPolicy, str]] = ...) -> None: ...

class EvaluatorType(_message.Message):
    __slots__ = ("type", "version", "label", "description", "kind", "auto", "config_schema_json", "config_schema_sha256", "origin", "state", "deterministic", "final_turn_only", "metric", "deprecation_message", "instance_count", "aliases", "required_data")
    class Origin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ORIGIN_UNSPECIFIED: _ClassVar[EvaluatorType.Origin]
        ORIGIN_BUILT_IN: _ClassVar[EvaluatorType.Origin]
        ORIGIN_REMOTE: _ClassVar[EvaluatorType.Origin]
        ORIGIN_PLUGIN: _ClassVar[EvaluatorType.Origin]
    ORIGIN_UNSPECIFIED: EvaluatorType.Origin
    ORIGIN_BUILT_IN: EvaluatorType.Origin
    ORIGIN_REMOTE: EvaluatorType.Origin
    ORIGIN_PLUGIN: EvaluatorType.Origin
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[EvaluatorType.State]
        STATE_ACTIVE: _ClassVar[EvaluatorType.State]
        STATE_UNAVAILABLE: _ClassVar[EvaluatorType.State]
        STATE_DEPRECATED: _ClassVar[EvaluatorType.State]
    STATE_UNSPECIFIED: EvaluatorType.State
    STATE_ACTIVE: EvaluatorType.State
    STATE_UNAVAILABLE: EvaluatorType.State
    STATE_DEPRECATED: EvaluatorType.State
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SCHEMA_SHA256_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    FINAL_TURN_ONLY_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    DEPRECATION_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_DATA_FIELD_NUMBER: _ClassVar[int]
    type: str
    version: str
    label: str
    description: str
    kind: EvaluatorKind
    auto: bool
    config_schema_json: str
    config_schema_sha256: str
    origin: EvaluatorType.Origin
    state: EvaluatorType.State
    deterministic: bool
    final_turn_only: bool
    metric: MetricDescriptor
    deprecation_message: str
    instance_count: int
    aliases: _containers.RepeatedScalarFieldContainer[str]
    required_data: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, type: _Optional[str] = ..., version: _Optional[str] = ..., label: _Optional[str] = ..., description: _Optional[str] = ..., kind: _Optional[_Union[EvaluatorKind, str]] = ..., auto: bool = ..., config_schema_json: _Optional[str] = ..., config_schema_sha256: _Optional[str] = ..., origin: _Optional[_Union[EvaluatorType.Origin, str]] = ..., state: _Optional[_Union[EvaluatorType.State, str]] = ..., deterministic: bool = ..., final_turn_only: bool = ..., metric: _Optional[_Union[MetricDescriptor, _Mapping]] = ..., deprecation_message: _Optional[str] = ..., instance_count: _Optional[int] = ..., aliases: _Optional[_Iterable[str]] = ..., required_data: _Optional[_Iterable[str]] = ...) -> None: ...

class MetricDescriptor(_message.Message):
    __slots__ = ("unit", "higher_is_better", "minimum", "maximum", "bucket_bounds")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    HIGHER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    higher_is_better: bool
    minimum: float
    maximum: float
    bucket_bounds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, unit: _Optional[str] = ..., higher_is_better: bool = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ..., bucket_bounds: _Optional[_Iterable[float]] = ...) -> None: ...
