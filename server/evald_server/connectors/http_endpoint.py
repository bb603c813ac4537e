"""Connector `http`: any agent that takes and answers JSON over HTTP."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

from pydantic import Field, field_validator

from evald.chat import message_text
from evald.convert.context import TurnData
from evald.convert.json_shapes import message_to_openai
from evald.errors import InvalidInput
from evald.fields import shown
from evald.v1 import connector_service_pb2, context_pb2
from evald_server.loop import in_thread_if_large
from evald_server.redaction import Redactor

from .answers import bad_answer, check_reported, find_response, set_times, to_cost, to_invocation
from .connector import AgentRequest, ConnectorConfig, ConnectorOptions
from .headers import ResolvedHeaders
from .http_client import HttpConfig
from .network_agent import HttpAgent
from .paths import MISSING, look_up, parse_path
from .streams import EventLines, StreamFormat, TextPieces

_VARIABLE: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_VARIABLES: Final = ("message", "messages", "threadId", "turn")
# Limits per template, because each occurrence repeats parts of the conversation.
_MOST: Final = {"message": 100, "messages": 10}
_DEFAULT_BODY: Final = {"message": "{{message}}", "messages": "{{messages}}", "threadId": "{{threadId}}"}


class UsagePaths(ConnectorConfig):
    """Paths of the numbers of tokens."""

    input: str | None = Field(None, description="Path of the number of input tokens.")
    output: str | None = Field(None, description="Path of the number of output tokens.")


class HttpEndpointConfig(HttpConfig):
    """Config of `http`. Paths are written a.b[0].c, or as JSON Pointers."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    path: str = Field(
        "", max_length=2048, description="Path added to base_url; may contain {{threadId}} and {{turn}}."
    )
    body: Any = Field(
        _DEFAULT_BODY,
        description="JSON to send. {{message}} (the user's last message), {{threadId}} and "
        '{{turn}} are filled in; a value that is exactly "{{messages}}" becomes the '
        "conversation in OpenAI's format.",
    )
    messages_path: str | None = Field(
        None, description="Path of the messages in the answer, in any known format."
    )
    text_path: str | None = Field(None, description="Path of the text in the answer.")
    tool_calls_path: str | None = Field(
        None, description="Path of the tool calls; used together with textPath."
    )
    usage_path: str | UsagePaths | None = Field(
        None, description="Path of an object with token counts, or paths of input and output."
    )
    cost_path: str | None = Field(None, description="Path of the cost in US dollars.")
    model_path: str | None = Field(None, description="Path of the model's name.")
    stream: StreamFormat | None = Field(
        None,
        description="Format of a streamed answer: server-sent events or NDJSON. Default: the "
        "answer is not streamed.",
    )
    delta_path: str | None = Field(None, description="Path of the piece of text in each event of a stream.")
    retry: bool = Field(
        False,
        description="Set to true if the agent does not repeat work for a request with the same "
        "Idempotency-Key; failed requests are then sent again.",
    )

    @field_validator(
        "messages_path", "text_path", "tool_calls_path", "usage_path", "cost_path", "model_path", "delta_path"
    )
    @classmethod
    def _paths(cls, value: Any) -> Any:
        for path in (value.input, value.output) if isinstance(value, UsagePaths) else (value,):
            if path is not None:
                parse_path(path)
        return value

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if value and (
            not value.startswith("/") or "#" in value or not value.isascii() or not value.isprintable()
        ):
            raise ValueError(
                f"{shown(value)}, wanted a path that begins with /, in printable ASCII without #"
            )
        for name in _VARIABLE.findall(value):
            if name not in ("threadId", "turn"):
                raise ValueError(
                    f"unknown variable {{{{{name[:60]}}}}}; wanted {{{{threadId}}}} or {{{{turn}}}}"
                )
        return value


class HttpEndpoint(HttpAgent):
    """Any agent that accepts and returns JSON over HTTP, at once or as a stream."""

    type_name = "http"
    label = "HTTP"
    config_model = HttpEndpointConfig
    _config: HttpEndpointConfig

    def __init__(
        self, pb: connector_service_pb2.Connector, config: HttpEndpointConfig, options: ConnectorOptions
    ) -> None:
        super().__init__(pb, config, options)
        _check_template(config.body, "config.body")
        counts = Counter(_VARIABLE.findall(json.dumps(config.body)))
        for name, most in _MOST.items():
            if counts[name] > most:
                raise InvalidInput("config.body", f"{{{{{name}}}}} {counts[name]} times", f"at most {most}")

    async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
        """See NetworkAgent."""
        config = self._config
        values = {
            "message": _last_text(request),
            "messages": [message_to_openai(message) for message in request.messages],
            "threadId": request.thread_id,
            "turn": request.turn,
        }
        delta = parse_path(config.delta_path) if config.delta_path is not None else None
        answer = await self._http.send(
            config.method,
            _VARIABLE.sub(lambda match: quote(str(values[match[1]]), safe=""), config.path),
            _filled(config.body, values),
            headers,
            key=request.request_id,
            repeat="safe" if config.retry else "unsent",
            new_stream=partial(_new_stream, config.stream, delta) if config.stream else None,
        )
        invocation = await in_thread_if_large(answer.size, self._read, answer.data)
        set_times(invocation, answer.seconds, answer.first_seconds)
        return invocation

    def _read(self, data: Any) -> context_pb2.Invocation:
        # config.messagesPath says which part of the answer is the turn.
        source = data if self._config.messages_path is None else None
        return to_invocation(self._found(data), self._options.max_messages, source)

    def _found(self, data: Any) -> TurnData:
        """Find messages, usage, cost and model at the config's paths, else where agents usually have them."""
        check_reported(data)
        config = self._config

        def at(path: str | None, *, wanted: bool = False) -> Any:
            parts = () if path is None else parse_path(path)
            for end in range(len(parts)):  # what encloses the answer may report an error
                check_reported(look_up(data, parts[:end]))
            value = MISSING if path is None else look_up(data, parts)
            if wanted and value is MISSING:
                raise bad_answer(f"{path}: missing in the answer; {shown(data)}")
            return None if value is MISSING else value

        if config.messages_path is not None:
            found = TurnData(response=at(config.messages_path, wanted=True))
        elif config.text_path is not None or config.tool_calls_path is not None:
            text = at(config.text_path, wanted=config.tool_calls_path is None)
            if text is not None and not isinstance(text, str):
                raise bad_answer(f"{config.text_path}: {shown(text)}, wanted text")
            calls = at(config.tool_calls_path)
            found = TurnData(response={"role": "assistant", "content": text, "tool_calls": calls or None})
        else:
            found = find_response(data)
        usage = config.usage_path
        if isinstance(usage, UsagePaths):
            found = found._replace(usage={"input": at(usage.input), "output": at(usage.output)})
        elif usage is not None:
            found = found._replace(usage=at(usage))
        if (cost := at(config.cost_path)) is not None:
            found = found._replace(cost=("USD", to_cost(cost, str(config.cost_path))))
        if (model := at(config.model_path)) is not None:
            found = found._replace(model=model)
        return found


def _new_stream(stream: StreamFormat, delta: Any, redactor: Redactor) -> EventLines:
    return EventLines(stream, TextPieces(delta), redactor)


def _check_template(template: Any, path: str) -> None:
    """Raise InvalidInput for a template with an unknown variable, or with {{messages}} inside a text."""
    if isinstance(template, str):
        for name in _VARIABLE.findall(template):
            if name not in _VARIABLES:
                wanted = "one of " + ", ".join(f"{{{{{known}}}}}" for known in _VARIABLES)
                raise InvalidInput(path, f"unknown variable {{{{{name[:60]}}}}}", wanted)
            if name == "messages" and not _VARIABLE.fullmatch(template):
                raise InvalidInput(path, "{{messages}} within a string", '"{{messages}}" as the whole value')
    elif isinstance(template, Mapping):
        for key, value in template.items():
            _check_template(value, f"{path}.{key}")
    elif isinstance(template, list):
        for index, value in enumerate(template):
            _check_template(value, f"{path}[{index}]")


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, str):
        if match := _VARIABLE.fullmatch(template):
            return values[match[1]]
        return _VARIABLE.sub(lambda match: str(values[match[1]]), template)
    if isinstance(template, Mapping):
        return {key: _filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values) for value in template]
    return template


def _last_text(request: AgentRequest) -> str:
    """Return the text of the user's last message."""
    said = next((message for message in reversed(request.messages) if message.role == "user"), None)
    if said is None:
        return ""
    try:
        return message_text(said)
    except InvalidInput:
        return said.text
