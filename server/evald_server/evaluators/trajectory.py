"""Assertion that the agent called the right tools in the right order."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from evald.chat import Message, ToolCall
from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Check, Result, Verdict, passed
from evald.strict_json import TooLarge
from evald_server.untrusted import shorten

from .call_rules import (
    ARGS_MATCH_DESCRIPTION,
    MAX_EXPECTED,
    ArgsMatch,
    Arguments,
    CallIndex,
    CallMatcher,
    CallRule,
    CallScope,
    calls_in,
    nobody_to_call,
)
from .json_values import CheckTime
from .pairing import Pairs, pair_in_any_order, pair_in_order
from .results import MAX_CHECKS, MAX_NAMED, Amount, OnMissing, missing

Mode = Literal["strict", "exact", "in_order", "any_order", "unordered", "subset", "superset"]

# Modes that allow unpaired items: missing calls (expected, not made) and extra calls (made, not expected).
_MISSING_ALLOWED: Final = frozenset({"subset"})
_EXTRA_ALLOWED: Final = frozenset({"in_order", "any_order", "superset"})

# Expected calls times calls of the same tools. 100 by 100 take 2 ms to pair, 500 by 500 half a second.
_MAX_WORK: Final = 250_000


class ExpectedCall(CallRule):
    """An expected tool call."""

    max_duration_ms: Amount | None = Field(None, description="Maximum duration of the call, in milliseconds.")

    def compile(self, mode: ArgsMatch, tolerance: float) -> CallMatcher:
        """Return the matcher of this rule, with its time limit."""
        rule = super().compile(mode, tolerance)
        rule.max_duration_ms = self.max_duration_ms
        return rule


def _from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Pairing(NamedTuple):
    """The pairs of expected and made calls.

    misaligned: for mode strict, the place where the messages differ; "" if they do not.
    """

    rules: Sequence[CallMatcher]
    calls: Sequence[ToolCall]
    pairs: Pairs
    misaligned: str = ""


class Trajectory(Evaluator, type="trajectory", kind=ASSERTION, aliases={"tool-trajectory": {}}, inline=True):
    """The agent made the expected tool calls.

    Expected is `expected`, else the tool calls of the context's expected
    messages. The pairing of expected calls with calls made is always the best
    one there is. Modes, and the score of each:

    - `exact`: the same calls in the same order. Pairs / the longer of both lists.
    - `strict`: the whole conversation has the expected messages: as many, with
      the same roles, each with the same calls in any order; texts may differ.
      Scored as exact, but 0 when the messages do not line up. With `expected`
      there are no messages to compare, and it is exact.
    - `in_order`: the expected calls in their order, others may come between.
      Pairs / expected calls.
    - `any_order`, `superset`: the expected calls in any order, and perhaps
      others. Pairs / expected calls.
    - `unordered`: the expected calls in any order and no others. Scored as exact.
    - `subset`: no other than the expected calls, each at most as often as
      expected. Pairs / calls made.

    `score` asks for another number: recall (pairs / expected calls), precision
    (pairs / calls made) or f1 of both; all three are in the metadata. The verdict
    is always the mode's. A time limit counts as one more thing expected. When
    nothing is expected and nothing was called the score is 1; when only one of
    the two is empty it is 0 and the verdict FAILED, in every mode. A verdict is
    pending while calls of later turns can still make it PASSED.

    Arguments of `expected` are compared where they are given, those of expected
    messages always. `argsMatch` of the expected call goes before that of
    `argsMatchOverrides` for its tool, and that before `argsMatch` of the config.
    """

    expected: (
        Annotated[
            list[
                Annotated[
                    ExpectedCall, BeforeValidator(_from_name, json_schema_input_type=str | ExpectedCall)
                ]
            ],
            Field(max_length=MAX_EXPECTED),
        ]
        | None
    ) = Field(
        None,
        description="Expected calls; a string is the name of a tool whose arguments are not compared. Default: the "
        "tool calls of the context's expected messages.",
    )
    mode: Mode = Field(
        "in_order",
        description="How the calls may differ from the expected calls. in_order: the expected calls in this order; "
        "other calls may be between them. exact: the expected calls in this order, and no others. "
        "strict: the conversation has as many messages as expected, with the same roles, each with the "
        "same calls in any order; if expected is set, strict is the same as exact. any_order, superset: "
        "the expected calls in any order; there may be other calls. unordered: the expected calls in any "
        "order, and no others. subset: only expected calls, each at most as often as expected.",
    )
    args_match: ArgsMatch = Field("exact", description=ARGS_MATCH_DESCRIPTION)
    args_match_overrides: dict[str, ArgsMatch] = Field(
        {}, description="argsMatch for single tools, by tool name."
    )
    tolerance: Amount = Field(0.0, description="Maximum difference between two numbers.")
    score: Literal["mode", "recall", "precision", "f1"] = Field(
        "mode",
        description="Which number is the score; the verdict depends on mode only. A pair is an expected call with "
        "its matching call. recall: pairs / expected calls. precision: pairs / calls made. f1: the "
        "harmonic mean of both. mode: recall for in_order, any_order and superset, precision for subset, "
        "else pairs / the larger number of calls.",
    )
    scope: CallScope = "conversation"
    on_missing: OnMissing = Field(
        "fail",
        description="Verdict if there are no expected calls, or if a call with a time limit has no duration; error: "
        "ERROR with code MISSING_DATA.",
    )

    @cached_property
    def _rules(self) -> list[CallMatcher] | None:
        if self.expected is None:
            return None
        return [call.compile(self._mode_for(call.name), self.tolerance) for call in self.expected]

    def _mode_for(self, tool: str | None) -> ArgsMatch:
        return self.args_match if tool is None else self.args_match_overrides.get(tool, self.args_match)

    def prepare(self) -> None:
        """Compile the expected calls."""
        self._rules  # noqa: B018 - computed here, once

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Pair the expected calls with the calls made."""
        if self._rules is None and not ctx.expected.messages:
            return missing(self.on_missing, "No expected tool calls available")
        if silent := nobody_to_call(ctx, self.scope, calls_in(ctx, self.scope)):
            return silent
        if self._rules is None and self.mode == "strict":
            return self._judge(self._pair_messages(ctx), ctx)
        rules = self._rules
        if rules is None:
            expected = ctx.once("expected-calls", lambda: ctx.expected.read_tool_calls(ctx.check_time))
            rules = [self._rule_of(call, ctx.check_time) for call in expected]
        index = CallIndex.of(ctx, self.scope)
        if self.mode in {"exact", "strict"}:
            pairs = _pair_by_position(rules, index.calls, ctx.check_time)
        else:
            pairs = self._pair(rules, index, ctx.check_time)
        return self._judge(Pairing(rules, index.calls, pairs), ctx)

    def _rule_of(self, call: ToolCall, check: CheckTime) -> CallMatcher:
        check()
        arguments = Arguments.of_call(call, self._mode_for(call.name), self.tolerance)
        return CallMatcher(call.name, None, arguments)

    def _pair(self, rules: Sequence[CallMatcher], index: CallIndex, check: CheckTime) -> Pairs:
        """Return the best pairing of the rules with the calls. Raises TooLarge."""
        patterns = sum(rule.name is None for rule in rules)
        _refuse_product(patterns, "patterns", len(index.names), "tool names")
        candidates = [index.positions(rule, check) for rule in rules]
        relevant = sorted(set().union(*candidates))
        _refuse_product(len(rules), "expected calls", len(relevant), "calls of the same tools")
        place = {position: at for at, position in enumerate(relevant)}
        # Maximise the pairs first, then the pairs in time: one pair outweighs all time limits together.
        pair_weight = len(rules) + 1 if any(rule.max_duration_ms is not None for rule in rules) else 1
        weights: list[dict[int, int]] = []
        for rule, positions in zip(rules, candidates, strict=True):
            row = {}
            check()
            for count, position in enumerate(positions):
                call = index.calls[position]
                if rule.mismatch(call, check) is None:
                    bonus = rule.max_duration_ms is not None and rule.in_time(call) is True
                    row[place[position]] = pair_weight + bonus
                if not count & 31:
                    check()
            weights.append(row)
        pair = pair_in_order if self.mode == "in_order" else pair_in_any_order
        return [(left, relevant[right]) for left, right in pair(weights, len(relevant), check)]

    def _pair_messages(self, ctx: EvaluatorContext) -> Pairing:
        """Pair the calls message by message, for mode strict."""
        wanted = ctx.expected.messages
        made = ctx.turn_messages if self.scope == "turn" else ctx.messages
        rules: list[CallMatcher] = []
        calls: list[ToolCall] = []
        pairs: Pairs = []
        check = ctx.check_time
        # First, because this error names the message whose call cannot be read.
        ctx.expected.read_tool_calls(check)
        work = 0
        for position in range(max(len(wanted), len(made))):
            check()
            mine = _calls_of(made, position)
            known = [self._rule_of(call, check) for call in _calls_of(wanted, position)]
            work += len(known) * len(mine)
            if work > _MAX_WORK:
                raise TooLarge(
                    f"{len(known)} expected calls and {len(mine)} calls in message {position + 1} are too many to "
                    f"pair: the products of these numbers may be at most {_MAX_WORK} over all messages; mode exact "
                    "has no limit"
                )
            found = self._pair(known, CallIndex(mine, check), check)
            pairs += [(len(rules) + left, len(calls) + right) for left, right in found]
            rules += known
            calls += mine
        return Pairing(rules, calls, pairs, _misalignment(wanted, made))

    def _judge(self, pairing: Pairing, ctx: EvaluatorContext) -> Result:
        rules, calls, pairs, misaligned = pairing
        expected, made, paired = len(rules), len(calls), len(pairs)
        limits = [
            (rules[left], calls[right]) for left, right in pairs if rules[left].max_duration_ms is not None
        ]
        untimed = [rule for rule, call in limits if rule.in_time(call) is None]
        if self.on_missing != "fail":
            limits = [limit for limit in limits if limit[0].in_time(limit[1]) is not None]
        kept = sum(rule.in_time(call) is True for rule, call in limits)
        lost = 0  # time limits of missing calls
        if self.mode not in _MISSING_ALLOWED:
            lost = sum(rule.max_duration_ms is not None for rule in rules) - sum(
                rules[left].max_duration_ms is not None for left, _ in pairs
            )
        bounds = len(limits) + lost
        ratios = _ratios(paired, expected, made)
        holds = (
            not misaligned
            and (expected == 0) == (made == 0)
            and (paired == expected or self.mode in _MISSING_ALLOWED)
            and (paired == made or self.mode in _EXTRA_ALLOWED)
            and kept == len(limits)
        )
        if holds and untimed and self.on_missing in {"skip", "error"}:
            return missing(self.on_missing, f"No duration available for the call of {untimed[0].label}")
        if misaligned or (expected == 0) != (made == 0):
            score = 0.0
        else:
            score = self._score(paired + kept, expected + bounds, made + bounds)
        gaps = (
            []
            if self.mode in _MISSING_ALLOWED and made
            else list(islice(_gaps(pairing, ctx.check_time), MAX_NAMED))
        )
        reason = self._reason(pairing, gaps)
        checks = list(islice(self._checks(pairing, gaps, limits), MAX_CHECKS))
        if holds:
            warning = "" if expected else "no call was expected and none was made, so nothing was compared"
            return passed(reason, score, metadata=ratios, checks=checks, warning=warning)
        on_time = kept == len(limits)
        pending = (
            self.scope == "conversation" and not ctx.is_final and self._can_still_hold(pairing, ctx, on_time)
        )
        unknown = self._unknown(pairing, limits, ctx.check_time)
        return Result(
            Verdict.FAILED,
            f"{reason}; {unknown}" if unknown else reason,
            score,
            metadata=ratios,
            checks=checks,
            pending=pending,
            unproven=bool(unknown),
        )

    def _unknown(
        self, pairing: Pairing, limits: Sequence[tuple[CallMatcher, ToolCall]], check: CheckTime
    ) -> str:
        """Return why the failure is unproven and must not pass when negated; "" if it is proven."""
        rules, calls, pairs, _ = pairing
        if any(rule.in_time(call) is None for rule, call in limits):
            return "whether they match is unknown because a duration is missing"
        paired, taken = {left for left, _ in pairs}, {right for _, right in pairs}
        compared = [rule for rule in rules if rule.arguments is not None]
        names: dict[str, bool] = {}  # tool name: whether its arguments are compared
        for position, call in enumerate(calls):
            check()
            if position not in taken:
                if call.name not in names:
                    names[call.name] = any(rule.names(call.name) for rule in compared)
                if names[call.name] and not _readable(call):
                    return f"the arguments of call {position + 1} are not JSON"
        for position, rule in enumerate(rules):
            if position not in paired and rule.arguments is not None and rule.arguments.unreadable:
                return f"the arguments of expected call {position + 1} are not JSON"
        return ""

    def _score(self, right: int, expected: int, made: int) -> float:
        if not expected and not made:
            return 1.0
        match self.score:
            case "f1":
                return 2 * right / (expected + made)
            case "recall":
                return right / expected
            case "precision":
                return right / made
            case _:
                if self.mode in _MISSING_ALLOWED:
                    return right / made
                return right / (expected if self.mode in _EXTRA_ALLOWED else max(expected, made))

    def _can_still_hold(self, pairing: Pairing, ctx: EvaluatorContext, on_time: bool) -> bool:
        """Return whether calls of later turns can still satisfy the mode."""
        rules, calls, pairs, _ = pairing
        if not rules:
            return False
        if self.mode in _EXTRA_ALLOWED:
            return True
        if self.mode in _MISSING_ALLOWED:
            return not calls
        if self.mode == "strict" and self._rules is None:
            wanted, made = ctx.expected.messages, ctx.messages
            return (
                len(made) < len(wanted)
                and all(_role(wanted, place) == message.role for place, message in enumerate(made))
                and all(
                    len(_calls_of(made, place)) == len(_calls_of(wanted, place)) for place in range(len(made))
                )
                and len(pairs) == len(calls)
            )
        return len(pairs) == len(calls) < len(rules) and on_time

    def _reason(self, pairing: Pairing, gaps: Sequence[str]) -> str:
        rules, calls, pairs, misaligned = pairing
        parts = [f"{misaligned}; " if misaligned else ""]
        if not rules and not calls:
            return f"{parts[0]}No tool calls expected, none made"
        parts.append(
            f"{len(pairs)} of {len(rules)} expected tool calls found, {len(calls)} made ({self.mode})"
        )
        if pairs:
            found = [f"{rules[left].label} = call {right + 1}" for left, right in pairs[:MAX_NAMED]]
            parts.append(f": {_listed(found, len(pairs))}")
        if gaps:
            parts.append(f"; missing: {_listed(gaps, len(rules) - len(pairs))}")
        if self.mode not in _EXTRA_ALLOWED or not rules:
            extras = list(islice(_extras(pairing), MAX_NAMED))
            if extras:
                parts.append(f"; unexpected: {_listed(extras, len(calls) - len(pairs))}")
        late = [
            (rules[left], right) for left, right in pairs if rules[left].in_time(calls[right]) is not True
        ]
        if late:
            named = [f"call {right + 1} {_duration(rule, calls[right])}" for rule, right in late[:MAX_NAMED]]
            parts.append(f"; too slow: {_listed(named, len(late))}")
        return "".join(parts)

    def _checks(
        self, pairing: Pairing, gaps: Sequence[str], limits: Sequence[tuple[CallMatcher, ToolCall]]
    ) -> Iterator[Check]:
        rules, _, pairs, misaligned = pairing
        if misaligned:
            yield Check(misaligned, met=False)
        for gap in gaps:
            yield Check(f"missing: {gap}", met=False)
        if self.mode not in _EXTRA_ALLOWED:
            for extra in islice(_extras(pairing), MAX_NAMED):
                yield Check(f"unexpected: {extra}", met=False)
        for rule, call in limits:
            yield Check(f"{rule.label} {_duration(rule, call)}", rule.in_time(call) is True)
        for left, right in pairs:
            yield Check(f"{rules[left].label} = call {right + 1}", met=True)


def _readable(call: ToolCall) -> bool:
    try:
        _ = call.args
    except ValueError:
        return False
    return True


def _gaps(pairing: Pairing, check: CheckTime) -> Iterator[str]:
    """Yield each missing call, with the first unpaired call of the same tool."""
    rules, calls, pairs, _ = pairing
    found = {left for left, _ in pairs}
    taken = {right for _, right in pairs}
    for position, rule in enumerate(rules):
        if position not in found:
            yield f"{rule.label}{_nearest(rule, calls, taken, check)}"


def _ratios(paired: int, expected: int, made: int) -> dict[str, float]:
    """Return precision, recall and F1: all 1 if both sides are empty, all 0 if one is."""
    if not expected or not made:
        same = float(expected == made)
        return {"precision": same, "recall": same, "f1": same}
    return {"precision": paired / made, "recall": paired / expected, "f1": 2 * paired / (expected + made)}


def _refuse_product(left: int, what: str, right: int, of_what: str) -> None:
    if left * right > _MAX_WORK:
        raise TooLarge(
            f"{left} {what} and {right} {of_what} are too many to pair: their product may be at most "
            f"{_MAX_WORK}; mode exact has no limit"
        )


def _pair_by_position(rules: Sequence[CallMatcher], calls: Sequence[ToolCall], check: CheckTime) -> Pairs:
    pairs: Pairs = []
    for position, (rule, call) in enumerate(zip(rules, calls, strict=False)):
        if not position & 31:
            check()
        if rule.names(call.name) and rule.mismatch(call, check) is None:
            pairs.append((position, position))
    return pairs


def _calls_of(messages: Sequence[Message], position: int) -> list[ToolCall]:
    message = messages[position] if position < len(messages) else None
    return message.tool_calls if message is not None and message.role == "assistant" else []


def _role(messages: Sequence[Message], position: int) -> str:
    return messages[position].role if position < len(messages) else "nothing"


def _misalignment(wanted: Sequence[Message], made: Sequence[Message]) -> str:
    """Return the first place where the roles of the messages differ, "" if none."""
    for position in range(max(len(wanted), len(made))):
        got, known = _role(made, position), _role(wanted, position)
        if got != known:
            return f"message {position + 1}: got {got}, expected {known}"
    return ""


def _nearest(rule: CallMatcher, calls: Sequence[ToolCall], taken: set[int], check: CheckTime) -> str:
    """Return the first unpaired call of an unpaired rule's tool, as a suffix."""
    for position, call in enumerate(calls):
        if not position & 255:
            check()
        if position not in taken and rule.names(call.name):
            mismatch = rule.mismatch(call, check)
            why = "is at the wrong position" if mismatch is None else str(mismatch)
            return f" (call {position + 1}: {why})"
    return ""


def _extras(pairing: Pairing) -> Iterator[str]:
    """Yield each extra call."""
    taken = {right for _, right in pairing.pairs}
    for position, call in enumerate(pairing.calls):
        if position not in taken:
            yield f"call {position + 1} {shorten(call.name)}"


def _duration(rule: CallMatcher, call: ToolCall) -> str:
    taken = call.duration_ms
    said = "has no duration" if taken is None else f"took {taken:.15g}ms"
    return f"{said}, wanted at most {rule.max_duration_ms:.15g}ms"


def _listed(items: Sequence[str], total: int) -> str:
    """Return the first items and the number of the others, as text."""
    shown = items[:MAX_NAMED]
    return ", ".join(shown) + (f" and {total - len(shown)} more" if total > len(shown) else "")
