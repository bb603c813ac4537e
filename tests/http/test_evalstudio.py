"""What EvalStudio's clients ask is answered as EvalStudio's server answers it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from ..connectors.test_langgraph import graph
from .api import REGEX, api

EXCHANGES = [
    json.loads(line)
    for line in Path(__file__).with_name("data").joinpath("evalstudio_http.jsonl").read_text().splitlines()
]


class Other(NamedTuple):
    """How evald answers differently. mended: keys with which the request is sent again, None for
    one that is left out; then evald answers as they did."""

    status: int
    why: str
    mended: dict[str, Any] | None = None


# By the position of the exchange. The reasons are those of docs/http.md.
OTHERS = {
    3: Other(501, "models and keys are settings of the server"),
    4: Other(200, "paths without a project work, too"),
    5: Other(404, "there is no such project, which is no fault of the server"),
    8: Other(400, "unknown types and unknown keys are refused", {"evaluators": [REGEX], "extra": None}),
    9: Other(400, "a scenario needs criteria", {"successCriteria": "x"}),
    11: Other(400, "a scenario needs criteria", {"successCriteria": "x"}),
    12: Other(400, "a scenario needs criteria", {"evaluators": [REGEX]}),
    18: Other(400, "secrets are named, never stored", {"headers": {"X-Team": "1"}}),
    19: Other(400, "unknown types of connectors are refused"),
    27: Other(501, "results are written by runs alone"),
    32: Other(501, "start a run"),
    39: Other(400, "a missing body is no fault of the server"),
}

# Keys that evald adds to their shapes, and the one that it leaves out.
MORE = {"aliases", "origin", "state", "version", "threadId", "verdict", "maxConcurrency"}
ERROR = {"code", "message", "details", "error"}
LESS = {"llmSettings"}
# Keys of what had come by chance when it was recorded, or comes with the agent that answers here.
BY_CHANCE = {"startedAt", "completedAt", "latencyMs", "output", "result"}


def _assert_shape(theirs: Any, ours: Any, added: frozenset[str] = frozenset()) -> None:
    """The same keys, at every depth but below configs."""
    if isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours:
            _assert_shape(theirs[0], ours[0], added)
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        assert theirs.keys() - ours.keys() <= LESS
        assert ours.keys() - theirs.keys() <= MORE | BY_CHANCE | added
        for key in (theirs.keys() & ours.keys()) - {"config", "configSchema", "headers", "output"}:
            _assert_shape(theirs[key], ours[key], added)
    else:
        assert (theirs is None) == (ours is None)


class Replay:
    """Sends the exchanges in order. ids: ours by theirs."""

    def __init__(self, client: httpx.AsyncClient, base: str) -> None:
        self._client = client
        self._base = base
        self.ids: dict[str, str] = {}

    async def send(self, exchange: Mapping[str, Any], mended: dict[str, Any] | None = None) -> httpx.Response:
        text = exchange["url"]
        base = "/api/projects/default" if text.endswith("/config") else self._base
        text = text.replace("/api/projects/p1", base)
        payload = exchange.get("payload")
        headers = exchange.get("headers", {})
        if isinstance(payload, dict):
            if mended is not None:
                payload = {key: value for key, value in (payload | mended).items() if value is not None}
            payload = json.dumps(payload)
            headers = {"content-type": "application/json"}
        for theirs, ours in self.ids.items():
            text = text.replace(theirs, ours)
            payload = payload.replace(theirs, ours) if payload else payload
        return await self._client.request(exchange["method"], text, content=payload, headers=headers)

    def learn(self, exchange: Mapping[str, Any], response: httpx.Response) -> None:
        """Note the ids of what both sides have created."""
        if exchange["method"] == "POST" and exchange["status"] == response.status_code == 201:
            theirs, ours = json.loads(exchange["body"]), response.json()
            pairs = zip(theirs, ours, strict=True) if isinstance(theirs, list) else [(theirs, ours)]
            self.ids |= {one["id"]: other["id"] for one, other in pairs}

    async def until_ended(self) -> None:
        for run in (await self._client.get(f"{self._base}/runs")).json():
            await self._client.get(f"{self._base}/runs/{run['id']}/events")


@pytest.mark.parametrize("base", ["/api", "/api/projects/default"])
async def test_recorded_exchanges_have_their_statuses_and_keys(base: str) -> None:
    async with api() as client, graph() as agent:
        replay = Replay(client, base)
        for position, exchange in enumerate(EXCHANGES):
            if position == 23:  # the agent answers from here on: the runs that are started have an end
                connector = replay.ids["3a3b8a49-cffb-4aae-b641-b5eb2c19fb22"]
                scenario = replay.ids["9387ce0c-d5ee-4a05-bb55-4f5222638128"]
                moved = {"baseUrl": agent.base_url, "headers": {"X-Team": "1"}}
                changed = await client.put(f"{base}/connectors/{connector}", json=moved)
                assert changed.status_code == 200, changed.text
                said = [{"role": "user", "content": "Hi"}]
                changed = await client.put(
                    f"{base}/scenarios/{scenario}",
                    json={"messages": said, "successCriteria": ""},
                )
                assert changed.status_code == 200, changed.text
            if position in (27, 33):
                await replay.until_ended()
            place = f"{position}: {exchange['method']} {exchange['url']}"
            response = await replay.send(exchange)
            other = OTHERS.get(position)
            if other is not None:
                assert response.status_code == other.status, (place, response.text)
                if other.mended is None:
                    continue
                response = await replay.send(exchange, other.mended)
            assert response.status_code == exchange["status"], (place, response.text)
            if response.status_code == 204:
                assert not response.content
                continue
            assert response.headers["content-type"] == "application/json"
            theirs, ours = json.loads(exchange["body"]), response.json()
            if response.status_code >= 400:
                assert {"code", "message"} <= ours.keys() <= ERROR, place
                assert "error" not in theirs or ours.get("error") == ours["message"] or "/api" not in place
            elif exchange["url"] == "/api/evaluator-types":
                by_type = {one["type"]: one for one in ours}
                for one in theirs:
                    _assert_shape(one, by_type[one["type"]] | {"description": ""})
            else:
                added = frozenset(other.mended or ()) if other is not None else frozenset()
                _assert_shape(theirs, ours, added)
            replay.learn(exchange, response)
        assert len(replay.ids) == 7


P = "/api/projects/default"
# All that its web client calls, with a body where it sends one; {kind} stands for the id of one that there is.
CALLS = [
    ("GET", "/api/status"),
    ("GET", "/api/llm-providers/models"),
    ("GET", "/api/llm-providers/openai/models"),
    ("GET", "/api/projects"),
    ("POST", "/api/projects"),
    ("DELETE", "/api/projects/default"),
    ("GET", f"{P}/config"),
    ("PUT", f"{P}/config"),
    *[
        (method, f"{P}/{plural}{path}")
        for plural in ("scenarios", "personas", "connectors", "evals")
        for method, path in (("GET", ""), ("GET", "/{}"), ("POST", ""), ("PUT", "/{}"), ("DELETE", "/{}"))
    ],
    ("POST", f"{P}/personas/{{}}/generate-image"),
    ("POST", f"{P}/images"),
    ("GET", f"{P}/images/{{}}"),
    ("DELETE", f"{P}/images/{{}}"),
    ("GET", f"{P}/scenarios/{{}}/prompt"),
    ("GET", f"{P}/scenarios/{{}}/prompt?personaId={{}}"),
    ("GET", f"{P}/evals/{{}}?expand=true"),
    ("GET", f"{P}/connectors/types"),
    ("POST", f"{P}/connectors/{{}}/test"),
    ("POST", f"{P}/connectors/{{}}/invoke"),
    ("GET", f"{P}/runs"),
    ("GET", f"{P}/runs/{{}}"),
    ("POST", f"{P}/runs"),
    ("POST", f"{P}/runs/playground"),
    ("POST", f"{P}/runs/chat"),
    ("PUT", f"{P}/runs/{{}}"),
    ("DELETE", f"{P}/runs/{{}}"),
    ("POST", f"{P}/runs/{{}}/retry"),
]


async def test_every_call_of_its_web_client_has_an_answer_or_a_reason() -> None:
    async with api() as client:
        for method, path in CALLS:
            place = f"{method} {path}"
            response = await client.request(
                method, path.replace("{}", "none"), json={} if method != "GET" else None
            )
            if response.status_code in (404, 501):
                # 404: of the thing that there is not, and not of the route.
                assert "lists all paths" not in response.json()["error"], place
                assert len(response.json()["error"]) > 30, place
            else:
                assert response.status_code in (200, 400), (place, response.text)
