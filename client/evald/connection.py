"""The connection to a server: address, channel, timeouts, metadata, and the conversion of gRPC's errors."""

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from numbers import Real
from types import TracebackType
from typing import Any, ClassVar, Final

import grpc

from .credentials import (
    Access,
    Tls,
    Token,
    is_this_machine,
    read_metadata,
    tls_of_environment,
    token_of_environment,
)
from .errors import DeadlineExceeded, InvalidInput, from_rpc_error
from .fields import positive, shown

DEFAULT_SERVER: Final = "127.0.0.1:50051"
# The server's default for a call without a deadline.
DEFAULT_TIMEOUT: Final = 60.0
# The server's default limit.
MAX_MESSAGE_BYTES: Final = 16 << 20
# 30 years. gRPC adds the timeout to the current time in nanoseconds; a sum beyond 2**63 is a deadline in the past.
_LONGEST_TIMEOUT: Final = 1e9
# Unary evaluations in flight on one connection; further ones wait. This is half of the server's limit of 100 calls:
# gRPC's server counts a call until its memory is freed, after its response, so it would reject the calls that follow.
MAX_IN_FLIGHT: Final = 50

_UNARY: Final = (
    ("evald.v1.EvaluationService", "EvaluateUnary"),
    ("evald.v1.EvaluationService", "ValidateSpecs"),
    ("evald.v1.CatalogService", "ListEvaluatorTypes"),
    ("evald.v1.CatalogService", "GetEvaluatorType"),
)
SERVICE_CONFIG: Final = json.dumps(
    {
        # A failing address must not affect the server's other addresses.
        "loadBalancingConfig": [{"round_robin": {}}],
        "methodConfig": [
            {
                "name": [{"service": service, "method": method} for service, method in _UNARY],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "2s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
        # No retries while more than half of the recent calls failed: they would only add load.
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }
)


# The schemes of gRPC targets, which are used unchanged.
_TARGET: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p):")
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<address>[^/?#]*)")
_HOST_PORT: Final = re.compile(r"(?P<host>[^\s/:@\[\]]+|\[[0-9A-Fa-f:.%]+\])(:(?P<port>[0-9]{1,5}))?")
_ENCRYPTED: Final = frozenset(("https", "grpcs"))


def server_address(server: str | None, *, encrypted: bool = False) -> str:
    """Return the address to call: the given one, else EVALD_SERVER, else the default.

    encrypted: allow an address without a port, because gRPC's default of 443 is right for TLS.

    Raises InvalidInput for an invalid address. gRPC itself would fail only at the first call, or silently call
    port 443.
    """
    given, name = server, "server"
    if not given:
        given, name = os.environ.get("EVALD_SERVER"), "EVALD_SERVER"
    if not given:
        return DEFAULT_SERVER
    if not isinstance(given, str):
        raise InvalidInput(name, shown(given), _WANTED)
    if _TARGET.match(given):
        return given
    url = _URL.match(given)
    if url is not None:
        tls = url["scheme"].lower() in _ENCRYPTED
        hint = ", with tls=evald.Tls() for TLS" if tls else ""
        raise InvalidInput(
            name,
            f"{shown(given)}, which is a URL",
            f"HOST:PORT without a scheme{_meant(url['address'])}{hint}",
        )
    found = _HOST_PORT.fullmatch(given)
    if found is None or (found["port"] and not 0 < int(found["port"]) < 1 << 16):
        raise InvalidInput(name, shown(given), _WANTED)
    if not found["port"] and not encrypted:
        raise InvalidInput(name, f"{shown(given)}, which has no port", f"HOST:PORT{_meant(given)}")
    return given


def open_to(
    server: str | None,
    *,
    tls: Tls | bool | None = None,
    token: Token | None = None,
    insecure: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    metadata: Mapping[str, str | bytes] | None = None,
) -> tuple[str, Access]:
    """Return the server's address and the credentials for it, from the arguments or else from the environment.

    Raises InvalidInput for a wrong type, for contradicting arguments, and for a token that would be sent to another
    machine in plaintext.
    """
    sent = read_metadata(metadata)
    for name, value, types, wanted in (
        ("tls", tls, Tls | bool | None, "evald.Tls(...), True, False or None"),
        ("credentials", credentials, grpc.ChannelCredentials | None, "grpc.ChannelCredentials"),
    ):
        if not isinstance(value, types):
            raise InvalidInput(name, f"got {type(value).__name__}", wanted)
    if credentials is not None and tls:
        raise InvalidInput("tls", "both tls and credentials", "one of them")
    if tls is None and credentials is None:
        tls = tls_of_environment()
    if token is None and not any(name.lower() == "authorization" for name, _ in sent):
        token = token_of_environment()
    found = Tls() if tls is True else (tls or None)
    if found is not None:
        credentials = found.channel_credentials()
    address = server_address(server, encrypted=credentials is not None)
    if token and credentials is None and not insecure and not is_this_machine(address):
        raise InvalidInput(
            "token",
            f"got a token for {address} without TLS",
            "tls=Tls(...) or EVALD_TLS=1, which encrypt the token on the network; or insecure=True in a trusted "
            "network",
        )
    return address, Access(credentials, found, token, sent)


_WANTED: Final = (
    f'HOST:PORT, such as "{DEFAULT_SERVER}" or "[::1]:50051", or a gRPC target such as "dns:///evald:50051"'
)


def _meant(address: str) -> str:
    """Return a hint with the address that the caller probably meant, with evald's default port; "" if unclear."""
    found = _HOST_PORT.fullmatch(address)
    if found is None:
        return ""
    port = found["port"] or DEFAULT_SERVER.rpartition(":")[2]
    return f': "{found["host"]}:{port}"' + ("" if found["port"] else f" ({port} is evald's default)")


CONNECTION_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    # Each channel has its own connection: otherwise the calls of all clients count against one limit.
    ("grpc.use_local_subchannel_pool", 1),
    # 20 s is twice the minimum interval that the server allows. It detects a dead peer in an idle session.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""The gRPC options of every channel to an evald server."""


def channel_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    """Return the gRPC options of a client's channel."""
    return [
        *CONNECTION_OPTIONS,
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]


class Connection:
    """The settings and the channel of a client. Base of `Client` and `AsyncClient`.

    _api: the module that creates the channels, grpc or grpc.aio. _semaphore: the semaphore class that fits it.
    _errors_type: converts its errors.
    """

    _api: ClassVar[Any]
    _semaphore: ClassVar[Any]
    _errors_type: ClassVar["type[TypedErrors]"]

    def __init__(
        self,
        server: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tls: Tls | bool | None = None,
        token: Token | None = None,
        insecure: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Mapping[str, str | bytes] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.server, self._access = open_to(
            server, tls=tls, token=token, credentials=credentials, metadata=metadata, insecure=insecure
        )
        self._timeout = _limit(timeout)
        self._max_message_bytes = positive(max_message_bytes, "max_message_bytes", largest=(1 << 31) - 1)
        self._options = [*channel_options(max_message_bytes), *self._access.options(self.server)]
        self._typed_errors = self._errors_type(self.server)
        self._slots = self._semaphore(MAX_IN_FLIGHT)
        self._lock = threading.Lock()
        self._opened: _Stubs | None = None
        self._closed = False

    @property
    def _stubs(self) -> "_Stubs":
        # Created at the first call: a grpc.aio channel belongs to the event loop that runs at its creation.
        with self._lock:
            if self._closed:
                raise InvalidInput("client", "closed", "an open client; create a new one")
            if self._opened is None:
                self._opened = _Stubs(self._channel())
            return self._opened

    def _close(self) -> Any:
        """Reject further calls and close the channel. Returns the result of its `close`; None if there was no call."""
        with self._lock:
            self._closed = True
        return None if self._opened is None else self._opened.channel.close()

    def _channel(self) -> Any:
        credentials = self._access.credentials
        if credentials is None:
            return self._api.insecure_channel(self.server, options=self._options)
        return self._api.secure_channel(self.server, credentials, options=self._options)

    def _sent_with(self, timeout: float | None) -> dict[str, Any]:
        """Return gRPC's arguments for a call. timeout: seconds; None or math.inf for no limit. Raises InvalidInput."""
        return {"timeout": _limit(timeout), "metadata": self._access.headers()}

    def _short(self, timeout: float | None) -> dict[str, Any]:
        return self._sent_with(self._timeout if timeout is None else timeout)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r})"


def _limit(timeout: float | None) -> float | None:
    """Return a timeout in seconds for gRPC; None for no limit. Raises InvalidInput."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout > 0:
        raise InvalidInput("timeout", shown(timeout), "seconds above 0, or math.inf for no limit")
    return None if timeout > _LONGEST_TIMEOUT else timeout


def rest_of(sent_with: dict[str, Any], began: float) -> dict[str, Any]:
    """Return gRPC's arguments with the rest of the timeout. began: time.monotonic() when the call began to wait."""
    limit = sent_with["timeout"]
    return sent_with if limit is None else sent_with | {"timeout": max(0.0, began + limit - time.monotonic())}


def waited_too_long(sent_with: dict[str, Any]) -> DeadlineExceeded:
    """Return the error for a call whose timeout expired while it waited for other calls of its client."""
    return DeadlineExceeded(
        f"the call was not sent: it waited {sent_with['timeout']:g} s because {MAX_IN_FLIGHT} other calls of this client "
        f"are in flight; allow more timeout, or use batch() for many turns",
        code="DEADLINE_EXCEEDED",
    )


class TypedErrors:
    """Context manager that converts gRPC's errors to the classes of `evald.errors`."""

    def __init__(self, server: str) -> None:
        self._server = server

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(problem, grpc.RpcError):
            raise from_rpc_error(problem, self._server) from problem


class _Stubs:
    """The stubs of both services over one channel."""

    def __init__(self, channel: Any) -> None:
        # Imported here, because they would add 2 ms to `import evald`.
        from .v1.catalog_service_pb2_grpc import CatalogServiceStub
        from .v1.evaluation_service_pb2_grpc import EvaluationServiceStub

        self.channel = channel
        self.evaluation = EvaluationServiceStub(channel)
        self.catalog = CatalogServiceStub(channel)
