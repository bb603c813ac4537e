"""JSON Web Tokens of one issuer: signed by a key of its set, for this audience, with the caller's roles in a claim."""

import hashlib
import threading
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
_MAX_CACHED: Final = 10_000
_CACHED_SECONDS: Final = 60.0
_MAX_SUBJECT: Final = 255
_ROLES: Final = frozenset(Role)

# A stream may go on so long after its token has expired.
_STREAM_SECONDS: Final = 3600.0

# A verification takes 50 to 190 us of the event loop. So many tokens a second that do not count come from one address
# only if somebody tries some out. Those that count are not limited: after a change of keys all of a busy proxy's
# callers are verified at once.
_PER_SECOND: Final = 200

# Header fields that this server does not know are ignored, as RFC 7515 says; those below are looked at.
_REGISTRY: Final = jws.JWSRegistry(algorithms=list(FAMILIES), strict_check_header=False)


class TokenVerifier:
    """Checks the tokens of one issuer. May be called from any thread.

    roles_claim, types_claim: what they are called there. now: Unix time, clock: monotonic, both in seconds.
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
        self._roles_claim = roles_claim
        self._types_claim = types_claim
        self._now = now
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(now()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        )
        self._failures = FailedAttempts(_PER_SECOND, clock)
        self._lock = threading.Lock()
        # What was verified with these keys, by digest of the token, with the time until which it counts.
        self._cache: tuple[KeySet, dict[bytes, tuple[Principal, float]]] = (source.keys, {})
        # Of these keys: what a token has opened is looked through every half second, and at each message.
        self._ids: tuple[KeySet, frozenset[str]] = ({}, frozenset())

    def cached(self, token: str) -> Principal | None:
        """Return whose token this is, if it was verified within the last minute by a key that still counts."""
        keys, cache = self._cache
        if keys is not self.source.keys:
            return None
        found = cache.get(_digest(token))
        return found[0] if found is not None and self._now() < found[1] else None

    def verify(self, token: str, peer: str) -> Principal:
        """Return whose token this is. peer: the address that sent it. Raises AccessDenied."""
        principal = self.cached(token)
        if principal is not None:
            return principal
        if len(token) > _MAX_BYTES:
            raise denied("longer than 8 KiB")
        self._failures.check(peer, "tokens that do not count", "tokens")
        keys = self.source.keys
        try:
            principal, expires = self._read(token, keys)
        except AccessDenied:
            self._failures.add(peer)
            raise
        self._keep(token, keys, principal, min(self._now() + _CACHED_SECONDS, expires + _LEEWAY_SECONDS))
        return principal

    def check(self, principal: Principal) -> None:
        """Raise AccessDenied if what a token has opened has to end."""
        keys = self.source.keys
        if keys is not self._ids[0]:
            self._ids = (keys, frozenset(key.id for key in keys.values()))
        if principal.key_id not in self._ids[1]:
            raise denied("its key has left the set", principal)
        if principal.expires is not None and self._now() >= principal.expires + _STREAM_SECONDS:
            raise denied("expired", principal)

    def _read(self, token: str, keys: KeySet) -> tuple[Principal, float]:
        """Verify a token. Returns whose it is, and when it expires."""
        used: list[SigningKey] = []

        def find(signed: jwk.GuestProtocol) -> jwk.Key:
            used.append(self._key(signed.headers(), keys))
            return used[0].key

        try:
            claims = jwt.decode(token, find, registry=_REGISTRY).claims
        except AccessDenied:
            raise
        except errors.JoseError as problem:
            raise denied(f"token: {problem.error}") from None
        except Exception as problem:  # noqa: BLE001
            # Whatever a library raises for what anybody may send; nothing of it counts.
            raise denied(f"token: {type(problem).__name__}") from None
        return self._principal(claims, used[0].id)

    def _key(self, header: Mapping[str, Any], keys: KeySet) -> SigningKey:
        """Return the key that a token has to be signed with. Raises AccessDenied."""
        for name in ("crit", "jwk"):
            if name in header:
                raise denied(f"token: {name} in its header")
        kid = header.get("kid")
        if not isinstance(kid, str) or header["alg"] not in FAMILIES:
            raise denied("token: no kid, or another algorithm")
        key = keys.get((kid, FAMILIES[header["alg"]]))
        if key is None:
            self.source.want()
            raise denied("token: unknown kid")
        return key

    def _principal(self, claims: dict[str, Any], key_id: str) -> tuple[Principal, float]:
        # `exp` is looked at last: a token that is not for us has not expired, it is invalid.
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
        # Integers of any size are allowed in JSON.
        expires = float(min(claims["exp"], 1e11))
        roles = [Role(one) for one in _words(claims.get(self._roles_claim)) if one in _ROLES]
        types = filter(is_type_pattern, _words(claims.get(self._types_claim)))
        principal = Principal(
            f"jwt:{subject}", frozenset(roles), tuple(types), key_id, kind="jwt", expires=expires
        )
        if expired:
            raise denied("expired", principal)
        return principal, expires

    def _keep(self, token: str, keys: KeySet, principal: Principal, until: float) -> None:
        with self._lock:
            if keys is not self._cache[0]:
                self._cache = (keys, {})
            cache = self._cache[1]
            while len(cache) >= _MAX_CACHED:
                del cache[next(iter(cache))]
            cache[_digest(token)] = (principal, until)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _words(value: Any) -> list[str]:
    """Return the words of a claim: a list of them, or a text with spaces between them."""
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
