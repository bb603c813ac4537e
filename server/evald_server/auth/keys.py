"""API keys of 256 random bits each. A file holds their digests.

The format is `evald_<id 12>_<secret 43><crc 8>`, so that secret scanners find keys. Unsalted, fast SHA-256 is
enough, because the secret is random: the only attack is to try all values.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import string
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from .files import (
    FileProblem,
    WatchedFile,
    place_problem,
    read_roles,
    read_text,
    read_texts,
    read_toml,
)
from .principal import Principal, Role, check_limits, check_name, check_types, limits_of, read_limits

PREFIX: Final = "evald_"

_ID_LENGTH: Final = 12
_ID: Final = re.compile(rf"[a-z0-9]{{{_ID_LENGTH}}}")
_ALPHABET: Final = string.ascii_lowercase + string.digits
# A longer name of a table or field may be a whole key, in the wrong place.
_MAX_SHOWN: Final = len(PREFIX) + _ID_LENGTH
_ID_END: Final = len(PREFIX) + _ID_LENGTH
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_FORM: Final = re.compile(rf"{PREFIX}[a-z0-9]{{{_ID_LENGTH}}}_[A-Za-z0-9_-]{{43}}[0-9a-f]{{8}}")

# Compared with the digest of a key with an unknown id, which thus takes as long as one with a known id.
_NO_DIGEST: Final = bytes(32)

_HEADER: Final = (
    "# API keys of evald, written by `evald keys`. It has only digests of the keys, not the keys.\n"
)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. digest: SHA-256 of the whole key, as hex. created, expires, revoked: Unix times in seconds.

    rate to judge_usd_per_day: limits of the key's principal.
    """

    id: str
    digest: str
    principal: str
    roles: tuple[Role, ...]
    types: tuple[str, ...] = ()
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None
    note: str = ""
    rate: float | None = None
    in_flight: int | None = None
    judge_usd_per_day: float | None = None

    def state(self, now: float) -> str:
        """Return "active", "expired" or "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"


def new_key(
    principal: str,
    roles: Iterable[Role],
    *,
    types: Iterable[str] = (),
    expires: float | None = None,
    note: str = "",
    **limits: Any,
) -> tuple[str, ApiKey]:
    """Return a new key as text, which is not stored, and its entry for the file. Raises ValueError.

    limits: of the key's principal, by name.
    """
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    body = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    text = f"{body}{zlib.crc32(body.encode()):08x}"
    key = ApiKey(
        key_id,
        hashlib.sha256(text.encode()).hexdigest(),
        principal,
        tuple(roles),
        tuple(types),
        float(int(time.time())),
        expires,
        None,
        note,
        **limits,
    )
    _check(key)
    return text, key


def is_well_formed(text: str) -> bool:
    """Return whether a text has the form of a key and a matching checksum, which detects typos."""
    return _FORM.fullmatch(text) is not None and zlib.crc32(text[:-8].encode()) == int(text[-8:], 16)


class KeyRing:
    """Keys by id, with decoded digests."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self.keys = keys
        self._known = {
            key.id: (
                bytes.fromhex(key.digest),
                key,
                Principal(key.principal, frozenset(key.roles), key.types, key.id, **limits_of(key)),
            )
            for key in keys.values()
        }

    def get(self, key_id: str) -> tuple[ApiKey, Principal] | None:
        """Return the key with this id and its principal, also if it is expired or revoked."""
        known = self._known.get(key_id)
        return None if known is None else known[1:]

    def find(self, text: str) -> tuple[ApiKey, Principal] | None:
        """Return the key with this text and its principal, also if it is expired or revoked.

        Unknown and forged keys take the same time.
        """
        # Any caller can send it, so it may contain more than ASCII.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(text[len(PREFIX) : _ID_END])
        if known is None:
            hmac.compare_digest(digest, _NO_DIGEST)
            return None
        expected, key, principal = known
        return (key, principal) if hmac.compare_digest(digest, expected) else None


class KeyFile(WatchedFile[KeyRing]):
    """The keys of one file. The constructor raises FileProblem."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda path: KeyRing(read_keys(path)))

    @property
    def ring(self) -> KeyRing:
        """The keys in use."""
        return self.content


def read_keys(path: Path) -> dict[str, ApiKey]:
    """Return the keys of a file by id. Raises FileProblem."""
    data = read_toml(
        path,
        missing=f"evald keys create --keys-file {path} creates it",
        wanted="not a TOML file as written by evald keys",
    )
    tables = data.pop("keys", {})
    if data or not isinstance(tables, dict):
        raise FileProblem(f"{path}: wanted tables [keys.ID] and nothing else")
    keys: dict[str, ApiKey] = {}
    for key_id, table in tables.items():
        try:
            keys[key_id] = _key(key_id, table)
        except (KeyError, TypeError, ValueError) as problem:
            raise place_problem(f"{path}: keys.{key_id[:_MAX_SHOWN]}", problem) from None
    return keys


def add_key(path: Path, key: ApiKey) -> None:
    """Add a key to a file, which is created if it does not exist. Raises FileProblem."""
    with _changing(path) as keys:
        keys[key.id] = key


def revoke_key(path: Path, key_id: str) -> ApiKey | None:
    """Revoke a key. Returns its previous entry; None if the file has no key with this id. Raises FileProblem."""
    with _changing(path) as keys:
        key = keys.get(key_id)
        if key is not None and key.revoked is None:
            keys[key_id] = replace(key, revoked=float(int(time.time())))
        return key


def _key(key_id: str, table: Mapping[str, Any]) -> ApiKey:
    known = {field.name for field in fields(ApiKey)} - {"id"}
    if not isinstance(table, dict):
        raise TypeError("wanted a table")
    if unknown := table.keys() - known:
        raise ValueError(f"{min(unknown)[:_MAX_SHOWN]}: unknown; known keys: {', '.join(sorted(known))}")
    key = ApiKey(
        key_id,
        read_text("digest", table["digest"]),
        read_text("principal", table["principal"]),
        read_roles(table["roles"]),
        read_texts("types", table.get("types", [])),
        _seconds("created", table["created"]),
        _seconds("expires", table["expires"]) if "expires" in table else None,
        _seconds("revoked", table["revoked"]) if "revoked" in table else None,
        read_text("note", table.get("note", "")),
        **read_limits(table),
    )
    _check(key)
    return key


def _check(key: ApiKey) -> None:
    """Raise ValueError for an invalid key."""
    if not _ID.fullmatch(key.id):
        raise ValueError(f"wanted an id of {_ID_LENGTH} lower case letters and digits")
    if not _DIGEST.fullmatch(key.digest):
        raise ValueError("digest: wanted 64 hexadecimal digits")
    check_name(key.principal)
    if not key.roles:
        raise ValueError(f"roles: wanted at least one of {', '.join(Role)}")
    check_types(key.types)
    check_limits(limits_of(key))
    if len(key.note) > 200 or not key.note.isprintable():
        raise ValueError("note: wanted at most 200 printable characters")
    if _FORM.search(key.note):
        raise ValueError("note: contains an API key, which the file must not have")


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{name}: wanted a time with a time zone, such as 2027-01-31T12:00:00Z")
    return value.timestamp()


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, ApiKey]]:
    """Yield a file's keys for changes, then rewrite the file. A lock admits one process at a time."""
    import fcntl

    # Of a link, the file that it points to, which servers may read by its own path.
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keys = read_keys(path) if path.exists() else {}
        yield keys
        _write(path, keys)
    finally:
        os.close(lock)


def _write(path: Path, keys: Mapping[str, ApiKey]) -> None:
    text = _HEADER + "".join(_table(key) for key in keys.values())
    try:
        before = path.stat() if path.exists() else None
        # mkstemp creates the file with mode 0600.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                if before is not None:
                    # The server may run as another user, which must be able to read the new file, too.
                    os.fchown(handle, before.st_uid, before.st_gid)
                    os.fchmod(handle, stat.S_IMODE(before.st_mode))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
            # A key that was revoked must not be valid again after a power failure.
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from None


def _table(key: ApiKey) -> str:
    lines = [
        f"\n[keys.{key.id}]",
        f'digest = "{key.digest}"',
        f"principal = {_text(key.principal)}",
        f"roles = [{', '.join(_text(role) for role in key.roles)}]",
        f"created = {_time(key.created)}",
    ]
    if key.types:
        lines.append(f"types = [{', '.join(map(_text, key.types))}]")
    times = {"expires": key.expires, "revoked": key.revoked}
    lines += [f"{name} = {_time(time)}" for name, time in times.items() if time is not None]
    lines += [f"{name} = {limit}" for name, limit in limits_of(key).items() if limit is not None]
    if key.note:
        lines.append(f"note = {_text(key.note)}")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Return a TOML string. JSON's escapes are valid in TOML, and other characters of a key are printable."""
    return json.dumps(value, ensure_ascii=False)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
