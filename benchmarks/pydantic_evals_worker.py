# mypy: disable-error-code="import-not-found, misc, no-any-return"
# mypy does not see the package pydantic-evals.
"""A worker that runs the same five checks with pydantic-evals, in its fastest configuration.

It runs in its own virtual environment, without evald. The first line of standard input is JSON with the turns and
configs. Each further line is a number of seconds to work; then it prints the number of turns and the time taken.

With three arguments (a file of cases as for `evald test`, a concurrency and an event loop) it evaluates the file once.

The evaluators follow the documentation of pydantic-evals, with their config in fields. Tuned for speed: validator and
pattern compiled once; the schema as text, because fields are serialised for every result; a coroutine as the task,
because functions run in threads; no progress bar, no logfire; the best of several concurrencies and both event loops.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import uvloop
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext

SETUP = json.loads(sys.stdin.readline())


@dataclass
class PydanticTurn:
    answer: str
    latency_ms: float
    tokens: int


@dataclass
class PydanticJsonSchema(Evaluator[PydanticTurn, PydanticTurn]):
    schema: str

    def __post_init__(self) -> None:
        self._validator = jsonschema_rs.validator_for(json.loads(self.schema))

    def evaluate(self, ctx: EvaluatorContext[PydanticTurn, PydanticTurn]) -> EvaluationReason:
        if self._validator.is_valid(json.loads(ctx.output.answer)):
            return EvaluationReason(True, "Response matches JSON schema")
        return EvaluationReason(False, "Response does not match JSON schema")


@dataclass
class PydanticRegex(Evaluator[PydanticTurn, PydanticTurn]):
    pattern: str

    def __post_init__(self) -> None:
        self._compiled = re.compile(self.pattern)

    def evaluate(self, ctx: EvaluatorContext[PydanticTurn, PydanticTurn]) -> EvaluationReason:
        if self._compiled.search(ctx.output.answer):
            return EvaluationReason(True, f"Response matches pattern: {self.pattern}")
        return EvaluationReason(False, f"Response does not match pattern: {self.pattern}")


@dataclass
class PydanticContains(Evaluator[PydanticTurn, PydanticTurn]):
    substrings: list[str]

    def evaluate(self, ctx: EvaluatorContext[PydanticTurn, PydanticTurn]) -> EvaluationReason:
        answer = ctx.output.answer
        missing = [text for text in self.substrings if text not in answer]
        if missing:
            return EvaluationReason(False, f"missing: {', '.join(missing)}")
        return EvaluationReason(True, f"all {len(self.substrings)} substrings found")


@dataclass
class PydanticLatencyBudget(Evaluator[PydanticTurn, PydanticTurn]):
    max_ms: float

    def evaluate(self, ctx: EvaluatorContext[PydanticTurn, PydanticTurn]) -> EvaluationReason:
        actual = ctx.output.latency_ms
        return EvaluationReason(actual <= self.max_ms, f"Response took {actual}ms of {self.max_ms}ms")


@dataclass
class PydanticTokenBudget(Evaluator[PydanticTurn, PydanticTurn]):
    max_tokens: int

    def evaluate(self, ctx: EvaluatorContext[PydanticTurn, PydanticTurn]) -> EvaluationReason:
        actual = ctx.output.tokens
        return EvaluationReason(
            actual <= self.max_tokens, f"Response took {actual} of {self.max_tokens} tokens"
        )


async def task(turn: PydanticTurn) -> PydanticTurn:
    return turn


def dataset(turns: list[PydanticTurn]) -> Dataset[PydanticTurn, PydanticTurn, Any]:
    return Dataset(
        name="turns",
        cases=[Case(name=f"case-{index}", inputs=turn) for index, turn in enumerate(turns)],
        evaluators=[
            PydanticJsonSchema(json.dumps(SETUP["schema"])),
            PydanticRegex(SETUP["pattern"]),
            PydanticContains(SETUP["substrings"]),
            PydanticLatencyBudget(SETUP["max_latency_ms"]),
            PydanticTokenBudget(SETUP["max_tokens"]),
        ],
    )


DATASET = dataset([PydanticTurn(**turn) for turn in SETUP["turns"]])

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


async def turns(seconds: float, max_concurrency: int | None) -> tuple[int, float]:
    """Evaluate turns for `seconds`. Return the number of turns and the time taken in seconds."""
    done = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        report = await DATASET.evaluate(task, max_concurrency=max_concurrency, progress=False)
        done += len(report.cases)
        case = report.cases[0]
        assert not report.failures
        assert [result.value for result in case.assertions.values()] == [True] * 5, case
    return done, time.perf_counter() - began


def once(file: str, max_concurrency: int | None, loop: str) -> None:
    """Evaluate the cases of a file, and print the number of cases. All must pass."""
    with Path(file).open() as lines:
        next(lines)  # the suite's own line
        outputs = [json.loads(line)["output"] for line in lines]
    found = [
        PydanticTurn(one["messages"][-1]["content"], one["latency_ms"], sum(one["usage"].values()))
        for one in outputs
    ]
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        report = runner.run(dataset(found).evaluate(task, max_concurrency=max_concurrency, progress=False))
    averages = report.averages()
    assert len(report.cases) == len(found)
    assert averages is not None
    assert averages.assertions == 1
    print(f"{len(found)} cases, all assertions passed")


def main() -> None:
    """Find the best setting, then measure with it."""
    best: tuple[float, str, int | None] = (0.0, "", None)
    for name, loop_factory in LOOPS.items():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            for max_concurrency in (1, 4, 16, 64, None):
                done, took = runner.run(turns(0.3, max_concurrency))
                best = max(best, (done / took, name, max_concurrency), key=lambda found: found[0])
    _, name, max_concurrency = best
    print(f"max_concurrency={json.dumps(max_concurrency)}, {name}", flush=True)
    with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(turns(float(line), max_concurrency))), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        once(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
    else:
        main()
