"""Tables of suite runs and their comparisons for the terminal."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.text import Text

from evald.records import read_verdict
from evald.v1 import suite_service_pb2

from ..pages import formats
from ..suites.reports.report import evaluator_name, measures
from .console import new_table, say, show
from .result_tables import titled, verdict_text
from .sanitize import clean

SHOWN_CASES: Final = 10
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_COMPARED: Final = {"PASS": "green", "WARN": "yellow", "BLOCK": "red"}


def verdict_word(verdict: int) -> str:
    """Return the name of a verdict. An unknown verdict is an ERROR."""
    return str(read_verdict(verdict).name)


def rate(estimate: suite_service_pb2.Estimate) -> str:
    """Return a share with its interval."""
    return plain(f"{formats.percent(estimate.value)} ({formats.between(estimate)})")


def plain(text: str) -> str:
    """Replace narrow no-break spaces by plain spaces, which every terminal can show."""
    return text.replace("\u202f", " ")


def show_runs(runs: Sequence[suite_service_pb2.SuiteRun]) -> None:
    """Show a row for each suite run, without empty optional columns."""
    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("Suite", "left", lambda run: clean(run.suite, 40)),
        ("Target", "left", lambda run: clean(run.target, 40)),
        ("Pass rate", "left", lambda run: rate(run.pass_rate) if run.HasField("pass_rate") else "n/a"),
        ("Cases", "right", lambda run: f"{run.case_count:,}"),
        ("Failed", "right", lambda run: _count(run.failed_count)),
        ("Errors", "right", lambda run: _count(run.error_count)),
        ("Skipped", "right", lambda run: _count(run.skipped_count)),
        ("Unstable", "right", lambda run: _count(run.unstable_count)),
        ("Score", "right", lambda run: formats.score(run.mean_score) if run.HasField("mean_score") else ""),
        (
            "Latency",
            "right",
            lambda run: (
                plain(formats.seconds(run.mean_latency_seconds))
                if run.HasField("mean_latency_seconds")
                else ""
            ),
        ),
        ("Tokens", "right", lambda run: formats.number(formats.tokens(run.token_usage))),
        ("Cost", "right", lambda run: formats.money(run.cost) if run.HasField("cost") else ""),
    ]
    kept = [
        column
        for column in columns
        if column[0] in ("Suite", "Target", "Pass rate", "Cases") or any(map(column[2], runs))
    ]
    table = new_table(*((name, side) for name, side, _ in kept), "Verdict")
    for run in runs:
        table.add_row(*(cell(run) for _, _, cell in kept), Text(*verdict_text(verdict_word(run.verdict))))
    show(table)


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def show_trials(run: suite_service_pb2.SuiteRun) -> None:
    """Show the estimates of pass@k and pass^k."""
    if not run.trial_estimates:
        return
    table = new_table(("k", "right"), "pass@k", "pass^k", ("Cases", "right"))
    for one in run.trial_estimates:
        table.add_row(str(one.k), rate(one.any_passes), rate(one.all_pass), f"{one.case_count:,}")
    show(*titled((f"Trials: {clean(run.suite, 40)} {clean(run.target, 40)}", table)))


def show_evaluators(run: suite_service_pb2.SuiteRun) -> None:
    """Show the pass rate of each assertion and the mean of each metric."""
    assertions = new_table(
        "Evaluator", "Pass rate", *((one, "right") for one in ("Passed", "Failed", "Errors"))
    )
    metrics = new_table("Metric", ("Mean", "right"), ("Errors", "right"))
    for name, totals in sorted(run.evaluators.items()):
        shown = evaluator_name(clean(name, 40), totals)
        judged = totals.passed_count + totals.failed_count
        if measures(totals):
            mean = formats.number(totals.mean_value) if totals.HasField("mean_value") else "n/a"
            metrics.add_row(shown, mean, _count(totals.error_count))
        else:
            share = plain(formats.percent(totals.passed_count / judged)) if judged else "n/a"
            counts = (totals.passed_count, totals.failed_count, totals.error_count)
            assertions.add_row(shown, share, *map(_count, counts))
    show(*titled(("Evaluators", assertions), ("Metrics", metrics)))


def show_comparisons(comparisons: Sequence[suite_service_pb2.SuiteComparison]) -> None:
    """Show the comparisons of targets, with their significance and verdict."""
    table = new_table(
        "Target",
        "Compared with",
        ("Change", "right"),
        ("Broken", "right"),
        ("Fixed", "right"),
        ("p", "right"),
        "Verdict",
        "Why",
    )
    for one in comparisons:
        word = formats.comparison_mark(one.verdict).word
        table.add_row(
            clean(one.new.target, 40),
            clean(one.base.target, 40),
            formats.points(one.pass_rate_change.value) if one.HasField("pass_rate_change") else "",
            str(one.broken_count),
            str(one.fixed_count),
            formats.p_value(one.mcnemar_p) if one.HasField("mcnemar_p") else "",
            Text(word, _COMPARED.get(word, "yellow")),
            clean(one.reason, 300),
        )
    show(*titled(("Differences", table)))


def say_verdict(run: suite_service_pb2.SuiteRun) -> None:
    """Print a suite run's verdict and reason, and its id for `compare`."""
    name = f"{clean(run.suite, 60)} {clean(run.target, 60)}"
    if run.cached_answer_count:
        say((formats.cached_answers(run), "dim"))
    say((f"suite run {clean(run.id)}", "dim"))
    say(verdict_text(verdict_word(run.verdict)), f"  {name}: {clean(run.reason, 300)}")


def sparkline(values: Sequence[float | None]) -> str:
    """Return shares from 0 to 1 as a line of blocks. None becomes a dot. Only 1 is a full block."""
    return "".join("·" if one is None else _SPARKS[int(one * 7)] for one in values)
