"""Assertions on the text of the answer, without patterns, and on the finish reason."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Result, failed, passed

from .results import MessageChoice, OnMissing, joined, missing, no_answer, one_required, quoted, too_large
from .words import MAX_NORMALIZED, Normalize, explain, normalized, split_words

# Characters times substrings. A search takes 0.7 ns per character, at worst 15, and case folding 6: 2 to 30 ms.
MAX_SEARCHED = 2_000_000
# Splitting into words takes 10 ns per character: 5 ms.
MAX_SPLIT = 500_000

_NOTHING = "there was nothing to look for, so the check passed without checking anything"

Length = Annotated[int, Field(ge=0)]
LengthUnit = Annotated[
    Literal["characters", "words"],
    Field(
        description="Unit of the length: Unicode code points, or words separated by white space; in Chinese, Japanese, "
        "Thai, Lao, Burmese and Khmer each letter with its marks is a word."
    ),
]


class ExactMatch(Evaluator, type="exact-match", kind=ASSERTION, aliases={"equals": {}}, inline=True):
    """The answer equals the expected text, character by character.

    Without `expected` it compares with the expected text of the context.
    `trim` ignores white space around both, `ignoreCase` folds case as Unicode does.
    """

    expected: str | None = Field(None, description="Expected text. Default: the context's expected text.")
    trim: bool = Field(False, description="Ignore white space at the start and end of both texts.")
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")
    normalize: Normalize = Field([])
    message: MessageChoice = "last"
    on_missing: OnMissing = "fail"

    @cached_property
    def _expected(self) -> str | None:
        return None if self.expected is None else self._normalised(self.expected)

    def _normalised(self, text: str) -> str:
        text = normalized(text, self.normalize)
        if self.trim:
            text = text.strip()
        return text.casefold() if self.ignore_case else text

    def prepare(self) -> None:
        """Normalise the expected text once."""
        _ = self._expected

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return score 1 if equal, else 0."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        reference = ctx.expected.text if self.expected is None else self.expected
        if reference is None:
            return missing(self.on_missing, "No expected text to compare with")
        if self.ignore_case and len(answer) + len(reference) > MAX_SEARCHED:
            return too_large("characters to compare", len(answer) + len(reference), MAX_SEARCHED)
        if problem := _too_long(self.normalize, answer):
            return problem
        expected = self._expected
        if expected is None:
            expected = self._normalised(reference)
        given = self._normalised(answer)
        if given == expected:
            return passed("output matches expected string", 1.0)
        hint = explain("equal", given, expected, str.__eq__)
        return failed(f"output {quoted(answer)} does not match expected {quoted(reference)}{hint}", 0.0)


def _too_long(forms: Sequence[str], text: str) -> Result | None:
    if forms and len(text) > MAX_NORMALIZED:
        return too_large("characters to normalize", len(text), MAX_NORMALIZED)
    return None


class Contains(
    Evaluator,
    type="contains",
    kind=ASSERTION,
    aliases={
        "contains-all": {"mode": "all"},
        "contains-any": {"mode": "any"},
        "icontains": {"ignoreCase": True},
        "icontains-all": {"mode": "all", "ignoreCase": True},
        "icontains-any": {"mode": "any", "ignoreCase": True},
    },
    inline=True,
):
    """The answer contains the text, or all or any of several texts.

    Score: the fraction found; with `mode: any` 1 or 0. An empty list passes.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["text"]}, {"required": ["substrings"]}]}
    )

    text: str | None = Field(None, description="The text to look for.")
    substrings: list[str] | None = Field(None, description="The texts to look for.")
    mode: Literal["all", "any"] = Field(
        "all", description="Whether the answer must contain all substrings, or any one."
    )
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")
    normalize: Normalize = Field([])
    message: MessageChoice = "last"

    @model_validator(mode="after")
    def _one_source(self) -> "Contains":
        if (self.text is None) == (self.substrings is None):
            raise ValueError("give exactly one of text and substrings")
        return self

    @cached_property
    def _wanted(self) -> list[str]:
        return [self.text] if self.text is not None else self.substrings or []

    @cached_property
    def _needles(self) -> list[str]:
        needles = [normalized(text, self.normalize) for text in self._wanted]
        return [text.casefold() for text in needles] if self.ignore_case else needles

    @cached_property
    def _suffix(self) -> str:
        return " (case-insensitive)" if self.ignore_case else ""

    @cached_property
    def _found_all(self) -> str:
        wanted = self._wanted
        if not wanted:
            return "no substrings to check"
        if len(wanted) == 1:
            return f"Output contains {quoted(wanted[0])}{self._suffix}"
        return f"all {len(wanted)} substrings found{self._suffix}"

    @cached_property
    def _passed(self) -> Result:
        return passed(self._found_all, 1.0, warning="" if any(self._needles) else _NOTHING)

    def prepare(self) -> None:
        """Fold the case of the substrings once."""
        _ = self._needles, self._passed

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Search for every substring."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        needles = self._needles
        work = len(answer) * len(needles)
        if work > MAX_SEARCHED:
            return too_large("characters times substrings to search", work, MAX_SEARCHED)
        if problem := _too_long(self.normalize, answer):
            return problem
        answer = normalized(answer, self.normalize)
        if self.ignore_case:
            answer = answer.casefold()
        for needle in needles:
            if needle not in answer:
                break
        else:
            return self._passed
        wanted, suffix = self._wanted, self._suffix
        if self.mode == "any":
            for text, needle in zip(wanted, needles, strict=True):
                if needle in answer:
                    warning = "" if needle else _NOTHING
                    return passed(f"Output contains {quoted(text)}{suffix}", 1.0, warning=warning)
            return failed(f"Output does not contain any of: {joined(wanted, quoted)}{suffix}", 0.0)
        lacking = [at for at, needle in enumerate(needles) if needle not in answer]
        missed = [wanted[at] for at in lacking]
        hint = explain("contained", answer, needles[lacking[0]], str.__contains__)
        names = joined(missed, quoted)
        if len(wanted) == 1:
            return failed(f"Output does not contain {names}{suffix}{hint}", 0.0)
        found = len(wanted) - len(missed)
        if hint and len(missed) > 1:
            hint = f"{hint[:2]}{quoted(missed[0])}: {hint[2:]}"
        return failed(
            f"{found}/{len(wanted)} substrings found, missing: {names}{suffix}{hint}", found / len(wanted)
        )


class _AtOneEnd(Evaluator, kind=ASSERTION, inline=True):
    text: str
    ignore_case: bool = Field(False, description="Ignore upper and lower case.")
    normalize: Normalize = Field([])
    message: MessageChoice = "last"

    at_start: ClassVar[bool]

    @cached_property
    def _wanted(self) -> str:
        wanted = normalized(self.text, self.normalize)
        return wanted.casefold() if self.ignore_case else wanted

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return score 1 or 0."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        if problem := _too_long(self.normalize, answer):
            return problem
        answer = whole = normalized(answer, self.normalize)
        wanted = self._wanted
        if self.ignore_case:
            # Case folding never shortens a text, so this part of the answer is enough.
            much = slice(len(wanted)) if self.at_start else slice(max(0, len(answer) - len(wanted)), None)
            answer = answer[much].casefold()
        verb = "start" if self.at_start else "end"
        if answer.startswith(wanted) if self.at_start else answer.endswith(wanted):
            warning = "" if wanted else _NOTHING
            return passed(f"Output {verb}s with {quoted(self.text)}", 1.0, warning=warning)
        at_end = str.startswith if self.at_start else str.endswith
        hint = explain(f"it {verb}s with it", whole, wanted, at_end)
        return failed(f"Output does not {verb} with {quoted(self.text)}{hint}", 0.0)


class StartsWith(_AtOneEnd, type="starts-with"):
    """The answer starts with the text."""

    text: str = Field(description="Text that the answer must start with.")
    at_start = True


class EndsWith(_AtOneEnd, type="ends-with"):
    """The answer ends with the text."""

    text: str = Field(description="Text that the answer must end with.")
    at_start = False


def length_of(text: str, unit: LengthUnit) -> int:
    """Return the number of Unicode code points, or of words."""
    return len(text) if unit == "characters" else len(split_words(text))


class LengthWithin(
    Evaluator, type="length-within", kind=ASSERTION, aliases={"word-count": {"unit": "words"}}, inline=True
):
    """The answer's length is at least `min` and at most `max`.

    Characters are Unicode code points; words are what white space separates,
    and each letter of scripts that put no space between words.
    """

    model_config = one_required("min", "max")

    min: Length | None = Field(None, description="Minimum length that passes.")
    max: Length | None = Field(None, description="Maximum length that passes.")
    unit: LengthUnit = "characters"
    message: MessageChoice = "last"

    @model_validator(mode="after")
    def _some_range(self) -> "LengthWithin":
        if self.min is None and self.max is None:
            raise ValueError("no limit set; set min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"got min {self.min} and max {self.max}, wanted min <= max")
        return self

    @cached_property
    def _range(self) -> str:
        if self.min is None:
            return f"at most {self.max}"
        if self.max is None:
            return f"at least {self.min}"
        return f"exactly {self.min}" if self.min == self.max else f"{self.min} to {self.max}"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return score 1 or 0. value: the length."""
        answer = ctx.answer_of(self.message)
        if answer is None:
            return no_answer(ctx)
        if self.unit == "words" and len(answer) > MAX_SPLIT:
            return too_large("characters to split into words", len(answer), MAX_SPLIT)
        length = length_of(answer, self.unit)
        reason = f"Response length: {length} {self.unit}, wanted {self._range}"
        if (self.min is None or length >= self.min) and (self.max is None or length <= self.max):
            return passed(reason, 1.0, length)
        return failed(reason, 0.0, length)


class FinishReason(
    Evaluator,
    type="finish-reason",
    kind=ASSERTION,
    required_data=("last_invocation.metadata.finish_reason",),
    inline=True,
):
    """The model stopped for one of the allowed reasons, for example "stop".

    Reads the invocation's metadata: `finish_reason`, `finishReason` or
    `stop_reason`, whichever comes first in this list.
    """

    allowed: list[str] = Field(min_length=1, description="Reasons that pass, as the model names them.")
    on_missing: OnMissing = "fail"

    def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Return score 1 or 0."""
        actual = ctx.last_invocation.finish_reason
        if actual is None:
            return missing(self.on_missing, "No finish reason available")
        if actual in self.allowed:
            return passed(f"Finish reason {quoted(actual)} is allowed", 1.0)
        names = joined(self.allowed, quoted)
        return failed(f"Finish reason {quoted(actual)} is not one of: {names}", 0.0)
