"""Finds out who calls, and whether that caller may: for gRPC and HTTP alike."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, ParamSpec

from .clients import ClientFile
from .keys import PREFIX, ApiKey, KeyFile, is_well_formed
from .principal import ClientNames, Principal, Role
from .refusals import AccessDenied, denied

if TYPE_CHECKING:
    # Needs a library that servers without tokens do not have.
    from .tokens import TokenVerifier

_BEARER: Final = "Bearer "

P = ParamSpec("P")

# What a refusal counts as, by its reason.
_OUTCOMES: Final = {"CREDENTIALS_EXPIRED": "expired", "RATE_LIMITED": "limited"}

Count = Callable[[str, str], None]
"""Called with the kind of credentials and the outcome of every check."""


class Authenticator:
    """Checks API keys, tokens and client certificates, those that are given. May be called from any thread.

    count: of `evald_auth_total`. now: Unix time in seconds.
    """

    def __init__(
        self,
        keys: KeyFile | None,
        count: Count,
        now: Callable[[], float] = time.time,
        *,
        tokens: "TokenVerifier | None" = None,
        clients: ClientFile | None = None,
    ) -> None:
        self.keys = keys
        self.tokens = tokens
        self.clients = clients
        self._count = count
        self._now = now

    def uncounted(self) -> "Authenticator":
        """Return one that checks the same credentials and counts nothing, for what is asked beside a call."""
        return Authenticator(
            self.keys, lambda _kind, _outcome: None, self._now, tokens=self.tokens, clients=self.clients
        )

    def authenticate(
        self,
        headers: Iterable[tuple[str, str | bytes]],
        certificate: ClientNames | None = None,
        peer: str = "",
    ) -> Principal:
        """Return who sent the headers of a call. Raises AccessDenied.

        certificate: of the connection, if it has one; with a token both have to count, and the token says who calls.
        peer: the address, so that nobody can have tokens verified without end.
        """
        named = None
        if certificate is not None and self.clients is not None:
            named = self._checked("certificate", self.clients.principal, certificate)
        token = self._token(headers)
        if token is None:
            if named is None:
                self._count("none", "missing")
                raise AccessDenied(
                    "CREDENTIALS_MISSING",
                    "this server wants an API key or a token: send it as `authorization: Bearer ...`, with the SDK by "
                    "token=, with commands by --token-file, with both by EVALD_TOKEN",
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
        """Check that one of the roles is the principal's. Raises AccessDenied."""
        if principal.roles.isdisjoint(roles):
            self._count(principal.kind, "role")
            wanted = ", ".join(sorted(roles)) or "none"
            held = ", ".join(sorted(principal.roles))
            raise AccessDenied(
                "ROLE_MISSING",
                f"{principal.name} has {f'the role {held}' if held else 'no role'}; {method} is for: {wanted}",
                "wrong role",
                principal,
                method=method,
                roles=wanted,
            )

    def passed(self, principal: Principal) -> None:
        """Count a check that a principal has passed."""
        self._count(principal.kind, "ok")

    def limited(self) -> None:
        """Count credentials that were not looked at: too many of one address did not count."""
        self._count("other", "limited")

    def current(self, principal: Principal) -> Principal:
        """Return a principal as its credentials make it now. Raises AccessDenied if they count no longer."""
        if principal.certificate is not None and self.clients is not None:
            named = self.clients.principal(principal.certificate)
            if principal.kind == "certificate":
                return self._same(named, principal)
        if principal.kind == "jwt":
            if self.tokens is not None:
                self.tokens.check(principal)
            return principal
        if principal.kind == "certificate" or self.keys is None:
            return principal
        found = self.keys.ring.get(principal.key_id)
        state = "revoked" if found is None else found[0].state(self._now())
        if found is None or state != "active":
            raise denied(state, principal)
        now = self._same(found[1], principal)
        return now if principal.certificate is None else replace(now, certificate=principal.certificate)

    def _same(self, now: Principal, before: Principal) -> Principal:
        """Return a principal as it is now. Raises AccessDenied if its credentials have become somebody else's."""
        if now.name != before.name:
            raise denied("of another principal now", before)
        return now

    def _token(self, headers: Iterable[tuple[str, str | bytes]]) -> str | None:
        """Return the bearer token; None if there are no credentials. Raises AccessDenied for others."""
        credentials = None
        for name, value in headers:
            if name == "authorization":
                if credentials is not None:
                    raise self._invalid("other", "authorization is there twice")
                credentials = value
        if not credentials:
            return None
        if not isinstance(credentials, str) or not credentials.startswith(_BEARER):
            raise self._invalid("other", "no bearer token")
        return credentials[len(_BEARER) :]

    def _checked(
        self, kind: str, check: Callable[P, Principal], *args: P.args, **named: P.kwargs
    ) -> Principal:
        """Return what a check returns, and count its refusal."""
        try:
            return check(*args, **named)
        except AccessDenied as problem:
            self._count(kind, _OUTCOMES.get(problem.reason, "invalid"))
            raise

    def _by_key(self, token: str) -> Principal:
        found = None if self.keys is None else self.keys.ring.find(token)
        if found is None:
            if not token.startswith(PREFIX):
                raise self._invalid("other", "no API key")
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
