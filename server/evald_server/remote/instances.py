"""All instances of a server, the pools of their types, and the changes of both."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from evald.evaluator import EvaluatorDefinition
from evald.v1 import evaluator_pb2
from evald_server.auth.audit import record
from evald_server.auth.principal import LOCAL, Principal
from evald_server.config import Settings
from evald_server.fair_slots import share
from evald_server.store.remote_types import StoredType

from .breaker import CircuitBreaker
from .errors import Refusal, invalid, printable
from .evaluator import LatencyObserver, RemoteEvaluator
from .instance import Instance, InstanceState, Mode, TaskIds
from .plugin_type import Key, Plugin, PluginType
from .pool import InstancePool

_log = logging.getLogger("evald.remote")

STATIC_PREFIX: Final = "static:"
"""Prefix of the ids of static targets."""

# A watcher that falls further behind than this starts again from a snapshot.
_MAX_CHANGES: Final = 2000
_MAX_ID_LENGTH: Final = 128

# Lost instances that are shown.
_MAX_LOST: Final = 100


class Catalogue(Protocol):
    """The server's registry of evaluator types."""

    def is_taken(self, type: str, /) -> bool:  # noqa: A002 - the word of the contract
        """Return whether a type that is not remote has this name."""

    def offer(self, definition: EvaluatorDefinition, /) -> None:
        """Add a version of a remote type."""

    def replace(self, definition: EvaluatorDefinition, /) -> None:
        """Replace the definition of a version."""

    def set_instances(self, type: str, version: str, count: int, /) -> None:  # noqa: A002 - as above
        """Set the number of live instances of a version."""

    def remove(self, type: str, version: str, /) -> None:  # noqa: A002 - as above
        """Remove a version."""


class TypeMemory(Protocol):
    """Remembers the types that were ever offered."""

    def remember(self, stored: StoredType, /) -> None:
        """Store a type."""

    def drop(self, key: Key, /) -> None:
        """Remove a type from the store."""


@dataclass(frozen=True, slots=True)
class InstanceChange:
    """The last change of an instance. instance: None if it was removed."""

    revision: int
    instance_id: str
    instance: Instance | None


class UnknownRevision(LookupError):
    """The changes after a revision are not known any more, or not yet."""


def check_instance_id(instance_id: str, field: str = "instance_id") -> None:
    """Raise Refusal if an id is invalid."""
    if (
        not 0 < len(instance_id) <= _MAX_ID_LENGTH
        or not instance_id.isascii()
        or not instance_id.isprintable()
    ):
        raise invalid(
            field, f"got {instance_id[:80]!r}, wanted 1 to {_MAX_ID_LENGTH} printable ASCII characters"
        )
    if instance_id.startswith(STATIC_PREFIX):
        raise invalid(
            field,
            f'got {instance_id[:80]!r}, wanted an id that does not start with "{STATIC_PREFIX}", which is reserved',
        )


def check_owner(instance: Instance, principal: Principal, field: str) -> None:
    """Raise Refusal, and log it, if an instance belongs to another principal."""
    if not principal.owns(instance.owner.name):
        text = f"{field}: the instance belongs to another principal"
        record("refused", principal, reason="NOT_OWNER", why=text)
        raise Refusal("NOT_OWNER", text, field)


def check_types(plugin: Plugin, principal: Principal, path: str = "plugin") -> None:
    """Raise Refusal if the principal may not offer all types of the plugin."""
    for index, plugin_type in enumerate(plugin.types):
        _check_type(plugin_type.name, f"{path}.evaluator_types[{index}]", principal)


def _check_type(name: str, place: str, principal: Principal) -> None:
    if not principal.may_offer(name):
        raise Refusal(
            "TYPE_NOT_ALLOWED",
            f'{place}.type: got "{name}", wanted a type that the key of {principal.name} allows: '
            f"{', '.join(principal.types) or 'it allows none'}",
            f"{place}.type",
        )


class InstanceRegistry:
    """Instances by id, pools by type and version.

    revision: counts the changes of instances. lost: lost instances by id, until others take their place.
    task_ids: for all tasks of this server.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        settings: Settings,
        latencies: Callable[[str], LatencyObserver],
        memory: TypeMemory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.task_ids = TaskIds()
        self.revision = 0
        self.by_id: dict[str, Instance] = {}
        self.lost: dict[str, Instance] = {}
        self.pools: dict[Key, InstancePool] = {}
        self._clock = clock
        self._catalogue = catalogue
        self._latencies = latencies
        self._memory = memory
        self._changes: deque[tuple[int, str]] = deque(maxlen=_MAX_CHANGES)
        self._watchers: list[Callable[[], None]] = []
        self._shown_counts: dict[Key, int] = {}
        # Pools of forgotten types that a plan still uses: an open session or batch continues when an instance
        # returns.
        self._forgotten: WeakValueDictionary[Key, InstancePool] = WeakValueDictionary()

    def check(
        self,
        plugin: Plugin,
        replaced: Instance | None = None,
        path: str = "plugin",
        principal: Principal = LOCAL,
    ) -> None:
        """Raise Refusal if the server cannot accept a plugin. replaced: the instance that it replaces."""
        most, name = self.settings.remote_max_instances, principal.name
        if replaced is None and len(self.by_id) >= most:
            raise Refusal(
                "TOO_MANY_REMOTES", f"{len(self.by_id)} instances are registered, which is the limit"
            )
        # What one principal registers must leave room for the plugins of others.
        own = [one for one in self.by_id.values() if one.owner.name == name and one is not replaced]
        types = {
            one.key for offered in (plugin, *(one.plugin for one in own)) if offered for one in offered.types
        }
        for what, count in (("instances", len(own) + 1), ("types", len(types))):
            if count > share(most, name):
                raise Refusal(
                    "TOO_MANY_REMOTES",
                    f"got {count} {what} of {name or 'plugins'}, wanted at most {share(most, name)} "
                    "(three quarters of remote_max_instances for one principal); deregister some",
                )
        for index, plugin_type in enumerate(plugin.types):
            place = f"{path}.evaluator_types[{index}]"
            name = plugin_type.name
            if self._catalogue.is_taken(name):
                raise Refusal(
                    "TYPE_TAKEN",
                    f'{place}.type: the server has its own evaluator "{name}", which a plugin cannot replace; '
                    f'add a prefix to the name, such as "acme.{name}"',
                    f"{place}.type",
                )
            _check_type(name, place, principal)
            pool = self.pools.get(plugin_type.key)
            if (
                pool is not None
                and pool.plugin_type.fingerprint != plugin_type.fingerprint
                and pool.has_others(replaced)
            ):
                raise Refusal(
                    "SCHEMA_DIFFERS",
                    f'{place}: "{name}" {plugin_type.version} has another kind or config schema on '
                    "other instances; give it a new version",
                    place,
                )

    def replaced_by(self, instance_id: str, mode: Mode, principal: Principal = LOCAL) -> Instance | None:
        """Return the instance that a new instance with this id replaces.

        Raises Refusal if it has another mode or belongs to another principal.
        """
        old = self.by_id.get(instance_id)
        if old is not None:
            check_owner(old, principal, "instance_id")
            if old.mode is not mode:
                raise Refusal(
                    "INSTANCE_ID_TAKEN",
                    f'instance_id: "{instance_id}" is in use by an instance that is {old.mode.name.lower()}; '
                    "each process needs its own id, and so does each way to connect",
                    "instance_id",
                )
        return old

    def add(self, instance: Instance) -> None:
        """Add an instance whose plugin has been checked. Raises Refusal if there is no room for its types."""
        if instance.plugin is not None:
            self.bind(instance, instance.plugin, live=instance.state is InstanceState.ACTIVE)
        self.by_id[instance.id] = instance
        self._replace_lost(instance)
        self.changed(instance)

    def bind(self, instance: Instance, plugin: Plugin, *, live: bool) -> None:
        """Set the plugin of an instance. Raises Refusal if there is no room for its types.

        live: the instance itself has just described them. The first live one replaces what was remembered.
        """
        before = [pool for pool in self._pools_of(instance) if instance in pool.instances]
        pools = [self._pool(plugin_type, instance, live=live) for plugin_type in plugin.types]
        instance.plugin = plugin
        instance.breakers = defaultdict(
            CircuitBreaker, {pool.key: instance.breakers[pool.key] for pool in pools}
        )
        if live:
            for pool, pb in zip(pools, plugin.pb.evaluator_types, strict=True):
                self._remember(pool, pb, plugin.name, instance.owner.name)
        instance.waiting = pools
        for pool in before:
            if pool not in pools:
                pool.discard(instance)
                self._show_count(pool)
        for pool in pools:
            if pool not in before:
                pool.add(instance)
            self._show_count(pool)

    def remove(self, instance: Instance, lost: str = "") -> None:
        """Remove an instance. Its types stay, unavailable if it was the last instance.

        lost: why it was lost; "" if it left gracefully or was removed.
        """
        if self.by_id.get(instance.id) is not instance:
            return
        del self.by_id[instance.id]
        if lost:
            self._lose(instance, lost)
        for pool in self._pools_of(instance):
            pool.discard(instance)
            self._show_count(pool)
            pool.wake()
        self._record_change(instance.id)

    def supersede_after(self, instance: Instance, seconds: float) -> None:
        """Let other versions supersede, after `seconds`, those that only a removed instance offered.

        A type without any live version stays in the catalogue, unavailable: its calls are errors of one evaluator,
        and an alert can fire.
        """
        for pool in self._pools_of(instance):
            pool.remove_after(seconds)

    def remove_superseded(self) -> None:
        """Forget the versions that are due, if instances offer another version of the type."""
        for due in [pool for pool in self.pools.values() if pool.is_due()]:
            if any(pool.live and pool.key[0] == due.key[0] for pool in self.pools.values()):
                _log.info(
                    "remote type %s %s: removed from the catalogue, because instances offer another version",
                    *due.key,
                )
                self.forget(due)

    def restore(self, plugin_type: PluginType, stored: StoredType) -> None:
        """Add a remembered type, unavailable until somebody offers it again. Raises Refusal if there is no room."""
        if self._catalogue.is_taken(plugin_type.name):
            raise Refusal("TYPE_TAKEN", "the server has its own evaluator of that name")
        if len(self.pools) >= self.settings.remote_max_instances:
            raise Refusal("TOO_MANY_REMOTES", f"{len(self.pools)} types are known, which is the limit")
        self._add_pool(InstancePool(plugin_type, self.settings, self._clock, stored=stored))

    def forget(self, pool: InstancePool) -> None:
        """Remove a type without instances from the catalogue and from the store."""
        key = pool.key
        del self.pools[key], self._shown_counts[key]
        pool.stored = None
        self._forgotten[key] = pool
        self._catalogue.remove(*key)
        self._memory.drop(key)
        self.lost = {name: instance for name, instance in self.lost.items() if self._pools_of(instance)}

    def changed(self, instance: Instance) -> None:
        """Propagate the state of an instance to its pools and the watchers."""
        if self.by_id.get(instance.id) is not instance:
            return
        for pool in self._pools_of(instance):
            pool.update(instance)
            self._show_count(pool)
            pool.wake()
        self._record_change(instance.id)

    def changes_after(self, revision: int) -> list[InstanceChange]:
        """Return the instances changed since a revision, each once, in their current state. Raises UnknownRevision."""
        oldest = self.revision - len(self._changes)
        if not oldest <= revision <= self.revision:
            raise UnknownRevision(
                f"revision {revision} is not available; this server has {oldest} to {self.revision}"
            )
        last: dict[str, int] = {}
        # Backwards, because a watcher is usually only a few changes behind.
        for number, instance_id in reversed(self._changes):
            if number <= revision:
                break
            last.setdefault(instance_id, number)
        return [
            InstanceChange(number, instance_id, self.by_id.get(instance_id))
            for instance_id, number in reversed(last.items())
        ]

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change. Returns a function that stops this."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Return the number of instances by type, mode and state. Thread-safe.

        A type without instances has 0 active ones, so that an alert can tell it from an unknown type.
        """
        counts = {(pool.plugin_type.name, pool.mode, "active"): 0 for pool in list(self.pools.values())}
        for instance in list(self.by_id.values()):
            mode = instance.mode.name.lower()
            for plugin_type in instance.plugin.types if instance.plugin else ():
                key = plugin_type.name, mode, instance.state_for(plugin_type.key).name.lower()
                counts[key] = counts.get(key, 0) + 1
        return counts

    def open_circuits(self) -> int:
        """Return the number of instances with an open circuit. Thread-safe."""
        return sum(
            any(breaker.is_open for breaker in list(instance.breakers.values()))
            for instance in list(self.by_id.values())
        )

    def queued(self) -> int:
        """Return the number of calls that wait for an instance."""
        return sum(pool.queued for pool in self.pools.values())

    def _pools_of(self, instance: Instance) -> list[InstancePool]:
        types = instance.plugin.types if instance.plugin else ()
        return [self.pools[one.key] for one in types if one.key in self.pools]

    def _lose(self, instance: Instance, why: str) -> None:
        """Show an instance as lost, in the log and to operators."""
        instance.lost, instance.last_error = time.time(), printable(why)
        instance.lost_tasks = instance.lost_tasks or instance.active
        _log.warning(
            "remote instance %s: disconnected, lost with %d open tasks: %s",
            instance.name,
            instance.lost_tasks,
            instance.last_error,
        )
        instance.state = InstanceState.LOST
        self.lost[instance.id] = instance
        if len(self.lost) > _MAX_LOST:
            del self.lost[next(iter(self.lost))]

    def _replace_lost(self, instance: Instance) -> None:
        """Stop showing the lost instance whose place another one takes: the one with its id, else with its types."""
        keys = {plugin_type.key for plugin_type in instance.plugin.types} if instance.plugin else set()
        before = self.lost.get(instance.id) or next(
            (
                lost
                for lost in self.lost.values()
                if lost.plugin and {plugin_type.key for plugin_type in lost.plugin.types} <= keys
            ),
            None,
        )
        if before is not None:
            del self.lost[before.id]

    def _remember(
        self, pool: InstancePool, pb: evaluator_pb2.EvaluatorType, plugin: str, principal: str
    ) -> None:
        offered = pool.stored.offered if pool.stored else time.time_ns() // 1000
        stored = StoredType(*pool.key, pb.SerializeToString(deterministic=True), plugin, principal, offered)
        if stored != pool.stored:
            pool.stored = stored
            self._memory.remember(stored)

    def _pool(self, plugin_type: PluginType, instance: Instance, *, live: bool) -> InstancePool:
        """Return the pool of a type that an instance offers. Raises Refusal if there is no room for another type."""
        key = plugin_type.key
        pool = self.pools.get(key)
        if pool is not None:
            # Instances may send different labels and other texts for a type: the first instance's description is used.
            if live and pool.plugin_type.digest != plugin_type.digest and not pool.has_others(instance):
                pool.plugin_type = plugin_type
                self._catalogue.replace(self._definition(pool))
            return pool
        if len(self.pools) >= self.settings.remote_max_instances:
            self._forget_oldest()
        pool = self._forgotten.pop(key, None) or InstancePool(plugin_type, self.settings, self._clock)
        pool.plugin_type = plugin_type
        self._add_pool(pool)
        return pool

    def _add_pool(self, pool: InstancePool) -> None:
        self._catalogue.offer(self._definition(pool))
        self.pools[pool.key] = pool
        self._shown_counts[pool.key] = 0

    def _definition(self, pool: InstancePool) -> EvaluatorDefinition:
        latencies = self._latencies(pool.plugin_type.name)
        return RemoteEvaluator(pool, self.settings, self.task_ids, latencies).definition()

    def _forget_oldest(self) -> None:
        """Forget the type that has had no instances for the longest time. Raises Refusal if all types have some."""
        empty = [pool for pool in self.pools.values() if not pool.instances]
        if not empty:
            raise Refusal(
                "TOO_MANY_REMOTES", f"{len(self.pools)} remote evaluator types are known, which is the limit"
            )
        self.forget(min(empty, key=lambda pool: pool.since))

    def _show_count(self, pool: InstancePool) -> None:
        """Report the number of live instances to the catalogue."""
        key = pool.key
        if self._shown_counts.get(key, pool.live) != pool.live:
            self._shown_counts[key] = pool.live
            self._catalogue.set_instances(*key, pool.live)

    def _record_change(self, instance_id: str) -> None:
        self.revision += 1
        self._changes.append((self.revision, instance_id))
        for watcher in list(self._watchers):
            watcher()
