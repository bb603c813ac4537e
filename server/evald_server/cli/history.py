"""`evald history`: show the results of suites, or of one case, over time."""

import argparse
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from google.protobuf.json_format import MessageToDict
from rich.text import Text

from evald.fields import nearest
from evald.v1 import suite_service_pb2

from ..pages import formats
from ..suites.message_file import MessageFile
from ..suites.reports.report import SuiteReport, metric_means
from .console import new_table, say, show
from .exit_codes import ExitCode, usage_error
from .report_files import check_report_file, write_report_file
from .result_tables import verdict_text
from .sanitize import clean, print_json
from .server_connection import run_async
from .suite_client import SuiteClient, open_suites
from .suite_view import rate, sparkline, verdict_word

_pb = suite_service_pb2

# Columns of metrics: more do not fit on a screen.
_MOST_METRICS: Final = 4


class _CaseThen(NamedTuple):
    """A suite run and the result of a case in it. result: None if the run did not have the case."""

    run: _pb.SuiteRun
    result: _pb.CaseResult | None


def run(args: argparse.Namespace) -> int:
    """Show the history."""
    if args.html:
        check_report_file("--html", args.html, "html")
    if args.case and not args.suite:
        raise usage_error("--case needs a suite", "evald history SUITE --case ID")
    return run_async(_history(args))


async def _history(args: argparse.Namespace) -> int:
    async with open_suites(args) as client:
        found = await client.suite_runs(args.limit, suite=args.suite, target=args.target)
        found.reverse()
        if not found:
            return await _nothing(client, args)
        by_name: dict[tuple[str, str], list[_pb.SuiteRun]] = {}
        for one in found:
            by_name.setdefault((one.suite, one.target), []).append(one)
        cases_found = False
        for runs in by_name.values():
            if args.case:
                then = [_CaseThen(one, await _case(client, one.id, args.case)) for one in runs]
                cases_found |= any(one.result is not None for one in then)
                _show_case(then, args)
            else:
                _show_runs(runs, args)
        if args.case and not cases_found:
            raise usage_error(
                f'no case of "{args.suite}" has the id "{args.case}"',
                "evald test SUITE --list lists the cases",
            )
        if args.html:
            await _write_page(client, list(by_name.values()), args.html)
    return ExitCode.PASSED


async def _nothing(client: SuiteClient, args: argparse.Namespace) -> int:
    known = {
        f"{one.suite} {one.target}" if args.target else one.suite for one in await client.suite_runs(1000)
    }
    if known:
        name = f"{args.suite} {args.target}".strip()
        near = nearest(name, known)
        raise usage_error(
            f'no suite run of "{name}" is stored',
            f'did you mean "{near}"?' if near else f"stored are runs of: {', '.join(sorted(known)[:10])}",
        )
    if not args.json:
        say("No suite runs are stored; evald test SUITE creates one")
    return ExitCode.PASSED


async def _case(client: SuiteClient, suite_run_id: str, case_id: str) -> _pb.CaseResult | None:
    async for result in client.cases(suite_run_id, case_id=case_id):
        return result
    return None


def _heading(runs: Sequence[_pb.SuiteRun], values: Sequence[float | None], what: str) -> None:
    last = runs[-1]
    say(
        (f"{clean(last.suite, 60)} {clean(last.target, 60)}{what}", "bold"), "  ", (sparkline(values), "cyan")
    )


def _show_runs(runs: Sequence[_pb.SuiteRun], args: argparse.Namespace) -> None:
    if args.json:
        for one in runs:
            print_json({"suiteRun": MessageToDict(one)})
        return
    _heading(runs, [one.pass_rate.value if one.HasField("pass_rate") else None for one in runs], "")
    found = metric_means(runs)
    metrics = dict(list(found.items())[:_MOST_METRICS])
    columns = [(clean(name, 30), "right") for name in metrics]
    table = new_table("When", "Pass rate", ("Score", "right"), *columns, ("Cases", "right"), "Verdict", "Id")
    for index, one in enumerate(runs):
        table.add_row(
            formats.moment(one.create_time),
            rate(one.pass_rate) if one.HasField("pass_rate") else "n/a",
            formats.score(one.mean_score) if one.HasField("mean_score") else "",
            *(formats.number(means[index]) for means in metrics.values()),
            f"{one.case_count:,}",
            _standing(one),
            clean(one.id),
        )
    show(table)
    _say_metrics_left_out(len(found))


def _standing(run: _pb.SuiteRun) -> Text:
    """Return the verdict of a completed suite run, else its status."""
    if run.status == _pb.SUITE_RUN_STATUS_COMPLETED:
        return Text(*verdict_text(verdict_word(run.verdict)))
    return Text("interrupted" if run.status == _pb.SUITE_RUN_STATUS_INTERRUPTED else "running", "yellow")


def _show_case(then: Sequence[_CaseThen], args: argparse.Namespace) -> None:
    if args.json:
        for run, result in then:
            if result is not None:
                when = MessageToDict(run.create_time)
                print_json(
                    {
                        "suiteRunId": run.id,
                        "target": run.target,
                        "createTime": when,
                        "case": MessageToDict(result),
                    }
                )
        return
    shares = [None if one.result is None else _share(one.result) for one in then]
    _heading([one.run for one in then], shares, f": {clean(args.case, 60)}")
    means = [_metrics_of(result) for _, result in then]
    names = sorted({name for found in means for name in found})
    metrics = names[:_MOST_METRICS]
    columns = [(clean(name, 30), "right") for name in metrics]
    table = new_table("When", ("Trials passed", "right"), ("Score", "right"), *columns, "Verdict", "Why")
    for (run, result), found in zip(then, means, strict=True):
        if result is None:
            table.add_row(
                formats.moment(run.create_time), "", "", *("" for _ in metrics), Text("not run", "dim"), ""
            )
            continue
        judged = result.passed_count + result.failed_count + result.error_count
        table.add_row(
            formats.moment(run.create_time),
            f"{result.passed_count} of {judged}",
            formats.score(result.score) if result.HasField("score") else "",
            *(formats.number(found.get(name)) for name in metrics),
            Text(*verdict_text(verdict_word(result.verdict))),
            clean(result.reason, 200),
        )
    show(table)
    _say_metrics_left_out(len(names))


def _say_metrics_left_out(known: int) -> None:
    """Print how many of the known metrics have no column."""
    if known > _MOST_METRICS:
        say((f"{formats.count(known - _MOST_METRICS, 'more metric')}; --json has all of them", "dim"))


def _metrics_of(result: _pb.CaseResult | None) -> dict[str, float]:
    """Return the mean of each metric over the turns of a case's trials."""
    values: dict[str, list[float]] = {}
    for trial in result.trials if result is not None else ():
        for turn in trial.turns:
            for name, value in turn.evaluation.metrics.items():
                values.setdefault(name, []).append(value)
    return {name: fmean(known) for name, known in values.items()}


def _share(result: _pb.CaseResult) -> float | None:
    """Return the share of passed trials among trials that passed or failed; None if there are none."""
    judged = result.passed_count + result.failed_count
    return result.passed_count / judged if judged else None


async def _write_page(client: SuiteClient, found: Sequence[Sequence[_pb.SuiteRun]], name: str) -> None:
    """Write a page with the latest completed run of each suite and target, and its history."""
    reports = []
    for runs in found:
        ended = [one for one in runs if one.status == _pb.SUITE_RUN_STATUS_COMPLETED]
        if not ended:
            continue
        results = MessageFile(_pb.CaseResult)
        async for result in client.cases(ended[-1].id):
            results.add(result.SerializeToString())
        reports.append(SuiteReport(ended[-1], results, history=ended[:-1]))
    write_report_file(name, "html", reports)
