"""Metrics of requests to judge models: evald's own, and those of the OpenTelemetry conventions."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from evald.result import TokenUsage
from evald_server.engine.compiler import JUDGE

from .histogram import DURATION_BOUNDS, Histogram, series_count
from .prometheus import OTHER, Counts, add_histogram, caller_value
from .series_limit import SeriesLimit

JUDGE_OUTCOMES = (
    "ok",
    "adapted",
    "unparseable",
    "refused",
    "truncated",
    "rate_limited",
    "unavailable",
    "timeout",
    "input_too_large",
    "cancelled",
    OTHER,
)

_DIRECTIONS = ("input", "output")

_TOKEN_SERIES = len(_DIRECTIONS)
_DURATION_SERIES = series_count(DURATION_BOUNDS)
_MODEL_SERIES = 2 * _TOKEN_SERIES + 3 * _DURATION_SERIES  # two models, one of them with one kind of error


class ModelTally:
    """A tally of the requests to one model. durations: by outcome. tokens: by direction."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.durations: dict[str, Histogram] = {}
        self.tokens = dict.fromkeys(_DIRECTIONS, 0)


class JudgeMetrics:
    """The metrics of requests to judge models. They all come from one evaluator type, `llm-judge`."""

    def __init__(self, limit: SeriesLimit) -> None:
        text = "Requests to judge models, each attempt counted, by outcome."
        self._requests = Counts(limit, "evald_judge_requests", text, outcome=JUDGE_OUTCOMES)
        text = "Tokens of judges, as their endpoints report them."
        self._tokens = Counts(limit, "evald_judge_tokens", text, evaluator=[JUDGE], direction=_DIRECTIONS)
        text = "Cost of judges, by the prices in the config."
        self._cost = Counts(limit, "evald_judge_cost_usd", text, evaluator=[JUDGE])
        text = "Lookups of judge answers in the cache, by result."
        self._cache = Counts(limit, "evald_judge_cache", text, result=["miss", "hit"])
        self._limit = limit.split(_MODEL_SERIES, "model")
        self._models: dict[str, ModelTally] = {}
        # For models above the limit. It is never exported; the totals include its counts.
        self._other_model = ModelTally(OTHER)

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a finished request. outcome: an unknown one counts as "other"."""
        if outcome not in JUDGE_OUTCOMES:
            outcome = OTHER
        self._requests.add(outcome)
        durations = self._durations(self._model(model), outcome)
        if durations is not None:
            durations.observe(seconds)

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """Count the known tokens and cost of a request. cost_usd: US dollars."""
        if cost_usd is not None:
            self._cost.add(JUDGE, count=cost_usd)
        if usage is None:
            return
        tally = self._model(model).tokens
        for direction, tokens in zip(_DIRECTIONS, (usage.input_tokens, usage.output_tokens), strict=True):
            if tokens is not None:
                self._tokens.add(JUDGE, direction, count=tokens)
                tally[direction] += tokens

    def cache(self, *, hit: bool) -> None:
        """Count a cache lookup."""
        self._cache.add("hit" if hit else "miss")

    def spent_usd(self) -> float:
        """Return the known cost in US dollars."""
        return self._cost.counts[JUDGE,]

    def _model(self, name: str) -> ModelTally:
        found = self._models.get(name)
        if found is not None:
            return found
        label = caller_value(name)
        if label == OTHER or not self._limit.reserve("model", _TOKEN_SERIES):
            return self._other_model
        return self._models.setdefault(name, ModelTally(label))

    def _durations(self, model: ModelTally, outcome: str) -> Histogram | None:
        """Return the duration histogram of an outcome; None above the limit."""
        found = model.durations.get(outcome)
        if found is not None or model is self._other_model:
            return found
        if not self._limit.reserve("model", _DURATION_SERIES):
            return None
        return model.durations.setdefault(outcome, Histogram(DURATION_BOUNDS))

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        yield from (one.family() for one in (self._requests, self._tokens, self._cost, self._cache))
        common = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        durations = HistogramMetricFamily(
            "gen_ai_client_inference_duration_seconds",
            "Duration of requests to judge models. error_type is empty for successful ones.",
            labels=(*common, "error_type"),
        )
        usage = {
            direction: CounterMetricFamily(
                f"gen_ai_client_inference_usage_{direction}_tokens",
                f"{direction.capitalize()} tokens of judge models, as their endpoints report them.",
                labels=common,
            )
            for direction in _DIRECTIONS
        }
        for model in list(self._models.values()):
            labels = ("chat", "openai", model.label)
            for outcome, histogram in model.durations.copy().items():
                add_histogram(durations, (*labels, "" if outcome == "ok" else outcome), histogram)
            for direction, tokens in model.tokens.items():
                usage[direction].add_metric(labels, tokens)
        yield from (durations, *usage.values())
