"""Every result says what made it: the same thing has the same digest on every way, anything else another one."""

import logging
import re
from typing import Any

import pytest
from pydantic import SecretStr, model_serializer

import evald
from evald.evaluator import Evaluator, assertion
from evald.result import Result, passed
from evald.v1 import evaluation_service_pb2, evaluator_pb2, result_pb2

from ..batch.batches import CONFIGS
from ..monitoring.scrape import samples
from ..remote.scripted import answers, listening, register
from .live import Live, request, serving, spec

SECRET = "sk-proj-4711"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Politeness(Evaluator, type="acme.polite", kind=evald.ASSERTION):
    """A plugin with a class for its config."""

    min_words: float = 2
    word: str = "please"

    def evaluate(self, ctx: evald.EvaluatorContext) -> Result:
        return passed(f"at least {self.min_words} words")


class Opaque(Evaluator, type="acme.opaque", kind=evald.ASSERTION):
    """One whose config cannot be written down."""

    key: str = ""

    @model_serializer
    def _no(self) -> Any:
        raise SystemExit(1)

    def evaluate(self, ctx: evald.EvaluatorContext) -> Result:
        return passed("fine")


@assertion("acme.word", config_schema={"type": "object", "properties": {"word": {"type": "string"}, "n": {}}})
def word(ctx: evald.EvaluatorContext) -> bool:
    """A plugin that is a function."""
    return True


PLUGINS = (Politeness.definition(), Opaque.definition(), word)


async def provenances(live: Live, *specs: evaluator_pb2.EvaluatorSpec) -> list[result_pb2.Provenance]:
    results = (await live.unary(request(*specs))).summary.results
    return [result.provenance for result in results]


async def digests(live: Live, *specs: evaluator_pb2.EvaluatorSpec) -> list[str]:
    found = [provenance.config_sha256 for provenance in await provenances(live, *specs)]
    assert all(_DIGEST.fullmatch(digest) for digest in found)
    return found


def children(*specs: Any, **more: Any) -> evaluator_pb2.EvaluatorSpec:
    return spec("all-of", {"evaluators": list(specs)}, **more)


HELLO = {"type": "contains", "config": {"text": "hello"}}

SAME: dict[str, list[evaluator_pb2.EvaluatorSpec]] = {
    "camelCase and snake_case": [
        spec("latency-budget", {"maxMs": 5}),
        spec("latency-budget", {"max_ms": 5}),
        spec("latency_budget", {"max_ms": 5.0}),
    ],
    "defaults": [spec("response-length"), spec("response-length", {"unit": "characters"})],
    "an alias that implies a key": [
        spec("assert-set", {"evaluators": [HELLO], "threshold": 0.5}),
        spec("at-least", {"evaluators": [HELLO], "threshold": 0.5, "measure": "score"}),
    ],
    "what is not the config": [
        spec("contains", {"text": "hello"}, name="a"),
        spec("contains", {"text": "hello"}, weight=3, required=True),
        spec("contains", {"text": "hello"}, enforcement=evaluator_pb2.ENFORCEMENT_SHADOW),
    ],
    "children": [
        children(HELLO),
        children({"type": "contains", "name": "x", "config": {"text": "hello", "ignore_case": False}}),
    ],
    "a plugin's class": [
        spec("acme.polite"),
        spec("acme.polite", {"min_words": 2}),
        spec("acme.polite", {"minWords": 2, "word": "please"}),
    ],
    "order of keys": [spec("acme.word", {"word": "a", "n": 1}), spec("acme.word", {"n": 1, "word": "a"})],
}


@pytest.mark.parametrize("name", SAME)
async def test_the_digest_of_a_config_does_not_depend_on_how_it_is_spelled(name: str) -> None:
    async with serving(PLUGINS) as live:
        assert len(set(await digests(live, *SAME[name]))) == 1


async def test_other_configs_have_other_digests() -> None:
    different = [
        *(spec(name, config) for name, config in CONFIGS.items() if config),
        spec("latency-budget", {"maxMs": 6}),
        spec("latency-budget", {"maxMs": 6}, negate=True),
        spec("latency-budget", {"maxMs": 6}, threshold=0.5),
        spec("latency-budget", {"maxMs": 6}, threshold=0.6),
        children(HELLO),
        children(HELLO, HELLO),
        children({**HELLO, "negate": True}),
        children({**HELLO, "weight": 2}),
        children({**HELLO, "threshold": 0.5}),
        children({**HELLO, "config": {"text": "bye"}}),
        children({"type": "starts-with", "config": {"text": "hello"}}),
        children({"type": "all-of", "config": {"evaluators": [HELLO]}}),
        spec("acme.polite"),
        spec("acme.polite", {"word": "thanks"}),
        spec("acme.opaque", {"key": "a"}),
        spec("acme.opaque", {"key": "b"}),
        spec("acme.word", {"word": "a"}),
        spec("acme.word", {"word": "b"}),
    ]
    async with serving(PLUGINS) as live:
        found = await digests(live, *different)
    assert len(set(found)) == len(different)


async def test_it_is_the_same_on_every_way() -> None:
    specs = [spec("contains", {"text": "hello"}), spec("tool-call-count"), children(HELLO)]
    frame = evaluation_service_pb2.EvaluateSessionRequest()
    frame.open.evaluators.extend(specs)
    turn = evaluation_service_pb2.EvaluateSessionRequest()
    turn.turn.new_messages.add(role="assistant", text="hello")
    message = evaluation_service_pb2.EvaluateBatchRequest()
    message.open.evaluators.extend(specs)
    message.items.add(item_id="a", context=request().context)
    async with serving() as live:
        unary = await provenances(live, *specs)
        ways = [
            [result for event in await live.stream(request(*specs)) for result in event.results],
            [result for answer in await live.session([frame, turn]) for result in answer.event.results],
            [
                result
                for answer in await live.batch([message])
                for item in answer.answers
                for result in item.summary.results
            ],
        ]
    for results in ways:
        assert [result.provenance for result in results] == unary


async def test_results_that_nobody_computed_have_it_too() -> None:
    never = spec("contains", {"text": "hello"}, turn_policy=evaluator_pb2.TURN_POLICY_FINAL_TURN)
    broken = spec("contains", {"text": "absent"})
    async with serving() as live:
        made = request(broken, never, never)
        made.options.fail_fast = True
        results = (await live.unary(made)).summary.results
    assert [result.verdict for result in results] == [2, 4, 4]
    assert all(result.provenance.config_sha256 for result in results)
    assert results[1].provenance == results[2].provenance


async def test_brief_answers_leave_it_out_of_what_passed() -> None:
    message = evaluation_service_pb2.EvaluateBatchRequest()
    message.open.brief = True
    message.open.evaluators.append(spec("contains", {"text": "hello"}))
    for answer in ("hello", "bye"):
        message.items.add(item_id=answer, context=request(answer=answer).context)
    async with serving() as live:
        found = {
            item.item_id: item.summary.results[0]
            for response in await live.batch([message])
            for item in response.answers
        }
    assert not found["hello"].HasField("provenance")
    assert found["bye"].provenance.config_sha256


async def test_the_config_of_a_remote_evaluator_counts_as_it_was_sent() -> None:
    async with (
        serving(remote_allowed=["127.0.0.1/32"]) as live,
        listening("acme.word", behave=answers(verdict=1)) as plugin,
    ):
        await register(live, plugin)
        same, also, other = [
            spec("acme.word", {"word": "a"}),
            spec("acme.word", {"word": "a"}, name="again"),
            spec("acme.word", {"word": "b"}),
        ]
        found = await digests(live, same, also, other)
    assert found[0] == found[1] != found[2]


async def test_it_holds_digests_and_no_value_of_a_config(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does the digest get into logs or metrics."""
    caplog.set_level(logging.DEBUG)
    secret = [
        spec("contains", {"text": SECRET}),
        spec("acme.word", {"word": SECRET}),
        spec("acme.opaque", {"key": SECRET}),
        children({"type": "contains", "name": SECRET, "config": {"text": SECRET}}),
    ]
    async with serving(PLUGINS, judge_api_key=SecretStr(SECRET), log_calls=True) as live:
        found = await provenances(live, *secret)
        counted = str([(sample.name, sample.labels) for sample in samples(live.app.telemetry)])
    for provenance in found:
        assert [field.name for field, _ in provenance.ListFields()] == ["config_sha256"]
        assert SECRET not in str(provenance)
        assert provenance.config_sha256 not in caplog.text
        assert provenance.config_sha256 not in counted
