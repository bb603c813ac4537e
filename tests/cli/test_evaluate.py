"""`evald evaluate` says what is true of recorded conversations, to people and to programs."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.forks import Fork

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SAMPLE = str(ROOT / "server/evald_server/cli/demo_data/conversations.jsonl")

BROKEN = """
import evald

def boom(ctx):
    raise RuntimeError("secret detail")

boom = evald.define_evaluator(type="acme.boom", kind=evald.ASSERTION, evaluate=boom)
"""

VERDICT = {"enum": ["PASSED", "FAILED", "ERROR", "SKIPPED"]}
RESULT = {
    "type": "object",
    "required": ["index", "name", "type", "label", "kind", "verdict", "success", "reason"],
    "properties": {
        "kind": {"enum": ["assertion", "metric"]},
        "verdict": VERDICT,
        "success": {"type": "boolean"},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "value": {"type": "number"},
        "reason": {"type": "string"},
        "error": {"type": "object", "required": ["code", "message"]},
    },
}
EVALUATION = {
    "type": "object",
    "required": ["verdict", "success", "passedCount", "failedCount", "errorCount", "metrics", "results"],
    "properties": {
        "verdict": VERDICT,
        "metrics": {"type": "object", "additionalProperties": {"type": "number"}},
        "results": {"type": "array", "items": RESULT},
    },
}
TURN = {
    "type": "object",
    "required": ["turn"],
    "properties": {"turn": {"type": "integer", "minimum": 1}, "evaluation": EVALUATION},
}
CONVERSATION = {
    "type": "object",
    "required": ["record", "id", "place", "verdict", "success", "reason"],
    "properties": {
        "record": {"const": "conversation"},
        "id": {"type": "string"},
        "verdict": VERDICT,
        "evaluation": EVALUATION,
        "turns": {"type": "array", "minItems": 1, "items": TURN},
        "error": {"type": "object", "required": ["message"]},
    },
    "oneOf": [{"required": ["evaluation"]}, {"required": ["turns"]}, {"required": ["error"]}],
}
COUNTS = ["passedCount", "failedCount", "errorCount", "skippedCount"]
SUMMARY = {
    "type": "object",
    "required": ["record", "verdict", "exitCode", "conversationCount", "turnCount", *COUNTS, "evaluators"],
    "properties": {
        "record": {"const": "summary"},
        "verdict": VERDICT,
        "exitCode": {"type": "integer", "minimum": 0, "maximum": 4},
        "passRate": {"type": "number", "minimum": 0, "maximum": 1},
        "evaluators": {
            "type": "object",
            "additionalProperties": {"type": "object", "required": ["type", "kind", *COUNTS]},
        },
    },
}


def test_one_conversation_gets_two_tables_and_a_verdict(evald: Any) -> None:
    done = evald(
        "evaluate", str(EXAMPLES / "conversation.json"), "--evaluators", str(EXAMPLES / "checks.toml")
    )
    assert done.returncode == 0, done.stderr
    assertions, _, metrics = done.stdout.partition("Metrics\n")
    assert re.search(r"booking-reference +│ ✓ Pass", assertions)
    assert re.search(
        r"Latency Budget +│ ✓ Pass +│ +1.00 │ Response within budget: 1234ms / 3000ms", assertions
    )
    assert re.search(r"Token Usage +│ +856 │", metrics)
    assert done.stdout.splitlines()[-1] == "PASSED  All evaluators passed"


def test_no_colour_reaches_a_file(evald: Any) -> None:
    for arguments in (["evaluate", SAMPLE, "-e", "is-json"], ["types"], ["types", "regex"]):
        done = evald(*arguments)
        assert done.stdout
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("extra", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["colours", "NO_COLOR"]
)
def test_a_terminal_gets_colours_unless_it_wants_none(
    evald_command: str, environment: Any, extra: dict[str, str], coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    with Fork(
        *(evald_command, "evaluate", str(EXAMPLES / "conversation.json"), "-e", "contains:text=booked"),
        stdout=theirs,
        stderr=theirs,
        environment=environment({"TERM": "xterm-256color", **extra}),
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux says so when the other side is closed
                break
            if not part:
                break
            written += part
        assert process.wait(30) == 0
    os.close(ours)
    assert b"Pass" in written
    assert bool(re.search(rb"\x1b\[[0-9;]*3[0-7]m", written)) is coloured


EXITS: list[Any] = [
    pytest.param(["You fly to Lisbon."], ["contains:text=Lisbon"], 0, id="passed"),
    pytest.param(["You fly to Porto."], ["contains:text=Lisbon"], 1, id="failed"),
    pytest.param(["Lisbon", "Porto"], ["contains:text=Lisbon"], 1, id="one of two failed"),
    pytest.param(["Lisbon"], ["contains:text=Lisbon", "acme.boom"], 3, id="an error decided it"),
    pytest.param(["Porto"], ["contains:text=Lisbon", "acme.boom"], 1, id="failed outranks error"),
    pytest.param(["Lisbon"], ["response-length"], 0, id="metrics never fail"),
]


@pytest.mark.parametrize(("answers", "checks", "code"), EXITS)
def test_the_exit_code_tells_the_verdict(
    evald: Any, lines: Any, talk: Any, tmp_path: Path, answers: list[str], checks: list[str], code: int
) -> None:
    plugin = tmp_path / "boom.py"
    plugin.write_text(BROKEN)
    expressions = [argument for check in checks for argument in ("-e", check)]
    done = evald("evaluate", lines(*map(talk, answers)), "--plugin", str(plugin), *expressions)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_author_of_an_evaluator_learns_where_it_broke(
    evald: Any, lines: Any, talk: Any, tmp_path: Path
) -> None:
    plugin = tmp_path / "boom.py"
    plugin.write_text(BROKEN)
    done = evald("evaluate", lines(talk("x")), "--plugin", str(plugin), "-e", "acme.boom")
    assert "secret detail (RuntimeError at boom.py:5)" in done.stderr
    assert "secret detail" not in done.stdout


def test_nobody_at_the_address_ends_with_4(evald: Any, lines: Any, talk: Any) -> None:
    done = evald("evaluate", lines(talk("x")), "-e", "is-json", "--server", "127.0.0.1:1")
    assert done.returncode == 4
    assert "no evald server answers at 127.0.0.1:1" in done.stderr
    assert "hint: start a server with evald serve, or remove --server" in done.stderr
    assert "Client(server)" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["-e", "regexp"], 'did you mean "regex"?', id="unknown type"),
        pytest.param(
            ["-e", "regex:pattern=[0-9"], "-e 'regex:pattern=[0-9': config.pattern", id="bad pattern"
        ),
        pytest.param(["-e", "regex:patern=x"], "config.patern: unknown key", id="unknown key"),
        pytest.param([], "no evaluators", id="none"),
        pytest.param(["-e", "is-json", "--config", "none.toml"], "none.toml", id="no config file"),
        pytest.param(["-e", "is-json", "--plugin", "none.py"], 'plugin "none.py" not found', id="no plugin"),
        pytest.param(
            ["-e", "is-json", "--plugin", "a.py", "--server", "x:1"],
            "remove --server",
            id="plugin and server",
        ),
    ],
)
def test_what_cannot_be_run_ends_with_2(
    evald: Any, lines: Any, talk: Any, arguments: list[str], complaint: str
) -> None:
    done = evald("evaluate", lines(talk("x")), *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_bad_json_is_named_by_its_line(evald: Any, talk: Any) -> None:
    stdin = f"{json.dumps(talk('x'))}\n{json.dumps(talk('y'))}\n{{oops\n"
    done = evald("evaluate", "-", "-e", "contains:text=x", stdin=stdin)
    assert done.returncode == 2
    assert "stdin:3: not valid JSON" in done.stderr


def test_a_stack_trace_is_there_for_those_who_ask(evald: Any) -> None:
    done = evald("evaluate", "none.json", "-e", "is-json", EVALD_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_json_is_what_the_documents_say(records: Any, lines: Any, talk: Any) -> None:
    path = lines(talk("Lisbon", id="good"), talk("Porto"), talk("Lisbon", latency_ms=5))
    found, summary, code = records(path, "-e", "contains:text=Lisbon", "-e", "response-length")
    for record in found:
        jsonschema.validate(record, CONVERSATION)
    jsonschema.validate(summary, SUMMARY)
    assert code == summary["exitCode"] == 1
    assert [record["id"] for record in found] == ["good", "conversations:2", "conversations:3"]
    assert [record["verdict"] for record in found] == ["PASSED", "FAILED", "PASSED"]
    assert (summary["passedCount"], summary["failedCount"]) == (2, 1)
    assert summary["passRate"] == pytest.approx(2 / 3)
    assert summary["evaluators"]["contains"]["passRate"] == pytest.approx(2 / 3)
    assert summary["evaluators"]["response-length"]["meanValue"] == pytest.approx((6 + 5 + 6) / 3)


def test_every_turn_is_judged_on_request(records: Any, lines: Any) -> None:
    messages = [
        {"role": "user", "content": "Where to?"},
        {"role": "assistant", "content": "Porto"},
        {"role": "user", "content": "No."},
        {"role": "assistant", "content": "Lisbon"},
        {"role": "user", "content": "Bye"},
    ]
    path = lines({"messages": messages}, {"messages": messages[2:]})
    found, summary, code = records(path, "--turns", "-e", "contains:text=Lisbon", "-e", "response-length")
    for record in found:
        jsonschema.validate(record, CONVERSATION)
    jsonschema.validate(summary, SUMMARY)
    assert [[t["evaluation"]["verdict"] for t in record["turns"]] for record in found] == [
        ["FAILED", "PASSED", "FAILED"],
        ["PASSED", "FAILED"],
    ]
    assert code == 1
    assert found[0]["reason"].startswith("turn 1: ")
    assert summary["turnCount"] == 5
    assert [record["unanswered"] for record in found] == [True, True]
    assert summary["unansweredCount"] == 2
    assert summary["evaluators"]["contains"]["failedCount"] == 3

    last, _, code = records(path, "-e", "contains:text=Lisbon")
    assert [record["verdict"] for record in last] == ["FAILED", "FAILED"]
    assert code == 1


@pytest.mark.parametrize("arguments", [(), ("--turns",), ("--json",)], ids=" ".join)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_conversations_whose_last_message_has_no_answer_are_counted(
    evald: Any, lines: Any, talk: Any, count: int, arguments: tuple[str, ...]
) -> None:
    whole = talk("Lisbon")
    cut = {**whole, "messages": [*whole["messages"], {"role": "user", "content": "And then?"}]}
    path = lines(*[cut] * count, *[whole] * (count != 1))
    done = evald("evaluate", path, "-e", "contains:text=Lisbon", *arguments)
    assert done.returncode == (1 if count else 0), done.stderr
    says = {0: "", 1: "warning: 1 conversation ends with", 2: "warning: 2 conversations end with"}[count]
    assert says in done.stderr
    assert ("no answer of the agent" in done.stderr) is bool(count)


@pytest.mark.parametrize("arguments", [(), ("--turns",)], ids=" ".join)
def test_two_different_expected_answers_are_refused(
    evald: Any, lines: Any, talk: Any, arguments: tuple[str, ...]
) -> None:
    path = lines(
        talk("yes", expected="yes", expected_output="yes"), talk("yes", expected="yes", referenceAnswer="no")
    )
    done = evald("evaluate", path, "-e", "exact-match", *arguments)
    assert done.returncode == 2
    assert "conversations.jsonl:2: referenceAnswer: another value than `expected`" in done.stderr


def test_answers_keep_the_order_of_the_input(records: Any) -> None:
    found, summary, _ = records(SAMPLE, "--turns", "-e", "is-json")
    wanted = [json.loads(line)["id"] for line in Path(SAMPLE).read_text(encoding="utf-8").splitlines()]
    assert [record["id"] for record in found] == wanted
    assert summary["conversationCount"] == len(wanted)
    last, _, _ = records(SAMPLE, "-e", "is-json")
    assert [record["id"] for record in last] == wanted


def test_a_server_judges_like_the_one_inside(records: Any, server_process: Any) -> None:
    checks = ["-e", "length-within:max=100,unit=words", "-e", "tool-call-count"]
    _, inside, _ = records(SAMPLE, *checks)
    _, by_option, _ = records(SAMPLE, *checks, "--server", server_process.grpc)
    _, by_variable, _ = records(SAMPLE, *checks, EVALD_SERVER=server_process.grpc)
    assert inside == by_option == by_variable


def test_options_in_a_file_decide_how_results_add_up(
    records: Any, lines: Any, talk: Any, tmp_path: Path
) -> None:
    checks = tmp_path / "checks.toml"
    checks.write_text(
        '[options]\naggregation = "weighted_mean"\nthreshold = 0.5\n'
        '[[evaluators]]\ntype = "is-json"\n[[evaluators]]\ntype = "contains"\nweight = 2\nconfig = { text = "x" }\n'
    )
    found, _, code = records(lines(talk("x y")), "--evaluators", str(checks))
    assert code == 0
    assert found[0]["evaluation"]["score"] == pytest.approx(2 / 3)


def test_a_time_limit_leaves_the_other_results(records: Any, lines: Any, talk: Any, tmp_path: Path) -> None:
    plugin, checks = tmp_path / "slow.py", tmp_path / "checks.json"
    plugin.write_text(
        "import asyncio, evald\n"
        "async def slow(ctx):\n    await asyncio.sleep(60)\n    return True\n"
        "slow = evald.define_evaluator(type='acme.slow', kind=evald.ASSERTION, evaluate=slow)\n"
    )
    checks.write_text('{"options": {"timeoutMs": 60000}, "evaluators": ["acme.slow", "response-length"]}')
    found, _, code = records(
        lines(talk("x")), "--plugin", str(plugin), "--evaluators", str(checks), "--timeout", "0.2"
    )
    assert code == 3
    slow, length = found[0]["evaluation"]["results"]
    assert slow["error"]["code"] == "TIMEOUT"
    assert length["verdict"] == "PASSED"


def test_a_hostile_conversation_cannot_steer_the_terminal(evald: Any, lines: Any, talk: Any) -> None:
    hostile = "\x1b[2J\x9b1m\u202e\n::error::x"
    path = lines(talk(hostile, id=hostile), talk("x", id=hostile))
    for more in ([], ["--json"], ["--turns"]):
        done = evald("evaluate", path, "-e", "numeric:expected=1", "-e", "is-json", *more)
        assert done.returncode == 1
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout)
        assert not re.search(r"^\s*::", done.stdout, re.MULTILINE)


def test_a_report_of_many_has_rates_means_and_failures(evald: Any, lines: Any, talk: Any) -> None:
    path = lines(*[talk("Lisbon")] * 3, talk("Porto", id="the bad one"))
    done = evald("evaluate", path, "-e", "contains:text=Lisbon", "-e", "response-length")
    assert done.returncode == 1
    assert re.search(r"Contains +│ +75.0% .*│ +3 │ +1 │ +0 │ +0 │", done.stdout)
    assert re.search(r"Response Length │ +5.75 │ +5 │ +6 │ +4 │ +0 │", done.stdout)
    assert re.search(r"the bad one +│ FAILED", done.stdout)
    assert done.stdout.splitlines()[-1] == "FAILED  3 of 4 conversations passed, 1 failed"


def test_what_failed_is_shown_before_what_was_skipped(
    evald: Any, lines: Any, talk: Any, tmp_path: Path
) -> None:
    budget = {"type": "token-budget", "config": {"maxTokens": 10, "onMissing": "skip"}}
    checks = tmp_path / "checks.json"
    checks.write_text(json.dumps([budget]))
    path = lines(*[talk("x")] * 12, talk("x", id="the bad one", usage={"total_tokens": 11}))
    done = evald("evaluate", path, "--evaluators", str(checks))
    assert re.search(r"the bad one +│ FAILED", done.stdout)
    assert "and 3 more" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED  0 of 13 conversations passed, 1 failed, 12 skipped"


def test_a_reader_that_goes_away_is_no_failed_conversation(evald_command: str, environment: Any) -> None:
    # Gone from the start, because one that reads a line might go when all has been written.
    reading, writing = os.pipe()
    os.close(reading)
    arguments = (evald_command, "evaluate", SAMPLE, "-e", "is-json", "--json")
    with Fork(*arguments, environment=environment({}), stdout=writing) as done:
        os.close(writing)
        assert not done.communicate(30)[
            1
        ].strip()  # Rich before 14.3 ends a hidden progress bar with an empty line


@pytest.mark.parametrize(
    ("arguments", "streams", "code", "complaint"),
    [
        pytest.param(("evaluate", SAMPLE, "-e", "tool-call-count"), ">/dev/full", 3, "No space", id="full"),
        pytest.param(("validate", "-e", "is-json"), ">/dev/full", 3, "No space", id="full, small"),
        pytest.param(("--version",), ">/dev/full", 3, "No space", id="full, no command"),
        pytest.param(
            ("evaluate", "--help"), ">/dev/full", 3, "No space", id="full, help", marks=pytest.mark.thorough
        ),
        pytest.param(("--help",), ">&-", 3, "cannot be", id="closed, help", marks=pytest.mark.thorough),
        pytest.param(("evaluate", SAMPLE, "-e", "tool-call-count"), ">&-", 3, "cannot be", id="closed"),
        pytest.param(("evaluate", "none.json", "-e", "is-json"), "2>/dev/full", 2, "", id="full errors"),
        pytest.param(("evaluate", "none.json", "-e", "is-json"), "2>&-", 2, "", id="closed errors"),
        pytest.param(("evaluate", "-", "-e", "is-json"), "<&-", 2, "stdin: empty", id="closed input"),
    ],
)
def test_streams_that_do_not_work_give_no_wrong_verdict(
    evald_command: str, environment: Any, arguments: tuple[str, ...], streams: str, code: int, complaint: str
) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", evald_command, *arguments],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert complaint in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "/dev/zero", "-e", "is-json"),
        ("validate", "/dev/zero"),
        ("types", "--config", "/dev/zero"),
        ("calibrate", "/dev/zero"),
        ("import", "/dev/zero"),
        ("remotes", "--ca", "/dev/zero"),
        ("remotes", "--token-file", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_a_file_without_an_end_is_refused(evald: Any, arguments: tuple[str, ...]) -> None:
    done = evald(*arguments)
    assert done.returncode == 2
    assert "/dev/zero" in done.stderr
    assert "longer than" in done.stderr
