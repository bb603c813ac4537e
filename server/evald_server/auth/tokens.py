"""Verify JSON Web Tokens of one issuer and audience, signed by a key of its set, with the caller's roles in a claim."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from joserfc import errors, jwk, jws, jwt

from .jwks import FAMILIES, JwksFile, JwksUrl, KeySet, SigningKey
from .limits import FailedAttempts
from .principal import Principal, Role, is_type_pattern
from .refusals import AccessDenied, denied

_MAX_BYTES: Final = 8 << 10
_LEEWAY_SECONDS: Final = 30
_MAX_VERIFIED: Final = 10_000
_VERIFIED_SECONDS: Final = 60.0
_MAX_SUBJECT: Final = 255
_ROLES: Final = frozenset(Role)

# Maximum invalid tokens per second from one address: more than that is an attack. A verification takes 50 to 190 us of
# the event loop. Valid tokens have no limit: after a change of keys, all callers behind a busy proxy are verified at
# once.
_PER_SECOND: Final = 200

# Ignores unknown header fields, as RFC 7515 requires; `_key` checks the others.
_REGISTRY: Final = jws.JWSRegistry(algorithms=list(FAMILIES), strict_check_header=False)


class TokenVerifier:
    """Verifies the tokens of one issuer. Thread-safe.

    roles_claim, types_claim: names of the claims. now: Unix time, clock: monotonic, both in seconds.
    """

    def __init__(
        self,
        source: JwksFile | JwksUrl,
        issuer: str,
        audience: str,
        *,
        roles_claim: str = "roles",
        types_claim: str = "evald_types",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self._roles_claim, self._types_claim, self._now = roles_claim, types_claim, now
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(now()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._failures = FailedAttempts(_PER_SECOND, clock)
        # Tokens verified with these keys, each with its principal and the time until which it need not be verified again.
        self._verified: tuple[KeySet, dict[str, tuple[Principal, float]]] = (source.keys, {})

    def verify(self, token: str, peer: str) -> Principal:
        """Return the principal of a token. peer: the caller's address. Raises AccessDenied."""
        keys, verified = self._verified
        if keys is not self.source.keys:
            keys, verified = self._verified = (self.source.keys, {})
        known = verified.get(token)
        if known is not None and self._now() < known[1]:
            return known[0]
        if len(token) > _MAX_BYTES:
            raise denied("longer than 8 KiB")
        self._failures.check(peer, "invalid tokens", "tokens")
        try:
            principal = self._read(token, keys)
        except AccessDenied:
            self._failures.add(peer)
            raise
        if len(verified) >= _MAX_VERIFIED:
            verified.clear()
        expiry = (principal.expires or 0.0) + _LEEWAY_SECONDS
        verified[token] = (principal, min(self._now() + _VERIFIED_SECONDS, expiry))
        return principal

    def check(self, principal: Principal) -> None:
        """Raise AccessDenied if the open streams and leases of a token's principal must end."""
        ids = {key.id for key in self.source.keys.values()}
        # Until the first fetch nobody knows whether a restored lease's key is still in the set.
        if self.source.was_read and principal.key_id not in ids:
            raise denied("its key was removed from the key set", principal)
        if principal.expires is not None and self._now() >= principal.expires + _LEEWAY_SECONDS:
            raise denied("expired", principal)

    def _read(self, token: str, keys: KeySet) -> Principal:
        """Verify a token. Returns its principal. Raises AccessDenied."""

        def find(signed: jwk.GuestProtocol) -> jwk.Key:
            return self._key(signed.headers(), keys).key

        try:
            verified = jwt.decode(token, find, registry=_REGISTRY)
        except AccessDenied:
            raise
        except errors.JoseError as problem:
            raise denied(f"token: {problem.error}") from None
        except Exception as problem:  # noqa: BLE001
            # Callers can send anything, and the library may raise anything for it: the token is invalid.
            raise denied(f"token: {type(problem).__name__}") from None
        return self._principal(verified.claims, self._key(verified.header, keys).id)

    def _key(self, header: Mapping[str, Any], keys: KeySet) -> SigningKey:
        """Return the key that must have signed a token. Raises AccessDenied."""
        for name in ("crit", "jwk"):
            if name in header:
                raise denied(f"token: {name} in its header")
        kid = header.get("kid")
        if not isinstance(kid, str) or header["alg"] not in FAMILIES:
            raise denied("token: no kid, or an algorithm that is not allowed")
        key = keys.get((kid, FAMILIES[header["alg"]]))
        if key is None:
            self.source.want()
            raise denied("token: unknown kid")
        return key

    def _principal(self, claims: dict[str, Any], key_id: str) -> Principal:
        # Check `exp` last: a token for another audience is invalid, not expired.
        ordered = {name: value for name, value in claims.items() if name != "exp"}
        if "exp" in claims:
            ordered["exp"] = claims["exp"]
        expired = False
        try:
            self._claims.validate(ordered)
        except errors.ExpiredTokenError:
            expired = True
        except errors.ClaimError as problem:
            raise denied(f"token: {problem.error} {problem.claim}") from None
        subject = claims["sub"]
        if not subject.isprintable() or not 0 < len(subject) <= _MAX_SUBJECT:
            raise denied("token: invalid_claim sub")
        # JSON allows integers of any size, float does not.
        expires = float(min(claims["exp"], 1e11))
        roles = [Role(word) for word in _words(claims.get(self._roles_claim)) if word in _ROLES]
        types = filter(is_type_pattern, _words(claims.get(self._types_claim)))
        principal = Principal(
            f"jwt:{subject}", frozenset(roles), tuple(types), key_id, kind="jwt", expires=expires
        )
        if expired:
            raise denied("expired", principal)
        return principal


def _words(value: Any) -> list[str]:
    """Return the words of a claim, which is a list or a text with spaces between the words."""
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
