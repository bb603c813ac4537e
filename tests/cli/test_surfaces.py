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
            name: _outcome(self._post("evaluate", [{**turn, "evaluators": EVALUATORS}])[0])
            for name, turn in TURNS.items()
        }

    def http_batch(self) -> Outcomes:
        rows = [{"id": name, **turn} for name, turn in TURNS.items()]
        *answers, _ = self._post("evaluate-batch", [{"evaluators": EVALUATORS}, *rows])
        return {one["id"]: _outcome(one["evaluation"]) for one in answers}

    def conversations(self) -> Outcomes:
        """`evald evaluate`, of last turns and of all turns."""
        rows = self._lines("conversations", [{"id": name, **turn} for name, turn in TURNS.items()])
        specs = self._lines("evaluators", [EVALUATORS])
        found, summary = self._command("evaluate", rows, "--evaluators", specs)
        assert summary["conversationCount"] == len(TURNS)
        return {one["id"]: _outcome(one["evaluation"]) for one in found}

    def suite(self) -> Outcomes:
        """`evald test` of cases with their answers."""
        return self._cases(self._lines("suite", [*_cases(answered=True)]))

    def transcripts(self) -> Outcomes:
        """`evald test` of cases whose answers are elsewhere."""
        rows = self._lines("transcripts", [{"id": name, **turn} for name, turn in TURNS.items()])
        return self._cases(self._lines("suite", [*_cases(answered=False)]), "--transcripts", rows)

    def pytest(self) -> Outcomes:
        """The cases of a suite as tests, with the same answers."""
        (suite,) = load_suites([self._lines("suite", [*_cases(answered=False)])], targets=["the test"])
        answers = {case["id"]: case["output"] for case in _cases(answered=True)}
        return {
            case.case_id: _of(
                *CaseUnderTest(suite.open, case).evaluate(self._client, [answers[case.case_id]])
            )
            for case in suite.cases
        }

    def _post(self, path: str, lines: list[Any]) -> list[Any]:
        kind = "application/json" if path == "evaluate" else "application/x-ndjson"
        body = "\n".join(map(json.dumps, lines))
        url = f"http://{self._server.web}/api/{path}"
        answer = httpx.post(url, content=body, headers={"content-type": kind}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]

    def _command(self, *arguments: str) -> tuple[list[Any], Any]:
        done = self._evald(*arguments, "--json", "--server", self._server.grpc)
        assert done.stdout, done.stderr
        *found, last = map(json.loads, done.stdout.splitlines())
        return found, last

    def _cases(self, suite: str, *more: str) -> Outcomes:
        found, _ = self._command("test", suite, *more)
        results = [ParseDict(one, CaseResult()) for one in found]
        return {one.case_id: _of(Evaluation.from_pb(one.trials[0].turns[0].evaluation)) for one in results}

    def _lines(self, name: str, data: list[Any]) -> str:
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
