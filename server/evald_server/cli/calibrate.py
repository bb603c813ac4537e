"""`evald calibrate`: how far a judge can be trusted, as figures, a card, and an exit code."""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from evald_server.calibration.asking import CostUnknown
from evald_server.calibration.asks import Asked, plan_asks
from evald_server.calibration.attacks import suite
from evald_server.calibration.calibration import Subject, calibrate
from evald_server.calibration.card import Card, Data
from evald_server.calibration.cases import Case, cases_digest
from evald_server.calibration.datasets import BadCases, read_cases
from evald_server.calibration.gates import Limits
from evald_server.calibration.judges import LLM_JUDGE, asked_through, with_criteria, with_question
from evald_server.calibration.page import page_of

from .cards import card_tables
from .console import err, say, show, warn, while_shown
from .exits import Exit, usage_error
from .plain import clean, print_json, to_json
from .specs import SpecSet, load_specs
from .tables import verdict_text
from .target import connected, run_async
from .violations import find_violations

if TYPE_CHECKING:
    from evald import AsyncClient

_EXITS: Final = {"PASSED": Exit.PASSED, "FAILED": Exit.FAILED, "ERROR": Exit.INCONCLUSIVE}

# Stands for any case's criteria where only the config's form is checked.
_ANY_CRITERIA: Final = "The answer is right."


class Plan(NamedTuple):
    """What the command line asks for. place: where the judge was named, for messages."""

    spec: dict[str, Any]
    place: str
    cases: list[Case]
    data: list[Data]
    limits: Limits


def run(args: argparse.Namespace) -> int:
    """Calibrate one judge."""
    plan = _plan(args)
    card_path = Path(args.card)
    if not os.access(card_path.parent, os.W_OK):
        raise usage_error(
            f"--card {args.card}: cannot write to {card_path.parent}", "name a file in a directory of yours"
        )
    return run_async(_calibrate(args, plan, card_path))


def _plan(args: argparse.Namespace) -> Plan:
    spec, place = _judge(args)
    cases, data = _labelled(args.files, args.format)
    if args.attacks:
        cases += suite()
    if not cases:
        raise usage_error(
            "nothing to ask: no FILE, and --no-attacks",
            "name files of labelled cases, or leave --no-attacks out",
        )
    _check_expected(spec, place, cases)
    limits = Limits(**{name: getattr(args, name) for name in Limits._fields})
    _check_gates(limits, cases)
    return Plan(spec, place, cases, data, limits)


def _judge(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    files = [args.judge_config] if args.judge_config else []
    found = load_specs(files, args.expressions)
    if len(found.specs) > 1:
        raise usage_error(
            f"got {len(found.specs)} evaluators ({', '.join(found.places)}), wanted one judge",
            "calibrate them one after the other",
        )
    if not found.specs:
        return with_question({"type": LLM_JUDGE}), "the default judge"
    spec = found.specs[0]
    spec = {"type": spec} if isinstance(spec, str) else dict(spec)
    return (with_question(spec) if isinstance(spec.get("type"), str) else spec), found.places[0]


def _labelled(files: Sequence[str], format_name: str | None) -> tuple[list[Case], list[Data]]:
    cases: list[Case] = []
    data: list[Data] = []
    for name in files:
        try:
            found = read_cases(Path(name), format_name)
        except BadCases as problem:
            raise usage_error(str(problem), "docs/calibration.md has the format") from None
        cases += found.cases
        data.append(
            Data(
                name=found.name,
                cases=len(found.cases),
                left_out=found.left_out,
                digest=cases_digest(found.cases),
            )
        )
    twice = [name for name, count in Counter(case.id for case in cases).items() if count > 1]
    if twice:
        raise usage_error(
            f"{len(twice)} ids stand for several cases, the first is {twice[0]!r}",
            "a case that counts twice makes intervals look narrower than they are: give each an id of its own",
        )
    return cases, data


def _check_expected(spec: Mapping[str, Any], place: str, cases: Sequence[Case]) -> None:
    """Without an expected answer such a judge fails a case unseen, which would count as its opinion."""
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
            'give them "expected", or leave includeExpected out',
        )


def _check_gates(limits: Limits, cases: Sequence[Case]) -> None:
    """Refuse gates for which nothing would be measured, before anything is paid for."""
    labelled = any(not case.family for case in cases)
    needs = (
        ("min_accuracy", labelled, "labelled cases"),
        ("min_kappa", labelled, "labelled cases"),
        ("max_order_flips", any(case.pair for case in cases), "pairs among the labelled cases"),
        ("max_attack_success", any(case.family for case in cases), "the attack suite"),
        ("max_false_alarms", any(case.family for case in cases), "the attack suite"),
    )
    for name, there, wanted in needs:
        if getattr(limits, name) is not None and not there:
            raise usage_error(f"--{name.replace('_', '-')} needs {wanted}, and there are none")


async def _calibrate(args: argparse.Namespace, plan: Plan, card_path: Path) -> int:
    async with connected(args) as client:
        subject = await _subject(client, plan)
        if subject is None:
            return Exit.USAGE
        total = len(plan_asks(plan.cases, args.repeats))
        with _progress(total) as on_answer:
            try:
                card = await calibrate(
                    subject,
                    asked_through(client, plan.spec, args.timeout),
                    plan.cases,
                    data=plan.data,
                    limits=plan.limits,
                    repeats=args.repeats,
                    concurrency=args.concurrency,
                    on_answer=on_answer,
                )
            except CostUnknown as problem:
                raise usage_error(
                    f"--max-cost {args.max_cost:g}: {problem}, so that nobody could tell when to stop",
                    "give its model a price in the server's settings, or leave --max-cost out",
                ) from None
    _hand_over(card, card_path, as_json=args.json)
    return _EXITS[card.verdict]


async def _subject(client: "AsyncClient", plan: Plan) -> Subject | None:
    """What is calibrated; None when it cannot be, and then the user has been told why."""
    # A case's criteria take the place of the judge's own, so both forms have to be valid.
    specs = [plan.spec, with_criteria(plan.spec, _ANY_CRITERIA)]
    violations = await find_violations(
        client, SpecSet(specs, {}, [plan.place, f"{plan.place}, with a case's criteria"])
    )
    for violation in [found for found in violations if not found.index] or violations:
        unknown = violation.reason == "UNKNOWN_TYPE"
        warn(clean(str(violation)), "evald types lists all evaluators" if unknown else "")
    if violations:
        return None
    found = await client.evaluator_type(plan.spec["type"], plan.spec.get("version", ""))
    if found.kind.name == "METRIC":
        raise usage_error(
            f"{plan.place}: {found.type} is a metric, which gives no verdict", "calibrate an assertion"
        )
    return Subject(found.type, found.version, plan.spec)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Asked], None]]:
    bar = Progress(
        TextColumn("asking"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[errors]} errors  {task.fields[spent]}"),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )
    errors, spent = 0, 0.0
    with while_shown(bar):
        task = bar.add_task("", total=total, errors=0, spent="")

        def on_answer(found: Asked) -> None:
            nonlocal errors, spent
            errors += found.answer.passed is None
            spent += found.answer.cost_usd or 0.0
            bar.update(task, advance=1, errors=errors, spent=f"${spent:.4f}" if spent else "")

        yield on_answer


def _hand_over(card: Card, path: Path, *, as_json: bool) -> None:
    """Write the card and its page, and print the one or a summary."""
    page = path.with_suffix(".html")
    path.write_text(to_json(card.to_dict(), indent=2) + "\n", encoding="utf-8")
    page.write_text(page_of(card), encoding="utf-8")
    if as_json:
        print_json(card.to_dict(), indent=2)
        return
    show(*card_tables(card))
    say(verdict_text(card.verdict), "  ", clean(card.reason))
    say(f"card {card.id} in {path}, for people in {page}")
