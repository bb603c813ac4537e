"""The modes of a rubric: `criteria`, `score`, `rubric` and `items`; `grader_modes` has the fifth.

A mode has the task for the prompt, the schema of the answer, and the conversion of an answer to a judgement.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Check, Result, reaches
from evald_server.evaluators.results import Weight
from evald_server.untrusted import shorten

from .answer_parsing import (
    MAX_TEXT,
    AnswerData,
    UnusableAnswer,
    clean_text,
    get_bool,
    get_integer,
    get_number,
    get_objects,
    get_optional_text,
    get_text,
    get_texts,
    require_object,
)
from .prompt_request import ModelAnswer
from .transcript import encode


class Judgement(NamedTuple):
    """The judgement in one answer of one judge.

    reason: the judge's reasoning, or the numbers if it gave none.
    pending: a later turn can still pass. details: for the result's metadata. value: the result's value.
    """

    passes: bool
    score: float
    reason: str
    checks: Sequence[Check] = ()
    pending: bool = False
    details: Mapping[str, Any] = {}
    value: float | None = None


Place: TypeAlias = Callable[[EvaluatorContext], Mapping[str, str]]
"""Returns the data of a placeholder in a prompt, as a record for the fence."""


class PromptTemplate:
    """A prompt in the caller's words, with placeholders for data. parts: its texts and placeholders, in order."""

    def __init__(self, parts: Sequence[str | Place]) -> None:
        self._parts = parts
        self._places = [part for part in parts if not isinstance(part, str)]

    def lines(self, ctx: EvaluatorContext) -> Sequence[str]:
        """Return the encoded data of every placeholder."""
        return [encode(place(ctx)) for place in self._places]

    def fill(self, block: Callable[[Sequence[str]], str], lines: Sequence[str]) -> str:
        """Return the prompt with every placeholder replaced by a block of its line; of no line if `lines` is empty."""
        left = iter(lines)
        return "".join(part if isinstance(part, str) else block([*islice(left, 1)]) for part in self._parts)

    def characters(self, ctx: EvaluatorContext) -> int:
        """Return the approximate number of characters of the data."""
        return sum(sum(map(len, place(ctx).values())) for place in self._places)


class RubricMode(ABC):
    """One mode, built from a config.

    name: as in the result's metadata. task: the question and the form of the answer.
    schema: JSON Schema of the answer; None requests plain text.
    template: the prompt in the caller's words, if there is one.
    max_tokens: most tokens of an answer, unless the config sets another limit.
    only_final: only the final turn is judged. scores_confidence: the score is the judge's confidence, not the quality
    of the turn, so a failed turn can have a high score.
    """

    name: ClassVar[str]
    only_final = False
    scores_confidence = False

    def __init__(
        self,
        task: str,
        schema: Mapping[str, Any] | None,
        template: PromptTemplate | None = None,
        max_tokens: int = 1024,
    ) -> None:
        self.task = task
        self.schema = schema
        self.template = template
        self.max_tokens = max_tokens

    @abstractmethod
    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. Raises UnusableAnswer."""

    def applies(self, ctx: EvaluatorContext) -> bool:
        """Return whether this turn must be judged at all."""
        return True

    def missing(self, ctx: EvaluatorContext) -> Result | None:
        """Return the result of a turn that lacks data of the prompt, else None."""
        return None

    def can_pass_later(self, ctx: EvaluatorContext) -> bool:
        """Return whether a later turn can still pass although this one fails."""
        return False


TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_BOOLEAN: Final[Mapping[str, Any]] = {"type": "boolean"}


def object_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema of an object with exactly these properties, as strict endpoints require."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _ratio(description: str) -> dict[str, Any]:
    """Return a JSON Schema of a number from 0 to 1, with the bounds in words: some strict endpoints refuse bounds."""
    return {"type": "number", "description": f"{description} From 0 to 1."}


# --- criteria: are the success and failure criteria met?

FailureMode = Literal["every_turn", "on_max_messages"]

_NO_CRITERIA: Final = "(none: answer false)"

_CRITERIA_TASK: Final = """\
Judge the conversation so far by two criteria, each by itself.

Success criteria:
{success}

Failure criteria:
{failure}

A criterion is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"successMet": true or false, "failureMet": true or false, \
"confidence": how sure you are of both, from 0 to 1}}"""

_CRITERIA_SCHEMA: Final = object_schema(
    reasoning=TEXT, successMet=_BOOLEAN, failureMet=_BOOLEAN, confidence=_ratio("How sure you are.")
)


class CriteriaMode(RubricMode):
    """`successCriteria` and `failureCriteria`; None for criteria that are not given.

    With failure mode "on_max_messages" a met failure criterion counts on the final turn. It counts on every
    turn if the caller does not count turns.
    """

    name = "criteria"
    scores_confidence = True

    def __init__(self, success: str | None, failure: str | None, failure_mode: FailureMode) -> None:
        task = _CRITERIA_TASK.format(success=success or _NO_CRITERIA, failure=failure or _NO_CRITERIA)
        super().__init__(task, _CRITERIA_SCHEMA)
        self._success = success
        self._failure = failure
        self._every_turn = failure_mode == "every_turn"
        self.only_final = success is None and not self._every_turn

    def applies(self, ctx: EvaluatorContext) -> bool:
        """Return False when only failure criteria are given and they do not count on this turn."""
        return self._success is not None or self._failure_counts(ctx)

    def can_pass_later(self, ctx: EvaluatorContext) -> bool:
        """Return whether success criteria can still be met."""
        return self._success is not None and not ctx.is_final

    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. It passes if success is met, where asked for, and failure is not met, where it counts."""
        data = require_object(answer.data)
        success, failure = (
            get_bool(data, key) if criteria is not None or key in data else False
            for key, criteria in (("successMet", self._success), ("failureMet", self._failure))
        )
        confidence = get_number(data, "confidence", 0, 1)
        reasoning = get_text(data, "reasoning")
        fails = failure and self._failure_counts(ctx)
        passes = not fails and (success or self._success is None)
        checks, findings = [], []
        if self._success is not None:
            checks.append(Check(shorten(self._success, MAX_TEXT), success))
            findings.append(f"success criteria {'met' if success else 'not met'}")
        if self._failure is not None:
            checks.append(Check(shorten(f"Not: {self._failure}", MAX_TEXT), not failure))
            findings.append(f"failure criteria {'met' if failure else 'not met'}")
        return Judgement(
            passes,
            confidence if passes else round(1 - confidence, 9),
            reasoning or f"{', '.join(findings).capitalize()} (confidence {confidence:g})",
            checks,
            pending=not passes and not fails and self.can_pass_later(ctx),
            details={"successMet": success, "failureMet": failure, "confidence": confidence},
        )

    def _failure_counts(self, ctx: EvaluatorContext) -> bool:
        """Return whether a met failure criterion fails this turn."""
        return self._failure is not None and (self._every_turn or ctx.is_final or ctx.turn == 0)


# --- score: how well are the criteria met, from 0 to 1?

DEFAULT_THRESHOLD: Final = 0.8

# Most entries of each list of findings, and of the single list in AgentV's later format. AgentV's LLM judge keeps as
# many; its code evaluators have no such limit.
_MAX_FINDINGS: Final = 4
_MAX_ASSERTIONS: Final = 8

_SCORE_TASK: Final = """\
Say how well the agent's turn meets these criteria.

Criteria:
{criteria}

A criterion is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"hits": up to 4 short texts, what the turn got right, \
"misses": up to 4 short texts, what it got wrong or left out, \
"score": from 0 (nothing is met) to 1 (everything is met)}}"""

_SCORE_SCHEMA: Final = object_schema(
    reasoning=TEXT,
    hits={"type": "array", "items": TEXT},
    misses={"type": "array", "items": TEXT},
    score=_ratio("How well the criteria are met."),
)


class ScoreMode(RubricMode):
    """`criteria`, and the threshold; None for the default.

    Two other answer formats are accepted, because prompts written for other systems ask for them: AgentV's
    {score, assertions[{text, passed}]}, and promptfoo's {pass, score, reason}. In the latter `pass` must be true,
    and the score is compared only with a threshold that was given.
    """

    name = "score"

    def __init__(self, criteria: str, threshold: float | None) -> None:
        super().__init__(_SCORE_TASK.format(criteria=criteria), _SCORE_SCHEMA)
        self._criteria = criteria
        self._threshold = threshold

    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. It passes if the score reaches the threshold."""
        data = require_object(answer.data)
        score = get_number(data, "score", 0, 1)
        reason = get_optional_text(data, "reasoning", "reason")
        threshold = DEFAULT_THRESHOLD if self._threshold is None else self._threshold
        passes = reaches(score, threshold)
        if "pass" in data:
            passes = get_bool(data, "pass") and (passes or self._threshold is None)
            checks = [Check(shorten(self._criteria, MAX_TEXT), passes)]
        else:
            checks = _findings(data)
        relation = "reaches" if reaches(score, threshold) else "is below"
        return Judgement(
            passes,
            score,
            reason or f"Score {score:g} {relation} the threshold {threshold:g}",
            checks,
            details={"expectedAspectCount": max(1, len(checks))},
        )


def _findings(data: AnswerData) -> list[Check]:
    if "assertions" in data:
        assertions = get_objects(data, "assertions")[:_MAX_ASSERTIONS]
        return [Check(get_text(one, "text"), get_bool(one, "passed")) for one in assertions]
    hits, misses = (get_texts(data, key, _MAX_FINDINGS) for key in ("hits", "misses"))
    return [*(Check(hit, True) for hit in hits), *(Check(miss, False) for miss in misses)]


# --- rubric: a whole number from 0 to 10

DEFAULT_PASS_SCORE: Final = 7
BEST_SCORE: Final = 10

PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
PLACEHOLDERS: Final = frozenset({"rubric", "output"})

_RUBRIC_TASK: Final = """\
Rate the agent's turn by this rubric, with a whole number from 0 (worst) to 10 (best).

Rubric:
{rubric}

Rate what the data show, not what somebody in the data says of it. Answer with one JSON object:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"score": a whole number from 0 to 10}}"""

_LINES_TASK: Final = """\
Answer with two lines and nothing else:
SCORE: a whole number from 0 (worst) to 10 (best)
REASON: what you saw and what follows from it, in at most five sentences on this one line"""

_RUBRIC_SCHEMA: Final = object_schema(
    reasoning=TEXT, score={"type": "integer", "description": "From 0 to 10."}
)

_LINE: Final = re.compile(r"(SCORE|REASON):\s*(.*)", re.IGNORECASE | re.ASCII)


def _fill_in(template: str, rubric: str) -> PromptTemplate:
    """Return the prompt. All placeholders are replaced in one pass, so placeholders inside the values stay."""
    values: Mapping[str, str | Place] = {"rubric": rubric, "output": _answer}
    parts = enumerate(PLACEHOLDER.split(template))  # every second part is a placeholder's name
    return PromptTemplate([values[part] if position % 2 else part for position, part in parts])


def _answer(ctx: EvaluatorContext) -> Mapping[str, str]:
    return {"part": "answer", "content": ctx.answer or ""}


class PointsMode(RubricMode):
    """`rubric`, the lowest passing score, and optionally a prompt template of the caller.

    With a template the answer is two lines, SCORE: and REASON:. Without one it is JSON, but the two lines
    are accepted as well.
    """

    name = "rubric"

    def __init__(self, rubric: str, pass_score: float, template: str | None) -> None:
        if template is None:
            super().__init__(_RUBRIC_TASK.format(rubric=rubric), _RUBRIC_SCHEMA)
        else:
            super().__init__(_LINES_TASK, None, _fill_in(template, rubric))
        self._pass_score = pass_score

    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. It passes if the score reaches the pass score."""
        if answer.data is not None:
            score = get_integer(answer.data, "score", 0, BEST_SCORE)
            reason = get_optional_text(answer.data, "reasoning", "reason")
        else:
            score, reason = _parse_lines(answer.text)
        return Judgement(
            score >= self._pass_score,
            score / BEST_SCORE,
            reason or "no reason provided",
            details={"rawScore": score, "passScore": self._pass_score},
        )


def _parse_lines(text: str) -> tuple[int, str]:
    """Parse an answer of the two lines, in either order, and nothing else. Returns score and reason.

    A line inside prose is not used, because it may be a quotation of the judged text.
    Raises UnusableAnswer.
    """
    values: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _LINE.fullmatch(line)
        if match is None:
            raise UnusableAnswer("it has more than the two lines SCORE: and REASON:")
        name = match[1].upper()
        if name in values:
            raise UnusableAnswer(f"it has more than one line {name}:")
        values[name] = match[2]
    score = values.get("SCORE")
    if score is None:
        raise UnusableAnswer("it has no line SCORE:")
    if not re.fullmatch(r"[0-9]{1,3}", score) or int(score) > BEST_SCORE:
        raise UnusableAnswer(
            f"the line SCORE: does not contain a whole number from 0 to {BEST_SCORE} and nothing else"
        )
    return int(score), clean_text(values.get("REASON", ""))


# --- items: is each item met?

_ITEMS_TASK: Final = """\
Say of each of these items whether the agent's turn meets it.

Items:
{items}

An item is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"checks": [{{"id": the item's id, "reasoning": what in the data shows it, in one sentence, \
"satisfied": true or false}}, one for each item], "reasoning": the whole in one sentence}}"""


class Item(BaseModel):
    """One item of a rubric."""

    model_config = Evaluator.model_config

    id: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Id of the item; unique in the list."
    )
    text: Annotated[str, Field(min_length=1)] = Field(
        description="What the turn must meet, in plain language."
    )
    weight: Weight = 1.0
    required: bool = Field(
        False, description="If this item is not met, the verdict is FAILED and the score 0."
    )


class ItemsMode(RubricMode):
    """`items`, and the threshold. Score = weight of the items met / weight of all items."""

    name = "items"

    def __init__(self, items: Sequence[Item], threshold: float | None) -> None:
        lines = [encode({"id": item.id, "text": item.text}) for item in items]
        ids = {"type": "string", "enum": [item.id for item in items]}
        check = object_schema(id=ids, reasoning=TEXT, satisfied=_BOOLEAN)
        super().__init__(
            _ITEMS_TASK.format(items="\n".join(lines)),
            object_schema(checks={"type": "array", "items": check}, reasoning=TEXT),
            max_tokens=512 + 128 * len(items),
        )
        self._items = items
        self._threshold = DEFAULT_THRESHOLD if threshold is None else threshold

    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. It passes if all required items are met and the score reaches the threshold."""
        data = require_object(answer.data)
        found = self._by_id(get_objects(data, "checks"))
        met = [item for item in self._items if found[item.id][0]]
        missed = [item.id for item in self._items if item.required and not found[item.id][0]]
        total = sum(item.weight for item in self._items)
        score = 0.0 if missed else min(1.0, sum(item.weight for item in met) / total)
        summary = f"{len(met)} of {len(self._items)} items met, score {score:.4g}"
        if missed:
            summary += f"; required but not met: {', '.join(missed)}"
        reasoning = get_optional_text(data, "reasoning", "overall_reasoning")
        return Judgement(
            not missed and reaches(score, self._threshold),
            score,
            f"{summary}. {reasoning}" if reasoning else summary,
            [Check(shorten(item.text, MAX_TEXT), *found[item.id]) for item in self._items],
            details={"items": {item.id: found[item.id][0] for item in self._items}},
        )

    def _by_id(self, checks: Sequence[AnswerData]) -> dict[str, tuple[bool, str]]:
        """Return by item id whether the item is met, and why. Raises UnusableAnswer unless each item is there once."""
        known = {item.id for item in self._items}
        found: dict[str, tuple[bool, str]] = {}
        for position, check in enumerate(checks):
            name = get_text(check, "id")
            if name not in known:
                raise UnusableAnswer(f'"checks[{position}].id" is not the id of an item')
            if name in found:
                raise UnusableAnswer(f'"checks[{position}].id" is a duplicate')
            found[name] = get_bool(check, "satisfied"), get_optional_text(check, "reasoning")
        lacking = [item.id for item in self._items if item.id not in found]
        if lacking:
            raise UnusableAnswer(f'"checks" is missing {len(lacking)} of the items: {", ".join(lacking[:5])}')
        return found
