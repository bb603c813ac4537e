"""What the catalogue says of a class evaluator are keywords of the class, or class attributes."""

from collections.abc import Callable
from typing import Any

import pytest

import evald
from evald.evaluator import InvalidConfig, check_config


class Shouts(evald.Evaluator, type="acme.shouts", kind=evald.ASSERTION, aliases={"acme.loud": {}}):
    """The answer is in capitals."""

    def evaluate(self, ctx: evald.EvaluatorContext) -> evald.Result:
        return evald.passed("loud") if (ctx.answer or "").isupper() else evald.failed("quiet")


def test_keywords_are_what_the_definition_says() -> None:
    definition = Shouts.definition()
    assert (definition.type, definition.kind, definition.aliases) == (
        "acme.shouts",
        evald.ASSERTION,
        {"acme.loud": {}},
    )
    assert definition.version == "1.0.0"


def test_a_subclass_inherits_what_it_does_not_say() -> None:
    class Whispers(Shouts, type="acme.whispers", aliases={}):
        pass

    definition = Whispers.definition()
    assert (definition.type, definition.kind, definition.aliases) == (
        "acme.whispers",
        evald.ASSERTION,
        {},
    )
    assert Shouts.definition().type == "acme.shouts"


def test_class_attributes_say_the_same() -> None:
    class Written(evald.Evaluator):
        type = "acme.written"
        kind = evald.METRIC
        deterministic = False

    definition = Written.definition()
    assert (definition.type, definition.kind, definition.deterministic) == (
        "acme.written",
        evald.METRIC,
        False,
    )


def test_an_unknown_keyword_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TypeError, match="class Wrong: unknown keyword 'typ'; wanted one of type, kind"):

        class Wrong(evald.Evaluator, typ="acme.wrong"):
            pass


@pytest.mark.parametrize(
    "limits",
    [
        {"$ref": "#/definitions/limits"},
        {"allOf": [True, {"$ref": "#/definitions/limits"}]},
        {"$ref": "#/$defs/missing", "additionalProperties": False},
        {"$ref": "#/definitions/limits", "anyOf": [{"$ref": "#"}]},
    ],
    ids=["definitions", "a bool beside it", "a reference to nothing", "itself"],
)
def test_an_unknown_key_is_refused_whatever_the_schema_looks_like(limits: dict[str, Any]) -> None:
    schema = {
        "definitions": {"limits": {"properties": {"max": {}}, "additionalProperties": False}},
        "properties": {"limits": limits},
    }
    with pytest.raises(InvalidConfig):
        check_config(schema, {"limits": {"mx": 1}})


def _check(_ctx: evald.EvaluatorContext) -> bool:
    return True


class _NoType(evald.Evaluator):
    pass


class _NoKind(evald.Evaluator, type="acme.none"):
    pass


class _TextKind(evald.Evaluator, type="acme.text", kind="assertion"):  # type: ignore[arg-type]
    pass


_GOOD: dict[str, Any] = {"type": "acme.good", "kind": evald.ASSERTION, "evaluate": _check}

# What authors write by mistake, and what says so.
_MISTAKES: list[Any] = [
    pytest.param(_NoType.definition, r"class _NoType has no type; wanted .*type=", id="no type"),
    pytest.param(_NoKind.definition, r"class _NoKind has no kind; wanted .*kind=", id="no kind"),
    pytest.param(_TextKind.definition, r"acme\.text: kind: got 'assertion'", id="kind of a class"),
    pytest.param(lambda: evald.assertion(_check), r"put @evald\.assertion\(", id="no parentheses"),  # type: ignore[arg-type]
    *(
        pytest.param(lambda more=more: evald.define_evaluator(**_GOOD | more), text, id=name)
        for name, more, text in (
            ("type", {"type": None}, "type: got None, wanted lower case letters"),
            ("kind", {"kind": "metric"}, r"acme\.good: kind: got 'metric' \(str\); wanted evald\.ASSERTION"),
            ("no function", {"evaluate": 3}, r"acme\.good: evaluate: got 3 \(int\); wanted a function"),
            (
                "no argument",
                {"evaluate": lambda: True},
                "called with one argument, the context, but too many",
            ),
            ("two arguments", {"evaluate": lambda _a, _b: True}, "but missing a required argument"),
            ("schema", {"config_schema": "{}"}, r"acme\.good: config_schema: got '{}' \(str\)"),
        )
    ),
    pytest.param(lambda: evald.errored("OOPS", "no"), "code: got 'OOPS', wanted one of", id="error code"),
]


@pytest.mark.parametrize(("define", "says"), _MISTAKES)
def test_a_mistake_is_told_where_it_is_made(define: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError, KeyError), match=says):
        define()
