"""Through a whole server: faults are errors with codes, costs are counted, and keys stay in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from pydantic import SecretStr

from evald.result import Verdict
from evald_server.app import App
from evald_server.auth.keys import add_key, new_key
from evald_server.auth.principal import Role
from evald_server.config import JudgePrice, JudgeSettings, Settings
from evald_server.day_totals import SERVER, SPENDING_FILE, read_totals, utc_day
from evald_server.engine.registry import State
from evald_server.monitoring import Telemetry

from ..auth.keyring import bearer, make_key
from ..loop import run
from ..monitoring.scrape import value
from ..rpc.live import Live, request, serving, spec, until
from .asking import KEY
from .wire import Answer, answer, completion, wire

VERDICT = '{"score": 0.9, "hits": ["polite"], "misses": [], "reasoning": "well done"}'
GOOD = answer(200, completion(VERDICT))
JUDGE = spec("llm-judge", {"criteria": "The answer is polite."})


@asynccontextmanager
async def judging(base_url: str, **settings: Any) -> AsyncIterator[Live]:
    """A server whose judge is at this address."""
    given = {"judge_model": "gpt-4o-mini", "judge_api_key": SecretStr(KEY)} | settings
    async with serving(judge_base_url=base_url, **given) as live:
        yield live


async def test_a_verdict_carries_what_it_has_cost(llmock: LLMock) -> None:
    llmock.reply(VERDICT, times=2)

    async with judging(llmock.base_url()) as live:
        for cached in (False, True):
            summary = (await live.unary(request(JUDGE))).summary
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
        for direction in ("input", "output"):
            tokens = value(telemetry, "evald_judge_tokens_total", direction=direction)
            assert (
                value(telemetry, f"gen_ai_client_inference_usage_{direction}_tokens_total", **model) == tokens
            )
        assert value(telemetry, "gen_ai_client_inference_duration_seconds_count", **model) == 1


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
        # So long that a busy machine adds no time-outs of its own, and less than the 30 s of "limited".
        timeout = 0.5 if name == "silent" else 10
        judges = {"default": JudgeSettings.model_validate({"attempts": 2, "timeout": timeout})}
        async with wire(given) as server, judging(server.base_url, judges=judges) as live:
            summary = (await live.unary(request(JUDGE, options={"timeout": {"seconds": 20}}))).summary
            (result,) = summary.results
            assert (result.verdict, result.error.code) == (Verdict.ERROR, code)
            assert (summary.verdict, summary.success) == (Verdict.ERROR, False)
            assert not result.HasField("score")
            assert not result.HasField("value")
            assert KEY not in str(summary)
            assert KEY not in live.app.telemetry.exposition("")[0].decode()
            assert value(live.app.telemetry, "evald_judge_requests_total", outcome="other") == 0

    with caplog.at_level("DEBUG"):
        run(main())
    assert KEY not in caplog.text


async def test_a_ceiling_for_the_day_holds_for_all_calls_together() -> None:
    price = JudgeSettings.model_validate(
        {"prices": {"dear": JudgePrice(input=1000, output=10_000)}, "model": "dear"}
    )
    settings: dict[str, Any] = {
        "judges": {"default": price},
        "judge_model": "dear",
        "judge_cache_bytes": 0,
    }
    async with (
        wire(GOOD) as server,
        judging(server.base_url, judge_max_usd_per_day=15, **settings) as live,
    ):
        codes: list[str] = []
        while "JUDGE_BUDGET_EXCEEDED" not in codes and len(codes) < 100:
            (result,) = (await live.unary(request(JUDGE))).summary.results
            codes.append(result.error.code)
        assert len(codes) > 2
        assert set(codes[:-1]) == {""}
        assert (codes[-1], len(server.requests)) == ("JUDGE_BUDGET_EXCEEDED", len(codes) - 1)
        assert (value(live.app.telemetry, "evald_judge_cost_usd_total") or 99) <= 15


async def test_a_principal_s_ceiling_stops_its_judges_and_nobody_else_s(tmp_path: Path) -> None:
    price = JudgeSettings.model_validate(
        {"prices": {"dear": JudgePrice(input=1000, output=10_000)}, "model": "dear"}
    )
    file = tmp_path / "keys.toml"
    texts = []
    for principal, ceiling in (("ci", 15.0), ("ci", 15.0), ("other", None)):
        text, key = new_key(principal, [Role.CALLER], judge_usd_per_day=ceiling)
        add_key(file, key)
        texts.append(text)
    async with (
        wire(GOOD) as server,
        judging(
            server.base_url,
            judges={"default": price},
            judge_model="dear",
            judge_cache_bytes=0,
            keys_file=file,
            data_dir=tmp_path / "data",
        ) as live,
    ):

        async def code(key: str) -> str:
            answer = await live.unary(request(JUDGE), metadata=(("authorization", f"Bearer {key}"),))
            return str(answer.summary.results[0].error.code)

        one, again, other = texts
        codes: list[str] = []
        while "JUDGE_BUDGET_EXCEEDED" not in codes and len(codes) < 100:
            codes.append(await code(one))
        assert len(codes) > 2
        assert set(codes[:-1]) == {""}
        assert await code(again) == "JUDGE_BUDGET_EXCEEDED", "another key of the same principal"
        assert await code(other) == ""
        assert value(live.app.telemetry, "evald_principal_limited_total", limit="judge_usd_per_day") == 2
    spent = read_totals(tmp_path / "data" / SPENDING_FILE, utc_day())
    assert 0 < spent["ci"] <= 15
    assert spent[SERVER] == pytest.approx(spent["ci"] + spent["other"])


@pytest.mark.parametrize(
    ("scope", "cached"), [("all", [False, True, True]), ("principal", [False, True, False])]
)
async def test_cached_answers_are_for_all_or_for_their_principal(
    tmp_path: Path, scope: str, cached: list[bool]
) -> None:
    file = tmp_path / "keys.toml"
    texts = []
    for principal in ("ci", "ci", "other"):
        text, key = new_key(principal, [Role.CALLER])
        add_key(file, key)
        texts.append(text)
    settings: dict[str, Any] = {"judge_cache_scope": scope, "keys_file": file}
    async with wire(GOOD) as server, judging(server.base_url, **settings) as live:
        answers = [
            await live.unary(request(JUDGE), metadata=(("authorization", f"Bearer {text}"),))
            for text in texts
        ]
        assert [answer.summary.results[0].cached for answer in answers] == cached
        assert len(server.requests) == cached.count(False)


async def test_one_principal_takes_not_all_requests_to_an_endpoint(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    greedy, other = (bearer(make_key(file, name, Role.CALLER)) for name in ("greedy", "other"))
    async with wire(Answer(b"", "hang")) as server:
        judges = {"slow": JudgeSettings(base_url=server.base_url, model="judge-1", concurrency=4)}
        async with serving(judges=judges, keys_file=file) as live:
            limiter = live.app.models.endpoints["slow"].limiter

            def begin(count: int, who: str, metadata: Any) -> list[asyncio.Task[Any]]:
                asked = request(JUDGE, answer=f"from {who}")
                return [
                    asyncio.create_task(live.unary(asked, metadata=metadata, timeout=120))
                    for _ in range(count)
                ]

            def arrived(who: str) -> int:
                return sum(f"from {who}" in str(body) for body in server.bodies)

            calls = begin(5, "greedy", greedy)
            await until(lambda: limiter.inflight + limiter.queued == 5, 60)
            calls += begin(1, "other", other)
            await until(lambda: arrived("other") == 1 and arrived("greedy") == 3, 60)
            assert (limiter.inflight, limiter.queued) == (4, 2)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def test_calls_that_are_cancelled_leave_the_endpoint_alone() -> None:
    async with wire(Answer(b"", "hang")) as server, judging(server.base_url) as live:
        call = asyncio.create_task(live.unary(request(JUDGE), timeout=30))
        await server.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        limiter = live.app.models.endpoints["default"].limiter
        await until(lambda: not limiter.inflight)
        assert value(live.app.telemetry, "evald_judge_requests_total", outcome="cancelled") == 1


async def test_the_catalogue_says_whether_the_judge_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async with wire(GOOD) as server:
        gone = server.base_url
    app = App(Settings(listen="127.0.0.1:0", http=None, web=None, judge_base_url=gone, judge_model="m"))
    await app.start()
    try:
        await until(lambda: app.registry.find("llm-judge").entry.state is State.UNAVAILABLE)
        app.models.endpoints["default"].set_reachable(True)
        assert app.registry.find("llm-judge").entry.state is State.ACTIVE
    finally:
        await app.stop(0)


def test_requests_of_all_models_count_in_total() -> None:
    telemetry = Telemetry()
    judges = telemetry.judges
    for number in range(1000):
        judges.request(f"model-{number}", "ok", 0.1)
        judges.spent(f"model-{number}", None, 0.5)
    assert value(telemetry, "evald_judge_requests_total", outcome="ok") == 1000
    assert value(telemetry, "evald_judge_cost_usd_total") == 500
    judges.request("model-1", "something new", 0.1)
    assert value(telemetry, "evald_judge_requests_total", outcome="other") == 1
