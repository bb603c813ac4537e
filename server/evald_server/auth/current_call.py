"""Who makes the current call, and what it needs of that caller for as long as it is open."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from .principal import LOCAL, Principal

Need: TypeAlias = Callable[[Principal], object]
"""Raises what a call ends with whose caller may not do what it does."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that may stay open for long. principal: its caller, with the rights of the last second."""

    principal: Principal
    needs: list[Need] = field(default_factory=list)

    def judge(self, principal: Principal) -> None:
        """Go on with the rights that the caller has now. Raises what one of the needs raises."""
        self.principal = principal
        for check in self.needs:
            check(principal)


PRINCIPAL: Final[ContextVar[Principal]] = ContextVar("principal", default=LOCAL)
"""The caller of the current call when it began. Set before its handler runs, in the same task."""

OPEN_CALL: Final[ContextVar[OpenCall | None]] = ContextVar("open_call", default=None)
"""The current call; None for one that is answered soon."""


def caller() -> Principal:
    """Return who makes the current call."""
    call = OPEN_CALL.get()
    return PRINCIPAL.get() if call is None else call.principal


def need(check: Need) -> None:
    """Check the caller of the current call, and again whenever its rights change while the call is open.

    Raises what the check raises.
    """
    check(caller())
    call = OPEN_CALL.get()
    if call is not None:
        call.needs.append(check)
