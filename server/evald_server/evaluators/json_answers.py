"""Assertions about an answer that is JSON."""

import json
import re
from collections.abc import Awaitable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field

from evald.context import EvaluatorContext, Which
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Check, Result, errored, failed, passed, skipped
from evald.strict_json import TooLarge, parse_json, parse_json_at
from evald_server.jsonschema.check import SchemaError
from evald_server.jsonschema.pool import PoolBusy, TaskTimeout
from evald_server.jsonschema.schema import Schema, worker_seconds

from .field_rules import FieldRule
from .json_diff import Comparison, Mode
from .missing import OnMissing, missing, nothing_said
from .tool_calls import first_checks
from .values import (
    CHECK_EVERY,
    MISSING,
    Path,
    PathText,
    cut,
    lookup,
    parse_path,
    pointer,
    printable,
    shown,
)
from .values import Check as CheckTime

Extract = Literal["none", "fenced", "first"]
"""Where the JSON is. none: the whole answer. fenced: the first fenced code block, one marked `json`
before others; without any, the whole answer. first: the first object or array that can be read; without
any, the whole answer."""

_NOT_FINAL: Final = skipped("Skipped (not final turn)")
_MATCHES: Final = passed("Response matches JSON schema", 1.0)
_IS_JSON: Final = passed("Response is valid JSON", 1.0)

# What `first` may read in characters: the answer a few times over, and a hundred braces that open nothing.
_REREADS: Final = 5
_ATTEMPT: Final = 64

_MAX_LISTED: Final = 20
_MAX_PLACE: Final = 500  # characters

_MAX_FIELDS: Final = 1000
# Of `field-accuracy`: at each of them a field has been compared, or CHECK_EVERY values of one.
_MAX_LOOKS: Final = 4_000
_MAX_IGNORED: Final = 100

_HALF_CHARACTER: Final = "a string holds half of a surrogate pair, which is no character"


class Read(NamedTuple):
    """JSON of an answer: its text, and what it says."""

    text: str
    data: Any


class JsonAnswer(Evaluator):
    """Base of what reads the answer as JSON."""

    message: Which = Field(
        "last",
        description="Which of the turn's assistant messages is read. last and first: the last and first one with "
        "text. all: all of them, joined by line ends.",
    )
    extract: Extract = Field(
        "none",
        description="Where in the answer the JSON is. none: the whole answer. fenced: the first fenced code "
        "block, one marked json before others; without any, the whole answer. first: the first object or array "
        "that can be read; without any, the whole answer.",
    )

    def read(self, ctx: EvaluatorContext) -> Read | Result:
        """The JSON of the answer, or the result when there is none."""
        if self.message == "last" and self.extract == "none":
            answer = ctx.answer
            if answer is None:
                return nothing_said(ctx)
            data, problem = ctx.answer_json
            return _not_json(problem) if problem else Read(answer, data)
        found = ctx.once(("json", self.message, self.extract), lambda: self._find(ctx))
        if isinstance(found, TooLarge):
            raise TooLarge(str(found))
        return found

    def _find(self, ctx: EvaluatorContext) -> Read | Result | TooLarge:
        answer = ctx.answer_of(self.message)
        if answer is None:
            return nothing_said(ctx)
        try:
            if self.extract == "first":
                return _first_json(answer, ctx.check_time) or _scalar(answer)
            text = _fenced(answer, ctx.check_time) if self.extract == "fenced" else answer
            return Read(text, parse_json(text))
        except ValueError as problem:
            return _not_json(str(problem))
        except TooLarge as problem:
            return problem


def _not_json(problem: str) -> Result:
    return failed(f"Response is not valid JSON: {problem}", 0.0)


_FENCE = re.compile(r"^[ \t]*(```|~~~)([^\n`]*)\n", re.MULTILINE)


def _fenced(text: str, check: CheckTime) -> str:
    """The inside of the first fenced block marked as JSON, else of the first one, else the text."""
    first: str | None = None
    opening = _FENCE.search(text)
    while opening:
        check()
        fence, info = opening.groups()
        end = text.find(f"\n{fence}", opening.end() - 1)
        inside = text[opening.end() : end if end >= 0 else len(text)]
        if info.strip().lower().startswith("json"):
            return inside
        first = inside if first is None else first
        opening = _FENCE.search(text, end + 1 + len(fence)) if end >= 0 else None
    return text if first is None else first


_OPENING = re.compile(r"[{\[]")


def _first_json(text: str, check: CheckTime) -> Read | None:
    """The first object or array in the text.

    Raises TooLarge after reading the text a few times over in vain, and for one that is larger than evald
    reads: what stands inside it is not the first one.
    """
    left = _REREADS * len(text) + 100 * _ATTEMPT
    opening = _OPENING.search(text)
    while opening and left > 0:
        check()
        start = opening.start()
        try:
            data, end = parse_json_at(text, start)
        except json.JSONDecodeError as problem:
            # The error counts the lines before it.
            left -= problem.pos - start + problem.pos // 16 + _ATTEMPT
        except ValueError:  # NaN
            left -= len(text) - start
        else:
            return Read(text[start:end], data)
        opening = _OPENING.search(text, start + 1)
    if opening:
        raise TooLarge(
            f"no JSON found at the {text.count('{') + text.count('[')} places of the answer where some may "
            f"begin, after reading its {len(text)} characters {_REREADS} times over; with extract none or "
            "fenced they are read once"
        )
    return None


def _scalar(text: str) -> Read | Result:
    try:
        return Read(text, parse_json(text))
    except ValueError:
        return _not_json("it holds no object or array, and is no JSON as a whole")


class IsJson(JsonAnswer, type="is-json", kind=ASSERTION, label="Is JSON", inline=True):
    """The answer is JSON.

    Strict JSON: no NaN, no comments, nothing before or after. Numbers, texts,
    true, false and null are JSON too.
    """

    usual: ClassVar[Result] = _IS_JSON

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Read the answer."""
        read = self.read(ctx)
        return read if isinstance(read, Result) else _IS_JSON


class JsonSchema(JsonAnswer, type="json-schema", kind=ASSERTION, label="JSON Schema", inline=True):
    """The answer is JSON that matches a JSON Schema.

    The draft is the one that `$schema` names (4, 6, 7, 2019-09 or 2020-12),
    else 2020-12. Formats that the draft knows are enforced, others ignored.
    Patterns are searched in linear time, so without look-around and
    back-references. References to other documents are never followed. At most
    64 KiB and 1,000 subschemas.
    """

    usual: ClassVar[Result] = _MATCHES

    schema_: dict[str, Any] | bool = Field(alias="schema", description="JSON Schema of the answer.")
    only_final: bool = Field(False, description="Skip turns that are not the last one.")

    @cached_property
    def _compiled(self) -> Schema:
        return Schema(self.schema_)

    @cached_property
    def _whole_answer(self) -> bool:
        return self.message == "last" and self.extract == "none"

    def prepare(self) -> None:
        """Compile the schema."""
        _ = self._compiled, self._whole_answer  # here, so that a wrong schema is refused

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Check the answer: right here, or in a process that can be killed when it might take long."""
        if self.only_final and not ctx.is_final:
            return _NOT_FINAL
        schema = self._compiled
        if self._whole_answer:
            # Two thirds of the time of the way below, for what nearly all do.
            text = ctx.answer or ""
            data, problem = ctx.answer_json
            if problem is None and len(text) <= schema.inline_bytes:
                return self._check(text, data)
        read = self.read(ctx)
        if isinstance(read, Result):
            return read
        text, data = read
        if len(text) > schema.inline_bytes:
            return self._evaluate_in_worker(text)
        return self._check(text, data)

    def _check(self, text: str, data: Any) -> Result:
        schema = self._compiled
        try:
            if schema.is_valid(data):
                return _MATCHES
            return _mismatch(schema.errors(data, text))
        except UnicodeEncodeError:
            return _not_json(_HALF_CHARACTER)

    async def _evaluate_in_worker(self, text: str) -> Result:
        try:
            errors = await self._compiled.errors_in_worker(text)
        except TaskTimeout:
            return errored(
                "TIMEOUT",
                f"The check did not end within {worker_seconds(text):.3g} s of processor time; "
                "simplify the schema: combine fewer alternatives, or make them exclude each other early",
            )
        except PoolBusy:
            return errored("EVALUATOR_BUSY", "Too many costly JSON Schemas are being checked already")
        if errors is None:
            return _not_json(_HALF_CHARACTER)
        return _mismatch(errors) if errors else _MATCHES


def _mismatch(errors: Sequence[SchemaError]) -> Result:
    listed = "; ".join(f"{error['path'] or 'the whole'}: {error['message']}" for error in errors)
    shown_errors = [{key: printable(text) for key, text in error.items()} for error in errors]
    return failed(f"Schema validation failed: {printable(listed)}", 0.0, metadata={"errors": shown_errors})


class Reference(JsonAnswer):
    """Base of what compares the answer with data that is known to be right."""

    expected: Any = Field(None, description="What to compare with, instead of the context's expected data.")
    on_missing: OnMissing = Field("fail", description="Verdict when there is nothing to compare with.")

    @cached_property
    def _own(self) -> bool:
        return "expected" in self.model_fields_set

    def reference(self, ctx: EvaluatorContext) -> Any:
        """The config's data, else the context's, else its expected text or last expected answer read as
        JSON; MISSING when there is none."""
        return self.expected if self._own else ctx.once("expected-json", lambda: self._of_context(ctx))

    def _of_context(self, ctx: EvaluatorContext) -> Any:
        known = ctx.expected
        if known.has_data:
            return known.read_data(ctx.check_time)
        texts = [known.text, *(m.text for m in reversed(known.messages) if m.role == "assistant" and m.text)]
        for text in texts:
            if text is not None:
                try:
                    return parse_json(text)
                except ValueError:
                    return MISSING
        return MISSING


class JsonMatch(
    Reference, type="json-match", kind=ASSERTION, label="JSON Match", aliases={"json-diff": {}}, inline=True
):
    """The answer is JSON that equals the expected data.

    The order of keys never counts, 1 equals 1.0, true does not equal 1.
    Score: the part of the leaves (values that are neither object nor array, or
    are empty) of both sides together that agree.
    """

    mode: Mode = Field(
        "exact",
        description="What the expected data is of the answer. exact: all of it. subset: a part of it; the answer "
        "may hold more keys, and more elements behind the expected ones. superset: more than it; the answer may "
        "lack keys and elements, and must not hold others.",
    )
    arrays: Literal["ordered", "unordered"] = Field(
        "ordered",
        description="How elements of arrays are compared. ordered: by position. unordered: each with the one "
        "that it has most in common with.",
    )
    ignore: Annotated[list[PathText], Field(max_length=_MAX_IGNORED)] = Field(
        [], description='Paths that are not compared: "meta.id", "items[*].id" or "/items/*/id".'
    )
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="Largest difference allowed between two numbers."
    )

    @cached_property
    def _ignored(self) -> list[Path]:
        return [parse_path(text) for text in self.ignore]

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the answer with the expected data."""
        wanted = self.reference(ctx)
        if wanted is MISSING:
            return missing(self.on_missing, "No expected data available")
        read = self.read(ctx)
        if isinstance(read, Result):
            return read
        comparison = Comparison(self.mode, self.arrays, self._ignored, self.tolerance, ctx.check_time)
        comparison.compare(read.data, wanted)
        differences, equal_leaves = comparison.differences, comparison.equal_leaves
        count = comparison.difference_count
        if not differences:
            return passed(f"Response matches the expected JSON: {equal_leaves} value(s) agree", 1.0)
        listed = "; ".join(map(str, differences))
        more = f"; and {count - len(differences)} more" if count > len(differences) else ""
        return failed(
            f"Response differs from the expected JSON in {comparison.different_leaves} of "
            f"{equal_leaves + comparison.different_leaves} value(s): {listed}{more}",
            equal_leaves / (equal_leaves + comparison.different_leaves),
            metadata={
                "differences": [
                    {
                        "path": cut(printable(pointer(d.place)), _MAX_PLACE),
                        "got": shown(d.got),
                        "expected": shown(d.wanted),
                    }
                    for d in differences
                ],
                **({"differenceCount": count} if count > len(differences) else {}),
            },
        )


class FieldAccuracy(Reference, type="field-accuracy", kind=ASSERTION, inline=True):
    """The fields of a JSON answer are right.

    Each field is compared with the same place of the expected data; one that
    the expected data lacks is not compared. Score: the weight of the fields
    that are right / the weight of those compared, or 1 or 0 with aggregation
    "all". Passes when everything that has weight is right.
    """

    fields: Annotated[list[FieldRule], Field(min_length=1, max_length=_MAX_FIELDS)]
    aggregation: Literal["weighted", "all"] = Field(
        "weighted",
        description="The score. weighted: weight of the fields that are right / weight of those compared. all: 1 "
        "when all are right, else 0.",
    )

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare field by field."""
        wanted = self.reference(ctx)
        if wanted is MISSING:
            return missing(self.on_missing, "No expected data available")
        read = self.read(ctx)
        if isinstance(read, Result):
            return read
        looks = 0

        def check() -> None:
            nonlocal looks
            looks += 1
            if looks > _MAX_LOOKS:
                raise TooLarge(
                    f"{len(self.fields)} fields whose values hold more than {_MAX_LOOKS * CHECK_EVERY} values "
                    "together are too much to be compared"
                )
            ctx.check_time()

        checks: list[Check] = []
        total = right = 0.0
        for rule, problem in self._compare(read.data, wanted, check):
            checks.append(Check(f"{rule.path}: {problem}" if problem else rule.path, not problem))
            total += rule.weight
            right += 0 if problem else rule.weight
        if not checks:
            return missing(self.on_missing, "None of the fields can be compared")
        wrong = [check.text for check in checks if not check.met]
        good = len(checks) - len(wrong)
        score = right / total if total else float(not wrong)
        # Compared exactly: every weight that is right was added to both sums in the same order.
        holds = right == total if total else not wrong
        if self.aggregation == "all":
            holds, score = not wrong, float(not wrong)
        reason = f"{good} of {len(checks)} field(s) right"
        if wrong:
            reason += f"; wrong: {'; '.join(wrong[:_MAX_LISTED])}"
        if len(wrong) > _MAX_LISTED:
            reason += f"; and {len(wrong) - _MAX_LISTED} more"
        listed = first_checks(checks)
        return passed(reason, score, checks=listed) if holds else failed(reason, score, checks=listed)

    def _compare(self, got: Any, wanted: Any, check: CheckTime) -> Iterator[tuple[FieldRule, str]]:
        """Each field that is compared, and what is wrong with it."""
        for rule in self.fields:
            check()
            mine, known = lookup(got, rule.steps), lookup(wanted, rule.steps)
            if known is MISSING:
                continue
            if mine is not MISSING:
                yield rule, rule.agrees(mine, known, check)
            elif rule.required:
                yield rule, "required, missing"
