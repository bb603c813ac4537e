"""`evald types` and `evald validate` say what a server can do and what is wrong with a wish."""

import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_types_are_grouped_by_kind(evald: Any) -> None:
    done = evald("types")
    assert done.returncode == 0
    assertions, _, metrics = done.stdout.partition("Metrics (")
    assert assertions.startswith("Assertions (")
    assert "│ regex " in assertions
    assert "│ regex " not in metrics
    assert "│ tool-call-count " in metrics


def test_the_types_as_json_are_the_catalogue(evald: Any) -> None:
    entries = {
        entry["type"]: entry for entry in json.loads(evald("types", "--json").stdout)["evaluatorTypes"]
    }
    regex = entries["regex"]
    assert regex["kind"] == "assertion"
    assert regex["configSchema"]["required"] == ["pattern"]
    assert entries["latency-budget"]["aliases"] == ["latency"]
    assert entries["token-usage"]["requiredData"] == ["last_invocation.token_usage"]


def test_a_type_shows_its_config_under_any_of_its_names(evald: Any) -> None:
    for name in ("latency-budget", "latency"):
        done = evald("types", name)
        assert done.returncode == 0
        assert "maxMs" in done.stdout
        assert "required" in done.stdout
        assert "needs: last_invocation.latency" in done.stdout
    schema = json.loads(evald("types", "latency", "--json").stdout)["configSchema"]
    assert schema["required"] == ["maxMs"]


def test_an_unknown_type_ends_with_2_and_the_nearest(evald: Any) -> None:
    done = evald("types", "regx")
    assert done.returncode == 2
    assert 'did you mean "regex"?' in done.stderr


def test_plugins_are_listed_with_their_origin(evald: Any) -> None:
    done = evald("types", "--plugin", str(EXAMPLES / "politeness.py"))
    assert "acme.polite" in done.stdout
    assert "[plugin]" in done.stdout


def test_a_plugin_on_the_command_line_goes_before_the_server_of_the_environment(evald: Any) -> None:
    done = evald(
        "types", "acme.polite", "--plugin", str(EXAMPLES / "politeness.py"), EVALD_SERVER="127.0.0.1:1"
    )
    assert done.returncode == 0


def test_specs_that_can_be_run_are_valid(evald: Any) -> None:
    done = evald("validate", str(EXAMPLES / "checks.toml"), "-e", "is-json")
    assert done.returncode == 0, done.stdout
    assert "7 evaluators can be run" in done.stdout


def test_every_violation_has_its_place(evald: Any, tmp_path: Path) -> None:
    checks = tmp_path / "checks.json"
    checks.write_text(json.dumps([{"type": "is-json"}, {"type": "latency", "config": {"maxMs": -1}}]))
    arguments = (str(checks), "-e", "regexp", "-e", "regex:patern=x")
    done = evald("validate", *arguments)
    assert done.returncode == 2
    for complaint in (
        f"{checks}: evaluators[1]: config.maxMs: ",
        """-e 'regexp': type: unknown evaluator type "regexp"; did you mean "regex"?""",
        "-e 'regex:patern=x': config.patern: unknown key",
    ):
        assert complaint in done.stdout
    answer = json.loads(evald("validate", "--json", *arguments).stdout)
    assert answer["valid"] is False
    assert ("/config/maxMs", 1) in [(found["path"], found["index"]) for found in answer["violations"]]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param(
            {"type": "regex", "pattern": "x"}, "evaluators[0]: pattern: unknown key", id="config outside"
        ),
        pytest.param({"config": {}}, "evaluators[0]: type: missing", id="no type"),
        pytest.param({"type": "regex", "weight": "x"}, "evaluators[0]: weight: ", id="weight is text"),
    ],
)
def test_what_is_no_spec_is_refused_before_it_is_sent(
    evald: Any, tmp_path: Path, spec: dict[str, Any], complaint: str
) -> None:
    checks = tmp_path / "checks.json"
    checks.write_text(json.dumps([spec]))
    done = evald("validate", str(checks))
    assert done.returncode == 2
    assert complaint in done.stdout
