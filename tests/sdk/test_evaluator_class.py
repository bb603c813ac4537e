"""What the catalogue says of a class evaluator are keywords of the class, or class attributes."""

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
