"""Judge models with scripted answers, which record their requests."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from evald.context import EvaluatorContext
from evald.convert.spec import spec_to_pb
from evald.result import Result, TokenUsage
from evald.threads import Threads
from evald.turn import Turn
from evald.v1.result_pb2 import AggregatedEvaluation
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from evald_server.judge.answer_parsing import parse_object
from evald_server.judge.llm_judge import judge_definition
from evald_server.judge.prompt_request import (
    CallSpending,
    JudgeError,
    JudgeModels,
    ModelAnswer,
    PromptRequest,
)
from tests.summaries import aggregated

from ..loop import run as in_loop

Reply: TypeAlias = "str | Mapping[str, Any] | Exception | Callable[[PromptRequest], Any]"
"""Text, or an object as JSON text, or what is raised; or what makes one of these of the question,
perhaps later."""

PRICE = 0.001
"""What an attempt costs, in US dollars."""


class ScriptedModel:
    """A model with a list of answers, of which the last is repeated."""

    def __init__(self, replies: Sequence[Reply], endpoint: str = "default", model: str = "scripted") -> None:
        self._replies = list(replies)
        self._model = model
        self._endpoint = endpoint
        self.questions: list[PromptRequest] = []
        self.asked = asyncio.Event()
        self.cancelled = 0
        self.cached = False
        self.calibration_card = ""

    @property
    def model(self) -> str:
        """The configured model."""
        return self._model

    @property
    def endpoint(self) -> str:
        """The endpoint's name in the config."""
        return self._endpoint

    async def ask(self, question: PromptRequest, spending: CallSpending) -> ModelAnswer:
        """Answer, and report 10 input tokens, 5 output tokens and PRICE."""
        position = min(len(self.questions), len(self._replies) - 1)
        self.questions.append(question)
        self.asked.set()
        spending.attempts += 1
        usage = spending.usage or TokenUsage(0, 0)
        spending.usage = TokenUsage((usage.input_tokens or 0) + 10, (usage.output_tokens or 0) + 5)
        spending.cost_usd = (spending.cost_usd or 0.0) + PRICE
        reply: Any = self._replies[position]
        if callable(reply):
            reply = reply(question)
        if asyncio.iscoroutine(reply):
            try:
                reply = await reply
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if isinstance(reply, Exception):
            raise reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return self._answer(question, text)

    def _answer(self, question: PromptRequest, text: str) -> ModelAnswer:
        request = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": question.system_message},
                {"role": "user", "content": question.user_message},
                *({"role": turn.role, "content": turn.text} for turn in question.follow_up),
            ],
        }
        if question.schema is None:
            return ModelAnswer(text, None, f"{self._model}-2026", request, self.cached)
        try:
            data = parse_object(text)
        except ValueError as problem:
            raise JudgeError("JUDGE_UNPARSEABLE", str(problem), unusable=True, text=text) from None
        return ModelAnswer(text, data, f"{self._model}-2026", request, self.cached)


class ScriptedModels:
    """Judges by name. default: the replies of the judge without a name."""

    def __init__(self, *default: Reply, **judges: Sequence[Reply]) -> None:
        self.by_name = {name: ScriptedModel(replies, name) for name, replies in judges.items()}
        if default:
            self.by_name["default"] = ScriptedModel(default)

    @property
    def default(self) -> ScriptedModel:
        """The default judge."""
        return self.by_name["default"]

    def get(self, judge: str | None, model: str | None) -> ScriptedModel:
        """Return the judge of this name, whatever the model."""
        name = judge or "default"
        if name not in self.by_name:
            raise ValueError(f'no judge "{name}"; the judges are: {", ".join(self.by_name) or "none"}')
        if model is not None:
            self.by_name[name]._model = model
        return self.by_name[name]


TURN = Turn(
    [{"role": "user", "content": "Where is my order?"}, {"role": "assistant", "content": "In Ghent."}],
    is_final=True,
)


def judge(models: ScriptedModels, config: Mapping[str, Any], turn: Turn = TURN) -> Result:
    """Compile the config as a server does, and return the result."""
    return in_loop(judge_later(models, config, turn.context))


async def judge_later(models: ScriptedModels, config: Mapping[str, Any], ctx: EvaluatorContext) -> Result:
    """The same, within the event loop of a test."""
    outcome = judge_definition(models).compile(config)(ctx)
    assert not isinstance(outcome, Result)
    return await outcome


def evaluate(
    models: JudgeModels,
    *specs: Mapping[str, Any],
    turn: Turn = TURN,
    seconds: float | None = 5.0,
) -> AggregatedEvaluation:
    """Run a plan with these specs in an engine, and return the summary."""
    return in_loop(evaluate_later(models, *specs, turn=turn, seconds=seconds))


async def evaluate_later(
    models: JudgeModels,
    *specs: Mapping[str, Any],
    turn: Turn = TURN,
    seconds: float | None = 5.0,
) -> AggregatedEvaluation:
    """The same, within the event loop of a test."""
    registry = Registry()
    registry.register(judge_definition(models), Origin.BUILT_IN)
    raw = tuple(spec_to_pb(spec).SerializeToString() for spec in specs)
    plan = Planner(registry).plan(raw, b"")
    run = EvaluationRun(plan, turn.context, Threads())
    if run.pending:
        async for _ in run.run_pending(seconds, 16):
            pass
    return aggregated(run)


def criteria(success: bool, failure: bool = False, confidence: float = 0.9, why: str = "because") -> Reply:
    """Return an answer in the criteria form."""
    return {"successMet": success, "failureMet": failure, "confidence": confidence, "reasoning": why}


def score(number: float, why: str = "because") -> Reply:
    """Return an answer in the score form."""
    return {"score": number, "hits": ["this"], "misses": ["that"], "reasoning": why}


def fault(code: str, *, unusable: bool = False, text: str = "") -> JudgeError:
    """Return the fault of an endpoint."""
    return JudgeError(code, f"{code.lower()} as told", unusable=unusable, text=text)


def later(seconds: float, reply: Reply) -> Reply:
    """Delay a reply beyond a deadline or the duration of a test."""

    async def wait() -> Reply:
        await asyncio.sleep(seconds)
        return reply

    return lambda _question: wait()


_DATA = re.compile(r"^<data-([0-9a-f]{32})>\n(.*?)^</data-\1>$", re.DOTALL | re.MULTILINE)


def outside(material: str) -> str:
    """Return the text outside the fence, with the nonce blanked."""
    found = _DATA.search(material)
    assert found, material
    return _DATA.sub("<data>\n</data>", material).replace(found[1], "nonce")


def inside(material: str) -> list[dict[str, Any]]:
    """Return the decoded records inside the fence."""
    records = []
    for found in _DATA.finditer(material):
        for line in found[2].splitlines():
            with suppress(ValueError):
                records.append(json.loads(line))
                continue
            raise AssertionError(f"no JSON inside the fence: {line!r}")
    return records
