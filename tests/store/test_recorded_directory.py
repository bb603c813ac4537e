"""A data directory that an earlier evald has written opens, and everything in it is there.

`recorded` was written by evald 0.1.0 with the database's migration 0006: `evald import` of a persona, a connector, a
scenario and an experiment, a run of them against the demo's agent, a suite of two cases, and two API keys.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.processes import ANY_PORT, server_process

RECORDED = Path(__file__).with_name("recorded")
# Opens nothing but copies of that directory.
KEY = "evald_caj1ahsn10ul_Q8uzeF5xfKnBccEPQEHOiPvY9aN6zAQWEgKVfuEaa1s3a0a13ab"


def test_a_recorded_data_directory_opens_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(RECORDED, folder)
    settings = {"EVALD_KEYS_FILE": str(folder / "keys.toml")}
    for _ in range(2):  # the second server opens what the first has changed
        with (
            server_process("--web", ANY_PORT, "--data-dir", str(folder), **settings) as server,
            httpx.Client(base_url=f"http://{server.web}/api/", trust_env=False) as api,
        ):
            assert api.get("scenarios").status_code == 401
            api.headers["authorization"] = f"Bearer {KEY}"
            _check(lambda path, api=api: api.get(path).raise_for_status().json())


def _check(read: Callable[[str], Any]) -> None:
    kinds = ("scenarios", "personas", "connectors", "evals")
    ids = {kind: {item["name"]: item["id"] for item in read(kind)} for kind in kinds}
    assert [list(names) for names in ids.values()] == [["Appointment"], ["Maria"], ["salon"], ["nightly"]]
    scenario = read(f"scenarios/{ids['scenarios']['Appointment']}")
    assert [spec["type"] for spec in scenario["evaluators"]] == ["contains", "response-length"]
    (run,) = read("runs")
    run = read(f"runs/{run['id']}")
    assert run["scenarioId"] == scenario["id"]
    assert (run["status"], run["result"]["success"]) == ("completed", False)
    assert run["messages"][-1]["content"] == "On Friday I have 09:00 and 10:30. Which one?"
    assert run["output"]["metrics"] == {"response-length": 44}
    (suite,) = read("suite-runs")
    assert (suite["suite"], suite["verdict"], suite["passedCount"]) == ("salon", "FAILED", 1)
    cases = read(f"suite-runs/{suite['id']}/cases")
    assert {case["caseId"]: case["verdict"] for case in cases} == {"booked": "PASSED", "lost": "FAILED"}
