"""Scenarios, personas, connectors, experiments and runs from the command line, against a real server."""

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evald.v1 import run_service_pb2
from evald_server.cli.demo_agent import serve_agent
from evald_server.cli.parser import parse
from evald_server.cli.server_client import KINDS, open_server
from evald_server.store.database import FILE_NAME

from ..processes import server_process

APPOINTMENT = Path(__file__).parents[2] / "server/evald_server/cli/demo_data/appointment.yaml"


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    with serve_agent() as (address, _):
        yield address


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of this module."""
    with server_process(stderr=subprocess.DEVNULL) as server:
        yield server.grpc


@pytest.fixture
async def server(address: str) -> str:
    """The server, with nothing stored."""
    async with open_server(parse(["runs", "list", "--server", address])) as store:
        for run in [run async for run in store.runs({})]:
            await store.call(run_service_pb2.DeleteRunRequest(run_id=run.id))
        for kind in KINDS.values():
            for one in [one async for one in store.every(kind)]:
                await store.delete(kind, one.id)
    return address


@pytest.fixture
def cli(evald: Any, server: str) -> Callable[..., Any]:
    """Runs a command against the server."""

    def run(*arguments: str, code: int = 0, stdin: str = "") -> str:
        done = evald(*arguments, "--server", server, stdin=stdin)
        assert done.returncode == code, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    return run


@pytest.fixture
def project(tmp_path: Path, agent: str) -> Path:
    """The demo's project with the address of this test's agent, and an experiment."""
    path = tmp_path / "evald.yaml"
    text = APPOINTMENT.read_text().replace("127.0.0.1:50071", agent)
    path.write_text(
        f"{text}experiments:\n  - {{name: nightly, scenarioIds: [Appointment], connectorId: salon}}\n"
    )
    return path


def _json(cli: Any, *arguments: str, **more: Any) -> Any:
    return json.loads(cli(*arguments, "--json", **more))


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_project_is_stored_and_stored_again_without_change(cli: Any, project: Path) -> None:
    assert "4 created" in cli("import", str(project))
    assert cli("import", str(project)).splitlines()[-1] == "4 unchanged"
    project.write_text(project.read_text().replace("maxMessages: 10", "maxMessages: 8"))
    outcomes = {line["name"]: line["outcome"] for line in _lines(cli("import", str(project), "--json"))}
    assert outcomes == {
        "Maria": "unchanged",
        "salon": "unchanged",
        "Appointment": "updated",
        "nightly": "unchanged",
    }
    (scenario,) = _json(cli, "scenarios", "list")
    (persona,) = _json(cli, "personas", "list")
    assert (scenario["maxMessages"], scenario["personaIds"]) == (8, [persona["id"]])
    assert set(scenario) == {
        *("id", "name", "instructions", "maxMessages", "personaIds", "evaluators", "createdAt", "updatedAt"),
    }


def test_what_is_exported_is_imported_elsewhere(cli: Any, project: Path, tmp_path: Path) -> None:
    cli("import", str(project))
    cli("runs", "start", "Appointment", "--connector", "salon", "--persona", "Maria")
    export = tmp_path / "all.jsonl"
    kinds = ("personas", "connectors", "scenarios", "experiments", "runs")
    written = {kind: cli(kind, "export") for kind in kinds}
    export.write_text("".join(written.values()))
    before = _json(cli, "runs", "list")[0]["id"]
    assert cli("import", str(export)).splitlines()[-1] == "5 unchanged"
    cli("runs", "delete", before)
    for kind in ("experiments", "scenarios", "connectors", "personas"):
        cli(kind, "delete", _json(cli, kind, "list")[0]["name"])
    assert cli("import", str(export)).splitlines()[-1] == "5 created"
    for kind in kinds:
        without_times = [
            {key: value for key, value in line.items() if not key.endswith("edAt") or kind == "runs"}
            for line in _lines(cli(kind, "export")) + _lines(written[kind])
        ]
        assert without_times[0] == without_times[1], kind


def test_a_run_is_shown_as_it_goes_on_and_afterwards(cli: Any, project: Path) -> None:
    cli("import", str(project))
    live = cli("runs", "start", "Appointment", "--connector", "salon", "--persona", "Maria")
    for expected in (
        'assistant  calls find_slots({"day": "friday"})',
        "Booked: Friday at 10:30. Your reference is BK-51030.",
        "turn 3, final",
        "│ looks-before-booking │ ✓ Pass",
        "PASSED",
    ):
        assert expected in live
    assert live.index("user       Hello") < live.index("turn 3") < live.index("Assertions")
    (run,) = _json(cli, "runs", "list", "--scenario", "Appointment", "--verdict", "passed", "--since", "1h")
    assert (run["status"], run["verdict"], run["result"]["success"]) == ("completed", "PASSED", True)
    shown = cli("runs", "show", run["id"])
    assert live.splitlines()[-1] in shown
    assert "Booked: Friday at 10:30" in shown
    whole = _json(cli, "runs", "show", run["id"])
    assert [turn["turn"] for turn in whole["turns"]] == [1, 2, 3]
    assert whole["scenario"]["name"] == "Appointment"
    for none in (("--verdict", "failed"), ("--status", "queued"), ("--until", "2020-01-01")):
        assert _json(cli, "runs", "list", *none) == []


def test_events_are_lines_of_json(cli: Any, project: Path) -> None:
    cli("import", str(project))
    found = _lines(
        cli("runs", "start", "Appointment", "--connector", "salon", "--persona", "Maria", "--json")
    )
    assert [line["sequence"] for line in found] == sorted(line["sequence"] for line in found)
    kinds = [line["event"] for line in found]
    assert kinds.count("turn") == 3
    assert kinds[-1] == "end"
    assert found[-1]["run"]["verdict"] == "PASSED"
    (again,) = {line["runId"] for line in found}
    assert _lines(cli("runs", "watch", again, "--json")) == found


def test_the_exit_code_of_an_experiment_is_the_worst(cli: Any, project: Path) -> None:
    text = project.read_text().replace("scenarioIds: [Appointment]", "scenarioIds: [Appointment, Wrong]")
    wrong = (
        "  - {name: Wrong, maxMessages: 6, personaIds: [Maria], "
        "evaluators: [{type: contains, config: {text: never}}]}\nexperiments:\n"
    )
    project.write_text(text.replace("experiments:\n", wrong))
    cli("import", str(project))
    shown = cli("runs", "start", "--experiment", "nightly", code=1)
    assert "1 of 2 runs passed, 1 failed" in shown
    queued = cli("runs", "start", "--experiment", "nightly", "--no-watch").split()
    assert len(queued) == 2
    execution = str(_json(cli, "runs", "list")[0]["executionId"])
    assert len(_json(cli, "runs", "list", "--execution", execution)) == 2
    cli("runs", "watch", *queued, code=1)


def test_an_agent_that_is_not_there_is_inconclusive_and_can_be_retried(
    cli: Any, project: Path, agent: str
) -> None:
    project.write_text(project.read_text().replace(agent, "127.0.0.1:1"))
    cli("import", str(project))
    assert "✗" in cli("connectors", "test", "salon", code=3)
    shown = cli("runs", "start", "Appointment", "--connector", "salon", "--persona", "Maria", code=3)
    assert "CONNECTOR_UNAVAILABLE" in shown
    run_id = re.search(r"next: evald runs retry (\S+)", shown)
    assert run_id
    assert "attempt 2: the run starts again" in cli("runs", "retry", run_id[1], code=3)
    assert "can be resumed" in cli("runs", "resume", run_id[1], code=2)


def test_an_agent_can_be_tried_before_it_is_stored(cli: Any, agent: str, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(f"name: x\ntype: grpc\nbaseUrl: {agent}\n")
    file = str(tmp_path / "agent.yaml")
    answer = _json(cli, "connectors", "test", "--file", file, "--message", "On Friday?")
    assert set(answer) == {"success", "latencyMs", "response"}
    assert "10:30" in answer["response"]
    types = {one["type"] for one in _json(cli, "connectors", "types")}
    assert types >= {"openai-chat", "http", "langgraph", "grpc", "replay"}
    assert "timeoutSeconds" in cli("connectors", "types", "grpc")


def test_changes_touch_only_the_keys_they_have(cli: Any, project: Path) -> None:
    cli("import", str(project))
    cli(
        "scenarios",
        "update",
        "Appointment",
        "-",
        stdin='{"instructions": "", "goal": null, "maxMessages": 8}',
    )
    scenario = _json(cli, "scenarios", "show", "Appointment")
    assert (scenario["instructions"], scenario["maxMessages"]) == ("", 8)
    assert len(scenario["evaluators"]) == 4
    cli("scenarios", "create", "-", stdin="name: Other\nevaluators: [is-json]\n")
    assert 'did you mean "Appointment"?' in cli("scenarios", "show", "Apointment", code=2)
    cli("scenarios", "delete", "Other", "Appointment")
    assert _json(cli, "scenarios", "list") == []


@pytest.mark.parametrize(
    ("command", "stdin", "problem"),
    [
        ("create", "name: A\nevaluators: [regx]", "regx"),
        (
            "create",
            "name: A\nevaluator: [regex]",
            "stdin:1: scenario: evaluator: unknown key; wanted 'evaluators'",
        ),
        ("create", "name: A", "Scenario must have evaluation criteria"),
        ("create", '{"kind": "persona", "name": "A"}', "wanted scenario"),
        (
            "import",
            '{"name": "A", "evaluators": ["regx"]}\n{"name": "B", "evaluators": ["is-json"]}',
            "stdin:1",
        ),
        ("import", '{"name": "A", "evaluators": ["is-json"]}\n{"nam": "B"}', "nothing was stored"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(cli: Any, command: str, stdin: str, problem: str) -> None:
    assert problem in cli("scenarios", command, "-", stdin=stdin, code=2)
    stored = [one["name"] for one in _json(cli, "scenarios", "list")]
    assert stored == (["B"] if "regx" in stdin and command == "import" else [])


def test_a_masked_header_is_not_stored_as_a_value(cli: Any) -> None:
    line = json.dumps({"name": "A", "type": "http", "baseUrl": "http://127.0.0.1:1", "headers": {"X": "***"}})
    assert "headers.X" in cli("connectors", "create", "-", stdin=line, code=2)
    assert "headers.X" in cli("connectors", "import", "-", stdin=line, code=2)


def test_a_workspace_of_evalstudio_is_imported_with_its_runs(cli: Any, tmp_path: Path) -> None:
    times = {"createdAt": "2026-11-22T04:48:28.684Z", "updatedAt": "2026-11-22T04:48:28.684Z"}
    data: dict[str, list[dict[str, Any]]] = {
        "personas": [{"id": "p1", "name": "Maria", "imageUrl": "images/p1.png", **times}],
        "connectors": [
            {
                "id": "c1",
                "name": "staging",
                "type": "langgraph",
                "baseUrl": "http://127.0.0.1:2024",
                "config": {"assistantId": "agent"},
                **times,
            }
        ],
        "scenarios": [
            {
                "id": "s1",
                "name": "Booking",
                "messages": [{"role": "user", "content": "Hi", "id": "m1"}],
                "successCriteria": "booked",
                "personaIds": ["p1"],
                **times,
            },
            {"id": "s2", "name": "Empty", **times},
        ],
        "evals": [{"id": "e1", "name": "E", "scenarioIds": ["s1"], "connectorId": "c1", **times}],
        "runs": [
            {
                "id": "r1",
                "evalId": "e1",
                "scenarioId": "s1",
                "connectorId": "c1",
                "executionId": 1,
                "status": "completed",
                "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
                "output": {"avgLatencyMs": 5, "totalLatencyMs": 5, "messageCount": 2},
                "result": {"success": False, "score": 0.9, "reason": "not booked"},
                "latencyMs": 5,
                **times,
            },
            {"id": "r2", "status": "chat", "messages": [], "metadata": {}, **times},
            {"id": "r3", "status": "running", "messages": [], "latencyMs": None, **times},
        ],
    }
    folder = tmp_path / "projects/p/data"
    folder.mkdir(parents=True)
    for name, records in data.items():
        (folder / f"{name}.json").write_text(json.dumps(records, indent=2))
    config = {"version": 3, "name": "w", "llmSettings": {}, "projects": [{"id": "p", "name": "P"}]}
    (tmp_path / "evalstudio.config.json").write_text(json.dumps(config))
    shown = cli("import", str(tmp_path), code=2)
    assert "5 created, 1 refused" in shown
    assert re.search(r"scenarios\.json:\d+: scenario: .*Scenario must have evaluation criteria", shown)
    assert re.search(r"left out  .*runs.json:\d+: run: got status chat, wanted a run that has ended", shown)
    assert "got status running" in shown
    again = _lines(cli("import", str(tmp_path), "--json", code=2).rpartition("}")[0] + "}")
    assert sum(line["outcome"] == "left out" for line in again) == 3
    assert "this command imports only scenarios" in cli("scenarios", "import", str(tmp_path), code=2)
    assert "llmSettings: models and their API keys are settings of the server" in shown
    (run,) = _json(cli, "runs", "list", "--experiment", "E")
    assert run["id"] == "r1"
    assert (run["verdict"], run["result"]["reason"], run["createdAt"]) == (
        "FAILED",
        "not booked",
        "2026-11-22T04:48:28.684Z",
    )
    assert "staging" in cli("runs", "list")


def test_one_bad_run_does_not_end_the_watch_of_the_others(cli: Any, project: Path) -> None:
    cli("import", str(project))
    cli("runs", "start", "Appointment", "--connector", "salon", "--persona", "Maria")
    (run,) = _json(cli, "runs", "list")[:1]
    unknown = "00000000-0000-4000-8000-000000000000"
    shown = cli("runs", "watch", unknown, run["id"], code=3)
    assert "1 of 2 runs passed, 1 inconclusive" in shown
    assert f"evald: {unknown}: " in shown
    cli("runs", "watch", unknown, code=2)


def test_runs_are_found_by_the_id_of_what_was_deleted(cli: Any) -> None:
    line = {"id": "run-of-gone", "scenarioId": "gone", "status": "cancelled", "messages": []}
    line |= dict.fromkeys(("createdAt", "updatedAt"), "2026-11-22T04:48:28.684Z")
    cli("runs", "import", "-", stdin=json.dumps(line))
    assert "run-of-gone" in cli("runs", "list", "--scenario", "gone", "--json")
    assert 'no scenario has the name "gona"; using it as an id' in cli("runs", "list", "--scenario", "gona")


@pytest.mark.parametrize(
    ("command", "stdin", "problem"),
    [
        (("connectors", "test", "--file", "-"), "[]", "got 0 connectors, wanted one"),
        (("connectors", "test", "--file", "-"), "[{}, {}]", "got 2 connectors, wanted one"),
        (("runs", "list", "--since", "999999d"), "", "--since: got '999999d', wanted a time"),
        (("runs", "list", "--until", "9999-12-31T23:59-12:00"), "", "wanted a time"),
    ],
)
def test_mistakes_are_no_internal_errors(cli: Any, command: Any, stdin: str, problem: str) -> None:
    shown = cli(*command, code=2, stdin=stdin)
    assert problem in shown


def test_create_says_what_it_stored_before_a_refusal(cli: Any) -> None:
    lines = '[{"name": "A", "evaluators": ["is-json"]}, {"name": "B", "evaluators": ["regx"]}]'
    shown = cli("scenarios", "create", "-", "--json", stdin=lines, code=2)
    (created,) = json.loads(shown[: shown.index("]\nevald: ") + 1])
    assert created["name"] == "A"


def test_a_server_without_its_database_answers_and_is_not_unreachable(
    evald: Any, project: Path, tmp_path: Path
) -> None:
    with (
        server_process("--data-dir", str(tmp_path / "data"), stderr=subprocess.DEVNULL) as server,
        closing(sqlite3.connect(tmp_path / "data" / FILE_NAME, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        done = evald("import", str(project), "--server", server.grpc)
    assert done.returncode == 3, done.stderr
    assert "the server's log has the cause" in done.stderr
