"""`evald calibrate`: measure the reliability of a judge. Prints figures, writes a card, returns an exit code."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from evald_server.calibration.attack_suite import attack_suite
from evald_server.calibration.calibration import JudgeUnderTest, calibrate
from evald_server.calibration.card import BoundedShare, CalibrationCard, CardDataset, Share
from evald_server.calibration.cases import Case, cases_digest
from evald_server.calibration.datasets import BadCases, read_cases
from evald_server.calibration.gates import GateLimits
from evald_server.calibration.queries import AnsweredQuery, CostUnknown, plan_queries
from evald_server.calibration.server_judge import (
    LLM_JUDGE,
    server_judge,
    with_criteria,
    with_default_criteria,
)
from evald_server.pages.formats import percent

from .console import new_table, progress_bar, say, show, warn
from .exit_codes import ExitCode, usage_error
from .report_files import check_output_file, write_file
from .result_tables import titled, verdict_text
from .sanitize import clean, print_json, to_json
from .server_connection import connect, run_async
from .specs import SpecSet, load_specs
from .suite_view import plain
from .validate import find_violations

if TYPE_CHECKING:
    from evald import AsyncClient


_EXIT_CODES: Final = {
    "PASSED": ExitCode.PASSED,
    "FAILED": ExitCode.FAILED,
    "ERROR": ExitCode.INCONCLUSIVE,
}

# Example criteria of a case, to validate the judge's config with such criteria.
_EXAMPLE_CRITERIA: Final = "The answer is right."


class CalibrationPlan(NamedTuple):
    """The calibration that the command line requests. place: file or option of the judge, for messages."""

    spec: dict[str, Any]
    place: str
    cases: list[Case]
    datasets: list[CardDataset]
    limits: GateLimits


def run(args: argparse.Namespace) -> int:
    """Calibrate one judge."""
    plan = _plan(args)
    if Path(args.card).suffix.lower() in (".html", ".htm"):
        raise usage_error(
            f"--card {args.card}: wanted a .json file: a calibration card is JSON",
            "name a .json file; the tables are printed to standard output",
        )
    check_output_file("--card", args.card)
    return run_async(_calibrate(args, plan))


def _plan(args: argparse.Namespace) -> CalibrationPlan:
    spec, place = _judge_spec(args)
    cases, datasets = _labelled_cases(args.files, args.format)
    if args.attacks:
        cases += attack_suite()
    if not cases:
        raise usage_error(
            "no cases to judge: no FILE is given, and --no-attacks leaves the attack suite out",
            "name files of labelled cases, or remove --no-attacks",
        )
    _check_expected(spec, place, cases)
    limits = GateLimits(**{name: getattr(args, name) for name in GateLimits._fields})
    _check_limits(limits, cases)
    return CalibrationPlan(spec, place, cases, datasets, limits)


def _judge_spec(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    files = [args.judge_config] if args.judge_config else []
    found = load_specs(files, args.expressions)
    if len(found.specs) > 1:
        raise usage_error(
            f"got {len(found.specs)} evaluators ({', '.join(found.places)}), wanted one judge",
            "run evald calibrate once for each judge",
        )
    if not found.specs:
        return with_default_criteria({"type": LLM_JUDGE}), "the default judge"
    spec = found.specs[0]
    spec = {"type": spec} if isinstance(spec, str) else dict(spec)
    return (with_default_criteria(spec) if isinstance(spec.get("type"), str) else spec), found.places[0]


def _labelled_cases(files: Sequence[str], format_name: str | None) -> tuple[list[Case], list[CardDataset]]:
    cases: list[Case] = []
    datasets: list[CardDataset] = []
    for name in files:
        try:
            found = read_cases(Path(name), format_name)
        except BadCases as problem:
            raise usage_error(str(problem), "docs/calibration.md describes the formats") from None
        cases += found.cases
        digest = cases_digest(found.cases)
        datasets.append(
            CardDataset(name=found.name, cases=len(found.cases), left_out=found.left_out, digest=digest)
        )
    duplicates = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    if duplicates:
        raise usage_error(
            f"{len(duplicates)} ids are used by more than one case, the first is {duplicates[0]!r}",
            "give each case its own id: a case that counts twice makes the intervals too narrow",
        )
    return cases, datasets


def _check_expected(spec: Mapping[str, Any], place: str, cases: Sequence[Case]) -> None:
    """Refuse `includeExpected` if a case has no expected answer: the judge would not read such a case."""
    config = spec.get("config")
    if not isinstance(config, Mapping) or not (
        config.get("includeExpected") or config.get("include_expected")
    ):
        return
    without = [case.id for case in cases if not case.expected]
    if without:
        raise usage_error(
            f"{place}: includeExpected needs an expected answer, and {len(without)} of {len(cases)} cases have none, "
            f"the first is {without[0]!r}",
            'add "expected" to these cases, or remove includeExpected',
        )


def _check_limits(limits: GateLimits, cases: Sequence[Case]) -> None:
    """Refuse limits whose figure would not be measured, before any query costs money."""
    labelled = any(not case.family for case in cases)
    attacks = any(case.family for case in cases)
    needs = (
        ("min_accuracy", labelled, "labelled cases"),
        ("min_kappa", labelled, "labelled cases"),
        ("max_order_flips", any(case.pair for case in cases), "pairs among the labelled cases"),
        ("max_attack_success", attacks, "the attack suite"),
        ("max_false_alarms", attacks, "the attack suite"),
    )
    for name, present, needed in needs:
        if getattr(limits, name) is not None and not present:
            raise usage_error(f"--{name.replace('_', '-')} needs {needed}, but there are none")


async def _calibrate(args: argparse.Namespace, plan: CalibrationPlan) -> int:
    async with connect(args) as client:
        judge = await _judge_under_test(client, plan)
        if judge is None:
            return ExitCode.USAGE
        with _progress(len(plan_queries(plan.cases, args.repeats))) as on_answer:
            try:
                card = await calibrate(
                    judge,
                    server_judge(client, plan.spec, args.timeout),
                    plan.cases,
                    datasets=plan.datasets,
                    limits=plan.limits,
                    repeats=args.repeats,
                    concurrency=args.concurrency,
                    on_answer=on_answer,
                )
            except CostUnknown as problem:
                raise usage_error(
                    f"--max-cost {args.max_cost:g}: {problem}, so the cost cannot be limited",
                    "set the price of its model in the server's settings, or remove --max-cost",
                ) from None
    _write_card(card, args.card, as_json=args.json)
    return _EXIT_CODES[card.verdict]


async def _judge_under_test(client: "AsyncClient", plan: CalibrationPlan) -> JudgeUnderTest | None:
    """Validate the judge on the server. Returns None after printing violations."""
    # A case's criteria replace the judge's own, so both configs must be valid.
    specs = [plan.spec, with_criteria(plan.spec, _EXAMPLE_CRITERIA)]
    violations = await find_violations(
        client, SpecSet(specs, {}, [plan.place, f"{plan.place}, with a case's criteria"])
    )
    for violation in [found for found in violations if not found.index] or violations:
        warn(clean(str(violation)), violation.hint)
    if violations:
        return None
    found = await client.evaluator_type(plan.spec["type"], plan.spec.get("version", ""))
    if found.kind.name == "METRIC":
        raise usage_error(
            f"{plan.place}: {found.type} is a metric and gives no verdict, wanted an assertion",
            "evald types lists the assertions",
        )
    return JudgeUnderTest(found.type, found.version, plan.spec)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[AnsweredQuery], None]]:
    errors, spent = 0, 0.0
    text = "{task.fields[errors]} errors  {task.fields[spent]}"
    with progress_bar("judging", text, total, errors=0, spent="") as move_on:

        def on_answer(found: AnsweredQuery) -> None:
            nonlocal errors, spent
            errors += found.answer.passed is None
            spent += found.answer.cost_usd or 0.0
            move_on(advance=1, errors=errors, spent=f"${spent:.4f}" if spent else "")

        yield on_answer


def _write_card(card: CalibrationCard, path: str, *, as_json: bool) -> None:
    """Write the card, and print it or a summary."""
    write_file(path, lambda stream: stream.write(to_json(card.to_dict(), indent=2) + "\n"))
    if as_json:
        print_json(card.to_dict(), indent=2)
        return
    show(*card_tables(card))
    say(verdict_text(card.verdict), "  ", clean(card.reason))
    say(f"card {card.id} in {path}")


_SHOWN_IDS = 8


def card_tables(card: CalibrationCard) -> list[RenderableType]:
    """Return tables of figures, attacks by family and gates, and the ids of disagreements and failed controls."""
    parts = titled(("Figures", _figures(card)), ("Attacks", _attacks(card)), ("Gates", _gates(card)))
    if card.agreement and card.agreement.disagreements:
        ids = [one.id for one in card.agreement.disagreements]
        parts.append(_listed("cases in which the judge disagrees with people", ids))
    if card.attacks and card.attacks.succeeded:
        parts.append(_listed("attacks that succeeded", card.attacks.succeeded))
    if card.false_alarms and card.false_alarms.failed:
        parts.append(_listed("good answers that failed", card.false_alarms.failed))
    return parts


def _figures(card: CalibrationCard) -> Table:
    table = new_table("Figure", ("Value", "right"), ("95 %", "right"), "Of")
    found = card.agreement
    if found:
        table.add_row("agreement with people", *_share(found.accuracy), f"{found.cases} cases")
        kappa = found.kappa
        value = "n/a" if kappa.value is None else f"{kappa.value:.2f}"
        interval = "" if kappa.low is None or kappa.high is None else f"{kappa.low:.2f} to {kappa.high:.2f}"
        table.add_row("Cohen's kappa", value, interval, "")
        if len(found.sources) > 1:
            for one in found.sources:
                table.add_row(
                    f"  {clean(one.source, 40) or '(no source)'}", *_share(one.accuracy), f"{one.cases} cases"
                )
    if card.order_flips:
        flips = card.order_flips
        toward = f", {flips.to_first} toward the first answer" if flips.flips.count else ""
        lacking = f", {flips.without_verdict} without both verdicts" if flips.without_verdict else ""
        table.add_row("order flips", *_share(flips.flips), f"{flips.flips.of} pairs{toward}{lacking}")
    if card.self_consistency:
        same = card.self_consistency.consistent
        table.add_row(
            "same verdict every time",
            *_share(same),
            f"{same.of} cases, judged {card.self_consistency.repeats} times",
        )
    if card.attacks:
        table.add_row(
            "attacks that succeeded", *_bound(card.attacks.success), f"{card.attacks.success.of} attacks"
        )
        table.add_row(
            "  without the attack", *_bound(card.attacks.unarmed), f"{card.attacks.unarmed.of} bad answers"
        )
    if card.false_alarms:
        alarms = card.false_alarms.alarms
        table.add_row("false alarms", *_bound(alarms), f"{alarms.of} good answers")
    errors = card.errors
    codes = ", ".join(f"{clean(code, 40)} {count}" for code, count in errors.codes.items())
    share = "" if errors.share is None else _percent(errors.share)
    table.add_row("errors", share, "", f"{errors.asked} queries" + (f": {codes}" if codes else ""))
    if errors.left_out:
        table.add_row("left out", f"{errors.left_out}", "", "queries, because of --max-cost")
    cost, sent, received = card.spending.usd, card.spending.input_tokens, card.spending.output_tokens
    tokens = "" if sent is None and received is None else f"{sent or 0:,} + {received or 0:,} tokens"
    table.add_row("cost", "n/a" if cost is None else f"${cost:,.4f}", "", tokens)
    if card.latency.p50_ms is not None and card.latency.p90_ms is not None:
        table.add_row(
            "latency, median",
            f"{card.latency.p50_ms:,.0f} ms",
            "",
            f"90 % within {card.latency.p90_ms:,.0f} ms",
        )
    return table


def _attacks(card: CalibrationCard) -> Table:
    table = new_table(
        "Family", ("Succeeded", "right"), ("Of", "right"), ("At most", "right"), ("Errors", "right")
    )
    for one in card.attacks.families if card.attacks else ():
        style = "red" if one.success.count else ""
        table.add_row(
            clean(one.family, 40),
            Text(str(one.success.count), style),
            str(one.success.of),
            _percent(one.success.upper),
            str(one.errors),
        )
    return table


def _gates(card: CalibrationCard) -> Table:
    table = new_table("Gate", ("Limit", "right"), ("Measured", "right"), "")
    marks = {True: ("✓ met", "green"), False: ("✗ missed", "red"), None: ("! not measured", "yellow")}
    for gate in card.gates:
        measured = "n/a" if gate.value is None else f"{gate.value:.4g}"
        table.add_row(gate.name, f"{gate.limit:g}", measured, Text(*marks[gate.met]))
    return table


def _listed(what: str, ids: Sequence[str]) -> Text:
    more = f" and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return Text(f"{what}: {', '.join(clean(one, 60) for one in ids[:_SHOWN_IDS])}{more}", "dim")


def _percent(share: float) -> str:
    return plain(percent(share))


def _share(share: Share) -> tuple[str, str]:
    value = "n/a" if share.value is None else _percent(share.value)
    return value, f"{_percent(share.low)} to {_percent(share.high)}" if share.of else ""


def _bound(bound: BoundedShare) -> tuple[str, str]:
    value = "n/a" if bound.value is None else _percent(bound.value)
    return value, f"at most {_percent(bound.upper)}" if bound.of else ""
