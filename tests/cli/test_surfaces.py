"""The same turns with the same evaluators get the same results, whichever way they are evaluated."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from google.protobuf.json_format import ParseDict

from evald import Client, Evaluation
from evald.v1.suite_service_pb2 import CaseResult
from evald_server.pytest_plugin import CaseUnderTest
from evald_server.suites.suite_file import load_suites

from ..processes import ServerProcess
from .conftest import Run

Turns: TypeAlias = Mapping[str, dict[str, Any]]
Outcomes: TypeAlias = dict[str, list[Any]]
"""By turn: the verdict and the reason of the evaluation, then what each evaluator says."""

_KNOWN: dict[str, Any] = {
    "latency_ms": 1200,
    "run_duration_ms": 1200,
    "usage": {"input_tokens": 30, "output_tokens": 12},
    "cost_usd": 0.002,
    "finish_reason": "stop",
}
_ITEM = {"item": {"zeta": {"b": 1, "a": [None, 2.5]}, "alpha": "Done: BK-12345", "mid": True}}
_ASKED = {"role": "user", "content": "Book it."}
_CALL = {"id": "c", "type": "function", "function": {"name": "book", "arguments": '{"id": 7}'}}


def _turn(*answer: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [_ASKED, *answer], "turn": 1, "is_final": True, **more}


def _text(content: Any, **more: Any) -> dict[str, Any]:
    return _turn({"role": "assistant", "content": content}, **more)


TURNS: Turns = {
    "all-is-known": _text("Done: BK-12345", expected="Done: BK-12345", metadata=_ITEM, **_KNOWN),
    "nothing-is-known": _text("Done: BK-12345"),
    "zeros": _text("0", latency_ms=0, run_duration_ms=0, usage={"input": 0, "output": 0}, cost_usd=0),
    "empty": _text(""),
    "null": _text(None),
    "refused": _turn({"role": "assistant", "content": None, "refusal": "No."}),
    "calls-alone": _turn({"role": "assistant", "content": None, "tool_calls": [_CALL]}),
    "calls": _turn(
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "content": "Done: BK-12345"},
        expected={"tool_calls": [{"name": "book", "args": {"id": 7}}]},
    ),
    "blocks": _text(
        [
            {"type": "text", "text": "Done: "},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            {"type": "text", "text": "BK-12345"},
        ]
    ),
    "letters": _text("Cafe\u0301 \N{THUMBS UP SIGN} \u05e9\u05dc\u05d5\u05dd a\x00b \u2028"),
    "json": _text(
        '{"z": 1e400, "b": {"y": 2, "x": 3}, "a": [1]}', expected={"data": {"b": {"x": 1, "y": 2}, "a": [2]}}
    ),
    "data-null": _text("null", expected={"data": None}),
    "Anthropic": _turn(
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "book", "input": {"id": 7}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Done: BK-12345"}]},
    ),
    "LangChain": {
        "messages": [{"type": "human", "content": "Book it."}, {"type": "ai", "content": "Done: BK-12345"}],
        "turn": 1,
        "is_final": True,
    },
}
EVALUATORS: list[Any] = [
    {"type": "regex", "config": {"pattern": r"BK-\d{5}"}},
    {"type": "regex", "config": {"pattern": "[a-z]"}, "negate": True, "shadow": True},
    {"type": "latency-budget", "config": {"maxMs": 1000, "onMissing": "skip"}, "weight": 2},
    {"type": "token-budget", "config": {"maxTokens": 50, "onMissing": "error"}, "on_error": "fail_open"},
    {"type": "cost-within", "config": {"maxUsd": 0.001, "onMissing": "pass"}, "threshold": 0.4},
    {"type": "completed-within", "config": {"limitMs": 1500}, "shadow": True},
    {"type": "finish-reason", "config": {"allowed": ["stop"]}, "name": "stop"},
    {"type": "exact-match", "config": {"trim": True}, "when": "final"},
    {"type": "json-match", "name": "stop"},
    {"type": "tool-use", "config": {"expectations": [{"name": "book", "args": {"id": 7}}]}},
    {"type": "trajectory", "required": True},
    {
        "type": "string-check",
        "config": {"operation": "eq", "input": "{{item.zeta}}", "reference": "{{sample.output_text}}"},
    },
    {
        "type": "any-of",
        "config": {"evaluators": [{"type": "is-json"}, {"type": "length-within", "config": {"max": 9}}]},
    },
    "response-length",
    "token-usage",
    "turn-count",
]


def _outcome(evaluation: Mapping[str, Any]) -> list[Any]:
    """What an evaluation says: the data of `Evaluation.to_dict()` or of the HTTP API."""
    results = evaluation.get("results", evaluation.get("evaluatorResults"))
    assert results
    whole = [evaluation[key] for key in ("verdict", "success", "reason", "metrics")]
    said = [
        (one["name"], one["verdict"], one.get("score"), one["reason"], one.get("error", {}).get("code"))
        for one in results
    ]
    return [*whole, evaluation.get("score"), *said]


class Surfaces:
    """The ways to a server. Each takes all turns, and returns their outcomes."""

    def __init__(self, server: ServerProcess, client: Client, evald: Run, folder: Path) -> None:
        self._server, self._client, self._evald, self._folder = server, client, evald, folder

    def unary(self) -> Outcomes:
        return {name: _of(self._client.evaluate(turn, EVALUATORS)) for name, turn in TURNS.items()}

    def stream(self) -> Outcomes:
        return {name: _of([*self._client.stream(turn, EVALUATORS)][-1]) for name, turn in TURNS.items()}

    def session(self) -> Outcomes:
        found = {}
        for name, turn in TURNS.items():
            base = {"metadata": turn.get("metadata", {})}
            with self._client.session(EVALUATORS, base=base) as session:
                found[name] = _of(session.turn({key: turn[key] for key in turn if key not in base}))
        return found

    def batch(self) -> Outcomes:
        return {one.id: _of(one.evaluation) for one in self._client.batch(TURNS.items(), EVALUATORS)}

    def http(self) -> Outcomes:
        return {
            name: _outcome(self.post("evaluate", [{**turn, "evaluators": EVALUATORS}])[0])
            for name, turn in TURNS.items()
        }

    def http_batch(self) -> Outcomes:
        rows = [{"id": name, **turn} for name, turn in TURNS.items()]
        *answers, _ = self.post("evaluate-batch", [{"evaluators": EVALUATORS}, *rows])
        return {one["id"]: _outcome(one["evaluation"]) for one in answers}

    def conversations(self) -> Outcomes:
        """`evald evaluate`, of last turns and of all turns."""
        rows = self.lines("conversations", [{"id": name, **turn} for name, turn in TURNS.items()])
        specs = self.lines("evaluators", [EVALUATORS])
        found, summary = self.command("evaluate", rows, "--evaluators", specs)
        assert summary["conversationCount"] == len(TURNS)
        return {one["id"]: _outcome(one["evaluation"]) for one in found}

    def suite(self) -> Outcomes:
        """`evald test` of cases with their answers."""
        return self._cases(self.lines("suite", [*_cases(answered=True)]))

    def transcripts(self) -> Outcomes:
        """`evald test` of cases whose answers are elsewhere."""
        rows = self.lines("transcripts", [{"id": name, **turn} for name, turn in TURNS.items()])
        return self._cases(self.lines("suite", [*_cases(answered=False)]), "--transcripts", rows)

    def pytest(self) -> Outcomes:
        """The cases of a suite as tests, with the same answers."""
        (suite,) = load_suites([self.lines("suite", [*_cases(answered=False)])], targets=["the test"])
        answers = {case["id"]: case["output"] for case in _cases(answered=True)}
        return {
            case.case_id: _of(
                *CaseUnderTest(suite.open, case).evaluate(self._client, [answers[case.case_id]])
            )
            for case in suite.cases
        }

    def post(self, path: str, lines: list[Any]) -> list[Any]:
        kind = "application/json" if path == "evaluate" else "application/x-ndjson"
        body = "\n".join(map(json.dumps, lines))
        url = f"http://{self._server.web}/api/{path}"
        answer = httpx.post(url, content=body, headers={"content-type": kind}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def command(self, *arguments: str) -> tuple[list[Any], Any]:
        done = self._evald(*arguments, "--json", "--server", self._server.grpc)
        assert done.stdout, done.stderr
        *found, last = map(json.loads, done.stdout.splitlines())
        return found, last

    def _cases(self, suite: str, *more: str) -> Outcomes:
        found, _ = self.command("test", suite, *more)
        results = [ParseDict(one, CaseResult()) for one in found]
        return {one.case_id: _of(Evaluation.from_pb(one.trials[0].turns[0].evaluation)) for one in results}

    def lines(self, name: str, data: list[Any]) -> str:
        path = self._folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in data), encoding="utf-8")
        return str(path)


def _of(evaluation: Any) -> list[Any]:
    assert isinstance(evaluation, Evaluation)
    return _outcome(evaluation.to_dict())


def _cases(*, answered: bool) -> Iterator[dict[str, Any]]:
    """The turns as cases of a suite. Its runs take as long as their only answer."""
    about = [key for key in _KNOWN if key != "run_duration_ms"]
    for name, turn in TURNS.items():
        asked, *answer = turn["messages"]
        case = {"id": name, "input": [asked], "evaluators": EVALUATORS}
        case |= {key: turn[key] for key in ("expected", "metadata") if key in turn}
        output = {"messages": answer, **{key: turn[key] for key in about if key in turn}}
        yield case | ({"output": output} if answered else {})


@pytest.fixture(name="surfaces", scope="module")
def _surfaces(
    server_process: ServerProcess, evald: Run, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Surfaces]:
    with Client(server_process.grpc) as client:
        yield Surfaces(server_process, client, evald, tmp_path_factory.mktemp("surfaces"))


@pytest.fixture(name="expected", scope="module")
def _expected(surfaces: Surfaces) -> Outcomes:
    return surfaces.unary()


def test_the_turns_have_every_verdict(expected: Outcomes) -> None:
    """Otherwise nothing would be compared."""
    seen = {said[1] for _, _, _, _, _, *results in expected.values() for said in results}
    assert seen == {"PASSED", "FAILED", "ERROR", "SKIPPED"}


@pytest.mark.parametrize(
    "way",
    [
        Surfaces.unary,
        Surfaces.stream,
        Surfaces.session,
        Surfaces.batch,
        Surfaces.http,
        Surfaces.http_batch,
        Surfaces.conversations,
        Surfaces.suite,
        Surfaces.transcripts,
        Surfaces.pytest,
    ],
)
def test_a_turn_has_the_same_results_whichever_way_it_is_evaluated(
    way: Callable[[Surfaces], Outcomes], surfaces: Surfaces, expected: Outcomes
) -> None:
    found = way(surfaces)
    assert found.keys() == expected.keys()
    for name, outcome in expected.items():
        assert found[name] == outcome, name


_YES = {"role": "assistant", "content": "Yes, it is."}
_EARLIER = [{"role": "user", "content": "Is it Friday?"}, _YES]
_LATER = {"role": "user", "content": "Is my data safe?"}
_RESULT = {"role": "tool", "tool_call_id": "c", "content": "yes"}
_CALLED = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
_SYSTEM = {"role": "system", "content": "yes: the agent has timed out"}
_FOUND, _TEXT = "No assistant message found", "No assistant message with text"


def _user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


ENDS: dict[str, tuple[list[Any], str | None]] = {
    # the messages after an answered question, and why there is no answer; None where the earlier answer is the last
    "no answer": ([_LATER], _FOUND),
    "two questions": ([_LATER, _user("Hello?")], _FOUND),
    "only a system message": ([_LATER, _SYSTEM], _FOUND),
    "only a tool's result": ([_LATER, _RESULT], _FOUND),
    "tool calls alone": ([_LATER, _CALLED], _TEXT),
    "tool calls and results": ([_LATER, _CALLED, _RESULT], _TEXT),
    "tool calls beside an empty text": ([_LATER, {**_CALLED, "content": ""}], _TEXT),
    "an empty text": ([_LATER, {"role": "assistant", "content": ""}], _TEXT),
    "nothing but spaces": ([_LATER, {"role": "assistant", "content": " \n\u00a0"}], _TEXT),
    "null": ([_LATER, {"role": "assistant", "content": None}], _TEXT),
    "an end mark": ([_user("###STOP###")], None),
    "an end mark in a block": ([_user([{"type": "text", "text": "TERMINATE"}])], None),
    "a good-bye with an end mark": ([_user("Thank you! Bye.\n\n###TRANSFER###")], None),
    "an end mark and a note": (
        [_user("###OUT-OF-SCOPE###"), {"role": "system", "content": "reward: 1"}],
        None,
    ),
    "two end marks": (
        [_user("###STOP###"), {"role": "system", "content": "stopped"}, _user("TERMINATE")],
        None,
    ),
    "an end mark after a question": ([_LATER, _user("###STOP###")], _FOUND),
    "a good-bye without one": ([_user("Thank you!")], _FOUND),
    "a question that ends with the word": ([_user("How do I stop the process? With TERMINATE")], _FOUND),
    "a question about the mark": ([_user("What does ###STOP### mean?")], _FOUND),
    "a mark that the agent answered": ([_user("###STOP###"), {"role": "assistant", "content": ""}], _TEXT),
}
PRESENT: list[Any] = [
    {
        "type": "contains",
        "name": f"contains-{which}",
        "config": {"text": "yes", "ignoreCase": True, "message": which},
    }
    for which in ("last", "first", "all")
]
ABSENT: list[Any] = [
    {
        "type": "regex",
        "name": f"absent-{which}",
        "config": {"pattern": "x", "mustMatch": False, "message": which},
    }
    for which in ("last", "first", "all")
] + [
    {"type": "contains", "name": "not-contains", "config": {"text": "x{2}"}, "negate": True},
    {"type": "length-within", "config": {"max": 99}},
    {
        "type": "string-check",
        "config": {"operation": "ne", "input": "{{sample.output_text}}", "reference": "a"},
    },
    {"type": "text-similarity", "config": {"expected": "zz", "threshold": 0.9}, "negate": True},
]
TEXT_CHECKS = [*PRESENT, *ABSENT]


class Ends:
    """The ways to evaluate a whole conversation. Each returns an evaluation by conversation."""

    def __init__(self, surfaces: Surfaces, client: Client) -> None:
        self._surfaces, self._client = surfaces, client

    def unary(self) -> dict[str, Any]:
        return {name: self._client.evaluate(said, TEXT_CHECKS).to_dict() for name, said in _whole().items()}

    def json_text(self) -> dict[str, Any]:
        return {
            name: self._client.evaluate(json.dumps(said), TEXT_CHECKS).to_dict()
            for name, said in _whole().items()
        }

    def stream(self) -> dict[str, Any]:
        return {
            name: [*self._client.stream(said, TEXT_CHECKS)][-1].to_dict()  # type: ignore[union-attr]
            for name, said in _whole().items()
        }

    def batch(self) -> dict[str, Any]:
        answers = self._client.batch(_whole().items(), TEXT_CHECKS)
        return {one.id: one.evaluation.to_dict() for one in answers if one.evaluation is not None}

    def session(self) -> dict[str, Any]:
        """All messages in one turn."""
        found = {}
        for name, said in _whole().items():
            with self._client.session(TEXT_CHECKS) as session:
                found[name] = session.turn(said).to_dict()
        return found

    def session_of_turns(self) -> dict[str, Any]:
        """The end is a turn of its own, unless it is an end mark, which is no turn."""
        found = {}
        for name, (end, why) in ENDS.items():
            with self._client.session(TEXT_CHECKS) as session:
                for new in [_EARLIER, end] if why else [[*_EARLIER, *end]]:
                    found[name] = session.turn({"messages": new}).to_dict()
            assert session.summary is not None
            assert session.summary.passed is (why is None), name
        return found

    def base(self) -> dict[str, Any]:
        """The earlier turn is the base of the session."""
        found = {}
        for name, (end, why) in ENDS.items():
            with self._client.session(TEXT_CHECKS, base=_EARLIER if why else _EARLIER[:1]) as session:
                found[name] = session.turn(end if why else [_YES, *end]).to_dict()
        return found

    def http(self) -> dict[str, Any]:
        return {
            name: self._surfaces.post("evaluate", [{"messages": said, "evaluators": TEXT_CHECKS}])[0]
            for name, said in _whole().items()
        }

    def http_batch(self) -> dict[str, Any]:
        rows = [{"id": name, "messages": said} for name, said in _whole().items()]
        *answers, _ = self._surfaces.post("evaluate-batch", [{"evaluators": TEXT_CHECKS}, *rows])
        return {one["id"]: one["evaluation"] for one in answers}

    def command(self) -> dict[str, Any]:
        found = self._evaluate()
        assert {name: one["unanswered"] for name, one in found.items()} == {
            name: why == _FOUND for name, (_, why) in ENDS.items()
        }
        return {name: one["evaluation"] for name, one in found.items()}

    def command_with_turns(self) -> dict[str, Any]:
        return {name: one["turns"][-1]["evaluation"] for name, one in self._evaluate("--turns").items()}

    def _evaluate(self, *more: str) -> dict[str, Any]:
        rows = [{"id": name, "messages": said} for name, said in _whole().items()]
        file, specs = self._surfaces.lines("ends", rows), self._surfaces.lines("checks", [TEXT_CHECKS])
        found, _ = self._surfaces.command("evaluate", file, "--evaluators", specs, *more)
        return {one["id"]: one for one in found}


def _whole() -> dict[str, list[Any]]:
    return {name: [*_EARLIER, *end] for name, (end, _) in ENDS.items()}


@pytest.mark.parametrize(
    "way", [way for name, way in vars(Ends).items() if not name.startswith("_")], ids=lambda way: way.__name__
)
def test_an_answer_is_never_an_earlier_turns(
    way: Callable[[Ends], dict[str, Any]], surfaces: Surfaces, server_process: ServerProcess
) -> None:
    with Client(server_process.grpc) as client:
        found = way(Ends(surfaces, client))
    assert found.keys() == ENDS.keys()
    for name, (_, why) in ENDS.items():
        results = found[name].get("results", found[name].get("evaluatorResults"))
        assert len(results) == len(TEXT_CHECKS)
        for one in results:
            assert one["verdict"] == ("FAILED" if why else "PASSED"), (name, one)
            assert not why or one["reason"].startswith(why), (name, one)


def test_a_warning_names_the_unanswered_end(
    surfaces: Surfaces, evald: Run, server_process: ServerProcess
) -> None:
    file = surfaces.lines("unanswered", [{"messages": [*_EARLIER, _LATER]}])
    done = evald("evaluate", file, "-e", "contains:text=Yes", "--server", server_process.grpc)
    assert done.returncode == 1
    assert "it may be a good-bye, or the agent broke down" in done.stderr
    marked = surfaces.lines("marked", [{"messages": [*_EARLIER, _user("Bye! ###STOP###")]}])
    done = evald("evaluate", marked, "-e", "contains:text=Yes", "--server", server_process.grpc)
    assert (done.returncode, "warning" in done.stderr) == (0, False)
