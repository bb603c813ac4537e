"""The judge under calibration: an assertion of a server, queried through the SDK."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .queries import Query, QueryAnswer, QueryFunction

if TYPE_CHECKING:
    from evald import AsyncClient, EvaluatorResult

LLM_JUDGE: Final = "llm-judge"

_ALIASES: Final = {LLM_JUDGE, "llm-rubric", "quality"}

# The config keys of `llm-judge` that contain criteria, most specific first, each with the keys that depend on it.
_CRITERIA_KEYS: Final = (
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

_ANY_CRITERIA_KEY: Final = {
    key for main, others in _CRITERIA_KEYS for key in (main, *others) if not key.lower().endswith("mode")
}

GENERAL_CRITERIA: Final = "The agent has done what the user asked for, correctly and completely."
"""The criteria if neither the judge's config nor the case has any."""

# Number of retries of a query that an overloaded server refuses, each after the delay that the server asks for.
_RETRIES: Final = 3
_MAX_RETRY_DELAY_SECONDS: Final = 10.0


def is_llm_judge(type_name: str) -> bool:
    """Return whether the type is `llm-judge` or one of its aliases."""
    return type_name.replace("_", "-") in _ALIASES


def with_default_criteria(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec, with the general criteria if it is an `llm-judge` without any."""
    config = spec.get("config") or {}
    if not is_llm_judge(str(spec["type"])) or any(key in config for key in _ANY_CRITERIA_KEY):
        return dict(spec)
    return {**spec, "config": {**config, "successCriteria": GENERAL_CRITERIA}}


def with_criteria(spec: Mapping[str, Any], criteria: str) -> dict[str, Any]:
    """Return the spec with the criteria of a case in place of its own.

    They replace the config key with the judge's criteria; `items` becomes a list of one item. Evaluators
    of other types keep their config: they find the criteria in the turn's metadata.
    """
    if not criteria or not is_llm_judge(str(spec["type"])):
        return dict(spec)
    config = dict(spec.get("config") or {})
    key, others = next((found for found in _CRITERIA_KEYS if found[0] in config), _CRITERIA_KEYS[-1])
    for other in others:
        config.pop(other, None)
    config[key] = [{"id": "criteria", "text": criteria, "required": True}] if key == "items" else criteria
    return {**spec, "config": config}


def server_judge(client: "AsyncClient", spec: Mapping[str, Any], timeout_seconds: float) -> QueryFunction:
    """Return a function that queries an evaluator of a server.

    timeout_seconds: limit of one query, including the judge's own retries.
    Bypasses the server's cache, because a cached verdict shows nothing about consistency or cost. The error
    of a single call becomes an answer; an unreachable server or a missing permission is raised.
    """
    from evald import EvaldError, InvalidInput, errors

    options = {"skip_cache": True, "skip_auto_evaluators": True, "timeout_seconds": timeout_seconds}
    fatal = (errors.Unavailable, errors.Unauthenticated, errors.PermissionDenied, errors.Unsupported)

    async def judge(query: Query) -> QueryAnswer:
        judge_spec = with_criteria(spec, query.case.judge_criteria())
        turn = query.case.turn(swapped=query.swapped)
        for attempt in range(_RETRIES + 1):
            try:
                # 5 s more than the server's own limit, so that it takes effect only if the server hangs.
                evaluation = await client.evaluate(
                    turn, [judge_spec], options=options, timeout=timeout_seconds + 5
                )
            except fatal:
                raise
            except errors.Overloaded as problem:
                if attempt == _RETRIES:
                    return QueryAnswer(None, problem.reason or "OVERLOADED")
                await asyncio.sleep(min(problem.retry_after_seconds or 1.0, _MAX_RETRY_DELAY_SECONDS))
            except InvalidInput:
                return QueryAnswer(None, "INVALID_INPUT")
            except EvaldError as problem:
                return QueryAnswer(None, problem.reason or problem.code or "SERVER_ERROR")
            else:
                return answer_from_result(evaluation.results[0])
        raise AssertionError("unreachable: the last attempt returns")

    return judge


def answer_from_result(result: "EvaluatorResult") -> QueryAnswer:
    """Convert an evaluator's result. Neither an error nor a skipped evaluator is a verdict."""
    from evald import Verdict

    code = ""
    if result.verdict is Verdict.SKIPPED:
        code = "SKIPPED"
    elif result.verdict is Verdict.ERROR:
        code = result.error.code if result.error else "UNKNOWN"
    return QueryAnswer(
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
    """Return the models from a result's metadata.

    `llm-judge` reports its model under `judge`, and the models of a panel under `judge.votes`; other evaluators
    may report a `model`.
    """
    judge = metadata.get("judge")
    found = [metadata, judge if isinstance(judge, Mapping) else {}]
    votes = found[1].get("votes")
    found += [vote for vote in votes if isinstance(vote, Mapping)] if isinstance(votes, list) else []
    names = [record.get("model") for record in found]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
