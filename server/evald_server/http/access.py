"""Authentication of HTTP requests: by an API key, or by the session cookie that a browser got for one."""

import hashlib
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final, NamedTuple, cast

from starlette.requests import Request
from starlette.responses import Response

from evald_server.auth.audit import Audit, peer_of, record
from evald_server.auth.authenticator import Authenticator
from evald_server.auth.limits import FailedAttempts
from evald_server.auth.principal import LOCAL, Principal
from evald_server.auth.refusals import AccessDenied
from evald_server.auth.roles import METHODS, OPEN

from .calls import Calls, HttpCaller
from .errors import failed
from .guards import ADMITTED

COOKIE: Final = "evald_session"

# The headers that gRPC handlers read.
_PASSED: Final = frozenset(("authorization", "traceparent", "tracestate", "baggage"))

_IDLE_SECONDS: Final = 12 * 3600.0

# At a limit, the session idle longest is evicted. A principal's own limit keeps it from evicting sessions of others.
_MAX_SESSIONS: Final = 10_000
_MAX_OWN_SESSIONS: Final = 100

# Failed sign-ins from one address: enough for people who type. Keys are too long to be guessed.
_SIGN_INS_A_SECOND: Final = 10

# Timeout for the first message of a call that should be refused.
_FIRST_SECONDS: Final = 1.0

# The key of the principal in a request's scope.
_KNOWN: Final = "evald.principal"


class _SignedIn(NamedTuple):
    """The session of a browser. owner: its principal's name. used: the time of its last request, in clock seconds."""

    key: str
    owner: str
    used: float


class WebAccess:
    """The authentication of HTTP requests, with the sessions of browsers.

    Sessions are kept in memory by the digests of their cookies. Each holds its key, which is checked at every call:
    a session ends with its key. authenticator: None permits every call. clock: monotonic seconds.
    """

    def __init__(
        self, authenticator: Authenticator | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._authenticator = authenticator
        # Pages look up their principal without counting an attempt; the calls behind them are counted.
        self._uncounted = authenticator and authenticator.uncounted()
        self._audit = Audit(clock)
        self._failures = FailedAttempts(_SIGN_INS_A_SECOND, clock)
        self._clock = clock
        self._sessions: dict[bytes, _SignedIn] = {}  # by last use, oldest first

    @property
    def wanted(self) -> bool:
        """Whether callers need credentials and browsers must sign in."""
        return self._authenticator is not None

    def caller(self, request: Request, timeout: float | None = None) -> HttpCaller:
        """Return the caller of a request. timeout: seconds until the call's deadline; None for no deadline."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return HttpCaller(self._metadata(request), _peer(request), deadline)

    def principal(self, request: Request) -> Principal | None:
        """Return the principal of a request; None if its credentials are missing or refused."""
        if self._uncounted is None:
            return LOCAL
        if _KNOWN not in request.scope:
            request.scope[_KNOWN] = None
            with suppress(AccessDenied):
                found = self._uncounted.authenticate(self._metadata(request), peer=_peer(request))
                request.scope[_KNOWN] = found
        return cast("Principal | None", request.scope[_KNOWN])

    def may_sign_in(self, request: Request) -> bool:
        """Return whether a browser could get more rights by signing in."""
        principal = self.principal(request)
        return principal is None or principal.is_anonymous

    def may(self, request: Request, method: str) -> bool:
        """Return whether a request's principal may call a method, as "evald.v1.RunService/StartRun"."""
        roles = METHODS.get(f"/{method}")
        if self._authenticator is None or roles is OPEN:
            return True
        principal = self.principal(request)
        return principal is not None and roles is not None and not principal.roles.isdisjoint(roles)

    async def admit(self, calls: Calls, request: Request, method: str) -> None:
        """Raise CallFailed, before the body is read, if the request's principal may not call a method."""
        if not self.may(request, method):
            # Make the call, so that its refusal is logged and counted. The gate still admits a token for a second after
            # its expiry, and a stream might never end: wait only a second for its first message.
            async with aclosing(calls.stream(method, b"", self.caller(request), _FIRST_SECONDS)) as answer:
                await anext(answer, None)
        principal = self.principal(request)
        request.scope[ADMITTED] = principal.name if principal is not None else ""

    def sign_in(self, request: Request, response: Response, key: str) -> None:
        """Exchange an API key or a token for a session cookie on a response. Raises CallFailed if it is invalid."""
        if self._authenticator is None:
            return
        peer = _peer(request)
        try:
            principal = self._verified(key, peer)
        except AccessDenied as problem:
            self._audit.refused("sign in", peer, problem.reason, problem.why, problem.principal)
            raise failed(problem) from None
        now = self._clock()
        for digest, session in list(self._sessions.items()):
            if len(self._sessions) < _MAX_SESSIONS and now - session.used < _IDLE_SECONDS:
                break
            del self._sessions[digest]
        self._drop(request)
        own = [digest for digest, session in self._sessions.items() if session.owner == principal.name]
        if len(own) >= _MAX_OWN_SESSIONS:
            del self._sessions[own[0]]
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = _SignedIn(key, principal.name, now)
        record("signed in", principal, peer=peer)
        response.set_cookie(
            COOKIE, token, path="/", secure=_is_encrypted(request), httponly=True, samesite="strict"
        )

    def sign_out(self, request: Request, response: Response) -> None:
        """End the session of a request, and delete its cookie."""
        self._drop(request)
        response.delete_cookie(
            COOKIE, path="/", secure=_is_encrypted(request), httponly=True, samesite="strict"
        )

    def _verified(self, key: str, peer: str) -> Principal:
        """Return the principal of a key. Raises AccessDenied."""
        assert self._authenticator is not None
        try:
            self._failures.check(peer, "failed sign-ins", "sign_in")
        except AccessDenied:
            self._authenticator.limited()
            raise
        try:
            return self._authenticator.authenticate([("authorization", f"Bearer {key}")], peer=peer)
        except AccessDenied:
            self._failures.add(peer)
            raise

    def _drop(self, request: Request) -> None:
        self._sessions.pop(_digest(request.cookies.get(COOKIE, "")), None)

    def _metadata(self, request: Request) -> tuple[tuple[str, str], ...]:
        found = tuple((name, value) for name, value in request.headers.items() if name in _PASSED)
        if self._authenticator is None or "authorization" in request.headers:
            return found
        key = self._key(request.cookies.get(COOKIE, ""))
        return (*found, ("authorization", f"Bearer {key}")) if key else found

    def _key(self, token: str) -> str | None:
        """Return the key of a session, and renew the session; None if it was idle for 12 hours."""
        digest, now = _digest(token), self._clock()
        session = self._sessions.pop(digest, None)
        if session is None or now - session.used >= _IDLE_SECONDS:
            return None
        self._sessions[digest] = session._replace(used=now)
        return session.key


def _is_encrypted(request: Request) -> bool:
    """Return whether the browser uses TLS, to this server or to a proxy in front of it.

    Any caller can send the proxy's header, but only restricts its own cookie with it.
    """
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", "").lower())


def _peer(request: Request) -> str:
    """Return the address of a request's client, in gRPC's format."""
    return "" if request.client is None else peer_of(request.client)


def _digest(token: str) -> bytes:
    # A fast digest is enough: the cookie is random and long, so it cannot be guessed.
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
