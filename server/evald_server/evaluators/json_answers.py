"""Assertions that the answer is JSON and matches a JSON Schema, and the parser of JSON in an answer."""

import json
import re
from collections.abc import Awaitable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Result, errored, failed, passed, skipped
from evald.strict_json import AmbiguousJson, TooLarge, parse_json, parse_json_at
from evald_server.jsonschema.check import SchemaError
from evald_server.jsonschema.pool import PoolBusy, TaskTimeout
from evald_server.jsonschema.schema import Schema, worker_seconds
from evald_server.untrusted import encodable

from .json_values import MISSING, CheckTime
from .results import MessageChoice, OnMissing, UnreadableAnswer, missing, no_answer

Extract = Literal["none", "fenced", "first", "object"]
"""The place of the JSON in the answer."""

_NOT_FINAL: Final = skipped("Skipped (not final turn)")
_IS_JSON: Final = passed("Response is valid JSON", 1.0)

# Characters that `first` and `object` may read: this many times the answer, plus a hundred attempts at braces without JSON.
_REREADS: Final = 5
_ATTEMPT: Final = 64

_HALF_CHARACTER: Final = "a string contains half of a surrogate pair, which is not a character"


class Read(NamedTuple):
    """The JSON in an answer: its text and its value."""

    text: str
    data: Any


class JsonAnswer(Evaluator):
    """Base of evaluators that read the answer as JSON."""

    message: MessageChoice = "last"
    extract: Extract = Field(
        "none",
        description="Where the JSON is in the answer. none: the whole answer. fenced: the first fenced code block "
        "marked json, else the first fenced code block, else the whole answer. first: the first JSON "
        "object or array, else the whole answer. object: the first JSON object, else none.",
    )

    def read(self, ctx: EvaluatorContext) -> Read | Result:
        """Return the JSON of the answer, or the failed result if there is none. Raises TooLarge and UnreadableAnswer."""
        found = ctx.once(("json", self.message, self.extract), lambda: self._find(ctx))
        if isinstance(found, TooLarge):
            raise TooLarge(str(found))
        if isinstance(found, AmbiguousJson):
            raise _ambiguous(found)
        return found

    def _find(self, ctx: EvaluatorContext) -> Read | Result | TooLarge | AmbiguousJson:
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        try:
            if self.extract == "first":
                return next(_json_in(answer, _OBJECT_OR_ARRAY, ctx.check_time), None) or _scalar(answer)
            if self.extract == "object":
                return next(_json_in(answer, _OBJECT, ctx.check_time), None) or _NO_OBJECT
            text = _fenced(answer, ctx.check_time) if self.extract == "fenced" else answer
            return Read(text, parse_json(text, ctx.check_time))
        except (AmbiguousJson, TooLarge) as problem:
            return problem
        except ValueError as problem:
            return _not_json(str(problem))


def _ambiguous(problem: AmbiguousJson) -> UnreadableAnswer:
    return UnreadableAnswer(f"Response is JSON that parsers read in different ways: {problem}")


def _not_json(problem: str) -> Result:
    return failed(f"Response is not valid JSON: {problem}", 0.0)


_NO_OBJECT: Final = _not_json("it holds no object")

# CommonMark allows three spaces before a fence, and more within a list.
_FENCE = re.compile(r"^[ \t]*(?:(`{3,})([^\n`]*)|(~{3,})([^\n]*))\n", re.MULTILINE)


def _fenced(text: str, check: CheckTime) -> str:
    """Return the content of the first fenced block marked as JSON, else of the first block, else the text."""
    first: str | None = None
    opening = _FENCE.search(text)
    while opening:
        check()
        fence, info = opening[1] or opening[3], opening[2] or opening[4] or ""
        closing = re.compile(rf"^[ \t]*{fence}{fence[0]}*[ \t\r]*$", re.MULTILINE).search(text, opening.end())
        inside = text[opening.end() : closing.start() if closing else len(text)]
        if info.strip().lower().startswith("json"):
            return inside
        first = inside if first is None else first
        opening = _FENCE.search(text, closing.end()) if closing else None
    return text if first is None else first


_OBJECT = re.compile(r"\{")
_OBJECT_OR_ARRAY = re.compile(r"[{\[]")


def _json_in(text: str, brackets: re.Pattern[str], check: CheckTime) -> Iterator[Read]:
    """Yield each JSON in the text that begins with one of the brackets, and is not within another one.

    Raises TooLarge if the text was read _REREADS times without success, or if the JSON is too large for evald. Raises
    AmbiguousJson as `parse_json` does. In both cases, no JSON nested in it is tried, because it is not the first.
    """
    left = _REREADS * len(text) + 100 * _ATTEMPT
    opening = brackets.search(text)
    while opening and left > 0:
        check()
        start = end = opening.start()
        try:
            data, end = parse_json_at(text, start)
        except json.JSONDecodeError as problem:
            # Creating the error counts the lines before it, which takes time.
            left -= problem.pos - start + problem.pos // 16 + _ATTEMPT
        except AmbiguousJson:
            raise
        except ValueError:  # NaN
            left -= len(text) - start
        else:
            yield Read(text[start:end], data)
        opening = brackets.search(text, max(end, start + 1))
    if opening:
        raise TooLarge(
            f"no JSON found at the {len(brackets.findall(text))} places of the answer where JSON may begin, after "
            f"reading its {len(text)} characters {_REREADS} times; set extract to none or fenced, which read them once"
        )


def _outside_objects(read: Read, arrays: bool) -> Iterator[Read]:
    """Yield the JSON, if it may be one that is asked for, and the objects and arrays in its arrays."""
    if arrays or not isinstance(read.data, list):
        yield read
    if isinstance(read.data, list):
        for data in read.data:
            if isinstance(data, dict | list):
                yield from _outside_objects(Read(json.dumps(data), data), arrays)


def _scalar(text: str) -> Read | Result:
    try:
        return Read(text, parse_json(text))
    except ValueError:
        return _not_json("it contains no object or array, and the whole answer is not JSON")


class IsJson(JsonAnswer, type="is-json", kind=ASSERTION, label="Is JSON", inline=True):
    """The answer is JSON.

    Strict JSON: no NaN, no comments, nothing before or after. Numbers, texts,
    true, false and null are JSON too.
    """

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Parse the answer."""
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

    schema_: dict[str, Any] | bool = Field(
        alias="schema",
        description="JSON Schema of the answer. Unknown keywords and schemas that accept everything are refused; "
        "OpenAPI's nullable and the wrapper of response_format are understood.",
    )
    only_final: bool = Field(False, description="Skip all turns except the final one.")
    extract: Literal["none", "fenced", "first", "object", "any"] = Field(  # type: ignore[assignment]
        "none",
        description=f"{JsonAnswer.model_fields['extract'].description} any: the first JSON object, not within another "
        "one, that the schema accepts; arrays count if the schema has type array.",
    )

    @cached_property
    def _compiled(self) -> Schema:
        return Schema.of_spec(self.schema_)

    @cached_property
    def _matches(self) -> Result:
        warning = (
            "the schema accepts every JSON, so nothing else was checked" if self._compiled.vacuous else ""
        )
        return passed("Response matches JSON schema", 1.0, warning=warning)

    def prepare(self) -> None:
        """Compile the schema."""
        _ = self._matches

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Check the answer on the event loop, or in a worker process if it may take long."""
        if self.only_final and not ctx.is_final:
            return _NOT_FINAL
        if self.extract == "any":
            return self._any(ctx)
        read = self.read(ctx)
        return read if isinstance(read, Result) else self._check(read)

    def _any(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Return the result of the first JSON that the schema accepts, else of the first one."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        candidates = self._candidates(answer, ctx.check_time)
        failure: Result | None = None
        for candidate in candidates:
            result = self._check(candidate)
            if not isinstance(result, Result):
                return self._any_in_worker(result, candidates, failure)
            if result.passed:
                return result
            failure = failure or result
        return failure or _NO_OBJECT

    async def _any_in_worker(
        self, result: Result | Awaitable[Result], candidates: Iterator[Read], failure: Result | None
    ) -> Result:
        while True:
            settled = result if isinstance(result, Result) else await result
            if settled.passed or settled.error is not None:
                return settled
            failure = failure or settled
            candidate = next(candidates, None)
            if candidate is None:
                return failure
            result = self._check(candidate)

    def _candidates(self, answer: str, check: CheckTime) -> Iterator[Read]:
        kind = self._compiled.root_type
        arrays = kind == "array" or (isinstance(kind, list) and "array" in kind)
        try:
            for read in _json_in(answer, _OBJECT_OR_ARRAY, check):
                for candidate in _outside_objects(read, arrays):
                    check()
                    yield candidate
        except AmbiguousJson as problem:
            raise _ambiguous(problem) from None

    def _check(self, read: Read) -> Result | Awaitable[Result]:
        text, data = read
        schema = self._compiled
        if len(text) > schema.inline_bytes:
            return self._evaluate_in_worker(text)
        try:
            if schema.is_valid(data):
                return self._matches
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
            return errored(
                "EVALUATOR_BUSY",
                "Too many costly JSON Schemas are being checked at the moment; try again later",
            )
        if errors is None:
            return _not_json(_HALF_CHARACTER)
        return _mismatch(errors) if errors else self._matches


def _mismatch(errors: Sequence[SchemaError]) -> Result:
    listed = "; ".join(f"{error['path'] or 'the whole answer'}: {error['message']}" for error in errors)
    shown_errors = [{key: encodable(text) for key, text in error.items()} for error in errors]
    return failed(f"Schema validation failed: {encodable(listed)}", 0.0, metadata={"errors": shown_errors})


class Reference(JsonAnswer):
    """Base of evaluators that compare the answer with expected data."""

    expected: Any = Field(None, description="Expected data. Default: the context's expected data.")
    on_missing: OnMissing = Field(
        "fail", description="Verdict if there is no expected data; error: ERROR with code MISSING_DATA."
    )

    @cached_property
    def _own(self) -> bool:
        return "expected" in self.model_fields_set

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Compare the answer with the expected data, if both exist."""
        wanted = self.reference(ctx)
        if wanted is MISSING:
            return missing(self.on_missing, "No expected data available")
        read = self.read(ctx)
        if isinstance(read, Result):
            return read
        return self.compare(ctx, read.data, wanted)

    def compare(self, ctx: EvaluatorContext, got: Any, wanted: Any) -> Result:
        """Compare the answer's data with the expected data."""
        raise NotImplementedError

    def reference(self, ctx: EvaluatorContext) -> Any:
        """Return the expected data, MISSING if there is none.

        It comes from the config, else from the context, else from its expected text or last expected answer, parsed
        as JSON.
        """
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
                except AmbiguousJson as problem:
                    raise UnreadableAnswer(
                        f"The expected answer is JSON that parsers read in different ways: {problem}"
                    ) from None
                except ValueError:
                    return MISSING
        return MISSING
