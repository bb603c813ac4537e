"""`evald runs`: run scenarios; watch, list, show, export and import runs."""

import argparse
import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from evald.convert.runs import event_to_json, run_to_json
from evald.errors import EvaldError, Unavailable
from evald.v1 import run_service_pb2
from evald_server.methods import StandardMethods

from .console import say, show, warn
from .exit_codes import ExitCode, usage_error
from .result_tables import verdict_text
from .run_view import RunView, parties, reason, runs_table, show_run, verdict_name
from .sanitize import clean, print_json, to_json
from .server_client import KINDS, ServerClient, open_server
from .server_connection import run_async
from .stored_files import is_id
from .stored_import import import_files
from .stored_parser import STATUSES, VERDICTS
from .totals import VerdictCount

_pb = run_service_pb2

# Maximum number of runs watched at the same time: one connection carries about 100 streams.
_WATCHED: Final = 32

_AGO: Final = re.compile(r"(\d{1,6})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


def run(args: argparse.Namespace) -> int:
    """Perform the action."""
    if args.action == "import":
        return import_files(args, "run")
    return run_async(perform(args))


async def perform(args: argparse.Namespace) -> int:
    """Perform an action that needs no file."""
    async with open_server(args) as store:
        return await _ACTIONS[args.action](store, args)


async def _start(store: ServerClient, args: argparse.Namespace) -> int:
    if bool(args.scenario) == bool(args.experiment):
        raise usage_error(
            "wanted either a scenario or --experiment", "evald runs start SCENARIO --connector NAME"
        )
    if args.experiment:
        if args.connector or args.persona:
            raise usage_error(
                "--connector and --persona cannot be used with --experiment: an experiment has its own"
            )
        experiment = await store.find(KINDS["experiment"], args.experiment)
        answer = await store.call(_pb.StartRunsRequest(experiment_id=experiment.id))
        return await _go_on(store, list(answer.runs), args)
    if not args.connector:
        raise usage_error(
            "--connector is missing: it defines how evald calls the agent",
            "evald connectors list lists the stored connectors",
        )
    request = _pb.StartRunRequest(
        scenario_id=(await store.find(KINDS["scenario"], args.scenario)).id,
        connector_id=(await store.find(KINDS["connector"], args.connector)).id,
    )
    if args.persona:
        request.persona_id = (await store.find(KINDS["persona"], args.persona)).id
    answer = await store.call(request)
    return await _go_on(store, [answer.run], args)


async def _again(store: ServerClient, args: argparse.Namespace) -> int:
    """Retry or resume a run."""
    verb = args.action.capitalize()
    request = getattr(_pb, f"{verb}RunRequest")(run_id=args.runs[0])
    answer = await store.call(request)
    return await _go_on(store, [answer.run], args)


async def _go_on(store: ServerClient, runs: Sequence[_pb.Run], args: argparse.Namespace) -> int:
    """Watch queued runs, or only print them."""
    if args.watch:
        return await _watch_all(store, [run.id for run in runs], as_json=args.json)
    if args.json:
        data = [run_to_json(run) for run in runs]
        print_json(data[0] if len(data) == 1 else data, indent=2)
    else:
        for run in runs:
            say(clean(run.id))
    return ExitCode.PASSED


async def _watch(store: ServerClient, args: argparse.Namespace) -> int:
    return await _watch_all(store, args.runs, as_json=args.json)


async def _watch_all(store: ServerClient, run_ids: Sequence[str], *, as_json: bool) -> int:
    """Show runs until all have ended. Returns the worst exit code."""
    count = VerdictCount()
    if len(run_ids) == 1 and not as_json:
        with RunView.open() as view:
            ended = await store.watch(run_ids[0], view.event)
            view.end(ended)
        count.add(verdict_name(ended))
        return count.exit_code
    places = asyncio.Semaphore(_WATCHED)

    async def watch(run_id: str) -> None:
        try:
            async with places:
                ended = await store.watch(
                    run_id, lambda event: _print_event(run_id, event) if as_json else None
                )
        except EvaldError as problem:
            # The other runs continue, unless the server is gone.
            if len(run_ids) == 1 or isinstance(problem, Unavailable):
                raise
            warn(f"{clean(run_id)}: {clean(problem.message)}")
            count.add("ERROR")
            return
        count.add(verdict_name(ended))
        if not as_json:
            verdict = verdict_text(verdict_name(ended))
            say(verdict, f"  {clean(run_id)}  {parties(ended)}  ", (clean(reason(ended), 200), "dim"))

    await asyncio.gather(*map(watch, run_ids))
    if not as_json:
        say(verdict_text(count.verdict), f"  {count.passed} of {count.total} runs passed{count.rest}")
    return count.exit_code


def _print_event(run_id: str, event: _pb.WatchRunResponse) -> None:
    print_json({"runId": run_id, **event_to_json(event)})


async def _list(store: ServerClient, args: argparse.Namespace) -> int:
    wanted = await _filters(store, args) | {
        "include_messages": args.messages,
        "oldest_first": args.oldest_first,
    }
    found = [run async for run in store.runs(wanted, args.limit)]
    if args.json:
        print_json([run_to_json(run) for run in found], indent=2)
    elif found:
        show(runs_table(found))
    else:
        say("No runs match.")
    return ExitCode.PASSED


async def _filters(store: ServerClient, args: argparse.Namespace) -> dict[str, Any]:
    """Return the filters of the command line as fields of ListRunsRequest."""
    wanted: dict[str, Any] = {
        "execution_id": args.execution,
        "status": STATUSES.index(args.status) + 1 if args.status else 0,
        "verdict": VERDICTS.index(args.verdict) + 1 if args.verdict else 0,
        "failed_evaluator": args.failed_evaluator,
    }
    for word, kind in KINDS.items():
        name = getattr(args, word)
        wanted[f"{word}_id"] = name if not name or is_id(name) else await _id_of(store, kind, name)
    for name in ("since", "until"):
        text = getattr(args, name)
        if text:
            wanted[name] = _time(text, f"--{name}")
    return wanted


async def _id_of(store: ServerClient, kind: StandardMethods, name: str) -> str:
    """Return the id of the resource with this name, else the name itself: runs outlive their resources."""
    found = await store.lookup(kind, name)
    if found is None:
        warn(f'no {kind.word} has the name "{clean(name)}"; using it as an id')
        return name
    return str(found.id)


def _time(text: str, option: str) -> datetime:
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise usage_error(
            f"{option}: got {text!r}, wanted a time",
            "for example 2026-01-31, 2026-01-31T12:00:00Z, or 30m, 24h, 7d",
        ) from None


async def _show(store: ServerClient, args: argparse.Namespace) -> int:
    found = await store.run(args.runs[0])
    if args.json:
        print_json(run_to_json(found, whole=True), indent=2)
    else:
        show_run(found)
    return ExitCode.PASSED


async def _cancel(store: ServerClient, args: argparse.Namespace) -> int:
    """Cancel or delete runs."""
    verb = args.action.capitalize()
    done = "cancelled" if verb == "Cancel" else "deleted"
    for run_id in args.runs:
        await store.call(getattr(_pb, f"{verb}RunRequest")(run_id=run_id))
        if not args.json:
            say((f"{done:10}", "green"), clean(run_id))
    if args.json:
        print_json({done: args.runs})
    return ExitCode.PASSED


async def _export(store: ServerClient, args: argparse.Namespace) -> int:
    run_ids = args.runs
    if not run_ids:
        wanted = await _filters(store, args) | {"oldest_first": True}
        run_ids = [run.id async for run in store.runs(wanted)]
    for run_id in run_ids:
        found = await store.run(run_id)
        sys.stdout.write(to_json({"kind": "run", **run_to_json(found, whole=True)}) + "\n")
    return ExitCode.PASSED


_ACTIONS: Final[Mapping[str, Callable[[ServerClient, argparse.Namespace], Awaitable[int]]]] = {
    "start": _start,
    "watch": _watch,
    "list": _list,
    "show": _show,
    "cancel": _cancel,
    "delete": _cancel,
    "retry": _again,
    "resume": _again,
    "export": _export,
}
