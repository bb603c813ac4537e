"""`evald remotes`: list or watch the instances of remote evaluators that a server knows."""

import argparse
import sys
import time
from typing import Any, Final

from rich.text import Text

from evald.plugin.v1 import registry_service_pb2

from .console import new_table, say, show
from .exit_codes import ExitCode
from .sanitize import clean, to_json
from .server_client import ServerClient, open_server
from .server_connection import run_async

_SECONDS: Final = 10.0

_pb = registry_service_pb2
_STYLES: Final = {"active": "green", "pending": "dim", "draining": "yellow", "unhealthy": "bold red"}
_MODES: Final = {1: "connected", 2: "registered", 3: "static"}
_STATES: Final = {1: "pending", 2: "active", 3: "draining", 4: "unhealthy"}


def run(args: argparse.Namespace) -> int:
    """List the instances, or watch them."""
    return run_async(_remotes(args))


async def _remotes(args: argparse.Namespace) -> int:
    async with open_server(args) as server:
        if args.watch:
            await _watch(server, args.type, as_json=args.json)
            return ExitCode.PASSED
        request = _pb.ListRegistrationsRequest(page_size=1000, type=args.type)
        found = [one async for page in server.pages(request, _SECONDS) for one in page.registrations]
    _print(found, server.address, as_json=args.json)
    return ExitCode.PASSED


def _print(found: list[registry_service_pb2.Registration], address: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(to_json({"instances": [_to_dict(one) for one in found]}, indent=2) + "\n")
        return
    if not found:
        say(f"{clean(address)} has no remote evaluators.")
        return
    table = new_table(
        "Instance", "Evaluators", "Mode", "State", ("Load", "right"), "Lease", "Seen", "Last error"
    )
    table.columns[0].style = "cyan"
    for position in (0, 1):
        table.columns[position].no_wrap = False
    now = time.time()
    for one in found:
        table.add_row(
            f"{clean(one.instance_id, 60)}\n{clean(one.target, 60)}",
            "\n".join(_types(one)) or "?",
            _MODES.get(one.mode, "?"),
            _styled(_STATES.get(one.state, "?")),
            f"{one.active_tasks}/{max(1, one.plugin.max_concurrency)}",
            _span(one.expire_time.seconds - now) if one.HasField("expire_time") else "-",
            f"{_span(now - one.last_seen_time.seconds)} ago" if one.HasField("last_seen_time") else "never",
            clean(one.last_error, 200),
        )
    show(table)
    active = sum(one.state == _pb.Registration.STATE_ACTIVE for one in found)
    say(f"{active} of {len(found)} instances are active.")


async def _watch(server: ServerClient, name: str, *, as_json: bool) -> None:
    """Print a line for every instance, then a line for every change, until interrupted."""
    shown: set[str] = set()
    async for event in server.stream(_pb.WatchRegistrationsRequest()):
        kind = event.WhichOneof("event")
        if kind == "upserted":
            one = event.upserted
            if name and not any(offered.type == name for offered in one.plugin.evaluator_types):
                continue
            shown.add(one.instance_id)
            line = {"event": "upserted", "revision": event.revision, "instance": _to_dict(one)}
            error = f": {clean(one.last_error, 200)}" if one.last_error else ""
            _tell(
                as_json,
                line,
                one.instance_id,
                _STATES.get(one.state, "?"),
                f"{', '.join(_types(one))}{error}",
            )
        elif kind == "removed_instance_id" and event.removed_instance_id in shown:
            shown.discard(event.removed_instance_id)
            line = {
                "event": "removed",
                "revision": event.revision,
                "instanceId": event.removed_instance_id,
            }
            _tell(as_json, line, event.removed_instance_id, "gone", "")


def _tell(as_json: bool, line: dict[str, Any], instance_id: str, state: str, rest: str) -> None:
    if as_json:
        sys.stdout.write(to_json(line) + "\n")
    else:
        moment = time.strftime("%H:%M:%S")
        say(f"{moment} ", (f"{state:9}", _STYLES.get(state, "dim")), f" {clean(instance_id, 60)}  {rest}")
    sys.stdout.flush()


def _types(one: registry_service_pb2.Registration) -> list[str]:
    return [f"{clean(found.type, 63)} {clean(found.version, 20)}" for found in one.plugin.evaluator_types]


def _styled(state: str) -> Text:
    return Text(state, _STYLES.get(state, ""))


def _span(seconds: float) -> str:
    """Format a duration in seconds in the largest unit of which it has at least two."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _to_dict(one: registry_service_pb2.Registration) -> dict[str, Any]:
    """Return JSON data in camelCase, without None and empty strings."""
    plugin = one.plugin
    data = {
        "instanceId": one.instance_id,
        "mode": _MODES.get(one.mode, "unknown"),
        "state": _STATES.get(one.state, "unknown"),
        "target": one.target,
        "plugin": plugin.name,
        "pluginVersion": plugin.version,
        "sdk": plugin.sdk,
        "evaluatorTypes": [
            {"type": found.type, "version": found.version} for found in plugin.evaluator_types
        ],
        "activeTasks": one.active_tasks,
        "maxConcurrency": max(1, plugin.max_concurrency),
        "registerTime": one.register_time.ToJsonString(),
        "lastSeenTime": one.last_seen_time.ToJsonString() if one.HasField("last_seen_time") else None,
        "expireTime": one.expire_time.ToJsonString() if one.HasField("expire_time") else None,
        "lastError": one.last_error or None,
        "serverId": one.server_id,
    }
    return {key: value for key, value in data.items() if value not in (None, "")}
