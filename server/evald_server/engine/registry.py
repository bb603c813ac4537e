"""The registry of evaluator types, with a log of its changes."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from evald.evaluator import EvaluatorDefinition
from evald.fields import nearest
from evald.foreign import guarded

# A watcher that falls further behind must start again from a snapshot.
_CHANGES_KEPT: Final = 1000


class Origin(IntEnum):
    """Where a type runs. Has the numbers of the contract's EvaluatorType.Origin."""

    BUILT_IN = 1
    REMOTE = 2
    PLUGIN = 3


class State(IntEnum):
    """Whether a type can be called. Has the numbers of the contract's EvaluatorType.State."""

    ACTIVE = 1
    UNAVAILABLE = 2


class DuplicateType(ValueError):
    """The name is already registered."""


class UnknownType(LookupError):
    """The type, or that version of it, does not exist."""


class RevisionExpired(LookupError):
    """The changes after that revision are not available."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a type. auto_config: its config if it runs on every call, else None."""

    definition: EvaluatorDefinition
    origin: Origin
    state: State = State.ACTIVE
    auto_config: Mapping[str, Any] | None = None
    instance_count: int = 0


class Found(NamedTuple):
    """The result of a lookup: a type, and the config keys that its alias implies."""

    entry: Entry
    implied: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One change. entry: None if the type was removed."""

    revision: int
    type: str
    version: str
    entry: Entry | None


class Registry:
    """The evaluator types by name and alias. `_` in a name is read as `-`.

    Remote types may have several versions at a time. A name without a version means the default one: the version with
    the most live instances, so that the first instance of a new version does not get the whole load.

    revision: of the last change. plans_revision: of the last change that made existing plans outdated.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.plans_revision = 0
        self._entries: dict[str, Entry] = {}  # the default versions
        self._versions: dict[str, dict[str, Entry]] = {}
        self._aliases: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._changes: deque[Change] = deque(maxlen=_CHANGES_KEPT)
        self._watchers: list[Callable[[], None]] = []

    def register(
        self,
        definition: EvaluatorDefinition,
        origin: Origin,
        auto_config: Mapping[str, Any] | None = None,
        state: State = State.ACTIVE,
    ) -> None:
        """Add a type. Raises DuplicateType if its name or one of its aliases is taken."""
        if origin is Origin.PLUGIN:
            definition = guarded(definition)
        for name in (definition.type, *definition.aliases):
            taken = self.get(name)
            if taken is not None and not self._is_new_version(taken, definition, origin):
                whose, which = (
                    ("built-in", "built-in") if taken.origin is Origin.BUILT_IN else ("custom", "existing")
                )
                raise DuplicateType(
                    f'Evaluator type "{name}" is already registered ({whose}). '
                    f"Custom evaluators cannot override {which} types."
                )
        if auto_config is None and definition.auto:
            auto_config = {}
        for alias, implied in definition.aliases.items():
            self._aliases[alias] = (definition.type, implied)
        self._put(Entry(definition, origin, state, auto_config))

    def offer(self, definition: EvaluatorDefinition) -> None:
        """Add a remote type, or a version of one. Raises DuplicateType."""
        # It is available once an instance is connected.
        self.register(definition, Origin.REMOTE, state=State.UNAVAILABLE)

    def is_taken(self, name: str) -> bool:
        """Return whether the name or alias belongs to a type that is not remote."""
        entry = self.get(name)
        return entry is not None and entry.origin is not Origin.REMOTE

    def replace(self, definition: EvaluatorDefinition) -> None:
        """Replace the definition of a remote version. Raises KeyError if there is no such version."""
        self._put(replace(self._versions[definition.type][definition.version], definition=definition))

    def set_instances(self, type: str, version: str, count: int) -> None:  # noqa: A002 - the word of the contract
        """Set the number of live instances of a remote version. Raises KeyError if there is no such version.

        Existing plans stay valid unless the default version changes.
        """
        state = State.ACTIVE if count else State.UNAVAILABLE
        self._put(replace(self._versions[type][version], state=state, instance_count=count), keeps_plans=True)

    def set_auto(self, name: str, config: Mapping[str, Any] | None) -> None:
        """Run a type on every call with this config; None stops that."""
        definition = self.find(name).entry.definition
        for entry in list(self._versions[definition.type].values()):
            self._put(replace(entry, auto_config=config))

    def set_state(self, name: str, state: State) -> None:
        """Set whether a type that is not remote can be called. Existing plans stay valid."""
        entry = self.find(name).entry
        if entry.state is not state:
            self._put(replace(entry, state=state), keeps_plans=True)

    def remove(self, type: str, version: str = "") -> None:  # noqa: A002 - as above
        """Remove a type, or one of its versions."""
        versions = self._versions[type]
        for name in [version] if version else list(versions):
            entry = versions.pop(name)
            for alias in entry.definition.aliases:
                del self._aliases[alias]
            if not versions:
                del self._versions[type], self._entries[type]
            elif self._entries[type] is entry:
                self._entries[type] = _default(versions.values(), None)
            self._changed(type, name, keeps_plans=False)

    def get(self, name: str) -> Entry | None:
        """Return the type with this name or alias, or None."""
        found = self._lookup(name)
        return found.entry if found else None

    def find(self, name: str, version: str = "") -> Found:
        """Return the type with this name or alias. Raises UnknownType, which suggests the nearest name."""
        found = self._lookup(name)
        if found is None:
            near = nearest(name.lower().replace("_", "-"), [*self._entries, *self._aliases], cutoff=0.5)
            hint = f'; did you mean "{near}"?' if near else "."
            raise UnknownType(
                f'unknown evaluator type "{name[:100]}"{hint} Known types: {", ".join(sorted(self._entries))}'
            )
        if not version:
            return found
        versions = self._versions[found.entry.definition.type]
        if version not in versions:
            offered = ", ".join(f'"{known}"' for known in sorted(versions))
            raise UnknownType(
                f'evaluator type "{name[:100]}" has no version "{version[:40]}", only {offered}'
            )
        return found._replace(entry=versions[version])

    def types(self) -> list[Entry]:
        """Return all types in all versions, ordered by name and version."""
        return [
            entry for _, versions in sorted(self._versions.items()) for _, entry in sorted(versions.items())
        ]

    def autos(self) -> "list[Entry]":
        """Return the types that run on every call, in their default version, ordered by name."""
        return [entry for _, entry in sorted(self._entries.items()) if entry.auto_config is not None]

    def changes_after(self, revision: int) -> "list[Change]":
        """Return the changes after a revision. Raises RevisionExpired if they are not available."""
        oldest_known = self.revision - len(self._changes)
        if not oldest_known <= revision <= self.revision:
            raise RevisionExpired(
                f"revision {revision} is not known; this server knows {oldest_known} to {self.revision}"
            )
        return [change for change in self._changes if change.revision > revision]

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call a function after every change. Returns a function that unsubscribes."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def _is_new_version(self, entry: Entry, definition: EvaluatorDefinition, origin: Origin) -> bool:
        return (
            origin is entry.origin is Origin.REMOTE
            and entry.definition.type == definition.type
            and definition.version not in self._versions[definition.type]
        )

    def _lookup(self, name: str) -> Found | None:
        for spelling in (name, name.replace("_", "-")):
            canonical, implied = self._aliases.get(spelling, (spelling, {}))
            if canonical in self._entries:
                return Found(self._entries[canonical], implied)
        return None

    def _put(self, entry: Entry, *, keeps_plans: bool = False) -> None:
        """Add or replace a version of a type. keeps_plans: existing plans stay valid unless the default version changes."""
        name, version = entry.definition.type, entry.definition.version
        versions = self._versions.setdefault(name, {})
        versions[version] = entry
        before = self._entries[name].definition.version if name in self._entries else None
        default = self._entries[name] = _default(versions.values(), before)
        self._changed(name, version, keeps_plans=keeps_plans and default.definition.version == before)

    def _changed(self, name: str, version: str, *, keeps_plans: bool) -> None:
        self.revision += 1
        if not keeps_plans:
            self.plans_revision = self.revision
        entry = self._versions.get(name, {}).get(version)
        self._changes.append(Change(self.revision, name, version, entry))
        for watcher in list(self._watchers):
            watcher()


def _default(entries: Iterable[Entry], current: str | None) -> Entry:
    """Return the default version: the one with the most live instances; of several, the `current` one, so that plans
    stay valid, else the newest."""
    return max(
        entries,
        key=lambda entry: (
            entry.state is not State.UNAVAILABLE,
            entry.instance_count,
            entry.definition.version == current,
            _order(entry.definition.version),
        ),
    )


def _order(version: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 1.10.0 after 1.9.0."""
    parts = version.replace("-", ".").replace("+", ".").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
