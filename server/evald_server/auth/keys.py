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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

from evald_server.files import FileProblem, WatchedFiles

from .files import explain, read_table, read_toml
from .principal import Limits, Name, Principal, Role, Roles, Types, limits_of

PREFIX: Final = "evald_"

_ID_LENGTH: Final = 12
_ALPHABET: Final = string.ascii_lowercase + string.digits
_FORM: Final = re.compile(rf"{PREFIX}[a-z0-9]{{{_ID_LENGTH}}}_[A-Za-z0-9_-]{{43}}[0-9a-f]{{8}}")

# Compared with the digest of a key with an unknown id, which thus takes as long as one with a known id.
_NO_DIGEST: Final = "0" * 64

_HEADER: Final = (
    "# API keys of evald, written by `evald keys`. It has only digests of the keys, not the keys.\n"
)


def _to_seconds(value: object) -> object:
    """Return the Unix time of a time in TOML."""
    # At the ends of the calendar other time zones have years that cannot be written.
    if isinstance(value, datetime) and value.tzinfo is not None and 2000 <= value.year < 9999:
        return value.timestamp()
    return value if isinstance(value, float) else None


def _check_note(note: str) -> str:
    if not note.isprintable() or _FORM.search(note):
        raise ValueError
    return note


_Time: TypeAlias = Annotated[float, BeforeValidator(_to_seconds)]


class ApiKey(Limits):
    """One key, with the limits of its principal.

    digest: SHA-256 of the whole key, as hex. created, expires, revoked: Unix times in seconds.
    """

    id: Annotated[str, StringConstraints(pattern=rf"^[a-z0-9]{{{_ID_LENGTH}}}$")]
    digest: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    principal: Name
    roles: Annotated[Roles, Field(min_length=1)]
    types: Types = ()
    created: _Time
    expires: _Time | None = None
    revoked: _Time | None = None
    note: Annotated[str, Field(max_length=200), AfterValidator(_check_note)] = ""

    def state(self, now: float) -> str:
        """Return "active", "expired" or "revoked"."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "active"

    def owner(self) -> Principal:
        """Return the principal."""
        return Principal(self.principal, frozenset(self.roles), self.types, self.id, **limits_of(self))


def new_key(principal: str, roles: Iterable[Role], **fields: Any) -> tuple[str, ApiKey]:
    """Return a new key as text, which is not stored, and its entry for the file. Raises ValueError.

    fields: others of the entry.
    """
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    body = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    text = f"{body}{zlib.crc32(body.encode()):08x}"
    digest, created = hashlib.sha256(text.encode()).hexdigest(), float(int(time.time()))
    try:
        key = ApiKey(
            id=key_id, digest=digest, principal=principal, roles=tuple(roles), created=created, **fields
        )
    except ValidationError as problem:
        raise ValueError(explain(problem, ApiKey)) from None
    return text, key


def is_well_formed(text: str) -> bool:
    """Return whether a text has the form of a key and a matching checksum, which detects typos."""
    return _FORM.fullmatch(text) is not None and zlib.crc32(text[:-8].encode()) == int(text[-8:], 16)


class KeyFile(WatchedFiles[dict[str, ApiKey]]):
    """The keys of one file, by id. count: see WatchedFiles. The constructor raises FileProblem."""

    def __init__(self, path: Path, count: Callable[[str], None] = lambda _outcome: None) -> None:
        super().__init__("keys_file", (path,), lambda: read_keys(path), count)

    def find(self, text: str) -> ApiKey | None:
        """Return the key with this text, also if it is expired or revoked. Unknown and forged ones take the same time."""
        # Any caller can send it, so it may contain more than ASCII.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        key = self.content.get(text[len(PREFIX) : len(PREFIX) + _ID_LENGTH])
        return key if hmac.compare_digest(digest, _NO_DIGEST if key is None else key.digest) else None


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
    keys = {}
    for key_id, table in tables.items():
        entry = {**table, "id": key_id} if isinstance(table, dict) else table
        keys[key_id] = read_table(ApiKey, entry, f"{path}: keys.{key_id[: len(PREFIX) + _ID_LENGTH]}")
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
            keys[key_id] = key.model_copy(update={"revoked": float(int(time.time()))})
        return key


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
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as problem:
        raise FileProblem(f"{path}: {problem.strerror}") from None


def _table(key: ApiKey) -> str:
    lines = [f"\n[keys.{key.id}]"]
    for name, value in key.model_dump(exclude={"id"}, exclude_defaults=True).items():
        if name in ("created", "expires", "revoked"):
            text = f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%SZ}"
        else:
            # JSON's escapes are valid in TOML, and other characters of a key are printable.
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f"{name} = {text}")
    return "\n".join(lines) + "\n"
