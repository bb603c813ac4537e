"""Plugins that listen where the operator's config says so."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .connection import Tls
from .dialled import Dialled
from .directory import Directory
from .instance import Mode
from .offer import Plugin
from .targets import Resolver
from .workers import STATIC_PREFIX


class StaticTarget(NamedTuple):
    """One target of the config. tls_profile: "" for none."""

    target: str
    tls_profile: str = ""


class Statics:
    """The instances of the config. They are never given up, and offer what they say at each connection."""

    def __init__(
        self,
        directory: Directory,
        targets: Iterable[StaticTarget],
        tls_profiles: Mapping[str, Tls],
    ) -> None:
        self._directory = directory
        resolver = Resolver(None)
        self._instances = [
            Dialled(
                f"{STATIC_PREFIX}{one.target}",
                one.target,
                None,
                Mode.STATIC,
                directory.limits,
                resolver,
                self._confirm,
                directory.changed,
                tls_profiles[one.tls_profile] if one.tls_profile else None,
            )
            for one in targets
        ]

    def start(self) -> None:
        """Begin to dial."""
        for instance in self._instances:
            self._directory.add(instance)
            instance.start()

    async def stop(self) -> None:
        """End all connections."""
        await asyncio.gather(*(instance.cut() for instance in self._instances))

    def _confirm(self, instance: Dialled, plugin: Plugin) -> None:
        self._directory.check(plugin, instance, "Describe")
        self._directory.bind(instance, plugin)
