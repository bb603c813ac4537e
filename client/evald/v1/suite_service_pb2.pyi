from evald.v1 import connector_service_pb2 as _connector_service_pb2
from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import evaluation_service_pb2 as _evaluation_service_pb2
from evald.v1 import evaluator_pb2 as _evaluator_pb2
from evald.v1 import message_pb2 as _message_pb2
from evald.v1 import result_pb2 as _result_pb2
from evald.v1 import run_service_pb2 as _run_service_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SuiteRunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUITE_RUN_STATUS_UNSPECIFIED: _ClassVar[SuiteRunStatus]
    SUITE_RUN_STATUS_RUNNING: _ClassVar[SuiteRunStatus]
    SUITE_RUN_STATUS_COMPLETED: _ClassVar[SuiteRunStatus]
    SUITE_RUN_STATUS_INTERRUPTED: _ClassVar[SuiteRunStatus]

class ComparisonVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPARISON_VERDICT_UNSPECIFIED: _ClassVar[ComparisonVerdict]
    COMPARISON_VERDICT_PASS: _ClassVar[ComparisonVerdict]
    COMPARISON_VERDICT_WARN: _ClassVar[ComparisonVerdict]
    COMPARISON_VERDICT_BLOCK: _ClassVar[ComparisonVerdict]
    COMPARISON_VERDICT_INCONCLUSIVE: _ClassVar[ComparisonVerdict]
SUITE_RUN_STATUS_UNSPECIFIED: SuiteRunStatus
SUITE_RUN_STATUS_RUNNING: SuiteRunStatus
SUITE_RUN_STATUS_COMPLETED: SuiteRunStatus
SUITE_RUN_STATUS_INTERRUPTED: SuiteRunStatus
COMPARISON_VERDICT_UNSPECIFIED: ComparisonVerdict
COMPARISON_VERDICT_PASS: ComparisonVerdict
COMPARISON_VERDICT_WARN: ComparisonVerdict
COMPARISON_VERDICT_BLOCK: ComparisonVerdict
COMPARISON_VERDICT_INCONCLUSIVE: ComparisonVerdict

class RunSuiteRequest(_message.Message):
    __slots__ = ("open", "cases")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CASES_FIELD_NUMBER: _ClassVar[int]
    open: SuiteOpen
    cases: _containers.RepeatedCompositeFieldContainer[SuiteCase]
    def __init__(self, open: _Optional[_Union[SuiteOpen, _Mapping]] = ..., cases: _Optional[_Iterable[_Union[SuiteCase, _Mapping]]] = ...) -> None: ...

class SuiteOpen(_message.Message):
    __slots__ = ("suite_run_id", "resume", "suite", "target", "connector_id", "connector", "evaluators", "options", "trials", "min_passed", "threshold", "max_concurrency", "case_count", "labels", "metadata", "cases_digest", "validate_only", "brief")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUITE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    MIN_PASSED_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    CASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CASES_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    suite_run_id: str
    resume: bool
    suite: str
    target: str
    connector_id: str
    connector: _connector_service_pb2.Connector
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    options: _evaluation_service_pb2.EvaluateOptions
    trials: int
    min_passed: int
    threshold: float
    max_concurrency: int
    case_count: int
    labels: _containers.ScalarMap[str, str]
    metadata: _struct_pb2.Struct
    cases_digest: str
    validate_only: bool
    brief: bool
    def __init__(self, suite_run_id: _Optional[str] = ..., resume: bool = ..., suite: _Optional[str] = ..., target: _Optional[str] = ..., connector_id: _Optional[str] = ..., connector: _Optional[_Union[_connector_service_pb2.Connector, _Mapping]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., options: _Optional[_Union[_evaluation_service_pb2.EvaluateOptions, _Mapping]] = ..., trials: _Optional[int] = ..., min_passed: _Optional[int] = ..., threshold: _Optional[float] = ..., max_concurrency: _Optional[int] = ..., case_count: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., cases_digest: _Optional[str] = ..., validate_only: bool = ..., brief: bool = ...) -> None: ...

class SuiteCase(_message.Message):
    __slots__ = ("case_id", "messages", "turns", "recorded_trials", "evaluators", "options", "trials", "min_passed", "weight", "tags", "metadata")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_TRIALS_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    MIN_PASSED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    turns: _containers.RepeatedCompositeFieldContainer[SuiteTurn]
    recorded_trials: _containers.RepeatedCompositeFieldContainer[RecordedTrial]
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    options: _evaluation_service_pb2.EvaluateOptions
    trials: int
    min_passed: int
    weight: float
    tags: _containers.RepeatedScalarFieldContainer[str]
    metadata: _struct_pb2.Struct
    def __init__(self, case_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[SuiteTurn, _Mapping]]] = ..., recorded_trials: _Optional[_Iterable[_Union[RecordedTrial, _Mapping]]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ..., options: _Optional[_Union[_evaluation_service_pb2.EvaluateOptions, _Mapping]] = ..., trials: _Optional[int] = ..., min_passed: _Optional[int] = ..., weight: _Optional[float] = ..., tags: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SuiteTurn(_message.Message):
    __slots__ = ("input", "expected", "evaluators")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    expected: _context_pb2.Expected
    evaluators: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorSpec]
    def __init__(self, input: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., expected: _Optional[_Union[_context_pb2.Expected, _Mapping]] = ..., evaluators: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorSpec, _Mapping]]] = ...) -> None: ...

class RecordedTrial(_message.Message):
    __slots__ = ("answers", "error")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[_context_pb2.Invocation]
    error: _run_service_pb2.RunError
    def __init__(self, answers: _Optional[_Iterable[_Union[_context_pb2.Invocation, _Mapping]]] = ..., error: _Optional[_Union[_run_service_pb2.RunError, _Mapping]] = ...) -> None: ...

class RunSuiteResponse(_message.Message):
    __slots__ = ("started", "results", "ended")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    started: SuiteRun
    results: _containers.RepeatedCompositeFieldContainer[CaseResult]
    ended: SuiteRun
    def __init__(self, started: _Optional[_Union[SuiteRun, _Mapping]] = ..., results: _Optional[_Iterable[_Union[CaseResult, _Mapping]]] = ..., ended: _Optional[_Union[SuiteRun, _Mapping]] = ...) -> None: ...

class SuiteRun(_message.Message):
    __slots__ = ("id", "suite", "target", "status", "verdict", "reason", "threshold", "case_count", "passed_count", "failed_count", "error_count", "skipped_count", "pass_rate", "mean_score", "trials", "trial_estimates", "unstable_count", "evaluators", "provenance", "mean_latency_seconds", "token_usage", "cost", "evaluator_token_usage", "evaluator_cost", "labels", "metadata", "create_time", "complete_time", "error_share", "cached_answer_count")
    class EvaluatorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _evaluation_service_pb2.EvaluatorTotals
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_evaluation_service_pb2.EvaluatorTotals, _Mapping]] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_FIELD_NUMBER: _ClassVar[int]
    MEAN_SCORE_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    UNSTABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    MEAN_LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_COST_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_SHARE_FIELD_NUMBER: _ClassVar[int]
    CACHED_ANSWER_COUNT_FIELD_NUMBER: _ClassVar[int]
    id: str
    suite: str
    target: str
    status: SuiteRunStatus
    verdict: _result_pb2.Verdict
    reason: str
    threshold: float
    case_count: int
    passed_count: int
    failed_count: int
    error_count: int
    skipped_count: int
    pass_rate: Estimate
    mean_score: float
    trials: int
    trial_estimates: _containers.RepeatedCompositeFieldContainer[TrialEstimate]
    unstable_count: int
    evaluators: _containers.MessageMap[str, _evaluation_service_pb2.EvaluatorTotals]
    provenance: _containers.RepeatedCompositeFieldContainer[EvaluatorProvenance]
    mean_latency_seconds: float
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    evaluator_token_usage: _message_pb2.TokenUsage
    evaluator_cost: _message_pb2.Cost
    labels: _containers.ScalarMap[str, str]
    metadata: _struct_pb2.Struct
    create_time: _timestamp_pb2.Timestamp
    complete_time: _timestamp_pb2.Timestamp
    error_share: float
    cached_answer_count: int
    def __init__(self, id: _Optional[str] = ..., suite: _Optional[str] = ..., target: _Optional[str] = ..., status: _Optional[_Union[SuiteRunStatus, str]] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., reason: _Optional[str] = ..., threshold: _Optional[float] = ..., case_count: _Optional[int] = ..., passed_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., skipped_count: _Optional[int] = ..., pass_rate: _Optional[_Union[Estimate, _Mapping]] = ..., mean_score: _Optional[float] = ..., trials: _Optional[int] = ..., trial_estimates: _Optional[_Iterable[_Union[TrialEstimate, _Mapping]]] = ..., unstable_count: _Optional[int] = ..., evaluators: _Optional[_Mapping[str, _evaluation_service_pb2.EvaluatorTotals]] = ..., provenance: _Optional[_Iterable[_Union[EvaluatorProvenance, _Mapping]]] = ..., mean_latency_seconds: _Optional[float] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., evaluator_token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., evaluator_cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., complete_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., error_share: _Optional[float] = ..., cached_answer_count: _Optional[int] = ...) -> None: ...

class Estimate(_message.Message):
    __slots__ = ("value", "low", "high")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...

class TrialEstimate(_message.Message):
    __slots__ = ("k", "any_passes", "all_pass", "case_count")
    K_FIELD_NUMBER: _ClassVar[int]
    ANY_PASSES_FIELD_NUMBER: _ClassVar[int]
    ALL_PASS_FIELD_NUMBER: _ClassVar[int]
    CASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    k: int
    any_passes: Estimate
    all_pass: Estimate
    case_count: int
    def __init__(self, k: _Optional[int] = ..., any_passes: _Optional[_Union[Estimate, _Mapping]] = ..., all_pass: _Optional[_Union[Estimate, _Mapping]] = ..., case_count: _Optional[int] = ...) -> None: ...

class EvaluatorProvenance(_message.Message):
    __slots__ = ("name", "type", "version", "provenance")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    version: str
    provenance: _result_pb2.Provenance
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., version: _Optional[str] = ..., provenance: _Optional[_Union[_result_pb2.Provenance, _Mapping]] = ...) -> None: ...

class CaseResult(_message.Message):
    __slots__ = ("case_id", "verdict", "score", "reason", "trials", "passed_count", "failed_count", "error_count", "weight", "tags", "metadata", "conditions_sha256", "warnings")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    PASSED_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_SHA256_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    verdict: _result_pb2.Verdict
    score: float
    reason: str
    trials: _containers.RepeatedCompositeFieldContainer[TrialResult]
    passed_count: int
    failed_count: int
    error_count: int
    weight: float
    tags: _containers.RepeatedScalarFieldContainer[str]
    metadata: _struct_pb2.Struct
    conditions_sha256: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, case_id: _Optional[str] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., score: _Optional[float] = ..., reason: _Optional[str] = ..., trials: _Optional[_Iterable[_Union[TrialResult, _Mapping]]] = ..., passed_count: _Optional[int] = ..., failed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., weight: _Optional[float] = ..., tags: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., conditions_sha256: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class TrialResult(_message.Message):
    __slots__ = ("trial", "verdict", "score", "reason", "messages", "turns", "error")
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    trial: int
    verdict: _result_pb2.Verdict
    score: float
    reason: str
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    turns: _containers.RepeatedCompositeFieldContainer[_run_service_pb2.RunTurn]
    error: _run_service_pb2.RunError
    def __init__(self, trial: _Optional[int] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., score: _Optional[float] = ..., reason: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[_run_service_pb2.RunTurn, _Mapping]]] = ..., error: _Optional[_Union[_run_service_pb2.RunError, _Mapping]] = ...) -> None: ...

class GetSuiteRunRequest(_message.Message):
    __slots__ = ("suite_run_id",)
    SUITE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    suite_run_id: str
    def __init__(self, suite_run_id: _Optional[str] = ...) -> None: ...

class GetSuiteRunResponse(_message.Message):
    __slots__ = ("suite_run",)
    SUITE_RUN_FIELD_NUMBER: _ClassVar[int]
    suite_run: SuiteRun
    def __init__(self, suite_run: _Optional[_Union[SuiteRun, _Mapping]] = ...) -> None: ...

class ListSuiteRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "suite", "target", "status", "verdict", "since", "until")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    suite: str
    target: str
    status: SuiteRunStatus
    verdict: _result_pb2.Verdict
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., suite: _Optional[str] = ..., target: _Optional[str] = ..., status: _Optional[_Union[SuiteRunStatus, str]] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListSuiteRunsResponse(_message.Message):
    __slots__ = ("suite_runs", "next_page_token")
    SUITE_RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    suite_runs: _containers.RepeatedCompositeFieldContainer[SuiteRun]
    next_page_token: str
    def __init__(self, suite_runs: _Optional[_Iterable[_Union[SuiteRun, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListCaseResultsRequest(_message.Message):
    __slots__ = ("suite_run_id", "page_size", "page_token", "verdict", "case_id", "brief")
    SUITE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    suite_run_id: str
    page_size: int
    page_token: str
    verdict: _result_pb2.Verdict
    case_id: str
    brief: bool
    def __init__(self, suite_run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., case_id: _Optional[str] = ..., brief: bool = ...) -> None: ...

class ListCaseResultsResponse(_message.Message):
    __slots__ = ("results", "next_page_token")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[CaseResult]
    next_page_token: str
    def __init__(self, results: _Optional[_Iterable[_Union[CaseResult, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CompareSuiteRunsRequest(_message.Message):
    __slots__ = ("base_id", "new_id", "max_drop")
    BASE_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_DROP_FIELD_NUMBER: _ClassVar[int]
    base_id: str
    new_id: str
    max_drop: float
    def __init__(self, base_id: _Optional[str] = ..., new_id: _Optional[str] = ..., max_drop: _Optional[float] = ...) -> None: ...

class CompareSuiteRunsResponse(_message.Message):
    __slots__ = ("comparison",)
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    comparison: SuiteComparison
    def __init__(self, comparison: _Optional[_Union[SuiteComparison, _Mapping]] = ...) -> None: ...

class SuiteComparison(_message.Message):
    __slots__ = ("verdict", "reason", "base", "new", "pair_count", "broken_count", "fixed_count", "error_count", "base_only_count", "new_only_count", "pass_rate_change", "mcnemar_p", "score_change", "permutation_p", "effect_size", "smallest_detectable_drop", "changes", "provenance_changes")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    PAIR_COUNT_FIELD_NUMBER: _ClassVar[int]
    BROKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIXED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_ONLY_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEW_ONLY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASS_RATE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    MCNEMAR_P_FIELD_NUMBER: _ClassVar[int]
    SCORE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    PERMUTATION_P_FIELD_NUMBER: _ClassVar[int]
    EFFECT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_DETECTABLE_DROP_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_CHANGES_FIELD_NUMBER: _ClassVar[int]
    verdict: ComparisonVerdict
    reason: str
    base: SuiteRun
    new: SuiteRun
    pair_count: int
    broken_count: int
    fixed_count: int
    error_count: int
    base_only_count: int
    new_only_count: int
    pass_rate_change: Estimate
    mcnemar_p: float
    score_change: float
    permutation_p: float
    effect_size: float
    smallest_detectable_drop: float
    changes: _containers.RepeatedCompositeFieldContainer[CaseChange]
    provenance_changes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, verdict: _Optional[_Union[ComparisonVerdict, str]] = ..., reason: _Optional[str] = ..., base: _Optional[_Union[SuiteRun, _Mapping]] = ..., new: _Optional[_Union[SuiteRun, _Mapping]] = ..., pair_count: _Optional[int] = ..., broken_count: _Optional[int] = ..., fixed_count: _Optional[int] = ..., error_count: _Optional[int] = ..., base_only_count: _Optional[int] = ..., new_only_count: _Optional[int] = ..., pass_rate_change: _Optional[_Union[Estimate, _Mapping]] = ..., mcnemar_p: _Optional[float] = ..., score_change: _Optional[float] = ..., permutation_p: _Optional[float] = ..., effect_size: _Optional[float] = ..., smallest_detectable_drop: _Optional[float] = ..., changes: _Optional[_Iterable[_Union[CaseChange, _Mapping]]] = ..., provenance_changes: _Optional[_Iterable[str]] = ...) -> None: ...

class CaseChange(_message.Message):
    __slots__ = ("case_id", "base_verdict", "new_verdict", "base_score", "new_score", "reason")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_VERDICT_FIELD_NUMBER: _ClassVar[int]
    NEW_VERDICT_FIELD_NUMBER: _ClassVar[int]
    BASE_SCORE_FIELD_NUMBER: _ClassVar[int]
    NEW_SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    base_verdict: _result_pb2.Verdict
    new_verdict: _result_pb2.Verdict
    base_score: float
    new_score: float
    reason: str
    def __init__(self, case_id: _Optional[str] = ..., base_verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., new_verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., base_score: _Optional[float] = ..., new_score: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteSuiteRunRequest(_message.Message):
    __slots__ = ("suite_run_id",)
    SUITE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    suite_run_id: str
    def __init__(self, suite_run_id: _Optional[str] = ...) -> None: ...

class DeleteSuiteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
