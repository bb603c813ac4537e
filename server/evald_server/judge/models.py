"""The models that the operator has configured, and how one of them is asked."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from evald.fields import nearest
from evald.result import TokenUsage
from evald.scope import current_scope

from .cache import Cache, Kept, digest
from .endpoint import Endpoint
from .faults import Failed, Faults
from .forms import Dialect
from .parsing import read_object
from .purse import Charge, Purse
from .question import Answer, Asker, JudgeFault, Question, Spending
from .reachability import behind_proxy, reachable
from .reply import Reply

# What of the time left is kept back, so that the caller hears which fault it was rather than that time is over.
_RESERVE_SECONDS: Final = 0.05

# How long an endpoint that came up may be called unavailable.
_LOOK_AGAIN_SECONDS: Final = 15.0

# A part of every key: another way to ask or to read gives other answers.
_CACHE_VERSION: Final = "2"

# Each step leaves one thing out: two forms, the name of the limit, the temperature, the system message.
_MOST_STEPS: Final = 5

_CEILINGS: Final = "judge_max_usd_per_call or judge_max_usd_per_day"


class JudgeTally(Protocol):
    """Where requests to models are counted."""

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """One request. outcome: "ok", "adapted" (asked for something that the endpoint does not know), "cancelled",
        or a code in lower case, without "judge_"."""

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """What a request has cost, as far as known."""

    def cache(self, *, hit: bool) -> None:
        """One look into the cache."""


class ConfiguredModels:
    """All judges of a server, by name. default: the one that is asked when a use names none; None: there is none."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        default: str | None,
        *,
        purse: Purse,
        cache: Cache,
        tally: JudgeTally,
    ) -> None:
        self.endpoints = endpoints
        self._default = default
        self._purse = purse
        self._cache = cache
        self._tally = tally

    def asker(self, judge: str | None, model: str | None) -> Asker:
        """The endpoint of that name, or the default one, with its model or another one.

        Raises ValueError, with what to set: for an unknown judge or model, when no model is configured, and when
        costs have a ceiling and the model no price.
        """
        endpoint = self._endpoint(judge)
        options = endpoint.options
        model = model or options.model
        if not model:
            raise ValueError(
                f'judge "{options.name}" has no model: name one in the config of the evaluator, or let the operator '
                f"set EVALD_JUDGE_MODEL, or model in [judges.{options.name}] of the config file"
            )
        allowed = options.models | ({options.model} if options.model else set())
        if options.models and model not in allowed:
            raise ValueError(
                f'judge "{options.name}" may not ask model "{model[:100]}"{_nearest(model, allowed)}; '
                f"allowed are {', '.join(sorted(allowed))}"
            )
        if self._purse.limited and endpoint.price(model) is None:
            raise ValueError(
                f'nobody knows the price of model "{model[:100]}", so the ceiling on costs cannot be kept: the operator '
                f'sets it in [judges.{options.name}.prices."{model[:100]}"] of the config file, or takes '
                f"{_CEILINGS} away"
            )
        return ModelAsker(endpoint, model, purse=self._purse, cache=self._cache, tally=self._tally)

    @property
    def available(self) -> bool:
        """Whether the judge that is asked when a use names none, or else any, may be there."""
        asked = [self.endpoints[self._default]] if self._default is not None else self.endpoints.values()
        return any(endpoint.reachable is not False for endpoint in asked)

    async def watch(self, changed: Callable[[bool], None]) -> None:
        """Tell at once and at every change whether models are available, until cancelled.

        Looks whether endpoints that have a model can be reached at the start, and again while one cannot; once it
        has been, the requests themselves tell. A key alone, which may be there for something else, is no reason to
        connect anywhere.
        """
        changed(self.available)
        endpoints = list(self.endpoints.values())
        for endpoint in endpoints:
            endpoint.changed = lambda: changed(self.available)
        meant = [endpoint for endpoint in endpoints if endpoint.options.model]
        while meant and not behind_proxy():
            for endpoint in meant:
                if not endpoint.reachable:
                    endpoint.reached(await reachable(endpoint.options.base_url))
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def close(self) -> None:
        """Close connections and files."""
        for endpoint in self.endpoints.values():
            await endpoint.close()
        await self._cache.close()
        await asyncio.to_thread(self._purse.close)

    def _endpoint(self, judge: str | None) -> Endpoint:
        known = ", ".join(sorted(self.endpoints))
        if judge is None:
            if self._default is not None:
                return self.endpoints[self._default]
            if self.endpoints:
                raise ValueError(
                    f"several judges are configured and none is the default; name one of {known}"
                )
            raise ValueError(
                "no judge is configured: the operator sets EVALD_JUDGE_BASE_URL, EVALD_JUDGE_MODEL and "
                "EVALD_JUDGE_API_KEY, or OPENAI_API_KEY and EVALD_JUDGE_MODEL, or [judges.NAME] in the config file"
            )
        if judge not in self.endpoints:
            listed = f"configured are {known}" if known else "none is configured"
            raise ValueError(f'unknown judge "{judge[:100]}"{_nearest(judge, self.endpoints)}; {listed}')
        return self.endpoints[judge]


class ModelAsker:
    """One model behind one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        purse: Purse,
        cache: Cache,
        tally: JudgeTally,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.endpoint = endpoint.options.name
        self._at = endpoint
        self._price = endpoint.price(model)
        self._faults = Faults(endpoint.options.name, model, endpoint.redactor)
        self._purse = purse
        self._cache = cache
        self._tally = tally
        self._clock = clock

    async def ask(self, question: Question, spending: Spending) -> Answer:
        """Ask, with retries within `current_scope().deadline`. Adds every attempt to `spending`, also
        when it raises. Raises JudgeFault."""
        scope = current_scope()
        key = self._key(question) if question.cache_key else None
        if key is not None and not scope.skip_cache:
            kept = await self._cache.get(key)
            self._tally.cache(hit=kept is not None)
            if kept is not None:
                body = self._at.dialect(self.model).body(self.model, question)
                return Answer(kept.text, kept.data, kept.model, self._at.redactor.request(body), cached=True)
        left = scope.time_left()
        turn = _Turn(
            self._clock(), None if left is None else max(0.0, left - min(_RESERVE_SECONDS, left / 10))
        )
        try:
            async with asyncio.timeout(turn.seconds) as timer:
                answer = await self._insist(question, spending, turn)
        except TimeoutError:
            if not timer.expired():
                raise
            raise self._out_of_time(turn) from None
        if key is not None and question.usable(answer):
            self._cache.put(key, Kept(answer.text, answer.data, answer.model))
        return answer

    async def _insist(self, question: Question, spending: Spending, turn: "_Turn") -> Answer:
        """Ask until there is an answer, or nothing more can be hoped for."""
        options = self._at.options
        dialect = self._at.dialect(self.model)
        faults = steps = 0
        while True:
            body = dialect.body(self.model, question)
            try:
                return await self._request(body, dialect, question, spending, turn)
            except Failed as failed:
                other = None
                if failed.problem is not None and steps < _MOST_STEPS:
                    other = self._at.learn(self.model, dialect, failed.problem)
                if other is not None:
                    dialect = other
                    steps += 1
                    continue
                faults += 1
                if not failed.again:
                    raise failed.fault from None
                if faults >= options.attempts:
                    raise _with(failed.fault, f"gave up after {faults} attempts") from None
                delay = options.backoff.delay(faults, failed.retry_after)
                left = turn.left(self._clock())
                if left is not None and delay >= left:
                    raise _with(failed.fault, f"{_wish(failed, delay)}, and {left:.3g} s are left") from None
                turn.fault = failed.fault
                await asyncio.sleep(delay)
                continue

    async def _request(
        self, body: dict[str, Any], dialect: Dialect, question: Question, spending: Spending, turn: "_Turn"
    ) -> Answer:
        """One request, in its place, within the ceilings, counted. Raises Failed and JudgeFault."""
        gate = self._at.gate
        left = turn.left(self._clock())
        if left is not None and gate.paused >= left:
            raise self._out_of_time(turn)
        turn.waiting = True
        async with gate.place() as place:
            turn.waiting = False
            charge = self._purse.reserve(self._most(body, question), spending)
            spending.attempts += 1
            began = self._clock()
            outcome = "cancelled"
            try:
                reply = await self._at.send(body, question, self._faults)
                place.good = True
                self._count(reply, spending, charge)
                fault = self._faults.reply(reply, question.max_tokens)
                if fault is not None:
                    raise fault
                answer = self._answer(reply, body, question)
                outcome = "ok"
            except JudgeFault as fault:
                outcome = _outcome(fault.code)
                raise
            except Failed as failed:
                adapts = failed.problem is not None and dialect.without(failed.problem) is not None
                outcome = "adapted" if adapts else _outcome(failed.fault.code)
                if failed.free:
                    charge.paid(0.0)
                if failed.limited:
                    place.limited(failed.retry_after or 0.0)
                raise
            finally:
                charge.lost()
                self._tally.request(self.model, outcome, self._clock() - began)
        return answer

    def _count(self, reply: Reply, spending: Spending, charge: Charge) -> None:
        usage = reply.usage
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
        charge.paid(cost)
        self._tally.spent(self.model, usage, cost)

    def _answer(self, reply: Reply, body: dict[str, Any], question: Question) -> Answer:
        text = reply.text or ""
        data = None
        if question.schema is not None:
            try:
                data = read_object(text)
            except ValueError as problem:
                why = f"the answer is not the JSON object that was asked for: {problem}"
                raise self._faults.unusable(why, text) from None
        return Answer(text, data, reply.model or self.model, self._at.redactor.request(body))

    def _most(self, body: dict[str, Any], question: Question) -> float | None:
        if self._price is None or not self._purse.limited:
            return None if self._price is None else 0.0
        # What frames each message in the model's own format is a few tokens.
        size = len(json.dumps(body, ensure_ascii=False).encode()) + 16 * len(body["messages"])
        return self._price.most(size, question.max_tokens)

    def _key(self, question: Question) -> bytes:
        return digest(
            _CACHE_VERSION, self._at.options.base_url, self.model, str(question.sample), question.cache_key
        )

    def _out_of_time(self, turn: "_Turn") -> JudgeFault:
        if turn.fault is not None:
            return _with(turn.fault, "no time was left for another attempt")
        who = f'Judge "{self.endpoint}"'
        if self._at.gate.paused:
            return JudgeFault(
                "JUDGE_RATE_LIMITED",
                f"{who}: the endpoint asked to be left alone for longer than the evaluation may take",
            )
        if turn.waiting:
            return JudgeFault(
                "JUDGE_TIMEOUT",
                f"{who}: no place among the {self._at.gate.places} requests at a time within {turn.seconds:.3g} s",
            )
        return JudgeFault("JUDGE_TIMEOUT", f"{who}: no answer within {turn.seconds:.3g} s")


class _Turn:
    """One question under way. seconds: its time, None without a limit. fault: the last one, if there was one."""

    __slots__ = ("_began", "fault", "seconds", "waiting")

    def __init__(self, began: float, seconds: float | None) -> None:
        self._began = began
        self.seconds = seconds
        self.fault: JudgeFault | None = None
        self.waiting = False

    def left(self, now: float) -> float | None:
        """Seconds left; None without a limit."""
        return None if self.seconds is None else self.seconds - (now - self._began)


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


def _outcome(code: str) -> str:
    return code.removeprefix("JUDGE_").lower()


def _with(fault: JudgeFault, more: str) -> JudgeFault:
    return JudgeFault(fault.code, f"{fault}; {more}", unusable=fault.unusable, text=fault.text)


def _wish(failed: Failed, delay: float) -> str:
    if failed.retry_after is not None:
        return f"it asks to wait for {failed.retry_after:.3g} s"
    return f"the next attempt would be in {delay:.3g} s"


def _nearest(name: str, known: Mapping[str, Any] | frozenset[str] | set[str]) -> str:
    near = nearest(name, known, cutoff=0.5)
    return f'; did you mean "{near}"?' if near else ""
