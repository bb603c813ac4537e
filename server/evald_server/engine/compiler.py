"""Compiles specs into a plan: looks up types, validates configs and compiles them before anything runs.

All errors in specs are reported here, with the path of the field.
"""

import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from evald.convert.spec import spec_to_pb
from evald.evaluator import Evaluate, Evaluator, EvaluatorDefinition, InvalidConfig, effective_config
from evald.fields import WEIGHTS, is_weight, shown
from evald.foreign import Guard
from evald.result import Kind, Provenance
from evald.strict_json import canonical_json
from evald.structs import MAX_DEPTH, duration_ms, struct_to_dict
from evald.v1 import evaluation_service_pb2, evaluator_pb2

from .aggregate import DEFAULT_THRESHOLD, Policy
from .plan import InvalidPlan, Plan, PlanLimits, ResponseTemplate, Violation
from .planned_evaluator import PlannedEvaluator
from .reasoning import finding_leaks, keeping_reasoning
from .registry import Registry, UnknownType

MAX_NESTING: Final = 4

# Maximum characters of a key in error messages.
_LONGEST_KEY: Final = 100

# Maximum per call. Compilation then stops.
_MAX_VIOLATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Place:
    """Where a spec stands.

    index: of the outermost spec. path: JSON Pointer from there to this spec.
    inverted: whether a high score counts against the call, because an odd number of the enclosing specs is negated;
    None (unknown) inside a formula.
    threshold: JSON Pointer to the threshold that applies to the spec's score, or None.
    keeps_reasoning: whether one of the enclosing specs reads the whole text, so that this one does too.
    """

    index: int
    path: str = ""
    depth: int = 0
    inverted: bool | None = False
    threshold: str | None = None
    keeps_reasoning: bool = False


class Compiler:
    """Compiles one list of specs and collects all violations. Each method raises InvalidPlan when there are too many."""

    def __init__(self, registry: Registry, limits: PlanLimits, *, fail_open: bool) -> None:
        self._registry = registry
        self._limits = limits
        self._fail_open = fail_open
        self._count = 0
        self._violations: list[Violation] = []

    def plan(self, raw: Sequence[bytes], raw_options: bytes) -> Plan:
        """Return the plan of a call. Raises InvalidPlan with every violation."""
        options = self._options(raw_options)
        self._check_size(sum(map(len, raw)))
        specs = self._parse(raw)
        if not specs:
            self._note_call(
                "",
                "NO_EVALUATORS",
                "evaluators: empty; wanted at least one evaluator or a scenario with criteria, because a call "
                "that checks nothing must not pass",
            )
        evaluators = self._compile_all(specs)
        warnings = []
        if (
            options.HasField("threshold")
            and options.threshold == 0
            and options.aggregation == int(Policy.WEIGHTED_MEAN)
        ):
            if not any(evaluator.required and evaluator.counts for evaluator in evaluators):
                self._note_option(
                    "threshold", 0, "more than 0, which every mean reaches, or a required evaluator beside it"
                )
            warnings.append(
                "options.threshold is 0, which every mean reaches: only required evaluators can fail the call"
            )
        self._raise()
        if not options.skip_auto_evaluators:
            self._add_autos(specs, evaluators)
        announced = [_announced(*pair) for pair in zip(specs, evaluators, strict=True)]
        return Plan(
            evaluators=evaluators,
            template=ResponseTemplate(evaluators, announced, warnings),
            policy=Policy(options.aggregation or Policy.ALL_MUST_PASS),
            threshold=options.threshold if options.HasField("threshold") else DEFAULT_THRESHOLD,
            fail_fast=options.fail_fast,
            max_concurrency=options.max_concurrency,
            timeout=duration_ms(options.timeout) / 1000 if options.HasField("timeout") else None,
            include_progress=options.include_progress,
            skip_cache=options.skip_cache,
        )

    def check(self, specs: Sequence[evaluator_pb2.EvaluatorSpec]) -> None:
        """Raise InvalidPlan with every violation of the specs."""
        self._check_size(sum(spec.ByteSize() for spec in specs))
        self._compile_all(specs)
        self._raise()

    def compile_children(self, place: Place, specs: Sequence[Mapping[str, Any]]) -> list[PlannedEvaluator]:
        """Return a combinator's valid children. place: the combinator's, with what applies to the children."""
        evaluators: list[PlannedEvaluator] = []
        names: set[str] = set()
        for position, child in enumerate(specs):
            own = replace(place, path=f"{place.path}/config/evaluators/{position}", depth=place.depth + 1)
            if own.depth > MAX_NESTING:
                text = f"combinators can be nested at most {MAX_NESTING} levels deep"
                self._note(own, "", "TOO_DEEP", text)
                break
            try:
                spec = spec_to_pb(child)
            except (ValueError, TypeError) as problem:
                self._note(own, "", "INVALID_SPEC", str(problem))
                continue
            if spec.error_policy == evaluator_pb2.ERROR_POLICY_FAIL_OPEN:
                self._note(
                    own,
                    "/error_policy",
                    "NOT_ALLOWED",
                    "got fail_open, which is not allowed inside a combinator, because an error there does not decide "
                    "the call; set it on the combinator, whose error is then ignored",
                )
            if spec.required and own.inverted is not False:
                self._note(
                    own,
                    "/required",
                    "NOT_ALLOWED",
                    "not allowed inside a negated combinator or a formula, which can pass because this evaluator "
                    "fails; move the required evaluator out of it",
                )
            evaluator = self._compile(spec, own, names, position)
            if evaluator is not None and evaluator.is_metric:
                text = f'"{spec.type}" is a metric; a combinator accepts only assertions'
                self._note(own, "/type", "NOT_AN_ASSERTION", text)
            elif evaluator is not None:
                evaluators.append(evaluator)
        return evaluators

    def _check_size(self, size: int) -> None:
        most = self._limits.specs_bytes
        if size > most:
            self._note_call(
                "",
                "TOO_LARGE",
                f"evaluators: got {size} bytes of specs, wanted at most {most} in a call; put data that several "
                "evaluators compare with into context.expected",
            )
            self._raise()

    def _parse(self, raw: Sequence[bytes]) -> list[evaluator_pb2.EvaluatorSpec]:
        specs = []
        for index, data in enumerate(raw):
            try:
                specs.append(evaluator_pb2.EvaluatorSpec.FromString(data))
            except DecodeError:
                self._note(
                    Place(index),
                    "",
                    "UNREADABLE",
                    "cannot parse EvaluatorSpec: the bytes are invalid, or the config is nested deeper than "
                    f"{MAX_DEPTH} levels",
                )
                self._raise()
        return specs

    def _options(self, raw: bytes) -> evaluation_service_pb2.EvaluateOptions:
        try:
            options = evaluation_service_pb2.EvaluateOptions.FromString(raw)
        except DecodeError:
            text = "options: cannot parse EvaluateOptions: the bytes are invalid"
            self._note_call("/options", "UNREADABLE", text)
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
            self._note_call(
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

    def _compile_all(self, specs: Sequence[evaluator_pb2.EvaluatorSpec]) -> list[PlannedEvaluator]:
        """Return the evaluators of the valid specs."""
        if len(specs) > self._limits.evaluators:
            text = f"evaluators: got {len(specs)}, wanted at most {self._limits.evaluators}"
            self._note_call("", "TOO_MANY_EVALUATORS", text)
            self._raise()
        names: set[str] = set()
        evaluators = [self._compile(spec, Place(index), names) for index, spec in enumerate(specs)]
        return [evaluator for evaluator in evaluators if evaluator is not None]

    def _compile(
        self,
        spec: evaluator_pb2.EvaluatorSpec,
        place: Place,
        names: set[str],
        position: int | None = None,
    ) -> PlannedEvaluator | None:
        """Return the evaluator of a spec; None if it is invalid. position: among a combinator's children."""
        before, most = len(self._violations), self._limits.evaluators
        self._count += 1
        if self._count > most:
            self._note(
                place,
                "",
                "TOO_MANY_EVALUATORS",
                f"got more than {most} evaluators, counting those inside combinators, wanted at most {most}",
            )
            self._raise()
        try:
            entry, implied = self._registry.find(spec.type, spec.version)
            for key, other in entry.definition.type_by_config_key.items():
                if key in spec.config.fields:
                    entry, implied = self._registry.find(other).entry, {}
                    break
        except UnknownType as problem:
            field = "version" if self._registry.get(spec.type) else "type"
            self._note(place, f"/{field}", f"UNKNOWN_{field.upper()}", str(problem))
            return None
        definition = entry.definition
        self._check_fields(spec, definition, place)
        config = self._config(spec, implied, place)
        if config is None:
            return None
        keeps = spec.reasoning == evaluator_pb2.REASONING_POLICY_KEEP
        own = replace(
            place,
            inverted=None if place.inverted is None else place.inverted != spec.negate,
            threshold=f"{place.path}/threshold" if spec.HasField("threshold") else place.threshold,
            keeps_reasoning=place.keeps_reasoning or keeps,
        )
        nested = getattr(definition.compile, "nested", None)
        try:
            # A combinator compiles its children with this compiler, so that limits and paths apply to them too.
            evaluate: Evaluate = nested(config, own, self) if nested else definition.compile(config)
        except InvalidConfig as problem:
            for path, message in problem.problems:
                self._note(place, f"/config{path}", "INVALID_CONFIG", message)
            return None
        evaluator = getattr(evaluate, "__self__", None)
        if own.threshold is not None and getattr(evaluator, "scores_confidence", False):
            self._note(
                Place(place.index, own.threshold),
                "",
                "NOT_ALLOWED",
                f'not allowed for the "{definition.type}"{f" at {place.path}" if place.path else ""}: it judges '
                "success or failure criteria, so its score is the judge's confidence, which can be high for a "
                "failed turn; remove the threshold, or use the judge's key `criteria`, `rubric` or `items`, which "
                "score quality",
            )
        if len(self._violations) > before:
            return None
        final_only = spec.turn_policy == evaluator_pb2.TURN_POLICY_FINAL_TURN or definition.final_turn_only
        planned = PlannedEvaluator(
            index=place.index if position is None else position,
            name=_unique(spec.name or spec.type, names),
            definition=definition,
            origin=entry.origin,
            evaluate=evaluate,
            is_async=inspect.iscoroutinefunction(evaluate),
            metric=(evaluator.measures() if isinstance(evaluator, Evaluator | Guard) else definition.metric),
            provenance=_provenance(spec, evaluate, config),
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
            inverted=own.inverted,
            final_only=final_only,
            awaits_final=final_only or getattr(evaluator, "only_final", False),
            timeout=duration_ms(spec.timeout) / 1000 if spec.HasField("timeout") else None,
        )
        if keeps:
            planned.evaluate = keeping_reasoning(evaluate)
        elif not own.keeps_reasoning and not nested:
            planned.evaluate = finding_leaks(planned, forbids=getattr(evaluator, "forbids", False))
        return planned

    def _check_fields(
        self, spec: evaluator_pb2.EvaluatorSpec, definition: EvaluatorDefinition, place: Place
    ) -> None:
        if spec.HasField("weight") and not is_weight(spec.weight):
            self._note(place, "/weight", "OUT_OF_RANGE", f"got {spec.weight:g}, wanted {WEIGHTS}")
        if spec.HasField("threshold") and not 0 < spec.threshold <= 1:
            text = f"got {spec.threshold:g}, wanted more than 0, which every score reaches, and at most 1"
            self._note(place, "/threshold", "OUT_OF_RANGE", text)
        if spec.HasField("timeout") and duration_ms(spec.timeout) <= 0:
            text = f"got {duration_ms(spec.timeout):g}ms, wanted more than 0"
            self._note(place, "/timeout", "OUT_OF_RANGE", text)
        for name in ("enforcement", "error_policy", "turn_policy", "reasoning"):
            number = getattr(spec, name)
            if not 0 <= number <= 2:
                text = f"got {number}, which is not a value of {name} that this server knows"
                self._note(place, f"/{name}", "UNKNOWN_VALUE", text)
        if len(spec.name) > 200:
            self._note(place, "/name", "TOO_LONG", f"got {len(spec.name)} characters, wanted at most 200")
        if definition.kind is Kind.METRIC:
            for name in ("negate", "required", "threshold"):
                if spec.HasField(name) if name == "threshold" else getattr(spec, name):
                    text = f'not allowed: "{definition.type}" is a metric, which never fails'
                    self._note(place, f"/{name}", "NOT_AN_ASSERTION", text)

    def _config(
        self, spec: evaluator_pb2.EvaluatorSpec, implied: Mapping[str, Any], place: Place
    ) -> dict[str, Any] | None:
        """Return the config with the keys that an alias implies; None if it cannot be read."""
        size, most = spec.config.ByteSize(), self._limits.config_bytes
        if size > most:
            self._note(place, "/config", "TOO_LARGE", f"got {size} bytes, wanted at most {most}")
            return None
        config = struct_to_dict(spec.config)
        problem = _unfit(config)
        if problem:
            pointer, reason, message = problem
            self._note(place, f"/config{pointer}", reason, message)
            return None
        for key, value in implied.items():
            if config.setdefault(key, value) != value:
                self._note(
                    place,
                    f"/config/{key}",
                    "INVALID_CONFIG",
                    f'{shown(config[key])}, but the alias "{spec.type}" implies {value!r}; remove the key, or '
                    "use another type",
                )
        return config

    def _add_autos(
        self, specs: list[evaluator_pb2.EvaluatorSpec], evaluators: list[PlannedEvaluator]
    ) -> None:
        names = {evaluator.name for evaluator in evaluators}
        types = {evaluator.definition.type for evaluator in evaluators}
        for entry in self._registry.autos():
            # One that the caller requested is not run and counted twice.
            if entry.definition.type not in types:
                spec = evaluator_pb2.EvaluatorSpec(type=entry.definition.type)
                spec.config.update(entry.auto_config or {})
                evaluator = self._compile(spec, Place(len(evaluators)), names)
                if evaluator is None:
                    raise InvalidPlan(self._violations)
                specs.append(spec)
                evaluators.append(evaluator)

    def _note(self, place: Place, field: str, reason: str, message: str) -> None:
        self._add(Violation(place.index, place.path + field, reason, message))

    def _note_call(self, path: str, reason: str, message: str) -> None:
        self._add(Violation(None, path, reason, message))

    def _note_option(self, name: str, got: object, wanted: str) -> None:
        self._note_call(f"/options/{name}", "OUT_OF_RANGE", f"options.{name}: got {got}, wanted {wanted}")

    def _add(self, violation: Violation) -> None:
        self._violations.append(violation)
        if len(self._violations) == _MAX_VIOLATIONS:
            self._raise()

    def _raise(self) -> None:
        """Raise InvalidPlan if there are violations."""
        if self._violations:
            raise InvalidPlan(self._violations)


def _announced(spec: evaluator_pb2.EvaluatorSpec, evaluator: PlannedEvaluator) -> bytes:
    """Return the spec with what the plan knows of it, serialised."""
    announced = evaluator_pb2.EvaluatorSpec()
    announced.CopyFrom(spec)
    announced.type, announced.name = evaluator.definition.type, evaluator.name
    announced.version = evaluator.definition.version
    # Deterministic, because batch processes compare their plans with the server's.
    return announced.SerializeToString(deterministic=True)


def _provenance(
    spec: evaluator_pb2.EvaluatorSpec, evaluate: Evaluate, config: Mapping[str, Any]
) -> Provenance:
    """Return the provenance of all results of a compiled function.

    The object that the function is bound to may have two attributes. `config`: the effective config, as an Evaluator
    or as canonical JSON; without it, as for remotes and plain functions, the config is used as sent. `provenance`:
    other facts, without the config's digest.
    """
    owner = getattr(evaluate, "__self__", None)
    effective = owner if isinstance(owner, Evaluator) else getattr(owner, "config", None)
    if isinstance(effective, Evaluator):
        text = effective_config(effective)
    else:
        text = canonical_json(config) if effective is None else effective
    # What can reverse the verdict is part of the digest if it is set.
    if spec.negate:
        text += "\nnegate"
    if spec.reasoning == evaluator_pb2.REASONING_POLICY_KEEP:
        text += "\nreasoning keep"
    if spec.HasField("threshold"):
        text += f"\nthreshold {spec.threshold!r}"
    known: Provenance = getattr(owner, "provenance", Provenance())
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return known._replace(config_sha256=digest)


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
