"""The combinators: all-of, any-of, at-least, formula.

They use three-valued logic: a child's ERROR makes the result an ERROR unless the other children decide it. Likewise,
a failure that is pending or due to missing evidence makes the result such a failure unless the other children decide
it. Skipped children are ignored; when all are skipped, the result is SKIPPED. Shadow children are reported but do not
affect the result. A required child that fails makes the result FAILED; if it has an error, the result is never
PASSED.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field

from evald.context import EvaluatorContext, OutOfTime
from evald.evaluator import Evaluate, Evaluator, EvaluatorDefinition, InvalidConfig
from evald.result import (
    ASSERTION,
    Check,
    ErrorInfo,
    Provenance,
    Result,
    TokenUsage,
    Verdict,
    reaches,
    skipped,
)
from evald.scope import current_scope
from evald.strict_json import canonical_json
from evald.threads import Threads

from .compiler import Compiler, Place
from .formulas import Formula
from .invoke import NOT_FINAL, adjust, checked, crashed, discard, invoke
from .planned_evaluator import PlannedEvaluator
from .reasoning import is_worse

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

# Placeholder for a result that could be PASSED or FAILED; never shown to callers.
_UNKNOWN: Final = Result(Verdict.ERROR, "")

Number = TypeVar("Number", int, float)


Decision: TypeAlias = tuple[Verdict, float | None, str]
"""Verdict, score and reason."""


class Votes(NamedTuple):
    """The counted results of a combinator's children: without skipped and shadow children.

    worth_of_error: score assumed for a child with an error: 0, or 1 when the combinator is negated and a high score
    counts against the call. So an error never improves the outcome. Inside a formula, which may rise or fall with the
    score, any error makes the result an ERROR.
    """

    children: list[tuple[PlannedEvaluator, Result]]
    worth_of_error: float

    def count(self, verdict: Verdict) -> int:
        """Return how many results have this verdict."""
        return sum(result.verdict is verdict for _, result in self.children)

    def without(self, unknown: Callable[[Result], bool]) -> "Votes":
        """Return the votes, with each result for which `unknown` is true replaced by an error."""
        return self._replace(
            children=[(child, _UNKNOWN if unknown(result) else result) for child, result in self.children]
        )

    def scores(self) -> list[float]:
        """Return the scores. Without a score, a child that passed counts 1, one that failed 0."""
        return [
            self.worth_of_error if result.verdict is _ERROR else _score(result) for _, result in self.children
        ]


# A child may be a judge.
class _Combinator(Evaluator, kind=ASSERTION, deterministic=False, inline=True):
    evaluators: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, description="Specs of the children, as in a call: {type, name, config, ...}."),
    ]

    def decide(self, votes: Votes) -> Decision:
        """Decide by the children's results (at least one)."""
        raise NotImplementedError

    def check_children(self, children: Sequence[PlannedEvaluator]) -> None:
        """Raise InvalidConfig if all children are shadows."""
        if not any(child.enforced for child in children):
            raise InvalidConfig.at(
                "/evaluators", "all evaluators are shadow evaluators; wanted at least one that is enforced"
            )

    def place_of_children(self, place: Place) -> Place:
        """Return the place with the direction and the threshold that apply to the children's scores."""
        return place


class AllOf(_Combinator, type="all-of"):
    """All children pass. The score is the lowest one."""

    def decide(self, votes: Votes) -> Decision:
        """Fail if any child failed, even if others have errors."""
        passed, total = votes.count(_PASSED), len(votes.children)
        reason = f"{passed} of {total} evaluators passed, wanted all"
        return _decision(passed == total, not votes.count(_FAILED), min(votes.scores()), reason)


class AnyOf(_Combinator, type="any-of"):
    """At least one child passes. The score is the highest one."""

    def decide(self, votes: Votes) -> Decision:
        """Pass if any child passed, even if others have errors."""
        passed, total = votes.count(_PASSED), len(votes.children)
        reason = f"{passed} of {total} evaluators passed, wanted at least one"
        return _decision(passed > 0, votes.count(_FAILED) < total, max(votes.scores()), reason)


class AtLeast(_Combinator, type="at-least", aliases={"assert-set": {"measure": "score"}}):
    """Enough children pass: at least `k`, or a weighted share of at least `threshold`.

    With neither, all must whose weight is above 0. `measure` says what the threshold is compared
    with, and so the score: `passed`, the share of children that passed, or
    `score`, their mean score. A child that errs is taken once as passed and
    once as failed: when both give the same verdict it stands, else it is ERROR.
    """

    k: Annotated[int | None, Field(ge=1, description="Minimum number of children that pass.")] = None
    threshold: Annotated[
        float | None, Field(gt=0, le=1, description="Minimum share or mean score, see measure.")
    ] = None
    measure: Literal["passed", "score"] = Field(
        "passed",
        description="What threshold is compared with. passed: the weighted share of children that passed. "
        "score: their weighted mean score.",
    )

    def prepare(self) -> None:
        """Raise InvalidConfig if both k and threshold are set."""
        if self.k is not None and self.threshold is not None:
            raise InvalidConfig.at("/threshold", "got both k and threshold, wanted one of them")

    def check_children(self, children: Sequence[PlannedEvaluator]) -> None:
        """Raise InvalidConfig if fewer than k children are enforced."""
        super().check_children(children)
        enforced = sum(child.enforced for child in children)
        if self.k is not None and self.k > enforced:
            raise InvalidConfig.at(
                "/k", f"got {self.k}, but only {enforced} evaluators count; shadow evaluators do not"
            )

    def decide(self, votes: Votes) -> Decision:
        """Decide once with errors counted as failed, once as passed. ERROR if the two verdicts differ."""
        passed, possibly = votes.count(_PASSED), votes.count(_PASSED) + votes.count(_ERROR)
        score = self._share(votes, votes.worth_of_error)
        reason = f"{passed} of {len(votes.children)} evaluators passed, "
        if self.threshold is not None:
            if not any(evaluator.weight for evaluator, _ in votes.children):
                # Without weights there is no share to compare. FAILED would become PASSED when negated.
                return _ERROR, None, "no evaluator with a weight above 0 counted"
            certain, possible = (reaches(self._share(votes, worth), self.threshold) for worth in (0.0, 1.0))
            what = "score" if self.measure == "score" else "share"
            reason += f"{what} {score:.4g}, wanted at least {self.threshold:.4g}"
        elif self.k is not None:
            certain, possible = passed >= self.k, possibly >= self.k
            # With children that were skipped or have no weight, the share of those that count can be 1.
            score = score if certain else min(score, passed / self.k)
            reason += f"wanted at least {self.k}"
        else:
            # A child with weight 0 is reported, but does not affect the verdict.
            weighty = [child for child in votes.children if child[0].weight] or votes.children
            verdicts = {result.verdict for _, result in weighty}
            certain, possible = verdicts == {_PASSED}, _FAILED not in verdicts
            reason += "wanted all"
        return _decision(certain, possible, score, reason)

    def place_of_children(self, place: Place) -> Place:
        """Return the place with the own threshold, or with none, because the measure `passed` ignores scores."""
        if self.measure == "passed":
            return replace(place, threshold=None)
        return place if self.threshold is None else replace(place, threshold=f"{place.path}/config/threshold")

    def _share(self, votes: Votes, when_error: float) -> float:
        total = weights = 0.0
        for evaluator, result in votes.children:
            if result.verdict is _ERROR:
                worth = when_error
            elif self.measure == "score":
                worth = _score(result)
            else:
                worth = float(result.verdict is _PASSED)
            weights += evaluator.weight
            total += evaluator.weight * worth
        return total / weights if weights else 0.0


class ScoreFormula(_Combinator, type="formula"):
    """The result of a formula over the children's scores is at least `threshold`.

    A child stands in the formula by its name: its value if it has one, else its
    score. The formula has numbers, + - * / ^, min, max, abs, floor, ceil, exp,
    sqrt and log. The score is what comes out, where that is from 0 to 1. A
    child that errs or is skipped makes it an ERROR; one that failed for missing
    data makes it fail.
    """

    formula: str = Field(
        min_length=1,
        description="Formula over the names of the children, for example 0.7 * facts + 0.3 * tone.",
    )
    threshold: Annotated[float, Field(allow_inf_nan=False, description="Minimum result that passes.")] = 0.8

    @cached_property
    def _parsed(self) -> Formula:
        try:
            return Formula(self.formula)
        except ValueError as problem:
            raise InvalidConfig.at("/formula", str(problem)) from None

    def prepare(self) -> None:
        """Raise InvalidConfig unless the names in the formula are exactly those of the children, each unique."""
        if self.threshold <= 0 and not self._parsed.can_be_negative:
            raise InvalidConfig.at(
                "/threshold",
                f"got {self.threshold:g}, which every result of the formula reaches; wanted more than 0",
            )
        names = [str(child.get("name") or child.get("type")) for child in self.evaluators]
        for position, name in enumerate(names):
            path = f"/evaluators/{position}/name"
            if name not in self._parsed.names:
                raise InvalidConfig.at(
                    path, f"{name!r} does not occur in the formula; use it there, or remove the evaluator"
                )
            if name in names[:position]:
                raise InvalidConfig.at(
                    path, f"{name!r} is already the name of another evaluator; wanted unique names"
                )
        for name in sorted(self._parsed.names.difference(names)):
            known = ", ".join(names)
            raise InvalidConfig.at("/formula", f"no evaluator has the name {name!r}; the names are {known}")

    def place_of_children(self, place: Place) -> Place:
        """Return the place without a direction, because a formula may rise or fall with a score."""
        return replace(place, inverted=None)

    def check_children(self, children: Sequence[PlannedEvaluator]) -> None:
        """Raise InvalidConfig for a shadow child, because the formula needs a number for every name."""
        for child in children:
            if not child.enforced:
                path = f"/evaluators/{child.index}/enforcement"
                raise InvalidConfig.at(
                    path,
                    "got a shadow evaluator, wanted enforced evaluators only; remove it from the formula",
                )

    def decide(self, votes: Votes) -> Decision:
        """Compute the formula. ERROR if a child has no number, or if the formula has no value for the numbers."""
        numbers: dict[str, float] = {}
        unproven = set()
        for evaluator, result in votes.children:
            if result.unproven:
                unproven.add(evaluator.name)
            elif result.verdict is not _ERROR:
                numbers[evaluator.name] = _score(result) if result.value is None else result.value
        lacking = self._parsed.names.difference(numbers)
        if lacking:
            reason = f"{self.formula}: no number for {', '.join(sorted(lacking))}"
            return (_FAILED, 0.0, reason) if lacking <= unproven else (_ERROR, None, reason)
        shown = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
        try:
            found = self._parsed.value(numbers)
        except ArithmeticError as problem:
            return _ERROR, None, f"{self.formula} cannot be computed with {shown}: {problem}"
        score = found if 0 <= found <= 1 else None
        reason = f"{self.formula} = {found:.4g} with {shown}, wanted at least {self.threshold:.4g}"
        return (_PASSED if reaches(found, self.threshold) else _FAILED), score, reason


COMBINATORS: Final = (AllOf, AnyOf, AtLeast, ScoreFormula)


def combinators(threads: Threads) -> list[EvaluatorDefinition]:
    """Return the definitions of the combinators. threads: for children that are foreign code."""
    return [cls.definition()._replace(compile=_Compile(cls, threads)) for cls in COMBINATORS]


@dataclass(frozen=True)
class _Compile:
    """The compile function of a combinator. Works only within a plan, which compiles the children."""

    cls: type[_Combinator]
    threads: Threads

    def __call__(self, config: Mapping[str, Any]) -> Evaluate:
        raise InvalidConfig.at("/evaluators", "can only be compiled as part of a plan")

    def nested(self, config: Mapping[str, Any], place: Place, compiler: Compiler) -> Evaluate:
        """Return the function that evaluates the children. Raises InvalidConfig."""
        combinator = self.cls.from_config(config)
        children = compiler.compile_children(combinator.place_of_children(place), combinator.evaluators)
        if len(children) == len(combinator.evaluators):  # no child was refused
            combinator.check_children(children)
        return _Compiled(combinator, children, self.threads, place.inverted).evaluate


class _Compiled:
    """A combinator with its compiled children.

    config, provenance, only_final: read by the compiler. worth_of_error: as in Votes; None inside a formula.
    """

    def __init__(
        self,
        combinator: _Combinator,
        children: Sequence[PlannedEvaluator],
        threads: Threads,
        inverted: bool | None,
    ) -> None:
        self._combinator = combinator
        self._evaluators = children
        self._threads = threads
        self._worth_of_error = None if inverted is None else float(inverted)
        self.only_final = any(child.awaits_final for child in children)
        parts = [
            (
                child.definition.type,
                child.definition.version,
                child.weight,
                child.final_only,
                child.provenance.config_sha256,
                child.provenance.prompt_sha256,
                # Only if set, so that the digests of other combinators stay the same.
                *(("required",) if child.required else ()),
                *(() if child.enforced else ("shadow",)),
            )
            for child in children
        ]
        self.config = canonical_json({**combinator.model_dump(exclude={"evaluators"}), "evaluators": parts})
        judges = [child.provenance for child in children if child.provenance.judge_models]
        self.provenance = Provenance.of_judges(judges)

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Evaluate the children. The result is awaitable if one of them must wait."""
        results: list[Any] = []  # None for a child that waits
        waiting: dict[int, Any] = {}  # by position: the child's awaitable, None if it was not called
        for position, evaluator in enumerate(self._evaluators):
            outcome: Any
            if evaluator.final_only and not ctx.is_final:
                outcome = NOT_FINAL
            elif not evaluator.inline:
                outcome = waiting[position] = None
            else:
                try:
                    ctx.check_time()
                    outcome = evaluator.evaluate(ctx)
                except OutOfTime:
                    # The whole combinator is evaluated again later, so children that already wait are discarded.
                    for pending in waiting.values():
                        discard(pending)
                    raise
                except Exception as problem:  # noqa: BLE001 - foreign code, which is guarded
                    outcome = crashed(evaluator, problem)
                if inspect.isawaitable(outcome):
                    waiting[position] = outcome
            is_waiting = position in waiting
            results.append(None if is_waiting else adjust(evaluator, checked(evaluator, outcome)))
        return self._await(ctx, results, waiting) if waiting else self._combined(results)

    async def _await(
        self, ctx: EvaluatorContext, results: list[Result], waiting: Mapping[int, Any]
    ) -> Result:
        """Fill in the results of the waiting children, which run concurrently."""
        scope = current_scope()

        async def wait(position: int, pending: Any) -> None:
            evaluator = self._evaluators[position]
            result = await invoke(evaluator, ctx, self._threads, None, scope, pending)
            results[position] = adjust(evaluator, result)

        await asyncio.gather(*(wait(*child) for child in waiting.items()))
        return self._combined(results)

    def _combined(self, results: Sequence[Result]) -> Result:
        """Combine the children's results into one.

        Results with an alternative are children of a formula, which may rise or fall with them: of each two, the one
        that is worse for the call counts.
        """
        result = self._combine(results)
        for position, child in enumerate(results):
            if child.alternative is None:
                continue
            changed = [*results[:position], child.alternative, *results[position + 1 :]]
            other = self._combine(changed)
            if self._worth_of_error is None:  # the enclosing formula decides
                results, result.alternative = changed, other
            elif is_worse(other, result, inverted=bool(self._worth_of_error)):
                results, result = changed, other
        return result

    def _combine(self, results: Sequence[Result]) -> Result:
        combinator, worth_of_error = self._combinator, self._worth_of_error
        children = list(zip(self._evaluators, results, strict=True))
        counting = [child for child in children if child[0].enforced and child[1].verdict is not _SKIPPED]
        if not counting:
            return skipped("All evaluators were skipped")
        votes = Votes(counting, worth_of_error or 0.0)
        verdict, score, reason = _decided(combinator, votes)
        if worth_of_error is None and votes.count(_ERROR):
            verdict, score = _ERROR, None
        unproven = pending = False
        if verdict is not _ERROR and any(result.unproven for _, result in counting):
            known = _decided(combinator, votes.without(lambda result: result.unproven))
            if known[0] is _ERROR or worth_of_error is None:
                # The verdict depends on missing evidence: negating it must not make it pass.
                verdict, score, unproven = _FAILED, 0.0, True
            else:
                verdict, score, reason = known
        if verdict is _FAILED and any(result.pending for _, result in counting) and not votes.count(_ERROR):
            pending = _decided(combinator, votes.without(lambda result: result.pending))[0] is _ERROR
        if verdict is not _PASSED:
            wanted = _ERROR if verdict is _ERROR else _FAILED
            first = next((result.reason for _, result in counting if result.verdict is wanted), None)
            reason = reason if first is None else f"{reason}; first: {first}"
        error = None
        if verdict is _ERROR:
            codes = sorted({result.error.code for _, result in counting if result.error is not None})
            error = ErrorInfo("UNEVALUABLE", f"{reason} ({', '.join(codes)})", {"codes": ",".join(codes)})
        usage = [result.token_usage for result in results if result.token_usage is not None]
        return Result(
            verdict,
            reason,
            score,
            checks=[
                Check(
                    evaluator.name,
                    result.verdict is _PASSED,
                    f"{result.verdict.name}{'' if evaluator.enforced else ' (shadow)'}: {result.reason}",
                )
                for evaluator, result in children
            ],
            pending=pending,
            error=error,
            unproven=unproven,
            # What all children spent, including those that failed or did not count.
            token_usage=TokenUsage(
                _sum([one.input_tokens for one in usage]),
                _sum([one.output_tokens for one in usage]),
                _sum([one.total for one in usage]),
            )
            if usage
            else None,
            cost_usd=_sum([result.cost_usd for result in results]),
            cached_answers=sum(result.cached_answers for result in results),
            warning="; ".join(f'"{evaluator.name}": {r.warning}' for evaluator, r in children if r.warning),
        )


def _decision(certain: bool, possible: bool, score: float, reason: str) -> Decision:
    """Return PASSED if errors cannot change that, FAILED if they cannot change that, else ERROR."""
    if certain:
        return _PASSED, score, reason
    return (_ERROR, None, reason) if possible else (_FAILED, score, reason)


def _decided(combinator: _Combinator, votes: Votes) -> Decision:
    """Return the combinator's verdict, score and reason, with failures and errors of required children applied."""
    verdict, score, reason = combinator.decide(votes)
    required = {result.verdict: evaluator.name for evaluator, result in votes.children if evaluator.required}
    if _FAILED in required:
        return _FAILED, 0.0, f'{reason}; "{required[_FAILED]}" is required and failed'
    if _ERROR in required and verdict is not _ERROR:
        verdict, score = (_ERROR, None) if verdict is _PASSED else (_FAILED, 0.0)
        reason = f'{reason}; "{required[_ERROR]}" is required and gave no verdict'
    return verdict, score, reason


def _sum(numbers: Sequence[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None


def _score(result: Result) -> float:
    return float(result.verdict is _PASSED) if result.score is None else result.score
