r"""Assertion that the answer matches a regular expression, searched in linear time by RE2."""

import asyncio
import os
import re
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, Final

import re2
from pydantic import Field, field_validator

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator, InvalidConfig
from evald.result import ASSERTION, Result, failed, passed
from evald_server.jsonschema.keywords import literal_problem, matches_every_text

from .results import MessageChoice, no_answer, too_large
from .words import MAX_NORMALIZED, Normalize, normalized

MAX_PATTERN_BYTES: Final = 1024
# Memory of a compiled pattern and its tables. Compiling up to this limit takes 7 ms at most.
MAX_MEMORY_BYTES: Final = 512 * 1024
# Instructions times bytes of text. RE2 takes at most 13 ns for each: 130 ms. Most searches take 1 ns per byte, but
# the time cannot be predicted.
MAX_WORK: Final = 10_000_000
# 1.5 ms at most. Above it the search runs in a thread; RE2 releases the interpreter lock.
INLINE_WORK: Final = 80_000

_FLAGS: Final = "gimsu"

# Matches any escape, so that the `\\` of `\\u0041` is not read as the start of `\u0041`.
_ESCAPE: Final = re.compile(
    r"""
    \\(?:
        u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})
      | u(?P<code>[0-9a-fA-F]{4})
      | u\{(?P<braced>[0-9a-fA-F]{1,6})\}
      | .
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_NOT_LINEAR: Final = re.compile(r"invalid perl operator: \(\?<?[=!]|invalid escape sequence: \\[1-9k]")


def to_re2(pattern: str, flags: str = "") -> str:
    r"""Convert JavaScript's `\uXXXX`, `\u{...}` and flags to RE2's syntax; leave everything else as it is.

    The flag g has no effect on a search, and u is always on.
    """
    inline = "".join(sorted(set(flags) & set("ims")))
    return (f"(?{inline})" if inline else "") + _ESCAPE.sub(_convert_escape, pattern)


def _convert_escape(escape: re.Match[str]) -> str:
    if escape["high"]:
        code = 0x10000 + (int(escape["high"], 16) - 0xD800) * 0x400 + int(escape["low"], 16) - 0xDC00
    elif escape["code"] or escape["braced"]:
        code = int(escape["code"] or escape["braced"], 16)
    else:
        return escape[0]
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError(
            f"{escape[0]} is half of a surrogate pair; write both halves, or \\u{{...}} with the code point"
        )
    return f"\\x{{{code:X}}}"


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the thread pool for costly searches. It leaves one core to the event loop."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "evald-regex")


class Regex(Evaluator, type="regex", kind=ASSERTION, inline=True):
    r"""The answer matches a regular expression, anywhere in it.

    RE2's syntax: `\d`, `\w` and `\b` are ASCII, and there is neither look-around nor back-references.
    `\uXXXX` and JavaScript's flags are understood. With `mustMatch: false` the answer must not match.
    """

    pattern: str = Field(
        max_length=MAX_PATTERN_BYTES,
        description="Regular expression in RE2's syntax, at most 1 KiB. \\d, \\w and \\b match ASCII only; \\uXXXX "
        "is supported; look-around and back-references are not.",
    )
    flags: str = Field(
        "",
        description="i: ignore case. m: ^ and $ match at the start and end of every line. s: the dot matches "
        "newlines. g and u: ignored.",
        json_schema_extra={"pattern": f"^[{_FLAGS}]*$"},
    )
    must_match: bool = Field(True, description="If false: passes when the answer does not match.")
    normalize: Normalize = Field([])
    message: MessageChoice = "last"

    @property
    def forbids(self) -> bool:
        """Whether it passes when it finds nothing."""
        return not self.must_match

    @field_validator("flags")
    @classmethod
    def _known_flags(cls, flags: str) -> str:
        for flag in flags:
            if flag not in _FLAGS:
                raise ValueError(f"unknown flag {flag!r}; known flags are {', '.join(_FLAGS)}")
            if flags.count(flag) > 1:
                raise ValueError(f"flag {flag!r} given twice")
        return flags

    @cached_property
    def _compiled(self) -> Any:
        size = len(self.pattern.encode())
        if size > MAX_PATTERN_BYTES:
            raise ValueError(f"got {size} bytes, wanted at most {MAX_PATTERN_BYTES}")
        options = re2.Options()
        options.max_mem = MAX_MEMORY_BYTES
        options.log_errors = False
        if literal := literal_problem(self.pattern):
            raise ValueError(literal)
        try:
            compiled = re2.compile(to_re2(self.pattern, self.flags).encode(), options)
        except re2.error as problem:
            said = problem.args[0]
            text = said.decode() if isinstance(said, bytes) else str(said)
            hint = "; RE2 does not support look-around and back-references" if _NOT_LINEAR.match(text) else ""
            raise ValueError(f"RE2 does not accept the pattern: {text}{hint}") from None
        if matches_every_text(self.pattern, compiled):
            raise ValueError(
                "every text matches the pattern, so that nothing would be checked; write what the answer must contain, "
                "or length-within with min 1 if any text may pass"
            )
        return compiled

    @cached_property
    def _program_size(self) -> int:
        size: int = max(self._compiled.programsize, self._compiled.reverseprogramsize)
        return size

    @cached_property
    def _matched(self) -> str:
        which = "pattern" if self.must_match else "forbidden pattern"
        return f"Response matches {which}: {self.pattern}"

    @cached_property
    def _unmatched(self) -> str:
        which = "pattern" if self.must_match else "forbidden pattern"
        return f"Response does not match {which}: {self.pattern}"

    @cached_property
    def _passed(self) -> Result:
        return passed(self._matched if self.must_match else self._unmatched, 1.0)

    def prepare(self) -> None:
        """Compile the pattern."""
        try:
            _ = self._program_size, self._matched, self._unmatched
        except ValueError as problem:
            raise InvalidConfig.at("/pattern", str(problem)) from None

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Return score 1 or 0. A costly search runs in a thread; one over the limit is an ERROR."""
        if self.message == "last" and not self.normalize:
            text = ctx.answer_bytes
        else:
            answer = ctx.answer_of(self.message)
            if answer is not None and self.normalize:
                if len(answer) > MAX_NORMALIZED:
                    return too_large("characters to normalize", len(answer), MAX_NORMALIZED)
                answer = normalized(answer, self.normalize)
            text = None if answer is None else answer.encode("utf-8", "surrogatepass")
        if text is None:
            return no_answer(ctx)
        work = self._program_size * len(text)
        if work <= INLINE_WORK:
            return self._result(self._compiled.search(text))
        if work > MAX_WORK:
            return too_large("size of the compiled pattern times bytes of text", work, MAX_WORK)
        return self._search_in_thread(text)

    async def _search_in_thread(self, text: bytes) -> Result:
        loop = asyncio.get_running_loop()
        return self._result(await loop.run_in_executor(_threads(), self._compiled.search, text))

    def _result(self, match: object) -> Result:
        if (match is None) is not self.must_match:
            return self._passed
        return failed(self._unmatched if match is None else self._matched, 0.0)
