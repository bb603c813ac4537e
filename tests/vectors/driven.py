"""Runs with a scripted agent, user and judge, for vectors of EvalStudio's loop."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evald.context import EvaluatorContext
from evald.evaluator import EvaluatorDefinition, define_evaluator
from evald.result import Kind, Result, Verdict
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.run_service_pb2 import Run, RunStatus
from evald_server.runs.loop import RunLoop

from ..judge.scripted import Reply
from ..runs.fake_store import FakeStore
from ..runs.scripted import Answer, ScriptedAgent, Talker, engine, parts, queued, whole
from .replay import Outcome


class ScriptedUse:
    """An evaluator with a result for each turn, the last one repeated, which records its contexts."""

    def __init__(self, type: str, kind: Kind, results: Sequence[Result | Exception]) -> None:  # noqa: A002
        self.type = type
        self.kind = kind
        self.results = results
        self.seen: list[dict[str, Any]] = []

    def definition(self) -> EvaluatorDefinition:
        """Return the type."""
        return define_evaluator(type=self.type, kind=self.kind, evaluate=self._evaluate, inline=True)

    def _evaluate(self, ctx: EvaluatorContext) -> Result:
        result = self.results[min(len(self.seen), len(self.results) - 1)]
        self.seen.append(
            {
                "type": self.type,
                "turn": ctx.turn,
                "isFinal": ctx.is_final,
                "messages": len(ctx.messages),
                "lastMessages": len(ctx.turn_messages),
            }
        )
        if isinstance(result, Exception):
            raise result
        return result


@dataclass(frozen=True)
class Drive:
    """A run from its first message to its end."""

    scenario: Scenario
    uses: Sequence[ScriptedUse]
    answers: Sequence[Answer]
    judge: Sequence[Reply]
    persona: Persona | None = None

    def __call__(self) -> Outcome:
        """Play the run."""
        return asyncio.run(self._play())

    async def _play(self) -> Outcome:
        store, agent, user = FakeStore(), ScriptedAgent(*self.answers), Talker()
        made = engine(*self.judge, definitions=[use.definition() for use in self.uses])
        run = queued(self.scenario, self.persona)
        await store.create([run])
        loop = RunLoop(run, [], parts(made), connector=agent, user=user, save=store.save)
        await loop.drive()
        ended = await whole(store, run.id)
        return Outcome(
            run={
                **_shown(ended),
                "turns": len(agent.requests),
                "judge_calls": len(made.models.default.questions),  # type: ignore[attr-defined]
                "persona_messages_generated": user.said,
                "evaluator_contexts": [seen for use in self.uses for seen in use.seen],
            }
        )


def _shown(run: Run) -> Mapping[str, Any]:
    """Return a run as EvalStudio shows it, without the result of the criteria."""
    shown: dict[str, Any] = {
        "status": RunStatus.Name(run.status).removeprefix("RUN_STATUS_").lower(),
        "verdict": Verdict(run.verdict),
        "error": run.error.message,
        "success": run.result.success,
        "score": run.result.score,
        "reason": run.result.reason,
        "messageCount": run.output.message_count,
        "maxMessagesReached": run.output.max_messages_reached,
        "roles": [message.role for message in run.messages],
        "metrics": dict(run.output.metrics),
        "evaluatorResults": [
            {
                "type": result.type,
                "kind": Kind(result.kind).name.lower(),
                "success": result.success,
                "reason": result.reason,
                **({"value": result.value} if result.HasField("value") else {}),
            }
            for result in run.output.evaluator_results
            if result.name != "criteria"
        ],
    }
    if run.output.HasField("evaluation"):
        said = run.output.evaluation
        shown["evaluation"] = {
            "successMet": said.success_met,
            "failureMet": said.failure_met,
            "confidence": said.confidence,
            "reasoning": said.reasoning,
        }
    return shown
