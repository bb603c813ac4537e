"""A graph behind LangGraph's API, and a server that keeps threads as LangGraph's does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

from evald.v1 import message_pb2

from ..judge.wire import Wire, answer, wire
from .building import built, failure, messages, texts, turn

CONFIG = {"assistantId": "agent"}
THREAD = "0b4cbb0c-9e0d-4d4a-9b1c-3f5d1c1c7a11"


class Graph(Wire):
    """Adds messages to its threads by their ids, as LangGraph's `add_messages` does, and answers with all of them."""

    def __init__(self) -> None:
        super().__init__([])
        self.threads: dict[str, dict[str, dict[str, Any]]] = {}

    async def _one(self, reader: Any, writer: Any) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = (line for line in head.lower().split("\r\n") if line.startswith("content-length"))
        body = json.loads(await reader.readexactly(int(next(lengths).split(":")[1])))
        self.requests.append((head, body))
        thread = self.threads.setdefault(head.split("/")[2], {})
        for message in (body["input"] or {"messages": []})["messages"]:
            thread[message["id"]] = {"type": "human" if message["role"] == "user" else "ai"} | message
            thread[message["id"]].pop("role")
        call = {"name": "find", "args": {"day": 1}, "id": f"c{len(thread)}", "type": "tool_call"}
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        for added in (
            {"type": "ai", "content": "", "tool_calls": [call], "usage_metadata": usage},
            {"type": "tool", "content": "[9]", "tool_call_id": call["id"], "name": "find"},
            {
                "type": "ai",
                "content": f"answer {len(thread)}",
                "usage_metadata": usage,
                "response_metadata": {"model_name": "graph-1", "finish_reason": "stop"},
            },
        ):
            thread[str(uuid4())] = added
        state = {"messages": [{"id": name, **message} for name, message in thread.items()]}
        writer.write(answer(200, state).data)
        await writer.drain()
        return True


@asynccontextmanager
async def graph() -> AsyncIterator[Graph]:
    import asyncio

    served = Graph()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()
        await served.stop()
        await server.wait_closed()


async def test_each_turn_sends_what_is_new_and_returns_what_the_graph_adds() -> None:
    config = {**CONFIG, "configurable": {"user": "u1"}}
    said: list[message_pb2.ChatMessage] = list(messages({"role": "assistant", "content": "Hello!"}, "Hi"))
    async with graph() as server, built("langgraph", server.base_url, config, {"x-tenant": "acme"}) as agent:
        for number in (1, 2, 3):
            request = turn(headers={"x-user": "u1"})._replace(thread_id=THREAD, turn=number, messages=said)
            invocation = await agent.invoke(request)
            assert [message.role for message in invocation.messages] == ["assistant", "tool", "assistant"]
            assert invocation.messages[0].tool_calls[0].function.arguments == '{"day": 1}'
            assert (invocation.token_usage.total_tokens, invocation.model) == (24, "graph-1")
            assert invocation.HasField("latency")
            said += [*invocation.messages, *messages("And then?")]
        heads, bodies = [head for head, _ in server.requests], server.bodies
        assert list(server.threads) == [THREAD]
        kept = [message["content"] for message in server.threads[THREAD].values()]
        assert kept == [message.text for message in said[:-1]]
    assert heads[0].startswith(f"POST /threads/{THREAD}/runs/wait HTTP/1.1")
    assert "x-tenant: acme" in heads[0]
    assert "x-user: u1" in heads[0]
    assert [[one["content"] for one in body["input"]["messages"]] for body in bodies] == [
        ["Hello!", "Hi"],
        ["And then?"],
        ["And then?"],
    ]
    del bodies[0]["input"]
    assert bodies[0] == {
        "assistant_id": "agent",
        "if_not_exists": "create",
        "multitask_strategy": "enqueue",
        "config": {"configurable": {"user": "u1"}},
    }


async def test_a_turn_that_is_sent_again_adds_no_second_message_of_the_user() -> None:
    async with graph() as server, built("langgraph", server.base_url, CONFIG) as agent:
        for _ in range(2):
            await agent.invoke(turn()._replace(thread_id=THREAD))
        kept = [message for message in server.threads[THREAD].values() if message["type"] == "human"]
    assert len(kept) == 1


async def test_a_graph_that_stopped_at_its_tools_goes_on_without_input() -> None:
    async with graph() as server, built("langgraph", server.base_url, CONFIG) as agent:
        first = await agent.invoke(turn()._replace(thread_id=THREAD))
        said = [*messages("Hi"), *first.messages[:2]]
        again = await agent.invoke(turn()._replace(thread_id=THREAD, messages=said))
        assert server.bodies[1]["input"] is None
    assert texts(again)[0] == ("assistant", "answer 1")
    assert len(again.messages) == 4


async def test_any_id_of_a_conversation_makes_the_id_of_a_thread() -> None:
    async with graph() as server, built("langgraph", server.base_url, CONFIG) as agent:
        for _ in range(2):
            await agent.invoke(turn()._replace(thread_id="run 7/a"))
        (thread,) = server.threads
        assert str(UUID(thread)) == thread


@pytest.mark.parametrize("user", [{"type": "human"}, {"role": "user"}])
async def test_an_earlier_answer_without_an_id_is_not_answered_again(user: dict[str, str]) -> None:
    sent = [str(uuid5(UUID(THREAD), str(at))) for at in (0, 2)]
    state = [
        {**user, "content": "Hi", "id": sent[0]},
        {"type": "ai", "content": "old"},
        {**user, "content": "Go", "id": sent[1]},
        {"type": "ai", "content": "new"},
    ]
    asked = messages("Hi", {"role": "assistant", "content": "old"}, "Go")
    given = answer(200, {"messages": state})
    async with wire(given) as server, built("langgraph", server.base_url, CONFIG) as agent:
        invocation = await agent.invoke(turn()._replace(thread_id=THREAD, turn=2, messages=asked))
    assert texts(invocation) == [("assistant", "new")]


FAULTS: dict[str, tuple[Any, str, str]] = {
    "no-state": ({"foo": 1}, "CONNECTOR_BAD_ANSWER", "wanted the state of a graph"),
    "a-list": ([], "CONNECTOR_BAD_ANSWER", "wanted the state of a graph"),
    "nothing-new": (
        {"messages": [{"type": "human", "content": "Hi"}]},
        "CONNECTOR_BAD_ANSWER",
        "no message of the agent",
    ),
    "a-bad-message": (
        {"messages": [{"type": "human", "content": "Hi"}, {"type": "robot", "content": "x"}]},
        "CONNECTOR_BAD_ANSWER",
        "role: missing",
    ),
    "a-list-as-an-id": (
        {"messages": [{"type": "ai", "content": 3, "id": ["x"]}]},
        "CONNECTOR_BAD_ANSWER",
        "content: got 3",
    ),
    "a-failed-run": (
        {"__error__": {"error": "ValueError", "message": "out of order"}},
        "CONNECTOR_UNAVAILABLE",
        "out of order",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_what_is_no_state_of_a_graph_is_no_answer(name: str) -> None:
    body, code, words = FAULTS[name]
    async with wire(answer(200, body)) as server, built("langgraph", server.base_url, CONFIG) as agent:
        failed = await failure(agent)
        assert failed.code == code
        assert words in failed.message


async def test_a_run_is_never_started_twice() -> None:
    async with wire(answer(503, b"", retry_after="0")) as server:
        async with built("langgraph", server.base_url, CONFIG) as agent:
            await failure(agent)
        assert len(server.requests) == 1
