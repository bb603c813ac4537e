"""Convert specs and options to messages, and back."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..fields import duration_to_pb, join
from ..spec import Options, OptionsLike, Spec, SpecLike, specs
from ..structs import RepeatedField, check_exact, duration_ms, fill_struct, struct_to_dict
from ..v1 import context_pb2, evaluation_service_pb2, evaluator_pb2


def spec_to_pb(spec: SpecLike, path: str = "") -> evaluator_pb2.EvaluatorSpec:
    """Convert a spec to a message. Raises InvalidInput."""
    pb = evaluator_pb2.EvaluatorSpec()
    _fill_spec(Spec.from_dict(spec, path), pb, path)
    return pb


def _fill_spec(spec: Spec, pb: evaluator_pb2.EvaluatorSpec, path: str) -> None:
    pb.type, pb.name, pb.version = spec.type, spec.name, spec.version
    pb.required, pb.negate = spec.required, spec.negate
    if spec.config:
        fill_struct(spec.config, pb.config, join(path, "config"))
        _check_expected(spec.config, join(path, "config"))
    if spec.when == "final":
        pb.turn_policy = evaluator_pb2.TURN_POLICY_FINAL_TURN
    if spec.reasoning == "keep":
        pb.reasoning = evaluator_pb2.REASONING_POLICY_KEEP
    if spec.shadow:
        pb.enforcement = evaluator_pb2.ENFORCEMENT_SHADOW
    if spec.on_error is not None:
        pb.error_policy = (
            evaluator_pb2.ERROR_POLICY_FAIL_OPEN
            if spec.on_error == "fail_open"
            else evaluator_pb2.ERROR_POLICY_FAIL_CLOSED
        )
    if spec.weight is not None:
        pb.weight = spec.weight
    if spec.threshold is not None:
        pb.threshold = spec.threshold
    if spec.timeout_seconds is not None:
        duration_to_pb(spec.timeout_seconds, pb.timeout)


def _check_expected(config: Mapping[str, Any], path: str) -> None:
    """Raise InvalidInput for an expected number that a Struct cannot hold, in the config of a combinator too.

    Other numbers may be rounded, such as the bounds of a JSON Schema.
    """
    for key in ("expected", "expectations"):
        check_exact(config.get(key), f"{path}.{key}")
    children = config.get("evaluators")
    for index, child in enumerate(children if isinstance(children, list | tuple) else ()):
        inner = child.get("config") if isinstance(child, Mapping) else None
        if isinstance(inner, Mapping):
            _check_expected(inner, f"{path}.evaluators[{index}].config")


def read_spec(pb: evaluator_pb2.EvaluatorSpec) -> Spec:
    """Convert the message of a spec back to a Spec."""
    return Spec(
        pb.type,
        struct_to_dict(pb.config) if pb.HasField("config") else {},
        name=pb.name,
        version=pb.version,
        when="final" if pb.turn_policy == 2 else "every_turn",
        weight=pb.weight if pb.HasField("weight") else None,
        required=pb.required,
        threshold=pb.threshold if pb.HasField("threshold") else None,
        negate=pb.negate,
        shadow=pb.enforcement == 2,
        on_error={1: "fail_closed", 2: "fail_open"}.get(pb.error_policy),  # type: ignore[arg-type]
        timeout_seconds=duration_ms(pb.timeout) / 1000 if pb.HasField("timeout") else None,
        reasoning="keep" if pb.reasoning == 2 else "strip",
    )


def fill_specs(evaluators: Iterable[SpecLike], into: RepeatedField[evaluator_pb2.EvaluatorSpec]) -> None:
    """Append the specs of a call. Raises InvalidInput with the index of the invalid one."""
    for index, spec in enumerate(specs(evaluators)):
        _fill_spec(spec, into.add(), f"evaluators[{index}]")


def fill_options(options: OptionsLike | None, pb: evaluation_service_pb2.EvaluateOptions) -> None:
    """Fill in the options of a call. Raises InvalidInput."""
    if options is None:
        return
    options = Options.from_dict(options)
    pb.fail_fast, pb.max_concurrency = options.fail_fast, options.max_concurrency
    pb.skip_auto_evaluators, pb.skip_cache = options.skip_auto_evaluators, options.skip_cache
    pb.include_progress = options.include_progress
    if options.timeout_seconds is not None:
        duration_to_pb(options.timeout_seconds, pb.timeout)
    if options.aggregation == "weighted_mean":
        pb.aggregation = evaluation_service_pb2.AGGREGATION_POLICY_WEIGHTED_MEAN
    if options.threshold is not None:
        pb.threshold = options.threshold
    if options.criteria_policy == "evaluators_only":
        pb.criteria_policy = context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY


def read_options(pb: evaluation_service_pb2.EvaluateOptions) -> Options:
    """Convert the message of options back to Options."""
    weighted = pb.aggregation == evaluation_service_pb2.AGGREGATION_POLICY_WEIGHTED_MEAN
    evaluators_only = pb.criteria_policy == context_pb2.CRITERIA_POLICY_EVALUATORS_ONLY
    return Options(
        aggregation="weighted_mean" if weighted else "all_must_pass",
        threshold=pb.threshold if pb.HasField("threshold") else None,
        fail_fast=pb.fail_fast,
        max_concurrency=pb.max_concurrency,
        skip_auto_evaluators=pb.skip_auto_evaluators,
        include_progress=pb.include_progress,
        timeout_seconds=duration_ms(pb.timeout) / 1000 if pb.HasField("timeout") else None,
        skip_cache=pb.skip_cache,
        criteria_policy="evaluators_only" if evaluators_only else "both",
    )
