"""`evald test` and `evald history` as users run them: exit codes, reports, targets, resumption."""

import json
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, repeat
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.forks import Fork

from ..processes import server_process

SUITE = """\
evaluators:
  - {type: contains, config: {substrings: [order]}}
cases:
- {id: a, input: Where is it?, output: Your order is on its way., tags: [smoke]}
- {id: b, input: When?, output: The order comes on Friday.}
"""


class Agent(ThreadingHTTPServer):
    """An agent that answers in OpenAI's format, and counts what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.asked: Counter[str] = Counter()
        self.seconds = 0.0
        self.status = 200
        self.broken: set[str] = set()  # what is answered with 500
        self.texts: Iterator[str] | None = None  # the answers; default: what was said

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Answering(BaseHTTPRequestHandler):
    server: Agent

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = body["messages"][-1]["content"]
        self.server.asked[said] += 1
        time.sleep(self.server.seconds)
        texts = self.server.texts
        answer = {
            "role": "assistant",
            "content": f"{body['model']}: {said}" if texts is None else next(texts),
        }
        data = json.dumps({"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}).encode()
        self.send_response(500 if said in self.server.broken else self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def agent() -> Iterator[Agent]:
    with _served() as server:
        yield server


@pytest.fixture
def judge() -> Iterator[Agent]:
    """A judge that changes its mind with every answer."""
    with _served() as server:
        server.texts = cycle(
            [
                json.dumps({"score": score, "hits": [], "misses": [], "reasoning": "a coin"})
                for score in (0.9, 0.2)
            ]
        )
        yield server


@contextmanager
def _served() -> Iterator[Agent]:
    with Agent() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cli(evald: Any, tmp_path: Path) -> Callable[..., str]:
    """Runs a command that stores in the test's own directory. Returns what it printed."""

    def run(*arguments: str, code: int = 0) -> str:
        done = evald(*arguments, "--data-dir", str(tmp_path / "data"))
        assert done.returncode == code, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    return run


def _file(folder: Path, text: str, name: str = "shop.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_suite_of_recorded_answers_passes_or_fails(cli: Any, tmp_path: Path) -> None:
    suite = _file(tmp_path, SUITE)
    assert re.search(r"PASSED +shop recorded", cli("test", suite))
    bad = _file(tmp_path, SUITE.replace("The order", "It"), "bad.yaml")
    shown = cli("test", bad, code=1)
    assert re.search(
        r"│ b +│ FAILED +│ answer: It comes on Friday\. +│\n│ +│ +│ contains: FAILED: Output does not", shown
    )
    assert "Your order is on its way." not in shown
    assert re.search(r"│ a +│ PASSED +│ answer: Your order is on its way\.", cli("test", bad, "-v", code=1))
    assert re.search(
        r"│ a +│ PASSED +│ answer: Your order is on its way\.", cli("test", bad, "--verbose", code=1)
    )
    assert "50 %" in shown
    assert "PASSED" in cli("test", bad, "--threshold", "0.5")
    assert "PASSED" in cli("test", bad, "--tag", "smoke")
    assert "FAILED" in cli("test", suite, bad, code=1), "the worst of several"


def test_a_suite_in_which_nothing_can_be_judged_is_inconclusive(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    agent.status = 500
    suite = _file(tmp_path, re.sub(r", output: [^,}]*", "", SUITE) + _connectors(agent))
    assert "ERROR" in cli("test", suite, "--threshold", "0.01", code=3)
    skipped = _file(tmp_path, SUITE.replace("}\n", ", skip: not yet}\n"), "skipped.yaml")
    skipped = _file(tmp_path, re.sub(r"(- \{id: .*)\}", r"\1, skip: not yet}", SUITE), "skipped.yaml")
    assert "left out  2 cases of skipped: a, b" in cli("test", skipped, code=3)
    junit = tmp_path / "junit.xml"
    good = _file(tmp_path, SUITE, "good.yaml")
    assert "ERROR  skipped" in cli("test", good, skipped, "--output", str(junit), code=3)
    (_, nothing) = ET.parse(junit).getroot().iter("testsuite")
    assert (nothing.get("tests"), nothing.get("skipped"), nothing.get("errors")) == ("3", "2", "1")


def _connectors(agent: Agent, *models: str) -> str:
    lines = [
        f"  {one}: {{type: openai-chat, baseUrl: '{agent.url}', config: {{model: {one}}}}}\n"
        for one in models or ("m",)
    ]
    return f"targets: [{', '.join(models or ('m',))}]\nconnectors:\n{''.join(lines)}"


def test_every_report_tells_the_same(cli: Any, tmp_path: Path) -> None:
    suite = _file(tmp_path, SUITE.replace("The order", "It"))
    names = [str(tmp_path / f"report.{suffix}") for suffix in ("json", "jsonl", "xml", "md", "html")]
    shown = cli("test", suite, "--github", *(part for name in names for part in ("--output", name)), code=1)
    assert f"::error file={suite},line=5" in shown
    whole = json.loads(Path(names[0]).read_text())
    assert whole["suiteRun"]["verdict"] == "VERDICT_FAILED"
    verdicts = {one["caseId"]: one["verdict"] for one in whole["cases"]}
    assert verdicts == {"a": "VERDICT_PASSED", "b": "VERDICT_FAILED"}
    *cases, last = map(json.loads, Path(names[1]).read_text().splitlines())
    assert {one["caseId"]: one["verdict"] for one in cases} == verdicts
    assert last["suiteRun"] == whole["suiteRun"]
    (junit,) = ET.parse(names[2]).getroot().iter("testsuite")
    assert (junit.get("tests"), junit.get("failures"), junit.get("errors")) == ("2", "1", "0")
    assert "50" in Path(names[3]).read_text()
    assert "<html" in Path(names[4]).read_text()
    printed = [json.loads(line) for line in cli("test", suite, "--json", code=1).splitlines()]
    assert {one["caseId"]: one["verdict"] for one in printed[:-1]} == verdicts
    assert printed[-1]["suiteRun"]["caseCount"] == "2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no suite"),
        (("missing.yaml",), "missing.yaml: No such file"),
        (("SUITE", "--case", "c"), 'no case has the id "c"'),
        (("SUITE", "--target", "nowhere"), 'no connector has the name or id "nowhere"'),
        (("SUITE", "--resume"), "no suite run of shop is interrupted, and the latest has no case in error"),
        (("SUITE", "--output", "x.txt"), "--output x.txt: wanted a file name that ends with .json"),
        (("SUITE", "--output", "/nowhere/x.md"), "the directory /nowhere does not exist"),
        (
            ("SUITE", "--transcripts", "x.jsonl", "--target", "y"),
            "--transcripts and --target cannot be used together",
        ),
        (("SUITE", "--trials", "2", "--min-passed", "3"), "--min-passed: got 3, wanted at most the 2 trials"),
        (("SUITE", "--trials", "0"), "argument --trials: got '0'"),
        (
            ("SUITE", "--trials", "3", "--min-passed", "2"),
            'cases[0] ("a"): trials: 3, but the case has 1 recorded answer; wanted 3 recorded answers',
        ),
        (("SUITE", "SUITE"), 'duplicate suite name "shop"'),
        (("SUITE", "--server", "x:1"), "--data-dir configures the command's own server"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_runs(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    suite = _file(tmp_path, SUITE)
    assert message in cli("test", *(suite if one == "SUITE" else one for one in arguments), code=2)


FOREIGN = {
    "promptfoo": """prompts: ["{{q}}"]
providers: [echo]
defaultTest: {assert: [{type: regex, value: "(default"}]}
tests:
  - vars: {q: hello}
    assert:
      - {type: contains, value: hello}
      - {type: regex, value: "(second"}
""",
    "agentv": """tests:
  - id: one
    input: hi
    expected_output: hi
    assertions:
      - {type: contains, value: hi}
      - type: regex
        value: "(second"
  - id: two
    input: hi
    turns_of: 1
    spares: 2
""",
}


def test_problems_of_converted_suites_have_the_lines_of_their_evaluators(cli: Any, tmp_path: Path) -> None:
    suite = _file(tmp_path, FOREIGN["promptfoo"])
    shown = cli("test", suite, code=2)
    assert f'{suite}:3: case "test-1": evaluator "regex": config.pattern: RE2' in shown
    assert f'{suite}:8: case "test-1": evaluator "regex": config.pattern: RE2' in shown
    suite = _file(tmp_path, FOREIGN["agentv"])
    shown = cli("test", suite, code=2)
    # All unknown keys of a case at once.
    assert f"{suite}:11: tests[1].turns_of: unknown key" in shown
    assert f"{suite}:12: tests[1].spares: unknown key" in shown
    suite = _file(tmp_path, FOREIGN["agentv"].partition("  - id: two")[0])
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"id": "one", "input": "hi", "output": "hi"}\n')
    shown = cli("test", suite, "--transcripts", str(answers), code=2)
    assert f'{suite}:7: case "one": evaluator "regex": config.pattern: RE2' in shown


def test_wrong_evaluators_are_refused_with_the_line_of_their_case(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    text = (
        re.sub(r", output: [^,}]*", "", SUITE)
        + "- {id: c, input: x, evaluators: [{type: regex, config: {patern: x}}]}\n"
    )
    suite = _file(tmp_path, text + _connectors(agent))
    shown = cli("test", suite, code=2)
    assert (
        f'{suite}:6: case "c": evaluator "regex": config.patern: unknown key; did you mean "pattern"?'
        in shown
    )
    suite = _file(tmp_path, "name: x\n" + SUITE.replace("contains", "contians"))
    assert f'{suite}:3: evaluator "contians": type: unknown evaluator type' in cli("test", suite, code=2)
    talk = """cases:
- id: d
  turns:
  - {input: x, output: y, evaluators: [latency]}
  - input: x
    output: y
    evaluators:
    - latency
    - {type: regex, config: {pattern: "["}}
"""
    talk = _file(tmp_path, "evaluators: [response-length]\n" + talk, "talk.yaml")
    assert f'{talk}:10: case "d": evaluator "regex": config.pattern' in cli("test", talk, code=2)
    # More than is kept in memory.
    rows = [{"id": str(number), "input": "x", "output": "y" * (1 << 20)} for number in range(20)]
    rows.append({"id": "e", "input": "x", "output": "y", "evaluators": [{"type": "regex"}]})
    header = {"suite": {"evaluators": ["response-length"]}}
    large = _file(tmp_path, "".join(json.dumps(row) + "\n" for row in (header, *rows)), "large.jsonl")
    assert f'{large}:22: case "e": evaluator "regex": config.pattern' in cli("test", large, code=2)
    assert not agent.asked


@pytest.mark.parametrize(
    "evaluators",
    ["response-length", "{type: contains, enforcement: shadow, config: {text: z}}"],
    ids=["metric", "shadow"],
)
def test_a_suite_without_an_assertion_that_counts_passes_with_a_warning(
    cli: Any, tmp_path: Path, evaluators: str
) -> None:
    cases = "\ncases:\n- {id: a, input: x, output: y}\n"
    warning = "warning: measured: no assertion counted in 1 of the 1 that passed"
    html = tmp_path / "report.html"
    alone = _file(tmp_path, f"evaluators: [{evaluators}]{cases}", "measured.yaml")
    shown = cli("test", alone, "--output", str(html))
    assert warning in shown
    assert "no assertion counted in 1 of the 1 that passed" in html.read_text()
    both = _file(
        tmp_path,
        f"evaluators: [{evaluators}, {{type: contains, config: {{text: y}}}}]{cases}",
        "measured.yaml",
    )
    shown = cli("test", both, "--trials", "1")
    assert warning not in shown
    assert "warning: --trials has no effect on recorded answers" in shown


def test_warnings_of_evaluations_are_shown_once_each_and_are_in_reports(cli: Any, tmp_path: Path) -> None:
    suite = _file(
        tmp_path,
        """\
evaluators: [{type: contains, config: {substrings: []}}]
cases:
- {id: a, input: x, output: y}
- {id: b, input: x, output: z}
""",
    )
    warning = "there was nothing to look for"
    assert cli("test", suite).count(warning) == 1
    reports = [tmp_path / f"report.{kind}" for kind in ("md", "xml", "json", "html")]
    cli("test", suite, *(word for path in reports for word in ("--output", str(path))))
    assert all(warning in path.read_text() for path in reports)
    assert reports[0].read_text().count(warning) == 1


def test_a_target_without_a_connector_is_refused_with_its_line_and_the_nearest_one(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    text = re.sub(r", output: [^,}]*", "", SUITE) + _connectors(agent, "agent")
    suite = _file(tmp_path, "targets:\n- agent\n- agnet\n" + re.sub(r"(?m)^targets?:.*\n", "", text))
    shown = cli("test", suite, code=2)
    assert f'{suite}:3: targets[1]: no connector has the name or id "agnet"' in shown
    assert 'did you mean "agent"?' in shown
    assert 'did you mean "agent"?' in cli("test", suite, "--target", "agnt", code=2)
    assert not agent.asked


def test_wrong_connectors_of_all_suites_are_refused_with_their_lines_before_the_first_runs(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    text = re.sub(r", output: [^,}]*", "", SUITE)
    first = _file(tmp_path, text + _connectors(agent))
    second = _file(
        tmp_path, text + _connectors(agent, "n", "o").replace("config: {model: o}", "config: {modle: o}")
    )
    second = str(Path(second).rename(tmp_path / "second.yaml"))
    first = _file(tmp_path, text + _connectors(agent))
    shown = cli("test", first, second, code=2)
    assert f'{second}:9: connector "o".config.modle: unknown key; did you mean "model"?' in shown
    given = _file(tmp_path, "- {name: p, type: htp, baseUrl: 'http://x'}\n", "given.yaml")
    assert 'given.yaml:1: connector "p".type: unknown type' in cli(
        "test", first, "--connector", given, code=2
    )
    assert not agent.asked
    assert "No suite runs are stored" in cli("history")


@pytest.mark.thorough
def test_a_large_suite_is_refused_or_run_as_a_small_one_is(cli: Any, tmp_path: Path) -> None:
    case = {"input": "Where is it?", "output": f"Your order{'.' * 700}"}
    lines = [{"suite": {"evaluators": [{"type": "contains", "config": {"substrings": ["order"]}}]}}]
    lines += [{"id": f"c{number}", **case} for number in range(4000)]
    text = "\n".join(map(json.dumps, lines))
    assert len(text) > 2 << 20, "it is read while the server starts"
    suite = _file(tmp_path, text, "large.jsonl")
    shown = cli("test", suite)
    assert re.search(r"PASSED +large recorded", shown)
    ended = shown.split("suite run ")[1].split()[0]
    for _ in range(5):  # a server that refuses a suite run ends a call whose cases are still being sent
        refused = cli("test", suite, "--resume", ended, code=2)
        assert "got a suite run that is completed, wanted one that is interrupted" in " ".join(
            refused.split()
        )
    wrong = _file(tmp_path, f'{text}\n{{"id": "c7", "input": "a", "output": "b"}}\n', "wrong.jsonl")
    assert f'{wrong}:4002: duplicate id "c7", first used in line 9' in cli("test", wrong, code=2)
    assert 'no suite run of "wrong" is stored' in cli("history", "wrong", code=2)


def test_an_unreachable_server_is_told_apart(evald: Any, tmp_path: Path) -> None:
    done = evald("test", _file(tmp_path, SUITE), "--server", "127.0.0.1:1")
    assert done.returncode == 4, done.stderr


def test_targets_are_asked_and_compared(cli: Any, tmp_path: Path, agent: Agent) -> None:
    text = "evaluators: [{type: contains, config: {substrings: [good]}}]\ntrials: 2\ncases:\n"
    text += "".join(f"- {{id: c{number}, input: question {number}}}\n" for number in range(12))
    suite = _file(tmp_path, text + _connectors(agent, "good", "bad"))
    shown = cli("test", suite, code=1)
    assert re.search(r"│ shop +│ good +│ 100 %", shown)
    assert re.search(r"│ shop +│ bad +│ 0 %", shown)
    assert re.search(r"│ bad +│ good +│ +.100", shown)
    assert "BLOCK" in shown
    assert set(agent.asked.values()) == {4}, "two trials for each target"
    assert re.search(r"│ 2 +│ 100 %", shown), "pass@2"
    assert "PASSED" in cli("test", suite, "--target", "good", "--trials", "1")


def test_a_connector_file_is_a_target(cli: Any, tmp_path: Path, agent: Agent) -> None:
    connector = _file(
        tmp_path,
        f"name: order\ntype: openai-chat\nbaseUrl: {agent.url}\nconfig: {{model: order}}\n",
        "agent.yaml",
    )
    shown = cli("test", _file(tmp_path, SUITE), "--connector", connector)
    assert re.search(r"PASSED +shop order", shown)
    assert agent.asked == {"Where is it?": 1, "When?": 1}, "recorded answers are not taken"


def test_transcripts_replace_recorded_answers(cli: Any, tmp_path: Path) -> None:
    rows = [{"id": one, "output": f"{one} order {number}"} for one in "abz" for number in range(2)]
    transcripts = _file(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    shown = cli("test", _file(tmp_path, SUITE), "--transcripts", transcripts)
    assert "t.jsonl:5: no case matches this transcript" in shown
    assert "PASSED" in shown
    assert "t.csv:2" not in shown
    table = _file(tmp_path, "input,output\nWhere is it?,an order\n", "t.csv")
    assert "NO_TRANSCRIPT: no transcript" in cli(
        "test", _file(tmp_path, SUITE), "--transcripts", table, code=3
    )


def _talk(*said: str) -> list[dict[str, str]]:
    """Return messages, of the user and the agent in turn."""
    return [
        {"role": "assistant" if index % 2 else "user", "content": text} for index, text in enumerate(said)
    ]


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        ({"messages": _talk("Where is it?", "an order")}, 0, "PASSED"),
        ({"messages": _talk("Where is it?", "an order", "###STOP###")}, 0, "PASSED"),
        ({"messages": _talk("Who is it?", "an order")}, 3, "TRANSCRIPT_MISMATCH: "),
        ({"messages": _talk("Who is it?", "an order", "Where is it?")}, 3, "TRANSCRIPT_MISMATCH: "),
        ({"output": "an order", "status": "error", "message": "it broke"}, 3, "RECORDED_ERROR: it broke"),
        ({"output": None}, 3, "UNREADABLE_ROW: "),
        ({"output": {"order": 7}}, 0, "PASSED"),
    ],
)
def test_a_wrong_row_is_one_case_in_error(
    cli: Any, tmp_path: Path, row: dict[str, Any], code: int, words: str
) -> None:
    rows = [{"id": "a", **row}, {"id": "b", "output": "an order"}]
    transcripts = _file(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    report = tmp_path / "report.json"
    suite = _file(tmp_path, SUITE)
    cli("test", suite, "--transcripts", transcripts, "--output", str(report), code=code)
    cases = {one["caseId"]: one for one in json.loads(report.read_text())["cases"]}
    assert cases["b"]["verdict"] == "VERDICT_PASSED"
    assert cases["a"]["verdict"] == ("VERDICT_ERROR" if code else "VERDICT_PASSED")
    assert words in cases["a"]["reason"] if code else True
    if "MISMATCH" in words or "UNREADABLE" in words:
        assert f"{transcripts}:1: " in cases["a"]["reason"]


def test_a_conversation_without_an_answer_at_its_end_fails_with_a_warning(cli: Any, tmp_path: Path) -> None:
    suite = _file(tmp_path, "evaluators: [{type: contains, config: {text: order}}]\ncases: [{id: a}]\n")
    row = {"id": "a", "messages": _talk("Where is it?", "an order", "Hello?")}
    shown = cli("test", suite, "--transcripts", _file(tmp_path, json.dumps(row), "t.jsonl"), code=1)
    assert "warning: " in shown
    assert "1 conversation ends with a message of the user" in shown


def test_cases_are_listed_and_the_schema_is_printed(cli: Any, tmp_path: Path) -> None:
    suite = _file(tmp_path, SUITE)
    assert re.search(r"│ shop +│ a +│ 1 +│ 1 +│ smoke", cli("test", suite, "--list"))
    (listed,) = [
        json.loads(line) for line in cli("test", suite, "--list", "--json", "--case", "b").splitlines()
    ]
    assert listed == {
        "suite": "shop",
        "caseId": "b",
        "place": f"{suite}:5",
        "turns": 1,
        "trials": 1,
        "tags": [],
    }
    assert "cases" in json.loads(cli("test", "--schema"))["properties"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_suite_run_goes_on_where_it_stopped(
    cli: Any, evald_command: str, environment: Any, tmp_path: Path, agent: Agent, ending: signal.Signals
) -> None:
    agent.seconds = 0.2
    text = "evaluators: [response-length, {type: contains, config: {substrings: [m]}}]\nmaxConcurrency: 1\ncases:\n"
    text += "".join(f"- {{id: c{number:02}, input: question {number}}}\n" for number in range(30))
    suite = _file(tmp_path, text + _connectors(agent))
    arguments = [evald_command, "test", suite, "--json", "--data-dir", str(tmp_path / "data")]
    with Fork(*arguments, environment=environment({})) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        assert all(lines), process.communicate(timeout=60)[1]
        first = [json.loads(line)["caseId"] for line in lines]
        process.send_signal(ending)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    before = set(first) | {json.loads(line)["caseId"] for line in rest.splitlines()}
    assert len(before) < 30
    # Its message may have come to the command after the signal.
    said = re.search(r"was interrupted: (\d+) of 30 cases are stored, and no report is written", errors)
    assert said
    assert int(said[1]) == len(before)
    assert f"continue with {shlex.join(['evald', *arguments[1:], '--resume'])}" in " ".join(errors.split())
    agent.seconds = 0
    changed = text.replace("question 0}", "question 0, evaluators: [{type: contains, config: {text: no}}]}")
    _file(tmp_path, changed + _connectors(agent))
    refused = cli("test", suite, "--resume", code=2)
    assert "open.cases_digest: the cases differ from those that the suite run was started with" in refused
    _file(tmp_path, text + _connectors(agent))
    asked = Counter(agent.asked)
    shown = [json.loads(line) for line in cli("test", suite, "--json", "--resume").splitlines()]
    assert shown[-1]["suiteRun"]["verdict"] == "VERDICT_PASSED"
    assert len(shown) == 31, "all cases are told, those from before, too"
    again = {said for said in asked if agent.asked[said] > asked[said]}
    assert not {f"question {int(one[1:])}" for one in before} & again, "what was answered is not asked again"
    assert "no suite run of shop m is interrupted" in cli("test", suite, "--resume", code=2)


def test_cases_in_error_run_again_in_the_same_suite_run_and_no_others_do(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    text = "evaluators: [{type: contains, config: {text: one}}]\ncases:\n"
    text += "".join(f"- {{id: {said}, input: {said}}}\n" for said in ("one", "two", "none", "ones"))
    suite = _file(tmp_path, text + _connectors(agent, "m", "n"))
    agent.broken = {"none", "ones"}
    first = [json.loads(line) for line in cli("test", suite, "--json", code=1).splitlines()]
    agent.broken = {"ones"}
    for broken in ({"ones"}, set()):  # the second time both targets are asked for what is still missing
        agent.broken, asked = broken, Counter(agent.asked)
        again = [json.loads(line) for line in cli("test", suite, "--json", "--resume", code=1).splitlines()]
        runs = [[one["suiteRun"] for one in lines if "suiteRun" in one] for lines in (first, again)]
        assert [run["id"] for run in runs[0]] == [run["id"] for run in runs[1]]
        assert [int(run["caseCount"]) for run in runs[1]] == [4, 4]
        assert [int(run.get("errorCount", 0)) for run in runs[1]] == [len(broken)] * 2
        assert not (Counter(agent.asked) - asked).keys() & {"one", "two"}
    assert agent.asked["none"] == 2 * 2
    assert agent.asked["ones"] == 2 * 3
    assert "the latest has no case in error" in cli("test", suite, "--resume", code=2)
    ended = runs[1][0]["id"]
    refused = cli("test", suite, "--target", "m", "--resume", ended, code=2)
    assert "that is completed, wanted one that is interrupted, or completed with cases in error" in refused


def test_a_suite_run_of_an_older_command_is_not_taken_for_one_that_did_not_begin(
    cli: Any, tmp_path: Path, agent: Agent
) -> None:
    suite = _file(
        tmp_path, SUITE.replace(", output: Your order is on its way.", "") + _connectors(agent, "m", "n")
    )
    agent.broken = {"Where is it?"}
    cli("test", suite, code=3)
    agent.broken = set()
    cli("test", suite, "--target", "m", code=1)
    asked = Counter(agent.asked)
    cli("test", suite, "--resume", code=1)
    assert agent.asked["Where is it?"] - asked["Where is it?"] == 2, (
        "the first target anew, the second in error"
    )


@pytest.mark.parametrize(
    ("concurrency", "more"),
    [("1", ""), ("8", ""), ("8", ", samples: 3"), ("1", ", judges: [{model: a}, {model: b}]")],
)
def test_each_trial_asks_the_judge_although_its_answer_is_the_same(
    evald: Any, tmp_path: Path, agent: Agent, judge: Agent, concurrency: str, more: str
) -> None:
    agent.texts = repeat("Good day.")
    config = f"config: {{criteria: Is polite, threshold: 0.5{more}}}"
    suite = _file(
        tmp_path,
        f"trials: 8\nevaluators: [{{type: llm-judge, {config}}}]\ncases: [{{id: hi, input: hi}}]\n"
        + _connectors(agent),
    )
    given = {"EVALD_JUDGE_BASE_URL": judge.url, "EVALD_JUDGE_MODEL": "m"}
    files = [tmp_path / f"report.{ending}" for ending in ("json", "md", "html", "xml")]
    asked, verdicts = [0], []
    for _ in range(2):
        done = evald(
            *("test", suite, "--concurrency", concurrency, "--data-dir", str(tmp_path / "data")),
            *(word for file in files for word in ("--output", str(file))),
            **given,
        )
        asked.append(judge.asked.total())
        results = json.loads(files[0].read_text())
        verdicts.append([trial["verdict"] for trial in results["cases"][0]["trials"]])
    assert asked[1] >= 8, "each trial has asked"
    assert asked[2] == asked[1], "the second suite run has the answers of the first"
    assert verdicts[0] == verdicts[1]
    if not more and concurrency == "1":
        assert verdicts[0] == ["VERDICT_PASSED", "VERDICT_FAILED"] * 4
    assert int(results["suiteRun"]["cachedAnswerCount"]) == asked[1]
    words = f"{asked[1]} judge answers came from the cache"
    assert words in done.stdout
    assert words in files[1].read_text()
    assert (
        f'<span class="figure">{asked[1]}</span> <span class="quiet">judge answers</span>'
        in files[2].read_text()
    )
    assert f'name="cached_judge_answers" value="{asked[1]}"' in files[3].read_text()


@pytest.mark.parametrize("recorded", [False, True])
def test_calls_that_are_not_understood_are_no_absence_of_calls(
    cli: Any, tmp_path: Path, recorded: bool
) -> None:
    messages = json.dumps(
        [{"role": "assistant", "content": "The order.", "steps": [{"tool": "refund", "input": {}}]}]
    )
    never = "{type: tool-use, config: {expectations: [{name: refund, maxCalls: 0}]}}"
    output = "" if recorded else f", output: {messages}"
    case = f"{{id: a, input: Where?{output}}}"
    suite = _file(
        tmp_path, f"evaluators: [{{type: contains, config: {{text: order}}}}, {never}]\ncases: [{case}]"
    )
    rows = f'{{"id": "a", "output": {messages}}}'
    transcripts = ("--transcripts", _file(tmp_path, rows, "rows.jsonl")) if recorded else ()
    shown = re.sub(r"[\s│]+", " ", cli("test", suite, *transcripts, code=3))
    assert "UNREADABLE_CONTENT" in shown or "steps[0]" in shown
    assert "ERROR" in shown


def test_a_suite_runs_on_a_server_that_keeps_it(evald: Any, tmp_path: Path) -> None:
    with server_process(stderr=subprocess.DEVNULL) as server:
        done = evald("test", _file(tmp_path, SUITE), "--server", server.grpc)
        history = evald("history", "shop", "--json", "--server", server.grpc)
    assert done.returncode == 0, done.stderr
    assert json.loads(history.stdout)["suiteRun"]["passedCount"] == "2"


def test_history_shows_the_means_of_metrics(cli: Any, tmp_path: Path) -> None:
    metrics = "".join(f"\n  - {{type: response-length, name: length {number}}}" for number in "12345")
    text = SUITE.replace("[order]}}", f"[order]}}}}{metrics}")
    for found in (text, text.replace(" on its way", "")):
        cli("test", _file(tmp_path, found))
    # "Your order is on its way." has 25 characters, "Your order is." 14, the other answer 26.
    for arguments, means in (((), ["25.5", "20"]), (("--case", "a"), ["25", "14"])):
        shown = cli("history", "shop", *arguments)
        assert ("length 4" in shown, "length 5" in shown) == (True, False)
        assert "1 more metric; --json has all of them" in shown
        assert [
            re.search(rf"│ +{mean} │", line) is not None
            for mean, line in zip(means, _rows(shown), strict=True)
        ] == [
            True,
            True,
        ], shown
    cli("history", "shop", "--html", str(tmp_path / "h.html"))
    assert "Mean of each run" in (tmp_path / "h.html").read_text()


def _rows(shown: str) -> list[str]:
    """The lines of a table that begin with a time."""
    return [line for line in shown.splitlines() if re.match(r"│ \d{4}-\d\d-\d\d ", line)]


def test_history_shows_suites_and_cases_over_time(cli: Any, tmp_path: Path) -> None:
    assert "No suite runs are stored" in cli("history")
    suite = _file(tmp_path, SUITE)
    cli("test", suite)
    _file(tmp_path, SUITE.replace("The order", "It"))
    cli("test", suite, code=1)
    shown = cli("history", "shop")
    assert "shop recorded  █▄" in shown
    assert shown.index("PASSED") < shown.index("FAILED"), "oldest first"
    assert "b  █▁" in cli("history", "shop", "--case", "b")
    lines = [json.loads(line) for line in cli("history", "shop", "--case", "b", "--json").splitlines()]
    assert [one["case"]["verdict"] for one in lines] == ["VERDICT_PASSED", "VERDICT_FAILED"]
    assert 'no suite run of "shop elsewhere"' in cli("history", "shop", "--target", "elsewhere", code=2)
    assert 'did you mean "shop"?' in cli("history", "shpo", code=2)
    assert 'no case of "shop" has the id "z"' in cli("history", "shop", "--case", "z", code=2)
    cli("history", "shop", "--html", str(tmp_path / "h.html"))
    assert "<svg" in (tmp_path / "h.html").read_text()
