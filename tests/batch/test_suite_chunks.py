"""Nothing but the speed depends on where the recorded cases of a suite are evaluated."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from evald.v1 import evaluation_service_pb2
from evald.v1.suite_service_pb2 import CaseResult, SuiteCase, SuiteRun
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub
from evald_server.batch.pool import BatchProcess
from evald_server.runs.suite_chunk import SuiteChunk
from tests.thorough import first_of

from ..rpc.live import CONTAINS, Live, spec
from ..rpc.suite_floor import (
    ERROR,
    INTERRUPTED,
    Outcome,
    answer,
    asked,
    get,
    ids,
    opened,
    play,
    recorded,
    stored_cases,
)
from .batches import Message, contexts, serving_with, specs
from .test_equality import counted

Options = evaluation_service_pb2.EvaluateOptions


@pytest.fixture(scope="module", name="servers")
async def _servers() -> AsyncIterator[tuple[Live, Live]]:
    """One that evaluates suites itself, and one that has it done by two processes."""
    async with AsyncExitStack() as stack:
        auto = {"tool-call-count": {}, "starts-with": {"text": "Hi"}}
        here, there = [
            await stack.enter_async_context(
                serving_with(processes, auto=auto, labels=["suite"], max_messages=200, max_evaluators=200)
            )
            for processes in (0, 2)
        ]
        yield here, there


def cases() -> Iterator[SuiteCase]:
    """Turns of real conversations, and between them cases with all that a case may have."""
    for number, context in enumerate(contexts()):
        case = recorded(f"turn-{number:03}")
        made = case.recorded_trials.add().answers.add()
        made.CopyFrom(context.last_invocation)
        if context.messages_json:
            made.messages_json = context.messages_json
        else:
            case.messages.extend(context.messages[:-1])
            made.messages.extend(context.messages[-1:])
        yield case
    several = recorded("several", "hello", "no", "hello", weight=2.5, tags=["a", "b"], min_passed=2)
    several.metadata.update({"team": "payments"})
    yield several
    long = SuiteCase(case_id="long")
    trial = long.recorded_trials.add()
    for number in range(30):
        long.turns.add().input.add(role="user", text=f"question {number}")
        trial.answers.append(answer(f"hello {number}"))
    yield long
    each = SuiteCase()
    each.CopyFrom(long)
    each.case_id = "each-turn"
    for turn in each.turns:
        turn.evaluators.append(CONTAINS)
    yield each
    expected = recorded("expected", "hello")
    expected.turns[0].expected.text = "hello"
    yield expected
    yield recorded("own", "hello", evaluators=[spec("is-json")])
    yield recorded("options", "hello", options=Options(fail_fast=True))
    broken = recorded("broken", "hello")
    broken.recorded_trials[0].answers[0].token_usage.input_tokens = -1
    yield broken
    unreadable = recorded("unreadable", "hello")
    unreadable.recorded_trials[0].answers[0].ClearField("messages")
    unreadable.recorded_trials[0].answers[0].messages_json = "["
    yield unreadable
    failed = recorded("failed", "hello", min_passed=1)
    failed.recorded_trials.add().error.message = "timed out"
    yield failed
    many = recorded("too-many", "hello")
    many.messages.extend(list(many.turns[0].input) * 300)
    yield many


def timeless(result: CaseResult) -> bytes:
    """The case without what is measured anew each time."""
    for trial in result.trials:
        for turn in trial.turns:
            timed: list[Any] = [turn.evaluation, *turn.evaluation.results]
            for message in timed if turn.HasField("evaluation") else ():
                message.ClearField("duration")
                message.ClearField("start_time")
    return result.SerializeToString(deterministic=True)


def assert_equal_runs(one: SuiteRun, other: SuiteRun) -> None:
    """Means may differ in the last digit: numbers are added in another order."""
    for name, totals in one.evaluators.items():
        assert totals.mean_value == pytest.approx(other.evaluators[name].mean_value, rel=1e-12)
    assert one.mean_score == pytest.approx(other.mean_score, rel=1e-12)
    assert one.pass_rate.value == pytest.approx(other.pass_rate.value, rel=1e-12)
    for run in (one, other):
        for totals in run.evaluators.values():
            totals.ClearField("mean_value")
        for field in ("id", "create_time", "complete_time", "mean_score", "pass_rate", "error_share"):
            run.ClearField(field)
    assert one == other


def verdicts_counted(live: Live) -> Counter[Any]:
    """What telemetry counts by verdict. Which evaluators have series of their own depends on which came first."""
    found: Counter[Any] = Counter()
    for (name, labels), value in counted(live).items():
        if name in ("evald_evaluations_total", "evald_evaluator_results_total"):
            found[name, dict(labels)["verdict"]] += round(value)
    return found


@pytest.mark.parametrize(
    ("fields", "checks", "a_message"),
    [
        pytest.param({}, specs(), 40, id="all"),
        pytest.param({}, [CONTAINS, spec("response-length")], 1000, id="one-message"),
        pytest.param({"trials": 2, "min_passed": 1, "threshold": 0.5}, [CONTAINS], 100, id="trials"),
        pytest.param({"options": Options(fail_fast=True)}, specs(), 100, id="fail-fast"),
        pytest.param({"labels": {"suite": "nightly"}}, [CONTAINS], 100, id="labels"),
    ],
)
async def test_results_totals_and_telemetry_do_not_depend_on_the_process(
    fields: dict[str, Any], checks: list[Any], a_message: int, servers: tuple[Live, Live]
) -> None:
    sent = list(cases())
    for case in sent:
        if len(case.recorded_trials) < fields.get("trials", 1):
            case.trials = len(case.recorded_trials)

    async def ran(live: Live) -> tuple[dict[str, bytes], SuiteRun, Counter[Any], list[bytes]]:
        before = verdicts_counted(live)
        stub = SuiteServiceStub(live.channel)
        outcome = await play(stub, opened(*checks, **fields), sent, a_message=a_message)
        risen = verdicts_counted(live) - before
        stored = [timeless(one) for one in await stored_cases(stub, outcome.run.id)]
        results = {one.case_id: timeless(one) for one in outcome.results}
        assert sorted(results.values()) == sorted(stored)
        brief = await stored_cases(stub, outcome.run.id, brief=True)
        return results, outcome.run, risen, [one.SerializeToString(deterministic=True) for one in brief]

    here, there = [await ran(live) for live in servers]
    assert here[0].keys() == {case.case_id for case in sent}
    assert there[0] == here[0]
    assert_equal_runs(there[1], here[1])
    assert there[2] == here[2]
    assert there[3] == here[3]


async def test_a_bad_case_is_refused_before_anything_of_its_message_runs_elsewhere() -> None:
    good = [recorded(f"case {number}", "hello") for number in range(600)]
    bad = {
        "trials": recorded("bad", "hello", trials=-1),
        "evaluators[0].type": recorded("bad", "hello", evaluators=[spec("contans")]),
    }
    async with serving_with(1) as live:
        stub = SuiteServiceStub(live.channel)
        for field, case in bad.items():
            with pytest.raises(grpc.aio.AioRpcError, match=r"cases\[600\]") as raised:
                await play(stub, opened(suite_run_id=field), [*good, case], a_message=1000)
            assert field in str(raised.value.details())
            run = await get(stub, field)
            assert (run.status, run.case_count) == (INTERRUPTED, 0)


async def test_a_case_for_which_there_is_no_agent_is_refused_before_others_are_stored() -> None:
    # More than the results of a chunk may be, so that the first of them come before the last case has its turn.
    good = [recorded(f"case {number}", "hello" * 2000) for number in range(600)]
    async with serving_with(1) as live:
        stub = SuiteServiceStub(live.channel)
        with pytest.raises(grpc.aio.AioRpcError, match=r"cases\[600\].recorded_trials: empty"):
            await play(stub, opened(suite_run_id="one"), [*good, asked("bad")], a_message=1000)
        run = await get(stub, "one")
        assert (run.status, run.case_count) == (INTERRUPTED, 0)


def count_sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cases each chunk has that is sent from now on."""
    sizes: list[int] = []
    submit = BatchProcess.submit

    def counting(process: BatchProcess, chunk: SuiteChunk) -> Any:
        sizes.append(len(chunk.cases))
        return submit(process, chunk)

    monkeypatch.setattr(BatchProcess, "submit", counting)
    return sizes


async def test_what_a_process_is_sent_does_not_grow_with_the_number_of_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = [recorded(f"case {number}", "hello" * 5_600) for number in range(512)]
    async with serving_with(1) as live:
        sizes = count_sent(monkeypatch)
        outcome = await play(SuiteServiceStub(live.channel), opened(), sent, a_message=512)
    assert outcome.run.passed_count == 512
    assert len(sizes) > 6
    assert sum(sizes) <= 3 * 512


@pytest.mark.thorough
async def test_costly_cases_make_way_for_those_of_other_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "the quick brown fox " * 250
    slow = [
        spec("text-similarity", {"expected": expected, "measure": "bleu"}, name=f"slow {n}")
        for n in range(40)
    ]
    sent = [recorded(f"case {number}", expected[::-1]) for number in range(30)]
    async with serving_with(1) as live:
        sizes = count_sent(monkeypatch)
        outcome = await play(SuiteServiceStub(live.channel), opened(*slow), sent, a_message=30)
    assert outcome.run.failed_count == 30
    assert len(sizes) > 1


async def test_a_resumed_suite_run_runs_the_rest_elsewhere() -> None:
    sent = [recorded(f"case {number:04}", "hello") for number in range(900)]
    async with serving_with(1) as live:
        stub = SuiteServiceStub(live.channel)
        first = opened(suite_run_id="one", case_count=900)
        with pytest.raises(grpc.aio.AioRpcError, match="got 900, but"):
            await play(stub, first, sent[::2])
        assert (await get(stub, "one")).case_count == 450
        first.resume = True
        outcome = await play(stub, first, sent)
        assert sorted(ids(outcome.results)) == [case.case_id for case in sent]
        assert outcome.run.passed_count == 900
        assert len(await stored_cases(stub, "one")) == 900
        first.suite_run_id, first.resume = "twice", False
        with pytest.raises(grpc.aio.AioRpcError, match='two cases have the id "case 0007"'):
            await play(stub, first, [*sent, sent[7]])


@pytest.mark.parametrize("processes", first_of([0, 1], 1))
@pytest.mark.parametrize("who", ["caller", "server"])
async def test_what_takes_longer_than_it_may_is_in_error_wherever_it_runs(processes: int, who: str) -> None:
    text = "the quick ever " * 600
    slow = [
        spec("text-similarity", {"expected": text[::-1], "threshold": 0.1}, name=f"slow {n}")
        for n in range(40)
    ]
    options = Options()
    settings = {}
    if who == "caller":
        options.timeout.FromMilliseconds(20)
    else:
        settings["default_timeout"] = 0.07  # of which 0.05 are kept to send the answer
    case = recorded("slow", text)
    turn = evaluation_service_pb2.BatchItem(item_id="slow")
    turn.context.messages.extend([*case.turns[0].input, *case.recorded_trials[0].answers[0].messages])
    opening = evaluation_service_pb2.BatchOpen(evaluators=slow, options=options)
    async with serving_with(processes, **settings) as live:
        outcome = await play(SuiteServiceStub(live.channel), opened(*slow, options=options), [case])
        assert outcome.verdicts == {"slow": ERROR}
        assert outcome.run.verdict == ERROR
        *_, ended = await live.batch([Message(open=opening, items=[turn])])
        assert (ended.summary.item_count, ended.summary.error_count) == (1, 1)


async def test_a_process_that_is_killed_loses_and_doubles_no_case() -> None:
    sent = [recorded(f"case {number:04}", "hello") for number in range(1000)]
    async with serving_with(2) as live:
        victim = live.app.batch_processes.processes[0]
        os.kill(victim, signal.SIGSTOP)
        into = Outcome()
        playing = asyncio.create_task(play(SuiteServiceStub(live.channel), opened(), sent, into=into))
        async with asyncio.timeout(20):
            while not into.results:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        await playing
        assert sorted(ids(into.results)) == [case.case_id for case in sent]
        assert into.run.passed_count == 1000
