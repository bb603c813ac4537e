"""`evald compare`: compare suite runs with base runs, and check them against a gate."""

import argparse
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evald.v1 import suite_service_pb2
from evald_server.pages.formats import comparison_mark, mark, p_value, percent, points, score, signed
from evald_server.suites.comparison import BLOCK, MAX_DROP, PASS, WARN, compare, merge_by_id
from evald_server.suites.documents import InvalidDocument
from evald_server.suites.gate import Decision, GateRule, GateRuling, check_rule, decide, not_found, read_gate
from evald_server.suites.result_files import SuiteResults, read_results

from .console import new_table, say, show
from .exit_codes import ExitCode, usage_error
from .report_files import write_file
from .result_tables import titled
from .sanitize import clean, print_json
from .server_connection import run_async
from .suite_client import SuiteClient, open_suites

_COMPLETED: Final = suite_service_pb2.SUITE_RUN_STATUS_COMPLETED
_FILES: Final = (".json", ".jsonl")
_REPORTS: Final = (".md", ".json")
# Suite runs searched for targets.
_RECENT: Final = 1000

_EXIT_CODES: Final = {
    "GO": ExitCode.PASSED,
    "NO-GO": ExitCode.FAILED,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    PASS: ExitCode.PASSED,
    WARN: ExitCode.PASSED,
    BLOCK: ExitCode.FAILED,
}
"""By decision of a gate or verdict of a comparison. An unknown key is inconclusive."""

_Comparer = Callable[[float], Awaitable[suite_service_pb2.SuiteComparison]]


class RunPair(NamedTuple):
    """A suite run, and how to compare it with its base. compare: takes max_drop, returns the comparison."""

    new: suite_service_pb2.SuiteRun
    compare: _Comparer


class CompareReport(NamedTuple):
    """The outcome of the command. rulings, decision: of the gate; empty and None without a gate."""

    comparisons: list[suite_service_pb2.SuiteComparison]
    rulings: list[GateRuling]
    decision: Decision | None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the gate's decision, or without a gate of the worst comparison."""
        keys: list[Any] = [found.verdict for found in self.comparisons]
        if self.decision is not None:
            keys = [self.decision]
        codes = {_EXIT_CODES.get(key, ExitCode.INCONCLUSIVE) for key in keys}
        for code in (ExitCode.FAILED, ExitCode.INCONCLUSIVE, ExitCode.PASSED):
            if code in codes:
                return code
        return ExitCode.INCONCLUSIVE

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data."""
        data: dict[str, Any] = {"exitCode": int(self.exit_code)}
        if self.decision is not None:
            data["decision"] = self.decision
            data["gates"] = [
                {
                    "suite": ruling.rule.suite,
                    "target": ruling.target or ruling.rule.target,
                    "tier": ruling.rule.tier,
                    "decision": ruling.decision,
                    "reason": ruling.reason,
                }
                for ruling in self.rulings
            ]
        return data | {"comparisons": [MessageToDict(found) for found in self.comparisons]}


def run(args: argparse.Namespace) -> int:
    """Compare suite runs, show the result and write reports."""
    for name in args.outputs:
        if Path(name).suffix not in _REPORTS:
            raise usage_error(f"--output {name}: wanted a file name that ends with {' or '.join(_REPORTS)}")
    if args.gate and args.max_drop is not None:
        raise usage_error(
            "--max-drop and --gate cannot be used together: each rule of a gate has its own max_drop"
        )
    try:
        rules = read_gate(Path(args.gate)) if args.gate else []
        files = [Path(name) for name in (args.base, args.new) if Path(name).suffix in _FILES]
        if len(files) == 1:
            raise usage_error(
                f"got one file ({files[0]}), wanted two files that end with .json or .jsonl, or two suite runs"
            )
        base, new = map(read_results, files) if files else ([], [])
        pairs = _pairs_of_files(base, new, args) if files else None
    except InvalidDocument as problem:
        raise usage_error(str(problem)) from None
    return run_async(_compare(args, rules, pairs))


async def _compare(args: argparse.Namespace, rules: list[GateRule], pairs: list[RunPair] | None) -> int:
    """Compare and report. pairs: None: read suite runs from the store."""
    if pairs is not None:
        report = await _report(pairs, rules, args)
    else:
        async with open_suites(args) as client:
            stored = [pair async for pair in _pairs_of_store(client, args, rules)]
            report = await _report(stored, rules, args)
    _show(report, as_json=args.json)
    for name in args.outputs:
        _write(report, Path(name))
    return report.exit_code


def _pairs_of_files(
    base: list[SuiteResults], new: list[SuiteResults], args: argparse.Namespace
) -> list[RunPair]:
    """Pair the suite runs of two files that have the same suite and target, as far as --suite and --target name them."""
    for suite in args.suites or [""]:
        if not any(_is_wanted(one, suite, args.target) for one in base + new):
            options = [f"--suite {suite}"] * bool(suite) + [f"--target {args.target}"] * bool(args.target)
            raise usage_error(
                f"{' '.join(options)}: neither file has such a suite run; they have {_names(base + new)}"
            )
    base, new = (
        [one for one in side if any(_is_wanted(one, suite, args.target) for suite in args.suites or [""])]
        for side in (base, new)
    )
    known: dict[tuple[str, str], SuiteResults] = {}
    for found in base:
        if known.setdefault(_name(found), found) is not found:
            raise usage_error(
                f"the base file has two suite runs of {' '.join(_name(found))}, wanted one",
                "remove one of them from the file",
            )
    there = {_name(found) for found in new}
    pairs = [
        _pair(known[_name(found)], found) if _name(found) in known else _alone(found, "base", base)
        for found in new
    ]
    return pairs + [_alone(known[name], "new", new) for name in sorted(known.keys() - there)]


def _is_wanted(found: SuiteResults, suite: str, target: str) -> bool:
    return suite in ("", found.run.suite) and target in ("", found.run.target)


def _name(found: SuiteResults) -> tuple[str, str]:
    return found.run.suite, found.run.target


def _names(runs: list[SuiteResults]) -> str:
    names = dict.fromkeys(" ".join(_name(found)) for found in runs)
    return ", ".join(clean(name, 60) for name in list(names)[:10]) or "none"


def _pair(base: SuiteResults, new: SuiteResults) -> RunPair:
    async def comparer(max_drop: float) -> suite_service_pb2.SuiteComparison:
        return compare(base.run, new.run, merge_by_id(base.cases, new.cases), max_drop)

    return RunPair(new.run, comparer)


def _alone(found: SuiteResults, side: str, others: list[SuiteResults]) -> RunPair:
    """Return a suite run that one file lacks, side "base" or "new": INCONCLUSIVE."""
    # An empty suite run for the new file, so that no rule of a gate takes the base's for it.
    run = (
        found.run
        if side == "base"
        else suite_service_pb2.SuiteRun(suite=found.run.suite, target=found.run.target)
    )

    async def comparer(_max_drop: float) -> suite_service_pb2.SuiteComparison:
        comparison = _nothing_to_compare(None, run)
        comparison.reason = (
            f"The {side} file has no suite run of {' '.join(_name(found))}; it has {_names(others)}. "
            "Only runs of the same suite and target are compared"
        )
        return comparison

    return RunPair(run, comparer)


def _nothing_to_compare(
    base: suite_service_pb2.SuiteRun | None, new: suite_service_pb2.SuiteRun
) -> suite_service_pb2.SuiteComparison:
    """Return an INCONCLUSIVE comparison of suite runs that cannot be compared."""
    found = compare(base or suite_service_pb2.SuiteRun(), new, ())
    if base is None:
        found.reason = "There is no completed suite run to compare with"
        found.ClearField("base")
    return found


async def _pairs_of_store(
    client: SuiteClient, args: argparse.Namespace, rules: list[GateRule]
) -> AsyncIterator[RunPair]:
    wanted = [(name, args.target) for name in args.suites]
    if not wanted and "latest" in (args.base, args.new):
        wanted = list(dict.fromkeys((rule.suite, rule.target) for rule in rules))
    if rules:
        wanted = [name for one in wanted for name in await _every_target(client, *one)]
    if not wanted:
        if {args.base, args.new} & {"latest", "previous"}:
            raise usage_error(
                "`latest` and `previous` need a suite", "name it with --suite, or compare ids or files"
            )
        wanted = [("", "")]
    for suite, target in wanted:
        new = await _find(client, args.new, suite, target)
        if new is None and rules:
            continue  # the gate reports it
        if new is None:
            raise usage_error(_missing(args.new, suite, target), "evald history lists the stored suite runs")
        base = await _find(client, args.base, suite, target, new)
        if base is None and args.base != "previous":
            raise usage_error(_missing(args.base, suite, target), "evald history lists the stored suite runs")
        yield RunPair(new, _comparer_of_store(client, base, new))


async def _every_target(client: SuiteClient, suite: str, target: str) -> list[tuple[str, str]]:
    """Return (suite, target) pairs. Without a target: one pair per target of its recent runs."""
    runs = [] if target else await client.suite_runs(_RECENT, suite=suite)
    return list(dict.fromkeys((suite, run.target) for run in runs)) or [(suite, target)]


def _missing(word: str, suite: str, target: str) -> str:
    if word in ("latest", "previous"):
        return f'no suite run of "{suite}"{f" against {target}" if target else ""} is stored'
    return f'no suite run has the id "{word}"'


async def _find(
    client: SuiteClient, word: str, suite: str, target: str, new: suite_service_pb2.SuiteRun | None = None
) -> suite_service_pb2.SuiteRun | None:
    """Return a suite run by id, the latest of any status, or the last completed before `new`."""
    if word not in ("latest", "previous"):
        return await client.suite_run(word)
    if word == "latest":
        found = await client.suite_runs(1, suite=suite, target=target)
        return found[0] if found else None
    # "Before" compares creation times, not the order of storage.
    wanted = (
        {"suite": new.suite, "target": new.target, "until": new.create_time}
        if new
        else {"suite": suite, "target": target}
    )
    found = await client.suite_runs(1, **wanted, status=_COMPLETED)
    return found[0] if found else None


def _comparer_of_store(
    client: SuiteClient, base: suite_service_pb2.SuiteRun | None, new: suite_service_pb2.SuiteRun
) -> _Comparer:
    async def comparer(max_drop: float) -> suite_service_pb2.SuiteComparison:
        if base is None or base.status != _COMPLETED or new.status != _COMPLETED:
            return _nothing_to_compare(base, new)
        return await client.compare(base.id, new.id, max_drop)

    return comparer


async def _report(pairs: Sequence[RunPair], rules: list[GateRule], args: argparse.Namespace) -> CompareReport:
    if not rules:
        max_drop = MAX_DROP if args.max_drop is None else args.max_drop
        return CompareReport([await pair.compare(max_drop) for pair in pairs], [], None)
    comparisons, rulings = [], []
    for rule in rules:
        own = [pair for pair in pairs if rule.applies_to(pair.new)]
        if not own:
            rulings.append(not_found(rule))
        for pair in own:
            comparison = None
            if rule.max_drop is not None:
                comparison = await pair.compare(rule.max_drop)
                comparisons.append(comparison)
            rulings.append(check_rule(rule, pair.new, comparison))
    return CompareReport(comparisons, rulings, decide(rulings))


def _show(report: CompareReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
        return
    for comparison in report.comparisons:
        say(*verdict_line(comparison))
        show(*comparison_tables(comparison))
    if report.decision is not None:
        show(gate_table(report.rulings))
        say((report.decision, "bold green" if report.decision == "GO" else "bold red"))


def _write(report: CompareReport, path: Path) -> None:
    """Write a report. Raises CommandError."""
    if path.suffix == ".json":
        text = json.dumps(report.to_dict(), ensure_ascii=False, indent=2) + "\n"
    else:
        from evald_server.suites.reports.markdown import comparison_section, inline_code

        parts = [comparison_section(comparison) for comparison in report.comparisons]
        if report.decision is not None:
            rows = [
                f"| {inline_code(ruling_name(one))} | {one.rule.tier} | {one.decision} | {inline_code(one.reason)} |"
                for one in report.rulings
            ]
            head = f"### {report.decision}\n\n| Suite | Tier | Decision | Why |\n| --- | --- | --- | --- |\n"
            parts.insert(0, head + "\n".join(rows) + "\n")
        text = "\n".join(parts)
    write_file(str(path), lambda stream: stream.write(text))


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
