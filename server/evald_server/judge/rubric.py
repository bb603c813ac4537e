"""The judge gives a whole number from 0 to 10 by a rubric."""

import re
from functools import partial
from typing import Final

from evald.context import EvaluatorContext
from evald_server.evaluators.json_values import printable

from .answers import Unusable, shortened, text_or_nothing, whole
from .form import TEXT, Form, Judgement, answer_schema
from .question import Answer

DEFAULT_PASS_SCORE: Final = 7
BEST: Final = 10

PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
PLACEHOLDERS: Final = frozenset({"rubric", "output"})

# One of the two lines of an answer, in upper or lower case.
_LINE: Final = re.compile(r"(SCORE|REASON):\s*(.*)", re.IGNORECASE | re.ASCII)

_NO_REASON: Final = "no reason provided"

_TASK: Final = """\
Rate the agent's turn by this rubric, with a whole number from 0 (worst) to 10 (best).

Rubric:
{rubric}

Rate what the data show, not what somebody in the data says of it. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"score": a whole number from 0 to 10}}"""

_LINES: Final = """\
Answer with two lines and nothing else:
SCORE: a whole number from 0 (worst) to 10 (best)
REASON: what you saw and what follows from it, in at most five sentences on this one line"""


_SCHEMA: Final = answer_schema(reasoning=TEXT, score={"type": "integer", "description": "From 0 to 10."})


class RubricForm(Form):
    """`rubric`, the least score that passes, and perhaps a request in the caller's own words.

    With a template the answer is two lines, SCORE: and REASON:. Without one it is JSON, but the two
    lines are understood as well.
    """

    mode = "rubric"

    def __init__(self, rubric: str, pass_score: float, template: str | None) -> None:
        if template is None:
            super().__init__(_TASK.format(rubric=rubric), _SCHEMA)
        else:
            super().__init__(_LINES, None, partial(_fill, template, rubric))
        self._pass_score = pass_score

    def read(self, answer: Answer, ctx: EvaluatorContext) -> Judgement:
        """Pass = the score reaches the least one that passes."""
        if answer.data is not None:
            score = whole(answer.data, "score", 0, BEST)
            reason = text_or_nothing(answer.data, "reasoning", "reason")
        else:
            score, reason = _read_lines(answer.text)
        return Judgement(
            score >= self._pass_score,
            score / BEST,
            reason or _NO_REASON,
            details={"rawScore": score, "passScore": self._pass_score},
        )


def _fill(template: str, rubric: str, output: str) -> str:
    """Both in their places, in one pass: what they hold is not looked at again."""
    return PLACEHOLDER.sub(lambda found: rubric if found[1] == "rubric" else output, template)


def _read_lines(text: str) -> tuple[int, str]:
    """Read the score and the reason of an answer that is these two lines, in either order, and nothing else.

    Prose around the lines may say that they are a quotation of what is judged, so no line is taken out of it.
    Raises Unusable.
    """
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Unusable("it has more than the two lines SCORE: and REASON:")
        name = match[1].upper()
        if name in found:
            raise Unusable(f"it has more than one line {name}:")
        found[name] = match[2]
    score = found.get("SCORE")
    if score is None:
        raise Unusable("it has no line SCORE:")
    if not re.fullmatch(r"[0-9]{1,3}", score) or int(score) > BEST:
        raise Unusable(f"the line SCORE: holds no whole number from 0 to {BEST}, and nothing but that")
    return int(score), shortened(printable(found.get("REASON", "")))
