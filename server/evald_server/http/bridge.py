"""All unary and server-streaming methods over HTTP: JSON or protobuf in a POST, and Connect's protocol.

https://connectrpc.com/docs/protocol: unary calls are plain requests; each message of a stream has an envelope of five
bytes, flags and length. Without Connect, streams are NDJSON or server-sent events.
"""

import re
import struct
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from evald_server.call_errors import CallError, invalid
from evald_server.loop import in_thread_if_large
from evald_server.methods import CalledMethod, find_method
from evald_server.wire_limits import parse_message

from .access import WebAccess
from .calls import CallFailed, Calls, HttpCaller
from .errors import as_json, connect_end, error_response, failed
from .guards import media_type
from .site import Site
from .streams import NDJSON, SSE, Framing, StreamedCall, event, json_bytes

# The package of the methods.
PACKAGE: Final = "evald.v1."

JSON: Final = "application/json"
PROTO: Final = "application/proto"
CONNECT_JSON: Final = "application/connect+json"
CONNECT_PROTO: Final = "application/connect+proto"

# No valid message starts with this byte. The handler refuses it after the credentials are checked and the call counted.
_UNREADABLE: Final = b"\xff"

_COMPRESSED: Final = 0x01

_TIMEOUT: Final = re.compile(r"[0-9]{1,10}")


def routes(site: Site) -> list[Route]:
    """Return the routes of all methods."""
    return [Bridge(site.calls, site.access).route(PACKAGE)]


class Bridge:
    """The HTTP handler of gRPC methods."""

    def __init__(self, calls: Calls, access: WebAccess) -> None:
        self._calls = calls
        self._access = access

    def route(self, package: str) -> Route:
        """Return the route of all methods of a package, as "evald.v1."."""
        return Route(f"/{package}{{service}}/{{method}}", partial(self.answer, package), methods=["POST"])

    async def answer(self, package: str, request: Request) -> Response:
        """Call the method that a request's path names, and return the response."""
        name = f"{package}{request.path_params['service']}/{request.path_params['method']}"
        kind = media_type(request.headers)
        method = None
        with suppress(KeyError):
            method = find_method(name)
        if kind not in (JSON, PROTO, CONNECT_JSON, CONNECT_PROTO):
            return _unsupported(kind, (JSON, PROTO))
        if kind in (CONNECT_JSON, CONNECT_PROTO):
            if method is not None and not method.server_streaming:
                return _unsupported(kind, (JSON, PROTO))
            framing = _connect_framing(kind, method)
        elif method is not None and method.server_streaming:
            if kind == PROTO:
                return _unsupported(kind, (JSON, CONNECT_JSON, CONNECT_PROTO))
            framing = _sse(method) if SSE in request.headers.get("accept", "") else _ndjson(method)
        else:
            framing = None
        try:
            if method is None:
                # The gate refuses unknown methods, after it has checked the credentials.
                await self._calls.unary(name, b"", self._access.caller(request))
                raise AssertionError(f"{name} is not a method of the contract")
            if method.client_streaming:
                text = f"{method.name} takes a stream of messages, and is available over gRPC only"
                raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, text, b"")
            await self._access.admit(self._calls, request, method.name)
            caller = self._access.caller(request, _timeout(request))
            data = await _read(request, method, kind)
            if framing is not None:
                return StreamedCall(self._calls.stream(method.name, data, caller), framing)
            answer = await self._calls.unary(method.name, data, caller)
            if kind == JSON:
                answer = await in_thread_if_large(len(answer), _to_json, method.answer, answer)
            return Response(answer, media_type=kind)
        except CallError as problem:
            found = await self._refused(name, problem, self._access.caller(request))
        except CallFailed as problem:
            found = problem
        response = error_response(request, found)
        if method is None and response.status_code == 501:
            response.status_code = 404  # Connect's status for an unknown path
        return response

    async def _refused(self, method: str, problem: CallError, caller: HttpCaller) -> CallFailed:
        """Call a method with an unreadable message, so that credentials are checked and the call is counted.

        Returns the failure for the caller: the problem, or an earlier one such as wrong credentials.
        """
        failure = failed(problem)
        try:
            await self._calls.unary(method, _UNREADABLE, caller)
        except CallFailed as refusal_of_call:
            if refusal_of_call.code is not failure.code:
                return refusal_of_call
        return failure


async def _read(request: Request, method: CalledMethod, kind: str) -> bytes:
    """Return the serialised message of a request. Raises CallError, and CallFailed for errors of the HTTP encoding."""
    data = await request.body()
    if kind in (CONNECT_JSON, CONNECT_PROTO):
        _check_encoding(request, "connect-content-encoding")
        data = _opened(data)
    else:
        _check_encoding(request, "content-encoding")
    key = request.headers.get("idempotency-key", "")
    if kind in (JSON, CONNECT_JSON):
        return await in_thread_if_large(len(data), _from_json, method.request, data, key)
    if not key:
        return data
    try:
        message = parse_message(method.request, data)
    except DecodeError:
        return data
    return _with_request_id(message, key).SerializeToString()


def _from_json(kind: type[Message], data: bytes, key: str) -> bytes:
    """Convert a message from ProtoJSON to its serialised form. Raises CallError."""
    name = kind.DESCRIPTOR.full_name
    try:
        message = json_format.Parse(data.decode(), kind())
        return _with_request_id(message, key).SerializeToString()
    except (json_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as problem:
        said = " ".join(str(problem).split())
        # Remove a value that the library quotes: it may be a secret. A regular expression would take minutes for some.
        before, _, quoted = said.partition(" which is ")
        _, at, place = quoted.rpartition(" at ")
        said = f"{before}{at}{place}" if at else said
        text = "nested too deep" if isinstance(problem, RecursionError) else said[:500]
        raise CallError(
            "UNREADABLE_MESSAGE", f"cannot parse {name} from the body as ProtoJSON: {text}", expected=name
        ) from None


def _with_request_id(message: Message, key: str) -> Message:
    """Set the request_id of a message, or of its field `request`, if that field exists and is empty."""
    found: Any = message
    if "request" in message.DESCRIPTOR.fields_by_name:
        found = found.request
    if key and "request_id" in found.DESCRIPTOR.fields_by_name and not found.request_id:
        found.request_id = key
    return message


def _to_json(kind: type[Message], data: bytes) -> bytes:
    return json_format.MessageToJson(kind.FromString(data), indent=None, ensure_ascii=False).encode()


def _timeout(request: Request) -> float | None:
    """Return a request's timeout in seconds, None without one. Raises CallError."""
    text = request.headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not _TIMEOUT.fullmatch(text):
        raise invalid("Connect-Timeout-Ms", f"got {text[:20]!r}, wanted milliseconds, at most ten digits")
    return int(text) / 1000


def _check_encoding(request: Request, header: str) -> None:
    """Raise CallFailed for a compressed body."""
    found = request.headers.get(header, "identity")
    if found != "identity":
        text = f"{header}: got {found[:50]!r}, wanted no compression (identity)"
        raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, text, b"")


def _opened(data: bytes) -> bytes:
    """Return the message in a request's single envelope. Raises CallFailed."""
    if len(data) >= 5:
        flags, length = struct.unpack_from(">BI", data)
        if flags & _COMPRESSED:
            raise CallFailed(
                grpc.StatusCode.INTERNAL, "got a compressed message, wanted an uncompressed one", b""
            )
        if not flags and length == len(data) - 5:
            return data[5:]
    text = f"got {len(data)} bytes, wanted exactly one message in one Connect envelope"
    raise CallFailed(grpc.StatusCode.UNIMPLEMENTED, text, b"")


def _envelope(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def _connect_framing(kind: str, method: CalledMethod | None) -> Framing:
    def write(data: bytes) -> bytes:
        return _envelope(_to_json(method.answer, data) if method and kind == CONNECT_JSON else data)

    return Framing(kind, write, connect_end, connect_end(), starts_at_once=True)


def _ndjson(method: CalledMethod) -> Framing:
    def write(data: bytes) -> bytes:
        return _to_json(method.answer, data) + b"\n"

    return Framing(NDJSON, write, lambda problem: json_bytes({"error": as_json(problem)}) + b"\n")


def _sse(method: CalledMethod) -> Framing:
    def write(data: bytes) -> bytes:
        return event(_to_json(method.answer, data))

    return Framing(SSE, write, lambda problem: event(json_bytes(as_json(problem)), "error"))


def _unsupported(kind: str, wanted: tuple[str, ...]) -> Response:
    text = f"Content-Type: got {kind[:100]!r}, wanted {' or '.join(wanted)}"
    # Plain text, because Connect clients parse every JSON body as an error of a call.
    return PlainTextResponse(text + "\n", 415, {"Accept-Post": ", ".join(wanted)})
