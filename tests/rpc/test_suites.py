"""RunSuite over a real channel: recorded and asked cases, trials, bad input, resumption, a store in trouble."""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import Connection

from evald.context import EvaluatorContext
from evald.result import passed
from evald.v1 import suite_service_pb2 as pb
from evald.v1.connector_service_pb2 import Connector, CreateConnectorRequest
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.evaluation_service_pb2 import EvaluateOptions
from evald.v1.run_service_pb2 import RunError
from evald.v1.suite_service_pb2 import RunSuiteRequest, SuiteCase, SuiteOpen
from evald.v1.suite_service_pb2_grpc import SuiteServiceStub
from evald_server.batch.pool import BatchPool
from evald_server.store.database import FILE_NAME, Database
from evald_server.store.suites import FoundCase, SuiteRunKey, SuiteStore

from ..engine.scripted import SCRIPTED, WAITING, definition
from .live import CONTAINS, Live, Refusal, refusal, request, serving, spec, until
from .suite_floor import (
    COMPLETED,
    ERROR,
    FAILED,
    INTERRUPTED,
    PASSED,
    RUNNING,
    SKIPPED,
    Outcome,
    answer,
    asked,
    get,
    http_agent,
    ids,
    note,
    opened,
    play,
    recorded,
    stored_cases,
)


@asynccontextmanager
async def floor(**settings: Any) -> AsyncIterator[tuple[Live, SuiteServiceStub]]:
    """A server with scripted evaluators, and a stub."""
    async with serving([SCRIPTED, WAITING], **settings) as live:
        live.app.suites.store_seconds = 0.2
        yield live, SuiteServiceStub(live.channel)


def does(what: str, **fields: Any) -> Any:
    """The spec of an evaluator that does what a test says."""
    return spec(SCRIPTED.type, {"do": what}, **fields)


def waits(what: str = "pass", seconds: float = 0.01) -> Any:
    """The same, a moment later."""
    return spec(WAITING.type, {"do": what, "seconds": seconds})


async def echo(messages: list[dict[str, Any]]) -> str:
    """An agent that greets, and says how much it was told."""
    return f"hello, {len(messages)} messages"


async def test_recorded_cases_are_evaluated_stored_and_summed_up() -> None:
    async with floor() as (_, stub):
        cases = [
            recorded(f"case {number:03}", "bye" if number % 10 == 3 else "hello") for number in range(300)
        ]
        outcome = await play(stub, opened(threshold=0.9, case_count=300, labels={"team": "a"}), cases)
        assert outcome.started.status == RUNNING
        assert sorted(ids(outcome.results)) == [case.case_id for case in cases]
        run = outcome.run
        assert (run.status, run.verdict, run.target, run.threshold) == (COMPLETED, PASSED, "recorded", 0.9)
        assert (run.case_count, run.passed_count, run.failed_count) == (300, 270, 30)
        assert run.evaluators["contains"].passed_count == 270
        assert run.labels == {"team": "a"}
        assert await get(stub, run.id) == run
        assert await stored_cases(stub, run.id) == sorted(outcome.results, key=lambda one: one.case_id)
        failed = await stored_cases(stub, run.id, verdict=FAILED, page_size=7)
        assert ids(failed) == [f"case {number:03}" for number in range(3, 300, 10)]
        [brief] = await stored_cases(stub, run.id, case_id="case 003", brief=True)
        assert not brief.trials
        assert (brief.verdict, brief.failed_count) == (FAILED, 1)


async def test_a_conversation_is_evaluated_turn_by_turn() -> None:
    case = asked("chat", "hi", "and then?", "bye", evaluators=[CONTAINS], tags=["smoke"], weight=2)
    case.messages.add(role="system", text="Be kind.")
    case.turns[0].evaluators.append(spec("exact-match"))
    case.turns[0].expected.text = "first"
    case.recorded_trials.add(answers=[answer("first"), answer("hello"), answer("second")])
    case.metadata.update({"owner": "me"})
    async with floor() as (_, stub):
        outcome = await play(stub, opened(), [case])
        result = outcome.case("chat")
        [trial] = result.trials
        assert [message.text for message in trial.messages] == [
            "Be kind.",
            *("hi", "first", "and then?", "hello", "bye", "second"),
        ]
        assert [(turn.first_message, turn.message_count, turn.is_final) for turn in trial.turns] == [
            (1, 2, False),
            (3, 2, False),
            (5, 2, True),
        ]
        assert [turn.HasField("evaluation") for turn in trial.turns] == [True, False, True]
        assert [trial.turns[turn].evaluation.verdict for turn in (0, 2)] == [PASSED, FAILED]
        assert trial.reason.startswith("Turn 3: ")
        assert (result.verdict, result.weight, result.tags, result.metadata["owner"]) == (
            FAILED,
            2,
            ["smoke"],
            "me",
        )


async def test_an_agent_is_asked_over_the_conversation_so_far() -> None:
    async with floor() as (live, stub), http_agent(echo) as connector:
        stored = await ConnectorServiceStub(live.channel).CreateConnector(
            CreateConnectorRequest(connector=connector)
        )
        cases = [asked(f"case {number}", "one", "two") for number in range(20)]
        outcome = await play(stub, opened(connector_id=stored.connector.id, trials=3), cases)
        run = outcome.run
        assert (run.target, run.verdict, run.trials, run.case_count) == ("staging", PASSED, 3, 20)
        assert run.HasField("mean_latency_seconds")
        for case in cases:
            trials = outcome.case(case.case_id).trials
            assert [trial.trial for trial in trials] == [1, 2, 3]
            for trial in trials:
                said = [message.text for message in trial.messages]
                assert said == ["one", "hello, 1 messages", "two", "hello, 3 messages"]
                assert trial.turns[1].HasField("latency")


async def test_no_more_agents_are_asked_at_a_time_than_allowed() -> None:
    now = most = 0

    async def slow(_messages: list[dict[str, Any]]) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return "hello"

    async with floor() as (_, stub), http_agent(slow) as connector:
        cases = [asked(str(number)) for number in range(30)]
        outcome = await play(stub, opened(connector=connector, max_concurrency=5, trials=2), cases)
        assert outcome.run.passed_count == 30
        assert most == 5


async def test_an_agent_that_breaks_gives_errors_and_never_a_verdict() -> None:
    async def broken(messages: list[dict[str, Any]]) -> str | int:
        return 400 if messages[-1]["content"] == "break" else "hello"

    async with floor() as (_, stub), http_agent(broken) as connector:
        cases = [asked("good"), asked("bad", "break"), asked("late", "hi", "break")]
        outcome = await play(stub, opened(connector=connector), cases)
        assert outcome.verdicts == {"good": PASSED, "bad": ERROR, "late": ERROR}
        [trial] = outcome.case("late").trials
        assert trial.error.code == "CONNECTOR_REFUSED"
        assert [message.text for message in trial.messages] == ["hi", "hello", "break"]
        assert (outcome.run.verdict, outcome.run.error_count) == (ERROR, 2)
        nothing = await play(stub, opened(connector=connector, threshold=0.001), [asked("bad", "break")])
        assert nothing.run.verdict == ERROR


async def test_enough_trials_decide_a_case() -> None:
    async with floor() as (_, stub):
        cases = [
            recorded("most", "hello", "hello", "bye", min_passed=2),
            recorded("all", "hello", "hello", "bye"),
            recorded("none", "bye", "bye", min_passed=1),
            recorded("one", "hello"),
        ]
        outcome = await play(stub, opened(), cases)
        assert outcome.verdicts == {"most": PASSED, "all": FAILED, "none": FAILED, "one": PASSED}
        assert outcome.run.unstable_count == 2
        most = outcome.case("most")
        assert (most.passed_count, most.failed_count, most.score) == (2, 1, pytest.approx(2 / 3))
        assert [one.k for one in outcome.run.trial_estimates] == [1, 2, 3]


async def test_what_waits_and_what_breaks_is_told_apart() -> None:
    cases = [
        recorded("waits", "hello", evaluators=[waits(), CONTAINS]),
        recorded("broken", "hello", evaluators=[does("error"), CONTAINS]),
        recorded("raises", "hello", evaluators=[does("raise")]),
        recorded("broken and failed", "hello", evaluators=[waits("error"), does("fail")]),
        recorded("skipped", "hello", evaluators=[does("skip")]),
    ]
    async with floor() as (_, stub):
        outcome = await play(stub, opened(), cases * 1)
        assert outcome.verdicts == {
            "waits": PASSED,
            "broken": ERROR,
            "raises": ERROR,
            "broken and failed": FAILED,
            "skipped": SKIPPED,
        }
        assert "secret" not in str(outcome.results)


async def test_a_turn_that_cannot_be_evaluated_is_an_error() -> None:
    negative, unreadable = recorded("negative", "hello"), recorded("unreadable", "hello")
    negative.recorded_trials[0].answers[0].token_usage.input_tokens = -1
    del unreadable.recorded_trials[0].answers[0].messages[:]
    unreadable.recorded_trials[0].answers[0].messages_json = "{"
    parsed = recorded("parsed", "x")
    del parsed.recorded_trials[0].answers[0].messages[:]
    parsed.recorded_trials[0].answers[0].messages_json = '[{"role": "assistant", "content": "hello"}]'
    long = recorded("long", "hello")
    for _ in range(30):
        long.messages.add(role="user", text="x")
    async with floor(max_messages=20) as (_, stub):
        outcome = await play(stub, opened(), [negative, unreadable, parsed, long])
        assert outcome.verdicts == {"negative": ERROR, "unreadable": ERROR, "parsed": PASSED, "long": ERROR}
        assert "token_usage.input_tokens: got -1" in outcome.case("negative").reason
        assert "messages_json" in outcome.case("unreadable").reason
        assert outcome.run.verdict == ERROR


async def test_a_large_conversation_is_left_out_of_the_result() -> None:
    text = "hello " * 100_000
    async with floor() as (_, stub):
        outcome = await play(
            stub, opened(), [recorded("large", *[text] * 5), recorded("small", "hello")], a_message=1
        )
        assert outcome.verdicts == {"large": PASSED, "small": PASSED}
        large = outcome.case("large")
        assert large.ByteSize() < 3 << 20
        assert [len(trial.turns) for trial in large.trials] == [1] * 5
        assert [bool(trial.messages) for trial in large.trials] == [True] * 3 + [False] * 2


def _case(**fields: Any) -> SuiteCase:
    return recorded(fields.pop("case_id", "a"), "hello", **fields)


def _without_turns() -> SuiteCase:
    case = _case()
    del case.turns[:]
    return case


def _with_own(path: str) -> SuiteCase:
    case = _case()
    wrong = spec("contians", {"text": "x"}) if path == "evaluators" else spec("contains", {"text": 1})
    (case.evaluators if path == "evaluators" else case.turns[0].evaluators).append(wrong)
    return case


def _answers(count: int) -> SuiteCase:
    case = _case()
    del case.recorded_trials[0].answers[:]
    case.recorded_trials[0].answers.extend([answer("hello")] * count)
    return case


def _silent() -> SuiteCase:
    case = SuiteCase(case_id="a")
    case.turns.add()
    case.recorded_trials.add().answers.add()
    return case


def _told() -> SuiteCase:
    """A turn without an answer, and without a question."""
    case = _silent()
    case.turns[0].input.add(role="system", text="Be kind.")
    return case


BAD_OPEN = {
    "no-suite": (opened(suite=""), "open.suite"),
    "long-suite": (opened(suite="x" * 201), "open.suite"),
    "control-target": (opened(target="a\x00b"), "open.target"),
    "many-trials": (opened(trials=101), "open.trials"),
    "negative-trials": (opened(trials=-1), "open.trials"),
    "min-passed": (opened(trials=2, min_passed=3), "open.min_passed"),
    "threshold": (opened(threshold=1.1), "open.threshold"),
    "threshold-nan": (opened(threshold=float("nan")), "open.threshold"),
    "concurrency": (opened(max_concurrency=-1), "open.max_concurrency"),
    "case-count": (opened(case_count=-1), "open.case_count"),
    "both-connectors": (opened(connector_id="x", connector=Connector(type="http")), "open.connector_id"),
    "bad-connector": (opened(connector=Connector(type="htpp")), "open.connector.type"),
    "config": (opened(spec("contains", {"text": 1})), "open.evaluators[0].config.text"),
    "options": (opened(options={"threshold": 0.5}), "open.options.threshold"),
    "resume-what": (opened(resume=True), "open.suite_run_id"),
}
BAD_CASE = {
    "no-id": (_case(case_id=""), "cases[1].case_id"),
    "long-id": (_case(case_id="é" * 129), "cases[1].case_id"),
    "control-id": (_case(case_id="a\nb"), "cases[1].case_id"),
    "no-turns": (_without_turns(), "cases[1].turns"),
    "trials": (_case(trials=101), "cases[1].trials"),
    "min-passed": (_case(min_passed=2), "cases[1].min_passed"),
    "weight": (_case(weight=-1), "cases[1].weight"),
    "weight-huge": (_case(weight=1e308), "cases[1].weight"),
    "weight-tiny": (_case(weight=1e-300), "cases[1].weight"),
    "weight-nan": (_case(weight=float("nan")), "cases[1].weight"),
    "no-agent": (asked("a"), "cases[1].recorded_trials"),
    "too-few-answers": (_answers(0), "cases[1].recorded_trials[0].answers"),
    "too-many-answers": (_answers(2), "cases[1].recorded_trials[0].answers"),
    "nothing-said": (_silent(), "cases[1].recorded_trials[0].answers[0].messages"),
    "nothing-said-to-the-system": (_told(), "cases[1].recorded_trials[0].answers[0].messages"),
    "fewer-answers-than-trials": (_case(trials=2), "cases[1].recorded_trials"),
    "own-evaluators": (_with_own("evaluators"), "cases[1].evaluators[0].type"),
    "turn-evaluators": (_with_own("turns"), "cases[1].turns[0].evaluators[0].config.text"),
    "options": (_case(options={"threshold": 0.5}), "cases[1].options.threshold"),
}


@pytest.mark.parametrize(("first", "field"), BAD_OPEN.values(), ids=BAD_OPEN)
async def test_a_bad_suite_is_refused_and_leaves_nothing(first: SuiteOpen, field: str) -> None:
    async with floor() as (_, stub):
        refused = await refusal(play(stub, first, [_case()]))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.fields[0] == field
        assert field in refused.message
        first.validate_only = True
        assert (await refusal(play(stub, first, []))).fields == refused.fields
        assert not (await stub.ListSuiteRuns(pb.ListSuiteRunsRequest())).suite_runs


async def test_a_good_suite_that_is_only_checked_leaves_nothing() -> None:
    async with floor() as (_, stub):
        call = stub.RunSuite(iter([pb.RunSuiteRequest(open=opened(validate_only=True))]))
        assert [answer async for answer in call] == []
        assert not (await stub.ListSuiteRuns(pb.ListSuiteRunsRequest())).suite_runs


@pytest.mark.parametrize(("case", "field"), BAD_CASE.values(), ids=BAD_CASE)
async def test_a_bad_case_is_refused_before_anything_of_its_message_runs(case: SuiteCase, field: str) -> None:
    async with floor() as (_, stub):
        refused = await refusal(play(stub, opened(suite_run_id="one"), [_case(case_id="good"), case]))
        assert refused.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
        assert refused.fields[0] == field
        assert field in refused.message
        await until(lambda: _is(stub, "one", INTERRUPTED))
        assert await stored_cases(stub, "one") == []


async def _is(stub: SuiteServiceStub, run_id: str, status: int) -> bool:
    return (await get(stub, run_id)).status == status


async def test_a_case_without_a_check_is_refused() -> None:
    async with floor() as (_, stub):
        refused = await refusal(play(stub, SuiteOpen(suite="s"), [_case()]))
        assert refused.fields == ["cases[0].evaluators"]
        assert '(case "a")' in refused.message


async def test_a_replayed_recording_is_no_agent_for_a_suite() -> None:
    connector = Connector(type="replay")
    connector.config.update(
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    )
    async with floor() as (_, stub):
        refused = await refusal(play(stub, opened(connector=connector), [asked("a")]))
        assert refused.fields == ["open.connector.type"]


async def test_a_recorded_error_is_in_error_and_never_judged() -> None:
    async with floor() as (_, stub):
        broken = recorded("broken")
        broken.recorded_trials.add().error.CopyFrom(RunError(code="RECORDED_ERROR", message="timed out"))
        some = recorded("some", "hello", min_passed=1)
        some.recorded_trials.add().error.code = "RECORDED_ERROR"
        # Whose checks would pass an empty answer.
        outcome = await play(stub, opened(spec("contains", {"text": "x"}, negate=True)), [broken, some])
        assert outcome.verdicts == {"broken": ERROR, "some": PASSED}
        assert outcome.case("broken").reason == "RECORDED_ERROR: timed out"
        assert outcome.run.error_count == 1
        both = recorded("both", "hello")
        both.recorded_trials[0].error.code = "RECORDED_ERROR"
        refused = await refusal(play(stub, opened(), [both]))
        assert refused.fields == ["cases[0].recorded_trials[0].answers"]


async def test_fewer_recorded_trials_than_the_suite_has_are_refused_with_both_numbers() -> None:
    async with floor() as (_, stub):
        refused = await refusal(play(stub, opened(trials=3), [recorded("a", "hello", "hello")]))
        assert refused.fields == ["cases[0].recorded_trials"]
        assert "got 2, wanted at least the number of trials, 3" in refused.message
        outcome = await play(stub, opened(trials=3), [recorded("a", "hello", "hello", trials=2)])
        assert outcome.verdicts == {"a": PASSED}


def _said(*messages: tuple[str, str]) -> Any:
    made = answer("")
    del made.messages[:]
    for role, text in messages:
        made.messages.add(role=role, text=text)
    return made


@pytest.mark.parametrize("position", [0, 1])
async def test_an_answer_with_a_question_of_its_own_is_an_error_of_its_case(position: int) -> None:
    answers = [answer("hello"), answer("hello")]
    answers[position] = _said(("user", "other"), ("assistant", "hello"))
    other = asked("other", "x", "y")
    other.recorded_trials.add(answers=answers)
    async with floor() as (_, stub):
        outcome = await play(stub, opened(), [other, recorded("good", "hello")])
        assert outcome.verdicts == {"other": ERROR, "good": PASSED}
        assert outcome.case("other").reason.startswith(
            f"TRANSCRIPT_MISMATCH: recorded_trials[0].answers[{position}].messages: got a message of the user"
        )


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ([], PASSED),
        ([("user", "Thanks! ###STOP###")], PASSED),
        ([("user", "TERMINATE"), ("system", "bye")], PASSED),
        ([("user", "Are you there?")], FAILED),
        ([("user", "Are you there?"), ("assistant", "bye")], FAILED),
        ([("user", "Are you there?"), ("tool", "hello")], FAILED),
    ],
)
async def test_a_whole_conversation_is_judged_by_its_last_turn(
    end: list[tuple[str, str]], verdict: int
) -> None:
    case = SuiteCase(case_id="a")
    case.turns.add()
    case.recorded_trials.add(answers=[_said(("user", "hi"), ("assistant", "hello"), *end)])
    async with floor() as (_, stub):
        assert (await play(stub, opened(), [case])).verdicts == {"a": verdict}


@pytest.mark.parametrize("a_message", [1, 2, 50])
async def test_an_id_that_comes_twice_is_refused_by_name(a_message: int) -> None:
    async with floor() as (_, stub):
        cases = [recorded("twin", "hello"), recorded("other", "hello"), recorded("twin", "bye")]
        into = Outcome()
        refused = await refusal(play(stub, opened(suite_run_id="one"), cases, a_message=a_message, into=into))
        assert 'two cases have the id "twin"' in refused.message
        assert refused.info.metadata["case_id"] == "twin"
        await until(lambda: _is(stub, "one", INTERRUPTED))
        # What was told is kept.
        assert set(ids(into.results)) <= set(ids(await stored_cases(stub, "one")))
        again = opened(suite_run_id="one", resume=True)
        refused = await refusal(
            play(stub, again, [*cases[1:], recorded("new", "hello"), recorded("new", "bye")])
        )
        assert 'two cases have the id "new"' in refused.message


async def test_a_case_that_comes_again_just_as_it_was_is_refused() -> None:
    case = recorded("twin", "hello")
    case.recorded_trials[0].answers[
        0
    ].latency.seconds = -5  # an error, which has no duration: the same bytes again
    async with floor() as (_, stub):
        call = stub.RunSuite()
        await call.write(RunSuiteRequest(open=opened(suite_run_id="one"), cases=[case]))
        await call.read()
        [told] = (await call.read()).results
        assert told.verdict == ERROR
        await call.write(RunSuiteRequest(cases=[case]))
        await call.done_writing()
        refused = await refusal(call.read())
        assert 'two cases have the id "twin"' in refused.message
        await until(lambda: _is(stub, "one", INTERRUPTED))
        assert (await get(stub, "one")).case_count == 1


async def test_others_get_their_turn_beside_a_large_case() -> None:
    ticks = 0
    seen: list[int] = []

    def count(_ctx: EvaluatorContext) -> Any:
        seen.append(ticks)
        return passed("counted")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    case = asked("large", *["hi"] * 100)
    for turn in case.turns:
        turn.evaluators.append(spec("counting"))
    for _ in range(20):
        case.recorded_trials.add(answers=[answer("hello")] * 100)
    async with serving([definition("counting", count)]) as live:
        ticking = asyncio.create_task(tick())
        outcome = await play(SuiteServiceStub(live.channel), opened(), [case])
        ticking.cancel()
    assert outcome.run.verdict == PASSED
    assert len(seen) == 2000
    assert max(Counter(seen).values()) <= 64


async def test_others_get_their_turn_beside_cases_with_evaluators_of_their_own() -> None:
    ticks = 0
    seen: list[int] = []

    def compile_counted(_config: Any) -> Any:
        seen.append(ticks)
        return lambda _ctx: passed("compiled")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    counting = SCRIPTED._replace(type="counting", compile=compile_counted)
    cases = [
        recorded(
            f"case {case}", "hello", evaluators=[spec("counting", {"n": f"{case} {n}"}) for n in range(20)]
        )
        for case in range(15)
    ]
    async with serving([counting]) as live:
        ticking = asyncio.create_task(tick())
        outcome = await play(SuiteServiceStub(live.channel), opened(), cases)
        ticking.cancel()
    assert outcome.run.verdict == PASSED
    assert len(seen) >= 300
    assert max(Counter(seen).values()) <= 20


@pytest.mark.parametrize("kind", ["recorded", "asked"])
async def test_a_suite_run_has_no_verdict_before_its_slowest_case(kind: str) -> None:
    async def slow(_messages: list[dict[str, Any]]) -> str:
        await asyncio.sleep(0.5)
        return "bye"

    async with floor() as (_, stub), http_agent(slow) as connector:
        if kind == "asked":
            outcome = await play(stub, opened(connector=connector), [asked("slow")])
        else:
            late = recorded("slow", "hello", evaluators=[waits("fail", 0.5)])
            outcome = await play(stub, opened(), [late])
        assert outcome.verdicts == {"slow": FAILED}
        assert (outcome.run.verdict, outcome.run.case_count) == (FAILED, 1)


async def test_fewer_cases_than_announced_give_no_verdict() -> None:
    async with floor() as (_, stub):
        first = opened(case_count=3, suite_run_id="one")
        refused = await refusal(play(stub, first, [recorded("a", "hello"), recorded("b", "hello")]))
        assert refused.fields == ["open.case_count"]
        assert "got 3, but 2 cases were sent" in refused.message
        await until(lambda: _is(stub, "one", INTERRUPTED))
        outcome = await play(
            stub, opened(case_count=3, suite_run_id="one", resume=True), [recorded("c", "hello")]
        )
        assert (outcome.run.verdict, outcome.run.case_count) == (PASSED, 3)


async def test_messages_come_in_order() -> None:
    async with floor() as (live, _):
        for messages, text in (
            ([], "the stream ended before its first message"),
            ([RunSuiteRequest(cases=[_case()])], "the first message must open the suite run"),
            ([RunSuiteRequest(open=opened())] * 2, "only the first message may open the suite run"),
            ([b"\xff"], "cannot parse evald.v1.RunSuiteRequest"),
            ([b"\x12\x01\xff"], "missing; the first message must open"),
        ):
            call = live.channel.stream_stream("/evald.v1.SuiteService/RunSuite")
            data = [one if isinstance(one, bytes) else one.SerializeToString() for one in messages]
            assert text in (await refusal(_all(call(iter(data))))).message


async def _all(call: Any) -> list[bytes]:
    return [data async for data in call]


@asynccontextmanager
async def half_run(
    stub: SuiteServiceStub, first: SuiteOpen, cases: list[SuiteCase], wanted: int
) -> AsyncIterator[Outcome]:
    """A stream that goes on, after so many answers. It is cancelled at the end."""
    call = stub.RunSuite()
    outcome = Outcome()
    await call.write(RunSuiteRequest(open=first, cases=cases))
    while len(outcome.results) < wanted:
        response = await call.read()
        assert isinstance(response, pb.RunSuiteResponse)
        note(outcome, response)
    yield outcome
    call.cancel()


async def test_a_suite_run_goes_on_after_its_caller_went_away_and_no_case_runs_twice() -> None:
    counts: dict[str, int] = {}

    async def counting(messages: list[dict[str, Any]]) -> str:
        text = messages[-1]["content"]
        counts[text] = counts.get(text, 0) + 1
        return "hello"

    async with floor() as (_, stub), http_agent(counting) as connector:
        first = opened(connector=connector, suite_run_id="one", threshold=0.5, labels={"a": "b", "c": "d"})
        cases = [asked(f"case {number:02}", f"ask {number}") for number in range(40)]
        async with half_run(stub, first, cases[:25], 25) as told:
            busy = await get(stub, "one")
            assert (busy.status, busy.case_count, busy.passed_count) == (RUNNING, 25, 25)
            refused = await refusal(play(stub, first))
            assert refused.code is grpc.StatusCode.ALREADY_EXISTS
            refused = await refusal(stub.DeleteSuiteRun(pb.DeleteSuiteRunRequest(suite_run_id="one")))
            assert refused.reason == "RUN_STATUS"
        first.resume = first.brief = True
        outcome = await play(stub, first, cases)
        assert outcome.run.case_count == 40
        assert sorted(ids(outcome.results)) == ids(cases)  # type: ignore[arg-type]
        assert not any(result.trials for result in outcome.results), "they were to be brief"
        stored = {result.case_id: result for result in await stored_cases(stub, "one")}
        for result in told.results:
            assert stored[result.case_id] == result
        assert counts == {f"ask {number}": 1 for number in range(40)}
        refused = await refusal(play(stub, first))
        assert "that is completed" in refused.message
        refused = await refusal(play(stub, opened(suite_run_id="one")))
        assert refused.reason == "RESOURCE_EXISTS"
        refused = await refusal(play(stub, opened(suite_run_id="none", resume=True)))
        assert refused.reason == "RESOURCE_NOT_FOUND"


@pytest.mark.parametrize("a_message", [1, 2, 50])
@pytest.mark.parametrize("processes", [False, True])
async def test_a_stored_case_that_comes_twice_in_a_resumption_is_refused(
    a_message: int, processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No process is there yet: what would go to one is run here, after the stored cases were answered.
    monkeypatch.setattr(BatchPool, "is_worth_it", lambda *_: processes)
    async with floor() as (_, stub):
        first = opened(suite_run_id="one")
        cases = [recorded("twin", "hello"), recorded("other", "hello")]
        async with half_run(stub, first, cases, 2):
            pass
        first.resume = True
        new, fresh = recorded("new", "hello"), recorded("fresh", "hello")
        for again, twin in (
            ([*cases, cases[0]], "twin"),
            ([cases[0], cases[0]], "twin"),
            ([new, *cases, cases[0]], "twin"),
            ([fresh, fresh], "fresh"),
        ):
            await until(lambda: _is(stub, "one", INTERRUPTED))
            refused = await refusal(play(stub, first, again, a_message=a_message))
            assert f'two cases have the id "{twin}"' in refused.message
        await until(lambda: _is(stub, "one", INTERRUPTED))
        assert (await play(stub, first, [*cases, new, fresh])).run.case_count == 4


@pytest.mark.parametrize("processes", [False, True])
async def test_stored_cases_are_read_a_few_at_a_time_and_not_written(
    processes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    find, write = SuiteStore.find, Database.write
    monkeypatch.setattr(BatchPool, "is_worth_it", lambda *_: processes)
    async with floor() as (_, stub):
        first, cases = opened(suite_run_id="one"), [recorded(f"{number}", "hello") for number in range(300)]
        async with half_run(stub, first, cases, 300):
            pass
        await until(lambda: _is(stub, "one", INTERRUPTED))

        async def noted(store: SuiteStore, key: SuiteRunKey, ids: Sequence[str]) -> dict[str, FoundCase]:
            sizes.append(len(ids))
            return await find(store, key, ids)

        async def counted(database: Database, work: Callable[[Connection], Any]) -> Any:
            writes.append(work)
            return await write(database, work)

        writes: list[Any] = []
        monkeypatch.setattr(SuiteStore, "find", noted)
        monkeypatch.setattr(Database, "write", counted)
        first.resume = True
        outcome = await play(stub, first, cases, a_message=300)
        assert sorted(ids(outcome.results)) == sorted(case.case_id for case in cases)
        assert sizes == [64, 64, 64, 64, 44]
        assert len(writes) == 2  # its resumption and its end


async def test_only_the_same_suite_is_resumed() -> None:
    async with floor() as (_, stub):
        async with half_run(stub, opened(suite_run_id="one", threshold=0.5), [_case()], 1):
            pass
        await until(lambda: _is(stub, "one", INTERRUPTED))
        for field, changed in (
            ("threshold", opened(threshold=0.4)),
            ("threshold", opened()),
            ("evaluators", opened(spec("contains", {"text": "h"}), threshold=0.5)),
            ("labels", opened(threshold=0.5, labels={"a": "b"})),
        ):
            changed.suite_run_id, changed.resume = "one", True
            refused = await refusal(play(stub, changed))
            assert refused.fields == [f"open.{field}"]
        changed = opened(suite_run_id="one", resume=True, threshold=0.5, max_concurrency=3)
        assert (await play(stub, changed)).run.verdict == PASSED


async def test_a_suite_run_whose_id_the_server_made_is_resumed() -> None:
    async with floor() as (_, stub):
        async with half_run(stub, opened(), [_case()], 1) as told:
            pass
        run_id = told.started.id
        await until(lambda: _is(stub, run_id, INTERRUPTED))
        assert (await play(stub, opened(suite_run_id=run_id, resume=True))).run.verdict == PASSED


async def test_a_stopping_server_leaves_an_interrupted_suite_run_that_the_next_one_resumes(
    tmp_path: Path,
) -> None:
    cases = [recorded(f"case {number}", "hello") for number in range(10)]
    async with floor(data_dir=tmp_path) as (_, stub):
        call = stub.RunSuite()
        await call.write(RunSuiteRequest(open=opened(suite_run_id="one"), cases=cases[:6]))
        outcome = Outcome()
        while len(outcome.results) < 6:
            note(outcome, await call.read())
    async with floor(data_dir=tmp_path) as (_, stub):
        run = await get(stub, "one")
        assert (run.status, run.case_count, run.verdict) == (INTERRUPTED, 6, 0)
        outcome = await play(stub, opened(suite_run_id="one", resume=True), cases)
        assert (outcome.run.verdict, outcome.run.passed_count, len(outcome.results)) == (PASSED, 10, 10)


@pytest.mark.parametrize("who", ["the call", "the connection", "the server"])
async def test_a_suite_whose_end_did_not_come_from_its_caller_gets_no_verdict(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    finished: list[str] = []
    finish = SuiteStore.finish

    async def counted(store: SuiteStore, key: Any, run: pb.SuiteRun) -> None:
        finished.append(run.id)
        await finish(store, key, run)

    monkeypatch.setattr(SuiteStore, "finish", counted)
    for _ in range(5):
        async with floor() as (live, stub):
            async with half_run(stub, opened(suite_run_id="one"), [_case()], 1) as told:
                assert told.results
                if who == "the connection":
                    await live.channel.close()
                elif who == "the server":
                    await live.app.stop(0)
            if who == "the call":
                await until(lambda: _is(stub, "one", INTERRUPTED))
    assert not finished


async def test_suite_runs_are_listed_compared_and_deleted() -> None:
    async with floor() as (_, stub):
        cases = [recorded(f"case {number:03}", "hello") for number in range(60)]
        worse = [recorded(f"case {number:03}", "bye" if number < 20 else "hello") for number in range(60)]
        base = (await play(stub, opened(), cases)).run
        new = (await play(stub, opened(target="other"), worse)).run
        listed = await stub.ListSuiteRuns(pb.ListSuiteRunsRequest(page_size=1))
        assert list(listed.suite_runs) == [new]
        rest = await stub.ListSuiteRuns(pb.ListSuiteRunsRequest(page_token=listed.next_page_token))
        assert list(rest.suite_runs) == [base]
        assert not rest.next_page_token
        found = await stub.ListSuiteRuns(pb.ListSuiteRunsRequest(suite="checkout", verdict=FAILED))
        assert list(found.suite_runs) == [new]
        both = pb.CompareSuiteRunsRequest(base_id=base.id, new_id=new.id)
        comparison = (await stub.CompareSuiteRuns(both)).comparison
        assert comparison.verdict == pb.COMPARISON_VERDICT_BLOCK
        assert (comparison.pair_count, comparison.broken_count) == (60, 20)
        assert comparison.base == base
        await stub.DeleteSuiteRun(pb.DeleteSuiteRunRequest(suite_run_id=base.id))
        refused = await refusal(stub.CompareSuiteRuns(both))
        assert refused.fields == ["base_id"]


@pytest.mark.parametrize(
    "lenient",
    [
        pytest.param([does("pass", name="other"), CONTAINS], id="nothing changed"),
        pytest.param([does("pass", name="other")], id="taken from some cases"),
        pytest.param(
            [does("pass", name="other"), spec("contains", {"text": "hello"}, enforcement=2)],
            id="no longer enforced",
        ),
    ],
)
async def test_a_case_that_is_judged_by_less_is_not_as_good(lenient: list[Any]) -> None:
    async with floor() as (_, stub):
        strict = [does("pass", name="other"), CONTAINS]
        base = (await play(stub, opened(*strict), [recorded(f"case {n:02}", "hello") for n in range(40)])).run
        # One case is judged as before, so that the suite run names the same evaluators.
        cases = [recorded("case 00", "hello", evaluators=strict)]
        said = "hello" if CONTAINS in lenient else "bye"
        cases += [recorded(f"case {n:02}", said, evaluators=lenient) for n in range(1, 40)]
        new = (await play(stub, opened(*strict), cases)).run
        assert new.verdict == PASSED
        assert list(new.provenance) == list(base.provenance)
        both = pb.CompareSuiteRunsRequest(base_id=base.id, new_id=new.id)
        found = (await stub.CompareSuiteRuns(both)).comparison
        wanted = pb.COMPARISON_VERDICT_PASS if CONTAINS in lenient else pb.COMPARISON_VERDICT_INCONCLUSIVE
        assert found.verdict == wanted, found.reason


LENIENT = EvaluateOptions(aggregation=2, threshold=0.1)  # by weighted mean

# What differs: the suite's evaluators, other fields of the suite, fields of its cases.
_CONDITIONS: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": ([CONTAINS], {}, {}),
    "what decides nothing": ([CONTAINS], {"max_concurrency": 3}, {"weight": 2.0, "tags": ["a"]}),
    "options of the suite": ([CONTAINS], {"options": LENIENT}, {}),
    "options of the case": ([CONTAINS], {}, {"options": LENIENT}),
    "trials that must pass": ([CONTAINS], {"min_passed": 1}, {}),
    "metadata": ([CONTAINS], {}, {"metadata": {"item": "x"}}),
    "earlier messages": ([CONTAINS], {}, {"messages": [{"role": "system", "text": "Be kind."}]}),
    "weight of an evaluator": ([spec("contains", {"text": "hello"}, weight=0.5)], {}, {}),
}


@pytest.mark.parametrize("what", _CONDITIONS)
async def test_cases_that_were_asked_something_else_cannot_be_compared(what: str) -> None:
    evaluators, shared, own = _CONDITIONS[what]
    async with floor() as (_, stub):
        base = await play(stub, opened(CONTAINS), [recorded(f"case {n:02}", "hello") for n in range(40)])
        cases = [recorded(f"case {n:02}", "hello", **own) for n in range(40)]
        new = await play(stub, opened(*evaluators, **shared), cases)
        both = pb.CompareSuiteRunsRequest(base_id=base.run.id, new_id=new.run.id)
        found = (await stub.CompareSuiteRuns(both)).comparison
        if list(_CONDITIONS).index(what) < 2:
            assert (found.verdict, list(found.provenance_changes)) == (pb.COMPARISON_VERDICT_PASS, [])
        else:
            assert found.verdict == pb.COMPARISON_VERDICT_INCONCLUSIVE
            assert "the case: different input" in found.provenance_changes[0]


_ENDED = (
    'grpc_server_handled_total{grpc_code="Canceled",grpc_method="CompareSuiteRuns",'
    'grpc_service="evald.v1.SuiteService",grpc_type="unary"} 8.0'
)


async def test_comparisons_leave_room_for_others_and_end_with_their_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    left: list[int] = []
    go_on = threading.Event()

    def slow(base: Any, new: Any, pairs: Any, max_drop: float) -> pb.SuiteComparison:
        begun.append(1)
        go_on.wait(20)
        left.append(len(list(pairs)))
        return pb.SuiteComparison()

    monkeypatch.setattr("evald_server.rpc.suites.compare", slow)
    async with floor(data_dir=tmp_path) as (live, stub):
        run = (await play(stub, opened(), [recorded("a", "hello"), recorded("b", "hello")])).run
        request = pb.CompareSuiteRunsRequest(base_id=run.id, new_id=run.id)
        calls = [stub.CompareSuiteRuns(request) for _ in range(8)]
        try:
            await until(lambda: len(begun) >= 2)
            assert await asyncio.wait_for(get(stub, run.id), 20) == run
            assert len(begun) == 2
        finally:
            for call in calls:
                call.cancel()
            await until(lambda: _ENDED in live.app.telemetry.exposition("")[0].decode())
            go_on.set()
        await until(lambda: len(left) == len(begun))
        assert max(left) < 2


async def test_bad_requests_about_suite_runs_are_refused() -> None:
    async with floor() as (_, stub):
        run = (await play(stub, opened(), [_case()])).run
        for call, field in (
            (stub.GetSuiteRun(pb.GetSuiteRunRequest(suite_run_id="none")), "suite_run_id"),
            (stub.GetSuiteRun(pb.GetSuiteRunRequest()), "suite_run_id"),
            (stub.ListSuiteRuns(pb.ListSuiteRunsRequest(page_size=-1)), "page_size"),
            (stub.ListSuiteRuns(pb.ListSuiteRunsRequest(page_token="x")), "page_token"),
            (stub.ListSuiteRuns(pb.ListSuiteRunsRequest(status=9)), "status"),
            (stub.ListCaseResults(pb.ListCaseResultsRequest(suite_run_id="none")), "suite_run_id"),
            (stub.ListCaseResults(pb.ListCaseResultsRequest(suite_run_id=run.id, verdict=9)), "verdict"),
            (stub.CompareSuiteRuns(pb.CompareSuiteRunsRequest(base_id=run.id, new_id="x")), "new_id"),
            (
                stub.CompareSuiteRuns(
                    pb.CompareSuiteRunsRequest(base_id=run.id, new_id=run.id, max_drop=float("nan"))
                ),
                "max_drop",
            ),
            (stub.DeleteSuiteRun(pb.DeleteSuiteRunRequest(suite_run_id="none")), "suite_run_id"),
        ):
            assert (await refusal(call)).fields == [field]


def _locked(path: Path) -> Callable[[], None]:
    other = sqlite3.connect(path / FILE_NAME, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")

    def unlock() -> None:
        other.execute("ROLLBACK")
        other.close()

    return unlock


def _removed(path: Path) -> Callable[[], None]:
    kept = path / "kept"
    names = [name for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm") if (path / name).exists()]
    kept.mkdir()
    for name in names:
        (path / name).rename(kept / name)
    (path / FILE_NAME).mkdir()  # so that no new one can be made

    def put_back() -> None:
        (path / FILE_NAME).rmdir()
        for name in names:
            (kept / name).rename(path / name)

    return put_back


@pytest.mark.parametrize("break_store", [_locked, _removed])
async def test_a_store_in_trouble_loses_nothing_that_was_told(
    tmp_path: Path, break_store: Callable[[Path], Callable[[], None]]
) -> None:
    cases = [recorded(f"case {number}", "hello") for number in range(8)]
    async with floor(data_dir=tmp_path) as (live, stub):
        call = stub.RunSuite()
        await call.write(RunSuiteRequest(open=opened(suite_run_id="one"), cases=cases[:4]))
        told = Outcome()
        while len(told.results) < 4:
            note(told, await call.read())
        mend = break_store(tmp_path)
        await call.write(RunSuiteRequest(cases=cases[4:]))
        # The error comes although the caller says nothing more.
        refused: Refusal = await refusal(call.read())
        assert refused.reason == "STORAGE_UNAVAILABLE"
        assert str(tmp_path) not in refused.message
        assert (await live.unary(request(CONTAINS))).summary.success
        mend()
        await until(lambda: _is(stub, "one", INTERRUPTED))
        assert await stored_cases(stub, "one") == sorted(told.results, key=lambda one: one.case_id)
        outcome = await play(stub, opened(suite_run_id="one", resume=True), cases)
        assert outcome.run.passed_count == 8


async def test_a_full_store_refuses_the_cases_that_do_not_fit(tmp_path: Path) -> None:
    def limit(pages: int) -> Callable[[Connection], None]:
        return lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close()

    async with floor(data_dir=tmp_path) as (live, stub):
        first = opened(suite_run_id="one")
        small, large = recorded("small", "hello"), recorded("large", "hello" * 200_000)
        async with half_run(stub, first, [small], 1) as told:
            await live.app.database.write(limit(150))
        await until(lambda: _is(stub, "one", INTERRUPTED))
        first.resume = True
        refused = await refusal(play(stub, first, [small, large], a_message=1))
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL")
        assert (await live.unary(request(CONTAINS))).summary.success
        assert await stored_cases(stub, "one") == told.results
        await live.app.database.write(limit(100_000))
        await until(lambda: _is(stub, "one", INTERRUPTED))
        assert (await play(stub, first, [small, large])).run.passed_count == 2


async def test_suite_runs_are_counted_by_their_end() -> None:
    async with floor() as (live, stub):
        await play(stub, opened(), [_case()])
        await play(stub, opened(spec("contains", {"text": "x"})), [_case()])
        async with half_run(stub, opened(suite_run_id="one"), [_case()], 1):
            assert _counted(live, "evald_suite_runs_running") == 1
        await until(lambda: _is(stub, "one", INTERRUPTED))
        await until(lambda: not _counted(live, "evald_suite_runs_running"))
        for outcome in ("passed", "failed", "interrupted"):
            assert _counted(live, f'evald_suite_runs_total{{outcome="{outcome}"}}') == 1
        assert _counted(live, 'evald_evaluations_total{rpc="RunSuite",verdict="passed"}') == 2


def _counted(live: Live, series: str) -> float:
    lines = live.app.telemetry.exposition("")[0].decode().splitlines()
    [value] = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{series} ")]
    return float(value)


class SlowCaller:
    """A stream with endless cases whose answers nobody takes but the first message."""

    context: Any = None

    def __init__(self) -> None:
        self.read_count = 0

    async def read(self) -> bytes:
        """The next two hundred cases."""
        self.read_count += 1
        cases = [recorded(f"case {self.read_count} {number}", "hello") for number in range(200)]
        message = RunSuiteRequest(cases=cases)
        if self.read_count == 1:
            message.open.CopyFrom(opened())
        return message.SerializeToString()

    async def send(self, data: bytes) -> None:
        """Take the first one."""
        if not pb.RunSuiteResponse.FromString(data).HasField("started"):
            await asyncio.Event().wait()


class NoCall:
    """The call of a stream without metadata."""

    def invocation_metadata(self) -> tuple[()]:
        """Nothing."""
        return ()


async def test_a_caller_that_takes_no_answers_is_not_read_any_further() -> None:
    async with floor() as (live, _):
        caller = SlowCaller()
        caller.context = NoCall()
        running = asyncio.create_task(live.app.suites.run_suite(caller))  # type: ignore[arg-type]
        # Enough for fifty messages.
        for _turn in range(5000):
            await asyncio.sleep(0)
        assert caller.read_count <= 6
        running.cancel()
        await asyncio.wait([running])
