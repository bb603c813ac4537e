"""Principals: authenticated callers with a name, roles and the evaluator types that they may offer."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

from pydantic import TypeAdapter

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}")
_TYPE: Final = re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,99}\*?")


class _Limit(NamedTuple):
    """A limit of a principal. The first value is above `least`, or equal to it if `inclusive`."""

    kind: type[float]
    least: float
    most: float
    wanted: str
    inclusive: bool = True


_LIMITS: Final = {
    "rate": _Limit(float, 0, 1e6, "calls per second, above 0 and at most 1000000", inclusive=False),
    "in_flight": _Limit(int, 1, 1e6, "1 to 1000000 calls"),
    "judge_usd_per_day": _Limit(float, 0, 1e6, "US dollars, 0 to 1000000"),
}

LIMITS: Final = tuple(_LIMITS)
"""The names of a principal's limits, which are fields of Principal and ApiKey."""


class Role(StrEnum):
    """A role of a principal. `roles.py` lists its methods."""

    CALLER = "caller"
    PLUGIN = "plugin"
    VIEWER = "viewer"
    ADMIN = "admin"
    INGEST = "ingest"


class ClientNames(NamedTuple):
    """The names in a client certificate.

    names: those that identify the client. all: these and the others. short_key: whether its key is too short to be
    secure.
    """

    names: tuple[str, ...]
    all: tuple[str, ...]
    short_key: bool = False


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    name: the owner of leases, sessions and request ids; several keys may share it.
    types: evaluator types that it may offer, each a name or a prefix that ends in `*`.
    key_id: id of its API key, id of the key that signed its token, or the name in its certificate.
    rate: maximum calls per second. in_flight: maximum open calls. judge_usd_per_day: maximum cost of judges in US
    dollars per day (UTC). None: no limit.
    expires: expiry of its token, Unix time in seconds.
    certificate: the names in its connection's client certificate, also if it sent a token; None without one.
    """

    name: str
    roles: frozenset[Role]
    types: tuple[str, ...] = ()
    key_id: str = ""
    rate: float | None = None
    in_flight: int | None = None
    judge_usd_per_day: float | None = None
    kind: Literal["key", "jwt", "certificate", "none"] = "key"
    expires: float | None = None
    certificate: ClientNames | None = None

    def may_offer(self, type_name: str) -> bool:
        """Return whether it may offer evaluators of this type."""
        return any(
            type_name.startswith(one[:-1]) if one.endswith("*") else type_name == one for one in self.types
        )

    @property
    def is_anonymous(self) -> bool:
        """Whether this stands for callers without credentials."""
        return self.kind == "none"

    def owns(self, owner: str) -> bool:
        """Return whether it owns the objects of `owner`."""
        return self.name == owner


def check_name(name: str) -> None:
    """Raise ValueError if this is not a valid name of a principal in a file."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            "principal: wanted 1 to 64 letters, digits and . _ @ / -, starting with a letter or digit"
        )


def limits_of(owner: object) -> dict[str, Any]:
    """Return the limits of a Principal, an ApiKey or parsed arguments, by name."""
    return {name: getattr(owner, name) for name in LIMITS}


def read_limits(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits in a table of a file, by name; None for absent ones. Raises TypeError and ValueError."""
    return {name: _read_limit(name, table.get(name), limit.kind) for name, limit in _LIMITS.items()}


def _read_limit(name: str, value: Any, kind: type[float]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | kind):
        raise TypeError(f"{name}: wanted a {'whole ' if kind is int else ''}number")
    try:
        return kind(value)
    except OverflowError:
        raise ValueError(f"{name}: wanted a number with fewer digits") from None


def check_limits(limits: Mapping[str, float | None]) -> None:
    """Raise ValueError if these are not valid limits of a principal."""
    for name, value in limits.items():
        limit = _LIMITS[name]
        if value is None or (limit.least <= value <= limit.most and (limit.inclusive or value > limit.least)):
            continue
        raise ValueError(f"{name}: got {str(value)[:20]}, wanted {limit.wanted}")


def is_type_pattern(text: str) -> bool:
    """Return whether a text is the name of a type or a prefix that ends in `*`."""
    return _TYPE.fullmatch(text) is not None


def check_types(types: Iterable[str]) -> None:
    """Raise ValueError if these are not valid names or prefixes of types."""
    if not all(map(is_type_pattern, types)):
        raise ValueError("types: wanted names of types, or prefixes that end in *, such as acme.*")


def anonymous(roles: frozenset[Role]) -> Principal:
    """Return the principal of all callers without credentials. No key, token or certificate can have its name."""
    return Principal("(anonymous)", roles, kind="none")


LOCAL: Final = Principal("", frozenset(Role), ("*",))
"""Every caller of a server without credentials."""

STORED: Final = TypeAdapter(Principal)
"""Converts principals to JSON, to be stored, and back."""

RESTARTED: Final = replace(LOCAL, name="(restarted)")
"""The principal of work that a server with credentials continues after a restart. No caller can have its name."""
