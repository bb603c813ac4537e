"""The public keys of a token issuer: a JSON Web Key Set in a file or at a URL, reloaded on change."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from joserfc import jwk

from evald_server.files import FileProblem, WatchedFiles, in_reader
from evald_server.input_files import read_regular

_log = logging.getLogger("evald.auth")

FAMILIES: Final = {"RS256": "RSA", "PS256": "RSA", "ES256": "EC", "Ed25519": "OKP"}
"""Algorithms of tokens, each with its key type."""

# Maximum size of a set. A large issuer's has 10 KB.
MAX_BYTES: Final = 1 << 20

# A large issuer has 20. One thread reads all of them.
_MAX_KEYS: Final = 200
_CURVES: Final = ("P-256", "Ed25519")
# Shorter keys can be broken.
_MIN_RSA_BITS: Final = 2048
_MAX_KID: Final = 200

_FILE_SECONDS: Final = 0.5
_REFRESH_SECONDS: Final = 600.0
# Minimum interval of fetches that callers cause by sending unknown kids.
_RETRY_SECONDS: Final = 30.0
_KEPT_SECONDS: Final = 86_400.0


class SigningKey(NamedTuple):
    """A public key. id: its kid and the start of its thumbprint, because an issuer may reuse a kid."""

    key: jwk.Key
    id: str


KeySet = Mapping[tuple[str, str], SigningKey]
"""Keys by kid and type."""


def read_key_set(data: bytes) -> KeySet:
    """Return the usable signing keys of a set, without keys of other types and keys without a kid.

    Raises ValueError if there is no usable key or a private one.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError(  # noqa: TRY004 - of what others have sent
            'wanted a JSON Web Key Set: {"keys": [...]}'
        )
    if len(entries) > _MAX_KEYS:
        raise ValueError(f"got {len(entries)} keys, wanted at most {_MAX_KEYS}")
    keys = {}
    for entry in entries:
        if isinstance(entry, dict) and "d" in entry:
            raise ValueError("contains a private key; wanted only public keys")
        if isinstance(entry, dict) and _is_useful(entry):
            try:
                key = jwk.import_key(entry)
                if isinstance(key, jwk.RSAKey) and key.public_key.key_size < _MIN_RSA_BITS:
                    continue
                keys[entry["kid"], entry["kty"]] = SigningKey(key, f"{entry['kid']}:{key.thumbprint()[:8]}")
            except Exception:  # noqa: BLE001 - whatever the library raises for numbers that are no key
                _log.warning("key set: the key %r cannot be used", entry["kid"])
    if not keys:
        raise ValueError(f"contains no usable key; wanted public keys with a kid, for {', '.join(FAMILIES)}")
    return keys


def _is_useful(entry: Mapping[str, Any]) -> bool:
    kid, kind, wanted = entry.get("kid"), entry.get("kty"), entry.get("alg")
    if not isinstance(kid, str) or not kid.isprintable() or not 0 < len(kid) <= _MAX_KID:
        return False
    if not isinstance(kind, str) or entry.get("use", "sig") != "sig":
        return False
    if wanted is not None and (not isinstance(wanted, str) or FAMILIES.get(wanted) != kind):
        return False
    return kind == "RSA" or (kind in FAMILIES.values() and entry.get("crv") in _CURVES)


class JwksFile(WatchedFiles[KeySet]):
    """The keys of a file. count: see WatchedFiles. The constructor raises FileProblem."""

    was_read: Final = True

    def __init__(self, path: Path, count: Callable[[str], None]) -> None:
        super().__init__("jwt_jwks_file", (path,), lambda: _read_file(path), count)

    @property
    def keys(self) -> KeySet:
        """The keys. Each change creates a new object."""
        return self.content

    def want(self) -> None:
        """Do nothing: `watch` checks the file all the time."""

    async def watch(self) -> None:
        """Reload the file when it changes."""
        while True:
            await asyncio.sleep(_FILE_SECONDS)
            await self.poll()


def _read_file(path: Path) -> KeySet:
    try:
        data = read_regular(path, MAX_BYTES)
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from problem
    try:
        return read_key_set(data)
    except ValueError as problem:
        raise FileProblem(f"{path}: {problem}") from None


class JwksUrl:
    """The keys at a URL, none until the first fetch has succeeded. No call waits for a fetch.

    fetch: returns the document; raises OSError or ValueError, whose text is logged. count: called with "ok" or "failed"
    after each fetch. clock: monotonic seconds.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        count: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._count, self._clock = fetch, count, clock
        self.keys: KeySet = {}
        self._tried: float | None = None
        self._succeeded: float | None = None
        self._wanted = False

    @property
    def was_read(self) -> bool:
        """Whether a fetch has succeeded."""
        return self._succeeded is not None

    def want(self) -> None:
        """Request a fetch of the keys: within a second, but at least 30 s after the previous fetch."""
        self._wanted = True

    async def watch(self) -> None:
        """Fetch the keys every ten minutes, every 30 s while fetches fail, and after `want`."""
        while True:
            await self.refresh()
            await asyncio.sleep(_FILE_SECONDS)

    async def refresh(self) -> None:
        """Fetch the keys if they are due. If fetches fail, the last keys stay valid for a day."""
        now = self._clock()
        pause = _RETRY_SECONDS if self._wanted else _REFRESH_SECONDS
        if self._tried is not None and now - self._tried < pause:
            return
        self._tried, self._wanted = now, False
        try:
            keys = await in_reader(partial(read_key_set, await self._fetch()))
        except Exception as problem:  # noqa: BLE001 - whatever the fetch or the content raises, the keys grow old
            self._wanted = True
            self._count("failed")
            _log.error("jwt_jwks_url: %s; the previous keys stay in use for a day", problem)
            if self._succeeded is not None and self._clock() - self._succeeded >= _KEPT_SECONDS and self.keys:
                _log.error("jwt_jwks_url: no keys could be fetched for a day; all tokens are refused now")
                self.keys = {}
            return
        self._succeeded = self._clock()
        self._count("ok")
        if {key.id for key in keys.values()} != {key.id for key in self.keys.values()}:
            self.keys = keys
