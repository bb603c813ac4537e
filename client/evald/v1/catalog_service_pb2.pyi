from evald.v1 import evaluator_pb2 as _evaluator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListEvaluatorTypesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "kind")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    kind: _evaluator_pb2.EvaluatorKind
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., kind: _Optional[_Union[_evaluator_pb2.EvaluatorKind, str]] = ...) -> None: ...

class ListEvaluatorTypesResponse(_message.Message):
    __slots__ = ("evaluator_types", "next_page_token", "revision")
    EVALUATOR_TYPES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    evaluator_types: _containers.RepeatedCompositeFieldContainer[_evaluator_pb2.EvaluatorType]
    next_page_token: str
    revision: int
    def __init__(self, evaluator_types: _Optional[_Iterable[_Union[_evaluator_pb2.EvaluatorType, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class GetEvaluatorTypeRequest(_message.Message):
    __slots__ = ("type", "version")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    type: str
    version: str
    def __init__(self, type: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class GetEvaluatorTypeResponse(_message.Message):
    __slots__ = ("evaluator_type",)
    EVALUATOR_TYPE_FIELD_NUMBER: _ClassVar[int]
    evaluator_type: _evaluator_pb2.EvaluatorType
    def __init__(self, evaluator_type: _Optional[_Union[_evaluator_pb2.EvaluatorType, _Mapping]] = ...) -> None: ...

class WatchEvaluatorTypesRequest(_message.Message):
    __slots__ = ("after_revision",)
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    after_revision: int
    def __init__(self, after_revision: _Optional[int] = ...) -> None: ...

class WatchEvaluatorTypesResponse(_message.Message):
    __slots__ = ("revision", "upserted", "removed", "snapshot_complete")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    UPSERTED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    upserted: _evaluator_pb2.EvaluatorType
    removed: EvaluatorTypeRef
    snapshot_complete: SnapshotComplete
    def __init__(self, revision: _Optional[int] = ..., upserted: _Optional[_Union[_evaluator_pb2.EvaluatorType, _Mapping]] = ..., removed: _Optional[_Union[EvaluatorTypeRef, _Mapping]] = ..., snapshot_complete: _Optional[_Union[SnapshotComplete, _Mapping]] = ...) -> None: ...

class EvaluatorTypeRef(_message.Message):
    __slots__ = ("type", "version")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    type: str
    version: str
    def __init__(self, type: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class SnapshotComplete(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
