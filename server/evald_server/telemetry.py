"""Every Prometheus name of evald, and how many series it may have.

The event loop counts in tallies. A scrape, in another thread, builds the families out of them.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, samples
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from evald import evaluator
from evald.result import Kind, Verdict

from . import buckets
from .tallies import (
    ERROR_CODES,
    GRPC_CODES,
    JUDGE_OUTCOMES,
    OTHER,
    Codes,
    EvaluationTally,
    Exemplar,
    Histogram,
    JudgeTally,
    Measured,
    ModelTally,
    RecentWorst,
    RemoteTally,
    Room,
    RpcTally,
    Subject,
    Tally,
)

__all__ = ["EvaluationTally", "RpcTally", "Tally", "Telemetry"]

_ASSERTION_VERDICTS = (Verdict.PASSED, Verdict.FAILED, Verdict.ERROR, Verdict.SKIPPED)
_METRIC_VERDICTS = (Verdict.PASSED, Verdict.ERROR, Verdict.SKIPPED)
_VERDICT_NAMES = {verdict: verdict.name.lower() for verdict in Verdict}

# What is always there: the `other` of evaluators (51), RPCs (36), evaluations (4) and reasons (1), the
# evaluations' durations (16), process and Python (16), build, saturation and overflow (9), remotes (30).
_FIXED_SERIES = 170
_HISTOGRAM_SERIES = len(buckets.DURATION) + 3  # +Inf, sum, count
_TOKEN_SERIES = 2 * (len(buckets.BY_UNIT["tokens"]) + 3)
_JUDGE_SERIES = len(JUDGE_OUTCOMES) + 5  # tokens, cost, hits and misses of the cache
_MODEL_SERIES = 2 * _TOKEN_SERIES + 3 * _HISTOGRAM_SERIES  # two models; one of them with errors of one kind
_INSTANCE_SERIES = 12  # of a remote type: three modes in four states

# "detail": histograms, last value and pass ratio of a type. "caller": the sets of labels that callers
# send. The codes are a closed list, of each evaluator and method.
_MAX_VALUES = {"detail": float("inf"), "code": float("inf"), "rpc": 64, "caller": 50, "reason": 16}

# A value that a caller chooses stays readable in a legend.
_MAX_CALLER_VALUE = 64
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Telemetry(Collector):
    """What a server counts, and its registry.

    Call every method but `exposition` from the event loop only.

    clock: monotonic seconds. max_types: most evaluator types whose verdicts are counted on their
    own; the rest share evaluator="other". max_series: most series of a scrape. Types whose
    histograms find no room keep their verdicts; their durations and errors join "other", their
    scores and values are left out. `evald_label_overflow_total` counts all that. allowed_labels:
    the keys of a caller's labels that `evald_evaluations_total` carries. Raises ValueError:
    max_series is too small for max_types, or a label name is not allowed.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_types: int = 150,
        max_series: int = 2000,
        allowed_labels: Sequence[str] = (),
    ) -> None:
        fixed = _FIXED_SERIES + len(_ASSERTION_VERDICTS) * max_types
        if max_series < fixed:
            raise ValueError(
                f"max_series: got {max_series}, wanted at least {fixed}: {_FIXED_SERIES} that are always there "
                f"and {len(_ASSERTION_VERDICTS)} for each of max_types {max_types}"
            )
        for name in allowed_labels:
            if not _LABEL_NAME.fullmatch(name) or name in ("rpc", "verdict"):
                raise ValueError(
                    f"allowed_labels: {name!r} cannot be a label: wanted letters, digits and '_', no digit or "
                    "'__' at the start, and neither 'rpc' nor 'verdict', which are taken"
                )
        self._clock = clock
        self._allowed_labels = tuple(dict.fromkeys(allowed_labels))
        self._room = Room(max_series - fixed, {**_MAX_VALUES, "evaluator": max_types})

        self._announced: dict[str, Kind] = {}
        self._subjects: dict[str, Subject] = {}
        self._tallies: dict[tuple[str, bool], Tally] = {}
        self._by_unit: dict[tuple[Tally, str], Tally] = {}
        self._other = Subject(OTHER, OTHER, Histogram(buckets.DURATION), Codes(len(ERROR_CODES)))
        self._other_tallies: dict[tuple[Kind, bool], Tally] = {}
        self._evaluations: dict[tuple[str, ...], EvaluationTally] = {}
        self._evaluation_durations = Histogram(buckets.DURATION)
        self._rpcs: dict[tuple[str, str, str], RpcTally] = {}
        self._other_rpc = RpcTally((OTHER, OTHER, OTHER), Histogram(buckets.DURATION), Codes(len(GRPC_CODES)))
        self._rejections: dict[str, int] = {}
        self._judge: JudgeTally | None = None
        # Of models without room, and never exposed: the totals have them.
        self._other_model = ModelTally(OTHER, buckets.BY_UNIT["tokens"])
        self._model_room = Room(0, {"model": 0})

        self._remote_tasks: dict[str, RemoteTally] = {}
        self._other_remote = RemoteTally(OTHER, Histogram(buckets.DURATION))
        self._remote_instances: Callable[[], Mapping[tuple[str, str, str], int]] = dict
        self._open_circuits: Callable[[], int] = int
        self._leases_expired = 0

        self._inflight: Callable[[], int] | None = None
        self._queued: Callable[[], int] | None = None
        self._lag = RecentWorst()
        self._build = {"version": version("evald"), "grpc_version": version("grpcio")}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def tally(
        self,
        type: str,  # noqa: A002 - the word of the contract
        kind: int,
        *,
        enforced: bool,
        origin: str,
        metric: evaluator.Metric | None,
    ) -> Tally:
        """The counters of a registered type, the same object each time.

        kind: number of an `evald.Kind`. origin: "built_in", "plugin" or "remote". metric: how to
        read its values, None when it has none; uses of one type may differ in the unit. The origin of
        a type's first use stays.
        """
        found = self._tallies.get((type, enforced))
        if found is not None:
            return self._in_unit(found, metric)
        subject = self._subject(type, Kind(kind), origin)
        # The verdicts under one enforcement come with the type; those under the other one need room.
        second = not enforced if type in self._announced else (type, not enforced) in self._tallies
        if subject is self._other or (
            second and not self._room.admit("evaluator", len(_ASSERTION_VERDICTS), values=0)
        ):
            shared = self._other_tallies.get((Kind(kind), enforced))
            if shared is None:
                shared = self._new_tally(self._other, Kind(kind), enforced)
                self._other_tallies[Kind(kind), enforced] = shared
            return shared
        tally = self._tallies[type, enforced] = self._new_tally(subject, Kind(kind), enforced)
        return self._in_unit(tally, metric)

    def announce(self, type: str, kind: int) -> None:  # noqa: A002 - the word of the contract
        """Show a type's verdicts from now on, with zeros: a rate needs to see them rise from there.

        Its histograms come with its first use: those of all built-ins would leave no room for others.
        """
        if type not in self._subjects and type not in self._announced and self._room.admit("evaluator", 0):
            self._announced[type] = Kind(kind)

    def _in_unit(self, tally: Tally, metric: evaluator.Metric | None) -> Tally:
        if metric is None or tally.subject is self._other:
            return tally
        unit = metric.unit
        found = self._by_unit.get((tally, unit))
        if found is not None:
            return found
        measured = tally.subject.measured.get(unit)
        if measured is None:
            bounds = buckets.value_bounds(metric)
            # +Inf, sum, count, last value
            if not self._room.admit("detail", len(bounds) + 4, values=0):
                return tally
            measured = tally.subject.measured.setdefault(unit, Measured(bounds))
        return self._by_unit.setdefault((tally, unit), tally.measuring(measured))

    def evaluation(self, rpc: str, labels: Mapping[str, str] | None = None) -> EvaluationTally:
        """The counters of whole evaluations by an RPC.

        rpc: name of the method, as in the contract. labels: the caller's; keys that the operator
        did not allow are dropped, values that are long or one too many become "other".
        """
        key = (rpc, *(_caller_value((labels or {}).get(name, "")) for name in self._allowed_labels))
        found = self._evaluations.get(key)
        if found is not None:
            return found
        if not self._room.admit("caller", len(_ASSERTION_VERDICTS)):
            key = (OTHER,) * len(key)
        return self._evaluations.setdefault(key, EvaluationTally(key, self._evaluation_durations))

    def rpc(self, service: str, method: str, grpc_type: str) -> RpcTally:
        """The counters of a gRPC method.

        service: its full name. grpc_type: "unary", "client_stream", "server_stream" or "bidi_stream".
        """
        key = (grpc_type, service, method)
        found = self._rpcs.get(key)
        if found is not None:
            return found
        # Started, received and sent; codes take their room one by one.
        if not self._room.admit("rpc", _HISTOGRAM_SERIES + 3):
            return self._rpcs.setdefault(self._other_rpc.labels, self._other_rpc)
        codes = Codes(len(GRPC_CODES), lambda: self._room.admit("code", 1), self._other_rpc.codes)
        return self._rpcs.setdefault(key, RpcTally(key, Histogram(buckets.DURATION), codes))

    def rejected(self, reason: str) -> None:
        """Count an evaluation that was refused before it began. reason: out of a short fixed list."""
        if reason not in self._rejections and not self._room.admit("reason", 1):
            reason = OTHER
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def judge(self, evaluator: str) -> JudgeTally:
        """The counters of the requests to models, the same object each time. evaluator: the type that asks."""
        if self._judge is None:
            judge = JudgeTally(evaluator, self._model, self._operation)
            if not self._room.admit("detail", _JUDGE_SERIES + _MODEL_SERIES, values=0):
                return judge
            self._model_room = Room(_MODEL_SERIES, {"model": float("inf")})
            self._judge = judge
        return self._judge

    def _model(self, name: str) -> ModelTally:
        models = self._judge.models if self._judge else {}
        found = models.get(name)
        if found is not None:
            return found
        label = _caller_value(name)
        if label == OTHER or not self._model_room.admit("model", _TOKEN_SERIES):
            return self._other_model
        return models.setdefault(name, ModelTally(label, buckets.BY_UNIT["tokens"]))

    def _operation(self, model: ModelTally, outcome: str) -> Histogram | None:
        found = model.durations.get(outcome)
        if found is not None or model is self._other_model:
            return found
        if not self._model_room.admit("model", _HISTOGRAM_SERIES):
            return None
        return model.durations.setdefault(outcome, Histogram(buckets.DURATION))

    def watch(self, *, inflight: Callable[[], int], queued: Callable[[], int]) -> None:
        """Ask these at every scrape, from its thread, how many evaluations run and wait."""
        self._inflight = inflight
        self._queued = queued

    def remote_tasks(self, type: str) -> RemoteTally:  # noqa: A002 - the word of the contract
        """The counter of a remote type's tasks, the same object each time."""
        found = self._remote_tasks.get(type)
        if found is not None:
            return found
        if type == OTHER or not self._room.admit("detail", _HISTOGRAM_SERIES + _INSTANCE_SERIES):
            return self._other_remote
        return self._remote_tasks.setdefault(type, RemoteTally(type, Histogram(buckets.DURATION)))

    def lease_expired(self) -> None:
        """Count a lease that ran out."""
        self._leases_expired += 1

    def watch_remotes(
        self,
        *,
        instances: Callable[[], Mapping[tuple[str, str, str], int]],
        open_circuits: Callable[[], int],
    ) -> None:
        """Ask these at every scrape, from its thread: instances by type, mode and state, open circuits."""
        self._remote_instances = instances
        self._open_circuits = open_circuits

    def loop_lag(self, seconds: float) -> None:
        """Note how much later than asked for the event loop woke up. Call at least once a second."""
        now = self._clock()
        self._lag.observe(seconds, now)
        for tally in (*self._tallies.values(), *self._other_tallies.values()):
            tally.tick(now)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """A scrape's body and content type, from any thread.

        accept: the request's header. OpenMetrics, which alone has exemplars, for whoever names it;
        else the text format, which everyone reads.
        """
        openmetrics = any(
            media.partition(";")[0].strip().lower() == "application/openmetrics-text"
            for media in accept.split(",")
        )
        # The library copies the version asked for into its answer, so it never sees the header itself.
        encode, content_type = choose_encoder(
            "application/openmetrics-text; version=1.0.0" if openmetrics else ""
        )
        return encode(self.registry), content_type

    def collect(self) -> Iterator[Metric]:
        """The families of this moment, for the registry."""
        yield from self._evaluator_families()
        yield from self._value_families()
        yield from self._evaluation_families()
        yield from self._judge_families()
        yield from self._rpc_families()
        yield from self._remote_families()
        yield from self._saturation_families()

    def _evaluator_families(self) -> Iterator[Metric]:
        results = _counter(
            "evald_evaluator_results",
            "Results of evaluators, by verdict. The truth about pass rates: rate of passed over rate of "
            "passed and failed, enforced assertions only. Shadow results changed no verdict.",
        )
        ratios = GaugeMetricFamily(
            "evald_assertion_pass_ratio",
            "Share of passed among the passed and failed enforced results of the last 5 minutes, for people. "
            "Never average it over pods or time: use evald_evaluator_results_total for that. "
            "Absent when nothing passed or failed.",
            labels=["evaluator"],
        )
        for tally in (*self._tallies.values(), *self._other_tallies.values()):
            names = dict(zip(("evaluator", "kind", "enforcement"), tally.labels, strict=True))
            for verdict in tally.verdicts:
                _count(
                    results,
                    {**names, "verdict": _VERDICT_NAMES[verdict]},
                    tally.count(verdict),
                    tally.exemplars.get(verdict),
                )
            ratio = tally.window.ratio(self._clock()) if tally.window else None
            if ratio is not None:
                ratios.add_metric([tally.labels[0]], ratio)
        for label, kind in self._announced.copy().items():
            if (label, True) not in self._tallies:
                names = {"evaluator": label, "kind": kind.name.lower(), "enforcement": "enforced"}
                for verdict in _verdicts(kind):
                    _count(results, {**names, "verdict": _VERDICT_NAMES[verdict]}, 0)
        durations = HistogramMetricFamily(
            "evald_evaluator_duration_seconds",
            "How long evaluators took, errors included, skips and queueing left out.",
            labels=["evaluator", "origin"],
        )
        errors = _counter(
            "evald_evaluator_errors",
            "Results of evaluators that gave no verdict, by the code of the error.",
        )
        scores = HistogramMetricFamily(
            "evald_assertion_score_ratio",
            "Scores of enforced assertions that passed or failed, from 0 to 1, higher is better.",
            labels=["evaluator"],
        )
        for subject in self._detailed_subjects():
            _observe(durations, [subject.label, subject.origin], subject.durations)
            for code, count in zip(ERROR_CODES, subject.errors.cells[:], strict=True):
                if count:
                    _count(errors, {"evaluator": subject.label, "code": code}, count)
            if subject.scores is not None:
                _observe(scores, [subject.label], subject.scores)
        yield from (results, durations, errors, scores, ratios)

    def _value_families(self) -> Iterator[Metric]:
        families = {
            unit: HistogramMetricFamily(
                f"evald_metric_value_{unit}",
                f"Values measured by evaluators whose unit is {unit}"
                + (", or a plain number, or one without a family of its own." if unit == "count" else ".")
                + " Buckets can differ between evaluators: never add evaluators up.",
                labels=["evaluator"],
            )
            for unit in buckets.BY_UNIT
        }
        last = GaugeMetricFamily(
            "evald_metric_last_value",
            "The value measured last, for people. Of one pod, and of one conversation among many.",
            labels=["evaluator", "unit"],
        )
        for subject in self._detailed_subjects():
            for unit, measured in list(subject.measured.items()):
                _observe(families[buckets.family_unit(unit)], [subject.label], measured.histogram)
                if measured.last is not None:
                    last.add_metric([subject.label, unit], measured.last)
        yield from families.values()
        yield last

    def _evaluation_families(self) -> Iterator[Metric]:
        evaluations = _counter("evald_evaluations", "Turns evaluated, by the verdict of their summary.")
        names = ("rpc", *self._allowed_labels)
        for tally in list(self._evaluations.values()):
            labels = dict(zip(names, tally.labels, strict=True))
            for verdict in _ASSERTION_VERDICTS:
                _count(evaluations, {**labels, "verdict": _VERDICT_NAMES[verdict]}, tally.counts[verdict])
        durations = HistogramMetricFamily(
            "evald_evaluation_duration_seconds",
            "How long the evaluation of a turn took in the server, queueing left out.",
            labels=(),
        )
        _observe(durations, [], self._evaluation_durations)
        yield from (evaluations, durations)

    def _judge_families(self) -> Iterator[Metric]:
        requests = _counter(
            "evald_judge_requests",
            "Requests to the models that judge, each attempt on its own, by the outcome.",
        )
        tokens = _counter("evald_judge_tokens", "Tokens of judges, as their endpoints report them.")
        cost = _counter("evald_judge_cost_usd", "What judges have cost, by the prices in the config.")
        looks = _counter("evald_judge_cache", "Answers of judges looked for in the cache, by the result.")
        durations = HistogramMetricFamily(
            "gen_ai_client_operation_duration_seconds",
            "How long requests to models took. error_type is empty for those that went well.",
            labels=("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "error_type"),
        )
        usage = HistogramMetricFamily(
            "gen_ai_client_token_usage",
            "Tokens of one request to a model.",
            labels=(
                "gen_ai_operation_name",
                "gen_ai_provider_name",
                "gen_ai_request_model",
                "gen_ai_token_type",
            ),
        )
        judge = self._judge
        if judge is not None:
            for outcome, count in judge.outcomes.copy().items():
                _count(requests, {"outcome": outcome}, count)
            for direction, count in zip(("input", "output"), judge.tokens[:], strict=True):
                _count(tokens, {"evaluator": judge.evaluator, "direction": direction}, count)
            _count(cost, {"evaluator": judge.evaluator}, judge.cost_usd)
            for result, count in zip(("miss", "hit"), judge.looks[:], strict=True):
                _count(looks, {"result": result}, count)
            for model in list(judge.models.values()):
                of = ("chat", "openai", model.label)
                for outcome, histogram in model.durations.copy().items():
                    _observe(durations, (*of, "" if outcome == "ok" else outcome), histogram)
                for direction, histogram in zip(("input", "output"), model.tokens, strict=True):
                    _observe(usage, (*of, direction), histogram)
        yield from (requests, tokens, cost, looks, durations, usage)

    def _rpc_families(self) -> Iterator[Metric]:
        started = _counter("grpc_server_started", "RPCs started on the server.")
        handled = _counter(
            "grpc_server_handled", "RPCs completed on the server, whether they succeeded or failed."
        )
        received = _counter("grpc_server_msg_received", "Messages received from callers.")
        sent = _counter("grpc_server_msg_sent", "Messages sent to callers.")
        names = ("grpc_type", "grpc_service", "grpc_method")
        durations = HistogramMetricFamily(
            "grpc_server_handling_seconds",
            "How long RPCs took in the server until they completed.",
            labels=names,
        )
        for tally in list(self._rpcs.values()):
            labels = dict(zip(names, tally.labels, strict=True))
            _count(started, labels, tally.started_count)
            _count(received, labels, tally.received_count)
            _count(sent, labels, tally.sent_count)
            _observe(durations, tally.labels, tally.durations)
            for code, count in zip(GRPC_CODES.values(), tally.codes.cells[:], strict=True):
                if count:
                    _count(handled, {**labels, "grpc_code": code}, count)
        yield from (started, handled, received, sent, durations)

    def _remote_families(self) -> Iterator[Metric]:
        instances = GaugeMetricFamily(
            "evald_remote_instances",
            "Instances of remote evaluators, by the way they came and by their state.",
            labels=["evaluator", "mode", "state"],
        )
        shown: dict[tuple[str, str, str], int] = {}
        for (name, mode, state), count in self._remote_instances().items():
            label = name if name in self._remote_tasks else OTHER
            shown[label, mode, state] = shown.get((label, mode, state), 0) + count
        for labels, count in shown.items():
            instances.add_metric(labels, count)
        yield instances
        durations = HistogramMetricFamily(
            "evald_remote_task_duration_seconds",
            "How long remote instances took for a task, each attempt counted, waiting for a place left out.",
            labels=["evaluator"],
        )
        for tally in [*self._remote_tasks.values(), self._other_remote]:
            _observe(durations, [tally.label], tally.durations)
        yield durations
        expired = _counter(
            "evald_remote_lease_expirations", "Leases that ran out because nobody renewed them."
        )
        _count(expired, {}, self._leases_expired)
        yield expired
        yield _gauge(
            "evald_remote_circuit_open",
            "Remote instances whose circuit is open: they failed too often and are left alone for a while.",
            self._open_circuits,
        )

    def _saturation_families(self) -> Iterator[Metric]:
        yield _gauge("evald_inflight_evaluations", "Evaluations that run now.", self._inflight)
        yield _gauge("evald_queued_evaluations", "Evaluations that wait to be let in.", self._queued)
        rejected = _counter(
            "evald_evaluations_rejected", "Evaluations refused before they began, by the reason."
        )
        for reason, count in self._rejections.copy().items():
            _count(rejected, {"reason": reason}, count)
        yield rejected
        yield _gauge(
            "evald_event_loop_lag_seconds",
            "How much later than asked for the event loop woke up: the worst of the last 30 to 60 seconds.",
            lambda: self._lag.worst(self._clock()),
        )
        overflow = _counter(
            "evald_label_overflow",
            "Lookups that found no room for one more value of a label and counted as other instead.",
        )
        for label, count in (*self._room.overflows.items(), *self._model_room.overflows.items()):
            _count(overflow, {"label": label}, count)
        yield overflow
        build = GaugeMetricFamily(
            "evald_build_info", "Always 1. The labels say what runs.", labels=list(self._build)
        )
        build.add_metric(list(self._build.values()), 1)
        yield build

    def _detailed_subjects(self) -> list[Subject]:
        """Those with histograms of their own, and the one that the rest share."""
        subjects = list(self._subjects.values())
        detailed = [subject for subject in subjects if subject.durations is not self._other.durations]
        shared = self._other_tallies or any(self._room.overflows.values())
        return [*detailed, self._other] if shared else detailed

    def _subject(self, label: str, kind: Kind, origin: str) -> Subject:
        found = self._subjects.get(label)
        if found is not None:
            return found
        if label not in self._announced and (label == OTHER or not self._room.admit("evaluator", 0)):
            return self._other
        scores = Histogram(buckets.RATIO) if kind is Kind.ASSERTION else None
        series = _HISTOGRAM_SERIES
        if scores:
            series += len(scores.bounds) + 4  # +Inf, sum, count, pass ratio
        if self._room.admit("detail", series):
            subject = Subject(
                label,
                origin,
                Histogram(buckets.DURATION),
                Codes(len(ERROR_CODES), lambda: self._room.admit("code", 1), self._other.errors),
                scores=scores,
            )
        else:
            subject = Subject(label, OTHER, self._other.durations, self._other.errors)
        return self._subjects.setdefault(label, subject)

    def _new_tally(self, subject: Subject, kind: Kind, enforced: bool) -> Tally:
        return Tally(
            subject,
            (subject.label, kind.name.lower(), "enforced" if enforced else "shadow"),
            _verdicts(kind),
            self._clock,
            gates=enforced and subject.scores is not None,
        )


def _verdicts(kind: Kind) -> Sequence[Verdict]:
    return _ASSERTION_VERDICTS if kind is Kind.ASSERTION else _METRIC_VERDICTS


def _caller_value(value: str) -> str:
    return value if len(value) <= _MAX_CALLER_VALUE and value.isprintable() else OTHER


def _counter(name: str, documentation: str) -> CounterMetricFamily:
    """An empty family; the exposition appends `_total` to its name."""
    return CounterMetricFamily(name, documentation, labels=())


def _count(family: Metric, labels: Mapping[str, str], value: float, exemplar: Exemplar | None = None) -> None:
    shown = _exemplar(exemplar) if exemplar else None
    family.samples.append(samples.Sample(f"{family.name}_total", dict(labels), value, None, shown))


def _gauge(name: str, documentation: str, read: Callable[[], float] | None) -> Metric:
    return GaugeMetricFamily(name, documentation, value=None if read is None else read())


def _observe(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    *counts, total = histogram.snapshot()
    shown: list[tuple[str, float] | tuple[str, float, samples.Exemplar]] = []
    below = 0.0
    for index, (bound, count) in enumerate(zip((*histogram.bounds, "+Inf"), counts, strict=True)):
        below += count
        exemplar = histogram.exemplars.get(index)
        shown.append(
            (str(bound), below, _exemplar(exemplar)) if exemplar is not None else (str(bound), below)
        )
    family.add_metric(list(labels), shown, total)


def _exemplar(exemplar: Exemplar) -> samples.Exemplar:
    return samples.Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.time)
