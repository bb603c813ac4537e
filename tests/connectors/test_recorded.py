"""Answers that real providers have given: every chat completion is read, whole or streamed, and nothing else is."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from evald_server.connectors.connector import Connector, ConnectorFailure

from ..judge.wire import answer, wire
from .building import built, turn

FILE = Path(__file__).parents[1] / "judge/recorded_http/recorded.jsonl"
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


async def outcome(agent: Connector) -> str:
    """Whether it answered, else the code of the failure."""
    try:
        return "calls" if (await agent.invoke(turn())).messages[-1].tool_calls else "text"
    except ConnectorFailure as failure:
        return failure.code


async def test_chat_completions_of_real_providers_are_read_and_nothing_else() -> None:
    found: Counter[tuple[str, int, str]] = Counter()
    for one in RECORDED:
        config = {"model": "x", "stream": "event-stream" in (one["content_type"] or ""), "maxAttempts": 1}
        given = answer(one["status"], one["body"], content_type=one["content_type"])
        async with wire(given) as server, built("openai-chat", server.base_url, config) as agent:
            found[one["kind"].partition("+")[0], one["status"], await outcome(agent)] += 1
    # The one bad answer to a chat is a stream that reports an error.
    assert found == {
        ("chat", 200, "text"): 56,
        ("chat", 200, "calls"): 22,
        ("chat", 200, "CONNECTOR_BAD_ANSWER"): 1,
        ("chat", 400, "CONNECTOR_REFUSED"): 5,
        ("chat", 404, "CONNECTOR_REFUSED"): 6,
        ("chat", 429, "CONNECTOR_REFUSED"): 3,
        ("responses", 200, "CONNECTOR_BAD_ANSWER"): 56,
        ("responses", 400, "CONNECTOR_REFUSED"): 5,
    }


async def test_responses_of_real_providers_are_read_without_config() -> None:
    found: Counter[str] = Counter()
    for one in RECORDED:
        if one["kind"].startswith("responses") and one["status"] == 200 and "stream" not in one["kind"]:
            async with wire(answer(200, one["body"])) as server, built("http", server.base_url) as agent:
                found[await outcome(agent)] += 1
    # The others are counts of tokens, and runs in the background that have only begun.
    assert found == {"text": 8, "calls": 9, "CONNECTOR_BAD_ANSWER": 11}
