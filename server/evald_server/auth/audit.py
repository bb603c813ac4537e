"""The audit log: refused calls and changes, with names, ids and reasons, but no credential, digest or content."""

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any, Final

from .principal import LOCAL, Principal

_log = logging.getLogger("evald.audit")

# Values that need no quotes in a line of the log.
_PLAIN: Final = re.compile(r'[^\s"=]+')

_PER_SECOND: Final = 10
_MAX_PEERS: Final = 1000

# A key's first use within this period is logged.
_FIRST_USE_SECONDS: Final = 3600.0
_MAX_USED: Final = 10_000


class Audit:
    """Writes to the logger `evald.audit`. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = 0
        self._lines: dict[str, int] = {}  # logged in that second, by address
        self._used: dict[tuple[str, str], float] = {}
        self._left_out = 0

    def refused(self, method: str, peer: str, reason: str, why: str, principal: Principal | None) -> None:
        """Log a refused call, at most 10 per second from one address. `left_out` counts the calls not logged."""
        second, host = int(self._clock()), peer_host(peer)
        if second != self._second:
            self._second, self._lines = second, {}
        lines = self._lines.get(host, 0)
        if lines >= _PER_SECOND or (not lines and len(self._lines) >= _MAX_PEERS):
            self._left_out += 1
            return
        self._lines[host] = lines + 1
        left_out, self._left_out = self._left_out, 0
        record("refused", principal, method=method, peer=peer, reason=reason, why=why, left_out=left_out)

    def used(self, method: str, principal: Principal) -> None:
        """Log a key's first use in an hour."""
        now, who = self._clock(), (principal.name, principal.key_id)
        last = self._used.get(who)
        if last is None or now - last >= _FIRST_USE_SECONDS:
            if len(self._used) >= _MAX_USED:
                # Issuers may have more subjects than _MAX_USED: some are then logged more than once an hour.
                self._used.clear()
            self._used[who] = now
            record("used", principal, method=method)


def record(outcome: str, principal: Principal | None, **fields: str | int) -> None:
    """Log one event. outcome: what happened. Does nothing for LOCAL, the caller on a server without credentials."""
    if principal is LOCAL:
        return
    shown = {key: _printable(value) for key, value in fields.items() if value}
    who = {"principal": principal.name if principal else "", "key_id": principal.key_id if principal else ""}
    text = " ".join(
        f"{key.removesuffix('_id')}={_word(value or '-')}" for key, value in (who | shown).items()
    )
    _log.info("%s %s", outcome, text, extra={"outcome": outcome, **who, **shown})


def peer_of(address: tuple[Any, ...]) -> str:
    """Return the address of a connection, (host, port, ...), as gRPC writes it."""
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def peer_host(peer: str) -> str:
    """Return a peer's address without its port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


def _word(value: str | int) -> str | int:
    """Return a value for a line of the log, quoted if it could look like several values or lines."""
    if isinstance(value, int) or (value.isprintable() and _PLAIN.fullmatch(value)):
        return value
    return json.dumps(value)


def _printable(value: str | int) -> str | int:
    if isinstance(value, int):
        return value
    return "".join(character if character.isprintable() else "?" for character in value[:200])
