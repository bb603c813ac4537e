"""Plugins that listen and register: their leases, in memory and in the store."""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from evald.plugin.v1 import registry_service_pb2, task_pb2
from evald_server.auth.principal import LOCAL, STORED, Principal, Role
from evald_server.store.database import StoreProblem
from evald_server.store.leases import LeaseStore, StoredLease

from .channels import DialTls
from .dial_allowlist import DialAllowlist, Resolver
from .errors import Refusal, invalid
from .grpc_instance import GrpcInstance
from .instance import InstanceState, Mode
from .instances import InstanceRegistry, check_instance_id, check_owner, check_types
from .lease import Lease, Leases, LeaseState
from .plugin_type import Plugin, load_plugin, read_plugin

_log = logging.getLogger("evald.remote")

# Register waits for the first health check, so that the next call finds the plugin. It does not wait longer for a
# plugin that starts to listen later.
_CONFIRM_SECONDS: Final = 1.0

_TICK_SECONDS: Final = 0.25

_RESOLVE_SECONDS: Final = 2.0

# Bounds of the lease that a plugin may ask for.
_MIN_LEASE_SECONDS: Final = 1.0
_MAX_LEASE_SECONDS: Final = 300.0

_MAX_SHOWN: Final = 100

# Why an instance cannot be deregistered, and the alternative, by mode.
_WITHOUT_LEASE: Final = {
    Mode.CONNECTED: "an instance that dials in, wanted one that has registered; stop its process, or revoke its key",
    Mode.STATIC: "a target of the server's config, wanted an instance that has registered; remove it from the config",
}


class Renewal(NamedTuple):
    """The outcome of a renewal. ttl: in seconds. unreachable: why the server cannot reach the plugin, "" if it can."""

    state: LeaseState
    ttl: float
    unreachable: str


class LeaseRegistry:
    """Grants and renews leases, and removes the instances whose lease has ended.

    allowlist: without a rule no plugin can register. blocked: names of plugins that the operator has blocked.
    expired: called for every lease that expires. current: returns a principal with the types that it may offer now;
    None if it may no longer offer any.
    """

    def __init__(
        self,
        instances: InstanceRegistry,
        store: LeaseStore,
        allowlist: DialAllowlist,
        *,
        tls_profiles: Mapping[str, DialTls],
        blocked: Container[str],
        expired: Callable[[], None],
        current: Callable[[Principal], Principal | None],
    ) -> None:
        self._instances = instances
        self._store = store
        self._allowlist = allowlist
        self._tls_profiles = tls_profiles
        self._blocked = blocked
        self._expired = expired
        self._current = current
        self._resolver = Resolver(allowlist)
        self._leases = Leases()
        self._ticking: asyncio.Task[None] | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._disconnecting: set[GrpcInstance] = set()  # removed, but still with open tasks or connections

    async def start(self) -> None:
        """Restore the stored leases. Raises StoreProblem if they cannot be read."""
        rows = await self._store.load()
        # Concurrently: an unresponsive name server must not delay the start once per row.
        problems = await asyncio.gather(*(self._refusal(row.target) for row in rows))
        for row, problem in zip(rows, problems, strict=True):
            await self._restore(row, problem)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Disconnect all instances. Their leases stay stored."""
        if self._ticking is not None:
            self._ticking.cancel()
        known = self._instances.by_id.values()
        registered = {one for one in known if isinstance(one, GrpcInstance) and one.mode is Mode.REGISTERED}
        await asyncio.gather(*(one.abort() for one in registered | self._disconnecting))
        await asyncio.gather(*self._background_tasks)

    async def register(
        self, request: registry_service_pb2.RegisterRequest, principal: Principal = LOCAL
    ) -> Lease:
        """Grant a lease. Raises Refusal, StoreProblem."""
        if not self._allowlist:
            raise Refusal(
                "TARGET_NOT_ALLOWED",
                "target: this server does not connect to plugins that register. The operator of the server allows "
                "targets with the setting remote_allowed; a plugin can also connect to the server instead (Attach)",
                "target",
            )
        check_instance_id(request.instance_id)
        plugin = await load_plugin(request.plugin)
        if plugin.name in self._blocked:
            raise Refusal(
                "PLUGIN_BLOCKED",
                f'plugin.name: the operator of the server has blocked "{plugin.name}"',
                "plugin.name",
            )
        ttl = self._ttl(request)
        tls = self._tls(request.tls_profile)
        # Ignored: a name without an address may get one soon.
        with suppress(OSError):
            await self._resolver.dial(request.target)
        instances = self._instances
        old = instances.replaced_by(request.instance_id, Mode.REGISTERED, principal)
        instances.check(plugin, old, principal=principal)
        replaced = self._leases.end(old.lease.id) if old is not None and old.lease is not None else None
        if isinstance(old, GrpcInstance) and _is_same(old, request, tls):
            instance = old
        else:
            if isinstance(old, GrpcInstance):
                self._remove(old)
            instance = self._new(request.instance_id, request.target, plugin, tls)
            instances.add(instance)
        instance.owner = principal
        lease = instance.lease = self._leases.grant(instance.id, ttl)
        row = StoredLease(
            lease.id,
            instance.id,
            request.plugin.SerializeToString(),
            request.target,
            request.tls_profile,
            ttl,
            instance.registered,
            revoked=False,
            owner=STORED.dump_json(principal).decode(),
        )
        try:
            await self._store.put(row, instead=replaced.id if replaced else "")
        except StoreProblem:
            self._end(self._leases.end(lease.id), "the lease could not be stored", lost=False)
            raise
        state, _ = self._leases.renew(lease.id)
        if state is not LeaseState.ACTIVE:
            # The lease was replaced, removed or expired during the write, and the write may have come after the removal
            # from the store. The plugin gets that state with its first renewal.
            await self._forget(lease.id, revoked=state is LeaseState.REVOKED)
            return lease
        if instance is not old:
            _log.info("remote instance %s: registered for %g s", instance.name, ttl)
        instance.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await instance.confirmed.wait()
        if instance.refused is not None:
            self._end(self._leases.end(lease.id), instance.refused.message, lost=False)
            raise instance.refused
        return lease

    def renew(self, lease_id: str, active_tasks: int, principal: Principal = LOCAL) -> Renewal:
        """Renew a lease.

        Raises Refusal if the lease belongs to another principal. Raises Refusal and ends the lease at once if the
        principal may not offer its types.
        """
        instance = self._instances.by_id.get(self._leases.instance_id(lease_id))
        if instance is not None and instance.plugin is not None:
            check_owner(instance, principal, "lease_id")
            try:
                check_types(instance.plugin, principal)
            except Refusal as problem:
                self._withdraw(lease_id, problem.message)
                raise
        state, lease = self._leases.renew(lease_id)
        if lease is None:
            return Renewal(state, 0.0, "")
        unreachable = ""
        if instance is not None:
            instance.owner = principal
            instance.last_seen = time.time()
            instance.foreign = max(0, active_tasks - instance.active)
            if instance.state in (InstanceState.PENDING, InstanceState.UNHEALTHY):
                unreachable = f"{instance.target}: {instance.last_error or 'not connected yet'}"
        return Renewal(state, lease.ttl, unreachable)

    def left(self, lease: Lease) -> float:
        """Return the seconds until a lease expires."""
        return self._leases.left(lease)

    async def deregister(
        self, request: registry_service_pb2.DeregisterRequest, principal: Principal = LOCAL
    ) -> str:
        """End a lease, or revoke it if an admin names its instance. Returns the instance's id; "" if it had ended.

        Raises Refusal if another principal owns the lease and this one is no admin, StoreProblem if the end cannot be
        stored.
        """
        drain, lease_id, field = request.drain, request.lease_id, "lease_id"
        if bool(lease_id) == bool(request.instance_id):
            got = "both" if lease_id else "neither"
            raise invalid("instance_id", f"got {got} lease_id and instance_id, wanted one of them")
        if request.instance_id:
            lease_id, field = self._lease_id(request.instance_id), "instance_id"
        is_admin = Role.ADMIN in principal.roles
        owned = self._instances.by_id.get(self._leases.instance_id(lease_id))
        if owned is not None and not is_admin:
            check_owner(owned, principal, field)
        revokes = is_admin and field == "instance_id"
        lease = self._leases.revoke(lease_id) if revokes else self._leases.end(lease_id)
        if lease is None:
            return ""
        instance = self._instances.by_id.get(lease.instance_id)
        if isinstance(instance, GrpcInstance):
            how = f"{'revoked' if revokes else 'deregistered'}{', draining' if drain else ''}"
            _log.info("remote instance %s: %s", instance.name, how)
            if drain and instance.active:
                instance.set_state(InstanceState.DRAINING, "deregistered")
                self._in_background(self._drained(instance, lease.ttl))
            else:
                self._remove(instance, abort=not drain)
                self._instances.supersede_after(instance, lease.ttl)
        await (self._store.revoke(lease_id) if revokes else self._store.delete(lease_id))
        return lease.instance_id

    def _lease_id(self, instance_id: str) -> str:
        """Return the id of an instance's lease. Raises Refusal if there is none."""
        instance = self._instances.by_id.get(instance_id)
        if instance is None:
            text = f'instance_id: no instance has the id "{instance_id[:_MAX_SHOWN]}"; `evald remotes` lists them'
            raise Refusal("RESOURCE_NOT_FOUND", text, "instance_id")
        if instance.lease is None:
            raise invalid("instance_id", f"got {_WITHOUT_LEASE[instance.mode]}")
        return instance.lease.id

    def _check_rights(self, lease_id: str, owner: Principal, plugin: Plugin) -> None:
        """End a lease at once if its owner may no longer offer its types."""
        current = self._current(owner)
        if current is None:
            self._withdraw(lease_id, f"{owner.name} may no longer offer evaluators")
            return
        try:
            check_types(plugin, current)
        except Refusal as problem:
            self._withdraw(lease_id, problem.message)

    def _withdraw(self, lease_id: str, why: str) -> None:
        """End a lease and its instance at once. Open tasks move to other instances."""
        self._end(self._leases.end(lease_id), f"lease ended: {why}", abort=True)

    def _end(self, lease: Lease | None, why: str, *, abort: bool = False, lost: bool = True) -> None:
        """Remove the instance and the stored row of a lease that has ended.

        lease: None if it had ended before. lost: whether the plugin had been registered.
        """
        if lease is None:
            return
        instance = self._instances.by_id.get(lease.instance_id)
        if isinstance(instance, GrpcInstance):
            if not lost:
                _log.warning("remote instance %s: %s", instance.name, why)
            self._remove(instance, abort=abort, lost=why if lost else "")
        self._in_background(self._forget(lease.id))

    async def _refusal(self, target: str) -> Refusal | None:
        """Return why a target is not allowed; None if it is allowed, or if its name cannot be resolved now."""
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await self._resolver.dial(target)
        except (OSError, TimeoutError):
            return None
        except Refusal as problem:
            return problem
        return None

    async def _restore(self, row: StoredLease, forbidden: Refusal | None) -> None:
        if row.revoked:
            self._leases.revoke(row.lease_id)
            return
        older = self._instances.by_id.get(row.instance_id)
        if older is not None and older.lease is not None:
            # The server was killed while a new registration replaced this one.
            self._withdraw(older.lease.id, "replaced by a later registration")
        try:
            plugin = read_plugin(task_pb2.PluginInfo.FromString(row.plugin))
            if plugin.name in self._blocked:
                raise Refusal("PLUGIN_BLOCKED", "the operator of the server has blocked the plugin")
            if forbidden is not None:
                raise forbidden
            stored = STORED.validate_json(row.owner)
            owner = self._current(stored)
            if owner is None:
                raise Refusal("NOT_OWNER", f"{stored.name} may no longer offer evaluators")
            self._instances.check(plugin, principal=owner)
            instance = self._new(row.instance_id, row.target, plugin, self._tls(row.tls_profile))
        except Refusal as problem:
            # A plugin that the operator no longer allows must not register again automatically.
            revoked = problem.reason in ("PLUGIN_BLOCKED", "TARGET_NOT_ALLOWED")
            _log.warning(
                "remote instance %s (%s): not restored%s: %s",
                row.instance_id,
                row.target,
                ", revoked" if revoked else "",
                problem.message,
            )
            if revoked:
                self._leases.revoke(row.lease_id)
                await self._store.put(row._replace(revoked=True))
            else:
                await self._store.delete(row.lease_id)
            return
        instance.owner = owner
        instance.registered = row.registered
        instance.lease = self._leases.grant(row.instance_id, row.ttl_seconds, row.lease_id)
        self._instances.add(instance)
        _log.info("remote instance %s: restored", instance.name)
        instance.start()

    def _new(self, instance_id: str, target: str, plugin: Plugin, tls: DialTls | None) -> GrpcInstance:
        return GrpcInstance(
            instance_id,
            target,
            plugin,
            Mode.REGISTERED,
            self._instances.settings,
            self._resolver,
            self._confirm,
            self._instances.changed,
            tls,
        )

    def _ttl(self, request: registry_service_pb2.RegisterRequest) -> float:
        if not request.HasField("ttl"):
            return self._instances.settings.remote_lease_seconds
        wanted = request.ttl.seconds + request.ttl.nanos / 1e9
        if wanted <= 0:
            raise invalid("ttl", f"got {wanted:g}s, wanted more than 0")
        return min(max(wanted, _MIN_LEASE_SECONDS), _MAX_LEASE_SECONDS)

    def _tls(self, profile: str) -> DialTls | None:
        if not profile:
            return None
        if profile not in self._tls_profiles:
            raise invalid(
                "tls_profile", f"got {profile[:80]!r}, wanted a profile of the server's setting remote_tls"
            )
        return self._tls_profiles[profile]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for lease in self._leases.expire():
                self._expired()
                self._end(lease, f"the lease was not renewed within {lease.ttl:g} s")
            for instance in list(self._instances.by_id.values()):
                if instance.lease and instance.plugin:
                    self._check_rights(instance.lease.id, instance.owner, instance.plugin)
            self._instances.remove_superseded()

    async def _forget(self, lease_id: str, *, revoked: bool = False) -> None:
        # If the delete fails, the lease is restored at the next start and expires again.
        with suppress(StoreProblem):
            await (self._store.revoke(lease_id) if revoked else self._store.delete(lease_id))

    def _remove(self, instance: GrpcInstance, *, abort: bool = False, lost: str = "") -> None:
        """Take an instance out of rotation and disconnect it. lost: as of InstanceRegistry."""
        self._instances.remove(instance, lost)
        self._disconnecting.add(instance)
        self._in_background(self._close(instance, abort=abort))

    async def _close(self, instance: GrpcInstance, *, abort: bool) -> None:
        await (instance.abort() if abort else instance.close())
        await instance.closed()
        self._disconnecting.discard(instance)

    async def _drained(self, instance: GrpcInstance, ttl: float) -> None:
        await instance.idle()
        self._instances.remove(instance)
        self._instances.supersede_after(instance, ttl)
        await self._close(instance, abort=False)

    def _confirm(self, instance: GrpcInstance, plugin: Plugin) -> None:
        """Raise Refusal if the target offers other types than registered, or another schema than live instances."""
        registered = instance.plugin
        assert registered is not None
        if not registered.same_types(plugin):
            offered = ", ".join(f"{one.name} {one.version}" for one in plugin.types)
            raise Refusal(
                "PLUGIN_DIFFERS",
                f"target: Describe returns types, versions or schemas other than the registered ones: {offered}",
                "target",
            )
        self._instances.check(registered, instance, principal=instance.owner)
        self._instances.bind(instance, registered, live=True)

    def _in_background(self, work: "Coroutine[None, None, None]") -> None:
        task = asyncio.create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


def _is_same(
    instance: GrpcInstance, request: registry_service_pb2.RegisterRequest, tls: DialTls | None
) -> bool:
    # A draining instance ends with its last task, even if its plugin registers again.
    return (
        instance.state is not InstanceState.DRAINING
        and instance.target == request.target
        and instance.tls is tls
        and instance.plugin is not None
        and instance.plugin.pb == request.plugin
        and instance.refused is None
    )
