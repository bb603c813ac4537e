"""The routes below /api: what they answer, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from evald.convert.runs import run_to_json
from evald.v1 import result_pb2, run_service_pb2
from evald_server.auth.principal import Role
from evald_server.http.api.routes import ROUTES

from ..auth.keyring import make_key
from .api import CHAT, REGEX, REPLAY, api, lines_of, ndjson

BODY = {"messages": CHAT, "evaluators": [REGEX]}

BAD_BODIES: dict[str, tuple[str, str, Any, str]] = {
    "no JSON": ("POST", "/scenarios", "{bad", "body: "),
    "no UTF-8": ("POST", "/scenarios", b'{"name": "\xff"}', "body: invalid UTF-8 at byte 10"),
    "nothing": ("POST", "/scenarios", "", "body: empty; wanted JSON"),
    "NaN": ("POST", "/evaluate", '{"messages": [], "latencyMs": NaN}', "body: "),
    "too much": (
        "POST",
        "/evaluate",
        f"[{'1,' * 150_000}1]",
        "body: 150001 or more keys and values; wanted at most",
    ),
    "deep": ("POST", "/evaluate", "[" * 5000, "body: JSON is nested deeper"),
    "a level more": ("POST", "/evaluate", f"{'[' * 501}{']' * 501}", "body: JSON is nested deeper"),
    "a list": ("POST", "/scenarios", [], "body: got [] (list); wanted an object"),
    "labels as a list": (
        "POST",
        "/evaluate",
        {"labels": ["a"]},
        "labels: got ['a'] (list); wanted an object",
    ),
    "a list for an evaluation": ("POST", "/evaluate", [], "body: got [] (list); wanted an object"),
    "an unknown key": (
        "POST",
        "/personas",
        {"name": "a", "discription": ""},
        "discription: unknown key; wanted 'description'",
    ),
    "half a surrogate": ("POST", "/personas", '{"name": "\\ud800"}', "name: half of a surrogate pair"),
    "half a surrogate as key": ("POST", "/personas", '{"\\ud800": 1}', "?: unknown key"),
    "a wrong type": ("POST", "/scenarios", {"name": 1}, "name: got 1 (int); wanted text"),
    "a wrong place": ("POST", "/scenarios", {"name": "a", "evaluators": [{}]}, "evaluators[0].type: missing"),
    "a wrong config": (
        "POST",
        "/scenarios",
        {"name": "a", "evaluators": [{"type": "regex"}]},
        "evaluators[0].config.pattern: missing",
    ),
    "an unknown type": (
        "POST",
        "/scenarios",
        {"name": "a", "evaluators": ["regx"]},
        'evaluators[0].type: unknown evaluator type "regx"; did you mean "regex"',
    ),
    "an unknown type in a call": (
        "POST",
        "/evaluate",
        BODY | {"evaluators": ["regx"]},
        "evaluators[0].type: unknown evaluator type",
    ),
    "no criteria": ("POST", "/scenarios", {"name": "a"}, "Scenario must have evaluation criteria"),
    "a mask as secret": (
        "POST",
        "/connectors",
        {"name": "a", "type": "http", "baseUrl": "http://a", "headers": {"x": "***"}},
        "headers.x: ",
    ),
    "an unknown connector": (
        "POST",
        "/connectors",
        {"name": "a", "type": "htp", "baseUrl": "http://a"},
        "connector.type: ",
    ),
    "no eval": ("POST", "/runs", {}, "evalId: missing; wanted an id"),
    "half of a run": ("POST", "/runs/playground", {"scenarioId": "a"}, "connectorId: missing"),
    "a misspelled key in a call": ("POST", "/evaluate", BODY | {"latenzyMs": 3}, "latenzyMs: unknown key"),
    "no options": ("POST", "/evaluate", BODY | {"options": 3}, "options: got 3"),
    "no validation": ("POST", "/validate", {"evaluator": []}, "evaluator: unknown key; wanted 'evaluators'"),
    "no batch": ("POST", "/evaluate-batch", {"messages": []}, "line 1.messages: unknown key"),
    "no suite": ("POST", "/suite-runs", {"suit": "a"}, "line 1.suit: unknown key; wanted 'suite'"),
}

BAD_QUERIES = {
    "/runs?foo=1": "foo: unknown parameter",
    "/runs?scenarioID=1": "scenarioID: unknown parameter; wanted 'scenarioId'",
    "/runs?limit=0": "limit: got '0' (str); wanted a whole number from 1 to 1000",
    "/runs?limit=x": "limit: got 'x'",
    "/runs?verdict=bogus": "verdict: got 'bogus' (str); wanted PASSED or FAILED or ERROR or SKIPPED",
    "/runs?since=yesterday": "since: got 'yesterday'",
    "/runs?cursor=zzz": "cursor: got 'zzz' (str); wanted that of a link to the next page, or none",
    "/runs/none/events?after=-1": "Last-Event-ID: got '-1'",
    "/suite-runs/compare?base=a": "new: missing; wanted the id of a suite run",
    "/suite-runs/compare?base=a&new=b&maxDrop=2": "maxDrop: got '2'",
    "/status?a=1": "a: unknown parameter; wanted none",
    "/runs?messages=no": "messages: got 'no' (str); wanted true or false",
}


async def test_what_cannot_be_read_is_refused_with_its_place() -> None:
    async with api() as client:
        for name, (method, path, body, message) in BAD_BODIES.items():
            content = body if isinstance(body, str | bytes) else json.dumps(body)
            headers = {"content-type": "application/json"}
            response = await client.request(method, f"/api{path}", content=content, headers=headers)
            assert response.status_code == 400, (name, response.text)
            assert message in response.json()["error"], name
            assert response.json()["error"] == response.json()["message"], name
        for path, message in BAD_QUERIES.items():
            response = await client.get(f"/api{path}")
            assert response.status_code == 400, (path, response.text)
            assert response.json()["error"].startswith(message), path


async def test_other_statuses_say_what_is_wrong() -> None:
    async with api() as client:
        for method, path, status in (
            ("GET", "/scenarios/none", 404),
            ("PUT", "/scenarios/none", 404),
            ("DELETE", "/personas/none", 404),
            ("GET", "/evaluator-types/none", 404),
            ("GET", "/runs/none/turns", 404),
            ("GET", "/runs/none/events", 404),
            ("GET", "/suite-runs/none", 404),
            ("GET", "/calibrations/none", 404),
            ("GET", "/projects/other/runs", 404),
            ("GET", "/projects/other/config", 404),
            ("PATCH", "/scenarios/none", 405),
            ("DELETE", "/status", 405),
            ("HEAD", "/runs/none/events", 404),
            ("POST", "/runs/chat", 501),
        ):
            response = await client.request(method, f"/api{path}", json={} if method == "PUT" else None)
            assert response.status_code == status, (method, path, response.text)
            if method != "HEAD":
                assert response.json()["error"], path
        assert response.json()["error"].startswith("evald does not support POST /api")
        refused = await client.request("PATCH", "/api/runs")
        assert refused.headers["allow"] == "GET, POST, HEAD"
        assert refused.json()["error"] == "/api/runs: got method PATCH, wanted GET, POST, HEAD"
        missing = (await client.get("/api/nothing")).json()["error"]
        assert missing == "/api/nothing does not exist; /api/openapi.json lists all paths"
        assert (await client.get("/nothing")).json()["message"] == "/nothing does not exist"
        assert (await client.head("/api/status")).status_code == 200


async def test_a_patch_changes_what_it_names_and_clears_what_is_empty() -> None:
    async with api() as client:
        wanted = {
            "name": "A",
            "instructions": "Move it.",
            "maxMessages": 4,
            "failureCriteria": "x",
            "failureCriteriaMode": "every_turn",
            "evaluators": [REGEX],
            "messages": CHAT[:1],
            "id": "ignored",
        }
        made = (await client.post("/api/scenarios", json=wanted)).json()
        assert made["id"] != "ignored"
        assert made["createdAt"] == made["updatedAt"]
        assert made.items() >= {key: value for key, value in wanted.items() if key != "id"}.items()
        url = f"/api/scenarios/{made['id']}"
        changed = (await client.put(url, json={"instructions": None, "max_messages": 6})).json()
        assert (changed["instructions"], changed["maxMessages"]) == ("Move it.", 6)
        empty = {"instructions": "", "failureCriteriaMode": "", "messages": []}
        cleared = (await client.put(url, json=empty)).json()
        assert cleared["instructions"] == ""
        assert not {"failureCriteriaMode", "messages"} & cleared.keys()
        back = await client.put(url, json=cleared)
        assert (back.status_code, back.json()) == (200, cleared | {"updatedAt": back.json()["updatedAt"]})
        unchanged = await client.put(url, json={"name": None})
        assert unchanged.json() == back.json()


STORED = {
    "scenarios": {"name": "A", "evaluators": [REGEX]},
    "personas": {"name": "A", "script": ["hi"]},
    "connectors": {"name": "A", "type": "replay", "config": REPLAY},
    "evals": {"name": "A"},
}


@pytest.mark.parametrize("kind", STORED)
async def test_who_names_an_older_version_neither_changes_nor_deletes(kind: str) -> None:
    async with api() as client:
        wanted: dict[str, Any] = STORED[kind]
        if kind == "evals":
            named = await client.post("/api/scenarios", json=STORED["scenarios"])
            agent = await client.post("/api/connectors", json=STORED["connectors"])
            wanted = wanted | {"scenarioIds": [named.json()["id"]], "connectorId": agent.json()["id"]}
        made = await client.post(f"/api/{kind}", json=wanted)
        url = f"/api/{kind}/{made.json()['id']}"
        got = await client.get(url)
        read = {"If-Match": got.headers["etag"]}
        assert made.headers["etag"] == got.headers["etag"]
        changed = await client.put(url, json={"name": "B"}, headers=read)
        assert changed.status_code == 200
        assert changed.headers["etag"] == (await client.get(url)).headers["etag"] != got.headers["etag"]
        for refused in (
            await client.put(url, json={"name": "C"}, headers=read),
            await client.delete(url, headers=read),
        ):
            assert refused.status_code == 412
            assert "read it again" in refused.json()["error"]
            assert refused.json()["details"][0]["reason"] == "RESOURCE_CHANGED"
        for other in ('W/"1"', "none", '"none"', f"{changed.headers['etag']}, {read['If-Match']}"):
            refused = await client.delete(url, headers={"If-Match": other})
            assert (refused.status_code, refused.json()["error"][:10]) == (400, "If-Match: ")
        # The one that was heard, and whose answer was lost, can be sent again.
        again = await client.put(url, json={"name": "B"}, headers=read)
        assert (again.status_code, again.json()) == (200, changed.json())
        assert (await client.put(url, json={"name": "D"}, headers={"If-Match": "*"})).status_code == 200
        now = (await client.head(url)).headers["etag"]
        assert (await client.delete(url, headers={"If-Match": now})).status_code == 204


async def test_secrets_of_connectors_are_masked_and_kept() -> None:
    async with api() as client:
        wanted = {"name": "C", "type": "http", "baseUrl": "http://127.0.0.1:9", "headers": {"X-Team": "blue"}}
        made = await client.post("/api/connectors", json=wanted)
        assert made.json()["headers"] == {"X-Team": "***"}
        url = f"/api/connectors/{made.json()['id']}"
        changed = await client.put(url, json={"name": "D", "headers": {"X-Team": "***", "X-Other": "new"}})
        assert changed.status_code == 200, changed.text
        assert changed.json()["headers"] == {"X-Team": "***", "X-Other": "***"}
        for moved in ({}, changed.json()):
            refused = await client.put(url, json={**moved, "baseUrl": "http://127.0.0.1:8"})
            assert refused.status_code == 400, refused.text
            assert "headers['X-Other']: its stored value was given for another" in refused.json()["error"]
            assert "headers['X-Team']" in refused.text
        assert "blue" not in (await client.get(url)).text + (await client.get("/api/connectors")).text


async def test_lists_are_bare_and_link_to_what_follows() -> None:
    async with api() as client:
        for number in range(5):
            await client.post("/api/personas", json={"name": f"P{number}"})
        names, url = [], "/api/projects/default/personas?limit=2"
        while url:
            page = await client.get(url)
            names.append([one["name"] for one in page.json()])
            url = page.links.get("next", {}).get("url", "")
        assert names == [["P0", "P1"], ["P2", "P3"], ["P4"]]


async def _run(client: httpx.AsyncClient) -> dict[str, Any]:
    """A run that has ended, of a recorded answer."""
    scenario = {"name": "Booking", "evaluators": [REGEX], "maxMessages": 2}
    made = {
        "scenarioId": (await client.post("/api/scenarios", json=scenario)).json()["id"],
        "connectorId": (
            await client.post("/api/connectors", json={"name": "r", "type": "replay", "config": REPLAY})
        ).json()["id"],
    }
    started = await client.post("/api/runs/playground", json=made)
    assert started.status_code == 201, started.text
    url = f"/api/runs/{started.json()['id']}"
    await client.get(f"{url}/events")  # until it has ended
    found: dict[str, Any] = (await client.get(url)).json()
    return found


async def test_a_run_is_shown_watched_and_listed() -> None:
    async with api() as client:
        run = await _run(client)
        assert (run["status"], run["verdict"], run["result"]["success"]) == ("completed", "PASSED", True)
        assert run["output"]["evaluatorResults"][0]["value"] == 1
        url = f"/api/runs/{run['id']}"
        turns = (await client.get(f"{url}/turns")).json()
        assert [turn["evaluation"]["evaluatorResults"][0]["verdict"] for turn in turns] == ["PASSED"]

        whole = await client.get(f"{url}/events")
        assert whole.headers["content-type"].startswith("text/event-stream")
        events = [
            dict(line.split(": ", 1) for line in text.splitlines())
            for text in whole.text.split("\n\n")
            if text
        ]
        assert [event["event"] for event in events][-3:] == ["result", "turn", "end"]
        assert [json.loads(event["data"])["sequence"] for event in events] == [
            int(event["id"]) for event in events
        ]
        rest = await client.get(f"{url}/events", headers={"last-event-id": events[-2]["id"]})
        assert [line for line in rest.text.splitlines() if line.startswith("id: ")] == [
            f"id: {events[-1]['id']}"
        ]

        assert [one["id"] for one in (await client.get("/api/runs")).json()] == [run["id"]]
        for query, found in (
            ("status=completed", 1),
            ("status=bogus", 0),
            ("verdict=FAILED", 0),
            ("verdict=passed&messages=false", 1),
            (f"scenarioId={run['scenarioId']}&status=error", 0),
            ("since=2020-01-01", 1),
            ("until=2020-01-01T00:00:00Z", 0),
            ("evaluator=regex", 0),
        ):
            listed = (await client.get(f"/api/runs?{query}")).json()
            assert len(listed) == found, query
            assert all(bool(one["messages"]) != ("messages=false" in query) for one in listed)
        for action in ("retry", "cancel", "resume"):
            assert (await client.post(f"{url}/{action}")).status_code == 400
        assert (await client.delete(url)).status_code == 204


def test_a_run_whose_verdict_is_error_reads_status_error_with_the_reason() -> None:
    broken = run_service_pb2.Run(id="1", verdict=result_pb2.VERDICT_ERROR)
    broken.status = run_service_pb2.RUN_STATUS_COMPLETED
    broken.result.reason = "regex: TIMEOUT after 2,000 ms"
    data = run_to_json(broken)
    assert (data["status"], data["error"]) == ("error", "regex: TIMEOUT after 2,000 ms")
    broken.status = run_service_pb2.RUN_STATUS_ERROR
    broken.error.code, broken.error.message = "CONNECTOR_TIMEOUT", "no answer"
    data = run_to_json(broken)
    assert (data["status"], data["error"]) == ("error", "no answer")


async def test_the_same_idempotency_key_starts_one_run() -> None:
    async with api() as client:
        run = await _run(client)
        body = {"scenarioId": run["scenarioId"], "connectorId": run["connectorId"]}
        key = {"idempotency-key": "7c2f8a1e-54a3-4f0c-9a68-0a3c9a5c2f11"}
        ids = {
            (await client.post("/api/runs/playground", json=body, headers=key)).json()["id"] for _ in range(2)
        }
        assert len(ids) == 1
        answers = [(await client.post("/api/evaluate", json=BODY, headers=key)).text for _ in range(2)]
        assert answers[0] == answers[1]
        assert key["idempotency-key"] in answers[0]


async def test_an_evaluation_is_one_document_or_a_stream() -> None:
    async with api() as client:
        whole = (await client.post("/api/evaluate", json=BODY)).json()
        assert whole["evaluationId"]
        assert (whole["success"], whole["verdict"], whole["score"]) == (True, "PASSED", 1)
        assert [result["value"] for result in whole["evaluatorResults"]] == [1]
        lines = lines_of(
            await client.post("/api/evaluate", json=BODY, headers={"accept": "application/x-ndjson"})
        )
        assert [line["event"] for line in lines] == ["started", "result", "summary"]
        assert lines[-1]["summary"].keys() == whole.keys()
        events = await client.post("/api/evaluate", json=BODY, headers={"accept": "text/event-stream"})
        assert "event: result\ndata: {" in events.text


async def test_a_question_without_an_answer_fails() -> None:
    """An agent that gives no answer must not pass with its answer to an earlier question."""
    asked = {**BODY, "messages": [*BODY["messages"], {"role": "user", "content": "And now?"}]}
    async with api() as client:
        got = (await client.post("/api/evaluate", json=asked)).json()
        assert (got["verdict"], got["reason"]) == ("FAILED", "No assistant message found")
        lines = [{"evaluators": [REGEX]}, {"id": "asked", "messages": asked["messages"]}]
        answers = lines_of(await client.post("/api/evaluate-batch", **ndjson(lines)))
        assert answers[0]["evaluation"]["reason"] == "No assistant message found"


async def test_a_batch_answers_every_line_and_sums_up() -> None:
    bad = [CHAT[0], {"role": "assistant", "content": "No."}]
    lines = [
        {"evaluators": [REGEX]},
        {"id": "good", "messages": CHAT},
        {"messages": bad},
        "{",
        {"id": "odd", "mesages": []},
    ]
    async with api() as client:
        answers = lines_of(await client.post("/api/evaluate-batch", **ndjson(lines)))
    outcomes = {one["id"]: one.get("evaluation", one.get("error")) for one in answers[:-1]}
    assert (outcomes["good"]["verdict"], outcomes["3"]["verdict"]) == ("PASSED", "FAILED")
    assert outcomes["4"]["message"].startswith("line 4: ")
    assert outcomes["odd"]["message"].startswith("mesages: unknown key")
    counts = {"itemCount": 4, "passedCount": 1, "failedCount": 1, "errorCount": 2, "skippedCount": 0}
    assert answers[-1]["event"] == "summary"
    assert answers[-1]["summary"].items() >= counts.items()


async def test_a_suite_runs_is_stored_and_compared() -> None:
    def case(name: str, text: str) -> dict[str, Any]:
        said = [{"role": "assistant", "content": text}]
        return {
            "caseId": name,
            "turns": [{"input": CHAT[:1], "expected": "BK-1"}],
            "recordedTrials": [{"answers": [{"messages": said, "latencyMs": 12}]}],
        }

    async with api() as client:
        ids = []
        for texts in (("BK-1", "BK-2"), ("BK-1", "none")):
            opening = {"suite": "s", "evaluators": [REGEX], "options": {"failFast": True}, "caseCount": 2}
            cases = [case(f"c{number}", text) for number, text in enumerate(texts)]
            lines = lines_of(await client.post("/api/suite-runs", **ndjson([opening, *cases])))
            assert [line["event"] for line in lines] == ["started", "result", "result", "ended"]
            ids.append(lines[-1]["suiteRun"]["id"])
        assert lines[-1]["suiteRun"]["verdict"] == "FAILED"
        assert [run["id"] for run in (await client.get("/api/suite-runs?suite=s")).json()] == ids[::-1]
        shown = (await client.get(f"/api/suite-runs/{ids[0]}")).json()
        assert (shown["status"], shown["passRate"]["value"]) == ("completed", 1)
        cases = (await client.get(f"/api/suite-runs/{ids[1]}/cases?verdict=FAILED")).json()
        assert [one["caseId"] for one in cases] == ["c1"]
        comparison = (await client.get(f"/api/suite-runs/compare?base={ids[0]}&new={ids[1]}")).json()
        assert (comparison["pairCount"], comparison["brokenCount"]) == (2, 1)
        assert comparison["changes"][0]["newVerdict"] == "FAILED"
        broken = await client.post("/api/suite-runs", **ndjson([opening, {"caseId": "a", "turn": []}]))
        assert (broken.status_code, broken.json()["error"]) == (
            400,
            "line 2.turn: unknown key; wanted 'turns'",
        )


@pytest.mark.parametrize("path", ["/evaluate", "/evaluate-batch"])
async def test_a_body_that_is_too_large_is_refused(path: str) -> None:
    async with api(max_message_bytes=2000) as client:
        response = await client.post(f"/api{path}", **ndjson([{"evaluators": ["x" * 3000]}]))
    assert response.status_code == 413
    assert response.json()["error"] == "the body is larger than 2000 bytes, the limit"


async def test_who_may_not_call_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    viewer = make_key(keys, "screen", Role.VIEWER)
    async with api(keys_file=keys) as client:
        for method, path in ((route.method, f"/api{route.path}") for route in ROUTES):
            url = path.replace("{projectId}", "default").replace("{", "").replace("}", "")
            nobody = await client.request(method, url, **ndjson(["{bad"]))
            assert (nobody.status_code, nobody.headers.get("www-authenticate")) == (401, "Bearer"), (
                method,
                path,
            )
        known = {"authorization": f"Bearer {viewer}"}
        assert (await client.get("/api/status", headers=known)).status_code == 200
        bad = await client.post(
            "/api/runs", content="{bad", headers=known | {"content-type": "application/json"}
        )
        assert bad.status_code == 403
