"""Types that were ever offered: kept in the store, and in the catalogue after a restart."""

import asyncio
import logging
from typing import Final

from evald.plugin.v1 import task_pb2
from evald.v1 import evaluator_pb2
from evald_server.store.database import StoreProblem
from evald_server.store.remote_types import RemoteTypeStore, StoredType

from .errors import Refusal
from .instances import InstanceRegistry
from .plugin_type import CONTRACT, Key, Plugin, read_plugin

_log = logging.getLogger("evald.remote")

_RETRY_SECONDS: Final = 2.0


class RememberedTypes:
    """The stored types. A plugin that offers a type does not wait for the write; while the store fails, it is retried.

    Call `start`, then `stop`, each once.
    """

    def __init__(self, store: RemoteTypeStore) -> None:
        self._store = store
        self._unsaved: dict[Key, StoredType | None] = {}  # None: to be deleted
        self._saving: asyncio.Task[None] | None = None

    async def start(self, instances: InstanceRegistry) -> None:
        """Add the stored types to the catalogue. Raises StoreProblem if they cannot be read."""
        for stored in await self._store.load():
            try:
                # In a thread: a hundred schemas take a second.
                plugin = await asyncio.to_thread(_read, stored)
                instances.restore(plugin.types[0], stored)
            except Refusal as problem:
                _log.warning(
                    "remote type %s %s: not restored: %s", stored.type, stored.version, problem.message
                )

    async def stop(self) -> None:
        """Write what is not stored yet, if the store allows it."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        try:
            while self._unsaved:
                await self._save_next()
        except StoreProblem as problem:
            _log.warning("remote types are not stored: %s", problem.message)

    def remember(self, stored: StoredType) -> None:
        """Store a type."""
        self._save(stored.type, stored.version, stored)

    def drop(self, key: Key) -> None:
        """Remove a type from the store."""
        self._save(*key, None)

    async def forget(self, instances: InstanceRegistry, name: str, version: str = "") -> None:
        """Remove a type, or one version of it, for an operator.

        Raises Refusal if it is not known or an instance offers it, StoreProblem.
        """
        pools = [pool for pool in instances.pools.values() if pool.key == (name, version or pool.key[1])]
        named = f'"{name[:100]}"{f" {version[:40]}" if version else ""}'
        if not pools:
            raise Refusal(
                "RESOURCE_NOT_FOUND",
                f"type: no remote evaluator type {named} is known; `evald remotes` lists those that no instance offers",
                "type",
            )
        offering = [instance.id for pool in pools for instance in pool.instances]
        if offering:
            raise Refusal(
                "TYPE_OFFERED",
                f"type: {len(offering)} instances offer {named}, the first is {offering[0]}; stop them first",
                "type",
            )
        await self._store.delete([pool.key for pool in pools])
        for pool in pools:
            if not pool.instances and instances.pools.get(pool.key) is pool:
                instances.forget(pool)
            elif pool.stored is not None:
                # Somebody has offered it during the write.
                self.remember(pool.stored)

    def _save(self, name: str, version: str, stored: StoredType | None) -> None:
        self._unsaved[name, version] = stored
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_all())

    async def _save_all(self) -> None:
        while self._unsaved:
            try:
                await self._save_next()
            except StoreProblem as problem:
                _log.warning("remote types are not stored yet: %s", problem.message)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _save_next(self) -> None:
        key, stored = next(iter(self._unsaved.items()))
        await (self._store.delete([key]) if stored is None else self._store.put(stored))
        if self._unsaved.get(key) is stored:
            self._unsaved.pop(key, None)


def _read(stored: StoredType) -> Plugin:
    """Read a stored type like one that is offered. Raises Refusal."""
    offered = evaluator_pb2.EvaluatorType.FromString(stored.body)
    return read_plugin(
        task_pb2.PluginInfo(
            name=stored.plugin or stored.type, contract_versions=[CONTRACT], evaluator_types=[offered]
        )
    )
