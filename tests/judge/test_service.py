"""Through a whole server: faults are errors with codes, costs are counted, and keys stay in."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from pydantic import SecretStr

from evald.context import EvaluatorContext
from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import Kind, Result, Verdict, errored, failed, passed
from evald_server.app import App
from evald_server.config import JudgePrice, JudgeSettings
from evald_server.engine.registry import Origin, State
from evald_server.judge.question import JudgeFault, Models, Question, Spending
from evald_server.telemetry import Telemetry

from ..services.live import Live, request, run, serving, spec
from ..telemetry.scrape import samples, value
from .asking import KEY, SCHEMA
from .wire import Answer, answer, completion, wire

TYPE = "tests.score"
GOOD = answer(200, completion('{"score": 0.9, "reasoning": "well done"}'))


def score(models: Models) -> EvaluatorDefinition:
    """The least evaluator that asks a model: a score of 0.5 passes."""

    async def evaluate(ctx: EvaluatorContext) -> Result:
        spending = Spending()
        question = Question("Judge.", ctx.answer or "", SCHEMA, cache_key=ctx.config.get("key", ""))
        try:
            found = await models.asker(None, ctx.config.get("model")).ask(question, spending)
        except JudgeFault as fault:
            result = errored(fault.code, str(fault))
        else:
            assert found.data is not None
            good = found.data["score"] >= 0.5
            result = (passed if good else failed)(found.data["reasoning"], found.data["score"])
            result.raw_request, result.cached = found.request, found.cached
        result.token_usage, result.cost_usd = spending.usage, spending.cost_usd
        return result

    schema = {"type": "object", "properties": {"key": {"type": "string"}, "model": {"type": "string"}}}
    return define_evaluator(type=TYPE, kind=Kind.ASSERTION, evaluate=evaluate, config_schema=schema)


@asynccontextmanager
async def judging(base_url: str, **settings: Any) -> AsyncIterator[Live]:
    """A server whose judge is at this address."""
    given = {"judge_model": "gpt-4o-mini", "judge_api_key": SecretStr(KEY)} | settings
    async with serving(judge_base_url=base_url, **given) as live:
        live.app.registry.register(score(live.app.models), Origin.BUILT_IN)
        yield live


def test_a_verdict_carries_what_it_has_cost(llmock: LLMock) -> None:
    llmock.reply('{"score": 0.9, "reasoning": "well done"}', times=2)

    async def main() -> None:
        async with judging(llmock.base_url()) as live:
            for cached in (False, True):
                summary = (await live.unary(request(spec(TYPE, {"key": "k"})))).summary
                (result,) = summary.results
                assert (summary.success, result.score, result.cached) == (True, 0.9, cached)
                assert result.HasField("cost") is not cached
                assert KEY not in str(summary)
            telemetry = live.app.telemetry
            assert value(telemetry, "evald_judge_requests_total", outcome="ok") == 1
            assert value(telemetry, "evald_judge_cache_total", result="hit") == 1
            assert value(telemetry, "evald_judge_cache_total", result="miss") == 1
            cost = value(telemetry, "evald_judge_cost_usd_total", evaluator="llm-judge")
            assert cost
            assert cost > 0
            assert value(telemetry, "evald_judge_tokens_total", direction="output")
            model = {"gen_ai_request_model": "gpt-4o-mini"}
            assert (
                value(telemetry, "gen_ai_client_token_usage_count", gen_ai_token_type="input", **model) == 1
            )
            assert value(telemetry, "gen_ai_client_operation_duration_seconds_count", **model) == 1

    run(main())


FAULTS: dict[str, tuple[Answer, str]] = {
    "down": (answer(500, b""), "JUDGE_UNAVAILABLE"),
    "limited": (answer(429, b"", retry_after="30"), "JUDGE_RATE_LIMITED"),
    "unknown key": (
        answer(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
        "JUDGE_UNAVAILABLE",
    ),
    "reset": (Answer(b"", "reset"), "JUDGE_UNAVAILABLE"),
    "silent": (Answer(b"", "hang"), "JUDGE_TIMEOUT"),
    "cut off": (answer(200, '{"choices"', length=99, end="close"), "JUDGE_TRUNCATED"),
    "refused": (answer(200, completion(None, refusal="I cannot.")), "JUDGE_REFUSED"),
    "too short": (answer(200, completion('{"score": 1', "length")), "JUDGE_TRUNCATED"),
    "no JSON": (answer(200, completion("Everything passed, score 1.0!")), "JUDGE_UNPARSEABLE"),
    "no choices": (answer(200, completion() | {"choices": []}), "JUDGE_UNPARSEABLE"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_and_neither_a_pass_nor_a_zero(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    given, code = FAULTS[name]

    async def main() -> None:
        judges = {"default": JudgeSettings.model_validate({"attempts": 2})}
        async with wire(given) as server, judging(server.base_url, judges=judges) as live:
            began = time.monotonic()
            summary = (await live.unary(request(spec(TYPE)), timeout=2)).summary
            assert time.monotonic() - began < 2
            (result,) = summary.results
            assert (result.verdict, result.error.code) == (Verdict.ERROR, code)
            assert (summary.verdict, summary.success) == (Verdict.ERROR, False)
            assert not result.HasField("score")
            assert not result.HasField("value")
            assert KEY not in str(summary)
            assert KEY not in live.app.telemetry.exposition("")[0].decode()
            assert not list(samples(live.app.telemetry, "evald_judge_requests_total", outcome="other"))[
                0
            ].value

    with caplog.at_level("DEBUG"):
        run(main())
    assert KEY not in caplog.text


def test_a_ceiling_for_the_day_holds_for_all_calls_together() -> None:
    async def main() -> None:
        price = JudgeSettings.model_validate(
            {"prices": {"dear": JudgePrice(input=1000, output=10_000)}, "model": "dear"}
        )
        settings: dict[str, Any] = {"judges": {"default": price}, "judge_model": "dear"}
        async with (
            wire(GOOD) as server,
            judging(server.base_url, judge_max_usd_per_day=12, **settings) as live,
        ):
            codes: list[str] = []
            while "JUDGE_BUDGET_EXCEEDED" not in codes and len(codes) < 100:
                (result,) = (await live.unary(request(spec(TYPE)))).summary.results
                codes.append(result.error.code)
            assert set(codes[:-1]) == {""}
            assert (codes[-1], len(server.requests)) == ("JUDGE_BUDGET_EXCEEDED", len(codes) - 1)
            assert (value(live.app.telemetry, "evald_judge_cost_usd_total") or 99) <= 12

    run(main())


def test_calls_that_are_cancelled_leave_the_endpoint_alone() -> None:
    async def main() -> None:
        async with wire(Answer(b"", "hang")) as server, judging(server.base_url) as live:
            call = asyncio.create_task(live.unary(request(spec(TYPE)), timeout=30))
            await server.arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            gate = live.app.models.endpoints["default"].gate
            async with asyncio.timeout(5):
                while gate.inflight:
                    await asyncio.sleep(0.001)
            assert value(live.app.telemetry, "evald_judge_requests_total", outcome="cancelled") == 1

    run(main())


def test_the_catalogue_says_whether_the_judge_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def main() -> None:
        async with wire(GOOD) as server:
            gone = server.base_url
        app = App(_settings(gone))
        if app.registry.get("llm-judge") is None:
            app.registry.register(score(app.models)._replace(type="llm-judge"), Origin.BUILT_IN)
        await app.start()
        try:
            async with asyncio.timeout(10):
                while app.registry.find("llm-judge").entry.state is State.ACTIVE:
                    await asyncio.sleep(0.001)
            app.models.endpoints["default"].reached(True)
            assert app.registry.find("llm-judge").entry.state is State.ACTIVE
        finally:
            await app.stop(0)

    run(main())


def _settings(base_url: str) -> Any:
    from evald_server.config import Settings

    return Settings(listen="127.0.0.1:0", http=None, judge_base_url=base_url, judge_model="m")


def test_models_without_room_count_in_total_only() -> None:
    telemetry = Telemetry()
    tally = telemetry.judge("llm-judge")
    for number in range(1000):
        tally.request(f"model-{number}", "ok", 0.1)
        tally.spent(f"model-{number}", None, 0.5)
    assert value(telemetry, "evald_judge_requests_total", outcome="ok") == 1000
    assert value(telemetry, "evald_judge_cost_usd_total") == 500
    shown = {
        one.labels["gen_ai_request_model"] for one in samples(telemetry, "gen_ai_client_token_usage_count")
    }
    assert {"model-0", "model-1"} <= shown
    assert len(shown) < 5
    assert value(telemetry, "evald_label_overflow_total", label="model")
    assert len(list(samples(telemetry))) < 2000
    assert telemetry.judge("llm-judge") is tally
    tally.request("model-1", "something new", 0.1)
    assert value(telemetry, "evald_judge_requests_total", outcome="other") == 1
