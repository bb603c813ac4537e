from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import evaluator_pb2 as _evaluator_pb2
from evald.v1 import message_pb2 as _message_pb2
from evald.v1 import result_pb2 as _result_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AggregationPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_POLICY_UNSPECIFIED: _ClassVar[AggregationPolicy]
    AGGREGATION_POLICY_ALL_MUST_PASS: _ClassVar[AggregationPolicy]
    AGGREGATION_POLICY_WEIGHTED_MEAN: _ClassVar[AggregationPolicy]
AGGREGATION_POLICY_UNSPECIFIED: AggregationPolicy
AGGREGATION_POLICY_ALL_MUST_PASS: AggregationPolicy
AGGREGATION_POLICY_WEIGHTED_MEAN: AggregationPolicy

class EvaluateRequest(_message.Message):
    __slots__ = ("request_id", "context", "evaluators", "options", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    context: _context_pb2.EvaluatorContext
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    options: EvaluateOptions
    labels: _containers.ScalarMap[str, str]
    def __init__(self, request_id: _Optional[str] = ..., context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., options: _Optional[_Union[EvaluateOptions, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EvaluateOptions(_message.Message):
    __slots__ = ("fail_fast", "max_concurrency", "skip_auto_evaluators", "include_progress", "timeout", "skip_cache", "aggregation", "threshold", "criteria_policy")
    FAIL_FAST_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    SKIP_AUTO_EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    SKIP_CACHE_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CRITERIA_POLICY_FIELD_NUMBER: _ClassVar[int]
    fail_fast: bool
    max_concurrency: int
    skip_auto_evaluators: bool
    include_progress: bool
    timeout: _duration_pb2.Duration
    skip_cache: bool
    aggregation: AggregationPolicy
    threshold: float
    criteria_policy: _context_pb2.CriteriaPolicy
    def __init__(self, fail_fast: bool = ..., max_concurrency: _Optional[int] = ..., skip_auto_evaluators: bool = ..., include_progress: bool = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., skip_cache: bool = ..., aggregation: _Optional[_Union[AggregationPolicy, str]] = ..., threshold: _Optional[float] = ..., criteria_policy: _Optional[_Union[_context_pb2.CriteriaPolicy, str]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("started", "results", "progress", "summary")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    started: EvaluationStarted
    results: _containers.RepeatedCompositeFieldContainer[_result_pb2.EvaluationResult]
    progress: _containers.RepeatedCompositeFieldContainer[EvaluationProgress]
    summary: _result_pb2.AggregatedEvaluation
    def __init__(self, started: _Optional[_Union[EvaluationStarted, _Mapping]] = ..., results: _Optional[_Iterable[_Union[_result_pb2.EvaluationResult, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[EvaluationProgress, _Mapping]]] = ..., summary: _Optional[_Union[_result_pb2.AggregatedEvaluation, _Mapping]] = ...) -> None: ...

class EvaluationStarted(_message.Message):
    __slots__ = ("evaluation_id", "plan")
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    plan: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    def __init__(self, evaluation_id: _Optional[str] = ..., plan: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ...) -> None: ...

class EvaluationProgress(_message.Message):
    __slots__ = ("index", "message", "fraction")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    index: int
    message: str
    fraction: float
    def __init__(self, index: _Optional[int] = ..., message: _Optional[str] = ..., fraction: _Optional[float] = ...) -> None: ...

class EvaluateUnaryRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: EvaluateRequest
    def __init__(self, request: _Optional[_Union[EvaluateRequest, _Mapping]] = ...) -> None: ...

class EvaluateUnaryResponse(_message.Message):
    __slots__ = ("evaluation_id", "summary")
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    summary: _result_pb2.AggregatedEvaluation
    def __init__(self, evaluation_id: _Optional[str] = ..., summary: _Optional[_Union[_result_pb2.AggregatedEvaluation, _Mapping]] = ...) -> None: ...

class EvaluateSessionRequest(_message.Message):
    __slots__ = ("open", "turn")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    open: SessionOpen
    turn: SessionTurn
    def __init__(self, open: _Optional[_Union[SessionOpen, _Mapping]] = ..., turn: _Optional[_Union[SessionTurn, _Mapping]] = ...) -> None: ...

class SessionOpen(_message.Message):
    __slots__ = ("base_context", "evaluators", "options", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BASE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    base_context: _context_pb2.EvaluatorContext
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    options: EvaluateOptions
    labels: _containers.ScalarMap[str, str]
    def __init__(self, base_context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., options: _Optional[_Union[EvaluateOptions, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SessionTurn(_message.Message):
    __slots__ = ("turn_id", "new_messages", "new_messages_json", "last_invocation", "is_final", "expected", "run_duration")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEW_MESSAGES_JSON_FIELD_NUMBER: _ClassVar[int]
    LAST_INVOCATION_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    RUN_DURATION_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    new_messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    new_messages_json: str
    last_invocation: _context_pb2.Invocation
    is_final: bool
    expected: _context_pb2.Expected
    run_duration: _duration_pb2.Duration
    def __init__(self, turn_id: _Optional[int] = ..., new_messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., new_messages_json: _Optional[str] = ..., last_invocation: _Optional[_Union[_context_pb2.Invocation, _Mapping]] = ..., is_final: bool = ..., expected: _Optional[_Union[_context_pb2.Expected, _Mapping]] = ..., run_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class EvaluateSessionResponse(_message.Message):
    __slots__ = ("turn_id", "event", "error", "session_summary")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SESSION_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    event: EvaluateResponse
    error: _result_pb2.EvaluationError
    session_summary: SessionSummary
    def __init__(self, turn_id: _Optional[int] = ..., event: _Optional[_Union[EvaluateResponse, _Mapping]] = ..., error: _Optional[_Union[_result_pb2.EvaluationError, _Mapping]] = ..., session_summary: _Optional[_Union[SessionSummary, _Mapping]] = ...) -> None: ...

class SessionSummary(_message.Message):
    __slots__ = ("verdict", "success", "turn_count", "failed_turn_ids", "error")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    TURN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_TURN_IDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    verdict: _result_pb2.Verdict
    success: bool
    turn_count: int
    failed_turn_ids: _containers.RepeatedScalarFieldContainer[int]
    error: _result_pb2.EvaluationError
    def __init__(self, verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., success: bool = ..., turn_count: _Optional[int] = ..., failed_turn_ids: _Optional[_Iterable[int]] = ..., error: _Optional[_Union[_result_pb2.EvaluationError, _Mapping]] = ...) -> None: ...

class EvaluateBatchRequest(_message.Message):
    __slots__ = ("open", "items")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    open: BatchOpen
    items: _containers.RepeatedCompositeFieldContainer[BatchItem]
    def __init__(self, open: _Optional[_Union[BatchOpen, _Mapping]] = ..., items: _Optional[_Iterable[_Union[BatchItem, _Mapping]]] = ...) -> None: ...

class BatchOpen(_message.Message):
    __slots__ = ("evaluators", "options", "labels", "brief")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    options: EvaluateOptions
    labels: _containers.ScalarMap[str, str]
    brief: bool
    def __init__(self, evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., options: _Optional[_Union[EvaluateOptions, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., brief: bool = ...) -> None: ...

class BatchItem(_message.Message):
    __slots__ = ("item_id", "context", "evaluators")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    context: _context_pb2.EvaluatorContext
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    def __init__(self, item_id: _Optional[str] = ..., context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ...) -> None: ...

class EvaluateBatchResponse(_message.Message):
    __slots__ = ("answers", "summary")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[BatchAnswer]
    summary: BatchSummary
    def __init__(self, answers: _Optional[_Iterable[_Union[BatchAnswer, _Mapping]]] = ..., summary: _Optional[_Union[BatchSummary, _Mapping]] = ...) -> None: ...

class BatchAnswer(_message.Message):
    __slots__ = ("item_id", "summary", "error")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    summary: _result_pb2.AggregatedEvaluation
    error: _result_pb2.EvaluationError
    def __init__(self, item_id: _Optional[str] = ..., summary: _Optional[_Union[_result_pb2.AggregatedEvaluation, _Mapping]] = ..., error: _Optional[_Union[_result_pb2.EvaluationError, _Mapping]] = ...) -> None: ...

class BatchSummary(_message.Message):
    __slots__ = ("item_count", "passed_count", "failed_count", "error_count", "skipped_count", "evaluators")
    class EvaluatorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: EvaluatorTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[EvaluatorTotals, _Mapping]] = ...) -> None: ...
    ITEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    item_count: int
    passed_count: int
    failed_count: int
    error_count: int
    skipped_count: int
    evaluators: _containers.MessageMap[str, EvaluatorTotals]
    def __init__(self, item_count: _Optional[int] = ..., passed_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., skipped_count: _Optional[int] = ..., evaluators: _Optional[_Mapping[str, EvaluatorTotals]] = ...) -> None: ...

class EvaluatorTotals(_message.Message):
    __slots__ = ("passed_count", "failed_count", "error_count", "mean_value", "kind", "enforcement")
    PASSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_VALUE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    passed_count: int
    failed_count: int
    error_count: int
    mean_value: float
    kind: _evaluator_pb2.EvaluatorKind
    enforcement: _evaluator_pb2.Enforcement
    def __init__(self, passed_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., mean_value: _Optional[float] = ..., kind: _Optional[_Union[_evaluator_pb2.EvaluatorKind, str]] = ..., enforcement: _Optional[_Union[_evaluator_pb2.Enforcement, str]] = ...) -> None: ...

class ValidateSpecsRequest(_message.Message):
    __slots__ = ("evaluators",)
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    def __init__(self, evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ...) -> None: ...

class ValidateSpecsResponse(_message.Message):
    __slots__ = ("violations",)
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[SpecViolation]
    def __init__(self, violations: _Optional[_Iterable[_Union[SpecViolation, _Mapping]]] = ...) -> None: ...

class SpecViolation(_message.Message):
    __slots__ = ("index", "path", "reason", "message")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    index: int
    path: str
    reason: str
    message: str
    def __init__(self, index: _Optional[int] = ..., path: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
