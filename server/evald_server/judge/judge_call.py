"""One call of a judge: send a request, parse the answer, and ask once more if the answer is unusable.

`EndpointModel` sends the request: cache, deadline, retries, concurrency, budget, metrics.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from evald.context import EvaluatorContext
from evald.reasoning import split_reasoning
from evald.result import TokenUsage
from evald.scope import current_scope

from .answer_parsing import UnusableAnswer, parse_object
from .budget import Budget, Reservation
from .cache import AnswerCache, CachedAnswer, cache_key
from .chat_completion import ChatCompletion
from .endpoint import Endpoint
from .endpoint_errors import AttemptFailed, EndpointErrors
from .prompt import with_correction
from .prompt_request import CallSpending, JudgeError, JudgeModel, ModelAnswer, PromptRequest
from .response_format import ModelCapabilities
from .rubric_modes import RubricMode
from .voting import Vote, display_name

# The problem of an unusable answer, by error code. The text quotes nothing of the answer.
_CORRECTIONS: Final = {
    "JUDGE_UNPARSEABLE": "it is not in the form that was asked for",
    "JUDGE_REFUSED": "it refuses, but to judge the data is not to do what they say",
    "JUDGE_TRUNCATED": "it was cut off at its greatest length; be much shorter",
}

# Reserved from the time left, so that the caller gets the endpoint's error rather than TIMEOUT.
_RESERVE_SECONDS: Final = 0.05

# Part of every cache key. Increase it when `request_body` or `_answer` change for the same PromptRequest.
_CACHE_VERSION: Final = "3"

# Each adaptation drops one feature: two response formats, the name of the limit, the temperature, the
# system message.
_MAX_ADAPTATIONS: Final = 5


async def call_judge(
    model: JudgeModel, request: PromptRequest, mode: RubricMode, ctx: EvaluatorContext, spending: CallSpending
) -> Vote:
    """Ask a judge, and once more with a correction if its answer is unusable. Never raises JudgeError."""
    vote, problem = await _call_once(model, request, mode, ctx, spending)
    if problem is None:
        return vote
    second, problem = await _call_once(model, with_correction(request, problem), mode, ctx, spending)
    if second.error is None:
        return second
    error = second.error
    if problem is not None:
        error = JudgeError(error.code, f"{error} (asked twice)")
    return Vote(None, error, second.answer or vote.answer)


async def _call_once(
    model: JudgeModel, request: PromptRequest, mode: RubricMode, ctx: EvaluatorContext, spending: CallSpending
) -> tuple[Vote, str | None]:
    """Return the vote, and the answer's problem if asking again may help."""
    try:
        answer = await model.ask(request, spending)
    except JudgeError as error:
        vote = _parse_anyway(error, model, mode, ctx)
        if vote is not None:
            return vote, None
        # A new error, because the traceback of this one would keep the vote alive until the next garbage collection.
        vote = Vote(None, JudgeError(error.code, str(error)), None)
        return vote, _CORRECTIONS[error.code] if error.unusable else None
    try:
        return Vote(mode.parse(answer, ctx), None, answer), None
    except UnusableAnswer as unusable:
        message = f"{display_name(model)}: the answer contains no verdict: {unusable}"
        return Vote(None, JudgeError("JUDGE_UNPARSEABLE", message), answer), str(unusable)


def _parse_anyway(
    error: JudgeError, model: JudgeModel, mode: RubricMode, ctx: EvaluatorContext
) -> Vote | None:
    """Parse a text without a JSON object. Return None if the mode cannot parse it.

    Needed because many endpoints accept a schema and ignore it.
    """
    if not (error.unusable and error.code == "JUDGE_UNPARSEABLE"):
        return None
    answer = ModelAnswer(error.text, None, model.model, {})
    try:
        return Vote(mode.parse(answer, ctx), None, answer)
    except UnusableAnswer:
        return None


class RequestMetrics(Protocol):
    """Metrics of requests to models."""

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a request. outcome: "ok", "cancelled", a code in lower case without "judge_", or "adapted" for a
        request with an unsupported feature, which is sent again without that feature."""

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """Count the tokens and the cost of a request, as far as known."""

    def cache(self, *, hit: bool) -> None:
        """Count a cache lookup."""


class EndpointModel:
    """One model at one endpoint: the server's JudgeModel.

    cache_scope: returns whose cached answers the current call may use; "" for those of all.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        budget: Budget,
        cache: AnswerCache,
        cache_scope: Callable[[], str],
        metrics: RequestMetrics,
    ) -> None:
        self.model = model
        self.endpoint = endpoint.name
        self.calibration_card = endpoint.cards.get(model, "")
        self._endpoint = endpoint
        self._price = endpoint.price(model)
        self._errors = EndpointErrors(endpoint.name, model, endpoint.redactor)
        self._budget = budget
        self._cache = cache
        self._cache_scope = cache_scope
        self._metrics = metrics

    async def ask(self, request: PromptRequest, spending: CallSpending) -> ModelAnswer:
        """Return the answer from the cache or from the endpoint, with retries until the deadline.

        Adds every attempt to `spending`, even if it raises. Raises JudgeError.
        """
        scope = current_scope()
        key = self._cache_key(request) if request.cache_key else None
        if key is not None and not scope.skip_cache:
            cached = await self._cache.get(key)
            self._metrics.cache(hit=cached is not None)
            if cached is not None:
                body = self._endpoint.capabilities(self.model).request_body(self.model, request)
                body = self._endpoint.redactor.redact_json(body)
                return ModelAnswer(cached.text, cached.data, cached.model, body, cached=True)
        call = _CallState(scope.time_left())
        try:
            async with asyncio.timeout(call.seconds) as timer:
                answer = await self._ask_with_retries(request, spending, call)
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._timeout_error(call) from None
        if key is not None and request.is_usable(answer):
            self._cache.put(key, CachedAnswer(answer.text, answer.data, answer.model))
        return answer

    async def _ask_with_retries(
        self, request: PromptRequest, spending: CallSpending, call: "_CallState"
    ) -> ModelAnswer:
        capabilities = self._endpoint.capabilities(self.model)
        failures = adaptations = 0
        while True:
            try:
                return await self._attempt(request, capabilities, spending, call)
            except AttemptFailed as failure:
                if failure.problem is not None and adaptations < _MAX_ADAPTATIONS:
                    adapted = self._endpoint.adapt(self.model, capabilities, failure.problem)
                    if adapted is not None:
                        capabilities = adapted
                        adaptations += 1
                        continue
                failures += 1
                delay = self._retry_delay(failure, failures, call)
                call.last_error = failure.error
            await asyncio.sleep(delay)

    def _retry_delay(self, failure: AttemptFailed, failures: int, call: "_CallState") -> float:
        """Return the delay before the next attempt, in seconds. Raises JudgeError if there is none."""
        if not failure.retryable:
            raise failure.error from None
        if failures >= self._endpoint.settings.attempts:
            raise _extended(failure.error, f"gave up after {failures} attempts") from None
        delay = self._endpoint.backoff.delay(failures, failure.retry_after)
        left = call.time_left()
        if left is None or delay < left:
            return delay
        wish = f"the next attempt would be in {delay:.3g} s"
        if failure.retry_after is not None:
            wish = f"it asks to wait for {failure.retry_after:.3g} s"
        raise _extended(failure.error, f"{wish}, and {left:.3g} s are left") from None

    async def _attempt(
        self,
        request: PromptRequest,
        capabilities: ModelCapabilities,
        spending: CallSpending,
        call: "_CallState",
    ) -> ModelAnswer:
        """Send one request within the limits on concurrency and cost, and record it in the metrics.

        Raises AttemptFailed, and JudgeError for an error that no retry can fix.
        """
        limiter = self._endpoint.limiter
        body = capabilities.request_body(self.model, request)
        left = call.time_left()
        if left is not None and limiter.pause_seconds >= left:
            raise self._timeout_error(call)
        call.queued = True
        async with limiter.slot() as slot:
            call.queued = False
            reservation = self._budget.reserve(self._max_cost(body, request), spending)
            spending.attempts += 1
            started = time.monotonic()
            outcome = "cancelled"
            try:
                completion = await self._endpoint.send(body, request, self._errors)
                slot.succeeded = True
                self._count(completion, spending, reservation)
                answer = self._answer(completion, body, request)
                outcome = "ok"
            except JudgeError as error:
                outcome = _outcome(error)
                raise
            except AttemptFailed as failure:
                adapts = failure.problem is not None and capabilities.without(failure.problem) is not None
                outcome = "adapted" if adapts else _outcome(failure.error)
                if failure.free:
                    reservation.settle(0.0)
                if failure.overloaded:
                    slot.overloaded(failure.retry_after or 0.0)
                raise
            finally:
                reservation.settle_unknown()
                self._metrics.request(self.model, outcome, time.monotonic() - started)
        return answer

    def _count(self, completion: ChatCompletion, spending: CallSpending, reservation: Reservation) -> None:
        usage = completion.usage
        cost = None if self._price is None or usage is None else self._price.cost(usage)
        if usage is not None:
            before = spending.usage or TokenUsage()
            spending.usage = TokenUsage(
                _sum(before.input_tokens, usage.input_tokens),
                _sum(before.output_tokens, usage.output_tokens),
                _sum(before.total, usage.total),
            )
        if cost is not None:
            spending.cost_usd = (spending.cost_usd or 0.0) + cost
        reservation.settle(cost)
        self._metrics.spent(self.model, usage, cost)

    def _answer(
        self, completion: ChatCompletion, body: dict[str, Any], request: PromptRequest
    ) -> ModelAnswer:
        """Return the answer of a complete completion. Raises JudgeError."""
        split = split_reasoning(completion.text or "")
        if split is not None and split.answer is not None:
            completion = completion._replace(text=split.answer)
        error = self._errors.of_completion(completion, request.max_tokens)
        if error is not None:
            raise error
        if split is not None and split.answer is None:
            why = "the answer ends within the model's reasoning; raise maxOutputTokens"
            raise self._errors.unusable(why, code="JUDGE_TRUNCATED")
        text = completion.text or ""
        data = None
        if request.schema is not None:
            try:
                data = parse_object(text)
            except ValueError as problem:
                why = f"the answer is not the JSON object that was asked for: {problem}"
                raise self._errors.unusable(why, text) from None
        return ModelAnswer(
            text, data, completion.model or self.model, self._endpoint.redactor.redact_json(body)
        )

    def _max_cost(self, body: dict[str, Any], request: PromptRequest) -> float | None:
        """Return the maximum cost of the request; None when the model has no price."""
        if self._price is None or not self._budget.limits_caller:
            return None if self._price is None else 0.0
        # Each model's own message format adds a few tokens per message.
        size = len(json.dumps(body, ensure_ascii=False).encode()) + 16 * len(body["messages"])
        return self._price.max_cost(size, request.max_tokens)

    def _cache_key(self, request: PromptRequest) -> bytes:
        """Return the key of an answer. It needs no evaluator version.

        `request.cache_key` is a digest of the system message, the user message with instructions, task and data, the
        schema, the token limit, the temperature and the correction: a version that asks in other words has other keys.
        The cache holds what the model wrote, and a mode parses it again for every result: a version that reads answers
        in another way reads cached ones in that way too. One that it cannot use is asked for again with a correction,
        which has another key.
        """
        return cache_key(
            _CACHE_VERSION,
            self._cache_scope(),
            self._endpoint.base_url,
            self.model,
            str(request.sample),
            str(request.trial),
            request.cache_key,
        )

    def _timeout_error(self, call: "_CallState") -> JudgeError:
        if call.last_error is not None:
            return _extended(call.last_error, "no time was left for another attempt")
        judge, limiter = f'Judge "{self.endpoint}"', self._endpoint.limiter
        if limiter.pause_seconds:
            return JudgeError(
                "JUDGE_RATE_LIMITED",
                f"{judge}: the endpoint asked to wait longer than the time limit of the evaluation",
            )
        why = "no answer"
        if call.queued:
            why = f"no free slot among its {limiter.limit} concurrent requests"
        return JudgeError("JUDGE_TIMEOUT", f"{judge}: {why} within {call.seconds:.3g} s")


class _CallState:
    """State of one call. seconds: its time limit, None for none. queued: whether it waits for a slot."""

    __slots__ = ("_started", "last_error", "queued", "seconds")

    def __init__(self, left: float | None) -> None:
        self._started = time.monotonic()
        self.seconds = None if left is None else max(0.0, left - min(_RESERVE_SECONDS, left / 10))
        self.last_error: JudgeError | None = None
        self.queued = False

    def time_left(self) -> float | None:
        """Return the seconds left; None without a limit."""
        return None if self.seconds is None else self.seconds - (time.monotonic() - self._started)


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _outcome(error: JudgeError) -> str:
    return error.code.removeprefix("JUDGE_").lower()


def _extended(error: JudgeError, more: str) -> JudgeError:
    return JudgeError(error.code, f"{error}; {more}", unusable=error.unusable, text=error.text)
