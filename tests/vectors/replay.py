"""Replays of vectors: an act and its expected outcome."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from tests.summaries import aggregated

from evald.context import EvaluatorContext
from evald.convert.spec import fill_options, spec_to_pb
from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import ASSERTION, Kind, Result, Verdict
from evald.spec import Options
from evald.structs import struct_to_dict
from evald.threads import Threads
from evald.turn import Turn
from evald.v1.evaluation_service_pb2 import EvaluateOptions
from evald.v1.result_pb2 import AggregatedEvaluation, EvaluationResult
from evald_server.config import Settings
from evald_server.engine.combinators import combinators
from evald_server.engine.plan import InvalidPlan
from evald_server.engine.planner import Planner
from evald_server.engine.registry import DuplicateType, Origin, Registry
from evald_server.engine.run import EvaluationRun
from evald_server.evaluators import BUILT_INS
from evald_server.judge.llm_judge import judge_definition
from evald_server.scripts.evaluator import code_definition
from evald_server.scripts.runner import ScriptRunner

from ..judge.scripted import Reply, ScriptedModels

Vector: TypeAlias = Mapping[str, Any]
"""One line of vectors.jsonl."""

Spec: TypeAlias = Mapping[str, Any]
"""An evaluator spec as JSON writes it."""

PASSED, FAILED, ERROR, SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED


class Wanted(NamedTuple):
    """The expected fields of a result or summary. Defaults are not compared.

    met: of how many checks it must be said that they are met.
    metadata, metrics: these keys with these values; others may stand beside them.
    tolerance: of score, value and the numbers in metadata, absolute.
    """

    verdict: Verdict | None = None
    success: bool | None = None
    score: float | None = None
    unscored: bool = False
    value: float | None = None
    reason: str | None = None
    reason_start: str | None = None
    error: str | None = None
    met: tuple[int, int] | None = None
    metadata: Mapping[str, Any] = {}
    metrics: Mapping[str, float] | None = None
    tolerance: float = 1e-9


class Expect(NamedTuple):
    """The expected outcome of an act.

    results: of the evaluators, in order; may be shorter than there are.
    refused: words of the message with which the act is refused; None when it must not be.
    found: whether a look-up finds something.
    run: what a driven conversation comes to; these keys with these values.
    """

    results: tuple[Wanted, ...] = ()
    summary: Wanted = Wanted()
    refused: tuple[str, ...] | None = None
    found: bool | None = None
    run: Mapping[str, Any] = {}


class Difference(NamedTuple):
    """A deliberate difference from the other system.

    reason: why, for a user of that system. rule: what evald promises instead.
    instead: what evald does.
    """

    reason: str
    rule: str
    instead: Expect


class Outcome(NamedTuple):
    """The outcome of an act."""

    results: Sequence[EvaluationResult] = ()
    summary: AggregatedEvaluation | None = None
    refused: str | None = None
    found: bool | None = None
    run: Mapping[str, Any] = {}


class Act(Protocol):
    """An action of a vector."""

    def __call__(self) -> Outcome:
        """Run the action."""


class Case(NamedTuple):
    """A vector in evald's terms."""

    act: Act
    expect: Expect


_ALL_MUST_PASS = Options()


@dataclass(frozen=True)
class Call:
    """A call of the engine. plugins: types that are registered in addition to the built-ins.

    judge: what the judge answers, in turn; None where there is none.
    scripts: what the code evaluator may run; it is registered where that is given.
    """

    specs: Sequence[Spec]
    turn: Turn
    options: Options = _ALL_MUST_PASS
    plugins: Sequence[EvaluatorDefinition] = ()
    only_plugins: bool = False
    judge: Sequence[Reply] | None = None
    scripts: Settings | None = None

    def __call__(self) -> Outcome:
        """Compile the plan and run it."""
        return asyncio.run(self._run())

    async def _run(self) -> Outcome:
        threads = Threads()
        registry = Registry()
        if not self.only_plugins:
            built_ins = [evaluator.definition() for evaluator in BUILT_INS.values()]
            judge = judge_definition(ScriptedModels(*self.judge or ()))
            for definition in (*built_ins, *combinators(threads), judge):
                registry.register(definition, Origin.BUILT_IN)
        for definition in self.plugins:
            registry.register(definition, Origin.PLUGIN)
        if self.scripts is not None:
            registry.register(code_definition(ScriptRunner(self.scripts)), Origin.BUILT_IN)
        options = EvaluateOptions()
        fill_options(self.options, options)
        try:
            plan = Planner(registry).plan(
                tuple(spec_to_pb(spec).SerializeToString() for spec in self.specs),
                options.SerializeToString(),
            )
        except InvalidPlan as problem:
            said = [f"evaluators[{found.index}]{found.path}: {found.message}" for found in problem.violations]
            return Outcome(refused="; ".join(said))
        run = EvaluationRun(plan, self.turn.context, threads)
        if run.pending:
            async for _ in run.run_pending(seconds=10.0, concurrency=8):
                pass
        summary = aggregated(run)
        return Outcome(list(summary.results), summary)


@dataclass(frozen=True)
class Register:
    """The registration of a type after others."""

    definition: EvaluatorDefinition
    present: Sequence[tuple[EvaluatorDefinition, Origin]]

    def __call__(self) -> Outcome:
        """Register all types, the one under test last."""
        registry = _registry(self.present)
        try:
            registry.register(self.definition, Origin.PLUGIN)
        except DuplicateType as problem:
            return Outcome(refused=str(problem))
        return Outcome()


@dataclass(frozen=True)
class Look:
    """The lookup of a type."""

    type: str
    present: Sequence[tuple[EvaluatorDefinition, Origin]]

    def __call__(self) -> Outcome:
        """Ask the registry."""
        return Outcome(found=_registry(self.present).get(self.type) is not None)


def _registry(present: Sequence[tuple[EvaluatorDefinition, Origin]]) -> Registry:
    registry = Registry()
    for definition, origin in present:
        registry.register(definition, origin)
    return registry


def scripted(
    type: str,  # noqa: A002 - the word of the contract
    outcome: Result | Exception | Any,
    kind: Kind = ASSERTION,
) -> EvaluatorDefinition:
    """Return a type with this name that always returns or raises the same."""

    def evaluate(ctx: EvaluatorContext) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return define_evaluator(type=type, kind=kind, evaluate=evaluate, inline=True)


def says(
    passes: bool | None = None,  # None where the other system gives a score only
    score: float | None = None,
    tolerance: float = 1e-9,
    **more: Any,
) -> Expect:
    """Expect the first result to pass or fail, with this score if given."""
    verdict = None if passes is None else PASSED if passes else FAILED
    return Expect((Wanted(verdict, score=score, tolerance=tolerance, **more),))


def refused(*words: str) -> Expect:
    """Expect the call to be refused with these words in the message."""
    return Expect(refused=words)


def answered(text: str, **more: Any) -> Turn:
    """Return a context with a question and this answer."""
    return Turn([{"role": "user", "content": "?"}, {"role": "assistant", "content": text}], **more)


def called(calls: Sequence[Mapping[str, Any]], text: str = "Done.", **more: Any) -> Turn:
    """Return a context in which the agent makes these tool calls, in any supported shape, then answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    if calls:
        messages.append({"role": "assistant", "content": None, "tool_calls": list(calls)})
    return Turn([*messages, {"role": "assistant", "content": text}], **more)


def unparseable() -> Expect:
    """Expect an error because the judge's answer has no verdict."""
    return Expect((Wanted(ERROR, error="JUDGE_UNPARSEABLE", unscored=True),), Wanted(ERROR, success=False))


def misfits(expect: Expect, outcome: Outcome) -> list[str]:
    """Return the differences between outcome and expectation; empty if there are none."""
    if expect.refused is not None:
        if outcome.refused is None:
            return [f"not refused; wanted a refusal that says {expect.refused}"]
        message = outcome.refused
        return [
            f"refused with {message!r}; {words!r} is not in it"
            for words in expect.refused
            if words not in message
        ]
    if outcome.refused is not None:
        return [f"refused: {outcome.refused}"]
    if expect.found is not None and outcome.found is not expect.found:
        return [f"found: {outcome.found}, wanted {expect.found}"]
    found = [
        f"run.{key}: {outcome.run.get(key)!r}, wanted {value!r}"
        for key, value in expect.run.items()
        if not _close(outcome.run.get(key), value, 1e-9)
    ]
    if expect.results:
        for index, wanted in enumerate(expect.results):
            found += _compare(f"results[{index}]", wanted, outcome.results[index])
    if outcome.summary is not None:
        found += _compare("summary", expect.summary, outcome.summary)
    return found


def _compare(where: str, wanted: Wanted, got: EvaluationResult | AggregatedEvaluation) -> list[str]:
    found = []

    def check(name: str, seen: object, needed: object, fits: bool) -> None:
        if not fits:
            found.append(f"{where}.{name}: {seen!r}, wanted {needed!r} (reason: {got.reason!r})")

    if wanted.verdict is not None:
        check("verdict", Verdict(got.verdict), wanted.verdict, got.verdict == int(wanted.verdict))
    if wanted.success is not None:
        check("success", got.success, wanted.success, got.success is wanted.success)
    if wanted.unscored:
        check("score", got.score, None, not got.HasField("score"))
    for name, number in (("score", wanted.score), ("value", wanted.value)):
        if number is not None:
            seen = getattr(got, name) if got.HasField(name) else None
            check(name, seen, number, _close(seen, number, wanted.tolerance))
    if wanted.reason is not None:
        check("reason", got.reason, wanted.reason, got.reason == wanted.reason)
    if wanted.reason_start is not None:
        check("reason", got.reason, wanted.reason_start, got.reason.startswith(wanted.reason_start))
    if isinstance(got, EvaluationResult):
        if wanted.error is not None:
            check("error", got.error.code, wanted.error, got.error.code == wanted.error)
        if wanted.met is not None:
            seen = (sum(finding.met for finding in got.checks), len(got.checks))
            check("checks met", seen, wanted.met, seen == wanted.met)
        metadata = struct_to_dict(got.metadata)
        for key, value in wanted.metadata.items():
            check(
                f"metadata.{key}",
                metadata.get(key),
                value,
                _close(metadata.get(key), value, wanted.tolerance),
            )
    elif wanted.metrics is not None:
        check("metrics", dict(got.metrics), wanted.metrics, dict(got.metrics) == wanted.metrics)
    return found


def _close(seen: object, wanted: object, tolerance: float) -> bool:
    if isinstance(seen, int | float) and isinstance(wanted, int | float):
        return math.isclose(seen, wanted, rel_tol=0, abs_tol=tolerance)
    return seen == wanted
