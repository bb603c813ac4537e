"""Evaluators that are functions share what they read of a turn, and end with the call."""

import asyncio
import json
import threading

import pytest

import evald
from evald import context
from evald.evaluator import define_evaluator
from evald.result import Kind

from ..rpc.live import request, serving, spec

CONFIG = {"type": "object", "properties": {"n": {"type": "integer"}}}


async def test_functions_parse_an_answer_and_compute_what_they_need_once_each_with_its_own_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, made, configs = [], [], []
    parse = context.parse_json

    def counted(text: str, *rest: object) -> object:
        parsed.append(text)
        return parse(text, *rest)  # type: ignore[arg-type]

    def read(ctx: evald.EvaluatorContext) -> bool:
        data, problem = ctx.answer_json
        ctx.once("key", lambda: made.append(1))
        configs.append(ctx.config.get("n"))
        return problem is None and data == {"a": 1}

    monkeypatch.setattr(context, "parse_json", counted)
    types = [
        define_evaluator(
            type=f"acme.f{n}", kind=Kind.ASSERTION, evaluate=read, inline=True, config_schema=CONFIG
        )
        for n in range(5)
    ]
    async with serving(types) as live:
        specs = [spec(f"acme.f{n}", {"n": n}) for n in range(5)]
        answer = await live.unary(request(*specs, answer=json.dumps({"a": 1})))
    assert answer.summary.success
    assert (len(parsed), len(made), sorted(configs)) == (1, 1, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("reasoning", [False, True], ids=["answer", "with reasoning"])
async def test_a_function_that_checks_the_time_ends_with_the_call(reasoning: bool) -> None:
    ended = threading.Event()

    def loop(ctx: evald.EvaluatorContext) -> bool:
        view = ctx.with_reasoning() if reasoning else ctx
        try:
            while True:
                view.check_time()
        except BaseException:
            ended.set()
            raise

    slow = define_evaluator(type="acme.slow", kind=Kind.ASSERTION, evaluate=loop)
    async with serving([slow]) as live:
        answer = await live.unary(request(spec("acme.slow"), answer="<think>so</think>yes"), timeout=0.5)
        assert answer.summary.results[0].error.code == "TIMEOUT"
        assert await asyncio.to_thread(ended.wait, 10)
