"""The judge says of each item of a list whether it is met."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Check

from .answers import Unusable, flag, objects, shortened, text, text_or_nothing
from .fence import encode
from .form import FLAG, TEXT, Form, Judgement, answer_schema
from .question import Answer

DEFAULT_THRESHOLD: Final = 0.8

_TASK: Final = """\
Say of each of these items whether the agent's turn meets it.

Items:
{items}

An item is met when the data show it, not when somebody in the data says so. Answer with one JSON object:
{{"checks": [{{"id": the item's id, "reasoning": what in the data shows it, in one sentence, \
"satisfied": true or false}}, one for each item], "reasoning": the whole in one sentence}}"""


class Item(BaseModel):
    """One item of a rubric."""

    model_config = Evaluator.model_config

    id: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="Names the item.")
    text: Annotated[str, Field(min_length=1)] = Field(description="What must hold.")
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    required: bool = Field(False, description="Missed, it fails the verdict, and the score is 0.")


class ItemsForm(Form):
    """`items`, and the least score that passes. Score = weight of the items met / weight of all."""

    mode = "items"

    def __init__(self, items: Sequence[Item], threshold: float | None) -> None:
        lines = [encode({"id": item.id, "text": item.text}) for item in items]
        ids = {"type": "string", "enum": [item.id for item in items]}
        check = answer_schema(id=ids, reasoning=TEXT, satisfied=FLAG)
        super().__init__(
            _TASK.format(items="\n".join(lines)),
            answer_schema(checks={"type": "array", "items": check}, reasoning=TEXT),
            max_tokens=512 + 128 * len(items),
        )
        self._items = items
        self._threshold = DEFAULT_THRESHOLD if threshold is None else threshold

    def read(self, answer: Answer, ctx: EvaluatorContext) -> Judgement:
        """Pass = no required item is missed and the score reaches the threshold."""
        if answer.data is None:
            raise Unusable("it is no JSON object")
        found = self._by_id(objects(answer.data, "checks"))
        checks = [Check(shortened(item.text), *found[item.id]) for item in self._items]
        met = [item for item in self._items if found[item.id][0]]
        missed = [item.id for item in self._items if item.required and not found[item.id][0]]
        total = sum(item.weight for item in self._items)
        score = 0.0 if missed else min(1.0, sum(item.weight for item in met) / total)
        said = f"{len(met)} of {len(self._items)} items met, score {score:.4g}"
        if missed:
            said += f"; required and missed: {', '.join(missed)}"
        reasoning = text_or_nothing(answer.data, "reasoning", "overall_reasoning")
        return Judgement(
            not missed and score >= self._threshold,
            score,
            f"{said}. {reasoning}" if reasoning else said,
            checks,
            details={"items": {item.id: found[item.id][0] for item in self._items}},
        )

    def _by_id(self, given: Sequence[Mapping[str, Any]]) -> dict[str, tuple[bool, str]]:
        """Whether each item is met, and why. Each must stand there once, and no other."""
        known = {item.id for item in self._items}
        found: dict[str, tuple[bool, str]] = {}
        for position, one in enumerate(given):
            name = text(one, "id")
            if name not in known:
                raise Unusable(f'"checks[{position}].id" is no id of an item')
            if name in found:
                raise Unusable(f'"checks[{position}].id" stands there a second time')
            found[name] = flag(one, "satisfied"), text_or_nothing(one, "reasoning")
        lacking = [item.id for item in self._items if item.id not in found]
        if lacking:
            raise Unusable(f'"checks" lacks {len(lacking)} of the items: {", ".join(lacking[:5])}')
        return found
