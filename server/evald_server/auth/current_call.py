"""The caller of the current call, and the rights that the caller needs while the call is open."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from .audit import record
from .principal import LOCAL, Principal

T = TypeVar("T")

Need: TypeAlias = Callable[[Principal], object]
"""A check of the caller's rights. Raises the error that ends the call."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that may stay open for a long time. principal: its caller, with rights at most half a minute old."""

    principal: Principal
    needs: list[Need] = field(default_factory=list)

    def judge(self, principal: Principal) -> None:
        """Replace the caller by one with current rights, and repeat the checks. Raises a check's error."""
        self.principal = principal
        for check in self.needs:
            check(principal)


PRINCIPAL: Final[ContextVar[Principal]] = ContextVar("principal", default=LOCAL)
"""The caller at the start of the current call. Set before its handler runs, in the same task."""

OPEN_CALL: Final[ContextVar[OpenCall | None]] = ContextVar("open_call", default=None)
"""The current call; None for a short one."""


def caller() -> Principal:
    """Return the caller of the current call."""
    call = OPEN_CALL.get()
    return PRINCIPAL.get() if call is None else call.principal


async def recorded(
    change: Awaitable[T], outcome: str, kind: str, changed_id: str, unless: object = False
) -> T:
    """Await a change by the caller of the current call, log it, and return its result.

    It is logged also if the call ends meanwhile. outcome: for the audit log, as "deleted". unless: the result that says
    that nothing has changed.
    """
    principal = caller()

    def log(done: "asyncio.Future[T]") -> None:
        if not done.cancelled() and done.exception() is None and done.result() is not unless:
            record(outcome, principal, kind=kind, id=changed_id)

    doing = asyncio.ensure_future(change)
    doing.add_done_callback(log)
    return await asyncio.shield(doing)


def need(check: Need) -> None:
    """Check the caller of the current call now and whenever its rights change while the call is open.

    Raises the check's error.
    """
    check(caller())
    call = OPEN_CALL.get()
    if call is not None:
        call.needs.append(check)
