"""The judge gives a score from 0 to 1 with what was hit and what was missed."""

from typing import Final

from evald.context import EvaluatorContext
from evald.result import Check

from .answers import Data, Unusable, flag, number, objects, shortened, text, text_or_nothing, texts
from .form import TEXT, Form, Judgement, answer_schema, ratio
from .question import Answer

DEFAULT_THRESHOLD: Final = 0.8

# AgentV's: of each list, and of the list in its later form.
_MOST_FINDINGS: Final = 4
_MOST_ASSERTIONS: Final = 8

_TASK: Final = """\
Say how well the agent's turn meets these criteria.

Criteria:
{criteria}

A criterion is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"hits": up to 4 short texts, what the turn got right, \
"misses": up to 4 short texts, what it got wrong or left out, \
"score": from 0 (nothing is met) to 1 (everything is met)}}"""


_SCHEMA: Final = answer_schema(
    reasoning=TEXT,
    hits={"type": "array", "items": TEXT},
    misses={"type": "array", "items": TEXT},
    score=ratio("How well the criteria are met."),
)


class ScoreForm(Form):
    """`criteria`, and the least score that passes; None for the default one.

    Besides what is asked for, two forms are read that prompts written for other systems ask for:
    AgentV's {score, assertions[{text, passed}]}, and promptfoo's {pass, score, reason}, where `pass`
    must be true and a score counts only against a threshold that was given.
    """

    mode = "score"

    def __init__(self, criteria: str, threshold: float | None) -> None:
        super().__init__(_TASK.format(criteria=criteria), _SCHEMA)
        self._criteria = criteria
        self._threshold = threshold

    def read(self, answer: Answer, ctx: EvaluatorContext) -> Judgement:
        """Pass = the score reaches the threshold."""
        data = answer.data
        if data is None:
            raise Unusable("it is no JSON object")
        score = number(data, "score", 0, 1)
        reason = text_or_nothing(data, "reasoning", "reason")
        threshold = DEFAULT_THRESHOLD if self._threshold is None else self._threshold
        passes = score >= threshold
        if "pass" in data:
            passes = flag(data, "pass") and (passes or self._threshold is None)
            checks = [Check(shortened(self._criteria), passes)]
        else:
            checks = _findings(data)
        relation = "reaches" if score >= threshold else "is below"
        return Judgement(
            passes,
            score,
            reason or f"Score {score:g} {relation} the threshold {threshold:g}",
            checks,
            details={"expectedAspectCount": max(1, len(checks))},
        )


def _findings(data: Data) -> list[Check]:
    if "assertions" in data:
        found = objects(data, "assertions")[:_MOST_ASSERTIONS]
        return [Check(text(one, "text"), flag(one, "passed")) for one in found]
    hits, misses = (texts(data, key, _MOST_FINDINGS) for key in ("hits", "misses"))
    return [*(Check(hit, True) for hit in hits), *(Check(miss, False) for miss in misses)]
