"""Connector `openai-chat`: any OpenAI-compatible chat endpoint."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from evald.convert.context import TurnData
from evald.convert.json_shapes import message_to_openai
from evald.fields import shown
from evald.v1 import context_pb2, message_pb2
from evald_server.loop import in_thread_if_large
from evald_server.redaction import Redactor

from .answers import bad_answer, check_reported, set_times, to_cost, to_invocation
from .connector import AgentRequest
from .headers import ResolvedHeaders
from .http_client import HttpConfig
from .network_agent import HttpAgent
from .streams import ChatChunks, EventLines

_OWN: Final = ("model", "messages", "tools", "stream", "stream_options", "n")


class OpenAiChatConfig(HttpConfig):
    """Config of `openai-chat`."""

    model: str = Field(min_length=1, description="Name of the model.")
    system_prompt: str | None = Field(None, description="System message; it is sent before the conversation.")
    parameters: dict[str, Any] = Field({}, description="Additional keys of the request, such as temperature.")
    tools: list[dict[str, Any]] = Field([], description="Tools that the model may call, in OpenAI's format.")
    tool_results: dict[str, Any] = Field(
        {},
        description="Results of tool calls by tool name, as text or JSON; they are sent back to "
        "the model. Default: none; the answer ends with the tool calls.",
    )
    max_tool_rounds: int = Field(
        8, ge=1, le=100, description="Maximum number of times that tool calls are answered in a turn."
    )
    stream: bool = Field(
        False, description="Request a streamed answer, to measure the time to the first token."
    )

    @field_validator("parameters")
    @classmethod
    def _foreign(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in _OWN:
            if key in value:
                raise ValueError(
                    f"got {key!r}, which the connector sets itself: it requests one answer; remove it"
                )
        return value

    @model_validator(mode="after")
    def _all_answered(self) -> "OpenAiChatConfig":
        functions = [tool.get("function") for tool in self.tools]
        names = [str(one.get("name")) if isinstance(one, dict) else "?" for one in functions]
        missing = [name for name in names if self.tool_results and name not in self.tool_results]
        if missing:
            raise ValueError(f"toolResults: no result for the tool {missing[0][:100]!r}; add one")
        return self


class OpenAiChat(HttpAgent):
    """A model, or an agent, behind an OpenAI-compatible chat endpoint. base_url goes up to /v1."""

    type_name = "openai-chat"
    label = "OpenAI chat"
    config_model = OpenAiChatConfig
    _config: OpenAiChatConfig

    async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
        """Ask the model, answer its tool calls from the config, and ask again until it makes no tool call."""
        config = self._config
        body: dict[str, Any] = {**config.parameters, "model": config.model}
        if config.tools:
            body["tools"] = config.tools
        if config.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        said = [message_to_openai(message) for message in request.messages]
        if config.system_prompt is not None:
            said.insert(0, {"role": "system", "content": config.system_prompt})
        responses: list[Any] = []
        added: list[dict[str, Any]] = []
        seconds, size, first, costs = 0.0, 0, None, []
        for asked in range(config.max_tool_rounds + 1):
            answer = await self._http.send(
                "POST",
                "/chat/completions",
                {**body, "messages": said + added},
                headers,
                # Later requests of the turn have other content, so they need other keys.
                key=f"{request.request_id}-{asked}" if asked else request.request_id,
                repeat="refused",
                new_stream=_new_chat_stream if config.stream else None,
            )
            _check_completion(answer.data)
            responses.append(answer.data)
            first = answer.first_seconds if not asked else first
            seconds += answer.seconds
            size += answer.size
            costs.append(_cost(answer.data))
            found = TurnData(response=responses)
            invocation = await in_thread_if_large(size, to_invocation, found, self._options.max_messages)
            last = invocation.messages[-1]
            if not config.tool_results or not last.tool_calls or asked == config.max_tool_rounds:
                break
            results = [self._tool_message(call) for call in last.tool_calls]
            responses += results
            added += [message_to_openai(last), *results]
        # What one of several requests does not report is missing, or a budget would pass on a part of the turn.
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(costs):
            invocation.cost.currency_code, invocation.cost.amount = "USD", sum(known)
        if not all(one.get("usage") for one in responses if "choices" in one):
            invocation.ClearField("token_usage")
        set_times(invocation, seconds, first)
        return invocation

    def _tool_message(self, call: message_pb2.ToolCall) -> dict[str, Any]:
        """Return the answer to a tool call; for an unknown tool an error, so that the model can correct the call."""
        name = call.function.name
        result = self._config.tool_results.get(name, {"error": f"unknown tool {name!r}"})
        content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": call.id, "content": content}


def _new_chat_stream(redactor: Redactor) -> EventLines:
    return EventLines("sse", ChatChunks(), redactor)


def _check_completion(data: Any) -> None:
    check_reported(data)
    if not isinstance(data, Mapping) or not isinstance(data.get("choices"), list):
        raise bad_answer(
            f"{shown(data)}, wanted a chat completion, with choices; does base_url end before /chat/completions?"
        )


def _cost(completion: Mapping[str, Any]) -> float | None:
    """Return the cost in US dollars, which some endpoints report with the tokens; None without it."""
    usage = completion.get("usage")
    cost = usage.get("cost") if isinstance(usage, Mapping) else None
    return None if cost is None else to_cost(cost, "usage.cost")
