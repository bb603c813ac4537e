"""The allowlist of agents that connectors may call."""

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from evald.structs import struct_to_dict
from evald.v1 import connector_service_pb2
from evald_server.config import checked_url
from evald_server.remote.dial_allowlist import DialAllowlist, Resolve, Resolver, Target, read_target
from evald_server.remote.errors import Refusal

# Without Unix sockets, because some of them control the machine.
_EVERYTHING: Final = ("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1")
_MAX_URL: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}


class HttpUrl(NamedTuple):
    """The address of an agent over HTTP. text: the URL. path: without a slash at the end. query: added to every path."""

    text: str
    path: str
    query: str
    target: Target


def destination(connector: connector_service_pb2.Connector) -> tuple[object, ...]:
    """Return the receiver of a connector's requests: scheme, host and port, or gRPC target and TLS profile."""
    try:
        url = urlsplit(connector.base_url)
        if url.scheme in _PORTS:
            return url.scheme, url.hostname, url.port or _PORTS[url.scheme]
    except ValueError:
        pass  # refused when the connector is built
    return connector.base_url, struct_to_dict(connector.config).get("tls")


class AgentTargets:
    """The targets that the operator allows. rules: as in `DialAllowlist`, or "*" for every address.

    The constructor raises ValueError, which names an invalid rule.
    """

    def __init__(self, rules: Iterable[str], resolve: Resolve | None = None) -> None:
        expanded = [one for rule in rules for one in (_EVERYTHING if rule == "*" else (rule,))]
        self._allowlist = DialAllowlist(expanded, "connector_allowed")
        self.resolver = Resolver(self._allowlist, resolve)

    def check(self, target: Target) -> None:
        """Raise Refusal if a target is not allowed. Names are resolved and checked only at each connection."""
        if target.scheme == "unix":
            self._allowlist.check_socket(target)
        elif target.scheme != "dns":
            self._allowlist.check(target, ipaddress.ip_address(target.host))
        elif not self._allowlist:
            raise Refusal(
                "TARGET_NOT_ALLOWED",
                f"target: {target.authority} is not allowed: this server is not allowed to call "
                "agents; the operator allows targets with connector_allowed",
                "target",
            )

    def read_url(self, text: str) -> HttpUrl:
        """Parse and check the address of an agent over HTTP. Raises Refusal."""
        if len(text) > _MAX_URL:
            raise Refusal("INVALID_FIELD", f"got {len(text)} characters, wanted at most {_MAX_URL}", "target")
        try:
            checked_url(text)
        except ValueError as problem:
            why = str(problem).replace("/v1", "")
            raise Refusal("INVALID_FIELD", f"not the address of an agent: {why}", "target") from None
        if not text.isascii() or not text.isprintable() or " " in text:
            raise Refusal("INVALID_FIELD", "wanted printable ASCII without spaces", "target")
        parts = urlsplit(text)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        target = read_target(f"dns:///{host}:{parts.port or _PORTS[parts.scheme]}")
        self.check(target)
        return HttpUrl(text.rstrip("/"), parts.path.rstrip("/"), parts.query, target)

    def read_grpc(self, text: str) -> str:
        """Check a gRPC target and return it. Raises Refusal."""
        self.check(read_target(text))
        return text
