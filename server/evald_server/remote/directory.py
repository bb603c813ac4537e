"""All instances and the pools that they make up, and every change of that."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from evald.evaluator import EvaluatorDefinition

from .evaluator import RemoteEvaluator, TaskTally
from .instance import Instance
from .limits import Limits
from .offer import Key, Offer, Plugin
from .pool import Pool
from .refusal import Refusal
from .task import TaskIds

_log = logging.getLogger("evald.remote")

# A watcher that falls further behind than this starts again from a snapshot.
_CHANGES_KEPT: Final = 2000


class Catalogue(Protocol):
    """The types of the server, of which the remote ones are kept up to date here."""

    def is_taken(self, type: str, /) -> bool:  # noqa: A002 - the word of the contract
        """Whether a type that is not remote has that name."""

    def offer(self, definition: EvaluatorDefinition, /) -> None:
        """A remote type, or a version of one, that was not there."""

    def replace(self, definition: EvaluatorDefinition, /) -> None:
        """Give a remote version another definition."""

    def set_instances(self, type: str, version: str, count: int, /) -> None:  # noqa: A002 - as above
        """How many live instances a version has."""

    def remove(self, type: str, version: str, /) -> None:  # noqa: A002 - as above
        """A version is forgotten."""


@dataclass(frozen=True, slots=True)
class Change:
    """The last change of an instance. instance: None when it went away."""

    revision: int
    instance_id: str
    instance: Instance | None


class RevisionGone(LookupError):
    """The changes after that revision are no longer, or not yet, known."""


class Directory:
    """Instances by id, pools by type and version."""

    def __init__(
        self,
        catalogue: Catalogue,
        limits: Limits,
        tally: Callable[[str], TaskTally],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._clock = clock
        self.ids = TaskIds()
        self.revision = 0
        self.instances: dict[str, Instance] = {}
        self.pools: dict[Key, Pool] = {}
        self._catalogue = catalogue
        self._tally = tally
        self._changes: deque[tuple[int, str]] = deque(maxlen=_CHANGES_KEPT)
        self._watchers: list[Callable[[], None]] = []
        self._shown: dict[Key, int] = {}
        # Types that were forgotten, as long as a plan still asks them: the open session or batch that has it
        # goes on when an instance comes back.
        self._forgotten: WeakValueDictionary[Key, Pool] = WeakValueDictionary()

    def check(self, plugin: Plugin, replaced: Instance | None = None, path: str = "plugin") -> None:
        """Raise Refusal when the server cannot take this plugin's types. replaced: goes away for it."""
        if replaced is None and len(self.instances) >= self.limits.instances:
            raise Refusal(
                "TOO_MANY_REMOTES", f"{len(self.instances)} instances are registered, which is the limit"
            )
        for index, offer in enumerate(plugin.offers):
            place = f"{path}.evaluator_types[{index}]"
            if self._catalogue.is_taken(offer.type):
                raise Refusal(
                    "TYPE_TAKEN",
                    f'{place}.type: "{offer.type}" is an evaluator of the server itself; a plugin cannot '
                    "replace it. Put your own prefix before it",
                    f"{place}.type",
                )
            pool = self.pools.get(offer.key)
            others = [one for one in pool.instances if one is not replaced] if pool else []
            if pool is not None and others and pool.offer.fingerprint != offer.fingerprint:
                raise Refusal(
                    "SCHEMA_DIFFERS",
                    f'{place}: "{offer.type}" in version "{offer.version}" has another kind or config schema '
                    f"on {len(others)} other instances. Give it a new version",
                    place,
                )

    def add(self, instance: Instance) -> None:
        """Take an instance in. What it offers has been checked."""
        if instance.plugin is not None:
            self.bind(instance, instance.plugin)
        self.instances[instance.id] = instance
        self.changed(instance)

    def bind(self, instance: Instance, plugin: Plugin) -> None:
        """Say what an instance offers. Raises Refusal when there is no room for its types."""
        before = instance.pools
        instance.plugin = plugin
        pools = [self._pool(offer) for offer in plugin.offers]
        instance.pools = pools
        for pool in before:
            if pool not in pools:
                pool.discard(instance)
                self._show(pool)
        for pool in pools:
            if pool not in before:
                pool.add(instance)
            self._show(pool)

    def remove(self, instance: Instance) -> None:
        """An instance is gone. Its types stay, unavailable if it was the last one."""
        if self.instances.get(instance.id) is not instance:
            return
        del self.instances[instance.id]
        for pool in instance.pools:
            pool.discard(instance)
            self._show(pool)
            pool.wake()
        self._note(instance.id)

    def said_goodbye(self, instance: Instance, seconds: float) -> None:
        """An instance that has been removed went on purpose: types that nobody else offers leave the catalogue
        in so many seconds. Those of an instance that was lost stay, unavailable."""
        for pool in instance.pools:
            pool.leave_after(seconds)

    def forget_left(self) -> None:
        """Forget the types whose last instance has said goodbye, and whose time is over."""
        for pool in [pool for pool in self.pools.values() if pool.has_left()]:
            _log.info(
                "remote type %s %s: nobody offers it any more; it leaves the catalogue", *pool.offer.key
            )
            self._forget(pool)

    def changed(self, instance: Instance) -> None:
        """The state of an instance is another one."""
        if self.instances.get(instance.id) is not instance:
            return
        for pool in instance.pools:
            pool.note(instance)
            self._show(pool)
            pool.wake()
        self._note(instance.id)

    def changes_after(self, revision: int) -> list[Change]:
        """The instances that have changed since, each once, as they are now. Raises RevisionGone."""
        oldest = self.revision - len(self._changes)
        if not oldest <= revision <= self.revision:
            raise RevisionGone(
                f"revision {revision} is not known; this server knows {oldest} to {self.revision}"
            )
        last: dict[str, int] = {}
        # From the end, because a watcher is usually a few changes behind.
        for number, instance_id in reversed(self._changes):
            if number <= revision:
                break
            last.setdefault(instance_id, number)
        return [
            Change(number, instance_id, self.instances.get(instance_id))
            for instance_id, number in reversed(last.items())
        ]

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after every change. Returns what ends that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many instances there are by type, mode and state. From any thread.

        A type without any has 0 active ones, so that an alert can tell it from one that nobody knows.
        """
        found = {(pool.offer.type, pool.mode, "active"): 0 for pool in list(self.pools.values())}
        for instance in list(self.instances.values()):
            mode, state = instance.mode.name.lower(), instance.shown_state.name.lower()
            for pool in instance.pools:
                key = pool.offer.type, mode, state
                found[key] = found.get(key, 0) + 1
        return found

    def open_circuits(self) -> int:
        """How many instances have an open circuit. From any thread."""
        return sum(instance.breaker.is_open for instance in list(self.instances.values()))

    def _pool(self, offer: Offer) -> Pool:
        pool = self.pools.get(offer.key)
        if pool is not None:
            if pool.offer.fingerprint != offer.fingerprint:
                pool.offer = offer
                self._catalogue.replace(self._evaluator(pool).definition())
            return pool
        if len(self.pools) >= self.limits.types:
            self._forget_one()
        pool = self._forgotten.pop(offer.key, None) or Pool(offer, self.limits, self._clock)
        pool.offer = offer
        self._catalogue.offer(self._evaluator(pool).definition())
        self.pools[offer.key] = pool
        self._shown[offer.key] = 0
        return pool

    def _evaluator(self, pool: Pool) -> RemoteEvaluator:
        return RemoteEvaluator(pool, self.limits, self.ids, self._tally(pool.offer.type))

    def _forget_one(self) -> None:
        """Make room by forgetting the type that has had no instance for the longest time."""
        empty: Sequence[Pool] = [pool for pool in self.pools.values() if not pool.instances]
        if not empty:
            raise Refusal(
                "TOO_MANY_REMOTES", f"{len(self.pools)} remote evaluator types are known, which is the limit"
            )
        self._forget(min(empty, key=lambda pool: pool.since))

    def _forget(self, pool: Pool) -> None:
        key = pool.offer.key
        del self.pools[key], self._shown[key]
        self._forgotten[key] = pool
        self._catalogue.remove(*key)

    def _show(self, pool: Pool) -> None:
        """Tell the catalogue how many live instances a type has."""
        live = pool.live
        if self._shown.get(pool.offer.key, live) != live:
            self._shown[pool.offer.key] = live
            self._catalogue.set_instances(*pool.offer.key, live)

    def _note(self, instance_id: str) -> None:
        self.revision += 1
        self._changes.append((self.revision, instance_id))
        for watcher in list(self._watchers):
            watcher()
