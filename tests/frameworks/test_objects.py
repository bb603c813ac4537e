"""Real objects of other libraries go through `Turn` and a call as they are. `make frameworks` runs this."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

import evald
from evald.result import TokenUsage
from evald_server import testing

from .expected import CHECKS, check_evaluation, check_turn
from .objects import OBJECTS, dumped
from .record import RECORDED, other_dumps

pytestmark = [
    pytest.mark.frameworks,
    # Warnings of the libraries at import are theirs.
    pytest.mark.filterwarnings("default"),
]

SAID = {
    # usage in, out; model; finish reason
    "openai_chat": (30, 12, "m1", "stop"),
    "openai_responses": (30, 12, "m1", "stop"),
    "openai_agents": (30, 12, None, None),
    "langchain": (30, 12, "m1", "stop"),
    "langgraph_state": (30, 12, "m1", "stop"),
    "anthropic": (30, 12, "m1", "stop"),
    "google": (30, 12, "m1", "stop"),
    "pydantic_ai": (30, 12, "function:model:", "stop"),
    "autogen": (30, 12, None, None),
    "autogen_core": (30, 12, None, "stop"),
    "mcp": (None, None, None, None),
}


@pytest.fixture(scope="module")
def client() -> Any:
    with testing.server() as server, server.client() as connected:
        yield connected


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_becomes_the_turn(name: str) -> None:
    turn = evald.Turn(**OBJECTS[name]())
    check_turn(turn)
    said = turn.context.last_invocation
    usage = said.token_usage or TokenUsage()
    found = (usage.input_tokens, usage.output_tokens, said.model, said.metadata.get("finish_reason"))
    assert found == SAID[name]


@pytest.mark.parametrize("name", OBJECTS)
def test_evaluators_see_its_text_and_calls(name: str, client: evald.Client) -> None:
    made = OBJECTS[name]()
    check_evaluation(client.evaluate(evald.Turn(**made), CHECKS))
    if "response" not in made:
        check_evaluation(client.evaluate(made["messages"], CHECKS))


@pytest.mark.parametrize("name", OBJECTS)
def test_a_session_takes_it(name: str, client: evald.Client) -> None:
    with client.session(CHECKS) as session:
        check_evaluation(session.turn(evald.Turn(**OBJECTS[name]())))


def test_the_turn_of_a_pydantic_ai_run_is_what_it_added() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    agent: Any = Agent(TestModel(custom_output_text="second"))
    history = asyncio.run(agent.run("first question")).all_messages()
    turn = evald.Turn(asyncio.run(agent.run("second question", message_history=history)))
    assert turn.context.message_count == 4
    assert [message.text for message in turn.context.turn_messages] == ["second"]


def test_structured_output_of_pydantic_ai_is_the_answer_as_json() -> None:
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    class Weather(BaseModel):
        degrees: int

    agent: Any = Agent(TestModel(custom_output_args={"degrees": 18}), output_type=Weather)
    ctx = evald.Turn(asyncio.run(agent.run("?"))).context
    assert json.loads(ctx.answer or "") == {"degrees": 18}


def agents_run(question: Any, **kwargs: Any) -> Any:
    """A run of OpenAI Agents that answers "done", after a call of `look` when `tools` are given."""
    import agents
    from agents.items import ModelResponse
    from agents.usage import Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    agents.set_tracing_disabled(True)

    class Scripted(agents.Model):
        async def get_response(self, *args: Any, **inner: Any) -> ModelResponse:
            output: Any = ResponseOutputMessage(
                type="message",
                id="m1",
                role="assistant",
                status="completed",
                content=[ResponseOutputText(type="output_text", text="done", annotations=[])],
            )
            if kwargs:
                output = ResponseFunctionToolCall(
                    type="function_call", id="f1", call_id="c1", name="look", arguments="{}"
                )
            return ModelResponse(output=[output], usage=Usage(), response_id="r1")

        def stream_response(self, *args: Any, **inner: Any) -> Any:
            raise NotImplementedError

    return asyncio.run(agents.Runner.run(agents.Agent(name="a", model=Scripted(), **kwargs), question))


def test_the_turn_of_an_agents_run_is_what_it_added() -> None:
    asked = {"role": "user", "content": "second question"}
    result = agents_run([*agents_run("first question").to_input_list(), asked])
    turn = evald.Turn(result)
    assert [message.role for message in turn.context.messages] == ["user", "assistant", "user", "assistant"]
    assert [message.text for message in turn.context.turn_messages] == ["done"]
    # After messages that the caller gives, only what is new is added.
    given = evald.Turn([("user", "second question")], result)
    assert [message.text for message in given.context.messages] == ["second question", "done"]


def test_a_tool_s_output_that_ends_an_agents_run_is_its_answer() -> None:
    import agents

    def look() -> str:
        return "18 degrees"

    decorate: Any = getattr(agents.function_tool, "function_tool", agents.function_tool)
    result = agents_run("?", tools=[decorate(look)], tool_use_behavior="stop_on_first_tool")
    ctx = evald.Turn(result).context
    assert ctx.answer == "18 degrees"
    assert [call.name for call in ctx.turn_tool_calls] == ["look"]


def test_the_recorded_dumps_are_what_the_libraries_write() -> None:
    """Their keys, that is: ids and times differ from run to run."""

    def keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: keys(inner) for key, inner in value.items()}
        return [keys(inner) for inner in value] if isinstance(value, list) else None

    made = {name: dumped(make()) for name, make in OBJECTS.items()} | dumped(other_dumps())
    recorded = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RECORDED.glob("*.json")}
    assert made.keys() == recorded.keys()
    changed = [name for name, turn in made.items() if keys(turn) != keys(recorded[name]["turn"])]
    assert not changed, "record anew: python -m tests.frameworks.record"


def test_evald_imports_none_of_them() -> None:
    code = (
        "import sys, evald; evald.Turn([{'role': 'assistant', 'parts': [{'type': 'text', 'content': 'x'}]}]);"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    libraries = {
        "openai",
        "agents",
        "langchain_core",
        "anthropic",
        "pydantic_ai",
        "autogen_core",
        "mcp",
        "pydantic",
    }
    assert not libraries & set(run.stdout.split())
    assert "evald" in run.stdout.split()
