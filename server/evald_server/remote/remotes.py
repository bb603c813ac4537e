"""All remote evaluators of a server: sessions of workers, leases and static targets, wired together."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from evald_server.auth.principal import Principal
from evald_server.config import RemoteTarget, Settings
from evald_server.store.database import Database
from evald_server.store.leases import LeaseStore
from evald_server.store.remote_types import RemoteTypeStore

from .channels import DialTls, read_tls_profiles
from .dial_allowlist import DialAllowlist, Resolver, read_target
from .errors import Refusal
from .evaluator import LatencyObserver
from .grpc_instance import GrpcInstance
from .instance import Mode
from .instances import STATIC_PREFIX, Catalogue, InstanceRegistry
from .lease_registry import LeaseRegistry
from .plugin_type import Plugin
from .remembered_types import RememberedTypes
from .worker_sessions import WorkerSessions

_POLL_SECONDS: Final = 0.05


class RemoteObserver(Protocol):
    """Telemetry of remote evaluators."""

    def tasks(self, type: str, /) -> LatencyObserver:  # noqa: A002 - the word of the contract
        """Return the observer of a type's tasks."""

    def lease_expired(self) -> None:
        """Count an expired lease."""


class StaticTargets:
    """The instances of the config. They are never given up, and may offer other types after each connect."""

    def __init__(
        self,
        instances: InstanceRegistry,
        targets: Iterable[RemoteTarget],
        tls_profiles: Mapping[str, DialTls],
    ) -> None:
        self._registry = instances
        resolver = Resolver(None)
        self._instances = [
            GrpcInstance(
                f"{STATIC_PREFIX}{one.target}",
                one.target,
                None,
                Mode.STATIC,
                instances.settings,
                resolver,
                self._confirm,
                instances.changed,
                tls_profiles[one.tls_profile] if one.tls_profile else None,
            )
            for one in targets
        ]

    def start(self) -> None:
        """Connect in the background."""
        for instance in self._instances:
            self._registry.add(instance)
            instance.start()

    async def stop(self) -> None:
        """Disconnect all instances."""
        await asyncio.gather(*(instance.abort() for instance in self._instances))

    def _confirm(self, instance: GrpcInstance, plugin: Plugin) -> None:
        self._registry.check(plugin, instance, "Describe")
        self._registry.bind(instance, plugin, live=True)


class Remotes:
    """All remote evaluators of a server. Call `start`, then `drain` and `stop`, each once, in one event loop."""

    def __init__(
        self,
        settings: Settings,
        catalogue: Catalogue,
        observer: RemoteObserver,
        database: Database,
        current: Callable[[Principal], Principal | None],
    ) -> None:
        """Raises ValueError that names the wrong setting. current: as of LeaseRegistry."""
        try:
            for one in settings.remote_targets:
                read_target(one.target)
        except Refusal as problem:
            raise ValueError(f"remote_targets: {problem.message}") from None
        profiles = read_tls_profiles(settings)
        try:
            allowlist = DialAllowlist(settings.remote_allowed)
        except ValueError as problem:
            raise ValueError(f"remote_allowed: {problem}") from None
        self.server_id = secrets.token_hex(8)
        self._remembered = RememberedTypes(RemoteTypeStore(database))
        self.instances = InstanceRegistry(catalogue, settings, observer.tasks, self._remembered)
        self.sessions = WorkerSessions(self.instances, self.server_id)
        self.leases = LeaseRegistry(
            self.instances,
            LeaseStore(database),
            allowlist,
            tls_profiles=profiles,
            blocked=settings.remote_blocked,
            expired=observer.lease_expired,
            current=current,
        )
        self._static_targets = StaticTargets(self.instances, settings.remote_targets, profiles)

    async def start(self) -> None:
        """Restore types and leases, and connect to static targets. Raises StoreProblem if they cannot be read."""
        await self._remembered.start(self.instances)
        await self.leases.start()
        self._static_targets.start()

    async def settle(self, seconds: float) -> None:
        """Wait at most `seconds` until every restored or configured instance was healthy or refused once."""
        known = [one for one in self.instances.by_id.values() if isinstance(one, GrpcInstance)]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for instance in known:
                    await instance.confirmed.wait()

    async def forget(self, name: str, version: str = "") -> None:
        """Remove a type, or one version of it, that no instance offers. Raises Refusal, StoreProblem."""
        await self._remembered.forget(self.instances, name, version)

    async def drain(self, grace: float, queued: Callable[[], int], busy: Callable[[], int]) -> None:
        """Notify workers that the server stops, and end their sessions when no evaluation needs them.

        queued: returns the number of evaluations that have not sent their tasks yet; a worker that is notified too
        early leaves before it gets them. busy: returns the number of running evaluations.
        """
        await _until_none(lambda: queued() + self.instances.queued())
        self.sessions.drain("the server is stopping", grace)
        await _until_none(busy)
        self.sessions.end()

    async def stop(self) -> None:
        """Disconnect all instances."""
        self.sessions.end()
        await self.leases.stop()
        await self._static_targets.stop()
        await self._remembered.stop()


async def _until_none(count: Callable[[], int]) -> None:
    """Poll until a count is 0, because admission has no event for that."""
    while count():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
