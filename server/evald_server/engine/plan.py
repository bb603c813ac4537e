"""The plan of a call (its compiled evaluators and options), and the limits of its specs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .aggregate import Policy
from .planned_evaluator import PlannedEvaluator
from .response_template import ResponseTemplate


class Criteria(NamedTuple):
    """A scenario's criteria in plain language; they become an implicit judge."""

    success: str
    failure: str
    failure_mode: str


class PlanLimits(NamedTuple):
    """Limits of one call. config_bytes: of one spec's config. cache_bytes: approximate memory of the cached plans."""

    evaluators: int = 100
    config_bytes: int = 256 << 10
    cache_bytes: int = 64 << 20

    @property
    def specs_bytes(self) -> int:
        """The limit for all specs of a call together: compiling a KiB holds the event loop for up to 0.7 ms."""
        return 2 * self.config_bytes


@dataclass(frozen=True, slots=True)
class Violation:
    """One problem of the specs.

    index: of the spec; None for a problem of the whole call. path: JSON Pointer into the spec.
    reason: stable code, for example UNKNOWN_TYPE.
    """

    index: int | None
    path: str
    reason: str
    message: str

    @property
    def field(self) -> str:
        """The field path: `evaluators[2].config.items[0].name`."""
        parts = [part for part in self.path.split("/") if part]
        if self.index is not None:
            path = f"evaluators[{self.index}]"
        elif not parts:
            return "evaluators"
        else:
            path, parts = parts[0], parts[1:]
        for part in parts:
            path += f"[{part}]" if part.isdigit() else f".{part}"
        return path


class InvalidPlan(ValueError):
    """The specs cannot be compiled. `unknown_type`: all violations are unknown types or versions."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = list(violations)
        self.unknown_type = all(v.reason in ("UNKNOWN_TYPE", "UNKNOWN_VERSION") for v in violations)
        # Messages about the whole call name the field themselves.
        super().__init__(
            "; ".join(v.message if v.index is None else f"{v.field}: {v.message}" for v in violations)
        )


def check_kinds(began: "Plan", plan: "Plan") -> None:
    """Raise InvalidPlan if an assertion has become a metric, because a metric cannot fail.

    began, plan: plans of the same specs, at the start of a stream and now.
    """
    if plan is began:
        return
    kinds = {evaluator.name: evaluator.is_metric for evaluator in began.evaluators}
    for evaluator in plan.evaluators:
        if evaluator.is_metric and not kinds.get(evaluator.name, True):
            message = (
                f'"{evaluator.name}" was an assertion at the start of this stream, but its type is a metric now; '
                "start again if this is intended"
            )
            raise InvalidPlan([Violation(evaluator.index, "/type", "NOT_AN_ASSERTION", message)])


@dataclass(slots=True, eq=False, weakref_slot=True)
class Plan:
    """The compiled specs and options of a call. Immutable; shared by all calls with the same specs.

    template: the messages that responses are copied from. waits: whether some evaluator may wait for a model, script,
    remote or thread. final_only: names of the enforced assertions that give no verdict before the final turn.
    metrics: the evaluators that measure.
    """

    evaluators: Sequence[PlannedEvaluator]
    template: ResponseTemplate
    policy: Policy
    threshold: float
    fail_fast: bool
    max_concurrency: int
    timeout: float | None
    include_progress: bool
    skip_cache: bool
    waits: bool = field(init=False)
    final_only: tuple[str, ...] = field(init=False)
    metrics: Sequence[PlannedEvaluator] = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = [evaluator for evaluator in self.evaluators if evaluator.is_metric]
        self.waits = not all(evaluator.inline for evaluator in self.evaluators)
        self.final_only = tuple(one.name for one in self.evaluators if one.counts and one.awaits_final)
