"""Specs and options: the evaluators that a call runs, and how their results become one verdict."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from .errors import InvalidInput
from .fields import (
    flag,
    int32,
    join,
    milliseconds,
    number,
    read_keys,
    seconds,
    shown,
    snake,
    text,
    weight,
)
from .records import camel

When = Literal["every_turn", "final"]
OnError = Literal["fail_closed", "fail_open"]
Aggregation = Literal["all_must_pass", "weighted_mean"]
Reasoning = Literal["strip", "keep"]
CriteriaPolicy = Literal["both", "evaluators_only"]

# Every spelling of a value, including the contract's names. `_named` creates the other tables.
_WHEN: Final = {
    "every_turn": "every_turn",
    "final": "final",
    "turn_policy_every_turn": "every_turn",
    "turn_policy_final_turn": "final",
}
_ENFORCEMENT: Final = {
    "enforced": False,
    "shadow": True,
    "enforcement_enforced": False,
    "enforcement_shadow": True,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """An evaluator to run, with its config and its effect on the verdict.

    type: type name in the catalogue, or an alias.
    config: JSON-like config of the evaluator.
    name: name in results; "" means the type. The second use of a name gets "#2", and so on.
    version: exact version; "" means the server's default.
    when: run on every turn, or only on the final turn.
    weight: weight in the weighted mean, 0 or from 1e-9 to 1e9; None means 1.
    required: its failure fails the turn under every policy.
    threshold: lowest score that passes, 0 to 1; None means that the evaluator decides.
    negate: swap PASSED and FAILED; ERROR and SKIPPED are unchanged. Not for metrics.
    shadow: run and report it without effect on the verdict.
    on_error: fail_closed: its error makes the call inconclusive; fail_open: its error only gives a warning;
        None: the server's default, normally fail_closed.
    timeout_seconds: time limit; None means the call's.
    reasoning: strip: read answers without the reasoning that the model left in them; keep: read the whole text.

    Raises InvalidInput for an invalid value.
    """

    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    name: str = ""
    version: str = ""
    when: When = "every_turn"
    weight: float | None = None
    required: bool = False
    threshold: float | None = None
    negate: bool = False
    shadow: bool = False
    on_error: OnError | None = None
    timeout_seconds: float | None = None
    reasoning: Reasoning = "strip"

    def __post_init__(self) -> None:
        _check(self, _SPEC_VALUES, "")

    @classmethod
    def from_dict(cls, data: "SpecLike", path: str = "") -> "Spec":
        """Create a spec from a type name, or from a mapping with keys in camelCase or snake_case.

        path: location of the data, for errors. Raises InvalidInput.
        """
        if isinstance(data, Spec):
            return data
        if isinstance(data, str):
            return cls(data)
        if not isinstance(data, Mapping):
            raise InvalidInput(path, shown(data), "a type name, an object with a `type`, or a Spec")
        found = read_keys(data, _SPEC_KEYS, path)
        if not found.get("type"):
            raise InvalidInput(join(path, "type"), "missing", "an evaluator's type name")
        return cls(**_values(found, _SPEC_VALUES, path))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data in camelCase, without defaults."""
        return _without_defaults(self, {"type": self.type})


SpecLike: TypeAlias = Spec | Mapping[str, Any] | str
"""A spec in any form: a type name, a mapping, or a Spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a call: how to run its evaluators and aggregate their results.

    aggregation: every assertion must pass, or the weighted mean of the scores must reach `threshold`.
    threshold: lowest weighted mean that passes, 0 to 1; None means 0.8. Only for "weighted_mean".
    fail_fast: stop as soon as the call certainly fails; the remaining evaluators are SKIPPED.
    max_concurrency: maximum concurrent evaluators; 0 means the server's default.
    skip_auto_evaluators: do not run the evaluators that the server adds to every call.
    include_progress: send the progress that evaluators report before they finish. For `stream`.
    timeout_seconds: time limit on the server. When it expires, the call still returns an evaluation, in which
        the unfinished evaluators have errors. None means only the call's deadline.
    skip_cache: use no cached results.
    criteria_policy: whether a scenario's criteria run in addition to the evaluators.

    Raises InvalidInput for an invalid value.
    """

    aggregation: Aggregation = "all_must_pass"
    threshold: float | None = None
    fail_fast: bool = False
    max_concurrency: int = 0
    skip_auto_evaluators: bool = False
    include_progress: bool = False
    timeout_seconds: float | None = None
    skip_cache: bool = False
    criteria_policy: CriteriaPolicy = "both"

    def __post_init__(self) -> None:
        _check(self, _OPTIONS_VALUES, "options")
        if self.threshold is not None and self.aggregation != "weighted_mean":
            raise InvalidInput(
                "options.threshold",
                f"{shown(self.threshold)} with aggregation {self.aggregation!r}, which has no threshold",
                "aggregation 'weighted_mean' with it",
            )

    @classmethod
    def from_dict(cls, data: "OptionsLike", path: str = "options") -> "Options":
        """Create options from a mapping with keys in camelCase or snake_case. Raises InvalidInput."""
        if isinstance(data, Options):
            return data
        return cls(**_values(read_keys(data, _OPTIONS_KEYS, path), _OPTIONS_VALUES, path))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data in camelCase, without defaults."""
        return _without_defaults(self, {})


OptionsLike: TypeAlias = Options | Mapping[str, Any]
"""Options, or a mapping of them."""


def specs(evaluators: Iterable[SpecLike]) -> list[Spec]:
    """Convert the evaluators of a call, or a single one, to specs. Raises InvalidInput with the index."""
    if isinstance(evaluators, str | Mapping | Spec):
        evaluators = [evaluators]
    if not isinstance(evaluators, Iterable):
        raise InvalidInput("evaluators", shown(evaluators), "a list of evaluators")
    return [Spec.from_dict(spec, f"evaluators[{index}]") for index, spec in enumerate(evaluators)]


def _values(found: Mapping[str, Any], readers: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Read the values of a mapping, by field name. Raises InvalidInput."""
    values = {key: readers[key](value, join(path, key)) for key, value in found.items()}
    for alias, name, convert in _ALIASES:
        if alias in values:
            if name in values:
                raise InvalidInput(join(path, alias), f"{name} is given as well", "one of the two")
            values[name] = convert(values.pop(alias))
    return values


def _check(record: Spec | Options, readers: Mapping[str, Any], path: str) -> None:
    """Check every field of a record by the rules for mappings. Raises InvalidInput."""
    for one in fields(record):
        value = getattr(record, one.name)
        if one.name in readers and (value is not None or one.default is not None):
            object.__setattr__(record, one.name, readers[one.name](value, join(path, one.name)))


def _named(enum: str, *values: str) -> dict[str, str]:
    """Return the spellings of values: the values themselves, and the names of the contract's enum."""
    return {spelled: value for value in values for spelled in (value, f"{enum}_{value}")}


def _choice(values: Mapping[str, Any]) -> Any:
    def read(value: Any, path: str) -> Any:
        known = values.get(snake(value)) if isinstance(value, str) else None
        if known is None:
            names = [name for name in values if "policy" not in name and "enforcement" not in name]
            raise InvalidInput(path, shown(value), " or ".join(map(repr, names)))
        return known

    return read


def _config(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(path, shown(value), "an object")
    return value


_SPEC_VALUES: Final[dict[str, Any]] = {
    "type": text,
    "config": _config,
    "name": text,
    "version": text,
    "when": _choice(_WHEN),
    "weight": weight,
    "required": flag,
    "threshold": number,
    "negate": flag,
    "shadow": flag,
    "on_error": _choice(_named("error_policy", "fail_closed", "fail_open")),
    "timeout_seconds": seconds,
    "reasoning": _choice(_named("reasoning_policy", "strip", "keep")),
    # Aliases of the above; see _ALIASES.
    "timeout_ms": milliseconds,
    "enforcement": _choice(_ENFORCEMENT),
    "only_final": flag,
}
_ALIASES: Final[tuple[tuple[str, str, Any], ...]] = (
    ("timeout_ms", "timeout_seconds", float),
    ("enforcement", "shadow", bool),
    ("only_final", "when", lambda only_final: "final" if only_final else "every_turn"),
)
_SPEC_KEYS: Final = {name: name for name in _SPEC_VALUES} | {
    "timeout": "timeout_seconds",
    "turn_policy": "when",
    "error_policy": "on_error",
}


def spec_keys() -> list[str]:
    """Return the keys of a spec in snake_case, for the schemas of files with specs."""
    return sorted(_SPEC_KEYS)


_OPTIONS_VALUES: Final[dict[str, Any]] = {
    "aggregation": _choice(_named("aggregation_policy", "all_must_pass", "weighted_mean")),
    "threshold": number,
    "fail_fast": flag,
    "max_concurrency": int32,
    "skip_auto_evaluators": flag,
    "include_progress": flag,
    "timeout_seconds": seconds,
    "skip_cache": flag,
    "criteria_policy": _choice(_named("criteria_policy", "both", "evaluators_only")),
    "timeout_ms": milliseconds,
}
_OPTIONS_KEYS: Final = {name: name for name in _OPTIONS_VALUES} | {"timeout": "timeout_seconds"}


def _without_defaults(record: Spec | Options, start: dict[str, Any]) -> dict[str, Any]:
    values = asdict(record)
    default = asdict(Spec("")) if isinstance(record, Spec) else asdict(Options())
    for name in (found.name for found in fields(record)):
        if values[name] != default[name]:
            start[camel(name)] = values[name]
    return start
