"""Assertions on the called tools and their number of calls."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from evald.chat import ToolCall
from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Check, Result, Verdict, errored, failed, passed
from evald_server.untrusted import shorten

from .call_rules import (
    MAX_EXPECTED,
    CallIndex,
    CallMatcher,
    CallRule,
    CallScope,
    call_evidence,
    calls_in,
    joined_names,
    nobody_to_call,
)
from .json_values import CheckTime
from .results import first_checks, joined

CallCount = Annotated[int, Field(ge=0)]

# Compared calls of all expectations together, about 1 us each.
_MAX_COMPARED: Final = 1_000_000


class Expectation(CallRule):
    """A tool that must be called, or must not be called."""

    min_calls: CallCount | None = Field(
        None, description="Minimum number of calls. Default: 1, or 0 if maxCalls is 0."
    )
    max_calls: CallCount | None = Field(
        None, description="Maximum number of calls; 0: the tool must not be called."
    )
    occurrence: Literal["first", "last"] | CallCount | None = Field(
        None,
        description="Check only one call of the tool: the first, the last, or the one at this index, counted from 0.",
    )

    @property
    def fewest(self) -> int:
        """The minimum number of calls that meets the expectation."""
        if self.min_calls is not None:
            return self.min_calls
        return 0 if self.max_calls == 0 else 1

    @model_validator(mode="after")
    def _possible(self) -> "Expectation":
        if self.max_calls is not None and self.fewest > self.max_calls:
            raise ValueError(f"minCalls {self.fewest} is more than maxCalls {self.max_calls}")
        if self.occurrence is not None and self.fewest > 1:
            raise ValueError(f"minCalls {self.fewest} is more than 1, but occurrence selects a single call")
        return self


class ExpectationResult(NamedTuple):
    """The result of an expectation. final: later calls cannot satisfy it.

    unproven: it is unmet only because of calls whose arguments are not JSON.
    """

    text: str
    met: bool
    final: bool
    unproven: bool


class ToolUse(Evaluator, type="tool-use", kind=ASSERTION, inline=True):
    """The expected tools were called, as often as expected.

    A call counts if its arguments match `args`; it may have more arguments
    unless `argsMatch` says otherwise. A call whose arguments are not JSON meets
    no expectation and may be a forbidden one: what depends on it is not met, and
    negating that does not pass. Score: expectations met / all of them; an
    empty list passes. While calls are only missing so far, the verdict is pending.
    """

    expectations: Annotated[list[Expectation], Field(max_length=MAX_EXPECTED)] = Field(
        description="Tools that must be called, or must not be called. The score is the share of expectations that "
        "are met."
    )
    scope: CallScope = "conversation"

    @cached_property
    def _rules(self) -> list[tuple[Expectation, CallMatcher]]:
        return [(expectation, expectation.compile("superset", 0)) for expectation in self.expectations]

    def prepare(self) -> None:
        """Compile the expectations."""
        self._rules  # noqa: B018 - computed here, once

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Count the matching calls."""
        rules = self._rules
        index = CallIndex.of(ctx, self.scope)
        if silent := nobody_to_call(ctx, self.scope, index.calls):
            return silent
        if not rules:
            warning = "there are no expectations, so the check passed without checking anything"
            return passed("No tool expectations", 1.0, warning=warning)
        work = len(index.names) * sum(rule.name is None for _, rule in rules)
        outcomes = []
        for expectation, rule in rules:
            if work <= _MAX_COMPARED:
                candidates = index.positions(rule, ctx.check_time)
                # Without a comparison of arguments, calls are only counted.
                work += 1 if rule.name is not None and rule.arguments is None else len(candidates)
            if work > _MAX_COMPARED:
                return errored(
                    "INPUT_TOO_LARGE",
                    f"{len(rules)} expectations and {len(index.calls)} calls are too many to compare: the calls of "
                    f"the expected tool, summed over all expectations, may be at most {_MAX_COMPARED}",
                    limit=str(_MAX_COMPARED),
                )
            outcomes.append(_outcome(expectation, rule, index.calls, candidates, ctx.check_time))
        checks = first_checks([Check(outcome.text, outcome.met) for outcome in outcomes])
        unmet = [outcome for outcome in outcomes if not outcome.met]
        if not unmet:
            return passed(f"All {len(outcomes)} tool expectations met", 1.0, checks=checks)
        met = len(outcomes) - len(unmet)
        pending = self.scope == "conversation" and not ctx.is_final and not any(o.final for o in unmet)
        return Result(
            Verdict.FAILED,
            f"{met}/{len(outcomes)} expectations met, unmet: [{joined([o.text for o in unmet], shorten)}]",
            met / len(outcomes),
            checks=checks,
            pending=pending,
            unproven=all(o.unproven for o in unmet),
        )


def _outcome(
    expectation: Expectation,
    rule: CallMatcher,
    calls: Sequence[ToolCall],
    candidates: Sequence[int],
    check: CheckTime,
) -> ExpectationResult:
    least, most = expectation.fewest, expectation.max_calls
    chosen, where, settled = candidates, "", False
    if expectation.occurrence is not None:
        chosen, where, settled = _select(candidates, expectation.occurrence)
    count, unreadable = len(chosen), 0
    if rule.arguments is not None:
        check()
        count = 0
        for looked_at, position in enumerate(chosen):
            mismatch = rule.mismatch(calls[position], check)
            count += mismatch is None
            unreadable += mismatch is not None and mismatch.unreadable
            if not looked_at & 31:
                check()
    wanted = f">={least}" if most is None else f"<={most}" if not least else f"{least} to {most}"
    matching = " matching" if rule.arguments is not None else ""
    why = _why(rule, calls, chosen, count, least, check)
    too_many = most is not None and count + unreadable > most
    if too_many and unreadable:
        why = f" and {unreadable} whose arguments are not JSON{why}"
    text = f"{rule.label} (want {wanted}{matching}{where}, got {count}{why})"
    met = count >= least and not too_many
    possible = count + unreadable >= least and (most is None or count <= most)
    return ExpectationResult(text, met, too_many or settled, not met and possible)


def _select(
    candidates: Sequence[int], occurrence: Literal["first", "last"] | int
) -> tuple[Sequence[int], str, bool]:
    """Return the selected call, its name in the reason, and whether later calls cannot replace it."""
    if occurrence == "last":
        return candidates[-1:], " as the last call", False
    index = 0 if occurrence == "first" else occurrence
    return candidates[index : index + 1], f" as call {index + 1}", index < len(candidates)


def _why(
    rule: CallMatcher,
    calls: Sequence[ToolCall],
    candidates: Sequence[int],
    count: int,
    least: int,
    check: CheckTime,
) -> str:
    """Return the mismatch of the last call that does not match, as a suffix."""
    if count >= least or rule.arguments is None:
        return ""
    for position in reversed(candidates):
        check()
        mismatch = rule.mismatch(calls[position], check)
        if mismatch is not None:
            return f"; {mismatch}"
    return ""


class ToolCallBudget(Evaluator, type="tool-call-budget", kind=ASSERTION, inline=True):
    """The number of tool calls is within the limits.

    Score: 1 within; maxCalls / calls when there are more, calls / minCalls when
    there are fewer. value: the number of calls.
    """

    max_calls: CallCount | None = Field(None, description="Maximum number of calls.")
    min_calls: CallCount | None = Field(None, description="Minimum number of calls.")
    scope: CallScope = "turn"

    @model_validator(mode="after")
    def _some_bound(self) -> "ToolCallBudget":
        if self.max_calls is None and self.min_calls is None:
            raise ValueError("no limit set; set maxCalls or minCalls")
        if self.max_calls is not None and self.min_calls is not None and self.min_calls > self.max_calls:
            raise ValueError(f"minCalls {self.min_calls} is more than maxCalls {self.max_calls}")
        return self

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Count the calls."""
        calls = calls_in(ctx, self.scope)
        if silent := nobody_to_call(ctx, self.scope, calls):
            return silent
        count, most, least = len(calls), self.max_calls, self.min_calls
        if most is not None and count > most:
            return failed(
                f"{count} tool call(s), exceeding budget of {most}: {joined_names(calls) or 'none'}",
                most / count,
                count,
                call_evidence(calls),
            )
        if least is not None and count < least:
            return failed(
                f"{count} tool call(s), fewer than {least}: {joined_names(calls) or 'none'}",
                count / least,
                count,
                call_evidence(calls),
                pending=self.scope == "conversation" and not ctx.is_final,
            )
        bounds = " and ".join(
            f"at {word} {bound}" for word, bound in (("most", most), ("least", least)) if bound is not None
        )
        return passed(f"{count} tool call(s), wanted {bounds}", 1.0, count)
