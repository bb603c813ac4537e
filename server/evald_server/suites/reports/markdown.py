"""Markdown for comments on pull requests and for job summaries."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TextIO

from evald.records import read_verdict
from evald.result import Verdict
from evald.v1 import suite_service_pb2
from evald_server.pages.formats import (
    between,
    cached_answers,
    comparison_mark,
    count,
    mark,
    money,
    number,
    p_value,
    percent,
    points,
    score,
    seconds,
    tokens,
)
from evald_server.untrusted import one_line

from .failures import failure_lines
from .report import SuiteReport, checked_cases

# GitHub refuses comments of more than 65,536 characters. We count bytes, because other services do.
MOST_BYTES: Final = 65_536
# Limit of rows in one table. Other reports have the rest.
_MOST_ROWS: Final = 200
_MOST_CHANGES: Final = 50
_MOST_PROVENANCE: Final = 20
_MOST_REASON: Final = 300
_MOST_WARNINGS: Final = 20
_MOST_NAME: Final = 120

# All characters that Markdown, HTML and GitHub read as markup; "." and ":" because of links without brackets.
_MARKUP: Final = re.compile(r"[^\w\s/,;%-]|_")


def inline_code(text: str, limit: int = _MOST_REASON) -> str:
    """Return untrusted text as inline code on one line, for any place in Markdown, also table cells.

    The text is in `<code>`, with every special character as a numeric reference. Unlike backticks this can hold
    "|" and "`", and GitHub does not look for mentions, issues or emoji in it.
    """
    escaped = _MARKUP.sub(lambda found: f"&#{ord(found[0])};", one_line(text, limit))
    return f"<code>{escaped}</code>" if escaped else ""


def write_markdown(reports: Sequence[SuiteReport], stream: TextIO) -> None:
    """Write a summary, the comparisons, and the cases that did not pass. Raises WrongCases.

    The text stays below GitHub's limit. If it is cut, a last line says so.
    """
    page = _Page()
    _add_summary(reports, page)
    for report in reports:
        found = report.comparison
        if found is not None and not page.add(comparison_section(found)):
            page.add(comparison_section(found, most_changes=0))
    for report in reports:
        _add_unpassed(report, page)
    if page.is_cut:
        page.add_reserved("\n_Truncated at GitHub's size limit; the other reports are complete._\n")
    stream.write(page.text)


class _Page:
    """Text within GitHub's limit."""

    # Room for the last line, and for the end of an open table.
    _RESERVE: Final = 400

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._room = MOST_BYTES - self._RESERVE
        self.is_cut = False

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def add(self, text: str) -> bool:
        """Add a part that must not be cut. Return False if there is no room for it."""
        size = len(text.encode())
        if size > self._room:
            self.is_cut = True
            return False
        self._parts.append(text)
        self._room -= size
        return True

    def add_rows(self, rows: Iterable[str]) -> int:
        """Add rows until there is no room for the next one. Return their number."""
        added = 0
        for row in rows:
            if not self.add(row):
                break
            added += 1
        return added

    def add_reserved(self, text: str) -> None:
        """Add the end of a part, also without room."""
        self._parts.append(text)
        self._room -= len(text.encode())


_HEADINGS: Final = (
    "Suite",
    "Target",
    "Verdict",
    "Pass rate, 95 %",
    "Cases",
    "Failed",
    "Inconclusive",
    "Skipped",
)


# What did not pass comes first.
_ORDER: Final = {Verdict.FAILED: 0, Verdict.ERROR: 1, Verdict.SKIPPED: 2, Verdict.PASSED: 3}


def _add_summary(reports: Sequence[SuiteReport], page: _Page) -> None:
    reports = sorted(reports, key=lambda report: _ORDER[read_verdict(report.run.verdict)])
    more = [
        (heading, cells)
        for heading, cells in (
            ("Unstable", [number(r.run.unstable_count or None) for r in reports]),
            ("Score", [score(r.run.mean_score) if r.run.HasField("mean_score") else "" for r in reports]),
            ("Latency", [_latency(r.run) for r in reports]),
            ("Tokens", [number(tokens(r.run.token_usage)) for r in reports]),
            ("Cost", [money(r.run.cost) if r.run.HasField("cost") else "" for r in reports]),
        )
        if any(cells)
    ]
    headings = [*_HEADINGS, *(heading for heading, _ in more)]
    rows = []
    for index, report in enumerate(reports[:_MOST_ROWS]):
        run = report.run
        shown = mark(run.verdict)
        counts = (run.case_count + len(report.left_out), run.failed_count, run.error_count)
        skipped = run.skipped_count + len(report.left_out)
        rows.append(
            _row(
                [
                    inline_code(run.suite, _MOST_NAME),
                    inline_code(run.target, _MOST_NAME),
                    f"{shown.sign} **{shown.word}**",
                    _rate(run),
                    *map(number, (*counts, skipped)),
                    *(cells[index] for _, cells in more),
                ]
            )
            + "\n"
        )
    page.add(f"## evald\n\n{_row(headings)}\n{_row(['---'] * 3 + ['---:'] * (len(headings) - 3))}\n")
    added = page.add_rows(rows)
    if len(reports) > added:
        page.add_reserved(f"\n{count(len(reports) - added, 'suite run')} more.\n")
    page.add("\n")
    red = [report.run for report in reports[:added] if mark(report.run.verdict).style != "pass"]
    page.add_rows(
        f"- {inline_code(run.suite, _MOST_NAME)}: {inline_code(run.reason)}\n" for run in red if run.reason
    )
    page.add_rows(
        f"- {inline_code(report.run.suite, _MOST_NAME)}: {cached_answers(report.run)}\n"
        for report in reports[:added]
        if report.run.cached_answer_count
    )


def _rate(run: suite_service_pb2.SuiteRun) -> str:
    return (
        f"{percent(run.pass_rate.value)} ({between(run.pass_rate)})" if run.HasField("pass_rate") else "none"
    )


def _latency(run: suite_service_pb2.SuiteRun) -> str:
    return seconds(run.mean_latency_seconds) if run.HasField("mean_latency_seconds") else ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def comparison_section(found: suite_service_pb2.SuiteComparison, *, most_changes: int = _MOST_CHANGES) -> str:
    """Return a comparison as Markdown: verdict, figures, at most `most_changes` changed cases."""
    shown = comparison_mark(found.verdict)
    facts = [
        ("Pairs", f"{found.pair_count:,}"),
        ("Broken", f"{found.broken_count:,}"),
        ("Fixed", f"{found.fixed_count:,}"),
        ("In error on one side", f"{found.error_count:,}"),
        ("Only in the base, only in the new run", f"{found.base_only_count:,}, {found.new_only_count:,}"),
    ]
    if found.HasField("pass_rate_change"):
        rate = found.pass_rate_change
        interval = f"{points(rate.low)} to {points(rate.high)}"
        facts.append(("Change of the pass rate", f"{points(rate.value)} points ({interval})"))
    if found.HasField("mcnemar_p"):
        facts.append(("McNemar, one-sided p", p_value(found.mcnemar_p)))
    name = inline_code(found.new.suite, _MOST_NAME)
    lines = ["", f"### {name}: {shown.sign} {shown.word} against the base", "", inline_code(found.reason), ""]
    lines += [_row(["", ""]), _row(["---", "---:"]), *(_row(fact) for fact in facts), ""]
    if found.changes:
        if most_changes:
            lines += [_row(["Case", "Base", "New", "Reason"]), _row(["---"] * 4)]
        for change in found.changes[:most_changes]:
            cells = [mark(verdict).word for verdict in (change.base_verdict, change.new_verdict)]
            lines.append(_row([inline_code(change.case_id, _MOST_NAME), *cells, inline_code(change.reason)]))
        if len(found.changes) > most_changes:
            lines.append(f"\n{count(len(found.changes) - most_changes, 'changed case')} more.\n")
    changed = found.provenance_changes
    lines += [f"- Evaluated differently: {inline_code(text)}" for text in changed[:_MOST_PROVENANCE]]
    if len(changed) > _MOST_PROVENANCE:
        lines.append(f"- {count(len(changed) - _MOST_PROVENANCE, 'more difference')}")
    return "\n".join(lines) + "\n"


def _add_unpassed(report: SuiteReport, page: _Page) -> None:
    run = report.run
    warnings: dict[str, None] = {}
    rows = _unpassed_rows(report, warnings)
    first = list(islice(rows, _MOST_ROWS))
    total = run.failed_count + run.error_count
    if first and total:
        title = f"{count(total, 'case')} of {inline_code(report.name)} not passed"
        if page.add(
            f"\n<details><summary>{title}</summary>\n\n{_row(['Case', 'Verdict', 'Reason'])}\n{_row(['---'] * 3)}\n"
        ):
            shown = page.add_rows(first)
            more = f"\n{count(total - shown, 'case')} more.\n" if total > shown else ""
            page.add_reserved(f"{more}\n</details>\n")
    for _ in rows:  # read all rows, which checks the counts
        pass
    if warnings and page.add("\n"):
        page.add_rows(f"- {inline_code(report.name)}: warning: {inline_code(text)}\n" for text in warnings)


def _unpassed_rows(report: SuiteReport, warnings: dict[str, None]) -> Iterator[str]:
    for case, verdict in checked_cases(report):
        if len(warnings) < _MOST_WARNINGS:
            warnings |= dict.fromkeys(case.warnings)
        if verdict in (Verdict.FAILED, Verdict.ERROR):
            shown = mark(verdict)
            lines = failure_lines(case, _MOST_REASON)
            if len(case.trials) > 1:
                lines.insert(0, case.reason)
            cells = (
                inline_code(case.case_id, _MOST_NAME),
                f"{shown.sign} {shown.word}",
                "<br>".join(map(inline_code, lines)),
            )
            yield _row(cells) + "\n"
