"""`evald calibrate`: measure the reliability of a judge. Prints figures, writes a card, returns an exit code."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from evald_server.calibration.attack_suite import attack_suite
from evald_server.calibration.calibration import JudgeUnderTest, calibrate
from evald_server.calibration.card import CalibrationCard, CardDataset
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

from .calibration_report import card_tables
from .console import progress_bar, say, show, warn
from .exit_codes import ExitCode, usage_error
from .report_files import check_output_file, write_file
from .result_tables import verdict_text
from .sanitize import clean, print_json, to_json
from .server_connection import connect, run_async
from .specs import SpecSet, load_specs
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
