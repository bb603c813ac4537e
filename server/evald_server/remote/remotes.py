"""All remote evaluators of one server: the three ways in, wired together."""

import asyncio
import secrets
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, Protocol

from .connection import Tls
from .directory import Catalogue, Directory
from .evaluator import TaskTally
from .limits import Limits
from .permission import Everyone, Permissions
from .registrar import Registrar
from .statics import Statics, StaticTarget
from .store import NoStore, Store
from .targets import Allowed, Resolve
from .workers import Workers

_IDLE_TICK_SECONDS: Final = 0.05


class RemoteObserver(Protocol):
    """What is counted."""

    def remote_tasks(self, type: str, /) -> TaskTally:  # noqa: A002 - the word of the contract
        """The tally of a type's tasks."""

    def lease_expired(self) -> None:
        """A lease ran out."""


class Remotes:
    """Everything remote. `start`, then `drain` and `stop`; each once, in one event loop."""

    def __init__(
        self,
        catalogue: Catalogue,
        observer: RemoteObserver,
        *,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        allowed: Iterable[str] = (),
        targets: Iterable[StaticTarget] = (),
        tls_profiles: Mapping[str, Tls] | None = None,
        blocked: Container[str] = (),
        store: Store | None = None,
        permissions: Permissions | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self.server_id = secrets.token_hex(8)
        profiles = tls_profiles or {}
        permissions = permissions or Everyone()
        self.directory = Directory(catalogue, limits, observer.remote_tasks)
        self.workers = Workers(self.directory, permissions, self.server_id)
        self.registrar = Registrar(
            self.directory,
            store or NoStore(),
            Allowed(allowed),
            permissions,
            tls_profiles=profiles,
            blocked=blocked,
            expired=observer.lease_expired,
            resolve=resolve,
        )
        self._statics = Statics(self.directory, targets, profiles)

    async def start(self) -> None:
        """Restore registrations and dial. Raises Refusal when the registrations cannot be read."""
        await self.registrar.start()
        self._statics.start()

    async def drain(self, grace: float, queued: Callable[[], int], busy: Callable[[], int]) -> None:
        """Tell workers that the server stops, and end their sessions when no evaluation needs them.

        queued: evaluations that have not sent their tasks yet: a worker that hears of the end too early
        leaves before it has them. busy: those that run.
        """
        await _none(lambda: queued() + sum(pool.waiting for pool in self.directory.pools.values()))
        self.workers.drain("the server stops", grace)
        await _none(busy)
        self.workers.end()

    async def stop(self) -> None:
        """Let go of everything."""
        self.workers.end()
        await self.registrar.stop()
        await self._statics.stop()


async def _none(count: Callable[[], int]) -> None:
    """Wait until there are none. Admission has no event for it, and a stop may take a moment."""
    while count():  # noqa: ASYNC110
        await asyncio.sleep(_IDLE_TICK_SECONDS)
