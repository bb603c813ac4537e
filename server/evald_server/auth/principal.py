"""Principals: authenticated callers with a name, roles and the evaluator types that they may offer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints, TypeAdapter

_TYPE: Final = r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,99}\*?"


class Role(StrEnum):
    """A role of a principal. `roles.py` lists its methods."""

    CALLER = "caller"
    PLUGIN = "plugin"
    VIEWER = "viewer"
    ADMIN = "admin"
    INGEST = "ingest"


# The types of fields in files of credentials.
Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$")]
Roles: TypeAlias = Annotated[tuple[Annotated[Role, Strict(strict=False)], ...], Strict(strict=False)]
Types: TypeAlias = Annotated[
    tuple[Annotated[str, StringConstraints(pattern=rf"^(?:{_TYPE})$")], ...], Strict(strict=False)
]

_TIME: Final = "a time with a time zone, such as 2027-01-31T12:00:00Z"

WANTED: Final[Mapping[str, str]] = {
    "id": "12 lower case letters and digits",
    "digest": "64 hexadecimal digits",
    "principal": "1 to 64 letters, digits and . _ @ / -, starting with a letter or digit",
    "roles": f"a list of one or more of {', '.join(Role)}",
    "types": "a list of names of types, or prefixes that end in *, such as acme.*",
    "created": _TIME,
    "expires": _TIME,
    "revoked": _TIME,
    "note": "at most 200 printable characters, without an API key",
    "rate": "calls per second, above 0 and at most 1000000",
    "in_flight": "1 to 1000000 calls",
    "judge_usd_per_day": "US dollars, 0 to 1000000",
    "san": "a whole name in a certificate, such as spiffe://DOMAIN/PATH or a DNS name, not a pattern",
    "denied": "a list of names in certificates",
    "clients": "tables [[clients]]",
    "principals": "tables [[principals]]",
}
"""What the fields of files of credentials must be."""


class Limits(BaseModel):
    """The limits of a principal in a table of a file. None: no limit."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    rate: Annotated[float, Field(gt=0, le=1e6)] | None = None
    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    judge_usd_per_day: Annotated[float, Field(ge=0, le=1e6)] | None = None


def limits_of(owner: object) -> dict[str, Any]:
    """Return the limits of a Principal, a table of a file or parsed arguments, by name."""
    return {name: getattr(owner, name) for name in Limits.model_fields}


ClientNames: TypeAlias = tuple[str, ...]
"""The URIs and the DNS names in a client certificate."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    name: the owner of leases, sessions and request ids; several keys may share it.
    types: evaluator types that it may offer, each a name or a prefix that ends in `*`.
    key_id: id of its API key, id of the key that signed its token, or the name in its certificate.
    rate: maximum calls per second. in_flight: maximum open calls. judge_usd_per_day: maximum cost of judges in US
    dollars per day (UTC). None: no limit.
    expires: expiry of its token, Unix time in seconds.
    sans: the names in its connection's client certificate, also if it sent a token; None without one.
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
    sans: ClientNames | None = None

    def may_offer(self, type_name: str) -> bool:
        """Return whether it may offer evaluators of this type."""
        return any(
            type_name.startswith(allowed[:-1]) if allowed.endswith("*") else type_name == allowed
            for allowed in self.types
        )

    @property
    def is_anonymous(self) -> bool:
        """Whether this stands for callers without credentials."""
        return self.kind == "none"

    def owns(self, owner: str) -> bool:
        """Return whether it owns the objects of `owner`."""
        return self.name == owner


def is_type_pattern(text: str) -> bool:
    """Return whether a text is the name of a type or a prefix that ends in `*`."""
    return re.fullmatch(_TYPE, text) is not None


def anonymous(roles: frozenset[Role]) -> Principal:
    """Return the principal of all callers without credentials. No key, token or certificate can have its name."""
    return Principal("(anonymous)", roles, kind="none")


LOCAL: Final = Principal("", frozenset(Role), ("*",))
"""Every caller of a server without credentials."""

STORED: Final = TypeAdapter(Principal)
"""Converts principals to JSON, to be stored, and back."""

RESTARTED: Final = replace(LOCAL, name="(restarted)")
"""The principal of work that a server with credentials continues after a restart. No caller can have its name."""
