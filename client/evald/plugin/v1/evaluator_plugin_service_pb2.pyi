from evald.plugin.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("contract_versions",)
    CONTRACT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    contract_versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, contract_versions: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("plugin",)
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    plugin: _task_pb2.PluginInfo
    def __init__(self, plugin: _Optional[_Union[_task_pb2.PluginInfo, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.EvaluationTask
    def __init__(self, task: _Optional[_Union[_task_pb2.EvaluationTask, _Mapping]] = ...) -> None: ...

class EvaluateResponse(_message.Message):
    __slots__ = ("output",)
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    output: _task_pb2.EvaluationOutput
    def __init__(self, output: _Optional[_Union[_task_pb2.EvaluationOutput, _Mapping]] = ...) -> None: ...
