"""The judge under calibration: any assertion of a server, asked through the SDK."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .asks import Answer, Ask, Judge

if TYPE_CHECKING:
    from evald import AsyncClient, EvaluatorResult

LLM_JUDGE: Final = "llm-judge"

# Names under which the judge with criteria in its config goes.
_NAMES: Final = {LLM_JUDGE, "llm-rubric", "quality"}

# Where each of its ways of asking keeps the question, most specific first, each with what else belongs to it.
_QUESTIONS: Final = (
    ("items", ()),
    ("rubric", ()),
    ("criteria", ()),
    (
        "successCriteria",
        (
            "success_criteria",
            "failureCriteria",
            "failure_criteria",
            "failureCriteriaMode",
            "failure_criteria_mode",
        ),
    ),
)

_QUESTION_KEYS: Final = {
    key for found, others in _QUESTIONS for key in (found, *others) if "Mode" not in key and "mode" not in key
}

GENERAL_QUESTION: Final = "The agent has done what the user asked for, correctly and completely."
"""What is judged where neither the judge's config nor a case says anything."""

# An overloaded server is asked again so often, each time after as long as it said.
_RETRIES: Final = 3
_LONGEST_WAIT_SECONDS: Final = 10.0


def is_llm_judge(type_name: str) -> bool:
    """Whether the type is `llm-judge` under one of its names."""
    return type_name.replace("_", "-") in _NAMES


def with_question(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with something to judge by: where a config of `llm-judge` says nothing, it is the general
    question. So a model alone can be named."""
    config = spec.get("config") or {}
    if not is_llm_judge(str(spec["type"])) or any(key in config for key in _QUESTION_KEYS):
        return dict(spec)
    return {**spec, "config": {**config, "successCriteria": GENERAL_QUESTION}}


def with_criteria(spec: Mapping[str, Any], criteria: str) -> dict[str, Any]:
    """The spec with the case's criteria in place of its own; everything else stays as it is.

    Criteria go where the config keeps its own: `items` gets a single one, else `rubric`, `criteria` or
    `successCriteria`. Evaluators of other types have them in the turn's metadata alone.
    """
    if not criteria or not is_llm_judge(str(spec["type"])):
        return dict(spec)
    config = dict(spec.get("config") or {})
    key, others = next((found for found in _QUESTIONS if found[0] in config), _QUESTIONS[-1])
    for other in others:
        config.pop(other, None)
    config[key] = [{"id": "criteria", "text": criteria, "required": True}] if key == "items" else criteria
    return {**spec, "config": config}


def asked_through(client: "AsyncClient", spec: Mapping[str, Any], timeout_seconds: float) -> Judge:
    """A judge that is an evaluator of a server.

    timeout_seconds: most time of one question, retries of the judge's own included.
    The server's cache is passed by: a verdict found there says nothing about consistency or cost. Errors
    of a single call become answers; that nobody answers at all, or that the caller may not ask, is raised.
    """
    from evald import EvaldError, InvalidInput, errors

    options = {"skip_cache": True, "skip_auto_evaluators": True, "timeout_seconds": timeout_seconds}
    fatal = (errors.Unavailable, errors.Unauthenticated, errors.PermissionDenied, errors.Unsupported)

    async def judge(ask: Ask) -> Answer:
        wanted = with_criteria(spec, ask.case.question())
        for attempt in range(_RETRIES + 1):
            try:
                # 5 s: the server answers within its own limit; this one is for a server that hangs.
                evaluation = await client.evaluate(
                    ask.case.turn(swapped=ask.swapped), [wanted], options=options, timeout=timeout_seconds + 5
                )
            except fatal:
                raise
            except errors.Overloaded as problem:
                if attempt == _RETRIES:
                    return Answer(None, problem.reason or "OVERLOADED")
                await asyncio.sleep(min(problem.retry_after_seconds or 1.0, _LONGEST_WAIT_SECONDS))
            except InvalidInput:
                return Answer(None, "INVALID_INPUT")
            except EvaldError as problem:
                return Answer(None, problem.reason or problem.code or "SERVER_ERROR")
            else:
                return read_answer(evaluation.results[0])
        raise AssertionError("unreachable: the last attempt returns")

    return judge


def read_answer(result: "EvaluatorResult") -> Answer:
    """What an evaluator's result says. Neither an error nor a skipped evaluator is a verdict."""
    from evald import Verdict

    code = ""
    if result.verdict is Verdict.SKIPPED:
        code = "SKIPPED"
    elif result.verdict is Verdict.ERROR:
        code = result.error.code if result.error else "UNKNOWN"
    return Answer(
        passed=None if code else result.verdict is Verdict.PASSED,
        code=code,
        score=None if code else result.score,
        cost_usd=result.cost_usd,
        input_tokens=result.token_usage.input_tokens,
        output_tokens=result.token_usage.output_tokens,
        latency_ms=result.duration_ms,
        models=_models(result.metadata),
    )


def _models(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that judged, as `llm-judge` reports them: under `judge`, those of a panel under its `votes`.
    Other evaluators may give a `model`."""
    judge = metadata.get("judge")
    found = [metadata, judge if isinstance(judge, Mapping) else {}]
    votes = found[1].get("votes")
    found += [vote for vote in votes if isinstance(vote, Mapping)] if isinstance(votes, list) else []
    names = [record.get("model") for record in found]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
