"""Scripts judge from the command line, where it allows them and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CONVERSATION = str(EXAMPLES / "conversation.json")
REFERENCE, APOLOGY = (str(EXAMPLES / "code" / name) for name in ("true_reference.py", "no_apology.sh"))
ALLOWED = ["--allow-code", REFERENCE, "--allow-code", APOLOGY]


@pytest.mark.parametrize("name", ["true_reference.py", "no_apology.sh"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / "code" / name).read_text(encoding="utf-8").splitlines()) <= 15


@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        ("Your reference is BK-12345.", ["PASSED", "PASSED"]),
        ("Your reference is BK-99999.", ["FAILED", "PASSED"]),
        ("Sorry, nothing is free.", ["PASSED", "FAILED"]),
    ],
)
def test_the_examples_tell_good_turns_from_bad_ones(
    records: Any, lines: Any, answer: str, verdicts: list[str]
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Book it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"reference": "BK-12345"}'},
        {"role": "assistant", "content": answer},
    ]
    specs = ["-e", 'code:command=["true_reference.py"]', "-e", "code_judge:script=no_apology.sh"]
    [found], summary, code = records(lines({"messages": messages}), *ALLOWED, *specs)
    assert [result["verdict"] for result in found["evaluation"]["results"]] == verdicts
    assert code == (1 if "FAILED" in verdicts else 0)
    assert summary["conversationCount"] == 1


def test_a_path_is_taken_from_where_the_command_is_typed(evald: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    done = evald(
        "evaluate", CONVERSATION, "--allow-code", "code/no_apology.sh", "-e", 'code:command=["no_apology.sh"]'
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_what_is_not_allowed_is_wrong_usage_that_says_how_to_allow_it(evald: Any) -> None:
    done = evald("evaluate", CONVERSATION, "-e", f'code:command=["{APOLOGY}"]')
    assert done.returncode == 2
    assert "--allow-code" in done.stderr


def test_a_script_that_breaks_is_inconclusive(evald: Any) -> None:
    # A pattern that is none makes the example exit with a stack trace.
    done = evald(
        "evaluate", CONVERSATION, *ALLOWED, "-e", 'code:command=["true_reference.py"],config.pattern="("'
    )
    assert done.returncode == 3
    assert "exited with code 1" in done.stdout


def test_a_command_that_cannot_run_keeps_the_server_from_starting(evald: Any, tmp_path: Path) -> None:
    done = evald("evaluate", CONVERSATION, "--allow-code", str(tmp_path / "absent"), "-e", "is-json")
    assert done.returncode == 2
    assert "absent: No such file" in done.stderr


def test_allowing_code_is_for_the_server_inside_the_command(evald: Any) -> None:
    done = evald("evaluate", CONVERSATION, "-e", "is-json", "--server", "127.0.0.1:1", *ALLOWED)
    assert done.returncode == 2
    assert "--allow-code configures the command's own server" in done.stderr


@pytest.mark.parametrize(
    "option", [["--tls"], *([f"--{name}", "/nowhere"] for name in ("ca", "cert", "key", "token-file"))]
)
def test_an_option_of_a_connection_is_for_a_server_that_is_named(evald: Any, option: list[str]) -> None:
    done = evald("evaluate", CONVERSATION, "-e", "is-json", *option)
    assert done.returncode == 2
    assert f"{option[0]} is for the connection to a server that runs already" in done.stderr
    assert "--server HOST:PORT names one" in done.stderr


def test_the_types_say_whether_scripts_can_run(evald: Any) -> None:
    assert "can be called: no" in evald("types", "code").stdout
    shown = evald("types", "code", *ALLOWED).stdout
    assert "can be called" not in shown
    assert "Isolation on this server: " in shown
    # The judge, which nobody has configured here, is the other one.
    assert evald("types").stdout.count("[unavailable]") == 2
    assert evald("types", *ALLOWED).stdout.count("[unavailable]") == 1
