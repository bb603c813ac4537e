"""`evald keys`: makes, lists and revokes the API keys of a server."""

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from evald_server.auth.files import FileProblem
from evald_server.auth.keys import ApiKey, add_key, new_key, read_keys, revoke_key
from evald_server.auth.principal import Role

from .exit_codes import ExitCode, usage_error

_DAY_SECONDS: Final = 86_400


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke."""
    path = args.keys_file or os.environ.get("EVALD_KEYS_FILE")
    if not path:
        raise usage_error("which file of keys?", "--keys-file FILE, or EVALD_KEYS_FILE")
    try:
        return _ACTIONS[args.action](args, Path(path))
    except FileProblem as problem:
        raise usage_error(str(problem)) from None


def _create(args: argparse.Namespace, path: Path) -> int:
    roles = [Role(role) for role in args.roles]
    if Role.PLUGIN in roles and not args.types:
        raise usage_error(
            "--role plugin needs --types: the evaluator types that the plugin may offer",
            "--types 'acme.*', or --types '*' for all",
        )
    expires = None if args.expires is None else float(int(time.time()) + args.expires * _DAY_SECONDS)
    try:
        text, key = new_key(
            args.principal,
            roles,
            types=args.types,
            expires=expires,
            note=args.note,
            rate=args.rate,
            in_flight=args.in_flight,
        )
    except ValueError as problem:
        raise usage_error(str(problem)) from None
    add_key(path, key)
    # The key alone on standard output, so that it can be piped into a secret store.
    sys.stderr.write(f"key {key.id} for {key.principal}, {_until(key)}; it is shown this once:\n")
    sys.stdout.write(f"{text}\n")
    return ExitCode.PASSED


def _list(args: argparse.Namespace, path: Path) -> int:
    from .console import new_table, show

    keys, now = read_keys(path).values(), time.time()
    if args.json:
        sys.stdout.write(json.dumps([_as_json(key, now) for key in keys], indent=2) + "\n")
        return ExitCode.PASSED
    table = new_table("Key", "Principal", "Roles", "Types", "Limits", "State", "Expires", "Note")
    for key in keys:
        table.add_row(
            key.id,
            key.principal,
            ", ".join(key.roles),
            ", ".join(key.types),
            _limits(key),
            key.state(now),
            _date(key.expires) or "never",
            key.note,
        )
    show(table)
    return ExitCode.PASSED


def _revoke(args: argparse.Namespace, path: Path) -> int:
    key = revoke_key(path, args.id) if path.exists() else None
    if key is None:
        raise usage_error(f"{path}: no key has the id {args.id!r}", "evald keys list shows all")
    sys.stdout.write(f"revoked {key.id} of {key.principal}; servers refuse it within 10 seconds\n")
    return ExitCode.PASSED


_ACTIONS: Final = {"create": _create, "list": _list, "revoke": _revoke}


def _as_json(key: ApiKey, now: float) -> dict[str, object]:
    return {
        "id": key.id,
        "principal": key.principal,
        "roles": list(key.roles),
        "types": list(key.types),
        "rate": key.rate,
        "inFlight": key.in_flight,
        "state": key.state(now),
        "created": _date(key.created),
        "expires": _date(key.expires) or None,
        "revoked": _date(key.revoked) or None,
        "note": key.note,
    }


def _limits(key: ApiKey) -> str:
    rate = "" if key.rate is None else f"{key.rate:g}/s"
    return ", ".join(filter(None, (rate, f"{key.in_flight} in flight" if key.in_flight else "")))


def _until(key: ApiKey) -> str:
    return f"until {_date(key.expires)}" if key.expires is not None else "which never expires"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
