"""One self-contained HTML page. It loads nothing, and is readable without scripts."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from evald.result import Verdict
from evald.v1 import evaluation_service_pb2, suite_service_pb2
from evald_server.pages.environment import csp_hash, environment
from evald_server.pages.formats import between, mark, moment, percent
from evald_server.pages.plots import Bar, Datum, Plot, bar, share_plot, spark
from evald_server.suites.statistics import wilson

from .case_view import CaseView, case_view, size, title
from .report import SuiteReport, checked_cases, evaluator_name, is_metric, measures, metric_means, results

if TYPE_CHECKING:
    from jinja2 import Environment

# Limits of a page over all suite runs: a browser takes about a second to show that much.
_MOST_CASES: Final = 2000
_MOST_CHARACTERS: Final = 12_000_000
# Suite runs with more cases are not compared case by case: their verdicts alone would fill the memory.
_MOST_COMPARED: Final = 10_000
_MOST_DIFFERENCES: Final = 200
_MOST_HISTORY: Final = 60

_ORDER: Final = {Verdict.FAILED: 0, Verdict.ERROR: 1, Verdict.PASSED: 2, Verdict.SKIPPED: 3}


class EvaluatorRow(NamedTuple):
    """An evaluator over the whole suite run. rate: None where nothing passed or failed."""

    title: str
    totals: evaluation_service_pb2.EvaluatorTotals
    rate: suite_service_pb2.Estimate | None
    bar: Bar | None


class Section(NamedTuple):
    """A suite run on the page."""

    number: int
    report: SuiteReport
    run: suite_service_pb2.SuiteRun
    bar: Bar | None
    assertions: list[EvaluatorRow]
    metrics: list[EvaluatorRow]
    cases: list[CaseView]
    hidden: int
    trials: Plot | None
    history: "History | None"
    change: Bar | None


class MetricHistory(NamedTuple):
    """The mean of a metric in each suite run of a history. last: the latest mean. spark: a path."""

    name: str
    last: float
    spark: str


class History(NamedTuple):
    """Suite runs of one suite and target, oldest first, with a plot of their pass rates."""

    runs: Sequence[suite_service_pb2.SuiteRun]
    plot: Plot
    metrics: list[MetricHistory]


class Matrix(NamedTuple):
    """The cases of a suite on which targets differ. hidden: number of cases left out.

    cases: by id, the verdict for each target; None if it was not run.
    """

    suite: str
    targets: list[str]
    cases: dict[str, list[Verdict | None]]
    hidden: int


def write_page(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write the page. Failed and inconclusive cases come first; the page says how many are left out.

    Raises WrongCases, and MissingPackage without Jinja2.
    """
    template = _templates().get_template("report.html")
    room = _Room(max(_MOST_CASES // max(len(reports), 1), 1), _MOST_CHARACTERS // max(len(reports), 1))
    verdicts: list[dict[str, Verdict] | None] = []
    sections = [_section(number, report, room, verdicts) for number, report in enumerate(reports, start=1)]
    policy = (
        f"default-src 'none'; style-src {csp_hash(_templates(), 'style.css')}; "
        f"script-src {csp_hash(_templates(), 'filter.js')}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = template.generate(policy=policy, sections=sections, matrices=list(_matrices(sections, verdicts)))
    stream.writelines(page)


@cache
def _templates() -> "Environment":
    return environment(Path(__file__).with_name("templates"))


class _Room(NamedTuple):
    """The limits of each suite run on the page."""

    cases: int
    characters: int


def _section(
    number: int, report: SuiteReport, room: _Room, verdicts: list[dict[str, Verdict] | None]
) -> Section:
    run = report.run
    kept = _Kept(room)
    compared: dict[str, Verdict] | None = {} if run.case_count <= _MOST_COMPARED else None
    for case, verdict in checked_cases(report):
        kept.add(case, verdict, report)
        if compared is not None:
            compared[case.case_id] = verdict
    verdicts.append(compared)
    cases = kept.in_order()
    assertions, metrics = evaluator_rows(run, kept.names)
    return Section(
        number,
        report,
        run,
        bar(run.pass_rate.value, run.pass_rate.low, run.pass_rate.high, target=run.threshold)
        if run.HasField("pass_rate")
        else None,
        assertions,
        metrics,
        cases,
        run.case_count - len(cases),
        trial_plot(run),
        history_of(past_runs(report.run, report.history)),
        change_bar(report.comparison),
    )


class _Kept:
    """The cases that a page shows: as many as fit, those that did not pass first."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._views: dict[Verdict, list[CaseView]] = {verdict: [] for verdict in Verdict}
        self._used = {True: 0, False: 0}  # characters of cases, by whether they passed or were skipped
        self.names: dict[str, tuple[str, bool]] = {}
        """Title of each evaluator, and whether it is a metric, by its name in results."""

    def add(self, case: suite_service_pb2.CaseResult, verdict: Verdict, report: SuiteReport) -> None:
        views = self._views[verdict]
        if len(views) >= self._room.cases:
            return
        green = verdict in (Verdict.PASSED, Verdict.SKIPPED)
        # Passed cases take at most half of the room, because failures may follow.
        whole = sum(self._used.values()) < self._room.characters
        whole = whole and (not green or self._used[green] < self._room.characters / 2)
        view = case_view(case, verdict, report.place(case.case_id), whole=whole)
        self._used[green] += size(view)
        views.append(view)
        for _, result in results(case):
            if result.name not in self.names:
                self.names[result.name] = title(result.name, result.type, result.label), is_metric(result)

    def in_order(self) -> list[CaseView]:
        ordered = sorted(self._views.items(), key=lambda item: _ORDER[item[0]])
        return [view for _, views in ordered for view in views][: self._room.cases]


def evaluator_rows(
    run: suite_service_pb2.SuiteRun, names: Mapping[str, tuple[str, bool]]
) -> tuple[list[EvaluatorRow], list[EvaluatorRow]]:
    """Return the assertions and the metrics of a suite run.

    names: title of each evaluator, and whether it is a metric, as far as they are known.
    """
    tables: tuple[list[EvaluatorRow], list[EvaluatorRow]] = ([], [])
    order = {name: position for position, name in enumerate(names)}
    for name, totals in sorted(
        run.evaluators.items(), key=lambda item: (order.get(item[0], len(order)), item[0])
    ):
        judged = totals.passed_count + totals.failed_count
        shown, metric = names.get(name, (title(name, "", ""), measures(totals)))
        rate = None
        if judged:
            low, high = wilson(totals.passed_count, judged)
            rate = suite_service_pb2.Estimate(value=totals.passed_count / judged, low=low, high=high)
        drawn = bar(rate.value, rate.low, rate.high) if rate else None
        tables[metric].append(EvaluatorRow(evaluator_name(shown, totals), totals, rate, drawn))
    return tables


def trial_plot(run: suite_service_pb2.SuiteRun) -> Plot | None:
    """Return pass@k and pass^k by k; None with one trial."""
    if not run.trial_estimates:
        return None

    def samples(name: str, field: str) -> list[Datum]:
        return [
            Datum(
                f"k = {found.k}",
                estimate.value,
                estimate.low,
                estimate.high,
                f"{name.replace('k', str(found.k))}: {_said(estimate)}",
            )
            for found in run.trial_estimates
            for estimate in [getattr(found, field)]
        ]

    return share_plot(
        [("pass@k", "any", samples("pass@k", "any_passes")), ("pass^k", "all", samples("pass^k", "all_pass"))]
    )


def _said(estimate: suite_service_pb2.Estimate) -> str:
    return f"{percent(estimate.value)}, 95 % interval {between(estimate)}"


def past_runs(
    run: suite_service_pb2.SuiteRun, history: Iterable[suite_service_pb2.SuiteRun]
) -> list[suite_service_pb2.SuiteRun]:
    """Return the latest suite runs that completed or have a pass rate, oldest first, with `run` last."""
    past = [one for one in history if one.id != run.id]
    past.sort(key=lambda one: (one.create_time.seconds, one.create_time.nanos))
    return [one for one in (*past, run) if is_past(one)][-_MOST_HISTORY:]


def is_past(run: suite_service_pb2.SuiteRun) -> bool:
    """Return whether a suite run is part of a history. One that completed without a pass rate is: all of it is in error."""
    return run.HasField("pass_rate") or run.status == suite_service_pb2.SUITE_RUN_STATUS_COMPLETED


def history_of(past: Sequence[suite_service_pb2.SuiteRun]) -> History | None:
    """Return the history of suite runs, oldest first; None for a single one."""
    if len(past) < 2:
        return None
    metrics = [
        MetricHistory(name, known[-1], spark(means))
        for name, means in metric_means(past).items()
        if (known := [mean for mean in means if mean is not None])
    ]
    return History(past, _history_plot(past), metrics)


def _history_plot(past: Sequence[suite_service_pb2.SuiteRun]) -> Plot:
    samples = [
        Datum(
            moment(run.create_time)[5:10],
            run.pass_rate.value if run.HasField("pass_rate") else None,
            run.pass_rate.low,
            run.pass_rate.high,
            f"{moment(run.create_time)}: {mark(run.verdict).word}, "
            + (_said(run.pass_rate) if run.HasField("pass_rate") else "no case passed or failed"),
            mark(run.verdict).style,
        )
        for run in past
    ]
    return share_plot([("", "rate", samples)])


def change_bar(comparison: suite_service_pb2.SuiteComparison | None) -> Bar | None:
    """Return the change of the pass rate with its interval; None if there is none."""
    if comparison is None or not comparison.HasField("pass_rate_change"):
        return None
    change = comparison.pass_rate_change
    # At least 10 points on each side, so that a small change looks small.
    reach = max(abs(change.low), abs(change.high), 0.1)
    return bar(change.value, change.low, change.high, start=-reach, end=reach, target=0)


def _matrices(sections: Sequence[Section], verdicts: Sequence[dict[str, Verdict] | None]) -> Iterator[Matrix]:
    by_suite: dict[str, list[int]] = defaultdict(list)
    for position, section in enumerate(sections):
        by_suite[section.run.suite].append(position)
    for suite, positions in by_suite.items():
        found = [
            (sections[position], known) for position in positions if (known := verdicts[position]) is not None
        ]
        if len(found) < 2:
            continue
        ids = dict.fromkeys(case_id for _, known in found for case_id in known)
        cases = {case_id: [known.get(case_id) for _, known in found] for case_id in ids}
        differing = [(case_id, verdicts) for case_id, verdicts in cases.items() if len(set(verdicts)) > 1]
        targets = [section.run.target for section, _ in found]
        hidden = max(len(differing) - _MOST_DIFFERENCES, 0)
        yield Matrix(suite, targets, dict(differing[:_MOST_DIFFERENCES]), hidden)
