"""The provenance of a planned evaluator's results, which shows whether results of two plans are comparable."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from evald.evaluator import Evaluate, Evaluator, effective_config
from evald.result import Provenance
from evald.strict_json import canonical_json

from .planned_evaluator import PlannedEvaluator


def provenance_of(
    evaluate: Evaluate,
    config: Mapping[str, Any],
    *,
    threshold: float | None,
    negate: bool,
    keeps_reasoning: bool,
) -> Provenance:
    """Return the provenance of a compiled function.

    The object that the function is bound to may have two attributes. `config`: the effective config, as an Evaluator
    or as canonical JSON; without it, as for remotes and plain functions, the config is used as sent. `provenance`:
    other facts, without the config's digest.

    threshold, negate, keeps_reasoning: of the spec. They can reverse the verdict, so they are part of the digest if set.
    """
    owner = getattr(evaluate, "__self__", None)
    evaluator = owner if isinstance(owner, Evaluator) else getattr(owner, "config", None)
    if isinstance(evaluator, Evaluator):
        text = effective_config(evaluator)
    else:
        text = canonical_json(config) if evaluator is None else evaluator
    if negate:
        text += "\nnegate"
    if keeps_reasoning:
        text += "\nreasoning keep"
    if threshold is not None:
        text += f"\nthreshold {threshold!r}"
    known: Provenance = getattr(owner, "provenance", Provenance())
    return known._replace(config_sha256=_digest(text))


def combined(settings: Mapping[str, Any], children: Sequence[PlannedEvaluator]) -> tuple[str, Provenance]:
    """Return config and provenance of a combinator, from its settings and its children."""
    parts = [
        (
            child.definition.type,
            child.definition.version,
            child.weight,
            child.final_only,
            child.provenance.config_sha256,
            child.provenance.prompt_sha256,
            # Only if set, so that the digests of other combinators stay the same.
            *(
                name
                for name, given in (("required", child.required), ("shadow", not child.enforced))
                if given
            ),
        )
        for child in children
    ]
    judges = [child.provenance for child in children if child.provenance.judge_models]
    return canonical_json({**settings, "evaluators": parts}), Provenance.of_judges(judges)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
