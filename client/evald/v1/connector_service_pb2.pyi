from evald.v1 import message_pb2 as _message_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Connector(_message.Message):
    __slots__ = ("id", "name", "type", "base_url", "headers", "config", "create_time", "update_time")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    type: str
    base_url: str
    headers: _containers.ScalarMap[str, str]
    config: _struct_pb2.Struct
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., base_url: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ConnectorType(_message.Message):
    __slots__ = ("type", "label", "description", "config_schema_json")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    type: str
    label: str
    description: str
    config_schema_json: str
    def __init__(self, type: _Optional[str] = ..., label: _Optional[str] = ..., description: _Optional[str] = ..., config_schema_json: _Optional[str] = ...) -> None: ...

class ListConnectorTypesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListConnectorTypesResponse(_message.Message):
    __slots__ = ("connector_types",)
    CONNECTOR_TYPES_FIELD_NUMBER: _ClassVar[int]
    connector_types: _containers.RepeatedCompositeFieldContainer[ConnectorType]
    def __init__(self, connector_types: _Optional[_Iterable[_Union[ConnectorType, _Mapping]]] = ...) -> None: ...

class TestConnectorRequest(_message.Message):
    __slots__ = ("connector_id", "connector", "message")
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    connector_id: str
    connector: Connector
    message: str
    def __init__(self, connector_id: _Optional[str] = ..., connector: _Optional[_Union[Connector, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class TestConnectorResponse(_message.Message):
    __slots__ = ("success", "latency", "messages", "token_usage", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: bool
    latency: _duration_pb2.Duration
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.ChatMessage]
    token_usage: _message_pb2.TokenUsage
    error: str
    def __init__(self, success: bool = ..., latency: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.ChatMessage, _Mapping]]] = ..., token_usage: _Optional[_Union[_message_pb2.TokenUsage, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class CreateConnectorRequest(_message.Message):
    __slots__ = ("connector",)
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    connector: Connector
    def __init__(self, connector: _Optional[_Union[Connector, _Mapping]] = ...) -> None: ...

class CreateConnectorResponse(_message.Message):
    __slots__ = ("connector",)
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    connector: Connector
    def __init__(self, connector: _Optional[_Union[Connector, _Mapping]] = ...) -> None: ...

class GetConnectorRequest(_message.Message):
    __slots__ = ("connector_id",)
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    connector_id: str
    def __init__(self, connector_id: _Optional[str] = ...) -> None: ...

class GetConnectorResponse(_message.Message):
    __slots__ = ("connector",)
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    connector: Connector
    def __init__(self, connector: _Optional[_Union[Connector, _Mapping]] = ...) -> None: ...

class ListConnectorsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "name")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    name: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListConnectorsResponse(_message.Message):
    __slots__ = ("connectors", "next_page_token")
    CONNECTORS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    connectors: _containers.RepeatedCompositeFieldContainer[Connector]
    next_page_token: str
    def __init__(self, connectors: _Optional[_Iterable[_Union[Connector, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateConnectorRequest(_message.Message):
    __slots__ = ("connector", "update_mask", "expected_update_time")
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    connector: Connector
    update_mask: _field_mask_pb2.FieldMask
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, connector: _Optional[_Union[Connector, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UpdateConnectorResponse(_message.Message):
    __slots__ = ("connector",)
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    connector: Connector
    def __init__(self, connector: _Optional[_Union[Connector, _Mapping]] = ...) -> None: ...

class DeleteConnectorRequest(_message.Message):
    __slots__ = ("connector_id", "expected_update_time")
    CONNECTOR_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    connector_id: str
    expected_update_time: _timestamp_pb2.Timestamp
    def __init__(self, connector_id: _Optional[str] = ..., expected_update_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeleteConnectorResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
