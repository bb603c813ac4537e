"""ConnectorService."""

from typing import Final

from evald.v1 import connector_service_pb2 as pb
from evald.v1.connector_service_pb2 import Connector
from evald_server.call_errors import BadField, invalid, refusal
from evald_server.connectors import connector
from evald_server.connectors.build import Connectors, try_connector
from evald_server.connectors.headers import MASK, mask, may_be_shown, unmask
from evald_server.connectors.targets import destination
from evald_server.store.resources import ResourceKind, ResourceStore

from .resources import MAX_BYTES, ResourceService
from .server import Methods

_MAX_MESSAGE_BYTES: Final = 64 << 10


class ConnectorService(ResourceService[Connector]):
    """Handlers of ConnectorService."""

    kind = ResourceKind.CONNECTOR
    message = Connector
    requests = pb
    plural = "Connectors"

    def __init__(self, store: ResourceStore, connectors: Connectors) -> None:
        super().__init__(store)
        self._connectors = connectors

    def methods(self) -> Methods:
        """See ResourceService."""
        return super().methods() | {"TestConnector": self.test, "ListConnectorTypes": self.list_types}

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

    def build(self, wanted: Connector, path: str = "connector") -> connector.Connector:
        """Build a connector without connecting. path: its field's. Raises CallError with all of its problems."""
        built = self._connectors.try_build(wanted, path)
        if isinstance(built, list):
            raise refusal([BadField(path, text) for path, text in built])
        return built

    async def test(self, request: pb.TestConnectorRequest) -> pb.TestConnectorResponse:
        """Send one message to the agent of a connector."""
        if bool(request.connector_id) == request.HasField("connector"):
            raise invalid("connector_id", "wanted exactly one of connector_id and connector")
        size = request.connector.ByteSize()
        if size > MAX_BYTES:
            raise invalid("connector", f"got {size} bytes, wanted at most {MAX_BYTES}")
        if len(request.message.encode()) > _MAX_MESSAGE_BYTES:
            raise invalid("message", f"got {len(request.message)} characters, wanted at most 64 KiB")
        wanted = await self.load(request.connector_id) if request.connector_id else request.connector
        connector = self.build(wanted)
        try:
            return await try_connector(connector, request.message)
        finally:
            await connector.aclose()

    async def list_types(self, _request: pb.ListConnectorTypesRequest) -> pb.ListConnectorTypesResponse:
        """List the types of connectors."""
        return pb.ListConnectorTypesResponse(connector_types=self._connectors.types())
