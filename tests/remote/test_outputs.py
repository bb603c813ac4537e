"""Whatever a plugin answers, the result is its verdict or an error that names the field, never anything else."""

import asyncio
import math
from typing import Any

import pytest
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from evald.plugin.v1 import evaluator_plugin_service_pb2 as plugin_pb2
from evald.plugin.v1 import task_pb2
from evald.result import Kind, TokenUsage
from evald.v1 import evaluator_pb2
from evald_server import wire_pb2
from evald_server.remote import evaluator
from evald_server.remote.errors import ContractError
from evald_server.remote.evaluator import read_output

from ..loop import expect_thread
from ..rpc.live import request, serving, spec
from .scripted import WORD, answers, evaluator_type, listening, register, worker

Output = task_pb2.EvaluationOutput
NAN, INF = math.nan, math.inf


def _list(values: list[Value]) -> Value:
    return Value(list_value=ListValue(values=values))


def _deep(levels: int) -> Struct:
    inner = Value(string_value="x")
    for _ in range(levels):
        outer = Value()
        outer.list_value.values.append(inner)
        inner = outer
    return Struct(fields={"deep": inner})


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "no-verdict": ({"score": 1}, "verdict"),
    "unknown-verdict": ({"verdict": 9}, "verdict"),
    "nan-score": ({"verdict": 1, "score": NAN}, "score"),
    "infinite-score": ({"verdict": 1, "score": INF}, "score"),
    "high-score": ({"verdict": 1, "score": 1.5}, "score"),
    "negative-score": ({"verdict": 2, "score": -0.1}, "score"),
    "nan-value": ({"verdict": 1, "value": NAN}, "value"),
    "error-without-error": ({"verdict": 3}, "error"),
    "error-with-pass": ({"verdict": 1, "error": {"code": "TIMEOUT"}}, "error"),
    "unknown-code": ({"verdict": 3, "error": {"code": "WHATEVER"}}, "error.code"),
    "no-code": ({"verdict": 3, "error": {}}, "error.code"),
    "score-of-an-error": ({"verdict": 3, "score": 1, "error": {"code": "TIMEOUT"}}, "score"),
    "much-error-metadata": (
        {"verdict": 3, "error": {"code": "TIMEOUT", "metadata": {str(n): "" for n in range(33)}}},
        "error.metadata",
    ),
    "pending-pass": ({"verdict": 1, "pending": True}, "pending"),
    "unproven-pass": ({"verdict": 1, "unproven": True}, "unproven"),
    "nan-metadata": ({"verdict": 1, "metadata": Struct(fields={"a": Value(number_value=NAN)})}, "metadata.a"),
    "deep-metadata": ({"verdict": 1, "metadata": _deep(33)}, "metadata"),
    "much-metadata": (
        {"verdict": 1, "metadata": Struct(fields={"a": _list([Value()] * 20_000)})},
        "metadata",
    ),
    "many-checks": ({"verdict": 1, "checks": [{"text": "x"}] * 1001}, "checks"),
    "negative-tokens": ({"verdict": 1, "token_usage": {"input_tokens": -1}}, "token_usage.input_tokens"),
    "negative-cost": ({"verdict": 1, "cost": {"amount": -1}}, "cost.amount"),
    "nan-cost": ({"verdict": 1, "cost": {"amount": NAN}}, "cost.amount"),
}


@pytest.mark.parametrize(("fields", "field"), LIES.values(), ids=LIES)
def test_a_lie_is_named_by_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ContractError, match=rf"^{field}: "):
        read_output(Output(**fields), Kind.ASSERTION)


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"verdict": 2, "value": 1}, "verdict"), ({"verdict": 1, "value": 1, "score": 1}, "score")],
    ids=["failed-metric", "metric-with-a-score"],
)
def test_a_metric_neither_fails_nor_has_a_score(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ContractError, match=rf"^{field}: "):
        read_output(Output(**fields), Kind.METRIC)


@pytest.mark.parametrize("score", [0.0, 1.0, None])
def test_a_score_at_the_ends_of_its_range_is_kept_and_none_is_invented(score: float | None) -> None:
    assert read_output(Output(verdict=2, score=score), Kind.ASSERTION).score == score


def test_a_number_that_is_absent_is_none_and_not_zero() -> None:
    plain = read_output(Output(verdict=1), Kind.METRIC)
    assert (plain.value, plain.cost_usd, plain.token_usage, plain.metadata) == (None,) * 4
    counted = read_output(Output(verdict=1, value=0, token_usage={"input_tokens": 5}), Kind.METRIC)
    assert (counted.value, counted.token_usage) == (0, TokenUsage(5, None, None))


def test_an_empty_output_is_missing() -> None:
    with pytest.raises(ContractError, match=r"^output: missing"):
        read_output(Output(), Kind.ASSERTION)


async def test_a_completed_task_whose_output_cannot_be_read_fails_alone() -> None:
    async with serving() as live, worker(live, "acme.word") as plugin:
        for garbage in (b"", b"\xff\xff\xff", b"\x1a\x02\xff\xfe"):

            async def lie(task: task_pb2.EvaluationTask, garbage: bytes = garbage) -> Output:
                completed = wire_pb2.TaskCompleted(task_id=task.task_id, output=garbage)
                await plugin.send_raw(wire_pb2.AttachRequest(completed=completed).SerializeToString())
                await asyncio.Event().wait()
                raise AssertionError

            plugin.behave = lie
            (result,) = (await live.unary(request(WORD))).summary.results
            assert result.error.code == "CONTRACT_VIOLATION"
            assert "output: " in result.error.message
        plugin.behave = answers(verdict=1)
        assert (await live.unary(request(WORD))).summary.success, "the session lives on"


def test_costs_in_other_currencies_are_left_out() -> None:
    output = Output(verdict=1, cost={"currency_code": "EUR", "amount": 3})
    assert read_output(output, Kind.ASSERTION).cost_usd is None


# Found before it is parsed, which takes the time of the event loop.
LARGE: Any = ({"verdict": 1, "reason": "x" * ((1 << 20) + 1)}, "at most 1048576")
WIDE: Any = (
    {"verdict": 1, "metadata": Struct(fields={str(n): Value(string_value="v") for n in range(20_001)})},
    "metadata: more than 10000 items",
)


async def test_no_lie_is_averaged_or_passed_on_and_no_session_dies_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held_up = expect_thread(monkeypatch, evaluator, "read_output")
    async with serving() as live, worker(live, "acme.word", "acme.honest") as plugin:
        lies = LIES | {"large": LARGE, "wide": WIDE}

        async def lie(task: task_pb2.EvaluationTask) -> Output:
            if task.type == "acme.honest":
                return Output(verdict=1, score=0.5)
            return Output(**lies[task.config.fields["word"].string_value][0])

        plugin.behave = lie
        for name, (_, field) in lies.items():
            asked = request(spec("acme.word", {"word": name}), spec("acme.honest"))
            summary = (await live.unary(asked)).summary
            lied, honest = summary.results
            assert (lied.verdict, lied.error.code) == (3, "CONTRACT_VIOLATION"), name
            assert field in lied.error.message
            assert lied.instance_id == "worker-1"
            assert not lied.HasField("score")
            assert honest.score == summary.min_score == summary.mean_score == 0.5
            assert not summary.success
            if name == "much-metadata":
                assert False in held_up, "its conversion takes half a second"
        (session,) = live.app.remotes.instances.by_id.values()
        assert not session.breakers["acme.word", "1.0.0"].is_open, (
            "one caller's config must not shut out the others"
        )


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "output: missing"),
        (b"\xff\xff", "EvaluateResponse"),
        (b"\x0a\x03\xff\xff\xff", "output: cannot parse"),
        (plugin_pb2.EvaluateResponse(output=Output(**LARGE[0])).SerializeToString(), "bytes, wanted at most"),
        (plugin_pb2.EvaluateResponse(output=Output(reason="x" * (2 << 20))).SerializeToString(), "too large"),
    ],
    ids=["empty", "garbage", "garbage-inside", "large", "huge"],
)
async def test_bytes_over_a_connection_that_are_no_answer_are_a_contract_violation(
    raw: bytes, text: str
) -> None:
    async with serving(remote_allowed=["127.0.0.1"]) as live, listening("acme.word") as plugin:
        plugin.raw = raw
        await register(live, plugin)
        (result,) = (await live.unary(request(WORD))).summary.results
        assert result.error.code == "CONTRACT_VIOLATION"
        assert text in result.error.message


async def test_a_remote_metric_that_fails_has_no_effect_on_the_verdict() -> None:
    metric = evaluator_type("acme.count", kind=evaluator_pb2.EVALUATOR_KIND_METRIC)
    async with (
        serving() as live,
        worker(live, metric, behave=answers(verdict=2, value=3)),
        worker(live, "acme.word", instance_id="other"),
    ):
        summary = (await live.unary(request(spec("acme.count"), WORD))).summary
        assert summary.success
        assert summary.results[0].error.code == "CONTRACT_VIOLATION"
        assert not summary.metrics


async def test_a_task_that_is_too_large_is_never_sent() -> None:
    async with serving(remote_max_task_bytes=2000) as live, worker(live, "acme.word") as plugin:
        (result,) = (await live.unary(request(WORD, answer="x" * 3000))).summary.results
        assert result.error.code == "INPUT_TOO_LARGE"
        assert not plugin.tasks
        assert plugin.welcome.max_task_bytes == 2000
        assert (await live.unary(request(WORD))).summary.success
