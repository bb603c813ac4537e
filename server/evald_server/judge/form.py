"""What the four ways of asking have in common: a task, the form of the answer, and how it is read."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from evald.context import EvaluatorContext
from evald.result import Check

from .question import Answer


class Judgement(NamedTuple):
    """What one answer of one judge says about the turn.

    reason: the judge's reasoning, or the numbers where it gave none.
    pending: a later turn can still make it pass. details: for the result's metadata.
    """

    passes: bool
    score: float
    reason: str
    checks: Sequence[Check] = ()
    pending: bool = False
    details: Mapping[str, Any] = {}


class Form(ABC):
    """One way of asking, made of a config.

    mode: its name. task: what the judge is to decide and how to answer, in the caller's and our words.
    schema: JSON Schema of the answer; None asks for plain text.
    template: puts the fenced answer into a request in the caller's own words, where there is one.
    max_tokens: most tokens of an answer, where the config does not say.
    """

    mode: ClassVar[str]

    def __init__(
        self,
        task: str,
        schema: Mapping[str, Any] | None,
        template: Callable[[str], str] | None = None,
        max_tokens: int = 1024,
    ) -> None:
        self.task = task
        self.schema = schema
        self.template = template
        self.max_tokens = max_tokens

    @abstractmethod
    def read(self, answer: Answer, ctx: EvaluatorContext) -> Judgement:
        """What the answer says. Raises Unusable."""

    def applies(self, ctx: EvaluatorContext) -> bool:
        """Whether there is anything to ask on this turn."""
        return True

    def can_wait(self, ctx: EvaluatorContext) -> bool:
        """Whether a later turn can still meet what this one does not."""
        return False


def answer_schema(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of an object that has all of these and nothing else, which strict endpoints demand."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: Mapping[str, Any] = {"type": "string"}
FLAG: Mapping[str, Any] = {"type": "boolean"}


def ratio(description: str) -> dict[str, Any]:
    """JSON Schema of a number from 0 to 1. Bounds are said in words: some strict endpoints refuse them."""
    return {"type": "number", "description": f"{description} From 0 to 1."}
