"""Which evaluator types this server offers, and every change of that."""

import difflib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from evald.evaluator import EvaluatorDefinition

# A watcher that falls further behind than this starts again from a snapshot.
_CHANGES_KEPT: Final = 1000


class Origin(IntEnum):
    """Where a type runs. Equal to the wire's EvaluatorType.Origin."""

    BUILT_IN = 1
    REMOTE = 2
    PLUGIN = 3


class State(IntEnum):
    """Whether a type can be called. Equal to the wire's EvaluatorType.State."""

    ACTIVE = 1
    UNAVAILABLE = 2
    DEPRECATED = 3


class DuplicateType(ValueError):
    """The name is taken."""


class UnknownType(LookupError):
    """No such type, or not in that version."""

    def __init__(self, message: str, suggestion: str | None) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class RevisionGone(LookupError):
    """The changes after that revision are no longer known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One type of the catalogue. `auto_config`: it runs on every call with this config."""

    definition: EvaluatorDefinition
    origin: Origin
    state: State = State.ACTIVE
    auto_config: Mapping[str, Any] | None = None
    deprecation: str = ""
    instance_count: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for: a type, and the config keys that the name implies."""

    entry: Entry
    implied: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `entry` is None when the type went away."""

    revision: int
    type: str
    version: str
    entry: Entry | None


class Registry:
    """The types by name and alias. A name may be written with `_` for `-`."""

    def __init__(self) -> None:
        self.revision = 0
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._changes: deque[Change] = deque(maxlen=_CHANGES_KEPT)
        self._listeners: list[Callable[[], None]] = []

    def register(
        self,
        definition: EvaluatorDefinition,
        origin: Origin,
        auto_config: Mapping[str, Any] | None = None,
        state: State = State.ACTIVE,
    ) -> None:
        """Add a type. Raises DuplicateType when its name or one of its aliases is taken."""
        for name in (definition.type, *definition.aliases):
            taken = self._lookup(name)
            if taken is not None:
                whose = "built-in" if taken.entry.origin is Origin.BUILT_IN else "custom"
                raise DuplicateType(
                    f'Evaluator type "{name}" is already registered ({whose}). '
                    f"Custom evaluators cannot override "
                    f"{'built-in' if whose == 'built-in' else 'existing'} types."
                )
        if auto_config is None and definition.auto:
            auto_config = {}
        self._entries[definition.type] = Entry(definition, origin, state, auto_config)
        for alias, implied in definition.aliases.items():
            self._aliases[alias] = (definition.type, implied)
        self._changed(definition.type)

    def set_auto(self, name: str, config: Mapping[str, Any] | None) -> None:
        """Have a type run on every call with this config, or, with None, no longer."""
        entry = self.find(name).entry
        self._entries[entry.definition.type] = replace(entry, auto_config=config)
        self._changed(entry.definition.type)

    def set_state(self, name: str, state: State) -> None:
        """Say whether a type can be called. Nothing changes when it is in that state already."""
        entry = self.find(name).entry
        if entry.state is not state:
            self._entries[entry.definition.type] = replace(entry, state=state)
            self._changed(entry.definition.type)

    def remove(self, type: str) -> None:  # noqa: A002 - the word of the contract
        """Take a type out."""
        entry = self._entries.pop(type)
        for alias in entry.definition.aliases:
            del self._aliases[alias]
        self._changed(type, entry.definition.version)

    def get(self, name: str) -> Entry | None:
        """The type of that name or alias, or None."""
        found = self._lookup(name)
        return found.entry if found else None

    def find(self, name: str, version: str = "") -> Found:
        """The type of that name or alias. Raises UnknownType, with the nearest name there is."""
        found = self._lookup(name)
        if found is None:
            near = difflib.get_close_matches(
                name.lower().replace("_", "-"), [*self._entries, *self._aliases], n=1, cutoff=0.5
            )
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise UnknownType(
                f'unknown evaluator type "{name[:100]}"{hint} Known types: {", ".join(sorted(self._entries))}'
                if hint
                else f'unknown evaluator type "{name[:100]}". Known types: {", ".join(sorted(self._entries))}',
                near[0] if near else None,
            )
        offered = found.entry.definition.version
        if version and version != offered:
            raise UnknownType(
                f'evaluator type "{name[:100]}" has no version "{version[:40]}", only "{offered}"', None
            )
        return found

    def types(self) -> list[Entry]:
        """All types, ordered by name."""
        return [self._entries[name] for name in sorted(self._entries)]

    def autos(self) -> "list[Entry]":
        """The types that run on every call, ordered by name."""
        return [entry for entry in self.types() if entry.auto_config is not None]

    def changes_after(self, revision: int) -> "list[Change]":
        """What changed since. Raises RevisionGone when that is no longer, or not yet, known."""
        oldest_known = self.revision - len(self._changes)
        if not oldest_known <= revision <= self.revision:
            raise RevisionGone(
                f"revision {revision} is not known; this server knows {oldest_known} to {self.revision}"
            )
        return [change for change in self._changes if change.revision > revision]

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after every change. Returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _lookup(self, name: str) -> Found | None:
        for spelling in (name, name.replace("_", "-")):
            if spelling in self._entries:
                return Found(self._entries[spelling])
            if spelling in self._aliases:
                canonical, implied = self._aliases[spelling]
                return Found(self._entries[canonical], implied)
        return None

    def _changed(self, name: str, version: str = "") -> None:
        self.revision += 1
        entry = self._entries.get(name)
        version = entry.definition.version if entry else version
        self._changes.append(Change(self.revision, name, version, entry))
        for listener in list(self._listeners):
            listener()
