"""Metrics of requests to judge models: evald's own, and those of the OpenTelemetry conventions."""

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from evald.result import TokenUsage

from .histogram import BOUNDS_BY_UNIT, DURATION_BOUNDS, Histogram, series_count
from .prometheus import OTHER, add_histogram, caller_value, counts
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

_TOKEN_SERIES = 2 * series_count(BOUNDS_BY_UNIT["tokens"])
_JUDGE_SERIES = len(JUDGE_OUTCOMES) + 5  # tokens, cost, hits and misses of the cache
_DURATION_SERIES = series_count(DURATION_BOUNDS)
_MODEL_SERIES = 2 * _TOKEN_SERIES + 3 * _DURATION_SERIES  # two models, one of them with one kind of error


_DIRECTIONS = ("input", "output")


class ModelTally:
    """A tally of the requests to one model. durations: by outcome. tokens: per request, by direction."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.durations: dict[str, Histogram] = {}
        self.tokens = {direction: Histogram(BOUNDS_BY_UNIT["tokens"]) for direction in _DIRECTIONS}


class JudgeTally:
    """A tally of requests to judge models.

    evaluator: the type that sends them. limit: for the series of its models. outcomes: by JUDGE_OUTCOMES.
    tokens: by direction. cache_lookups: by "miss" and "hit".
    """

    def __init__(self, evaluator: str, limit: SeriesLimit) -> None:
        self.evaluator = evaluator
        self.outcomes = dict.fromkeys(JUDGE_OUTCOMES, 0)
        self.tokens = dict.fromkeys(_DIRECTIONS, 0)
        self.cost_usd = 0.0
        self.cache_lookups = {"miss": 0, "hit": 0}
        self.models: dict[str, ModelTally] = {}
        self._limit = limit
        # For models above the limit. It is never exported; the totals include its counts.
        self._other_model = ModelTally(OTHER)

    def request(self, model: str, outcome: str, seconds: float) -> None:
        """Count a finished request. outcome: an unknown one counts as "other"."""
        if outcome not in self.outcomes:
            outcome = OTHER
        self.outcomes[outcome] += 1
        durations = self._durations(self._model(model), outcome)
        if durations is not None:
            durations.observe(seconds)

    def spent(self, model: str, usage: TokenUsage | None, cost_usd: float | None) -> None:
        """Count the known tokens and cost of a request. cost_usd: US dollars."""
        if cost_usd is not None:
            self.cost_usd += cost_usd
        if usage is None:
            return
        histograms = self._model(model).tokens
        for direction, tokens in zip(_DIRECTIONS, (usage.input_tokens, usage.output_tokens), strict=True):
            if tokens is not None:
                self.tokens[direction] += tokens
                histograms[direction].observe(tokens)

    def cache(self, *, hit: bool) -> None:
        """Count a cache lookup."""
        self.cache_lookups["hit" if hit else "miss"] += 1

    def _model(self, name: str) -> ModelTally:
        found = self.models.get(name)
        if found is not None:
            return found
        label = caller_value(name)
        if label == OTHER or not self._limit.reserve("model", _TOKEN_SERIES):
            return self._other_model
        return self.models.setdefault(name, ModelTally(label))

    def _durations(self, model: ModelTally, outcome: str) -> Histogram | None:
        """Return the duration histogram of an outcome; None above the limit."""
        found = model.durations.get(outcome)
        if found is not None or model is self._other_model:
            return found
        if not self._limit.reserve("model", _DURATION_SERIES):
            return None
        return model.durations.setdefault(outcome, Histogram(DURATION_BOUNDS))


class JudgeMetrics:
    """The metrics of judges: creates and exports the tally. model_limit: for its models; 0 until there is a judge."""

    def __init__(self, limit: SeriesLimit) -> None:
        self._limit = limit
        self._judge: JudgeTally | None = None
        self.model_limit = SeriesLimit(0, {"model": 0})

    def tally(self, evaluator: str) -> JudgeTally:
        """Return the tally of requests to models, the same object each time. evaluator: the type that sends them."""
        if self._judge is None:
            if not self._limit.reserve("detail", _JUDGE_SERIES + _MODEL_SERIES, values=0):
                return JudgeTally(evaluator, self.model_limit)
            self.model_limit = SeriesLimit(_MODEL_SERIES, {"model": float("inf")})
            self._judge = JudgeTally(evaluator, self.model_limit)
        return self._judge

    def spent_usd(self) -> float | None:
        """Return the known cost of judges in US dollars; None without a judge."""
        return None if self._judge is None else self._judge.cost_usd

    def families(self) -> Iterator[Metric]:
        """Yield the current metric families."""
        judge = self._judge
        evaluator = "" if judge is None else judge.evaluator
        text = "Requests to judge models, each attempt counted, by outcome."
        yield counts("evald_judge_requests", text, "outcome", judge.outcomes if judge else {})
        text, found = "Tokens of judges, as their endpoints report them.", judge.tokens if judge else {}
        yield counts("evald_judge_tokens", text, "direction", found, evaluator=evaluator)
        text, spent = (
            "Cost of judges, by the prices in the config.",
            {evaluator: judge.cost_usd} if judge else {},
        )
        yield counts("evald_judge_cost_usd", text, "evaluator", spent)
        text = "Lookups of judge answers in the cache, by result."
        yield counts("evald_judge_cache", text, "result", judge.cache_lookups if judge else {})
        common = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
        durations = HistogramMetricFamily(
            "gen_ai_client_operation_duration_seconds",
            "Duration of requests to judge models. error_type is empty for successful ones.",
            labels=(*common, "error_type"),
        )
        usage = HistogramMetricFamily(
            "gen_ai_client_token_usage",
            "Tokens of one request to a model.",
            labels=(*common, "gen_ai_token_type"),
        )
        for model in list(judge.models.values()) if judge else ():
            labels = ("chat", "openai", model.label)
            for outcome, histogram in model.durations.copy().items():
                add_histogram(durations, (*labels, "" if outcome == "ok" else outcome), histogram)
            for direction, histogram in model.tokens.items():
                add_histogram(usage, (*labels, direction), histogram)
        yield from (durations, usage)
