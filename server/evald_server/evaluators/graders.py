"""Assertions of OpenAI's graders that compare two texts from the case's item and the turn."""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from evald.context import EvaluatorContext
from evald.evaluator import ConfigProblem, Evaluator, InvalidConfig
from evald.result import ASSERTION, Result, failed, passed

from .grader_templates import TemplatePart, fill, parse_template
from .results import Threshold, quoted, too_large
from .similarity import Measure, compare
from .texts import MAX_SEARCHED

TemplateText = Annotated[
    str,
    Field(
        description="Text with variables: {{item.KEY}} is a value of the metadata's item, {{sample.output_text}} is "
        "the answer."
    ),
]


class _TextGrader(Evaluator, kind=ASSERTION, inline=True):
    input: TemplateText
    reference: TemplateText

    @cached_property
    def _templates(self) -> tuple[list[TemplatePart], list[TemplatePart]]:
        parsed, problems = [], []
        for key in ("input", "reference"):
            try:
                parsed.append(parse_template(getattr(self, key)))
            except ValueError as problem:
                problems.append(ConfigProblem(f"/{key}", str(problem)))
        if problems:
            raise InvalidConfig(problems)
        return parsed[0], parsed[1]

    def prepare(self) -> None:
        """Parse the templates. Raises InvalidConfig."""
        _ = self._templates

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Fill in both templates and compare them. A variable without a value: FAILED for sample, ERROR for item."""
        texts = []
        for template in self._templates:
            text = fill(template, ctx)
            if isinstance(text, Result):
                return text
            texts.append(text)
        return self.judge(*texts)

    def judge(self, text: str, reference: str) -> Result:
        """Compare the filled texts."""
        raise NotImplementedError


class StringCheck(_TextGrader, type="string-check"):
    """`input` matches `reference` by `operation`, as in OpenAI's `string_check` grader."""

    operation: Literal["eq", "ne", "like", "ilike"] = Field(
        description="eq: the texts are equal. ne: they differ. like: input contains reference. ilike: the same, "
        "ignoring case."
    )

    @property
    def forbids(self) -> bool:
        """Whether it passes when the texts differ."""
        return self.operation == "ne"

    def judge(self, text: str, reference: str) -> Result:
        """Return score 1 or 0."""
        size = len(text) + len(reference)
        if self.operation == "ilike":
            if size > MAX_SEARCHED:
                return too_large("characters to compare", size, MAX_SEARCHED)
            met = reference.casefold() in text.casefold()
        elif self.operation == "like":
            met = reference in text
        else:
            met = (text == reference) is (self.operation == "eq")
        reason = f"{quoted(text)} {self.operation} {quoted(reference)}"
        return passed(reason, 1.0) if met else failed(f"Not met: {reason}", 0.0)


class SimilarityCheck(_TextGrader, type="similarity-check"):
    """`input` is similar enough to `reference`, measured as by OpenAI's `text_similarity` grader."""

    measure: Measure = Field("fuzzy-match", description="How the similarity is computed.")
    threshold: Threshold = Field(0.8, description="Minimum score that passes.")

    def judge(self, text: str, reference: str) -> Result:
        """Return the similarity as the score, from 0 to 1."""
        return compare(self.measure, text, reference, self.threshold)
