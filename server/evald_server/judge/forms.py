"""How a model is asked for JSON, and what of the common protocol an endpoint does not know."""

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from .question import Question


class Form(Enum):
    """How the answer's form is made sure, the surest first."""

    SCHEMA = "json_schema"
    """The endpoint holds the model to the schema."""

    OBJECT = "json_object"
    """The endpoint holds the model to a JSON object; the schema stands in the instructions."""

    TEXT = "text"
    """Only the instructions ask for it: one fenced block with a JSON object."""


_NEXT: Final = {Form.SCHEMA: Form.OBJECT, Form.OBJECT: Form.TEXT}


class Problem(NamedTuple):
    """What an endpoint says is wrong. status: of HTTP. code, param, message: "" when it does not say."""

    status: int
    code: str = ""
    param: str = ""
    message: str = ""


class Dialect(NamedTuple):
    """What a model at an endpoint understands.

    limit: the parameter for the longest answer. temperature: it can be set. system: there may be a system message.
    """

    form: Form = Form.SCHEMA
    limit: str = "max_tokens"
    temperature: bool = True
    system: bool = True

    def body(self, model: str, question: Question) -> dict[str, Any]:
        """The question as the body of a chat completion."""
        instructions = question.instructions
        if question.schema is not None:
            instructions += _asked_for(self.form, question.schema)
        material = question.material
        messages = [{"role": turn.role, "content": turn.text} for turn in question.again]
        if self.system:
            messages = [
                {"role": "system", "content": instructions},
                {"role": "user", "content": material},
                *messages,
            ]
        else:
            messages = [{"role": "user", "content": f"{instructions}\n\n{material}"}, *messages]
        body: dict[str, Any] = {"model": model, "messages": messages, self.limit: question.max_tokens}
        if self.temperature:
            body["temperature"] = question.temperature
        if question.schema is not None and self.form is Form.SCHEMA:
            schema = {"name": question.schema_name, "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif question.schema is not None and self.form is Form.OBJECT:
            body["response_format"] = {"type": "json_object"}
        return body

    def without(self, problem: Problem) -> "Dialect | None":
        """The dialect that leaves out what the endpoint says it does not know; None when it does not say that."""
        said = f"{problem.param} {problem.message}"
        if not _NOT_KNOWN.search(f"{problem.code} {problem.message}"):
            return None
        if self.form in _NEXT and _FORM.search(said) and not _BAD_SCHEMA.search(problem.message):
            return self._replace(form=_NEXT[self.form])
        if self.limit == "max_tokens" and "max_completion_tokens" in problem.message:
            return self._replace(limit="max_completion_tokens")
        if self.temperature and (problem.param == "temperature" or "'temperature'" in problem.message):
            return self._replace(temperature=False)
        if self.system and _SYSTEM.search(said):
            return self._replace(system=False)
        return None


def _asked_for(form: Form, schema: Mapping[str, Any]) -> str:
    if form is Form.SCHEMA:
        return ""
    text = json.dumps(schema, ensure_ascii=False)
    if form is Form.OBJECT:
        return f"\n\nAnswer with one JSON object and nothing else. It must match this JSON Schema:\n{text}"
    return (
        "\n\nEnd your answer with exactly one fenced code block, opened by ```json and closed by ```. It holds one JSON "
        f"object that matches the JSON Schema below. Write no other fenced block.\n{text}"
    )


# What endpoints were seen to say: OpenAI "'response_format' of type 'json_schema' is not supported with this model",
# "Unsupported value: 'temperature' does not support 0 with this model"; Groq "does not support response format";
# DeepSeek "This response_format type is unavailable now"; LM Studio "'response_format.type' must be 'json_schema' or
# 'text'"; servers on pydantic "Extra inputs are not permitted" and "Input should be 'text' or 'json_object'".
_NOT_KNOWN: Final = re.compile(
    r"not\W+support|n't\W+support|unsupported|not\W+(?:available|implemented|permitted|allowed|enabled|recogni[sz]ed)"
    r"|unavailable|unknown|unrecogni[sz]ed|unexpected|must be (?:one of|')|should be (?:one of|')",
    re.IGNORECASE,
)
_FORM: Final = re.compile(
    r"response[ _]?format|json[ _]schema|json[ _]object|json[ _]mode|structured[ _]outputs?", re.IGNORECASE
)
# Then the schema is at fault, which every question with it will show again, and which must be mended.
_BAD_SCHEMA: Final = re.compile(r"invalid (?:json )?schema|invalid_json_schema|in context=", re.IGNORECASE)
_SYSTEM: Final = re.compile(
    r"messages\[0\]\.role|\bsystem(?: role|['\"`]? (?:role|messages?))|['\"`]system['\"`]", re.IGNORECASE
)
