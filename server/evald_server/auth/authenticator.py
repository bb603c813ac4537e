"""Authenticate and authorize callers, for gRPC and HTTP."""

import time
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .clients import ClientFile
from .keys import PREFIX, KeyFile, is_well_formed
from .principal import ClientNames, Principal, Role
from .refusals import AccessDenied, denied

if TYPE_CHECKING:
    # Needs a library that is not installed on servers without tokens.
    from .tokens import TokenVerifier

_BEARER: Final = "bearer "

# Outcomes in evald_auth_total by the reason of a refusal; "invalid" for all other reasons.
_OUTCOMES: Final = {
    "CREDENTIALS_EXPIRED": "expired",
    "CREDENTIALS_MISSING": "missing",
    "RATE_LIMITED": "limited",
    "ROLE_MISSING": "role",
}

Count = Callable[[str, str], None]
"""Called with the kind of credentials and the outcome of every check."""


class Authenticator:
    """Checks API keys, tokens and client certificates. Thread-safe.

    keys, tokens, clients: None for kinds of credentials that the server does not accept. count: increments
    `evald_auth_total`. now: Unix time in seconds. anonymous: the principal of callers without credentials; None: they are
    refused.
    """

    def __init__(
        self,
        keys: KeyFile | None,
        count: Count,
        now: Callable[[], float] = time.time,
        *,
        tokens: "TokenVerifier | None" = None,
        clients: ClientFile | None = None,
        anonymous: Principal | None = None,
    ) -> None:
        self.keys, self.tokens, self.clients = keys, tokens, clients
        self._anonymous, self.count, self._now = anonymous, count, now

    def uncounted(self) -> "Authenticator":
        """Return an authenticator that checks the same credentials but counts nothing, for checks outside of calls."""
        other = copy(self)
        other.count = lambda _kind, _outcome: None
        return other

    def authenticate(
        self, headers: Iterable[tuple[str, str | bytes]], sans: ClientNames | None = None, peer: str = ""
    ) -> Principal:
        """Return the principal of a call. Raises AccessDenied.

        sans: the names in the connection's certificate, if it has one. With a token, both must be valid, and the token
        names the principal. peer: the caller's address, for the limit of failed verifications.
        """
        certified = None
        if sans is not None and self.clients is not None:
            try:
                certified = self.clients.principal(sans)
            except AccessDenied as problem:
                raise self._refused("certificate", problem) from None
        token = self._token(headers)
        if token is None:
            principal = certified or self._anonymous
            if principal is None:
                text = (
                    "this server requires an API key or a token: send it as `authorization: Bearer ...`; the SDK takes "
                    "it as token=, commands as --token-file, and both from EVALD_TOKEN"
                )
                raise self._refused("none", AccessDenied("CREDENTIALS_MISSING", text, "no credentials"))
            return principal
        if self.tokens is not None and not token.startswith(PREFIX):
            try:
                principal = self.tokens.verify(token, peer)
            except AccessDenied as problem:
                raise self._refused("jwt", problem) from None
            if self.clients is not None:
                principal = self.clients.limited(principal)
        else:
            principal = self._by_key(token)
        return principal if certified is None else replace(principal, sans=certified.sans)

    def authorize(self, principal: Principal, method: str, roles: frozenset[Role]) -> None:
        """Check that the principal has one of the roles. Raises AccessDenied."""
        if principal.roles.isdisjoint(roles):
            wanted = ", ".join(sorted(roles)) or "none"
            held = ", ".join(sorted(principal.roles))
            text = f"{principal.name} has {f'the role {held}' if held else 'no role'}; {method} needs one of: {wanted}"
            problem = AccessDenied("ROLE_MISSING", text, "wrong role", principal, method=method, roles=wanted)
            raise self._refused(principal.kind, problem)

    def passed(self, principal: Principal) -> None:
        """Count a passed check."""
        self.count(principal.kind, "ok")

    def limited(self) -> None:
        """Count credentials that were not checked, because too many of their address were invalid."""
        self.count("other", "limited")

    def current(self, principal: Principal) -> Principal:
        """Return a principal with its current rights. Raises AccessDenied if its credentials are no longer valid."""
        current = None
        if principal.sans is not None and self.clients is not None:
            certified = self.clients.principal(principal.sans)
            current = certified if principal.kind == "certificate" else None
        if principal.is_anonymous and self._anonymous is not None:
            return self._anonymous
        if principal.kind == "jwt" and self.tokens is not None:
            self.tokens.check(principal)
            return principal
        if current is None:
            # A key, or of a kind that the server accepted before it was restarted.
            keys = self.keys.content if principal.kind == "key" and self.keys is not None else {}
            key = keys.get(principal.key_id)
            state = "revoked" if key is None else key.state(self._now())
            if key is None or state != "active":
                raise denied(state, principal)
            current = replace(key.owner(), sans=principal.sans)
        if current.name != principal.name:
            raise denied("belongs to another principal now", principal)
        return current

    def _token(self, headers: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the bearer token; None without credentials. Raises AccessDenied for other credentials."""
        values = [value for name, value in headers if name == "authorization"]
        if len(values) > 1:
            raise self._refused("other", denied("more than one authorization header"))
        if not values or not values[0]:
            return None
        # Scheme names are case-insensitive.
        if not isinstance(values[0], str) or values[0][: len(_BEARER)].lower() != _BEARER:
            raise self._refused("other", denied("not a bearer token"))
        return values[0][len(_BEARER) :]

    def _by_key(self, token: str) -> Principal:
        key = None if self.keys is None else self.keys.find(token)
        if key is not None:
            state = key.state(self._now())
            if state == "active":
                return key.owner()
            raise self._refused("key", denied(state, key.owner()))
        if not token.startswith(PREFIX):
            raise self._refused("other", denied("not an API key"))
        raise self._refused("key", denied("unknown or forged" if is_well_formed(token) else "malformed"))

    def _refused(self, kind: str, problem: AccessDenied) -> AccessDenied:
        """Count a refusal, and return it."""
        self.count(kind, _OUTCOMES.get(problem.reason, "invalid"))
        return problem
