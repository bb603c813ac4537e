from evald.plugin.v1 import task_pb2 as _task_pb2
from evald.v1 import evaluator_pb2 as _evaluator_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_STATE_UNSPECIFIED: _ClassVar[LeaseState]
    LEASE_STATE_ACTIVE: _ClassVar[LeaseState]
    LEASE_STATE_EXPIRED: _ClassVar[LeaseState]
    LEASE_STATE_REVOKED: _ClassVar[LeaseState]
LEASE_STATE_UNSPECIFIED: LeaseState
LEASE_STATE_ACTIVE: LeaseState
LEASE_STATE_EXPIRED: LeaseState
LEASE_STATE_REVOKED: LeaseState

class AttachRequest(_message.Message):
    __slots__ = ("hello", "completed", "progress", "credit", "draining", "pong")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    completed: TaskCompleted
    progress: TaskProgress
    credit: CreditGrant
    draining: WorkerDraining
    pong: Pong
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., completed: _Optional[_Union[TaskCompleted, _Mapping]] = ..., progress: _Optional[_Union[TaskProgress, _Mapping]] = ..., credit: _Optional[_Union[CreditGrant, _Mapping]] = ..., draining: _Optional[_Union[WorkerDraining, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("plugin", "instance_id", "initial_credit", "resume_session_id")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    INITIAL_CREDIT_FIELD_NUMBER: _ClassVar[int]
    RESUME_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    plugin: _task_pb2.PluginInfo
    instance_id: str
    initial_credit: int
    resume_session_id: str
    def __init__(self, plugin: _Optional[_Union[_task_pb2.PluginInfo, _Mapping]] = ..., instance_id: _Optional[str] = ..., initial_credit: _Optional[int] = ..., resume_session_id: _Optional[str] = ...) -> None: ...

class TaskCompleted(_message.Message):
    __slots__ = ("task_id", "output")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    output: _task_pb2.EvaluationOutput
    def __init__(self, task_id: _Optional[str] = ..., output: _Optional[_Union[_task_pb2.EvaluationOutput, _Mapping]] = ...) -> None: ...

class TaskProgress(_message.Message):
    __slots__ = ("task_id", "message", "fraction")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    message: str
    fraction: float
    def __init__(self, task_id: _Optional[str] = ..., message: _Optional[str] = ..., fraction: _Optional[float] = ...) -> None: ...

class CreditGrant(_message.Message):
    __slots__ = ("delta",)
    DELTA_FIELD_NUMBER: _ClassVar[int]
    delta: int
    def __init__(self, delta: _Optional[int] = ...) -> None: ...

class WorkerDraining(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce", "active_tasks")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    active_tasks: int
    def __init__(self, nonce: _Optional[int] = ..., active_tasks: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "task", "cancel_task_id", "ping", "draining")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    welcome: ServerWelcome
    task: _task_pb2.EvaluationTask
    cancel_task_id: str
    ping: Ping
    draining: ServerDraining
    def __init__(self, welcome: _Optional[_Union[ServerWelcome, _Mapping]] = ..., task: _Optional[_Union[_task_pb2.EvaluationTask, _Mapping]] = ..., cancel_task_id: _Optional[str] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., draining: _Optional[_Union[ServerDraining, _Mapping]] = ...) -> None: ...

class ServerWelcome(_message.Message):
    __slots__ = ("session_id", "contract_version", "ping_interval", "ping_timeout", "max_task_bytes", "server_id", "server_count")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    PING_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_TASK_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_COUNT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    contract_version: str
    ping_interval: _duration_pb2.Duration
    ping_timeout: _duration_pb2.Duration
    max_task_bytes: int
    server_id: str
    server_count: int
    def __init__(self, session_id: _Optional[str] = ..., contract_version: _Optional[str] = ..., ping_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., ping_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_task_bytes: _Optional[int] = ..., server_id: _Optional[str] = ..., server_count: _Optional[int] = ...) -> None: ...

class ServerDraining(_message.Message):
    __slots__ = ("reason", "reconnect_delay", "grace_period")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_DELAY_FIELD_NUMBER: _ClassVar[int]
    GRACE_PERIOD_FIELD_NUMBER: _ClassVar[int]
    reason: str
    reconnect_delay: _duration_pb2.Duration
    grace_period: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., reconnect_delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., grace_period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("plugin", "instance_id", "target", "ttl", "tls_profile")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    TLS_PROFILE_FIELD_NUMBER: _ClassVar[int]
    plugin: _task_pb2.PluginInfo
    instance_id: str
    target: str
    ttl: _duration_pb2.Duration
    tls_profile: str
    def __init__(self, plugin: _Optional[_Union[_task_pb2.PluginInfo, _Mapping]] = ..., instance_id: _Optional[str] = ..., target: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., tls_profile: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("lease_id", "ttl", "renew_interval", "contract_version", "server_id")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    RENEW_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    ttl: _duration_pb2.Duration
    renew_interval: _duration_pb2.Duration
    contract_version: str
    server_id: str
    def __init__(self, lease_id: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., renew_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., contract_version: _Optional[str] = ..., server_id: _Optional[str] = ...) -> None: ...

class KeepAliveRequest(_message.Message):
    __slots__ = ("lease_id", "active_tasks")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    active_tasks: int
    def __init__(self, lease_id: _Optional[str] = ..., active_tasks: _Optional[int] = ...) -> None: ...

class KeepAliveResponse(_message.Message):
    __slots__ = ("lease_id", "state", "ttl", "server_id", "unreachable_reason")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    state: LeaseState
    ttl: _duration_pb2.Duration
    server_id: str
    unreachable_reason: str
    def __init__(self, lease_id: _Optional[str] = ..., state: _Optional[_Union[LeaseState, str]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., server_id: _Optional[str] = ..., unreachable_reason: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "active_tasks")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    active_tasks: int
    def __init__(self, lease_id: _Optional[str] = ..., active_tasks: _Optional[int] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("state", "ttl", "server_id", "unreachable_reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_REASON_FIELD_NUMBER: _ClassVar[int]
    state: LeaseState
    ttl: _duration_pb2.Duration
    server_id: str
    unreachable_reason: str
    def __init__(self, state: _Optional[_Union[LeaseState, str]] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., server_id: _Optional[str] = ..., unreachable_reason: _Optional[str] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("lease_id", "drain", "instance_id")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    drain: bool
    instance_id: str
    def __init__(self, lease_id: _Optional[str] = ..., drain: bool = ..., instance_id: _Optional[str] = ...) -> None: ...

class DeregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetTypeRequest(_message.Message):
    __slots__ = ("type", "version")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    type: str
    version: str
    def __init__(self, type: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class ForgetTypeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Registration(_message.Message):
    __slots__ = ("instance_id", "plugin", "mode", "state", "target", "register_time", "last_seen_time", "expire_time", "active_tasks", "last_error", "server_id", "lost_time")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[Registration.Mode]
        MODE_CONNECTED: _ClassVar[Registration.Mode]
        MODE_REGISTERED: _ClassVar[Registration.Mode]
        MODE_STATIC: _ClassVar[Registration.Mode]
    MODE_UNSPECIFIED: Registration.Mode
    MODE_CONNECTED: Registration.Mode
    MODE_REGISTERED: Registration.Mode
    MODE_STATIC: Registration.Mode
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Registration.State]
        STATE_PENDING: _ClassVar[Registration.State]
        STATE_ACTIVE: _ClassVar[Registration.State]
        STATE_DRAINING: _ClassVar[Registration.State]
        STATE_UNHEALTHY: _ClassVar[Registration.State]
        STATE_LOST: _ClassVar[Registration.State]
    STATE_UNSPECIFIED: Registration.State
    STATE_PENDING: Registration.State
    STATE_ACTIVE: Registration.State
    STATE_DRAINING: Registration.State
    STATE_UNHEALTHY: Registration.State
    STATE_LOST: Registration.State
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TASKS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_TIME_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    plugin: _task_pb2.PluginInfo
    mode: Registration.Mode
    state: Registration.State
    target: str
    register_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    active_tasks: int
    last_error: str
    server_id: str
    lost_time: _timestamp_pb2.Timestamp
    def __init__(self, instance_id: _Optional[str] = ..., plugin: _Optional[_Union[_task_pb2.PluginInfo, _Mapping]] = ..., mode: _Optional[_Union[Registration.Mode, str]] = ..., state: _Optional[_Union[Registration.State, str]] = ..., target: _Optional[str] = ..., register_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., active_tasks: _Optional[int] = ..., last_error: _Optional[str] = ..., server_id: _Optional[str] = ..., lost_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RememberedType(_message.Message):
    __slots__ = ("evaluator_type", "plugin", "principal", "offer_time")
    EVALUATOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    OFFER_TIME_FIELD_NUMBER: _ClassVar[int]
    evaluator_type: _evaluator_pb2.EvaluatorType
    plugin: str
    principal: str
    offer_time: _timestamp_pb2.Timestamp
    def __init__(self, evaluator_type: _Optional[_Union[_evaluator_pb2.EvaluatorType, _Mapping]] = ..., plugin: _Optional[str] = ..., principal: _Optional[str] = ..., offer_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListRegistrationsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "type")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    type: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class ListRegistrationsResponse(_message.Message):
    __slots__ = ("registrations", "next_page_token", "revision", "unoffered_types", "lost")
    REGISTRATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UNOFFERED_TYPES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    registrations: _containers.RepeatedCompositeFieldContainer[Registration]
    next_page_token: str
    revision: int
    unoffered_types: _containers.RepeatedCompositeFieldContainer[RememberedType]
    lost: _containers.RepeatedCompositeFieldContainer[Registration]
    def __init__(self, registrations: _Optional[_Iterable[_Union[Registration, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ..., unoffered_types: _Optional[_Iterable[_Union[RememberedType, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[Registration, _Mapping]]] = ...) -> None: ...

class WatchRegistrationsRequest(_message.Message):
    __slots__ = ("after_revision",)
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    after_revision: int
    def __init__(self, after_revision: _Optional[int] = ...) -> None: ...

class WatchRegistrationsResponse(_message.Message):
    __slots__ = ("revision", "upserted", "removed_instance_id", "snapshot_complete")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UPSERTED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    upserted: Registration
    removed_instance_id: str
    snapshot_complete: SnapshotComplete
    def __init__(self, revision: _Optional[int] = ..., upserted: _Optional[_Union[Registration, _Mapping]] = ..., removed_instance_id: _Optional[str] = ..., snapshot_complete: _Optional[_Union[SnapshotComplete, _Mapping]] = ...) -> None: ...

class SnapshotComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
