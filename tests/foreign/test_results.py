"""Whatever a plugin returns is a result that holds to the contract or a CONTRACT_VIOLATION of its own."""

import enum
import json
import math
from collections import UserDict, UserString
from collections.abc import Iterator
from contextlib import AsyncExitStack
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evald
from evald.contract import MAX_CHECKS, MAX_METADATA_BYTES, MAX_REASON_BYTES
from evald.result import Check, ErrorInfo, Kind, Result, TokenUsage, Verdict
from evald.structs import struct_to_dict
from evald.v1 import result_pb2
from evald.worker.offer import OfferedEvaluators
from evald.worker.tasks import Tasks

from ..loop import run
from ..rpc.live import CONTAINS, Live, request, serving, spec
from ..worker.registry import task

NAN, INF = math.nan, math.inf
PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


class Answer:
    """What the evaluators under test return."""

    def __init__(self) -> None:
        self.value: Any = None

    def __call__(self, _ctx: Any) -> Any:
        return self.value() if callable(self.value) else self.value


ANSWER = Answer()
JUNK = [
    evald.define_evaluator(type=f"acme.{name}", kind=kind, evaluate=ANSWER.__call__, inline=inline)
    for name, kind, inline in (
        ("inline", Kind.ASSERTION, True),
        ("thread", Kind.ASSERTION, False),
        ("gauge", Kind.METRIC, True),
    )
]


class Text(str):
    """Text that refuses to be used as such."""

    __slots__ = ()

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        raise SystemExit(1)

    def __len__(self) -> int:
        raise SystemExit(1)


class Number(float):
    """A number that cannot be compared."""

    def __le__(self, _other: object) -> bool:
        raise SystemExit(1)

    __ge__ = __lt__ = __gt__ = __le__


class Whole(enum.IntEnum):
    ONE = 1


class Growing(dict[str, Any]):
    """A dict that another thread still writes to."""

    def items(self) -> Any:
        for number in range(10**9):
            yield f"key{number}", number


class Odd(Result):
    """A result that computes."""

    @property
    def score(self) -> Any:  # type: ignore[override]
        raise SystemExit(1)

    @score.setter
    def score(self, _value: Any) -> None:
        pass


def result(verdict: Any = PASSED, reason: Any = "r", **fields: Any) -> Result:
    found = Result(verdict, reason)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def error(code: Any = "TIMEOUT", message: Any = "m", details: Any = None, **fields: Any) -> Result:
    return result(ERROR, error=ErrorInfo(code, message, {} if details is None else details), **fields)


def _cycle() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["again"] = data
    return data


def _deep(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    return {"deep": data}


VIOLATIONS: dict[str, tuple[Any, str]] = {
    "nothing": (None, "got NoneType"),
    "a-number": (1, "got int"),
    "a-class": (lambda: Result, "got type"),
    "verdict-number": (result(1), "verdict: "),
    "verdict-none": (result(None), "verdict: "),
    "reason-none": (result(reason=None), "reason: "),
    "reason-bytes": (result(reason=b"r"), "reason: "),
    "reason-user-string": (result(reason=UserString("r")), "reason: "),
    "score-nan": (result(score=NAN), "score: "),
    "score-high": (result(score=1.01), "score: "),
    "score-text": (result(score="1"), "score: "),
    "score-bool": (result(score=True), "score: "),
    "score-decimal": (result(score=Decimal(1)), "score: "),
    "score-of-an-error": (error(score=0.5), "score: "),
    "value-infinite": (result(value=INF), "value: "),
    "value-huge": (result(value=10**400), "value: "),
    "cost-negative": (result(cost_usd=-0.1), "cost_usd: "),
    "cost-huge": (result(cost_usd=1e300), "cost_usd: "),
    "cost-complex": (result(cost_usd=1j), "cost_usd: "),
    "error-missing": (result(ERROR), "error: "),
    "error-of-a-pass": (result(error=ErrorInfo("TIMEOUT", "m")), "error: "),
    "error-text": (result(ERROR, error="TIMEOUT"), "error: "),
    "error-tuple": (result(ERROR, error=("TIMEOUT", "m", {})), "error: "),
    "error-code-unknown": (error("WHATEVER"), "error.code: "),
    "error-code-list": (error([]), "error.code: "),
    "error-code-surrogate": (error("\ud800"), "error.code: "),
    "error-message": (error(message=None), "error.message: "),
    "error-details-list": (error(details=["a"]), "error.metadata: "),
    "error-details-number": (error(details={"a": 1}), "error.metadata: "),
    "error-details-many": (error(details={str(n): "" for n in range(33)}), "error.metadata: "),
    "error-details-surrogate": (error(details={"a": "\ud800"}), "error.metadata: "),
    "pending-pass": (result(pending=True), "pending: "),
    "pending-number": (result(FAILED, pending=1), "pending: "),
    "unproven-pass": (result(unproven=True), "unproven: "),
    "cached-text": (result(cached="yes"), "cached: "),
    "instance-number": (result(instance_id=1), "instance_id: "),
    "instance-surrogate": (result(instance_id="\ud800"), "instance_id: "),
    "instance-long": (result(instance_id="x" * 129), "instance_id: "),
    "metadata-list": (result(metadata=[1]), "metadata: "),
    "metadata-text": (result(metadata="text"), "metadata: "),
    "metadata-key": (result(metadata={1: 2}), "metadata: "),
    "metadata-set": (result(metadata={"a": {1}}), "metadata.a: "),
    "metadata-bytes": (result(metadata={"a": [b""]}), "metadata.a[0]: "),
    "metadata-nan": (result(metadata={"a": {"b": NAN}}), "metadata.a.b: "),
    "metadata-huge-number": (result(metadata={"a": 10**5000}), "metadata.a: "),
    "metadata-surrogate": (result(metadata={"a": "\ud800"}), "metadata.a: "),
    "metadata-surrogate-key": (result(metadata={"\ud800": 1}), "metadata: "),
    "metadata-cycle": (lambda: result(metadata=_cycle()), "metadata: "),
    "metadata-deep": (lambda: result(metadata=_deep(100_000)), "metadata: "),
    "metadata-40-mb": (lambda: result(metadata={"a": "x" * (40 << 20)}), "metadata: "),
    "metadata-40-mb-key": (lambda: result(metadata={"x" * (40 << 20): 1}), "metadata: "),
    "metadata-many": (lambda: result(metadata={"a": [0] * 100_000}), "metadata: "),
    "metadata-growing": (lambda: result(metadata=Growing()), "metadata: "),
    "request-surrogate": (result(raw_request={"a": "\ud800"}), "raw_request.a: "),
    "request-large": (lambda: result(raw_request={"a": "x" * MAX_METADATA_BYTES}), "raw_request: "),
    "checks-none": (result(checks=None), "checks: "),
    "checks-number": (result(checks=1), "checks: "),
    "checks-generator": (lambda: result(checks=(Check("a", True) for _ in range(1))), "checks: "),
    "checks-text": (result(checks=["a"]), "checks[0]: "),
    "checks-tuple": (result(checks=[("a", True, "")]), "checks[0]: "),
    "checks-number-text": (result(checks=[Check("a", True), Check(1, True)]), "checks[1].text: "),  # type: ignore[arg-type]
    "checks-met": (result(checks=[Check("a", "yes")]), "checks[0].met: "),  # type: ignore[arg-type]
    "checks-evidence": (result(checks=[Check("a", True, "\ud800")]), "checks[0].evidence: "),
    "checks-many": (result(checks=[Check("a", True)] * (MAX_CHECKS + 1)), "checks: "),
    "checks-large": (lambda: result(checks=[Check("x" * 1000, True)] * 500), "checks: "),
    "usage-tuple": (result(token_usage=(1, 2, 3)), "token_usage: "),
    "usage-negative": (result(token_usage=TokenUsage(-1)), "token_usage.input_tokens: "),
    "usage-int64": (result(token_usage=TokenUsage(1, 1 << 63)), "token_usage.output_tokens: "),
    "usage-float": (result(token_usage=TokenUsage(1.5)), "token_usage.input_tokens: "),  # type: ignore[arg-type]
    "usage-bool": (result(token_usage=TokenUsage(None, None, True)), "token_usage.total_tokens: "),
    "mapping-score": ({"success": True, "reason": "r", "score": "high"}, "score: "),
    "mapping-value": ({"success": True, "reason": "r", "value": [1]}, "value: "),
    "mapping-metadata": ({"success": True, "metadata": [1]}, "metadata: "),
}

GOOD: dict[str, Result] = {
    "fraction": result(score=Fraction(1, 2)),
    "own-float": result(score=Number(0.5)),
    "own-text": result(reason=Text("r"), instance_id=Text("i")),
    "enum": result(value=Whole.ONE, metadata={"a": Whole.ONE}),
    "user-dict": result(metadata=UserDict(a=UserDict(b=(1, 2)))),
    "own-text-in-data": result(metadata={Text("a"): Text("b")}, checks=(Check(Text("c"), True),)),
    "surrogate-reason": result(reason="half \ud83d"),
    "long-reason": result(reason="ä" * 1_000_000),
    "surrogate-message": error(message="\ud83d"),
    "beyond-a-double's-whole-numbers": result(metadata={"id": (1 << 53) + 1}),
    "most": result(
        FAILED,
        "r",
        score=0.25,
        value=-1.5,
        pending=True,
        metadata={"a": [None, True, 1, 1.5, "é", {"b": []}]},
        checks=[Check("t", False, "e")],
        token_usage=TokenUsage(1, 2, 3),
        cost_usd=0.5,
        raw_request={"model": "m"},
        cached=True,
        instance_id="i",
    ),
}


@pytest.fixture(scope="module", name="live")
def _live() -> Iterator[Live]:
    stack = AsyncExitStack()
    yield run(stack.enter_async_context(serving(JUNK)))
    run(stack.aclose())


async def results(live: Live, name: str) -> list[result_pb2.EvaluationResult]:
    answer = await live.unary(request(spec(f"acme.{name}"), CONTAINS), timeout=20)
    return list(answer.summary.results)


@pytest.mark.parametrize("name", ["inline", "thread"])
@pytest.mark.parametrize(("answer", "field"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_what_breaks_the_contract_is_its_own_error_that_names_the_field(
    live: Live, answer: Any, field: str, name: str
) -> None:
    ANSWER.value = answer
    mine, other = run(results(live, name))
    assert (mine.error.code, other.verdict) == ("CONTRACT_VIOLATION", PASSED)
    assert field in mine.error.message
    assert len(mine.error.message) < 1000
    assert not mine.HasField("score")


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD)
def test_what_holds_to_it_arrives(live: Live, answer: Result) -> None:
    ANSWER.value = answer
    mine, _ = run(results(live, "inline"))
    assert mine.verdict == answer.verdict
    assert mine.error.code == (answer.error.code if answer.error else "")
    assert len(mine.reason.encode()) <= MAX_REASON_BYTES
    assert mine.score == float(answer.score or 0)
    if answer is GOOD["most"]:
        assert struct_to_dict(mine.metadata) == answer.metadata
        assert (mine.pending, mine.value, mine.cost.amount, mine.instance_id) == (True, -1.5, 0.5, "i")
        assert (mine.checks[0].text, mine.token_usage.total_tokens) == ("t", 3)


def test_a_result_that_computes_has_raised(live: Live) -> None:
    ANSWER.value = Odd(PASSED, "r")
    mine, other = run(results(live, "inline"))
    assert (mine.error.code, other.verdict) == ("EVALUATOR_EXCEPTION", PASSED)


async def test_what_is_changed_after_it_was_returned_is_as_it_was(live: Live) -> None:
    data: dict[str, Any] = {"a": 1}
    ANSWER.value = kept = result(metadata=data)

    first, _ = await results(live, "inline")
    data["a"], kept.verdict = object(), "nothing"
    assert (first.metadata["a"], first.verdict) == (1, PASSED)


@pytest.mark.parametrize(("answer", "field"), VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_worker_says_so_itself(answer: Any, field: str) -> None:
    ANSWER.value = answer
    tasks = Tasks(OfferedEvaluators(JUNK, max_concurrency=2))

    try:
        for name in ("acme.inline", "acme.thread"):
            output = await tasks.run(task(name, name))
            assert (output.error.code, field in output.error.message) == ("CONTRACT_VIOLATION", True)
    finally:
        tasks.close()


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=5)
    | st.sampled_from([b"x", 10**400, -(1 << 63), Text("t"), Number(1), Decimal(1), object(), {1}, Whole.ONE])
)
_DATA = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=6,
)
_CHECKS = st.lists(st.builds(Check, _SCALARS, _SCALARS, _SCALARS) | _SCALARS, max_size=3) | _DATA
_USAGES = st.builds(TokenUsage, _SCALARS, _SCALARS, _SCALARS) | _DATA
_ERRORS = (
    st.builds(ErrorInfo, st.sampled_from(["TIMEOUT", "X"]) | _SCALARS, _SCALARS, _DATA)
    | _DATA
    | st.just(ErrorInfo("TIMEOUT", "m"))
)
_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "verdict": st.sampled_from(Verdict) | _SCALARS,
        "reason": _DATA,
        "score": st.floats(0, 1) | _DATA,
        "value": _DATA,
        "metadata": _DATA,
        "checks": _CHECKS,
        "pending": _DATA,
        "error": st.none() | _ERRORS,
        "token_usage": _USAGES,
        "cost_usd": _DATA,
        "raw_request": _DATA,
        "unproven": _DATA,
        "cached": _DATA,
        "instance_id": _DATA,
    },
)


@given(fields=_FIELDS, name=st.sampled_from(["inline", "gauge"]))
@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_junk_in_any_field_breaks_a_call_or_passes(live: Live, fields: dict[str, Any], name: str) -> None:
    ANSWER.value = junk = result(**fields)
    mine, other = run(results(live, name))
    assert other.verdict == PASSED
    if mine.error.code in ("CONTRACT_VIOLATION", "EVALUATOR_EXCEPTION"):
        return
    assert mine.verdict == junk.verdict
    assert mine.error.code == (junk.error.code if junk.error else "")
    for field, given_number in (("score", junk.score), ("value", junk.value), ("cost", junk.cost_usd)):
        assert mine.HasField(field) is (given_number is not None)  # type: ignore[arg-type]
    assert 0 <= mine.score <= 1
    assert math.isfinite(mine.value)
    assert mine.cost.amount >= 0
    assert json.loads(json.dumps(struct_to_dict(mine.metadata))) is not None
    assert len(mine.checks) == len(junk.checks)
