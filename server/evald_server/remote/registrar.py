"""Plugins that listen and register: leases, on disk and in memory."""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from evald.plugin.v1 import registry_service_pb2, task_pb2

from .connection import Tls
from .dialled import Dialled
from .directory import Directory
from .instance import Mode, State
from .lease import Lease, Leases, LeaseState
from .offer import Plugin, read_plugin
from .permission import Permissions
from .refusal import Refusal, invalid
from .store import Registration, Store
from .targets import Allowed, Resolve, Resolver
from .workers import check_instance_id, check_permission, check_replaceable

_log = logging.getLogger("evald.remote")

# Register answers when the plugin is confirmed, so that the very next call finds it, but does not wait for
# one that begins to listen later.
_CONFIRM_SECONDS: Final = 1.0

_TICK_SECONDS: Final = 0.25

_LOOK_UP_SECONDS: Final = 2.0


class Granted(NamedTuple):
    """A lease that was granted. ttl: in seconds."""

    lease_id: str
    ttl: float


class Registrar:
    """Grants leases, renews them, and takes the instances of those that are over out of rotation.

    allowed: where the server may dial to; without a rule nobody can register. blocked: names of plugins that
    the operator has removed. expired: called for every lease that runs out.
    """

    def __init__(
        self,
        directory: Directory,
        store: Store,
        allowed: Allowed,
        permissions: Permissions,
        *,
        tls_profiles: Mapping[str, Tls],
        blocked: Container[str] = (),
        expired: Callable[[], None] = lambda: None,
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._store = store
        self._allowed = allowed
        self._permissions = permissions
        self._tls_profiles = tls_profiles
        self._blocked = blocked
        self._expired = expired
        self._resolver = Resolver(allowed, resolve)
        self._leases = Leases(clock)
        self._ticking: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._gone: set[Dialled] = set()  # those that still have tasks, or connections to close

    async def start(self) -> None:
        """Restore what was registered before the server stopped. Raises Refusal when the file cannot be had."""
        rows = await self._store.load()
        # At the same time, because a name server that does not answer must not hold up the start row by row.
        problems = await asyncio.gather(*(self._forbidden(row.target) for row in rows))
        for row, problem in zip(rows, problems, strict=True):
            await self._restore(row, problem)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Let go of all instances. Their leases stay on disk."""
        if self._ticking is not None:
            self._ticking.cancel()
        known = self._directory.instances.values()
        registered = {one for one in known if isinstance(one, Dialled) and one.mode is Mode.REGISTERED}
        await asyncio.gather(*(one.cut() for one in registered | self._gone))
        await asyncio.gather(*self._leaving)
        await self._store.close()

    async def register(self, request: registry_service_pb2.RegisterRequest, principal: str) -> Granted:
        """Grant a lease. Raises Refusal."""
        if not self._allowed:
            raise Refusal(
                "TARGET_NOT_ALLOWED",
                "target: this server dials back to nobody. The operator allows targets with remote_allowed; "
                "a plugin that dials out (Connect) needs none",
                "target",
            )
        check_instance_id(request.instance_id)
        plugin = read_plugin(request.plugin)
        if plugin.name in self._blocked:
            raise Refusal(
                "PLUGIN_BLOCKED", f'plugin.name: the operator has blocked "{plugin.name}"', "plugin.name"
            )
        check_permission(self._permissions, principal, plugin.offers, "plugin")
        ttl = self._ttl(request)
        tls = self._tls(request.tls_profile)
        # A name that has no address yet may have one soon.
        with suppress(OSError):
            await self._resolver.dial(request.target)
        directory = self._directory
        old = check_replaceable(directory, request.instance_id, Mode.REGISTERED)
        directory.check(plugin, old)
        replaced = self._leases.end(old.lease.id) if old is not None and old.lease is not None else None
        if isinstance(old, Dialled) and _is_same(old, request):
            instance = old
        else:
            if isinstance(old, Dialled):
                directory.remove(old)
                self._leave(old)
            instance = self._new(request.instance_id, request.target, plugin, tls)
            directory.add(instance)
        lease = instance.lease = self._leases.grant(instance.id, ttl)
        row = Registration(
            lease.id,
            instance.id,
            request.plugin.SerializeToString(),
            request.target,
            request.tls_profile,
            principal,
            ttl,
            instance.registered,
        )
        try:
            await self._store.put(row, instead=replaced.id if replaced else "")
        except Refusal:
            self._drop(lease)
            raise
        if instance is not old:
            _log.info("remote instance %s: registered for %g s", instance.name, ttl)
            instance.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await instance.confirmed.wait()
        if instance.refused is not None:
            refused = instance.refused
            self._drop(lease)
            await self._store.delete(lease.id)
            raise refused
        return Granted(lease.id, ttl)

    def renew(self, lease_id: str, active_tasks: int) -> tuple[LeaseState, float]:
        """The state of a lease after its renewal, and the seconds that it has left."""
        state, lease = self._leases.renew(lease_id)
        if lease is None:
            return state, 0.0
        instance = self._directory.instances.get(lease.instance_id)
        if instance is not None:
            instance.last_seen = time.time()
            instance.foreign = max(0, active_tasks - instance.active)
        return state, lease.ttl

    def left(self, lease: Lease) -> float:
        """Seconds until a lease runs out."""
        return self._leases.left(lease)

    async def deregister(self, lease_id: str, *, drain: bool) -> None:
        """End a lease at once. Raises Refusal when that cannot be written down."""
        lease = self._leases.end(lease_id)
        if lease is None:
            return
        instance = self._directory.instances.get(lease.instance_id)
        if isinstance(instance, Dialled):
            _log.info("remote instance %s: deregistered%s", instance.name, ", drains" if drain else "")
            if drain and instance.active:
                instance.set_state(State.DRAINING, "deregistered")
                self._later(self._drained(instance, lease.ttl))
            else:
                self._directory.remove(instance)
                self._directory.said_goodbye(instance, lease.ttl)
                self._leave(instance, cut=not drain)
        await self._store.delete(lease_id)

    async def _forbidden(self, target: str) -> Refusal | None:
        """Why the target is no longer allowed; None when it is, or when nobody knows yet."""
        try:
            async with asyncio.timeout(_LOOK_UP_SECONDS):
                await self._resolver.dial(target)
        except (OSError, TimeoutError):
            return None
        except Refusal as problem:
            return problem
        return None

    async def _restore(self, row: Registration, forbidden: Refusal | None) -> None:
        if row.revoked:
            self._leases.revoke(row.lease_id)
            return
        try:
            plugin = read_plugin(task_pb2.PluginInfo.FromString(row.plugin))
            if plugin.name in self._blocked:
                raise Refusal("PLUGIN_BLOCKED", "the operator has blocked it")
            check_permission(self._permissions, row.principal, plugin.offers, "plugin")
            if forbidden is not None:
                raise forbidden
            self._directory.check(plugin)
            instance = self._new(row.instance_id, row.target, plugin, self._tls(row.tls_profile))
        except Refusal as problem:
            # What the operator no longer allows must not come back by itself; the rest may.
            revoked = problem.reason in ("PLUGIN_BLOCKED", "TARGET_NOT_ALLOWED", "TYPE_NOT_ALLOWED")
            _log.warning(
                "remote instance %s (%s): not restored%s: %s",
                row.instance_id,
                row.target,
                ", revoked" if revoked else "",
                problem.message,
            )
            if revoked:
                self._leases.revoke(row.lease_id)
                await self._store.put(replace(row, revoked=True))
            else:
                await self._store.delete(row.lease_id)
            return
        instance.registered = row.registered
        instance.lease = self._leases.grant(row.instance_id, row.ttl_seconds, row.lease_id)
        self._directory.add(instance)
        _log.info("remote instance %s: restored", instance.name)
        instance.start()

    def _new(self, instance_id: str, target: str, plugin: Plugin, tls: Tls | None) -> Dialled:
        directory = self._directory
        return Dialled(
            instance_id,
            target,
            plugin,
            Mode.REGISTERED,
            directory.limits,
            self._resolver,
            _confirm,
            directory.changed,
            tls,
        )

    def _ttl(self, request: registry_service_pb2.RegisterRequest) -> float:
        limits = self._directory.limits
        if not request.HasField("ttl"):
            return limits.lease_seconds
        wanted = request.ttl.seconds + request.ttl.nanos / 1e9
        if wanted <= 0:
            raise invalid("ttl", f"got {wanted:g}s, wanted more than 0")
        return min(max(wanted, limits.min_lease_seconds), limits.max_lease_seconds)

    def _tls(self, profile: str) -> Tls | None:
        if not profile:
            return None
        if profile not in self._tls_profiles:
            raise invalid("tls_profile", f"got {profile[:80]!r}, which the server's config does not have")
        return self._tls_profiles[profile]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for lease in self._leases.expire():
                self._expire(lease)
            self._directory.forget_left()

    def _expire(self, lease: Lease) -> None:
        self._expired()
        instance = self._directory.instances.get(lease.instance_id)
        if isinstance(instance, Dialled):
            _log.warning("remote instance %s: lease ran out after %g s", instance.name, lease.ttl)
            self._directory.remove(instance)
            self._leave(instance)
        self._later(self._forget(lease.id))

    async def _forget(self, lease_id: str) -> None:
        # Restored by mistake, it runs out again.
        with suppress(Refusal):
            await self._store.delete(lease_id)

    def _drop(self, lease: Lease) -> None:
        self._leases.end(lease.id)
        instance = self._directory.instances.get(lease.instance_id)
        if isinstance(instance, Dialled) and instance.lease is lease:
            self._directory.remove(instance)
            self._leave(instance)

    def _leave(self, instance: Dialled, *, cut: bool = False) -> None:
        self._gone.add(instance)
        self._later(self._let_go(instance, cut=cut))

    async def _let_go(self, instance: Dialled, *, cut: bool) -> None:
        await (instance.cut() if cut else instance.close())
        await instance.retired()
        self._gone.discard(instance)

    async def _drained(self, instance: Dialled, ttl: float) -> None:
        await instance.idle()
        self._directory.remove(instance)
        self._directory.said_goodbye(instance, ttl)
        await self._let_go(instance, cut=False)

    def _later(self, work: "Coroutine[None, None, None]") -> None:
        task = asyncio.create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _is_same(instance: Dialled, request: registry_service_pb2.RegisterRequest) -> bool:
    return (
        instance.target == request.target
        and instance.plugin is not None
        and instance.plugin.pb == request.plugin
        and instance.refused is None
    )


def _confirm(instance: Dialled, plugin: Plugin) -> None:
    """What listens there must be what has registered."""
    if instance.plugin is not None and not instance.plugin.same_offers(plugin):
        offered = ", ".join(f"{offer.type} {offer.version}" for offer in plugin.offers)
        raise Refusal(
            "PLUGIN_DIFFERS",
            f"target: Describe offers {offered}, with other types, versions or schemas than were registered",
            "target",
        )
