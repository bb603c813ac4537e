"""Judge calls without an evaluator or a server, through the real client and real connections."""

import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from evald.result import TokenUsage
from evald.scope import SCOPE, Scope
from evald_server.config import JudgeSettings
from evald_server.judge.budget import Budget
from evald_server.judge.cache import AnswerCache, MemoryCache
from evald_server.judge.configured_models import ConfiguredModels
from evald_server.judge.endpoint import Endpoint
from evald_server.judge.prompt_request import JudgeError, JudgeModel, PromptRequest
from evald_server.redaction import Redactor
from evald_server.retries import RetryBackoff

KEY = "sk-canary-0123456789abcdef"

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"score": {"type": "number", "minimum": 0, "maximum": 1}, "reasoning": {"type": "string"}},
    "required": ["score", "reasoning"],
    "additionalProperties": False,
}

# So short that nobody waits, but not nothing.
QUICK = RetryBackoff(0.001, 0.004)


def question(schema: Mapping[str, Any] | None = SCHEMA, **fields: Any) -> PromptRequest:
    """Return a prompt request about a short text."""
    return PromptRequest(
        "You judge.", "The text that is judged: an agent helps a customer.", schema, **fields
    )


class Counted:
    """Records what a judge call counts."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.usage: list[TokenUsage | None] = []
        self.costs: list[float | None] = []
        self.looks: list[bool] = []

    def request(self, model: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.outcomes.append(outcome)

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        self.usage.append(usage)
        self.costs.append(cost_usd)

    def cache(self, *, hit: bool) -> None:
        self.looks.append(hit)


class Asking:
    """A judge with one endpoint."""

    def __init__(self, endpoint: Endpoint, budget: Budget, cache: AnswerCache) -> None:
        self.counted = Counted()
        self.endpoint = endpoint
        self.models = ConfiguredModels(
            {endpoint.name: endpoint}, endpoint.name, budget=budget, cache=cache, metrics=self.counted
        )

    def model(self, model: str | None = None) -> JudgeModel:
        """Return the endpoint's model, or another one."""
        return self.models.get(None, model)


@asynccontextmanager
async def asking(
    base_url: str,
    *,
    api_key: str = KEY,
    budget: Budget | None = None,
    cache: AnswerCache | None = None,
    **settings: Any,
) -> AsyncIterator[Asking]:
    """Yield a judge "default" with the model gpt-4o-mini, whose retries do not wait."""
    given = JudgeSettings.model_validate(
        {"base_url": base_url, "model": "gpt-4o-mini", "timeout": 5.0, **settings}
    )
    endpoint = Endpoint("default", given, Redactor([api_key]), api_key=api_key, backoff=QUICK)
    made = Asking(endpoint, budget or Budget(), cache or MemoryCache(0))
    try:
        yield made
    finally:
        await made.models.close()


@contextmanager
def within(seconds: float | None, *, skip_cache: bool = False) -> Iterator[None]:
    """Set the remaining time of the call."""
    deadline = None if seconds is None else time.monotonic() + seconds
    token = SCOPE.set(Scope("e1", deadline, skip_cache))
    try:
        yield
    finally:
        SCOPE.reset(token)


async def fault(answer: Awaitable[Any]) -> JudgeError:
    """Return the fault of a judge call; fail if it succeeds."""
    try:
        found = await answer
    except JudgeError as problem:
        return problem
    raise AssertionError(f"no fault: {found}")
