"""Terminal view of comparisons of suite runs: changed cases first, then figures with their meaning."""

from collections.abc import Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evald.v1 import suite_service_pb2
from evald_server.pages.formats import comparison_mark, mark, p_value, percent, points, score, signed
from evald_server.suites.gate import GateRuling

from .console import new_table
from .result_tables import titled
from .sanitize import clean

# Maximum number of rows; --json has all changes of the comparison.
_MOST_CHANGES: Final = 30
_STYLES: Final = {"pass": "green", "fail": "red", "error": "yellow", "skip": "dim"}


def verdict_line(found: suite_service_pb2.SuiteComparison) -> list[tuple[str, str]]:
    """Return a line with the names of the suite runs, the verdict, and the reason."""
    shown = comparison_mark(found.verdict)
    base, new = found.base, found.new
    name = f"{clean(new.suite, 60)}/{clean(new.target, 60)}"
    if base.target and base.target != new.target:
        name += f" against {clean(base.target, 60)}"
    style = _STYLES[shown.style]
    return [
        (f"{name}  ", "bold"),
        (f"{shown.sign} {shown.word}", f"bold {style}"),
        (f"  {clean(found.reason)}", ""),
    ]


def comparison_tables(found: suite_service_pb2.SuiteComparison) -> list[RenderableType]:
    """Return the tables: changed cases, figures, changed evaluators."""
    parts = titled(("Changed cases", _changes(found)))
    if found.pair_count:
        parts += titled(("Figures", _figures(found)))
    if found.provenance_changes:
        judged = new_table("Evaluated differently")
        for change in found.provenance_changes:
            judged.add_row(clean(change, 300))
        parts.append(judged)
    return parts


def _changes(found: suite_service_pb2.SuiteComparison) -> Table:
    table = new_table("Case", "Base", "New", ("Score", "right"), "Why")
    for change in found.changes[:_MOST_CHANGES]:
        verdicts = [mark(verdict) for verdict in (change.base_verdict, change.new_verdict)]
        cells = [Text(f"{shown.sign} {shown.word}", _STYLES[shown.style]) for shown in verdicts]
        scores = [
            score(getattr(change, name)) if change.HasField(name) else ""
            for name in ("base_score", "new_score")
        ]
        change_of_score = " → ".join(scores) if all(scores) else ""
        table.add_row(clean(change.case_id, 60), *cells, change_of_score, clean(change.reason, 200))
    if len(found.changes) > _MOST_CHANGES:
        table.add_row(f"and {len(found.changes) - _MOST_CHANGES:,} more", "", "", "", "")
    return table


def _figures(found: suite_service_pb2.SuiteComparison) -> Table:
    table = new_table("Figure", ("Value", "right"), "Meaning")
    rate = found.pass_rate_change
    interval = f"{points(rate.value)} ({points(rate.low)} to {points(rate.high)})"
    table.add_row("pairs", f"{found.pair_count:,}", "cases that passed or failed in both runs")
    table.add_row(
        "broken, fixed", f"{found.broken_count:,}, {found.fixed_count:,}", "pairs whose verdict changed"
    )
    if found.error_count:
        table.add_row(
            "in error",
            f"{found.error_count:,}",
            "cases without a verdict in one of the runs; not in the pairs",
        )
    if found.base_only_count or found.new_only_count:
        alone = f"{found.base_only_count:,}, {found.new_only_count:,}"
        table.add_row("only in base, new", alone, "cases that the other run does not have or skipped")
    table.add_row("pass rate", interval, "change in percentage points, with its 95 % interval")
    table.add_row(
        "McNemar p",
        p_value(found.mcnemar_p),
        "probability of so many more broken than fixed cases by chance",
    )
    if found.HasField("score_change"):
        table.add_row("score", signed(found.score_change), "mean change of the score")
    if found.HasField("permutation_p"):
        table.add_row(
            "permutation p",
            p_value(found.permutation_p),
            "probability of such a drop of the scores by chance",
        )
    if found.HasField("effect_size"):
        table.add_row(
            "effect size",
            signed(found.effect_size),
            "mean change of the score divided by the changes' standard deviation",
        )
    if found.HasField("smallest_detectable_drop"):
        table.add_row(
            "detectable drop",
            percent(found.smallest_detectable_drop),
            "smallest drop that this number of pairs detects with 80 % power",
        )
    return table


def gate_table(rulings: Sequence[GateRuling]) -> Table:
    """Return a table of a gate's rulings."""
    table = new_table("Suite", "Tier", "Decision", "Why")
    styles = {"GO": "green", "NO-GO": "red"}
    for ruling in rulings:
        decision = Text(ruling.decision, styles.get(ruling.decision, "yellow"))
        table.add_row(clean(ruling_name(ruling), 60), ruling.rule.tier, decision, clean(ruling.reason, 300))
    return table


def ruling_name(ruling: GateRuling) -> str:
    """Return the suite of a ruling, with its target if there is one."""
    return "/".join(filter(None, (ruling.rule.suite, ruling.target or ruling.rule.target)))
