"""The example agent books an appointment over gRPC and over HTTP, in the same words."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from .building import built, failure, texts, turn

DIALOGUE = [
    ("Hi", "I can book an appointment for you. For which day of the week?"),
    ("A slot on Tuesday, please.", "On Tuesday I have 09:00 and 10:30. Which one?"),
    ("14:00?", "14:00 is taken on Tuesday. I have 09:00 and 10:30."),
    ("Then 10:30.", "Booked: Tuesday at 10:30. Your reference is BK-21030."),
]


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Where the agent listens, by type of connector."""
    command = [
        sys.executable,
        "-m",
        "evald_server.cli.demo_agent",
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        grpc, http = re.findall(r"127\.0\.0\.1:\d+", line)
        yield {"grpc": grpc, "http": f"http://{http}"}
        process.terminate()
        assert process.wait(timeout=15) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_the_agent_books(kind: str, addresses: dict[str, str]) -> None:
    said: list[Any] = []
    async with built(kind, addresses[kind]) as agent:
        for user, reply in DIALOGUE:
            request = turn(user)
            request = request._replace(messages=[*said, *request.messages])
            invocation = await agent.invoke(request)
            said = [*request.messages, *invocation.messages]
            assert texts(invocation)[-1] == ("assistant", reply)
    called = [call.function.name for message in said for call in message.tool_calls]
    assert called == ["find_slots", "book"]


async def test_the_agent_refuses_what_it_cannot_read(addresses: dict[str, str]) -> None:
    async with built("http", addresses["http"], {"body": {"question": "{{message}}"}}) as agent:
        failed = await failure(agent)
        assert failed.code == "CONNECTOR_REFUSED"
        assert "HTTP 400" in failed.message
