"""`evald remotes`: list or watch the instances of remote evaluators that a server knows, or forget a type."""

import argparse
import sys
import time
from typing import Any, Final

from rich.text import Text

from evald.plugin.v1 import registry_service_pb2

from .console import new_table, say, show
from .exit_codes import ExitCode, usage_error
from .sanitize import clean, to_json
from .server_client import ServerClient, open_server
from .server_connection import run_async

_SECONDS: Final = 10.0

_pb = registry_service_pb2
_STYLES: Final = {
    "active": "green",
    "pending": "dim",
    "draining": "yellow",
    "unhealthy": "bold red",
    "lost": "bold red",
}
_MODES: Final = {1: "connected", 2: "registered", 3: "static"}
_STATES: Final = {1: "pending", 2: "active", 3: "draining", 4: "unhealthy", 5: "lost"}


def run(args: argparse.Namespace) -> int:
    """List the instances, watch them, or forget a type."""
    forgets = args.wanted[:1] == ["forget"]
    if len(args.wanted) > 1 + forgets or (forgets and (len(args.wanted) < 2 or args.watch or args.json)):
        raise usage_error(
            f"got {' '.join(args.wanted)!r}",
            "wanted `evald remotes [TYPE]`, or `evald remotes forget TYPE` to remove a type that no instance offers",
        )
    if args.version and not forgets:
        raise usage_error("--version needs forget", "evald remotes forget TYPE --version VERSION")
    return run_async(_remotes(args))


async def _remotes(args: argparse.Namespace) -> int:
    async with open_server(args) as server:
        if args.wanted[:1] == ["forget"]:
            forgetting = _pb.ForgetTypeRequest(type=args.wanted[1], version=args.version)
            await server.call(forgetting, _SECONDS)
            say(f"{clean(server.address)} has forgotten {clean(args.wanted[1])}.")
            return ExitCode.PASSED
        name = "".join(args.wanted)
        if args.watch:
            await _watch(server, name, as_json=args.json)
            return ExitCode.PASSED
        request = _pb.ListRegistrationsRequest(page_size=1000, type=name)
        pages = [page async for page in server.pages(request, _SECONDS)]
    found = [one for page in pages for one in (*page.lost, *page.registrations)]
    unoffered = [one for page in pages for one in page.unoffered_types]
    if args.json:
        data = {
            "instances": [_to_dict(one) for one in found],
            "unofferedTypes": list(map(_type_to_dict, unoffered)),
        }
        sys.stdout.write(to_json(data, indent=2) + "\n")
    elif found or unoffered:
        _print(found)
        _print_unoffered(unoffered)
    else:
        about = f" that offer {clean(name, 63)}" if name else ""
        say(f"{clean(server.address)} has no remote evaluators{about}.")
    return ExitCode.PASSED


def _print(found: list[registry_service_pb2.Registration]) -> None:
    if not found:
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
            f"{_loss(one, now)}{clean(one.last_error, 200)}",
        )
    show(table)
    active = sum(one.state == _pb.Registration.STATE_ACTIVE for one in found)
    say(f"{active} of {len(found)} instances are active.")


def _loss(one: registry_service_pb2.Registration, now: float) -> str:
    """Return when an instance was lost, and with how many open tasks; "" if it was not."""
    if not one.HasField("lost_time"):
        return ""
    return f"lost {_span(now - one.lost_time.seconds)} ago with {one.active_tasks} open tasks: "


def _print_unoffered(types: list[registry_service_pb2.RememberedType]) -> None:
    """Print the types that no instance offers."""
    if not types:
        return
    table = new_table("Offered by nobody now", "Version", "Last offered by", "First offered")
    table.columns[0].style = "cyan"
    for one in types:
        table.add_row(
            clean(one.evaluator_type.type, 63),
            clean(one.evaluator_type.version, 40),
            clean(" of ".join(filter(None, (one.plugin, one.principal))), 100),
            one.offer_time.ToDatetime().strftime("%Y-%m-%d %H:%M UTC"),
        )
    show(table)
    say(
        "Their calls are errors (REMOTE_UNAVAILABLE) until an instance offers them again; "
        "`evald remotes forget TYPE` removes one."
    )


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
        "lostTime": one.lost_time.ToJsonString() if one.HasField("lost_time") else None,
        "serverId": one.server_id,
    }
    return {key: value for key, value in data.items() if value not in (None, "")}


def _type_to_dict(one: registry_service_pb2.RememberedType) -> dict[str, Any]:
    data = {
        "type": one.evaluator_type.type,
        "version": one.evaluator_type.version,
        "plugin": one.plugin,
        "principal": one.principal,
        "offerTime": one.offer_time.ToJsonString(),
    }
    return {key: value for key, value in data.items() if value}
