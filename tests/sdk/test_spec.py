"""Evaluators and options may be written in every usual way, and a mistake is named."""

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from evald import InvalidInput, Options, Spec
from evald.convert.spec import fill_options, fill_specs, read_spec, spec_to_pb
from evald.spec import specs
from evald.v1 import evaluation_service_pb2

SPECS: dict[str, tuple[Any, Spec]] = {
    "a type name": ("is-json", Spec("is-json")),
    "a spec": (Spec("is-json"), Spec("is-json")),
    "camelCase": (
        {"type": "regex", "config": {"pattern": "x"}, "timeoutMs": 1500, "onError": "failOpen"},
        Spec("regex", {"pattern": "x"}, timeout_seconds=1.5, on_error="fail_open"),
    ),
    "snake_case": (
        {"type": "regex", "timeout_seconds": 2, "on_error": "fail_closed", "when": "final", "shadow": True},
        Spec("regex", timeout_seconds=2, on_error="fail_closed", when="final", shadow=True),
    ),
    "kebab-case values": ({"type": "x", "when": "every-turn"}, Spec("x")),
    "seed 002's onlyFinal": ({"type": "x", "onlyFinal": True}, Spec("x", when="final")),
    "everything": (
        {
            "type": "x",
            "name": "n",
            "version": "1",
            "weight": 0,
            "required": True,
            "threshold": 0,
            "negate": True,
        },
        Spec("x", name="n", version="1", weight=0, required=True, threshold=0, negate=True),
    ),
    "the contract's own names": (
        {
            "type": "x",
            "timeout": "1.5s",
            "turnPolicy": "TURN_POLICY_FINAL_TURN",
            "errorPolicy": "ERROR_POLICY_FAIL_OPEN",
            "enforcement": "ENFORCEMENT_SHADOW",
        },
        Spec("x", timeout_seconds=1.5, when="final", on_error="fail_open", shadow=True),
    ),
    "null is absent": ({"type": "x", "weight": None, "config": None}, Spec("x")),
}


@pytest.mark.parametrize(("data", "expected"), SPECS.values(), ids=SPECS.keys())
def test_a_spec_is_understood(data: Any, expected: Spec) -> None:
    assert Spec.from_dict(data) == expected


@pytest.mark.parametrize("expected", [expected for _, expected in SPECS.values()], ids=SPECS.keys())
def test_a_spec_survives_the_way_to_the_server_and_json(expected: Spec) -> None:
    assert read_spec(spec_to_pb(expected)) == expected
    assert Spec.from_dict(expected.to_dict()) == expected


def test_an_explicit_zero_is_sent_and_an_absent_number_is_not() -> None:
    assert MessageToDict(spec_to_pb(Spec("x", weight=0, threshold=0))) == {
        "type": "x",
        "weight": 0,
        "threshold": 0,
    }
    assert MessageToDict(spec_to_pb(Spec("x"))) == {"type": "x"}


REFUSED: dict[str, tuple[Any, str, str, str]] = {
    "no type": ({"config": {}}, ".type", "missing", "type name"),
    "empty type": ({"type": ""}, ".type", "missing", "type name"),
    "a number": (3, "", "got 3", "type name"),
    "a config key beside the config": ({"type": "x", "pattern": "y"}, ".pattern", "unknown key", "config"),
    "a mistyped key": ({"type": "x", "wieght": 1}, ".wieght", "unknown key", "'weight'"),
    "config is text": ({"type": "x", "config": "y"}, ".config", "got 'y'", "an object"),
    "NaN in the config": (
        {"type": "x", "config": {"a": [float("nan")]}},
        ".config.a[0]",
        "got nan",
        "finite",
    ),
    "an expected number that no double is": (
        {"type": "numeric", "config": {"expected": 2**53 + 1}},
        ".config.expected",
        "got 9007199254740993 (int), which a double does not hold",
        "fewer digits, or text",
    ),
    "one of a combinator": (
        {"type": "x", "config": {"evaluators": [{"config": {"expected": {"a": [2**63 - 1]}}}]}},
        ".config.evaluators[0].config.expected.a[0]",
        "got 9223372036854775807",
        "text",
    ),
    "negative weight": ({"type": "x", "weight": -1}, ".weight", "got -1", "0, or a number from 1e-9 to 1e9"),
    "huge weight": (
        {"type": "x", "weight": 1e308},
        ".weight",
        "got 1e+308",
        "0, or a number from 1e-9 to 1e9",
    ),
    "required is text": ({"type": "x", "required": "yes"}, ".required", "got 'yes'", "true or false"),
    "unknown when": ({"type": "x", "when": "never"}, ".when", "got 'never'", "'every_turn' or 'final'"),
    "timeout twice": (
        {"type": "x", "timeoutMs": 1, "timeoutSeconds": 1},
        ".timeout_ms",
        "timeout_seconds is given as well",
        "one of",
    ),
    "timeout without unit": ({"type": "x", "timeout": "1m"}, ".timeout_seconds", "got '1m'", "seconds"),
}


@pytest.mark.parametrize(("data", "path", "got", "wanted"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_spec_is_refused_with_its_place(data: Any, path: str, got: str, wanted: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        fill_specs(["is-json", data], evaluation_service_pb2.EvaluateRequest().evaluators)
    assert refused.value.path == f"evaluators[1]{path}"
    assert got in refused.value.got
    assert wanted in refused.value.wanted


@pytest.mark.parametrize("evaluator", ["is-json", {"type": "is-json"}, Spec("is-json")], ids=str)
def test_one_evaluator_needs_no_list(evaluator: Any) -> None:
    assert specs(evaluator) == specs([evaluator])


def test_what_is_no_evaluator_is_refused() -> None:
    unknown: Any = 3
    with pytest.raises(InvalidInput, match=r"evaluators: .*wanted a list"):
        specs(unknown)


OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (None, {}),
    "defaults": (Options(), {}),
    "camelCase": (
        {"failFast": True, "maxConcurrency": 2, "skipAutoEvaluators": True, "timeoutMs": 500},
        {"failFast": True, "maxConcurrency": 2, "skipAutoEvaluators": True, "timeout": "0.500s"},
    ),
    "snake_case": (
        {"aggregation": "weighted_mean", "threshold": 0, "skip_cache": True, "include_progress": True},
        {
            "aggregation": "AGGREGATION_POLICY_WEIGHTED_MEAN",
            "threshold": 0,
            "skipCache": True,
            "includeProgress": True,
        },
    ),
    "object": (
        Options(criteria_policy="evaluators_only", timeout_seconds=2),
        {"criteriaPolicy": "CRITERIA_POLICY_EVALUATORS_ONLY", "timeout": "2s"},
    ),
}


@pytest.mark.parametrize(("options", "expected"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_are_understood(options: Any, expected: dict[str, Any]) -> None:
    pb = evaluation_service_pb2.EvaluateOptions()
    fill_options(options, pb)
    assert MessageToDict(pb) == expected
    if isinstance(options, Options):
        assert Options.from_dict(options.to_dict()) == options


BAD_OPTIONS: dict[str, tuple[Any, str]] = {
    "mistyped": ({"fail_fats": True}, r"options.fail_fats: unknown key; wanted 'fail_fast'"),
    "unknown policy": ({"aggregation": "max"}, "options.aggregation: .*'all_must_pass' or 'weighted_mean'"),
    "too many": ({"max_concurrency": 1 << 31}, "options.max_concurrency: got 2147483648"),
    "threshold alone": (
        {"threshold": 0.5},
        "options.threshold: got 0.5 .*all_must_pass.*wanted aggregation 'weighted_mean'",
    ),
    "threshold 0 alone": ({"threshold": 0}, "options.threshold: got 0"),
    "a list": ([], "options: .*wanted an object"),
    "time twice": ({"timeout": 1, "timeoutMs": 1}, "options.timeout_ms: timeout_seconds is given as well"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fill_options(options, evaluation_service_pb2.EvaluateOptions())


RECORDS: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "unknown policy": (Options, {"aggregation": "foo"}, "options.aggregation: got 'foo'"),
    "no policy": (Options, {"aggregation": None}, "options.aggregation: got null"),
    "threshold alone": (Options, {"threshold": 0.5}, "options.threshold: got 0.5"),
    "threshold of the wrong policy": (
        Options,
        {"aggregation": "all_must_pass", "threshold": 0},
        "options.threshold: got 0",
    ),
    "unknown criteria": (Options, {"criteria_policy": "none"}, "options.criteria_policy: got 'none'"),
    "flag as text": (Options, {"fail_fast": "no"}, "options.fail_fast: got 'no'"),
    "concurrency": (Options, {"max_concurrency": -1}, "options.max_concurrency: got -1"),
    "unknown turns": (Spec, {"type": "x", "when": "never"}, "when: got 'never'"),
    "unknown error": (Spec, {"type": "x", "on_error": "ignore"}, "on_error: got 'ignore'"),
    "negate as text": (Spec, {"type": "x", "negate": "no"}, "negate: got 'no'"),
    "weight": (Spec, {"type": "x", "weight": -1}, "weight: got -1"),
    "config": (Spec, {"type": "x", "config": ["a"]}, "config: .*wanted an object"),
}


@pytest.mark.parametrize(("record", "values", "message"), RECORDS.values(), ids=RECORDS.keys())
def test_a_record_is_held_to_what_a_mapping_may_say(
    record: type[Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        record(**values)


def test_a_record_takes_every_spelling_of_a_choice() -> None:
    assert Options(aggregation="WEIGHTED_MEAN", threshold=0.5) == Options(  # type: ignore[arg-type]
        aggregation="weighted_mean", threshold=0.5
    )
