"""ConnectorService."""

from typing import Final

from evald.v1 import connector_service_pb2
from evald.v1.connector_service_pb2 import Connector
from evald_server.connectors import connector
from evald_server.connectors.build import Connectors, try_connector
from evald_server.connectors.headers import MASK, mask, may_be_shown, unmask
from evald_server.connectors.targets import destination
from evald_server.store.resources import ResourceKind, ResourceStore

from .errors import BadField, invalid, refusal
from .resources import MAX_BYTES, ResourceService
from .server import Context, Handler, RpcServer, parse

_MAX_MESSAGE_BYTES: Final = 64 << 10


class ConnectorService(ResourceService[Connector]):
    """Handlers of ConnectorService."""

    kind = ResourceKind.CONNECTOR
    message = Connector
    requests = connector_service_pb2
    plural = "Connectors"

    def __init__(self, store: ResourceStore, connectors: Connectors) -> None:
        super().__init__(store)
        self._connectors = connectors

    def handlers(self, rpc: RpcServer) -> dict[str, Handler]:
        """See ResourceService."""
        service = self.service_name()
        return super().handlers(rpc) | {
            "TestConnector": rpc.unary(service, "TestConnector", self.test),
            "ListConnectorTypes": rpc.unary(service, "ListConnectorTypes", self.list_types),
        }

    async def problems(self, resource: Connector) -> list[BadField]:
        """See ResourceService."""
        return [BadField(path, text) for path, text in self._connectors.violations(resource)]

    def shown(self, resource: Connector) -> Connector:
        """See ResourceService."""
        mask(resource.headers)
        return resource

    def keep_hidden(self, updated: Connector, stored: Connector, sent: Connector) -> None:
        """See ResourceService. Raises CallError if hidden values would be sent to a new destination."""
        if destination(updated) != destination(stored):
            found = [
                BadField(
                    f"connector.headers[{name[:100]!r}]",
                    "its stored value was given for another scheme, host or port and is not sent to this one; "
                    "give the value again, or leave the header out",
                )
                for name, value in sorted(stored.headers.items())
                if name in updated.headers
                and sent.headers.get(name, MASK) == MASK
                and not may_be_shown(value)
            ]
            if found:
                raise refusal(found)
        unmask(updated.headers, stored.headers)

    def build(self, pb: Connector, path: str = "connector") -> connector.Connector:
        """Build a connector without connecting. path: its field's. Raises CallError with all of its problems."""
        built = self._connectors.try_build(pb, path)
        if isinstance(built, list):
            raise refusal([BadField(path, text) for path, text in built])
        return built

    async def test(self, data: bytes, _context: Context) -> bytes:
        """Send one message to the agent of a connector."""
        request = parse(connector_service_pb2.TestConnectorRequest, data)
        if bool(request.connector_id) == request.HasField("connector"):
            raise invalid("connector_id", "wanted exactly one of connector_id and connector")
        size = request.connector.ByteSize()
        if size > MAX_BYTES:
            raise invalid("connector", f"got {size} bytes, wanted at most {MAX_BYTES}")
        if len(request.message.encode()) > _MAX_MESSAGE_BYTES:
            raise invalid("message", f"got {len(request.message)} characters, wanted at most 64 KiB")
        pb = await self.load(request.connector_id) if request.connector_id else request.connector
        connector = self.build(pb)
        try:
            response = await try_connector(connector, request.message)
        finally:
            await connector.aclose()
        return response.SerializeToString()

    async def list_types(self, data: bytes, _context: Context) -> bytes:
        """List the types of connectors."""
        parse(connector_service_pb2.ListConnectorTypesRequest, data)
        types = self._connectors.types()
        response = connector_service_pb2.ListConnectorTypesResponse(connector_types=types)
        return response.SerializeToString()
