"""What authors of evaluators use to try them out."""

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

import evald
from evald import Evaluator, EvaluatorContext, Result, Turn, Verdict, define_evaluator, testing
from evald.evaluator import InvalidConfig
from evald_server import testing as server_testing


class Longer(Evaluator, type="acme.longer", kind=evald.ASSERTION):
    """The answer has more than `characters` characters."""

    characters: int

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        length = len(ctx.answer or "")
        return evald.passed("long", value=length) if length > self.characters else evald.failed("short")


async def wait_and_count(ctx: EvaluatorContext) -> float:
    await asyncio.sleep(0)
    return float(len(ctx.answer or ""))


counting = define_evaluator(type="acme.counting", kind=evald.METRIC, evaluate=wait_and_count)
echo = define_evaluator(
    type="acme.echo",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: (True, str(ctx.config["word"])),
    config_schema={"type": "object", "properties": {"word": {"type": "string"}}},
)
broken = define_evaluator(
    type="acme.broken", kind=evald.METRIC, evaluate=lambda _: evald.measured(float("nan"), "nothing")
)

TURNS = {
    "a turn": Turn(response="hello"),
    "messages": [{"role": "assistant", "content": "hello"}],
    "JSON text": '[{"role": "assistant", "content": "hello"}]',
    "a context": testing.context(Turn(response="hello")),
}


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS.keys())
def test_an_evaluator_runs_on_any_turn(turn: Any) -> None:
    assert testing.evaluate(Longer, {"characters": 4}, turn).verdict is Verdict.PASSED
    assert testing.evaluate(Longer, {"characters": 5}, turn).verdict is Verdict.FAILED
    assert testing.evaluate(Longer, {"characters": 4}, turn).passed
    assert not testing.evaluate(Longer, {"characters": 5}, turn).passed
    assert testing.evaluate(counting, None, turn).value == 5


def test_a_function_finds_its_config() -> None:
    assert testing.evaluate(echo, {"word": "w"}).reason == "w"
    assert testing.context(Turn(response="x"), {"a": 1}).config == {"a": 1}


def test_a_config_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="characters"):
        testing.evaluate(Longer, {"characters": "many"}, [])


def test_a_result_that_breaks_the_contract_is_refused() -> None:
    with pytest.raises(ValueError, match=r"acme\.broken breaks the contract: value"):
        testing.evaluate(broken)


def test_a_server_serves_the_evaluators_it_is_given_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with server_testing.server(Longer, counting, max_messages=2) as server, server.client() as client:
        evaluation = client.evaluate(
            Turn(response="hello"), [{"type": "acme.longer", "config": {"characters": 1}}]
        )
        assert evaluation.passed
        assert client.evaluator_type("acme.counting").origin == "plugin"
        assert server.http_address is None
        with pytest.raises(evald.errors.InvalidRequest):
            client.evaluate(Turn([{"role": "user"}] * 3), ["is-json"])
    assert not [thread for thread in threading.enumerate() if thread.name == "evald-server"]
    assert threading.active_count() <= before + 2  # gRPC keeps its own


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        server_testing.server() as server,
        pytest.raises(Exception, match="is not available"),
        server_testing.server(listen=server.address),
    ):
        pass
    with pytest.raises(ValueError, match="max_messages"), server_testing.server(max_messages=0):
        pass


async def test_a_server_runs_in_the_event_loop_of_an_async_test() -> None:
    async with server_testing.async_server(counting) as server, server.async_client() as client:
        evaluation = await client.evaluate(Turn(response="hello"), ["acme.counting"])
        assert evaluation.metrics == {"acme.counting": 5}


def polite(ctx: EvaluatorContext) -> bool:
    """The answer says
    please or thank you.

    Whatever else it says.
    """
    return "please" in (ctx.answer or "")


async def polite_later(ctx: EvaluatorContext) -> bool:
    """The answer says please or thank you."""

    return polite(ctx)


class Polite(Evaluator, type="acme.polite", kind=evald.ASSERTION):
    """The answer says please or thank you."""

    def evaluate(self, ctx: EvaluatorContext) -> Any:
        return polite(ctx)


@pytest.mark.parametrize(
    "evaluator",
    [
        evald.assertion("acme.polite")(polite),
        evald.assertion("acme.polite")(polite_later),
        evald.assertion("acme.polite", description="The answer says please or thank you.")(
            lambda ctx: "please" in (ctx.answer or "")
        ),
        Polite,
    ],
    ids=["function", "async function", "lambda with a description", "class"],
)
def test_the_reason_of_a_bare_bool_is_what_the_evaluator_says_of_itself(evaluator: Any) -> None:
    met = testing.evaluate(evaluator, None, Turn(response="please"))
    not_met = testing.evaluate(evaluator, None, Turn(response="no"))
    assert (met.verdict, met.reason) == (Verdict.PASSED, "The answer says please or thank you.")
    assert (not_met.verdict, not_met.reason) == (
        Verdict.FAILED,
        "Not met: The answer says please or thank you.",
    )


def test_a_bare_bool_of_an_evaluator_that_says_nothing_of_itself_is_just_that() -> None:
    silent = evald.assertion("acme.silent")(lambda ctx: ctx.answer == "a")
    assert testing.evaluate(silent, None, Turn(response="a")).reason == "Passed"
    assert testing.evaluate(silent, None, Turn(response="b")).reason == "Failed"


class Address(BaseModel):
    model_config = ConfigDict(extra="forbid")

    street: str = ""


class Delivered(Evaluator, type="acme.delivered", kind=evald.ASSERTION):
    """The parcel came."""

    max_days: int = 3
    to: Address | list[Address] | None = None

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        return evald.passed("it did")


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({"maxDay": 1}, "/maxDay", 'unknown key; did you mean "maxDays"?'),
        ({"max_dais": 1}, "/max_dais", 'unknown key; did you mean "maxDays"?'),
        ({"frobnicate": 1}, "/frobnicate", "unknown key; wanted one of maxDays, to"),
        ({"to": {"stret": "x"}}, "/to/stret", 'unknown key; did you mean "street"?'),
        ({"to": [{}, {"stret": "x"}]}, "/to/1/stret", 'unknown key; did you mean "street"?'),
    ],
)
def test_a_mistyped_key_of_a_config_names_the_one_that_was_meant(
    config: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        testing.evaluate(Delivered, config, Turn(response="x"))
    assert (path, message) in refused.value.problems


PLACED = evald.define_evaluator(
    type="acme.placed",
    kind=evald.ASSERTION,
    evaluate=lambda ctx: True,
    config_schema={
        "type": "object",
        "properties": {"maxDays": {"type": "integer"}, "to": {"$ref": "#/$defs/Address"}},
        "required": ["maxDays"],
        "additionalProperties": False,
        "$defs": {
            "Address": {
                "type": "object",
                "properties": {"street": {"type": "string"}},
                "additionalProperties": False,
            }
        },
    },
)


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({"maxDays": "3"}, "/maxDays", '"3" is not of type "integer"'),
        ({}, "", '"maxDays" is a required property'),
        ({"maxDays": 1, "maxDay": 1}, "/maxDay", 'unknown key; did you mean "maxDays"?'),
        ({"maxDays": 1, "x": 1}, "/x", "unknown key; wanted one of maxDays, to"),
        ({"maxDays": 1, "to": {"stret": ""}}, "/to/stret", 'unknown key; did you mean "street"?'),
        ({"maxDays": object()}, "", "cannot be checked: Unsupported type: 'object'"),
    ],
)
def test_the_config_of_a_function_is_held_against_its_schema(
    config: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        testing.evaluate(PLACED, config, Turn(response="x"))
    assert refused.value.problems == [(path, message)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strng"}, "cannot be checked: .*strng"),
        ({"$ref": "https://example.org/schema"}, "never followed"),
        ({"$ref": "file:///etc/passwd"}, "never followed"),
    ],
)
def test_a_schema_that_cannot_be_used_refuses_every_config(schema: dict[str, Any], message: str) -> None:
    evaluator = evald.define_evaluator(
        type="acme.odd", kind=evald.ASSERTION, evaluate=lambda ctx: True, config_schema=schema
    )
    with pytest.raises(InvalidConfig, match=message):
        testing.evaluate(evaluator, {}, Turn(response="x"))
