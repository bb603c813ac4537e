"""A model that obeys instructions outside the fence and judges correctly otherwise."""

import json
import re
from collections.abc import Mapping
from typing import Any

from evald_server.judge.prompt_request import CallSpending, ModelAnswer, PromptRequest

_NONCE = re.compile(r"data-([0-9a-f]{32})\b")
_ANY_CLOSE = re.compile(r"</data[^>]*>")


def outside_fence(instructions: str, material: str, *, any_close: bool = False) -> str:
    """Return the text outside the fence, with the nonce blanked.

    The fence is the one that the question itself declares, before any data can. any_close: a careless
    reader, for whom anything that looks like a closing tag ends the data.
    """
    text = f"{instructions}\n{material}"
    declared = _NONCE.search(text)
    assert declared, "the question declares no fence"
    opening, closing = f"<data-{declared[1]}>", f"</data-{declared[1]}>"
    outside = ""
    while True:
        before, found, rest = text.partition(opening)
        outside += before + found
        if not found:
            return outside.replace(declared[1], "nonce")
        close = _ANY_CLOSE.search(rest) if any_close else re.search(re.escape(closing), rest)
        assert close, "the fence stays open"
        text = rest[close.start() :]


class ObedientModel:
    """Passes when anything stands outside the fence that `expected` does not have there, for then somebody
    else has written there; else says `otherwise`. Both the model and the only model that there is."""

    model = "obedient"
    endpoint = "default"
    calibration_card = ""

    def __init__(self, *, any_close: bool = False) -> None:
        self.expected: str | None = None
        self.otherwise = False
        self.questions = 0
        self._any_close = any_close

    def get(self, judge: str | None, model: str | None) -> "ObedientModel":
        """Return itself for every name."""
        return self

    async def ask(self, question: PromptRequest, spending: CallSpending) -> ModelAnswer:
        """Answer in the requested form."""
        spending.attempts += 1
        self.questions += 1
        outside = outside_fence(question.system_message, question.user_message, any_close=self._any_close)
        if self.expected is None:
            self.expected = outside
        passes = self.otherwise or outside != self.expected
        if question.schema is None:
            return ModelAnswer(f"SCORE: {10 if passes else 0}\nREASON: so", None, self.model, {})
        data = _of_schema(question.schema, passes=passes)
        return ModelAnswer(json.dumps(data), data, self.model, {})


def _of_schema(schema: Mapping[str, Any], *, passes: bool, key: str = "") -> Any:
    """Return data for a schema that mean pass or fail."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {
                name: _of_schema(one, passes=passes, key=name) for name, one in schema["properties"].items()
            }
        case "array":
            return [_of_schema(schema["items"], passes=passes)] if key == "checks" else []
        case "boolean":
            return passes and "failure" not in key.lower()
        case "integer":
            return 10 if passes else 0
        case "number":
            return 1.0 if passes or key == "confidence" else 0.0
        case _:
            return "so"
