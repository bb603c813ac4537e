"""The mode `grader`: a prompt of several messages with variables, answered by a number or a label.

It follows OpenAI's `score_model` and `label_model` graders. The values of the variables are data: each is put inside
the fence, at the position of its variable.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, model_validator

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Check, Result, reaches
from evald_server.evaluators.grader_templates import (
    TemplatePart,
    Variable,
    as_text,
    parse_template,
    value_of,
)

from .answer_parsing import UnusableAnswer, get_number, get_text, require_object
from .prompt_request import ModelAnswer
from .rubric_modes import TEXT, Judgement, PromptTemplate, RubricMode, object_schema
from .transcript import encode

# A grader without a threshold passes from this share of its range.
_DEFAULT_SHARE: Final = 0.8

_SCORE_TASK: Final = """\
Answer with one JSON object, whatever form the task below asks for:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"score": a number from {low:.15g} to {high:.15g}}}"""

_LABEL_TASK: Final = """\
Answer with one JSON object, whatever form the task below asks for:
{{"reasoning": what you saw and what follows from it, in at most five sentences, \
"label": one of {labels}}}"""


class GraderMessage(BaseModel):
    """A message of the prompt."""

    model_config = Evaluator.model_config

    role: Literal["system", "developer", "user"] = Field(description="Role of the message.")
    content: Annotated[str, Field(min_length=1)] = Field(
        description="Text with variables: {{item.KEY}} is a value of the metadata's item, "
        "{{sample.output_text}} is the answer."
    )


class ModelGrader(BaseModel):
    """A prompt with variables, answered with a number or a label."""

    model_config = Evaluator.model_config

    input: Annotated[list[GraderMessage], Field(min_length=1, max_length=100)] = Field(
        description="Messages of the prompt. System messages at the start that have no variables "
        "replace the judge's system message."
    )
    labels: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=100)] | None
    ) = Field(None, description="Labels that the judge chooses from. Default: none; the answer is a number.")
    passing_labels: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="With labels: the labels that pass."
    )
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="Minimum and maximum of the number. Default: [0, 1]."
    )
    pass_threshold: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="Minimum number that passes. Default: minimum + 0.8 * (maximum - minimum) of range."
    )

    @model_validator(mode="after")
    def _fits(self) -> "ModelGrader":
        if self.labels is None:
            if self.passing_labels is not None:
                raise ValueError("passingLabels without labels")
            low, high = self.bounds
            if not (low < high and math.isfinite(high - low)):
                raise ValueError(
                    f"range: got {low:g} to {high:g}, wanted a minimum below the maximum, both finite"
                )
            if not low < self.threshold <= high:
                raise ValueError(
                    f"passThreshold: got {self.threshold:g}, wanted more than {low:g}, which every answer reaches, and "
                    f"at most {high:g}"
                )
        else:
            if self.range is not None or self.pass_threshold is not None:
                raise ValueError("got range or passThreshold, which are not allowed with labels; remove them")
            if len(set(self.labels)) < len(self.labels):
                raise ValueError("labels: got a label twice, wanted unique labels")
            unknown = sorted(set(self.passing_labels or ()).difference(self.labels))
            if self.passing_labels is None or unknown:
                got = f"{unknown[0]!r} is not one of the labels" if unknown else "missing"
                raise ValueError(f"passingLabels: {got}; wanted some of the labels")
        for message in self.input:
            parse_template(message.content)
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest number of an answer."""
        low, high = self.range or (0.0, 1.0)
        return low, high

    @property
    def threshold(self) -> float:
        """The lowest number that passes."""
        if self.pass_threshold is not None:
            return self.pass_threshold
        low, high = self.bounds
        return low + _DEFAULT_SHARE * (high - low)

    @property
    def system_message(self) -> str | None:
        """The texts of the leading system messages without variables; None when there is none."""
        return "\n\n".join(message.content for message in self.input[: self._system_count]) or None

    @property
    def template(self) -> list[TemplatePart]:
        """The other messages, joined by an empty line."""
        return parse_template("\n\n".join(message.content for message in self.input[self._system_count :]))

    @property
    def _system_count(self) -> int:
        for position, message in enumerate(self.input):
            parts = parse_template(message.content)
            if message.role == "user" or any(isinstance(part, Variable) for part in parts):
                return position
        return len(self.input)


def _record(variable: Variable, ctx: EvaluatorContext) -> Mapping[str, str]:
    return {"variable": variable.text, "value": as_text(value_of(variable, ctx))}


class GraderMode(RubricMode):
    """The mode `grader`: the answer is a number in a range, or a label."""

    name = "grader"

    def __init__(self, grader: ModelGrader) -> None:
        low, high = grader.bounds
        answer: dict[str, Any] = {"type": "number", "description": f"From {low:.15g} to {high:.15g}."}
        task = _SCORE_TASK.format(low=low, high=high)
        if grader.labels is not None:
            answer = {"type": "string", "enum": grader.labels}
            task = _LABEL_TASK.format(labels=encode({"labels": grader.labels}))
        key = "score" if grader.labels is None else "label"
        parts = grader.template
        self._variables = [part for part in parts if isinstance(part, Variable)]
        template = [partial(_record, part) if isinstance(part, Variable) else part for part in parts]
        super().__init__(task, object_schema(reasoning=TEXT, **{key: answer}), PromptTemplate(template))
        self._grader = grader

    def missing(self, ctx: EvaluatorContext) -> Result | None:
        """Return the result of a turn that lacks the value of a variable; None if all are there."""
        for one in self._variables:
            value = value_of(one, ctx)
            if isinstance(value, Result):
                return value
        return None

    def parse(self, answer: ModelAnswer, ctx: EvaluatorContext) -> Judgement:
        """Parse an answer. It passes with a passing label, or with a number that reaches the threshold."""
        data = require_object(answer.data)
        reasoning = get_text(data, "reasoning")
        if self._grader.labels is None:
            low, high = self._grader.bounds
            number, least = get_number(data, "score", low, high), self._grader.threshold
            passes = reaches(number, least)
            return Judgement(
                passes,
                (number - low) / (high - low),
                reasoning or f"Score {number:g} {'reaches' if passes else 'is below'} {least:g}",
                details={"rawScore": number, "passThreshold": least},
                value=number,
            )
        label = data.get("label")
        if label not in self._grader.labels:
            raise UnusableAnswer('"label" is not one of the labels')
        passes = label in (self._grader.passing_labels or ())
        return Judgement(
            passes,
            float(passes),
            reasoning or f"Label {label!r}",
            [Check(f"Label {label!r}", passes)],
            details={"label": label},
        )
