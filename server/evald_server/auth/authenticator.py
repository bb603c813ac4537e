"""Finds out who calls, and whether that caller may: for gRPC and HTTP alike."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from .keys import PREFIX, ApiKey, KeyFile, is_well_formed
from .principal import Principal, Role

_BEARER: Final = "Bearer "

Count = Callable[[str, str], None]
"""Called with the kind of credentials and the outcome of every check."""


class AccessDenied(Exception):
    """A call is refused.

    why: for the audit log alone, because it would tell a guesser how near it is. retry_seconds: when it may work.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        why: str,
        principal: Principal | None = None,
        retry_seconds: float | None = None,
        **metadata: str,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.why = why
        self.principal = principal
        self.retry_seconds = retry_seconds
        self.metadata = metadata


class Authenticator:
    """Checks API keys. count: of `evald_auth_total`. now: Unix time in seconds. May be called from any thread."""

    def __init__(self, keys: KeyFile, count: Count, now: Callable[[], float] = time.time) -> None:
        self.keys = keys
        self._count = count
        self._now = now

    def authenticate(self, metadata: Iterable[tuple[str, str | bytes]]) -> Principal:
        """Return who sent the metadata of a call. Raises AccessDenied."""
        credentials = None
        for name, value in metadata:
            if name == "authorization":
                if credentials is not None:
                    raise self._invalid("other", "authorization is there twice")
                credentials = value
        if not credentials:
            self._count("none", "missing")
            raise AccessDenied(
                "CREDENTIALS_MISSING",
                "this server wants an API key: send it as `authorization: Bearer evald_...`, with the SDK by token= "
                "or EVALD_TOKEN",
                "no credentials",
            )
        if not isinstance(credentials, str) or not credentials.startswith(_BEARER):
            raise self._invalid("other", "no bearer token")
        return self._by_key(credentials[len(_BEARER) :])

    def authorize(self, principal: Principal, method: str, roles: frozenset[Role]) -> None:
        """Check that one of the roles is the principal's. Raises AccessDenied."""
        if principal.roles.isdisjoint(roles):
            self._count("key", "role")
            wanted = ", ".join(sorted(roles)) or "none"
            raise AccessDenied(
                "ROLE_MISSING",
                f"{principal.name} has the role {', '.join(sorted(principal.roles))}; {method} is for: {wanted}",
                "wrong role",
                principal,
                method=method,
                roles=wanted,
            )
        self._count("key", "ok")

    def ended(self, key_id: str) -> AccessDenied | None:
        """Return why what a key has opened has to end; None if it may go on."""
        key = self.keys.ring.keys.get(key_id)
        state = key.state(self._now()) if key else "revoked"
        return None if state == "active" else _denied(state)

    def _by_key(self, token: str) -> Principal:
        found = self.keys.ring.find(token)
        if found is None:
            if not token.startswith(PREFIX):
                raise self._invalid("other", "no API key")
            raise self._invalid("key", "unknown or forged" if is_well_formed(token) else "malformed")
        key, principal = found
        if not self._is_active(key):
            state = key.state(self._now())
            self._count("key", "invalid" if state == "revoked" else "expired")
            raise _denied(state, principal)
        return principal

    def _is_active(self, key: ApiKey) -> bool:
        return key.revoked is None and (key.expires is None or key.expires > self._now())

    def _invalid(self, kind: str, why: str) -> AccessDenied:
        self._count(kind, "invalid")
        return _denied(why)


def _denied(why: str, principal: Principal | None = None) -> AccessDenied:
    """Return the refusal of credentials that do not count."""
    if why == "expired":
        return AccessDenied(
            "CREDENTIALS_EXPIRED", "the API key has expired; have the operator make a new one", why, principal
        )
    return AccessDenied(
        "CREDENTIALS_INVALID",
        "the credentials are not valid; wanted one API key, as `authorization: Bearer evald_...`, as the operator "
        "gave it to you",
        why,
        principal,
    )
