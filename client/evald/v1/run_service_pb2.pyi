from evald.v1 import connector_service_pb2 as _connector_service_pb2
from evald.v1 import context_pb2 as _context_pb2
from evald.v1 import message_pb2 as _message_pb2
from evald.v1 import result_pb2 as _result_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_QUEUED: _ClassVar[RunStatus]
    RUN_STATUS_RUNNING: _ClassVar[RunStatus]
    RUN_STATUS_COMPLETED: _ClassVar[RunStatus]
    RUN_STATUS_ERROR: _ClassVar[RunStatus]
    RUN_STATUS_INTERRUPTED: _ClassVar[RunStatus]
    RUN_STATUS_CANCELLED: _ClassVar[RunStatus]
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_QUEUED: RunStatus
RUN_STATUS_RUNNING: RunStatus
RUN_STATUS_COMPLETED: RunStatus
RUN_STATUS_ERROR: RunStatus
RUN_STATUS_INTERRUPTED: RunStatus
RUN_STATUS_CANCELLED: RunStatus

class Run(_message.Message):
    __slots__ = ("id", "experiment_id", "execution_id", "scenario_id", "persona_id", "connector_id", "status", "verdict", "result", "error", "output", "messages", "turns", "turn_count", "thread_id", "attempt", "last_sequence", "token_usage", "cost", "create_time", "start_time", "complete_time", "update_time", "scenario", "persona", "connector")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TURN_COUNT_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    SCENARIO_FIELD_NUMBER: _ClassVar[int]
    PERSONA_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    id: str
    experiment_id: str
    execution_id: int
    scenario_id: str
    persona_id: str
    connector_id: str
    status: RunStatus
    verdict: _result_pb2.Verdict
    result: RunResult
    error: RunError
    output: RunOutput
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    turns: _containers.RepeatedCompositeFieldContainer[RunTurn]
    turn_count: int
    thread_id: str
    attempt: int
    last_sequence: int
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    complete_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    scenario: _context_pb2.Scenario
    persona: _context_pb2.Persona
    connector: _connector_service_pb2.Connector
    def __init__(self, id: _Optional[str] = ..., experiment_id: _Optional[str] = ..., execution_id: _Optional[int] = ..., scenario_id: _Optional[str] = ..., persona_id: _Optional[str] = ..., connector_id: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., result: _Optional[_Union[RunResult, _Mapping]] = ..., error: _Optional[_Union[RunError, _Mapping]] = ..., output: _Optional[_Union[RunOutput, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., turns: _Optional[_Iterable[_Union[RunTurn, _Mapping]]] = ..., turn_count: _Optional[int] = ..., thread_id: _Optional[str] = ..., attempt: _Optional[int] = ..., last_sequence: _Optional[int] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., complete_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., scenario: _Optional[_Union[_context_pb2.Scenario, _Mapping]] = ..., persona: _Optional[_Union[_context_pb2.Persona, _Mapping]] = ..., connector: _Optional[_Union[_connector_service_pb2.Connector, _Mapping]] = ...) -> None: ...

class RunResult(_message.Message):
    __slots__ = ("success", "score", "reason")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    success: bool
    score: float
    reason: str
    def __init__(self, success: bool = ..., score: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class RunError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class RunOutput(_message.Message):
    __slots__ = ("average_latency", "total_latency", "message_count", "max_messages_reached", "evaluation", "evaluator_results", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    AVERAGE_LATENCY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_LATENCY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_REACHED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_RESULTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    average_latency: _duration_pb2.Duration
    total_latency: _duration_pb2.Duration
    message_count: int
    max_messages_reached: bool
    evaluation: CriteriaEvaluation
    evaluator_results: _containers.RepeatedCompositeFieldContainer[_result_pb2.EvaluationResult]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, average_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., total_latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., message_count: _Optional[int] = ..., max_messages_reached: bool = ..., evaluation: _Optional[_Union[CriteriaEvaluation, _Mapping]] = ..., evaluator_results: _Optional[_Iterable[_Union[_result_pb2.EvaluationResult, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CriteriaEvaluation(_message.Message):
    __slots__ = ("success_met", "failure_met", "confidence", "reasoning")
    SUCCESS_MET_FIELD_NUMBER: _ClassVar[int]
    FAILURE_MET_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    success_met: bool
    failure_met: bool
    confidence: float
    reasoning: str
    def __init__(self, success_met: bool = ..., failure_met: bool = ..., confidence: _Optional[float] = ..., reasoning: _Optional[str] = ...) -> None: ...

class RunTurn(_message.Message):
    __slots__ = ("turn", "first_message", "message_count", "is_final", "latency", "time_to_first_token", "token_usage", "cost", "model", "evaluation")
    TURN_FIELD_NUMBER: _ClassVar[int]
    FIRST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    turn: int
    first_message: int
    message_count: int
    is_final: bool
    latency: _duration_pb2.Duration
    time_to_first_token: _duration_pb2.Duration
    token_usage: _message_pb2.TokenUsage
    cost: _message_pb2.Cost
    model: str
    evaluation: _result_pb2.AggregatedEvaluation
    def __init__(self, turn: _Optional[int] = ..., first_message: _Optional[int] = ..., message_count: _Optional[int] = ..., is_final: bool = ..., latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., cost: _Optional[_Union[_message_pb2.Cost, _Mapping]] = ..., model: _Optional[str] = ..., evaluation: _Optional[_Union[_result_pb2.AggregatedEvaluation, _Mapping]] = ...) -> None: ...

class StartRunRequest(_message.Message):
    __slots__ = ("scenario_id", "persona_id", "connector_id", "request_id")
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    scenario_id: str
    persona_id: str
    connector_id: str
    request_id: str
    def __init__(self, scenario_id: _Optional[str] = ..., persona_id: _Optional[str] = ..., connector_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class StartRunsRequest(_message.Message):
    __slots__ = ("experiment_id", "request_id")
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    experiment_id: str
    request_id: str
    def __init__(self, experiment_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class StartRunsResponse(_message.Message):
    __slots__ = ("runs", "execution_id")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    execution_id: int
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., execution_id: _Optional[int] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_sequence")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_sequence: int
    def __init__(self, run_id: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("sequence", "message", "result", "turn", "status", "end")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    message: RunMessage
    result: RunTurnResult
    turn: RunTurn
    status: RunStatusChange
    end: Run
    def __init__(self, sequence: _Optional[int] = ..., message: _Optional[_Union[RunMessage, _Mapping]] = ..., result: _Optional[_Union[RunTurnResult, _Mapping]] = ..., turn: _Optional[_Union[RunTurn, _Mapping]] = ..., status: _Optional[_Union[RunStatusChange, _Mapping]] = ..., end: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class RunMessage(_message.Message):
    __slots__ = ("index", "message", "invocation")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    message: _message_pb2.ChatMessage
    invocation: _context_pb2.Invocation
    def __init__(self, index: _Optional[int] = ..., message: _Optional[_Union[_message_pb2.ChatMessage, _Mapping]] = ..., invocation: _Optional[_Union[_context_pb2.Invocation, _Mapping]] = ...) -> None: ...

class RunTurnResult(_message.Message):
    __slots__ = ("turn", "result")
    TURN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    turn: int
    result: _result_pb2.EvaluationResult
    def __init__(self, turn: _Optional[int] = ..., result: _Optional[_Union[_result_pb2.EvaluationResult, _Mapping]] = ...) -> None: ...

class RunStatusChange(_message.Message):
    __slots__ = ("status", "attempt")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    status: RunStatus
    attempt: int
    def __init__(self, status: _Optional[_Union[RunStatus, str]] = ..., attempt: _Optional[int] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "scenario_id", "persona_id", "connector_id", "experiment_id", "execution_id", "status", "verdict", "failed_evaluator", "since", "until", "include_messages", "oldest_first")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCENARIO_ID_FIELD_NUMBER: _ClassVar[int]
    PERSONA_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAILED_EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    scenario_id: str
    persona_id: str
    connector_id: str
    experiment_id: str
    execution_id: int
    status: RunStatus
    verdict: _result_pb2.Verdict
    failed_evaluator: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    include_messages: bool
    oldest_first: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., scenario_id: _Optional[str] = ..., persona_id: _Optional[str] = ..., connector_id: _Optional[str] = ..., experiment_id: _Optional[str] = ..., execution_id: _Optional[int] = ..., status: _Optional[_Union[RunStatus, str]] = ..., verdict: _Optional[_Union[_result_pb2.Verdict, str]] = ..., failed_evaluator: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., include_messages: bool = ..., oldest_first: bool = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class RetryRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class RetryRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ImportRunRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ImportRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...
