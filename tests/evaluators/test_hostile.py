"""Turns and specs that are small to send and much work: none holds the event loop, all end or are refused."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from evald.context import EvaluatorContext, OutOfTime
from evald.result import Verdict
from evald.strict_json import TooLarge
from evald.v1 import context_pb2, result_pb2
from evald_server.engine.plan import InvalidPlan
from evald_server.evaluators import BUILT_INS

from ..attempts import attempts
from .contexts import answered, calls, context, message
from .engine import as_json, evaluate

_SLICE_NANOS = 10_000_000
# Of processor time, which a busy machine does not change much. A tenth of a second is what is aimed at, half
# of one what a small caller beside may wait.
_LONGEST_HOLD = 0.5

Spec = Mapping[str, Any]
Case = tuple[Sequence[Spec], Callable[[], EvaluatorContext]]


def _called(name: str, times: int, arguments: str = '{"a": 1}') -> EvaluatorContext:
    asked = message(calls(name))
    [call] = asked.tool_calls
    call.function.arguments = arguments
    asked.tool_calls.extend([call] * (times - 1))
    return EvaluatorContext(context_pb2.EvaluatorContext(turn=1, messages=[asked]))


def _spec(type_name: str, **config: Any) -> Spec:
    return {"type": type_name, "config": config}


def _nested(specs: Sequence[Spec], levels: int = 3) -> Sequence[Spec]:
    for _ in range(levels):
        specs = [{"type": "all-of", "config": {"evaluators": list(specs)}}]
    return specs


def _expected(messages: int, per_message: int) -> EvaluatorContext:
    return context(
        [calls(*["a"] * per_message)] * messages, expected_messages=[calls(*["a"] * per_message)] * messages
    )


def _metadata(values: int) -> EvaluatorContext:
    pb = context_pb2.EvaluatorContext()
    pb.messages.add(role="assistant", text="hello")
    numbers = pb.last_invocation.metadata.fields["many"].list_value
    numbers.values.extend([numbers.values.add(number_value=1)] * values)
    pb.expected.data.list_value.CopyFrom(numbers)
    return EvaluatorContext(pb)


_FENCES = "```\n[1]\n```\n" * 300_000
_DOTS = ". " * 4_900
_ITEMS = as_json([{"a": n} for n in range(50_000)])
_FIELDS = [{"path": f"[{n}].a"} for n in range(1000)]
_RULE: Spec = {"name": "a", "args": {"a": 2}}

ENDS: dict[str, Case] = {
    "tool-use": ([_spec("tool-use", expectations=[_RULE] * 1000)], lambda: _called("a", 900)),
    "tool-use, patterns": (
        [_spec("tool-use", expectations=[{"pattern": f"*{n}*", "args": {}} for n in range(900)])],
        lambda: context([calls(*[f"{n:03}" for n in range(1000)])]),
    ),
    "tool-use, arguments that are no JSON": (
        [_spec("tool-use", expectations=[_RULE] * 50)] * 2,
        lambda: _called("a", 4_000, "{" + "[" * 500),
    ),
    "100 tool-call-count": ([_spec("tool-call-count")] * 100, lambda: _called("a" * 30, 50_000)),
    "100 tool-call-budget": ([_spec("tool-call-budget", maxCalls=1)] * 100, lambda: _called("a", 50_000)),
    "100 fenced json-schema": (
        [_spec("json-schema", schema={"type": "object"}, extract="fenced")] * 100,
        lambda: answered(_FENCES),
    ),
    "json-match in any order": (
        [_spec("json-match", expected=[{"b": n} for n in range(10_000)], arrays="unordered")],
        lambda: answered(_ITEMS),
    ),
    "json-match, all the same": (
        [_spec("json-match", arrays="unordered")],
        lambda: answered(as_json([1] * 100_000), expected_text=as_json([1] * 100_000)),
    ),
    "json-match, ignoring": (
        [_spec("json-match", expected=[], ignore=[f"*.{n}.*" for n in range(100)])],
        lambda: answered(_ITEMS),
    ),
    "json-match, one large difference": (
        [_spec("json-match", expected={"a": 1})] * 5,
        lambda: answered(as_json({"a": [["x"] * 10] * 30_000})),
    ),
    "json-match, large expected data": ([_spec("json-match")] * 20, lambda: _metadata(300_000)),
    "100 field-accuracy": (
        [_spec("field-accuracy", fields=_FIELDS[:200])] * 95,
        lambda: answered(_ITEMS, expected_text=_ITEMS.replace("1", "2")),
    ),
    "field-accuracy of the same large field": (
        [_spec("field-accuracy", fields=[{"path": "a"}] * 5)],
        lambda: answered(f'{{"a": {_ITEMS}}}', expected_text=f'{{"a": {_ITEMS}}}'),
    ),
    "81 bleu in combinators": (
        _nested([_spec("bleu")] * 81),
        lambda: answered(_DOTS, expected_text=_DOTS[:5_000]),
    ),
    "100 numeric": ([_spec("numeric", expected=3)] * 100, lambda: answered("1 " * 25_000)),
    "100 numeric, first of many messages": (
        [_spec("numeric", expected=3, message="all", extract="any")] * 100,
        lambda: answered("1⁴ " * 16_000),
    ),
    "trajectory in order": (
        [_spec("trajectory", expected=[_RULE] * 490)],
        lambda: _called("a", 500),
    ),
    "trajectory in any order": (
        [_spec("trajectory", mode="unordered", expected=[_RULE, {"name": "a"}] * 245)],
        lambda: _called("a", 500),
    ),
    "trajectory, exact": (
        [_spec("trajectory", mode="exact", expected=["a"] * 1_000)] * 5,
        lambda: _called("a", 50_000),
    ),
    "trajectory of messages": ([_spec("trajectory", mode="strict")], lambda: _expected(100, 45)),
    "contains, many missing": (
        [_spec("contains", substrings=[f"{n:05}" for n in range(15_000)])] * 3,
        lambda: answered("x" * 90),
    ),
    "finish-reason beside much metadata": (
        [_spec("finish-reason", allowed=["stop"])] * 100,
        lambda: _metadata(300_000),
    ),
}

REFUSED: dict[str, tuple[Sequence[Spec], Callable[[], EvaluatorContext], str]] = {
    "tool-use": ([_spec("tool-use", expectations=[_RULE] * 1000)], lambda: _called("a", 5_000), "1000000"),
    "tool-use, patterns": (
        [_spec("tool-use", expectations=[{"pattern": f"*{n}*"} for n in range(1000)])],
        lambda: context([calls(*map(str, range(5_000)))]),
        "1000000",
    ),
    "trajectory": ([_spec("trajectory", expected=["a"] * 600)], lambda: _called("a", 500), "600 expected"),
    "trajectory, patterns": (
        [_spec("trajectory", expected=[{"pattern": f"*{n}*"} for n in range(600)])],
        lambda: context([calls(*map(str, range(1_000)))]),
        "600 patterns",
    ),
    "trajectory of messages": ([_spec("trajectory", mode="strict")], lambda: _expected(1, 1_000), "250000"),
    "a long name for a pattern": (
        [_spec("tool-use", expectations=[{"pattern": "*a*"}])],
        lambda: _called("a" * 1_000_000, 1),
        "1000000 characters",
    ),
    "field-accuracy of the same large field": (
        [_spec("field-accuracy", fields=[{"path": "a"}] * 1000)],
        lambda: answered(f'{{"a": {_ITEMS}}}', expected_text=f'{{"a": {_ITEMS}}}'),
        "1024000 values",
    ),
    "json-match": (
        [_spec("json-match")],
        lambda: answered(as_json([1] * 1_100_000), expected_text=as_json([1] * 1_100_000)),
        "1000000 values",
    ),
    "numeric": ([_spec("numeric", expected=1)], lambda: answered("1 " * 100_000), "50000"),
    "bleu": ([_spec("bleu", expected=_DOTS)], lambda: answered(_DOTS * 2), "20000"),
    "levenshtein": ([_spec("levenshtein", expected="a" * 20_000)], lambda: answered("b" * 20_000), "4"),
    "regex": (
        [_spec("regex", pattern="[a-z]{1,100}[0-9]{1,100}x")],
        lambda: answered("abc1 " * 200_000),
        "10000000",
    ),
    "first json": (
        [_spec("is-json", extract="first")],
        lambda: answered("{" * 500_000),
        "500000 characters",
    ),
}

INVALID: dict[str, tuple[Sequence[Spec], str]] = {
    "expectations": ([_spec("tool-use", expectations=[{"name": "a"}] * 2_000)], "1000"),
    "fields": ([_spec("field-accuracy", fields=[{"path": "a"}] * 2_000)], "1000"),
    "ignored paths": ([_spec("json-match", expected=1, ignore=["a"] * 200)], "100"),
    "ignored arguments": (
        [_spec("tool-use", expectations=[{"name": "a", "args": {}, "ignore": ["a*"] * 200}])],
        "100",
    ),
    "a long path": ([_spec("field-accuracy", fields=[{"path": "a." * 1_000 + "b"}])], "1000"),
    "nested evaluators": (_nested([_spec("is-json")] * 150), "100"),
    "deep nesting": (_nested([_spec("is-json")], 6), "nest"),
    "expected calls": ([_spec("trajectory", expected=["a"] * 6_000)], "1000"),
    "configs together": ([_spec("json-match", expected="x" * 200_000)] * 3, "524288"),
}


@pytest.mark.parametrize("name", ENDS)
def test_no_evaluator_holds_the_event_loop(name: str) -> None:
    """Called in the loop, one evaluator ends soon, or gives way at the first look at a clock that has run
    out; and so it does in the middle of its work."""
    specs, make = ENDS[name]
    spec = specs[0]
    evaluator = BUILT_INS.get(spec["type"])
    if evaluator is None:
        return  # a combinator or an alias: called as a whole below
    run = evaluator.definition().compile(spec["config"])
    for attempt in attempts(_LONGEST_HOLD):
        ctx = make()
        for nanos in (_SLICE_NANOS, 4 * _SLICE_NANOS, 16 * _SLICE_NANOS):
            began = time.thread_time_ns()
            ctx.stop_at(time.perf_counter_ns() + nanos)
            with suppress(OutOfTime, TooLarge):
                outcome = run(ctx)
                if hasattr(outcome, "close"):
                    outcome.close()
            attempt.seconds = max(attempt.seconds, (time.thread_time_ns() - began - nanos) / 1e9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENDS)
def test_all_of_it_ends_with_results_of_ordinary_size(name: str) -> None:
    specs, make = ENDS[name]
    summary = evaluate(specs, make(), 120)
    assert len(summary.results) == len(specs)
    for result in summary.results:
        assert result.error.code in ("", "INPUT_TOO_LARGE"), result.error
        assert result.ByteSize() < 80_000


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_too_much_is_an_error_with_its_numbers(name: str) -> None:
    """Negated, because a verdict of the evaluator would then be another one and no error either."""
    [spec], make, number = REFUSED[name]
    [result] = evaluate([{**spec, "negate": True}], make()).results
    assert (result.verdict, result.error.code) == (Verdict.ERROR, "INPUT_TOO_LARGE")
    assert number in result.error.message, result.error.message


@pytest.mark.parametrize("name", INVALID)
def test_what_the_config_alone_makes_too_much_is_refused_with_its_numbers(name: str) -> None:
    specs, number = INVALID[name]
    with pytest.raises(InvalidPlan, match=number):
        evaluate(specs, answered("hello"))


def test_a_call_that_is_over_is_cut_in_the_middle_of_its_work() -> None:
    specs, make = ENDS["tool-use"]
    summary = evaluate(specs, make(), 0.06)
    [result] = summary.results
    assert (result.verdict, result.error.code) == (Verdict.ERROR, "TIMEOUT")


def test_a_metric_of_many_calls_names_the_first_and_counts_the_rest() -> None:
    [result] = evaluate([_spec("tool-call-count")], _called("a" * 200, 50_000)).results
    assert result.value == 50_000
    assert result.reason.endswith(", and 49,980 more")
    assert len(result.reason) < 3_000
    assert json.loads(result_pb2.EvaluationResult.FromString(result.SerializeToString()).reason[:5]) == 50000
