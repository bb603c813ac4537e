"""Validate a suite and its cases before they run."""

from typing import Final

from google.protobuf.message import DecodeError

from evald.v1.suite_service_pb2 import SuiteOpen
from evald_server import wire_pb2
from evald_server.call_errors import BadField, CallError, invalid
from evald_server.engine.plan import InvalidPlan
from evald_server.engine.planner import Planner
from evald_server.runs.case_checks import case_problem, number_problems
from evald_server.runs.suite import SuiteSetup

from .errors import as_call_error
from .server import parse

_MAX_NAME: Final = 200
_MAX_RUN_ID: Final = 100
_MAX_CONCURRENCY: Final = 1000
_MAX_METADATA: Final = 64 << 10


def suite_problems(opened: SuiteOpen) -> list[BadField]:
    """Return the invalid fields of a suite, except its connector and its evaluators."""
    found = []
    for name, most in (("suite_run_id", _MAX_RUN_ID), ("suite", _MAX_NAME), ("target", _MAX_NAME)):
        text = getattr(opened, name)
        if len(text) > most or not text.isprintable():
            found.append(
                BadField(
                    f"open.{name}",
                    f"got {len(text)} characters, wanted at most {most}, all of them printable",
                )
            )
    if not opened.suite.strip():
        found.append(BadField("open.suite", "missing; wanted the name of the suite"))
    if opened.resume and not opened.suite_run_id:
        found.append(BadField("open.suite_run_id", "missing; wanted the id of the suite run to resume"))
    if opened.connector_id and opened.HasField("connector"):
        found.append(BadField("open.connector_id", "wanted at most one of connector_id and connector"))
    found += [BadField(f"open.{one.field}", one.message) for one in number_problems(opened)]
    if 0 < opened.trials < opened.min_passed:
        found.append(
            BadField("open.min_passed", f"got {opened.min_passed}, wanted at most trials, {opened.trials}")
        )
    if opened.HasField("threshold") and not 0 < opened.threshold <= 1:  # also refuses NaN
        wanted = "more than 0, which every share reaches, and at most 1"
        found.append(BadField("open.threshold", f"got {opened.threshold}, wanted {wanted}"))
    if not 0 <= opened.max_concurrency <= _MAX_CONCURRENCY:
        found.append(
            BadField("open.max_concurrency", f"got {opened.max_concurrency}, wanted 0 to {_MAX_CONCURRENCY}")
        )
    if opened.case_count < 0:
        found.append(BadField("open.case_count", f"got {opened.case_count}, wanted 0 or more"))
    if opened.metadata.ByteSize() > _MAX_METADATA:
        found.append(
            BadField(
                "open.metadata", f"got {opened.metadata.ByteSize()} bytes, wanted at most {_MAX_METADATA}"
            )
        )
    return found


async def check_specs(planner: Planner, specs: tuple[bytes, ...], options: bytes, path: str) -> None:
    """Compile specs. path: prefix of the fields in errors. Raises CallError."""
    try:
        await planner.prepare(specs, options)
        planner.plan(specs, options)
    except InvalidPlan as problem:
        raise _below(path, as_call_error(problem)) from None


def parse_case(data: bytes, index: int) -> wire_pb2.SuiteCase:
    """Parse a case. index: its position in the message. Raises CallError."""
    try:
        return wire_pb2.SuiteCase.FromString(data)
    except DecodeError:
        return parse(wire_pb2.SuiteCase, data, f"cases[{index}]")


async def check_case(case: wire_pb2.SuiteCase, path: str, setup: SuiteSetup) -> None:
    """Raise CallError if a case cannot run."""
    found = case_problem(case, setup, asks_agent=setup.connector is not None)
    if found is not None:
        raise invalid(f"{path}.{found.field}", f'{found.message} (case "{case.case_id[:100]}")')
    options = setup.options_of(case)
    evaluated = False
    for turn in range(len(case.turns)):
        specs = setup.specs_of(case, turn)
        if specs:
            evaluated = True
            if specs is not setup.specs or options is not setup.options:
                own = f"{path}.turns[{turn}]" if case.turns[turn].evaluators else path
                await check_specs(setup.engine.planner, specs, options, own)
                await setup.next_slice()  # compiling a hundred evaluators takes milliseconds
    # Trials in error are not evaluated.
    if not evaluated and not (
        case.recorded_trials and all(t.HasField("error") for t in case.recorded_trials)
    ):
        raise invalid(
            f"{path}.evaluators",
            f"missing; wanted at least one evaluator here, in the turns of the case or in open "
            f'(case "{case.case_id[:100]}")',
        )


def _below(path: str, problem: CallError) -> CallError:
    """Return the error with a path in front of its fields."""
    violations = [one._replace(field=f"{path}.{one.field}") for one in problem.violations]
    metadata = problem.metadata | {"field": f"{path}.{problem.metadata.get('field', '')}"}
    return CallError(problem.reason, f"{path}.{problem.message}", violations, **metadata)
