"""`evald keys`: make, list and revoke the API keys of a server."""

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
from evald_server.judge.budget import SPENDING_FILE, read_spending, utc_day

from .exit_codes import ExitCode, usage_error

_DAY_SECONDS: Final = 86_400


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke keys."""
    path = args.keys_file or os.environ.get("EVALD_KEYS_FILE")
    if not path:
        raise usage_error("no keys file is named", "name it with --keys-file FILE or EVALD_KEYS_FILE")
    try:
        return _ACTIONS[args.action](args, Path(path))
    except FileProblem as problem:
        raise usage_error(str(problem)) from None


def _create(args: argparse.Namespace, path: Path) -> int:
    roles = [Role(role) for role in args.roles]
    if Role.PLUGIN in roles and not args.types:
        raise usage_error(
            "--role plugin needs --types: the evaluator types that the plugin may offer",
            "add --types 'acme.*', or --types '*' for all types",
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
            judge_usd_per_day=args.judge_usd_per_day,
        )
    except ValueError as problem:
        raise usage_error(str(problem)) from None
    add_key(path, key)
    # Only the key goes to standard output, so that it can be piped into a secret store.
    sys.stderr.write(f"key {key.id} for {key.principal}, {_until(key)}; it is shown only once:\n")
    sys.stdout.write(f"{text}\n")
    return ExitCode.PASSED


def _list(args: argparse.Namespace, path: Path) -> int:
    from .console import new_table, show

    keys, now = read_keys(path).values(), time.time()
    spent = _spent(args.data_dir or os.environ.get("EVALD_DATA_DIR"))
    if args.json:
        found = [_as_json(key, now, None if spent is None else spent.get(key.principal, 0.0)) for key in keys]
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return ExitCode.PASSED
    used = [] if spent is None else ["Judges today"]
    table = new_table("Key", "Principal", "Roles", "Types", "Limits", *used, "State", "Expires", "Note")
    for key in keys:
        table.add_row(
            key.id,
            key.principal,
            ", ".join(key.roles),
            ", ".join(key.types),
            _limits(key),
            *([] if spent is None else [f"${spent.get(key.principal, 0.0):.4g}"]),
            key.state(now),
            _date(key.expires) or "never",
            key.note,
        )
    show(table)
    return ExitCode.PASSED


def _revoke(args: argparse.Namespace, path: Path) -> int:
    key = revoke_key(path, args.id) if path.exists() else None
    if key is None:
        raise usage_error(f"{path}: no key has the id {args.id[:18]!r}", "evald keys list shows all keys")
    sys.stdout.write(f"revoked {key.id} of {key.principal}; servers refuse it within a second\n")
    return ExitCode.PASSED


_ACTIONS: Final = {"create": _create, "list": _list, "revoke": _revoke}


def _spent(data_dir: str | None) -> dict[str, float] | None:
    """Return the cost of judges today (UTC) in US dollars by principal, as recorded by a server.

    None without a data directory.
    """
    if not data_dir:
        return None
    path = Path(data_dir) / SPENDING_FILE
    try:
        return read_spending(path, utc_day())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise usage_error(
            f"{path}: cannot be read", "name a server's data directory with --data-dir DIR"
        ) from None


def _as_json(key: ApiKey, now: float, judge_usd_today: float | None) -> dict[str, object]:
    return {
        "id": key.id,
        "principal": key.principal,
        "roles": list(key.roles),
        "types": list(key.types),
        "rate": key.rate,
        "inFlight": key.in_flight,
        "judgeUsdPerDay": key.judge_usd_per_day,
        **({} if judge_usd_today is None else {"judgeUsdToday": judge_usd_today}),
        "state": key.state(now),
        "created": _date(key.created),
        "expires": _date(key.expires) or None,
        "revoked": _date(key.revoked) or None,
        "note": key.note,
    }


def _limits(key: ApiKey) -> str:
    rate = "" if key.rate is None else f"{key.rate:g}/s"
    in_flight = f"{key.in_flight} in flight" if key.in_flight else ""
    judges = "" if key.judge_usd_per_day is None else f"${key.judge_usd_per_day:g} a day for judges"
    return ", ".join(filter(None, (rate, in_flight, judges)))


def _until(key: ApiKey) -> str:
    return f"valid until {_date(key.expires)}" if key.expires is not None else "without expiry"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
