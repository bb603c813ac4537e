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

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_PASSED: _ClassVar[Verdict]
    VERDICT_FAILED: _ClassVar[Verdict]
    VERDICT_ERROR: _ClassVar[Verdict]
    VERDICT_SKIPPED: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_PASSED: Verdict
VERDICT_FAILED: Verdict
VERDICT_ERROR: Verdict
VERDICT_SKIPPED: Verdict

class EvaluationResult(_message.Message):
    __slots__ = ("index", "name", "type", "version", "kind", "enforcement", "verdict", "value", "reason", "metadata", "error", "start_time", "duration", "token_usage", "cost", "instance_id", "cached", "label", "success", "score", "checks", "raw_request", "pending", "provenance", "cached_answer_count")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    RAW_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    CACHED_ANSWER_COUNT_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    type: str
    version: str
    kind: _evaluator_pb2.EvaluatorKind
    enforcement: _evaluator_pb2.Enforcement
    verdict: Verdict
    value: float
    reason: str
    metadata: _struct_pb2.Struct
    error: EvaluationError
    start_time: _timestamp_pb2.Timestamp
    duration: _duration_pb2.Duration
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    instance_id: str
    cached: bool
    label: str
    success: bool
    score: float
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    raw_request: _struct_pb2.Struct
    pending: bool
    provenance: Provenance
    cached_answer_count: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., version: _Optional[str] = ..., kind: _Optional[_Union[_evaluator_pb2.EvaluatorKind, str]] = ..., enforcement: _Optional[_Union[_evaluator_pb2.Enforcement, str]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., value: _Optional[float] = ..., reason: _Optional[str] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., error: _Optional[_Union[EvaluationError, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., instance_id: _Optional[str] = ..., cached: bool = ..., label: _Optional[str] = ..., success: bool = ..., score: _Optional[float] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., raw_request: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., pending: bool = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., cached_answer_count: _Optional[int] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("config_sha256", "judge_models", "prompt_sha256", "calibration_card")
    CONFIG_SHA256_FIELD_NUMBER: _ClassVar[int]
    JUDGE_MODELS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SHA256_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_CARD_FIELD_NUMBER: _ClassVar[int]
    config_sha256: str
    judge_models: _containers.RepeatedScalarFieldContainer[str]
    prompt_sha256: str
    calibration_card: str
    def __init__(self, config_sha256: _Optional[str] = ..., judge_models: _Optional[_Iterable[str]] = ..., prompt_sha256: _Optional[str] = ..., calibration_card: _Optional[str] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("text", "met", "evidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    met: bool
    evidence: str
    def __init__(self, text: _Optional[str] = ..., met: bool = ..., evidence: _Optional[str] = ...) -> None: ...

class EvaluationError(_message.Message):
    __slots__ = ("code", "category", "message", "retryable", "metadata")
    class Category(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CATEGORY_UNSPECIFIED: _ClassVar[EvaluationError.Category]
        CATEGORY_INFRASTRUCTURE: _ClassVar[EvaluationError.Category]
        CATEGORY_CONFIG: _ClassVar[EvaluationError.Category]
        CATEGORY_EVALUATOR: _ClassVar[EvaluationError.Category]
        CATEGORY_JUDGE: _ClassVar[EvaluationError.Category]
        CATEGORY_CANCELLED: _ClassVar[EvaluationError.Category]
    CATEGORY_UNSPECIFIED: EvaluationError.Category
    CATEGORY_INFRASTRUCTURE: EvaluationError.Category
    CATEGORY_CONFIG: EvaluationError.Category
    CATEGORY_EVALUATOR: EvaluationError.Category
    CATEGORY_JUDGE: EvaluationError.Category
    CATEGORY_CANCELLED: EvaluationError.Category
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: str
    category: EvaluationError.Category
    message: str
    retryable: bool
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., category: _Optional[_Union[EvaluationError.Category, str]] = ..., message: _Optional[str] = ..., retryable: bool = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AggregatedEvaluation(_message.Message):
    __slots__ = ("verdict", "success", "score", "reason", "results", "metrics", "passed_count", "failed_count", "error_count", "skipped_count", "duration", "token_usage", "cost", "min_score", "mean_score", "warnings", "start_time")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PASSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_FIELD_NUMBER: _ClassVar[int]
    MEAN_SCORE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    success: bool
    score: float
    reason: str
    results: _containers.RepeatedCompositeFieldContainer[EvaluationResult]
    metrics: _containers.ScalarMap[str, float]
    passed_count: int
    failed_count: int
    error_count: int
    skipped_count: int
    duration: _duration_pb2.Duration
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    min_score: float
    mean_score: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., success: bool = ..., score: _Optional[float] = ..., reason: _Optional[str] = ..., results: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., passed_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., skipped_count: _Optional[int] = ..., duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., min_score: _Optional[float] = ..., mean_score: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
