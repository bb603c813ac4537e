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
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import Field

from evald.context import EvaluatorContext, OutOfTime
from evald.evaluator import Evaluate, Evaluator, EvaluatorDefinition, InvalidConfig
from evald.result import ASSERTION, Check, ErrorInfo, Result, TokenUsage, Verdict, reaches, skipped
from evald.scope import current_scope
from evald.threads import Threads

from .compiler import ChildScope
from .formulas import Formula
from .invoke import discard, invoke
from .planned_evaluator import PlannedEvaluator
from .postprocess import NOT_FINAL, adjust, checked, crashed
from .provenance import combined
from .reasoning import is_worse

_PASSED, _FAILED, _ERROR, _SKIPPED = Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED

# Placeholder for a result that could be PASSED or FAILED; never shown to callers.
_UNKNOWN: Final = Result(Verdict.ERROR, "")

Number = TypeVar("Number", int, float)


class Votes(NamedTuple):
    """The counted results of a combinator's children: without skipped and shadow children.

    worth_of_error: score assumed for a child with an error: 0, or 1 when the combinator is negated and a high score
    counts against the call. So an error never improves the outcome. Inside a formula, which may rise or fall with the
    score, any error makes the result an ERROR.
    """

    evaluators: list[PlannedEvaluator]
    results: list[Result]
    worth_of_error: float

    def count(self, verdict: Verdict) -> int:
        """Return how many results have this verdict."""
        return sum(result.verdict is verdict for result in self.results)

    def without(self, unknown: Callable[[Result], bool]) -> "Votes":
        """Return the votes, with each result for which `unknown` is true replaced by an error."""
        return self._replace(results=[_UNKNOWN if unknown(result) else result for result in self.results])

    def scores(self) -> list[float]:
        """Return the scores. Without a score, a child that passed counts 1, one that failed 0."""
        return [
            self.worth_of_error if result.verdict is _ERROR else _score(result) for result in self.results
        ]


# A child may be a judge.
class _Combinator(Evaluator, kind=ASSERTION, deterministic=False, inline=True):
    evaluators: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, description="Specs of the children, as in a call: {type, name, config, ...}."),
    ]

    def decide(self, votes: Votes) -> tuple[Verdict, float | None, str]:
        """Return verdict, score and reason for the children's results (at least one)."""
        raise NotImplementedError

    def check_children(self, children: Sequence[PlannedEvaluator]) -> None:
        """Raise InvalidConfig if all children are shadows."""
        if not any(child.enforced for child in children):
            raise InvalidConfig.at(
                "/evaluators", "all evaluators are shadow evaluators; wanted at least one that is enforced"
            )

    def compared(self, scope: ChildScope) -> ChildScope:
        """Return the scope with the threshold for the children's scores."""
        return scope


class AllOf(_Combinator, type="all-of"):
    """All children pass. The score is the lowest one."""

    def decide(self, votes: Votes) -> tuple[Verdict, float | None, str]:
        """Fail if any child failed, even if others have errors."""
        passed, failed = votes.count(_PASSED), votes.count(_FAILED)
        reason = f"{passed} of {len(votes.results)} evaluators passed, wanted all"
        if failed:
            return _FAILED, min(votes.scores()), reason
        if votes.count(_ERROR):
            return _ERROR, None, reason
        return _PASSED, min(votes.scores()), reason


class AnyOf(_Combinator, type="any-of"):
    """At least one child passes. The score is the highest one."""

    def decide(self, votes: Votes) -> tuple[Verdict, float | None, str]:
        """Pass if any child passed, even if others have errors."""
        passed = votes.count(_PASSED)
        reason = f"{passed} of {len(votes.results)} evaluators passed, wanted at least one"
        if passed:
            return _PASSED, max(votes.scores()), reason
        if votes.count(_ERROR):
            return _ERROR, None, reason
        return _FAILED, max(votes.scores()), reason


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

    def decide(self, votes: Votes) -> tuple[Verdict, float | None, str]:
        """Decide once with errors counted as failed, once as passed. ERROR if the two verdicts differ."""
        passed, errors = votes.count(_PASSED), votes.count(_ERROR)
        total = len(votes.results)
        score = self._share(votes, votes.worth_of_error)
        if self.threshold is not None:
            if not any(evaluator.weight for evaluator in votes.evaluators):
                # Without weights there is no share to compare. FAILED would become PASSED when negated.
                return _ERROR, None, "no evaluator with a weight above 0 counted"
            certain, possible = (reaches(self._share(votes, worth), self.threshold) for worth in (0.0, 1.0))
            what = f"score {score:.4g}" if self.measure == "score" else f"share {score:.4g}"
            reason = f"{passed} of {total} evaluators passed, {what}, wanted at least {self.threshold:.4g}"
        elif self.k is not None:
            certain, possible = passed >= self.k, passed + errors >= self.k
            # With children that were skipped or have no weight, the share of those that count can be 1.
            score = score if certain else min(score, passed / self.k)
            reason = f"{passed} of {total} evaluators passed, wanted at least {self.k}"
        else:
            # A child with weight 0 is reported, but does not affect the verdict.
            weighty = [
                r for evaluator, r in zip(votes.evaluators, votes.results, strict=True) if evaluator.weight
            ]
            verdicts = {result.verdict for result in weighty or votes.results}
            certain, possible = verdicts == {_PASSED}, _FAILED not in verdicts
            reason = f"{passed} of {total} evaluators passed, wanted all"
        if certain:
            return _PASSED, score, reason
        if possible:
            return _ERROR, None, reason
        return _FAILED, score, reason

    def compared(self, scope: ChildScope) -> ChildScope:
        """Return the scope for the children. The measure `passed` ignores their scores."""
        if self.measure == "passed":
            return replace(scope, threshold=None)
        if self.threshold is not None:
            return replace(scope, threshold=f"{scope.path.removesuffix('/evaluators')}/threshold")
        return scope

    def _share(self, votes: Votes, when_error: float) -> float:
        weights = sum(evaluator.weight for evaluator in votes.evaluators)
        if not weights:
            return 0.0
        total = 0.0
        for evaluator, result in zip(votes.evaluators, votes.results, strict=True):
            if result.verdict is _ERROR:
                worth = when_error
            elif self.measure == "score":
                worth = _score(result)
            else:
                worth = float(result.verdict is _PASSED)
            total += evaluator.weight * worth
        return total / weights


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

    def compared(self, scope: ChildScope) -> ChildScope:
        """Return the scope without a direction, because a formula may rise or fall with a score."""
        return replace(scope, inverted=None)

    def check_children(self, children: Sequence[PlannedEvaluator]) -> None:
        """Raise InvalidConfig for a shadow child, because the formula needs a number for every name."""
        for child in children:
            if not child.enforced:
                path = f"/evaluators/{child.index}/enforcement"
                raise InvalidConfig.at(
                    path,
                    "got a shadow evaluator, wanted enforced evaluators only; remove it from the formula",
                )

    def decide(self, votes: Votes) -> tuple[Verdict, float | None, str]:
        """Compute the formula. ERROR if a child has no number, or if the formula has no value for the numbers."""
        numbers: dict[str, float] = {}
        unproven = set()
        for evaluator, result in zip(votes.evaluators, votes.results, strict=True):
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


class _Compile:
    """The compile function of a combinator. Works only within a plan, which compiles the children."""

    def __init__(self, cls: type[_Combinator], threads: Threads) -> None:
        self._cls = cls
        self._threads = threads

    def __call__(self, config: Mapping[str, Any]) -> Evaluate:
        raise InvalidConfig.at("/evaluators", "can only be compiled as part of a plan")

    def nested(self, config: Mapping[str, Any], scope: ChildScope) -> Evaluate:
        """Return the function that evaluates the children. Problems in their specs become violations."""
        combinator = self._cls.from_config(config)
        evaluators = combinator.compared(scope).compile(combinator.evaluators)
        if len(evaluators) == len(combinator.evaluators):  # no child was rejected
            combinator.check_children(evaluators)
        worth_of_error = None if scope.inverted is None else float(scope.inverted)
        return CompiledCombinator(combinator, evaluators, self._threads, worth_of_error).evaluate


class CompiledCombinator:
    """A combinator with its compiled children. config, provenance: read by `provenance_of`."""

    def __init__(
        self,
        combinator: _Combinator,
        evaluators: Sequence[PlannedEvaluator],
        threads: Threads,
        worth_of_error: float | None,
    ) -> None:
        self._combinator = combinator
        self._evaluators = evaluators
        self._threads = threads
        self._worth_of_error = worth_of_error
        settings = combinator.model_dump(exclude={"evaluators"})
        self.config, self.provenance = combined(settings, evaluators)

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Evaluate the children. The result is awaitable if one of them must wait."""
        results: dict[int, Result] = {}
        waiting: dict[int, Any] = {}
        for position, evaluator in enumerate(self._evaluators):
            outcome: Any
            if evaluator.final_only and not ctx.is_final:
                outcome = NOT_FINAL
            elif not evaluator.inline:
                waiting[position] = None
                continue
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
            else:
                results[position] = adjust(evaluator, checked(evaluator, outcome))
        return self._await(ctx, results, waiting) if waiting else self._combined(results)

    async def _await(
        self, ctx: EvaluatorContext, results: dict[int, Result], waiting: Mapping[int, Any]
    ) -> Result:
        """Await the waiting children concurrently. waiting: by position, a child's awaitable, None if not called."""
        scope = current_scope()
        answers = await asyncio.gather(
            *(
                invoke(self._evaluators[position], ctx, self._threads, None, scope, pending)
                for position, pending in waiting.items()
            )
        )
        for position, answer in zip(waiting, answers, strict=True):
            results[position] = adjust(self._evaluators[position], answer)
        return self._combined(results)

    def _combined(self, by_position: Mapping[int, Result]) -> Result:
        """Combine the children's results into one.

        Results with an alternative are children of a formula, which may rise or fall with them: of each two, the one
        that is worse for the call counts.
        """
        result = self._combine(by_position)
        for position in [at for at, child in by_position.items() if child.alternative is not None]:
            alternative = by_position[position].alternative
            assert alternative is not None
            changed = {**by_position, position: alternative}
            other = self._combine(changed)
            if self._worth_of_error is None:  # the enclosing formula decides
                by_position, result.alternative = changed, other
            elif is_worse(other, result, inverted=bool(self._worth_of_error)):
                by_position, result = changed, other
        return result

    def _combine(self, by_position: Mapping[int, Result]) -> Result:
        combinator, worth_of_error = self._combinator, self._worth_of_error
        children = [(evaluator, by_position[at]) for at, evaluator in enumerate(self._evaluators)]
        counting = [child for child in children if child[0].enforced and child[1].verdict is not _SKIPPED]
        if not counting:
            return skipped("All evaluators were skipped")
        votes = Votes(
            [evaluator for evaluator, _ in counting],
            [result for _, result in counting],
            worth_of_error or 0.0,
        )
        verdict, score, reason = _decided(combinator, votes)
        if worth_of_error is None and votes.count(_ERROR):
            verdict, score = _ERROR, None
        unproven = pending = False
        if verdict is not _ERROR and any(result.unproven for result in votes.results):
            known = _decided(combinator, votes.without(lambda result: result.unproven))
            if known[0] is _ERROR or worth_of_error is None:
                # The verdict depends on missing evidence: negating it must not make it pass.
                verdict, score, unproven = _FAILED, 0.0, True
            else:
                verdict, score, reason = known
        if verdict is _FAILED and any(result.pending for result in votes.results) and not votes.count(_ERROR):
            pending = _decided(combinator, votes.without(lambda result: result.pending))[0] is _ERROR
        failing = next(
            (r for r in votes.results if r.verdict is (verdict if verdict is _ERROR else _FAILED)), None
        )
        if verdict is not _PASSED and failing is not None:
            reason = f"{reason}; first: {failing.reason}"
        checks = [
            Check(
                evaluator.name,
                result.verdict is _PASSED,
                f"{result.verdict.name}{'' if evaluator.enforced else ' (shadow)'}: {result.reason}",
            )
            for evaluator, result in children
        ]
        error = None
        if verdict is _ERROR:
            codes = sorted({r.error.code for r in votes.results if r.error is not None})
            error = ErrorInfo("UNEVALUABLE", f"{reason} ({', '.join(codes)})", {"codes": ",".join(codes)})
        return Result(
            verdict,
            reason,
            score,
            checks=checks,
            pending=pending,
            error=error,
            unproven=unproven,
            token_usage=_usage(list(by_position.values())),
            cost_usd=_sum([result.cost_usd for result in by_position.values()]),
            cached_answers=sum(result.cached_answers for result in by_position.values()),
            warning="; ".join(f'"{evaluator.name}": {r.warning}' for evaluator, r in children if r.warning),
        )


def _decided(combinator: _Combinator, votes: Votes) -> tuple[Verdict, float | None, str]:
    """Return the combinator's verdict, score and reason, with failures and errors of required children applied."""
    verdict, score, reason = combinator.decide(votes)
    required = {
        result.verdict: evaluator.name
        for evaluator, result in zip(votes.evaluators, votes.results, strict=True)
        if evaluator.required
    }
    if _FAILED in required:
        return _FAILED, 0.0, f'{reason}; "{required[_FAILED]}" is required and failed'
    if _ERROR in required and verdict is not _ERROR:
        verdict, score = (_ERROR, None) if verdict is _PASSED else (_FAILED, 0.0)
        reason = f'{reason}; "{required[_ERROR]}" is required and gave no verdict'
    return verdict, score, reason


def _usage(results: Sequence[Result]) -> TokenUsage | None:
    """Add up the token usage of all children, including those that failed or did not count."""
    spent = [result.token_usage for result in results if result.token_usage is not None]
    if not spent:
        return None
    return TokenUsage(
        _sum([usage.input_tokens for usage in spent]),
        _sum([usage.output_tokens for usage in spent]),
        _sum([usage.total for usage in spent]),
    )


def _sum(numbers: Sequence[Number | None]) -> Number | None:
    known = [number for number in numbers if number is not None]
    return sum(known[1:], known[0]) if known else None


def _score(result: Result) -> float:
    return float(result.verdict is _PASSED) if result.score is None else result.score
