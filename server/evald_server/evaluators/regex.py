"""Assertion that the answer matches a regular expression, in linear time."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

import re2
from pydantic import Field, field_validator

from evald.context import EvaluatorContext, Which
from evald.evaluator import ConfigProblem, Evaluator, InvalidConfig
from evald.result import ASSERTION, Result, failed, passed

from .js_regex import FLAGS, to_re2
from .missing import nothing_said
from .plain_regex import compile_plain
from .texts import too_large

MAX_PATTERN_BYTES = 1024
# What a program and its tables may take. Compiling up to it takes 7 ms at worst.
MAX_MEMORY_BYTES = 512 * 1024
# RE2 takes at worst 13 ns for each instruction of the program and byte of the text: 130 ms at the limit. Most
# searches take 1 ns a byte, but which do is known only afterwards.
MAX_WORK = 10_000_000
# 1.5 ms at worst: above it, the search runs beside the event loop. RE2 releases the interpreter lock.
INLINE_WORK = 80_000


@cache
def _threads() -> ThreadPoolExecutor:
    """Where costly searches run; one core stays with the event loop."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "evald-regex")


class Regex(Evaluator, type="regex", kind=ASSERTION, inline=True):
    r"""The answer matches a regular expression, anywhere in it.

    The syntax is JavaScript's; `\d`, `\w` and `\b` know ASCII only. Lookaround
    and backreferences are refused. With `mustMatch: false` the answer must not
    match.
    """

    pattern: str = Field(
        max_length=MAX_PATTERN_BYTES, description="Regular expression in JavaScript's syntax, at most 1 KiB."
    )
    flags: str = Field(
        "",
        description="i ignore case, m anchors match at lines, s dot matches line ends, u Unicode; g is ignored.",
        json_schema_extra={"pattern": f"^[{FLAGS}]*$"},
    )
    must_match: bool = Field(True, description="False: pass when the answer does not match.")
    message: Which = "last"

    @field_validator("flags")
    @classmethod
    def _known_flags(cls, flags: str) -> str:
        for flag in flags:
            if flag not in FLAGS:
                raise ValueError(f"unknown flag {flag!r}, wanted some of {', '.join(FLAGS)}")
            if flags.count(flag) > 1:
                raise ValueError(f"flag {flag!r} given twice")
        return flags

    @cached_property
    def _compiled(self) -> Any:
        size = len(self.pattern.encode())
        if size > MAX_PATTERN_BYTES:
            raise ValueError(f"{size} bytes, at most {MAX_PATTERN_BYTES}")
        options = re2.Options()
        options.max_mem = MAX_MEMORY_BYTES
        options.log_errors = False
        try:
            return re2.compile(to_re2(self.pattern, self.flags).encode(), options)
        except re2.error as problem:
            said = problem.args[0]
            text = said.decode() if isinstance(said, bytes) else str(said)
            raise ValueError(f"RE2 refuses the pattern: {text}") from None

    @cached_property
    def _search(self) -> Callable[[bytes], object]:
        """For texts that are searched at once."""
        compiled = self._compiled
        search: Callable[[bytes], object] = (compile_plain(self.pattern, self.flags) or compiled).search
        return search

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
    def usual(self) -> Result:
        """What it answers when the turn passes: always the same object."""
        return passed(self._matched if self.must_match else self._unmatched, 1.0)

    def prepare(self) -> None:
        """Compile the pattern; a bad one is refused with its position."""
        try:
            _ = self._search, self._program_size, self._matched, self._unmatched
        except ValueError as problem:
            raise InvalidConfig([ConfigProblem("/pattern", str(problem))]) from None

    def evaluate(self, ctx: EvaluatorContext) -> Result | Awaitable[Result]:
        """Score 1 or 0. A costly search is awaited in a thread, one over the limit is an ERROR."""
        if self.message == "last":
            text = ctx.answer_bytes
        else:
            answer = ctx.answer_of(self.message)
            text = None if answer is None else answer.encode("utf-8", "surrogatepass")
        if text is None:
            return nothing_said(ctx)
        work = self._program_size * len(text)
        if work <= INLINE_WORK:
            return self._result(self._search(text))
        if work > MAX_WORK:
            return too_large("program size times bytes of text", work, MAX_WORK)
        return self._search_in_thread(text)

    async def _search_in_thread(self, text: bytes) -> Result:
        loop = asyncio.get_running_loop()
        return self._result(await loop.run_in_executor(_threads(), self._compiled.search, text))

    def _result(self, match: object) -> Result:
        if (match is None) is not self.must_match:
            return self.usual
        return failed(self._unmatched if match is None else self._matched, 0.0)
