"""Nothing but the speed depends on where a batch is evaluated."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest

from evald.result import Verdict
from evald.v1 import evaluation_service_pb2

from ..loop import run
from ..monitoring.scrape import samples
from ..rpc.live import CONTAINS, Live, spec
from .batches import Response, messages, send, serving_with, specs

Options = evaluation_service_pb2.EvaluateOptions

# What is measured anew each time: how long something took, and what else the process did.
_TIMES = re.compile(
    r"(evald_evaluat(or|ion)_duration|grpc_server_handling)_seconds_(bucket|sum)|(process|python)_.*|"
    r"evald_(event_loop_lag_seconds|inflight_evaluations|queued_evaluations)|.*_created|"
    # The last value is that of the item that was done last; the ratio is derived from what is counted.
    r"evald_metric_last_value|evald_assertion_pass_ratio|"
    # Lookups that found a label full: a process looks its evaluators up anew for every portion.
    r"evald_label_overflow_total|"
    # Waiting items are sent when they are done, which makes more messages or fewer.
    r"grpc_server_msg_sent_total"
)


def answers_of(responses: Iterable[Response]) -> dict[str, bytes]:
    """The serialised answers by item_id, without times. Fails when one comes twice."""
    found: dict[str, bytes] = {}
    for response in responses:
        for answer in response.answers:
            summary = answer.summary
            timed: list[Any] = [summary, *summary.results] if answer.HasField("summary") else []
            for message in timed:
                message.ClearField("duration")
                message.ClearField("start_time")
            assert answer.item_id not in found, answer.item_id
            found[answer.item_id] = answer.SerializeToString(deterministic=True)
    return found


def assert_equal_summaries(
    one: evaluation_service_pb2.BatchSummary, other: evaluation_service_pb2.BatchSummary
) -> None:
    """Means may differ in the last digit: numbers are added in another order."""
    for name, totals in one.evaluators.items():
        assert totals.mean_value == pytest.approx(other.evaluators[name].mean_value, rel=1e-12)
        for summary in (one, other):
            summary.evaluators[name].ClearField("mean_value")
    assert one == other


def counted(live: Live) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All that the server counts, but times."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for sample in samples(live.app.telemetry)
        if not _TIMES.fullmatch(sample.name)
    }


def risen(live: Live, before: Mapping[Any, float]) -> dict[Any, float]:
    """By how much. What was not there before counts from 0."""
    return {key: value - before.get(key, 0.0) for key, value in counted(live).items()}


@pytest.fixture(scope="module", name="servers")
def _servers() -> Iterator[tuple[Live, Live]]:
    """One that evaluates batches itself, and one that has it done by two processes."""
    stack = AsyncExitStack()

    async def start(processes: int) -> Live:
        auto = {"tool-call-count": {}, "starts-with": {"text": "Hi"}}
        live: Live = await stack.enter_async_context(
            serving_with(processes, auto=auto, labels=["suite"], max_messages=200, max_evaluators=200)
        )
        return live

    yield run(start(0)), run(start(2))
    run(stack.aclose())


@pytest.mark.parametrize(
    "opening",
    [
        pytest.param({}, id="all"),
        pytest.param({"brief": True}, id="brief"),
        pytest.param(
            {"opened": [CONTAINS, spec("response-length")]}, id="nothing-waits", marks=pytest.mark.thorough
        ),
        pytest.param({"options": Options(fail_fast=True)}, id="fail-fast"),
        pytest.param(
            {"options": Options(aggregation=evaluation_service_pb2.AGGREGATION_POLICY_WEIGHTED_MEAN)},
            id="weighted",
            marks=pytest.mark.thorough,
        ),
        pytest.param({"opened": []}, id="nothing-shared", marks=pytest.mark.thorough),
        pytest.param({"size": 1000, "copies": 2}, id="a-message-of-several-portions"),
        pytest.param(
            {"size": 1000, "copies": 2, "opened": specs() * 4},
            id="more-answers-than-one-message-holds",
            marks=pytest.mark.thorough,
        ),
        pytest.param({"labels": {"suite": "nightly"}}, id="labels", marks=pytest.mark.thorough),
    ],
)
async def test_answers_totals_and_telemetry_do_not_depend_on_the_process(
    opening: dict[str, Any], servers: tuple[Live, Live]
) -> None:
    sent = messages(**opening)

    async def evaluated(live: Live) -> tuple[list[Response], dict[Any, float]]:
        before = counted(live)
        return await send(live, sent), risen(live, before)

    (here, counts_here), (there, counts_there) = [await evaluated(live) for live in servers]
    assert answers_of(there) == answers_of(here)
    failed = [
        result
        for response in there
        for answer in response.answers
        if answer.summary.verdict == Verdict.FAILED
        for result in answer.summary.results
    ]
    assert all(result.provenance.config_sha256 for result in failed)
    # What gRPC's clients accept by default.
    assert max(response.ByteSize() for response in there) < 4 << 20
    assert_equal_summaries(there[-1].summary, here[-1].summary)
    counts_here, counts_there = _but_zeros(counts_here), _but_zeros(counts_there)
    # Not all types have room for all their series, and the first have it: which come first differs.
    crowded = {evaluator for evaluator, _ in _details(counts_here) ^ _details(counts_there)} | {"other"}
    assert len(crowded) <= 5
    counts_here, counts_there = (_but_details(counts, crowded) for counts in (counts_here, counts_there))
    assert counts_there.keys() == counts_here.keys()
    assert counts_there == pytest.approx(counts_here)


def _but_zeros(counts: Mapping[Any, float]) -> dict[Any, float]:
    """Warming up touches some series before, with the processes only."""
    return {key: count for key, count in counts.items() if count}


_DETAIL = re.compile(
    r"evald_(evaluator_duration_seconds|assertion_score_ratio|metric_value|evaluator_errors).*"
)


def _details(counts: Mapping[Any, float]) -> set[tuple[str, str]]:
    """The types with series of their own for more than verdicts, and which: a metric in two units has room for each."""
    return {
        (dict(labels)["evaluator"], name)
        for name, labels in counts
        if name.endswith("_count") and _DETAIL.fullmatch(name)
    }


def _but_details(counts: Mapping[Any, float], types: set[str]) -> dict[Any, float]:
    return {
        (name, labels): count
        for (name, labels), count in counts.items()
        if not (_DETAIL.fullmatch(name) and dict(labels).get("evaluator") in types)
    }
