"""Compiles specs into a plan: looks up types, validates configs and compiles them before anything runs.

All errors in specs are reported here, with the path of the field.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from evald.evaluator import Evaluate, Evaluator, EvaluatorDefinition, InvalidConfig
from evald.fields import WEIGHTS, is_weight, shown
from evald.foreign import Guard
from evald.result import Kind
from evald.structs import MAX_DEPTH, duration_ms, struct_to_dict
from evald.v1 import evaluation_service_pb2, evaluator_pb2

from .aggregate import DEFAULT_THRESHOLD, Policy
from .plan import Criteria, InvalidPlan, Plan, PlanLimits, Violation
from .planned_evaluator import PlannedEvaluator
from .provenance import provenance_of
from .reasoning import finding_leaks, keeping_reasoning
from .registry import Entry, Registry, UnknownType
from .response_template import ResponseTemplate

JUDGE: Final = "llm-judge"
MAX_NESTING: Final = 4

# Maximum characters of a key in error messages.
_LONGEST_KEY: Final = 100

# Maximum per call. Compilation then stops.
_MAX_VIOLATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class ChildScope:
    """The scope in which a combinator compiles its children.

    index: of the outermost spec. path: JSON Pointer to the list of children.
    inverted: whether a high score counts against the call, because an odd number of the enclosing specs is negated;
    None (unknown) inside a formula.
    threshold: JSON Pointer to the threshold for the children's scores, or None.
    keeps_reasoning: whether one of the enclosing specs reads the whole text, so that the children do too.
    """

    compiler: "Compiler"
    index: int
    path: str
    depth: int
    inverted: bool | None
    threshold: str | None
    keeps_reasoning: bool

    def compile(self, specs: Sequence[Mapping[str, Any]]) -> list[PlannedEvaluator]:
        """Compile the children. Problems are added to the compiler's violations."""
        return self.compiler.compile_children(self, specs)


class Compiler:
    """Compiles one list of specs and collects all violations."""

    def __init__(self, registry: Registry, limits: PlanLimits, *, fail_open: bool) -> None:
        self._registry = registry
        self._limits = limits
        self._fail_open = fail_open
        self._count = 0
        self._awaits_final: set[int] = set()  # indexes of combinators with a final-turn child
        self.violations: list[Violation] = []

    def plan(self, raw: Sequence[bytes], raw_options: bytes, criteria: Criteria | None) -> Plan:
        """Return the plan of a call. Raises InvalidPlan with every violation."""
        options = self._options(raw_options)
        if not self.fits(sum(map(len, raw))):
            raise InvalidPlan(self.violations)
        specs = self._parse(raw)
        if not specs and criteria is None and not self.violations:
            self._note(
                None,
                "",
                "NO_EVALUATORS",
                "evaluators: empty; wanted at least one evaluator or a scenario with criteria, because a call "
                "that checks nothing must not pass",
            )
        if criteria is not None:
            spec = self._criteria_spec(criteria)
            # Unmet criteria must never pass, and the judge's confidence is not a score for the mean.
            spec.required = options.aggregation == int(Policy.WEIGHTED_MEAN)
            specs.append(spec)
        evaluators = self.compile_all(specs, criteria=criteria is not None)
        warnings: list[str] = []
        weighted = options.aggregation == int(Policy.WEIGHTED_MEAN)
        if options.HasField("threshold") and options.threshold == 0 and weighted:
            if not any(evaluator.required and evaluator.counts for evaluator in evaluators):
                self._note_option(
                    "threshold", 0, "more than 0, which every mean reaches, or a required evaluator beside it"
                )
            warnings.append(
                "options.threshold is 0, which every mean reaches: only required evaluators can fail the call"
            )
        if self.violations:
            raise InvalidPlan(self.violations)
        if not options.skip_auto_evaluators:
            self._add_autos(specs, evaluators)
        return self._finished(specs, evaluators, options, warnings)

    def fits(self, size: int) -> bool:
        """Return whether a call's specs of `size` bytes are within the limit; if not, add a violation."""
        fits = size <= self._limits.specs_bytes
        if not fits:
            self._note(
                None,
                "",
                "TOO_LARGE",
                f"evaluators: got {size} bytes of specs, wanted at most {self._limits.specs_bytes} in a call; put "
                "data that several evaluators compare with into context.expected",
            )
        return fits

    def compile_all(
        self, specs: Sequence[evaluator_pb2.EvaluatorSpec], *, criteria: bool = False
    ) -> list[PlannedEvaluator]:
        """Return the evaluators of the valid specs. Problems of the others are added to `violations`."""
        if len(specs) > self._limits.evaluators:
            text = f"evaluators: got {len(specs)}, wanted at most {self._limits.evaluators}"
            self._note(None, "", "TOO_MANY_EVALUATORS", text)
            return []
        evaluators: list[PlannedEvaluator] = []
        names: set[str] = set()
        for index, spec in enumerate(specs):
            evaluator = self._compile(spec, index, "", 0, names)
            if evaluator is not None:
                evaluators.append(evaluator)
            if len(self.violations) >= _MAX_VIOLATIONS:
                break
        if criteria and any(v.index == len(specs) - 1 for v in self.violations):
            self._explain_criteria(len(specs) - 1)
        return evaluators

    def compile_children(
        self, scope: ChildScope, specs: Sequence[Mapping[str, Any]]
    ) -> list[PlannedEvaluator]:
        """Return the evaluators of a combinator's valid children. Problems are added to `violations`."""
        from evald.convert.spec import spec_to_pb

        evaluators: list[PlannedEvaluator] = []
        names: set[str] = set()
        for position, child in enumerate(specs):
            if len(self.violations) >= _MAX_VIOLATIONS:
                return evaluators
            path = f"{scope.path}/{position}"
            if scope.depth >= MAX_NESTING:
                text = f"combinators can be nested at most {MAX_NESTING} levels deep"
                self._note(scope.index, path, "TOO_DEEP", text)
                return evaluators
            try:
                spec = spec_to_pb(child)
            except (ValueError, TypeError) as problem:
                self._note(scope.index, path, "INVALID_SPEC", str(problem))
                continue
            if spec.error_policy == evaluator_pb2.ERROR_POLICY_FAIL_OPEN:
                self._note(
                    scope.index,
                    f"{path}/error_policy",
                    "NOT_ALLOWED",
                    "got fail_open, which is not allowed inside a combinator, because an error there does not decide "
                    "the call; set it on the combinator, whose error is then ignored",
                )
            if spec.required and scope.inverted is not False:
                self._note(
                    scope.index,
                    f"{path}/required",
                    "NOT_ALLOWED",
                    "not allowed inside a negated combinator or a formula, which can pass because this evaluator "
                    "fails; move the required evaluator out of it",
                )
            evaluator = self._compile(
                spec,
                scope.index,
                path,
                scope.depth + 1,
                names,
                position,
                inverted=scope.inverted,
                threshold=scope.threshold,
                keeps_reasoning=scope.keeps_reasoning,
            )
            if evaluator is None:
                continue
            if evaluator.awaits_final:
                self._awaits_final.add(scope.index)
            if evaluator.is_metric:
                text = f'"{spec.type}" is a metric; a combinator accepts only assertions'
                self._note(scope.index, f"{path}/type", "NOT_AN_ASSERTION", text)
                continue
            evaluators.append(evaluator)
        return evaluators

    def _parse(self, raw: Sequence[bytes]) -> list[evaluator_pb2.EvaluatorSpec]:
        specs = []
        for index, data in enumerate(raw):
            try:
                specs.append(evaluator_pb2.EvaluatorSpec.FromString(data))
            except DecodeError:
                self._note(
                    index,
                    "",
                    "UNREADABLE",
                    "cannot parse EvaluatorSpec: the bytes are invalid, or the config is nested deeper than "
                    f"{MAX_DEPTH} levels",
                )
        return specs

    def _options(self, raw: bytes) -> evaluation_service_pb2.EvaluateOptions:
        try:
            options = evaluation_service_pb2.EvaluateOptions.FromString(raw)
        except DecodeError:
            self._note(
                None, "/options", "UNREADABLE", "options: cannot parse EvaluateOptions: the bytes are invalid"
            )
            return evaluation_service_pb2.EvaluateOptions()
        if options.HasField("threshold") and not 0 <= options.threshold <= 1:
            self._note_option("threshold", options.threshold, "a number from 0 to 1")
        if options.max_concurrency < 0:
            self._note_option("max_concurrency", options.max_concurrency, "0 or more")
        if options.HasField("timeout") and duration_ms(options.timeout) <= 0:
            self._note_option("timeout", f"{duration_ms(options.timeout):g}ms", "more than 0")
        if options.aggregation not in (0, 1, 2):
            self._note_option("aggregation", options.aggregation, "an AggregationPolicy this server knows")
        elif options.HasField("threshold") and options.aggregation != int(Policy.WEIGHTED_MEAN):
            self._note(
                None,
                "/options/threshold",
                "NOT_ALLOWED",
                f"options.threshold: got {options.threshold:g} without AGGREGATION_POLICY_WEIGHTED_MEAN, the only "
                "policy with a threshold; set options.aggregation to it, or remove the threshold",
            )
        if options.criteria_policy not in (0, 1, 2):
            self._note_option(
                "criteria_policy", options.criteria_policy, "a CriteriaPolicy this server knows"
            )
        return options

    def _compile(
        self,
        spec: evaluator_pb2.EvaluatorSpec,
        index: int,
        path: str,
        depth: int,
        names: set[str],
        position: int | None = None,
        *,
        inverted: bool | None = False,
        threshold: str | None = None,
        keeps_reasoning: bool = False,
    ) -> PlannedEvaluator | None:
        before = len(self.violations)
        self._count += 1
        if self._count == self._limits.evaluators + 1:
            self._note(
                index,
                path,
                "TOO_MANY_EVALUATORS",
                f"got more than {self._limits.evaluators} evaluators, counting those inside combinators, wanted "
                f"at most {self._limits.evaluators}",
            )
        if self._count > self._limits.evaluators:
            return None
        try:
            entry, implied = self._find(spec)
        except UnknownType as problem:
            reason, key = (
                ("UNKNOWN_VERSION", "version") if self._registry.get(spec.type) else ("UNKNOWN_TYPE", "type")
            )
            self._note(index, f"{path}/{key}", reason, str(problem))
            return None
        definition = entry.definition
        self._check_fields(spec, definition, index, path)
        config = self._config(spec, implied, index, path)
        evaluate: Evaluate | None = None
        nested = getattr(definition.compile, "nested", None)
        keeps = spec.reasoning == evaluator_pb2.REASONING_POLICY_KEEP
        keeps_reasoning = keeps_reasoning or keeps
        if spec.HasField("threshold"):
            threshold = f"{path}/threshold"
        if config is not None:
            if inverted is not None:
                inverted = inverted != spec.negate
            try:
                children = ChildScope(
                    self, index, f"{path}/config/evaluators", depth, inverted, threshold, keeps_reasoning
                )
                # A combinator compiles its children with this compiler, so that limits and paths apply to them too.
                evaluate = nested(config, children) if nested else definition.compile(config)
            except InvalidConfig as problem:
                for found in problem.problems:
                    self._note(index, f"{path}/config{found.path}", "INVALID_CONFIG", found.message)
        evaluator = getattr(evaluate, "__self__", None)
        if threshold is not None and getattr(evaluator, "scores_confidence", False):
            self._note(
                index,
                threshold,
                "NOT_ALLOWED",
                f'not allowed for the "{definition.type}"{f" at {path}" if path else ""}: it judges success or '
                "failure criteria, so its score is the judge's confidence, which can be high for a failed turn; "
                "remove the threshold, or use the judge's key `criteria`, `rubric` or `items`, which score "
                "quality",
            )
        if config is None or evaluate is None or len(self.violations) > before:
            return None
        final_only = spec.turn_policy == evaluator_pb2.TURN_POLICY_FINAL_TURN or definition.final_turn_only
        planned = PlannedEvaluator(
            index=index if position is None else position,
            name=_unique(spec.name or spec.type, names),
            definition=definition,
            origin=entry.origin,
            evaluate=evaluate,
            is_async=inspect.iscoroutinefunction(evaluate),
            metric=(evaluator.measures() if isinstance(evaluator, Evaluator | Guard) else definition.metric),
            provenance=provenance_of(
                evaluate,
                config,
                threshold=spec.threshold if spec.HasField("threshold") else None,
                negate=spec.negate,
                keeps_reasoning=keeps,
            ),
            enforced=spec.enforcement != evaluator_pb2.ENFORCEMENT_SHADOW,
            fail_open=(
                spec.error_policy == evaluator_pb2.ERROR_POLICY_FAIL_OPEN
                if spec.error_policy
                else self._fail_open
            ),
            weight=spec.weight if spec.HasField("weight") else 1.0,
            required=spec.required,
            threshold=spec.threshold if spec.HasField("threshold") else None,
            negate=spec.negate,
            inverted=inverted,
            final_only=final_only,
            awaits_final=final_only
            or bool(getattr(evaluator, "only_final", False))
            or (position is None and index in self._awaits_final),
            timeout=duration_ms(spec.timeout) / 1000 if spec.HasField("timeout") else None,
        )
        if keeps:
            planned.evaluate = keeping_reasoning(evaluate)
        elif not keeps_reasoning and not nested:
            forbids = getattr(evaluator, "forbids", False)
            planned.evaluate = finding_leaks(planned, inverted=inverted, forbids=forbids)
        return planned

    def _find(self, spec: evaluator_pb2.EvaluatorSpec) -> tuple[Entry, Mapping[str, Any]]:
        found = self._registry.find(spec.type, spec.version)
        for key, other in found.entry.definition.type_by_config_key.items():
            if key in spec.config.fields:
                return self._registry.find(other).entry, {}
        return found.entry, found.implied

    def _check_fields(
        self, spec: evaluator_pb2.EvaluatorSpec, definition: EvaluatorDefinition, index: int, path: str
    ) -> None:
        def note(name: str, reason: str, message: str) -> None:
            self._note(index, f"{path}/{name}", reason, message)

        if spec.HasField("weight") and not is_weight(spec.weight):
            note("weight", "OUT_OF_RANGE", f"got {spec.weight:g}, wanted {WEIGHTS}")
        if spec.HasField("threshold") and not 0 < spec.threshold <= 1:
            text = f"got {spec.threshold:g}, wanted more than 0, which every score reaches, and at most 1"
            note("threshold", "OUT_OF_RANGE", text)
        if spec.HasField("timeout") and duration_ms(spec.timeout) <= 0:
            note("timeout", "OUT_OF_RANGE", f"got {duration_ms(spec.timeout):g}ms, wanted more than 0")
        for name in ("enforcement", "error_policy", "turn_policy", "reasoning"):
            number = getattr(spec, name)
            if not 0 <= number <= 2:
                text = f"got {number}, which is not a value of {name} that this server knows"
                note(name, "UNKNOWN_VALUE", text)
        if len(spec.name) > 200:
            note("name", "TOO_LONG", f"got {len(spec.name)} characters, wanted at most 200")
        if definition.kind is Kind.METRIC:
            for name, given in (
                ("negate", spec.negate),
                ("required", spec.required),
                ("threshold", spec.HasField("threshold")),
            ):
                if given:
                    text = f'not allowed: "{definition.type}" is a metric, which never fails'
                    note(name, "NOT_AN_ASSERTION", text)

    def _config(
        self,
        spec: evaluator_pb2.EvaluatorSpec,
        implied: Mapping[str, Any],
        index: int,
        path: str,
    ) -> dict[str, Any] | None:
        size = spec.config.ByteSize()
        if size > self._limits.config_bytes:
            text = f"got {size} bytes, wanted at most {self._limits.config_bytes}"
            self._note(index, f"{path}/config", "TOO_LARGE", text)
            return None
        config = struct_to_dict(spec.config)
        problem = _unfit(config)
        if problem:
            pointer, reason, message = problem
            self._note(index, f"{path}/config{pointer}", reason, message)
            return None
        for key, value in implied.items():
            if config.setdefault(key, value) != value:
                self._note(
                    index,
                    f"{path}/config/{key}",
                    "INVALID_CONFIG",
                    f'{shown(config[key])}, but the alias "{spec.type}" implies {value!r}; remove the key, or '
                    "use another type",
                )
        return config

    def _criteria_spec(self, criteria: Criteria) -> evaluator_pb2.EvaluatorSpec:
        spec = evaluator_pb2.EvaluatorSpec(type=JUDGE, name="criteria")
        for key, value in (
            ("successCriteria", criteria.success),
            ("failureCriteria", criteria.failure),
            ("failureCriteriaMode", criteria.failure_mode),
        ):
            if value:
                spec.config.fields[key].string_value = value
        return spec

    def _explain_criteria(self, index: int) -> None:
        """Rewrite the violations of the spec at this index, which was made from the scenario's criteria."""
        self.violations = [
            Violation(
                None,
                "/context/scenario",
                "CRITERIA_NOT_EVALUABLE",
                f"context.scenario: this server cannot judge its criteria: {v.message}. Remove the criteria, or "
                "set options.criteria_policy to EVALUATORS_ONLY",
            )
            if v.index == index
            else v
            for v in self.violations
        ]

    def _add_autos(
        self, specs: list[evaluator_pb2.EvaluatorSpec], evaluators: list[PlannedEvaluator]
    ) -> None:
        names = {evaluator.name for evaluator in evaluators}
        for entry in self._registry.autos():
            # The caller requested this type: do not run and count it twice.
            if any(evaluator.definition.type == entry.definition.type for evaluator in evaluators):
                continue
            spec = evaluator_pb2.EvaluatorSpec(type=entry.definition.type)
            spec.config.update(entry.auto_config or {})
            evaluator = self._compile(spec, len(evaluators), "", 0, names)
            if evaluator is None:
                raise InvalidPlan(self.violations)
            specs.append(spec)
            evaluators.append(evaluator)

    def _finished(
        self,
        specs: Sequence[evaluator_pb2.EvaluatorSpec],
        evaluators: list[PlannedEvaluator],
        options: evaluation_service_pb2.EvaluateOptions,
        warnings: Sequence[str],
    ) -> Plan:
        planned = []
        for spec, evaluator in zip(specs, evaluators, strict=True):
            announced = evaluator_pb2.EvaluatorSpec()
            announced.CopyFrom(spec)
            announced.type, announced.name = evaluator.definition.type, evaluator.name
            announced.version = evaluator.definition.version
            # Deterministic, because batch processes compare their plans with the server's.
            planned.append(announced.SerializeToString(deterministic=True))
        return Plan(
            evaluators=evaluators,
            template=ResponseTemplate(evaluators, planned, warnings),
            policy=Policy(options.aggregation or Policy.ALL_MUST_PASS),
            threshold=options.threshold if options.HasField("threshold") else DEFAULT_THRESHOLD,
            fail_fast=options.fail_fast,
            max_concurrency=options.max_concurrency,
            timeout=duration_ms(options.timeout) / 1000 if options.HasField("timeout") else None,
            include_progress=options.include_progress,
            skip_cache=options.skip_cache,
        )

    def _note(self, index: int | None, path: str, reason: str, message: str) -> None:
        self.violations.append(Violation(index, path, reason, message))

    def _note_option(self, name: str, got: object, wanted: str) -> None:
        self._note(None, f"/options/{name}", "OUT_OF_RANGE", f"options.{name}: got {got}, wanted {wanted}")


def _unique(name: str, names: set[str]) -> str:
    unique, count = name, 1
    while unique in names:
        count += 1
        unique = f"{name}#{count}"
    names.add(unique)
    return unique


def _unfit(value: Any, depth: int = 1) -> tuple[str, str, str] | None:
    """Return JSON Pointer, reason and message if a config is nested too deep or holds a NaN or infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return "", "INVALID_CONFIG", f"{value} is not JSON"
    if not isinstance(value, dict | list):
        return None
    if depth > MAX_DEPTH:
        return "", "TOO_DEEP", f"nested deeper than {MAX_DEPTH} levels"
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if problem := _unfit(inner, depth + 1):
            pointer, reason, message = problem
            escaped = str(key)[:_LONGEST_KEY].replace("~", "~0").replace("/", "~1")
            return f"/{escaped}{pointer}", reason, message
    return None
