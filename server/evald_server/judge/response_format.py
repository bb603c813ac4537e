"""Request bodies: the response format, and the features that an endpoint does not support."""

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from .prompt_request import PromptRequest


class ResponseFormat(Enum):
    """How the format of the answer is enforced, the strictest first."""

    SCHEMA = "json_schema"
    """The endpoint enforces the schema."""

    OBJECT = "json_object"
    """The endpoint enforces a JSON object; the schema is in the instructions."""

    TEXT = "text"
    """Only the instructions ask for the format: one fenced block with a JSON object."""


_FALLBACKS: Final = {
    ResponseFormat.SCHEMA: ResponseFormat.OBJECT,
    ResponseFormat.OBJECT: ResponseFormat.TEXT,
}


class EndpointProblem(NamedTuple):
    """An error that an endpoint reports. status: of HTTP. code, param, message: "" when not reported."""

    status: int
    code: str = ""
    param: str = ""
    message: str = ""


class ModelCapabilities(NamedTuple):
    """The features that a model at an endpoint supports.

    format: the strictest response format. limit: name of the parameter for the most output tokens.
    temperature: whether it can be set. system: whether system messages are allowed.
    """

    format: ResponseFormat = ResponseFormat.SCHEMA
    limit: str = "max_tokens"
    temperature: bool = True
    system: bool = True

    def request_body(self, model: str, request: PromptRequest) -> dict[str, Any]:
        """Return the request as the body of a chat completion."""
        system = request.system_message
        if request.schema is not None:
            system += _format_instructions(self.format, request.schema)
        if self.system:
            messages = [_message("system", system), _message("user", request.user_message)]
        else:
            messages = [_message("user", f"{system}\n\n{request.user_message}")]
        messages += [_message(message.role, message.text) for message in request.follow_up]
        body: dict[str, Any] = {"model": model, "messages": messages, self.limit: request.max_tokens}
        if self.temperature:
            body["temperature"] = request.temperature
        if request.schema is not None and self.format is ResponseFormat.SCHEMA:
            schema = {"name": "verdict", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif request.schema is not None and self.format is ResponseFormat.OBJECT:
            body["response_format"] = {"type": "json_object"}
        return body

    def without(self, problem: EndpointProblem) -> "ModelCapabilities | None":
        """Return the capabilities without the feature that the endpoint reports as unsupported; None if it reports
        no such feature."""
        words = f"{problem.param} {problem.message}"
        if not _UNSUPPORTED.search(f"{problem.code} {problem.message}"):
            return None
        if self.format in _FALLBACKS and _FORMAT.search(words) and not _BAD_SCHEMA.search(problem.message):
            return self._replace(format=_FALLBACKS[self.format])
        if self.limit == "max_tokens" and "max_completion_tokens" in problem.message:
            return self._replace(limit="max_completion_tokens")
        if self.temperature and (problem.param == "temperature" or "'temperature'" in problem.message):
            return self._replace(temperature=False)
        if self.system and _SYSTEM_MESSAGE.search(words):
            return self._replace(system=False)
        return None


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _format_instructions(response_format: ResponseFormat, schema: Mapping[str, Any]) -> str:
    if response_format is ResponseFormat.SCHEMA:
        return ""
    text = json.dumps(schema, ensure_ascii=False)
    if response_format is ResponseFormat.OBJECT:
        return f"\n\nAnswer with one JSON object and nothing else. It must match this JSON Schema:\n{text}"
    return (
        "\n\nEnd your answer with exactly one fenced code block, opened by ```json and closed by ```. It holds one JSON "
        f"object that matches the JSON Schema below. Write no other fenced block.\n{text}"
    )


# Messages seen from endpoints: OpenAI "'response_format' of type 'json_schema' is not supported with this model",
# "Unsupported value: 'temperature' does not support 0 with this model"; Groq "does not support response format";
# DeepSeek "This response_format type is unavailable now"; LM Studio "'response_format.type' must be 'json_schema' or
# 'text'"; servers on pydantic "Extra inputs are not permitted" and "Input should be 'text' or 'json_object'".
_UNSUPPORTED: Final = re.compile(
    r"not\W+support|n't\W+support|unsupported|not\W+(?:available|implemented|permitted|allowed|enabled|recogni[sz]ed)"
    r"|unavailable|unknown|unrecogni[sz]ed|unexpected|must be (?:one of|')|should be (?:one of|')",
    re.IGNORECASE,
)
_FORMAT: Final = re.compile(
    r"response[ _]?format|json[ _]schema|json[ _]object|json[ _]mode|structured[ _]outputs?", re.IGNORECASE
)
# Our own schema is invalid, which must be fixed rather than left out.
_BAD_SCHEMA: Final = re.compile(r"invalid (?:json )?schema|invalid_json_schema|in context=", re.IGNORECASE)
_SYSTEM_MESSAGE: Final = re.compile(
    r"messages\[0\]\.role|\bsystem(?: role|['\"`]? (?:role|messages?))|['\"`]system['\"`]", re.IGNORECASE
)
