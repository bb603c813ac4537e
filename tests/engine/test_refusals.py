"""What is refused says where, and what was probably meant."""

import asyncio
import time
from typing import Any

import pytest

from evald.v1 import context_pb2, evaluator_pb2
from evald_server.engine.contexts import InvalidContext, criteria_of
from evald_server.engine.plan import Violation
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.evaluators import BUILT_INS


def _violations(type_name: str, config: dict[str, Any] | None = None, **fields: Any) -> list[Violation]:
    registry = Registry()
    for one in BUILT_INS.values():
        registry.register(one.definition(), Origin.BUILT_IN)
    spec = evaluator_pb2.EvaluatorSpec(type=type_name, **fields)
    spec.config.update(config or {})
    return asyncio.run(Planner(registry).violations([spec]))


@pytest.mark.parametrize(
    ("type_name", "config", "fields", "path", "reason", "message"),
    [
        ("regexp", {}, {}, "/type", "UNKNOWN_TYPE", 'did you mean "regex"?'),
        ("is-json", {}, {"version": "2.0.0"}, "/version", "UNKNOWN_VERSION", 'has no version "2.0.0"'),
        ("regex", {"patern": "a"}, {}, "/config/patern", "INVALID_CONFIG", 'did you mean "pattern"?'),
        ("token-budget", {"max_token": 1}, {}, "/config/max_token", "INVALID_CONFIG", '"maxTokens"?'),
        ("is-json", {"zzz": 1}, {}, "/config/zzz", "INVALID_CONFIG", "wanted one of message, extract"),
        ("turn-count", {"zzz": 1}, {}, "/config/zzz", "INVALID_CONFIG", "wanted none"),
        (
            "trajectory",
            {"expected": ["a", {"name": "b", "maxDuration": 1}]},
            {},
            "/config/expected/1/maxDuration",
            "INVALID_CONFIG",
            'did you mean "maxDurationMs"?',
        ),
        (
            "numeric",
            {"tolerance": float("nan")},
            {},
            "/config/tolerance",
            "INVALID_CONFIG",
            "nan is not JSON",
        ),
        (
            "is-json",
            {},
            {"weight": 1e308},
            "/weight",
            "OUT_OF_RANGE",
            "wanted 0, or a number from 1e-9 to 1e9",
        ),
        ("is-json", {}, {"weight": 1e-10}, "/weight", "OUT_OF_RANGE", "got 1e-10"),
        (
            "field-accuracy",
            {"fields": [{"path": "a", "weight": 1e-10}]},
            {},
            "/config/fields/0/weight",
            "INVALID_CONFIG",
            "wanted 0, or a number from 1e-9 to 1e9",
        ),
        (
            "json-match",
            {"expected": {"a": [1, {"b": float("inf")}]}},
            {},
            "/config/expected/a/1/b",
            "INVALID_CONFIG",
            "inf is not JSON",
        ),
    ],
    ids=str,
)
def test_a_refusal_names_the_place_and_the_nearest_name(
    type_name: str, config: dict[str, Any], fields: dict[str, Any], path: str, reason: str, message: str
) -> None:
    found = _violations(type_name, config, **fields)
    violation = next(each for each in found if each.path == path)
    assert violation.reason == reason
    assert message in violation.message


@pytest.mark.parametrize(
    ("type_name", "config"),
    [
        ("x" * 10_000_000, {}),
        ("is-json", {"x" * 250_000: 1}),
        ("is-json", {f"k{n}": 1 for n in range(20_000)}),
        ("exact-match", {"ignoreCase": "x" * 250_000}),
        ("contains-all", {"mode": "x" * 250_000}),
    ],
    ids=["type", "key", "keys", "value", "implied"],
)
def test_refusing_what_is_huge_takes_no_time_and_says_little(type_name: str, config: dict[str, Any]) -> None:
    began = time.process_time()
    found = _violations(type_name, config)
    assert time.process_time() - began < 2
    assert found
    assert sum(len(each.path) + len(each.message) for each in found) < 10_000


@pytest.mark.parametrize(
    ("fields", "got"),
    [
        ({"evaluators": [{"type": "is-json"}]}, "got 1,"),
        ({"messages": [{"role": "user"}, {"role": "user"}]}, "got 2,"),
        ({"persona_ids": ["p"]}, "got 1,"),
        ({"criteria_policy": "CRITERIA_POLICY_BOTH"}, "got 1,"),
        ({"on_assertion_failure": 2}, "got 2,"),
        ({"goal": "A slot"}, "got 6 characters"),
    ],
    ids=str,
)
def test_a_call_refuses_what_only_runs_read_of_a_scenario(fields: dict[str, Any], got: str) -> None:
    pb = context_pb2.EvaluatorContext(scenario=context_pb2.Scenario(name="A", **fields))
    with pytest.raises(InvalidContext, match=got) as caught:
        criteria_of(pb)
    assert caught.value.metadata["field"] == f"context.scenario.{next(iter(fields))}"
