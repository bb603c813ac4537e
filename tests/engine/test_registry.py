"""Properties of the registry."""

import pytest

from evald_server.engine.registry import DuplicateType, Origin, Registry, RevisionExpired, UnknownType

from .scripted import definition


def make(*names: str, origin: Origin = Origin.BUILT_IN) -> Registry:
    registry = Registry()
    for name in names:
        registry.register(definition(name, lambda _ctx: None), origin)
    return registry


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (
            Origin.BUILT_IN,
            'Evaluator type "x" is already registered (built-in). '
            "Custom evaluators cannot override built-in types.",
        ),
        (
            Origin.PLUGIN,
            'Evaluator type "x" is already registered (custom). '
            "Custom evaluators cannot override existing types.",
        ),
    ],
)
def test_a_duplicate_type_is_refused(origin: Origin, message: str) -> None:
    registry = make("x", origin=origin)
    with pytest.raises(DuplicateType) as refused:
        registry.register(definition("x", lambda _ctx: None), Origin.PLUGIN)
    assert str(refused.value) == message


def test_an_alias_cannot_shadow_a_type() -> None:
    registry = make("x")
    with pytest.raises(DuplicateType):
        registry.register(definition("y", lambda _ctx: None, aliases={"x": {}}), Origin.PLUGIN)


def test_an_unknown_type_names_the_nearest_and_all_known() -> None:
    with pytest.raises(UnknownType, match='did you mean "latency-budget"'):
        make("latency-budget", "regex").find("latency-budgt")


def test_underscores_stand_for_hyphens() -> None:
    assert make("llm-judge").find("llm_judge").entry.definition.type == "llm-judge"


def test_an_alias_brings_the_config_that_it_implies() -> None:
    registry = make()
    registry.register(
        definition("contains", lambda _ctx: None, aliases={"icontains": {"ignoreCase": True}}),
        Origin.BUILT_IN,
    )
    assert registry.find("icontains").implied == {"ignoreCase": True}


def test_another_version_than_the_offered_one_is_unknown() -> None:
    with pytest.raises(UnknownType, match=r'has no version "9", only "1\.0\.0"'):
        make("x").find("x", "9")


def test_changes_are_told_in_order_with_their_revision() -> None:
    registry = make("a")
    registry.register(definition("b", lambda _ctx: None), Origin.PLUGIN)
    registry.remove("a")
    assert [(c.revision, c.type, c.entry is None) for c in registry.changes_after(1)] == [
        (2, "b", False),
        (3, "a", True),
    ]


def test_revisions_of_the_future_and_of_long_ago_are_gone() -> None:
    registry = make("a")
    with pytest.raises(RevisionExpired):
        registry.changes_after(5)
    for _ in range(600):
        registry.register(definition("b", lambda _ctx: None), Origin.PLUGIN)
        registry.remove("b")
    with pytest.raises(RevisionExpired):
        registry.changes_after(1)
