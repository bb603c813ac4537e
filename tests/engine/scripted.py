"""An engine with scripted evaluators."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evald.context import EvaluatorContext
from evald.evaluator import EvaluatorDefinition
from evald.result import Kind, Metric, Verdict, errored, failed, measured, passed, skipped
from evald.threads import Threads
from evald.v1 import context_pb2, evaluation_service_pb2, evaluator_pb2, result_pb2
from evald_server.engine.combinators import combinators
from evald_server.engine.planner import Planner
from evald_server.engine.registry import Origin, Registry
from evald_server.engine.run import EvaluationRun
from tests.summaries import aggregated

from ..loop import run as in_loop

Behaviour = Callable[[EvaluatorContext], Any]


def definition(
    name: str,
    behaviour: Behaviour,
    kind: Kind = Kind.ASSERTION,
    *,
    inline: bool = True,
    **more: Any,
) -> EvaluatorDefinition:
    """Return a type with a scripted behaviour, whatever its config."""
    return EvaluatorDefinition(
        type=name,
        kind=kind,
        label=name.title(),
        description="",
        config_schema=lambda: "{}",
        compile=lambda _config: behaviour,
        inline=inline,
        metric=Metric() if kind is Kind.METRIC else None,
        **more,
    )


def _by_config(config: Mapping[str, Any]) -> Behaviour:
    def behave(_ctx: EvaluatorContext) -> Any:
        return outcome(config)

    return behave


def _async_by_config(config: Mapping[str, Any]) -> Behaviour:
    async def behave(_ctx: EvaluatorContext) -> Any:
        await asyncio.sleep(config.get("seconds", 0))
        return outcome(config)

    return behave


def outcome(config: Mapping[str, Any]) -> Any:
    """Return or raise the scripted result. do: pass, fail, error, skip, raise, nan, nonsense or measure."""
    score = config.get("score")
    match config["do"]:
        case "pass":
            return passed("passed as told", score)
        case "fail":
            return failed("failed as told", score, pending=config.get("pending", False))
        case "error":
            return errored("REMOTE_UNAVAILABLE", "broken as told")
        case "skip":
            return skipped("skipped as told")
        case "raise":
            raise RuntimeError("secret-7f3a at /etc/passwd")
        case "nan":
            return passed("not a number", float("nan"))
        case "nonsense":
            return {"what": "ever"}
        case "measure":
            return measured(config.get("value", 1.0), "measured as told")
    raise AssertionError(config)


SCRIPTED = EvaluatorDefinition(
    "scripted", Kind.ASSERTION, "Scripted", "", lambda: "{}", _by_config, inline=True
)
FOREIGN = SCRIPTED._replace(type="foreign", inline=False)
WAITING = SCRIPTED._replace(type="waiting", compile=_async_by_config, inline=False)
GAUGE = SCRIPTED._replace(type="gauge", kind=Kind.METRIC, metric=Metric("count"))


class Engine:
    """A registry, a planner, and runs on one context."""

    def __init__(self, **planner: Any) -> None:
        self.registry = Registry()
        self.threads = Threads()
        for one in (SCRIPTED, GAUGE):
            self.registry.register(one, Origin.BUILT_IN)
        for one in (FOREIGN, WAITING):
            self.registry.register(one, Origin.PLUGIN)
        for one in combinators(self.threads):
            self.registry.register(one, Origin.BUILT_IN)
        self.planner = Planner(self.registry, **planner)

    def run(
        self,
        specs: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any] | None = None,
        *,
        is_final: bool = True,
        seconds: float | None = 5.0,
    ) -> result_pb2.AggregatedEvaluation:
        """Run the specs and return the summary with all results."""
        raw = tuple(spec(**one).SerializeToString() for one in specs)
        given = evaluation_service_pb2.EvaluateOptions(**(options or {})).SerializeToString()
        plan = self.planner.plan(raw, given)
        pb = context_pb2.EvaluatorContext(turn=1, is_final=is_final)
        pb.messages.add(role="assistant", text="hello")
        run = EvaluationRun(plan, EvaluatorContext(pb), self.threads)

        async def complete() -> None:
            async for _ in run.run_pending(seconds, 16):
                pass

        if run.pending:
            in_loop(complete())
        self.threads.close()
        return aggregated(run)

    def verdict(self, specs: Sequence[Mapping[str, Any]], **options: Any) -> Verdict:
        """Return the verdict of the call."""
        return Verdict(self.run(specs, options).verdict)


def spec(type: str = "scripted", **fields: Any) -> evaluator_pb2.EvaluatorSpec:  # noqa: A002
    """Return a spec. Keywords that are no fields of EvaluatorSpec become its config."""
    known = evaluator_pb2.EvaluatorSpec.DESCRIPTOR.fields_by_name
    pb = evaluator_pb2.EvaluatorSpec(
        type=type, **{key: value for key, value in fields.items() if key in known}
    )
    pb.config.update({key: value for key, value in fields.items() if key not in known})
    return pb
