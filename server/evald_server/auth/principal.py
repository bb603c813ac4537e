"""Who calls: a name, roles, and the evaluator types that it may offer."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a principal may do. `roles.py` says which methods that is."""

    CALLER = "caller"
    PLUGIN = "plugin"
    VIEWER = "viewer"
    ADMIN = "admin"
    INGEST = "ingest"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    name: what owns leases, sessions and request ids; several keys may share it. types: evaluator types that it may
    offer, each a name or a prefix that ends in `*`. key_id: of the API key that it called with. rate: calls a second
    that it may begin; in_flight: calls that may go on at a time; judge_usd_per_day: US
    dollars that it may spend on judges, from midnight to midnight UTC; None for no limit.
    """

    name: str
    roles: frozenset[Role]
    types: tuple[str, ...] = ()
    key_id: str = ""
    rate: float | None = None
    in_flight: int | None = None
    judge_usd_per_day: float | None = None

    def may_offer(self, type_name: str) -> bool:
        """Return whether it may offer evaluators of this type."""
        return any(
            type_name.startswith(one[:-1]) if one.endswith("*") else type_name == one for one in self.types
        )

    def owns(self, owner: str) -> bool:
        """Return whether what `owner` created is its own."""
        return self.name == owner


LOCAL: Final = Principal("", frozenset(Role), ("*",))
"""Every caller of a server that asks for no credentials."""

PRINCIPAL: Final[ContextVar[Principal]] = ContextVar("principal", default=LOCAL)
"""The caller of the current call. Set before its handler runs, in the same task."""
