"""One compiled spec of a plan."""

from dataclasses import dataclass, field

from evald.evaluator import Evaluate, EvaluatorDefinition
from evald.result import Kind, Metric, Provenance

from .registry import Origin


@dataclass(slots=True, eq=False)
class PlannedEvaluator:
    """One compiled spec.

    index: position in the plan, or among a combinator's children. evaluate: the compiled function.
    metric: unit and buckets of the measured value; None if it measures nothing.
    provenance: of all its results. timeout: seconds for this evaluator, or None.
    awaits_final: whether it, or a part of it, gives no verdict before the final turn.
    counts: whether it is an enforced assertion. conditional: whether it may be skipped or deferred.
    inline: whether it is a plain function that may run on the event loop.
    inverted: whether its failure can make the call pass, because an odd number of it and the enclosing specs is negated;
    None (unknown) inside a formula.
    adjusted: whether a threshold or negation changes its results. usual_score: of a result that passed.
    """

    index: int
    name: str
    definition: EvaluatorDefinition
    origin: Origin
    evaluate: Evaluate
    is_async: bool
    metric: Metric | None
    provenance: Provenance
    enforced: bool = True
    fail_open: bool = False
    weight: float = 1.0
    required: bool = False
    threshold: float | None = None
    negate: bool = False
    inverted: bool | None = False
    final_only: bool = False
    awaits_final: bool = False
    timeout: float | None = None
    counts: bool = field(init=False)
    is_metric: bool = field(init=False)
    inline: bool = field(init=False)
    conditional: bool = field(init=False)
    adjusted: bool = field(init=False)
    usual_score: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.is_metric = self.definition.kind is Kind.METRIC
        self.counts = self.enforced and not self.is_metric
        self.inline = self.definition.inline and not self.is_async
        self.conditional = self.final_only or not self.inline
        self.usual_score = None if self.is_metric else 1.0
        self.adjusted = self.negate or self.threshold is not None
