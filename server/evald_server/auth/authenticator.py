"""Authenticate and authorize callers, for gRPC and HTTP."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, ParamSpec

from .clients import ClientFile
from .keys import PREFIX, ApiKey, KeyFile, is_well_formed
from .principal import ClientNames, Principal, Role
from .refusals import AccessDenied, denied

if TYPE_CHECKING:
    # Needs a library that is not installed on servers without tokens.
    from .tokens import TokenVerifier

_BEARER: Final = "bearer "

P = ParamSpec("P")

# Outcomes in evald_auth_total by the reason of a refusal; "invalid" for all other reasons.
_OUTCOMES: Final = {"CREDENTIALS_EXPIRED": "expired", "RATE_LIMITED": "limited"}

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
        self.keys = keys
        self.tokens = tokens
        self.clients = clients
        self._anonymous = anonymous
        self._count = count
        self._now = now

    def uncounted(self) -> "Authenticator":
        """Return an authenticator that checks the same credentials but counts nothing, for checks outside of calls."""
        return Authenticator(
            self.keys,
            lambda _kind, _outcome: None,
            self._now,
            tokens=self.tokens,
            clients=self.clients,
            anonymous=self._anonymous,
        )

    def authenticate(
        self,
        headers: Iterable[tuple[str, str | bytes]],
        certificate: ClientNames | None = None,
        peer: str = "",
    ) -> Principal:
        """Return the principal of a call. Raises AccessDenied.

        certificate: the connection's, if it has one. With a token, both must be valid, and the token names the
        principal. peer: the caller's address, for the limit of failed verifications.
        """
        named = None
        if certificate is not None and self.clients is not None:
            named = self._checked("certificate", self.clients.principal, certificate)
        token = self._token(headers)
        if token is None:
            if named is None and self._anonymous is not None:
                return self._anonymous
            if named is None:
                self._count("none", "missing")
                raise AccessDenied(
                    "CREDENTIALS_MISSING",
                    "this server requires an API key or a token: send it as `authorization: Bearer ...`; the SDK takes "
                    "it as token=, commands as --token-file, and both from EVALD_TOKEN",
                    "no credentials",
                )
            principal = named
        elif self.tokens is not None and not token.startswith(PREFIX):
            principal = self._checked("jwt", self.tokens.verify, token, peer)
        else:
            principal = self._by_key(token)
        if named is not None:
            principal = replace(principal, certificate=named.certificate)
        if self.clients is None or principal.kind != "jwt":
            return principal
        return self.clients.limited(principal)

    def authorize(self, principal: Principal, method: str, roles: frozenset[Role]) -> None:
        """Check that the principal has one of the roles. Raises AccessDenied."""
        if principal.roles.isdisjoint(roles):
            self._count(principal.kind, "role")
            wanted = ", ".join(sorted(roles)) or "none"
            held = ", ".join(sorted(principal.roles))
            raise AccessDenied(
                "ROLE_MISSING",
                f"{principal.name} has {f'the role {held}' if held else 'no role'}; {method} needs one of: {wanted}",
                "wrong role",
                principal,
                method=method,
                roles=wanted,
            )

    def passed(self, principal: Principal) -> None:
        """Count a passed check."""
        self._count(principal.kind, "ok")

    def limited(self) -> None:
        """Count credentials that were not checked, because too many of their address were invalid."""
        self._count("other", "limited")

    def current(self, principal: Principal) -> Principal:
        """Return a principal with its current rights. Raises AccessDenied if its credentials are no longer valid."""
        if principal.certificate is not None and self.clients is not None:
            named = self.clients.principal(principal.certificate)
            if principal.kind == "certificate":
                return self._same(named, principal)
        if principal.is_anonymous and self._anonymous is not None:
            return self._anonymous
        if principal.kind == "jwt" and self.tokens is not None:
            self.tokens.check(principal)
            return principal
        # What is left is a key, or of a kind that the server accepted before it was restarted.
        found = None
        if principal.kind == "key" and self.keys is not None:
            found = self.keys.ring.get(principal.key_id)
        state = "revoked" if found is None else found[0].state(self._now())
        if found is None or state != "active":
            raise denied(state, principal)
        now = self._same(found[1], principal)
        return now if principal.certificate is None else replace(now, certificate=principal.certificate)

    def _same(self, now: Principal, before: Principal) -> Principal:
        """Return the current principal. Raises AccessDenied if its credentials now belong to another principal."""
        if now.name != before.name:
            raise denied("belongs to another principal now", before)
        return now

    def _token(self, headers: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the bearer token; None without credentials. Raises AccessDenied for other credentials."""
        credentials = None
        for name, value in headers:
            if name == "authorization":
                if credentials is not None:
                    raise self._invalid("other", "more than one authorization header")
                credentials = value
        if not credentials:
            return None
        # Scheme names are case-insensitive.
        if not isinstance(credentials, str) or credentials[: len(_BEARER)].lower() != _BEARER:
            raise self._invalid("other", "not a bearer token")
        return credentials[len(_BEARER) :]

    def _checked(
        self, kind: str, check: Callable[P, Principal], *args: P.args, **named: P.kwargs
    ) -> Principal:
        """Return the check's result; count its refusal."""
        try:
            return check(*args, **named)
        except AccessDenied as problem:
            self._count(kind, _OUTCOMES.get(problem.reason, "invalid"))
            raise

    def _by_key(self, token: str) -> Principal:
        found = None if self.keys is None else self.keys.ring.find(token)
        if found is None:
            if not token.startswith(PREFIX):
                raise self._invalid("other", "not an API key")
            raise self._invalid("key", "unknown or forged" if is_well_formed(token) else "malformed")
        key, principal = found
        if not self._is_active(key):
            state = key.state(self._now())
            self._count("key", "invalid" if state == "revoked" else "expired")
            raise denied(state, principal)
        return principal

    def _is_active(self, key: ApiKey) -> bool:
        return key.revoked is None and (key.expires is None or key.expires > self._now())

    def _invalid(self, kind: str, why: str) -> AccessDenied:
        self._count(kind, "invalid")
        return denied(why)
