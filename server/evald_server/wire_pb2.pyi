from evald.plugin.v1 import registry_service_pb2 as _registry_service_pb2
from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import evaluation_service_pb2 as _evaluation_service_pb2
from evald.v1 import message_pb2 as _message_pb2
from evald.v1 import result_pb2 as _result_pb2
from evald.v1 import suite_service_pb2 as _suite_service_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    options: bytes
    labels: _containers.ScalarMap[str, str]
    def __init__(self, request_id: _Optional[str] = ..., context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[bytes]] = ..., options: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EvaluateUnaryRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: EvaluateRequest
    def __init__(self, request: _Optional[_Union[EvaluateRequest, _Mapping]] = ...) -> None: ...

class EvaluationStarted(_message.Message):
    __slots__ = ("evaluation_id", "plan")
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    plan: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, evaluation_id: _Optional[str] = ..., plan: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("started", "results", "progress", "summary")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    started: EvaluationStarted
    results: _containers.RepeatedCompositeFieldContainer[_result_pb2.EvaluationResult]
    progress: _containers.RepeatedCompositeFieldContainer[_evaluation_service_pb2.EvaluationProgress]
    summary: _result_pb2.AggregatedEvaluation
    def __init__(self, started: _Optional[_Union[EvaluationStarted, _Mapping]] = ..., results: _Optional[_Iterable[_Union[_result_pb2.EvaluationResult, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[_evaluation_service_pb2.EvaluationProgress, _Mapping]]] = ..., summary: _Optional[_Union[_result_pb2.AggregatedEvaluation, _Mapping]] = ...) -> None: ...

class EvaluateSessionRequest(_message.Message):
    __slots__ = ("open", "turn")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    open: SessionOpen
    turn: _evaluation_service_pb2.SessionTurn
    def __init__(self, open: _Optional[_Union[SessionOpen, _Mapping]] = ..., turn: _Optional[_Union[_evaluation_service_pb2.SessionTurn, _Mapping]] = ...) -> None: ...

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
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    options: bytes
    labels: _containers.ScalarMap[str, str]
    def __init__(self, base_context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[bytes]] = ..., options: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EvaluateSessionResponse(_message.Message):
    __slots__ = ("turn_id", "event", "error", "session_summary")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SESSION_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    turn_id: int
    event: EvaluateResponse
    error: _result_pb2.EvaluationError
    session_summary: _evaluation_service_pb2.SessionSummary
    def __init__(self, turn_id: _Optional[int] = ..., event: _Optional[_Union[EvaluateResponse, _Mapping]] = ..., error: _Optional[_Union[_result_pb2.EvaluationError, _Mapping]] = ..., session_summary: _Optional[_Union[_evaluation_service_pb2.SessionSummary, _Mapping]] = ...) -> None: ...

class EvaluateBatchRequest(_message.Message):
    __slots__ = ("open", "items")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    open: BatchOpen
    items: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, open: _Optional[_Union[BatchOpen, _Mapping]] = ..., items: _Optional[_Iterable[bytes]] = ...) -> None: ...

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
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    options: bytes
    labels: _containers.ScalarMap[str, str]
    brief: bool
    def __init__(self, evaluators: _Optional[_Iterable[bytes]] = ..., options: _Optional[bytes] = ..., labels: _Optional[_Mapping[str, str]] = ..., brief: bool = ...) -> None: ...

class BatchItem(_message.Message):
    __slots__ = ("item_id", "context", "evaluators")
    ITEM_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    item_id: str
    context: _context_pb2.EvaluatorContext
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, item_id: _Optional[str] = ..., context: _Optional[_Union[_context_pb2.EvaluatorContext, _Mapping]] = ..., evaluators: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EvaluateBatchResponse(_message.Message):
    __slots__ = ("answers", "summary")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedScalarFieldContainer[bytes]
    summary: _evaluation_service_pb2.BatchSummary
    def __init__(self, answers: _Optional[_Iterable[bytes]] = ..., summary: _Optional[_Union[_evaluation_service_pb2.BatchSummary, _Mapping]] = ...) -> None: ...

class RunSuiteRequest(_message.Message):
    __slots__ = ("open", "cases")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CASES_FIELD_NUMBER: _ClassVar[int]
    open: _suite_service_pb2.SuiteOpen
    cases: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, open: _Optional[_Union[_suite_service_pb2.SuiteOpen, _Mapping]] = ..., cases: _Optional[_Iterable[bytes]] = ...) -> None: ...

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
    recorded_trials: _containers.RepeatedCompositeFieldContainer[_suite_service_pb2.RecordedTrial]
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    options: bytes
    trials: int
    min_passed: int
    weight: float
    tags: _containers.RepeatedScalarFieldContainer[str]
    metadata: _struct_pb2.Struct
    def __init__(self, case_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[SuiteTurn, _Mapping]]] = ..., recorded_trials: _Optional[_Iterable[_Union[_suite_service_pb2.RecordedTrial, _Mapping]]] = ..., evaluators: _Optional[_Iterable[bytes]] = ..., options: _Optional[bytes] = ..., trials: _Optional[int] = ..., min_passed: _Optional[int] = ..., weight: _Optional[float] = ..., tags: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class SuiteTurn(_message.Message):
    __slots__ = ("input", "expected", "evaluators")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    EVALUATORS_FIELD_NUMBER: _ClassVar[int]
    input: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    expected: _context_pb2.Expected
    evaluators: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, input: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., expected: _Optional[_Union[_context_pb2.Expected, _Mapping]] = ..., evaluators: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RunSuiteResponse(_message.Message):
    __slots__ = ("started", "results", "ended")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    started: _suite_service_pb2.SuiteRun
    results: _containers.RepeatedScalarFieldContainer[bytes]
    ended: _suite_service_pb2.SuiteRun
    def __init__(self, started: _Optional[_Union[_suite_service_pb2.SuiteRun, _Mapping]] = ..., results: _Optional[_Iterable[bytes]] = ..., ended: _Optional[_Union[_suite_service_pb2.SuiteRun, _Mapping]] = ...) -> None: ...

class ListCaseResultsResponse(_message.Message):
    __slots__ = ("results", "next_page_token")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedScalarFieldContainer[bytes]
    next_page_token: str
    def __init__(self, results: _Optional[_Iterable[bytes]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TaskCompleted(_message.Message):
    __slots__ = ("task_id", "output")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    output: bytes
    def __init__(self, task_id: _Optional[str] = ..., output: _Optional[bytes] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("hello", "completed", "progress", "credit", "draining", "pong")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    hello: _registry_service_pb2.WorkerHello
    completed: TaskCompleted
    progress: _registry_service_pb2.TaskProgress
    credit: _registry_service_pb2.CreditGrant
    draining: _registry_service_pb2.WorkerDraining
    pong: _registry_service_pb2.Pong
    def __init__(self, hello: _Optional[_Union[_registry_service_pb2.WorkerHello, _Mapping]] = ..., completed: _Optional[_Union[TaskCompleted, _Mapping]] = ..., progress: _Optional[_Union[_registry_service_pb2.TaskProgress, _Mapping]] = ..., credit: _Optional[_Union[_registry_service_pb2.CreditGrant, _Mapping]] = ..., draining: _Optional[_Union[_registry_service_pb2.WorkerDraining, _Mapping]] = ..., pong: _Optional[_Union[_registry_service_pb2.Pong, _Mapping]] = ...) -> None: ...
