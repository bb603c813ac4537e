"""Evaluate and EvaluateUnary over a real channel."""

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2, struct_pb2
from google.protobuf.message import DecodeError, Message

from evald.evaluator import define_evaluator
from evald.result import Kind, Verdict
from evald.scope import Scope, current_scope
from evald.v1 import context_pb2, evaluation_service_pb2, evaluator_pb2
from evald_server import wire_pb2
from evald_server.engine.registry import Origin
from evald_server.rpc.evaluate import StreamCalls
from evald_server.rpc.idempotency import IdempotencyStore, StoredResponse

from ..loop import run
from .live import CONTAINS, EVALUATION, Refusal, Request, refusal, request, serving, spec

PASSED, FAILED, ERROR = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR


async def _slow(ctx: Any) -> bool:
    await asyncio.sleep(ctx.config.get("seconds", 0.05))
    return True


SLOW = define_evaluator(
    type="slow",
    kind=Kind.ASSERTION,
    evaluate=_slow,
    config_schema={"type": "object", "properties": {"seconds": {"type": "number"}}},
)


async def test_a_call_whose_evaluators_answer_at_once_is_a_single_message() -> None:
    async with serving() as live:
        (only,) = await live.stream(request(CONTAINS, spec("response-length")))
        assert only.started.evaluation_id
        assert [planned.type for planned in only.started.plan] == ["contains", "response-length"]
        assert [planned.version for planned in only.started.plan] == ["1.0.0", "1.0.0"]
        assert [result.verdict for result in only.results] == [PASSED, PASSED]
        assert not only.summary.results
        assert only.summary.success
        assert dict(only.summary.metrics) == {"response-length": 5}


async def _telling(ctx: Any) -> bool:
    current_scope().progress(ctx.config["text"], ctx.config["fraction"])
    await asyncio.sleep(1)
    return True


TELLING = define_evaluator(
    type="telling",
    kind=Kind.ASSERTION,
    evaluate=_telling,
    config_schema={"properties": {"text": {"type": "string"}, "fraction": {"type": "number"}}},
)


@pytest.mark.parametrize("wanted", [True, False], ids=["asked-for", "not-asked-for"])
async def test_progress_reaches_the_caller_only_when_asked_for(wanted: bool) -> None:
    options = evaluation_service_pb2.EvaluateOptions(include_progress=wanted)
    specs = [
        CONTAINS,
        spec("telling", {"text": "asked", "fraction": 0.25}),
        spec("telling", {"text": "no fraction", "fraction": 7}, name="heard"),
    ]
    async with serving([TELLING]) as live:
        messages = await live.stream(request(*specs, options=options))
        told = {
            (said.index, said.message, said.HasField("fraction")) for m in messages for said in m.progress
        }
        assert told == ({(1, "asked", True), (2, "no fraction", False)} if wanted else set())
        assert {result.name for m in messages for result in m.results} == {"contains", "telling", "heard"}
        assert not messages[-1].progress
        assert messages[-1].summary.success


async def test_an_evaluator_that_waits_knows_its_call() -> None:
    seen: list[Scope] = []

    async def note(_ctx: Any) -> bool:
        seen.append(current_scope())
        return True

    noting = define_evaluator(type="noting", kind=Kind.ASSERTION, evaluate=note)
    async with serving([noting]) as live:
        options = evaluation_service_pb2.EvaluateOptions(skip_cache=True)
        answer = await live.unary(
            request(spec("noting", timeout=duration_pb2.Duration(seconds=2)), options=options),
            metadata=(("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"), ("x-other", "1")),
            timeout=30,
        )
        (scope,) = seen
        assert scope.evaluation_id == answer.evaluation_id
        assert scope.skip_cache
        assert dict(scope.trace_context) == {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
        left = scope.time_left()
        assert left is not None
        assert left <= 2


async def test_unary_lists_every_result_in_declared_order() -> None:
    async with serving([SLOW]) as live:
        answer = await live.unary(request(spec("slow"), CONTAINS, spec("contains", {"text": "x"})))
        assert [result.index for result in answer.summary.results] == [0, 1, 2]
        assert answer.summary.verdict == FAILED
        assert answer.summary.reason == answer.summary.results[2].reason


async def test_messages_json_stands_wherever_messages_stand() -> None:
    async with serving() as live:
        text = json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
        context = context_pb2.EvaluatorContext(messages_json=text)
        answer = await live.unary(Request(context=context, evaluators=[CONTAINS]))
        assert answer.summary.success
        more = [{"role": "assistant", "content": "hello"}, {"role": "assistant", "content": "no"}]
        context.messages_json = json.dumps([{"role": "user", "content": "hi"}, *more])
        context.last_invocation.messages_json = json.dumps(more[1:])
        answer = await live.unary(Request(context=context, evaluators=[CONTAINS]))
        assert not answer.summary.success


async def test_a_request_id_is_answered_again_and_not_run_again() -> None:
    runs = 0

    def count(_ctx: Any) -> bool:
        nonlocal runs
        runs += 1
        time.sleep(0.1)
        return True

    counting = define_evaluator(type="counting", kind=Kind.ASSERTION, evaluate=count)

    async with serving([counting]) as live:
        wanted = request(spec("counting"), request_id="5f0c6f3e-0a53-4a0f-b4b4-6a8f4f5f0001")
        first, second = await asyncio.gather(live.unary(wanted), live.unary(wanted))
        third = await live.stream(wanted)
        assert first == second
        assert runs == 1
        assert third[-1].started.evaluation_id == wanted.request_id
        assert third[-1].results[0].start_time == first.summary.results[0].start_time
        other = await refusal(live.unary(request(CONTAINS, request_id=wanted.request_id)))
        assert (other.code, other.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED")


@pytest.mark.parametrize("inline", [False, True], ids=["waiting", "inline"])
async def test_a_stream_that_breaks_at_its_last_message_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, *, inline: bool
) -> None:
    runs = 0
    broke = asyncio.Event()

    def count(_ctx: Any) -> bool:
        nonlocal runs
        runs += 1
        return True

    class Breaking:
        """The context of a call whose connection breaks at the last message."""

        def __init__(self, context: Any) -> None:
            self._context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self._context, name)

        async def write(self, data: bytes) -> None:
            if not broke.is_set() and wire_pb2.EvaluateResponse.FromString(data).HasField("summary"):
                broke.set()
                raise grpc.aio.InternalError("the connection is gone")
            await self._context.write(data)

    handle = StreamCalls.handle

    async def handle_breaking(calls: StreamCalls, data: bytes, context: Any) -> Any:
        return await handle(calls, data, Breaking(context))

    monkeypatch.setattr(StreamCalls, "handle", handle_breaking)
    counting = define_evaluator(type="counting", kind=Kind.ASSERTION, evaluate=count, inline=inline)
    async with serving([counting]) as live:
        wanted = request(spec("counting"), request_id="broken")
        call = asyncio.create_task(live.stream(wanted))
        await broke.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await live.stream(wanted))[-1].summary.success
        assert runs == 1


HALF_A_PAIR = '{"a": "b", "\\ud800": 1}'


@pytest.mark.parametrize(
    "specs",
    [
        [spec("json-match", {"expected": {"a": "c"}})],
        [spec("all-of", {"evaluators": [{"type": "json-match", "config": {"expected": {"a": "c"}}}]})],
    ],
    ids=["reason", "evidence"],
)
async def test_text_of_the_agent_that_is_not_unicode_spoils_no_sibling(
    specs: list[evaluator_pb2.EvaluatorSpec],
) -> None:
    async with serving() as live:
        summary = (await live.unary(request(*specs, CONTAINS, answer=HALF_A_PAIR))).summary
        assert [result.verdict for result in summary.results] == [FAILED, FAILED]


async def test_a_request_id_is_the_same_in_every_order_of_labels_and_has_a_length() -> None:
    wanted = evaluation_service_pb2.EvaluateUnaryRequest(request=request(CONTAINS, request_id="é" * 128))
    labels = [
        evaluation_service_pb2.EvaluateUnaryRequest(request=Request(labels={f"label-{number}": "x"}))
        for number in range(20)
    ]
    async with serving() as live:
        answers = {
            await live.raw(
                EVALUATION + "EvaluateUnary", b"".join(one.SerializeToString() for one in (wanted, *order))
            )
            for order in (labels, labels[::-1])
        }
        assert len(answers) == 1
        refused = await refusal(live.unary(request(CONTAINS, request_id="x" * 129)))
        assert (refused.reason, refused.fields) == ("INVALID_FIELD", ["request_id"])
        assert "got 129 characters, wanted at most 128" in refused.message


async def test_a_request_id_is_the_same_in_every_order_of_a_configs_keys() -> None:
    # Protobuf writes maps in an order that differs by process and language. Messages that follow each other are merged.
    keys = [struct_pb2.Struct(), struct_pb2.Struct(), struct_pb2.Struct()]
    for key, value in zip(keys, ({"text": "yes"}, {"ignoreCase": True}, {"message": "last"}), strict=True):
        key.update(value)

    def spelled(order: Sequence[struct_pb2.Struct]) -> bytes:
        specs = [evaluator_pb2.EvaluatorSpec(type="contains").SerializeToString()]
        specs += [evaluator_pb2.EvaluatorSpec(config=key).SerializeToString() for key in order]
        wire = wire_pb2.EvaluateRequest(request_id="one", evaluators=[b"".join(specs)])
        wire.context.CopyFrom(request(answer="Yes").context)
        return wire_pb2.EvaluateUnaryRequest(request=wire).SerializeToString()

    requests = {spelled(order) for order in permutations(keys)}
    assert len(requests) == 6
    async with serving() as live:
        answers = {await live.raw(EVALUATION + "EvaluateUnary", data) for data in requests}
    assert len(answers) == 1


async def test_an_answer_is_kept_for_ten_minutes() -> None:
    now, runs = 0.0, 0
    store = IdempotencyStore(1 << 20, lambda: now)

    async def call() -> StoredResponse:
        nonlocal runs
        runs += 1
        return StoredResponse(b"%d" % runs, [])

    async def ask(request_id: str) -> tuple[bytes, bool]:
        stored, replayed = await store.once(wire_pb2.EvaluateRequest(request_id=request_id), call)
        return stored.data, replayed

    assert await ask("a") == (b"1", False)
    now = 300.0
    assert await ask("b") == (b"2", False)
    now = 599.0
    assert await ask("a") == (b"1", True)
    now = 600.0
    assert await ask("a") == (b"3", False)
    assert await ask("b") == (b"2", True)


async def test_a_failed_call_with_a_request_id_can_be_tried_again() -> None:
    async with serving() as live:
        wanted = request(spec("nope"), request_id="a")
        assert (await refusal(live.unary(wanted))).reason == "UNKNOWN_TYPE"
        assert (await refusal(live.unary(wanted))).reason == "UNKNOWN_TYPE"
        assert (await live.unary(request(CONTAINS, request_id="a"))).summary.success


async def test_the_summary_reaches_the_caller_before_its_deadline() -> None:
    async with serving([SLOW]) as live:
        # A tenth of the time is kept for the answer; the best of three, because other work shares the machine.
        for left in (2, 1, 0):
            try:
                wanted = request(spec("slow", {"seconds": 30}), CONTAINS)
                answer = await live.unary(wanted, timeout=2)
                break
            except grpc.aio.AioRpcError:
                if not left:
                    raise
        assert [result.error.code for result in answer.summary.results] == ["TIMEOUT", ""]
        assert answer.summary.verdict == ERROR


async def test_the_options_own_timeout_still_gives_a_summary() -> None:
    async with serving([SLOW]) as live:
        wanted = request(spec("slow", {"seconds": 30}))
        wanted.options.timeout.FromMilliseconds(100)
        answer = await live.unary(wanted)
        assert answer.summary.results[0].error.code == "TIMEOUT"


def test_work_stops_when_the_caller_goes_away() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def wait(_ctx: Any) -> bool:
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(stopped.set)
        return True

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        waiting = define_evaluator(type="waiting", kind=Kind.ASSERTION, evaluate=wait)
        async with serving([waiting]) as live:
            wrapped = evaluation_service_pb2.EvaluateUnaryRequest(request=request(spec("waiting")))
            call = live.channel.unary_unary(EVALUATION + "EvaluateUnary")(wrapped.SerializeToString())
            await begun.wait()
            call.cancel()
            # Less than the 30 s that a call may take by default.
            await asyncio.wait_for(stopped.wait(), 20)

    loop: asyncio.AbstractEventLoop
    run(main())


def _config_of(levels: int) -> evaluator_pb2.EvaluatorSpec:
    """A spec whose config has that many levels."""
    data: dict[str, Any] = {}
    for _ in range(levels - 2):
        data = {"properties": data}
    return spec("json-schema", {"schema": data})


@pytest.mark.parametrize("levels", [33, 34, 60])
async def test_a_config_that_is_too_deep_is_refused(levels: int) -> None:
    async with serving() as live:
        try:
            raw = _config_of(levels).SerializeToString()
        except DecodeError:
            # Deeper than this protobuf runtime can even hold: nested by hand.
            raw = b""
            for _ in range(levels):
                value = b"\x2a" + _varint(len(raw)) + raw
                entry = b"\x0a\x01a\x12" + _varint(len(value)) + value
                raw = b"\x0a" + _varint(len(entry)) + entry
            raw = b"\x0a\x0bjson-schema\x1a" + _varint(len(raw)) + raw
        wanted = wire_pb2.EvaluateRequest(context=request().context, evaluators=[raw])
        refused = await refusal(live.raw(EVALUATION + "Evaluate", wanted.SerializeToString()))
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.fields[0].startswith("evaluators[0]")
        assert "deeper than 32" in refused.message


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def _with_members(count: int) -> bytes:
    """A request whose expected data have so many members."""
    wanted = request(CONTAINS)
    wanted.context.expected.data.struct_value.update({f"k{n}": "v" for n in range(count)})
    return wanted.SerializeToString()


def _field(kind: type[Message], name: str, data: bytes) -> bytes:
    """A serialised field of a message."""
    return _varint(kind.DESCRIPTOR.fields_by_name[name].number << 3 | 2) + _varint(len(data)) + data


def _with_objects(count: int, members: int) -> bytes:
    """A request whose expected data are so many objects of so many members."""
    wanted = request(CONTAINS)
    one = struct_pb2.Struct()
    one.update({f"a_name_{n}": "v" for n in range(members)})
    wanted.context.expected.data.list_value.values.extend([struct_pb2.Value(struct_value=one)] * count)
    return wanted.SerializeToString()


@pytest.mark.parametrize("parts", [1, 2], ids=["one context", "two that protobuf merges"])
async def test_more_messages_than_any_list_has_are_refused_before_they_are_parsed(parts: int) -> None:
    context = _field(Request, "context", b"\x0a\x00" * (2_000_010 // parts))
    async with serving() as live:
        wanted = request(CONTAINS).SerializeToString() + context * parts
        refused = await refusal(live.raw(EVALUATION + "Evaluate", wanted))
        assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["context.messages"])
        assert "messages, wanted at most 2000000" in refused.message


async def test_large_objects_are_evaluated() -> None:
    async with serving() as live:
        for data in (_with_members(100_000), _with_objects(16, 5000)):
            assert (await live.unary(Request.FromString(data))).summary.success


@pytest.mark.parametrize("method", ["Evaluate", "EvaluateUnary", "ValidateSpecs"])
async def test_garbage_is_an_invalid_argument(method: str) -> None:
    async with serving() as live:
        refused = await refusal(live.raw(EVALUATION + method, b"\xff\xfe garbage \x00\x01"))
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "UNREADABLE_MESSAGE",
        )


@pytest.mark.parametrize(
    ("wanted", "reason", "field", "text"),
    [
        (request(), "INVALID_FIELD", "evaluators", "checks nothing must not pass"),
        (request(spec("contans")), "UNKNOWN_TYPE", "evaluators[0].type", 'did you mean "contains"'),
        (
            request(CONTAINS, spec("latency-budget", {"maxMs": "3"})),
            "INVALID_FIELD",
            "evaluators[1].config.maxMs",
            "got '3'",
        ),
        (
            request(spec("latency-budget", {"maxMs": 1, "max": 2})),
            "INVALID_FIELD",
            "evaluators[0].config.max",
            "unknown key",
        ),
        (
            request(spec("regex", {"pattern": "BK-[0-9"})),
            "INVALID_FIELD",
            "evaluators[0].config.pattern",
            "",
        ),
        (request(*[CONTAINS] * 101), "INVALID_FIELD", "evaluators", "got 101, wanted at most 100"),
        (
            request(spec("contains", {"text": "x" * 300_000})),
            "INVALID_FIELD",
            "evaluators[0].config",
            "at most 262144",
        ),
        (request(spec("response-length", negate=True)), "INVALID_FIELD", "evaluators[0].negate", "metric"),
        (
            request(spec("contains", {"text": "a"}, threshold=2)),
            "INVALID_FIELD",
            "evaluators[0].threshold",
            "",
        ),
        (
            request(spec("all-of", {"evaluators": [{"type": "contains", "config": {"tex": "a"}}]})),
            "INVALID_FIELD",
            "evaluators[0].config.evaluators[0].config.tex",
            "unknown key",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value else None,
)
def test_a_bad_request_names_the_field_and_what_is_wrong(
    wanted: Request, reason: str, field: str, text: str
) -> None:
    async def main() -> list[Refusal]:
        async with serving() as live:
            return [await refusal(live.unary(wanted)), await refusal(live.stream(wanted))]

    for refused in run(main()):
        assert refused.reason == reason
        assert refused.code is (
            grpc.StatusCode.NOT_FOUND if reason == "UNKNOWN_TYPE" else grpc.StatusCode.INVALID_ARGUMENT
        )
        assert field in refused.fields
        assert text in refused.message + " ".join(refused.descriptions)
        assert refused.size <= 4096


async def test_too_many_messages_are_refused_with_their_number_and_the_limit() -> None:
    async with serving() as live:
        wanted = request(CONTAINS)
        for _ in range(4999):
            wanted.context.messages.add(role="user", text="x")
        refused = await refusal(live.unary(wanted))
        assert refused.fields == ["context.messages"]
        assert (refused.info.metadata["size"], refused.info.metadata["limit"]) == ("5001", "5000")
        wanted.context.ClearField("messages")
        wanted.context.messages_json = json.dumps([{"role": "user", "content": "x"}] * 5001)
        assert (await refusal(live.unary(wanted))).fields == ["context.messages_json"]


async def test_a_message_that_is_too_large_is_refused_with_its_size_and_the_limit() -> None:
    async with serving() as live:
        refused = await refusal(live.unary(request(CONTAINS, answer="x" * (17 << 20))))
        assert (refused.code, refused.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "MESSAGE_TOO_LARGE",
        )
        assert refused.info.metadata["limit"] == str(16 << 20)
        assert (await refusal(live.unary(request(CONTAINS, answer="x" * (30 << 20))))).code is (
            grpc.StatusCode.RESOURCE_EXHAUSTED
        )


async def test_data_nested_to_the_limit_is_read_and_beyond_it_refused() -> None:
    def nested(levels: int) -> bytes:
        """A context whose metadata has that many levels, serialised by hand: deeper than a runtime holds."""
        raw = b""
        for _ in range(levels):
            value = b"\x2a" + _varint(len(raw)) + raw
            entry = b"\x0a\x01a\x12" + _varint(len(value)) + value
            raw = b"\x0a" + _varint(len(entry)) + entry
        context = request().context.SerializeToString() + b"\x4a" + _varint(len(raw)) + raw
        return b"\x12" + _varint(len(context)) + context + request(CONTAINS).SerializeToString()

    async with serving() as live:
        for method, wrap in (("Evaluate", bytes), ("EvaluateUnary", _wrapped)):
            await live.raw(EVALUATION + method, wrap(nested(31)))
            refused = await refusal(live.raw(EVALUATION + method, wrap(nested(33))))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "32 levels" in refused.message


def _wrapped(request_bytes: bytes) -> bytes:
    return b"\x0a" + _varint(len(request_bytes)) + request_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{", "not valid JSON"),
        ('{"role": "user"}', "wanted a list of messages"),
        ('[{"content": "x"}]', "role"),
        ('[{"role": "user", "content": NaN}]', "NaN"),
        ("[" * 40 + "]" * 40, ""),
    ],
)
async def test_bad_messages_json_is_refused_with_its_place(text: str, wanted: str) -> None:
    async with serving() as live:
        context = context_pb2.EvaluatorContext(messages_json=text)
        refused = await refusal(live.unary(Request(context=context, evaluators=[CONTAINS])))
        assert refused.fields[0].startswith("context.messages_json")
        assert wanted in refused.message


async def test_criteria_without_a_judge_are_refused_and_not_ignored() -> None:
    async with serving() as live:
        wanted = request(CONTAINS)
        wanted.context.scenario.success_criteria = "books a flight"
        if live.app.registry.get("llm-judge") is None:
            refused = await refusal(live.unary(wanted))
            assert refused.fields == ["context.scenario"]
        wanted.options.criteria_policy = context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
        assert (await live.unary(wanted)).summary.success


async def test_evaluators_and_messages_of_a_scenario_are_refused_and_not_passed_over() -> None:
    async with serving() as live:
        wanted = request(CONTAINS)
        wanted.context.scenario.evaluators.add(type="contains")
        refused = await refusal(live.unary(wanted))
        assert refused.fields == ["context.scenario.evaluators"]
        wanted = request(CONTAINS)
        wanted.context.scenario.messages.add(role="user", text="hello")
        refused = await refusal(live.unary(wanted))
        assert refused.fields == ["context.scenario.messages"]


async def test_auto_evaluators_run_on_every_call_unless_switched_off() -> None:
    async with serving(auto={"tool-call-count": {}}) as live:
        wanted = request(CONTAINS)
        assert list((await live.unary(wanted)).summary.metrics) == ["tool-call-count"]
        wanted.options.skip_auto_evaluators = True
        assert not (await live.unary(wanted)).summary.metrics
        assert (await refusal(live.unary(request()))).fields == ["evaluators"]


async def test_an_evaluator_of_the_call_replaces_the_auto_evaluator_of_its_type() -> None:
    async with serving(auto={"contains": {"text": "not in the answer"}, "tool-call-count": {}}) as live:
        done = await live.unary(request(spec("icontains", {"text": "hello"}, name="own")))
        assert [one.name for one in done.summary.results] == ["own", "tool-call-count"]
        done = await live.unary(request(spec("all-of", {"evaluators": [{"type": "is-json"}]})))
        assert [one.type for one in done.summary.results] == ["all-of", "contains", "tool-call-count"]


async def test_validate_specs_lists_everything_that_is_wrong_and_runs_nothing() -> None:
    async with serving() as live:
        wanted = evaluation_service_pb2.ValidateSpecsRequest(
            evaluators=[CONTAINS, spec("nope"), spec("latency-budget", {"maxMs": -1})]
        )
        data = await live.raw(EVALUATION + "ValidateSpecs", wanted.SerializeToString())
        found = evaluation_service_pb2.ValidateSpecsResponse.FromString(data).violations
        assert [(v.index, v.path, v.reason) for v in found] == [
            (1, "/type", "UNKNOWN_TYPE"),
            (2, "/config/maxMs", "INVALID_CONFIG"),
        ]


async def test_plans_follow_the_registry() -> None:
    async with serving() as live:
        wanted = request(spec("slow"))
        assert (await refusal(live.unary(wanted))).reason == "UNKNOWN_TYPE"
        live.app.registry.register(SLOW, Origin.PLUGIN)
        assert (await live.unary(wanted)).summary.success
        live.app.registry.remove("slow")
        assert (await refusal(live.unary(wanted))).reason == "UNKNOWN_TYPE"


async def test_only_the_labels_that_the_operator_picked_are_counted() -> None:
    async with serving(labels=["suite"]) as live:
        await live.unary(request(CONTAINS, labels={"suite": "checkout", "user": "42"}))
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_evaluations_total{rpc="EvaluateUnary",suite="checkout",verdict="passed"} 1.0' in text
        assert "user" not in next(line for line in text.splitlines() if "checkout" in line)


async def test_values_are_counted_in_the_unit_of_each_use() -> None:
    words = spec("response-length", {"unit": "words"})
    async with serving() as live:
        await live.unary(request(words, spec("response-length"), answer="two words"))
        text = live.app.telemetry.exposition("")[0].decode()
        assert 'evald_metric_value_words_sum{evaluator="response-length"} 2.0' in text
        assert 'evald_metric_value_characters_sum{evaluator="response-length"} 9.0' in text
        assert 'evald_metric_last_value{evaluator="response-length",unit="words"} 2.0' in text
