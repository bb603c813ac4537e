"""What the catalogue says of a class evaluator are keywords of the class, or class attributes."""

import pytest

import evald


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
