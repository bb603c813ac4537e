"""One conversation as real objects of each library: a question about the weather, a tool call, an answer.

Each function imports its library, makes the objects as that library makes them
(by running its agent on a scripted model where it has one), and gives the
arguments of `Turn`.
"""

import asyncio
import dataclasses
import datetime as dt
import enum
import json
from collections.abc import Callable
from typing import Any

Made = dict[str, Any]
"""Arguments of `Turn`."""

QUESTION = "What is the weather in Paris?"
ARGS = {"city": "Paris"}
RESULT = "18 degrees"
ANSWER = "It is 18 degrees in Paris."


def openai_chat() -> Made:
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

    called = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        }
    )
    answered = ChatCompletion.model_validate(
        {
            "id": "r1",
            "object": "chat.completion",
            "created": 1,
            "model": "m1",
            "choices": [
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}
            ],
            "usage": {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42},
        }
    )
    return {
        "messages": [
            {"role": "user", "content": QUESTION},
            called,
            {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        ],
        "response": answered,
    }


def openai_responses() -> Made:
    from openai.types.responses import Response

    def response(output: list[dict[str, Any]]) -> Any:
        return Response.model_validate(
            {
                "id": "r1",
                "object": "response",
                "created_at": 1,
                "model": "m1",
                "status": "completed",
                "output": output,
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": [],
                "usage": {
                    "input_tokens": 30,
                    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                    "output_tokens": 12,
                    "output_tokens_details": {"reasoning_tokens": 4},
                    "total_tokens": 42,
                },
            }
        )

    called = response(
        [
            {"type": "reasoning", "id": "rs1", "summary": [{"type": "summary_text", "text": "Look it up."}]},
            {
                "type": "function_call",
                "id": "f1",
                "call_id": "c1",
                "name": "get_weather",
                "arguments": '{"city": "Paris"}',
                "status": "completed",
            },
        ]
    )
    answered = response(
        [
            {
                "type": "message",
                "id": "m1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
            }
        ]
    )
    return {
        "messages": [
            {"role": "user", "content": QUESTION},
            *called.output,
            {"type": "function_call_output", "call_id": "c1", "output": RESULT},
        ],
        "response": answered,
    }


def openai_agents() -> Made:
    import agents
    from agents.items import ModelResponse
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    agents.set_tracing_disabled(True)

    class Scripted(agents.Model):
        asked = 0

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            self.asked += 1
            output: Any
            if self.asked == 1:
                output = ResponseFunctionToolCall(
                    type="function_call",
                    id="f1",
                    call_id="c1",
                    name="get_weather",
                    arguments='{"city": "Paris"}',
                )
            else:
                text = ResponseOutputText(type="output_text", text=ANSWER, annotations=[])
                output = ResponseOutputMessage(
                    type="message", id="m1", role="assistant", status="completed", content=[text]
                )
            usage = Usage(requests=1, input_tokens=15, output_tokens=6, total_tokens=21)
            return ModelResponse(output=[output], usage=usage, response_id=f"r{self.asked}")

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    def get_weather(city: str) -> str:
        return RESULT

    # A module of the same name in some versions.
    decorate: Any = getattr(agents.function_tool, "function_tool", agents.function_tool)
    agent = agents.Agent(name="weather", model=Scripted(), tools=[decorate(get_weather)])
    return {"messages": asyncio.run(agents.Runner.run(agent, QUESTION))}


def langchain() -> Made:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    called = AIMessage(
        # As langchain-anthropic writes it: the call stands in the content, too.
        content=[{"type": "tool_use", "id": "c1", "name": "get_weather", "input": ARGS}],
        tool_calls=[{"name": "get_weather", "args": ARGS, "id": "c1"}],
        usage_metadata={"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        response_metadata={"model_name": "m1", "finish_reason": "tool_calls"},
    )
    answered = AIMessage(
        content=ANSWER,
        usage_metadata={"input_tokens": 20, "output_tokens": 7, "total_tokens": 27},
        response_metadata={"model_name": "m1", "finish_reason": "stop", "id": "r1"},
    )
    tool = ToolMessage(RESULT, tool_call_id="c1", name="get_weather", artifact={"raw": object()})
    return {"messages": [HumanMessage(QUESTION), called, tool, answered]}


def langgraph_state() -> Made:
    return {"messages": {"messages": langchain()["messages"], "remaining_steps": 3}}


def anthropic() -> Made:
    from anthropic.types import Message

    def message(content: list[dict[str, Any]], reason: str) -> Any:
        return Message.model_validate(
            {
                "id": "r1",
                "type": "message",
                "role": "assistant",
                "model": "m1",
                "content": content,
                "stop_reason": reason,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 12},
            }
        )

    called = message(
        [
            {"type": "thinking", "thinking": "Look it up.", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "get_weather", "input": ARGS},
        ],
        "tool_use",
    )
    return {
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": called.content},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": RESULT}],
                    }
                ],
            },
        ],
        "response": message([{"type": "text", "text": ANSWER}], "end_turn"),
    }


def google() -> Made:
    from google.genai import types

    contents = [
        types.Content(role="user", parts=[types.Part(text=QUESTION)]),
        types.Content(
            role="model", parts=[types.Part(function_call=types.FunctionCall(name="get_weather", args=ARGS))]
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(
                    function_response=types.FunctionResponse(name="get_weather", response={"result": RESULT})
                )
            ],
        ),
    ]
    answered = types.GenerateContentResponse(
        candidates=[
            types.Candidate(
                content=types.Content(
                    role="model",
                    parts=[types.Part(text="Tell them.", thought=True), types.Part(text=ANSWER)],
                ),
                finish_reason=types.FinishReason.STOP,
            )
        ],
        model_version="m1",
        response_id="r1",
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=30, candidates_token_count=8, thoughts_token_count=4, total_token_count=42
        ),
    )
    return {"messages": contents, "response": answered}


def pydantic_ai() -> Made:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage

    def model(messages: list[Any], info: Any) -> ModelResponse:
        part: Any = TextPart(ANSWER)
        if len(messages) == 1:
            part = ToolCallPart("get_weather", ARGS, tool_call_id="c1")
        return ModelResponse(
            parts=[part],
            usage=RequestUsage(input_tokens=15, output_tokens=6),
            model_name="m1",
            finish_reason="stop",
        )

    agent: Any = Agent(FunctionModel(model), instructions="Be brief.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return RESULT

    return {"messages": asyncio.run(agent.run(QUESTION))}


def autogen() -> Made:
    from autogen_agentchat.base import TaskResult
    from autogen_agentchat.messages import (
        TextMessage,
        ThoughtEvent,
        ToolCallExecutionEvent,
        ToolCallRequestEvent,
    )
    from autogen_core import FunctionCall
    from autogen_core.models import FunctionExecutionResult, RequestUsage

    usage = RequestUsage(prompt_tokens=15, completion_tokens=6)
    call = FunctionCall(id="c1", name="get_weather", arguments='{"city": "Paris"}')
    result = FunctionExecutionResult(content=RESULT, name="get_weather", call_id="c1", is_error=False)
    return {
        "messages": TaskResult(
            messages=[
                TextMessage(source="user", content=QUESTION),
                ToolCallRequestEvent(source="weather", content=[call], models_usage=usage),
                ToolCallExecutionEvent(source="weather", content=[result]),
                ThoughtEvent(source="weather", content="Tell them."),
                TextMessage(source="weather", content=ANSWER, models_usage=usage),
            ],
            stop_reason="done",
        )
    }


def autogen_core() -> Made:
    from autogen_core import FunctionCall
    from autogen_core.models import (
        AssistantMessage,
        CreateResult,
        FunctionExecutionResult,
        FunctionExecutionResultMessage,
        RequestUsage,
        UserMessage,
    )

    call = FunctionCall(id="c1", name="get_weather", arguments='{"city": "Paris"}')
    result = FunctionExecutionResult(content=RESULT, name="get_weather", call_id="c1", is_error=False)
    usage = RequestUsage(prompt_tokens=30, completion_tokens=12)
    return {
        "messages": [
            UserMessage(content=QUESTION, source="user"),
            AssistantMessage(content=[call], source="weather"),
            FunctionExecutionResultMessage(content=[result]),
        ],
        "response": CreateResult(finish_reason="stop", content=ANSWER, usage=usage, cached=False),
    }


def mcp() -> Made:
    from mcp.types import CallToolResult, TextContent

    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ARGS}}
    returned = CallToolResult(content=[TextContent(type="text", text=RESULT)])
    return {
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": returned},
            {"role": "assistant", "content": ANSWER},
        ]
    }


OBJECTS: dict[str, Callable[[], Made]] = {
    make.__name__: make
    for make in (
        openai_chat,
        openai_responses,
        openai_agents,
        langchain,
        langgraph_state,
        anthropic,
        google,
        pydantic_ai,
        autogen,
        autogen_core,
        mcp,
    )
}


def dumped(value: Any) -> Any:
    """Return the objects as JSON from the library's own dump."""
    if hasattr(value, "to_input_list"):
        return value.to_input_list()
    if hasattr(value, "all_messages_json"):
        return json.loads(value.all_messages_json())
    if hasattr(value, "model_dump"):
        data = value.model_dump()
        return dumped(data)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dumped(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: dumped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [dumped(inner) for inner in value]
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    return value.isoformat() if isinstance(value, dt.datetime) else type(value).__name__
