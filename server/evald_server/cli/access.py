"""`evald keys`: make, list and revoke the API keys of a server. `evald certs dev`: make certificates for trying TLS out."""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from evald_server.auth.keys import PREFIX, ApiKey, add_key, new_key, read_keys, revoke_key
from evald_server.auth.principal import Role, limits_of
from evald_server.day_totals import SPENDING_FILE, UNUSABLE, read_totals, utc_day
from evald_server.dev_certificates import FILES, OpensslProblem, make_certificates
from evald_server.files import FileProblem

from .exit_codes import CommandError, ExitCode, usage_error

_DAY_SECONDS: Final = 86_400

# How the table shows a limit.
_LIMITS: Final = {
    "rate": "{:.15g}/s",
    "in_flight": "{} in flight",
    "judge_usd_per_day": "${:.15g} a day for judges",
}


def run(args: argparse.Namespace) -> int:
    """Make, list or revoke keys, or make certificates."""
    return _run_certs(args) if args.command == "certs" else _run_keys(args)


def _run_keys(args: argparse.Namespace) -> int:
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
            **limits_of(args),
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
    today = _today(args.data_dir or os.environ.get("EVALD_DATA_DIR"))
    if args.json:
        found = [_as_json(key, now, today) for key in keys]
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return ExitCode.PASSED
    table = new_table(
        *("Key", "Principal", "Roles", "Types", "Limits"),
        *(["Judges today"] if today is not None else []),
        *("State", "Expires", "Note"),
    )
    for key in keys:
        table.add_row(
            key.id,
            key.principal,
            ", ".join(key.roles),
            ", ".join(key.types),
            _limits(key),
            *([f"${today.get(key.principal, 0.0):.4g}"] if today is not None else []),
            key.state(now),
            _date(key.expires) or "never",
            key.note,
        )
    show(table)
    return ExitCode.PASSED


def _revoke(args: argparse.Namespace, path: Path) -> int:
    # The id of a whole key, too, which is what a leak brings to light.
    key_id = args.id.removeprefix(PREFIX).partition("_")[0]
    key = revoke_key(path, key_id) if path.exists() else None
    if key is None:
        raise usage_error(
            f"{path}: no key has the id {key_id[:12]!r}",
            "evald keys list shows all keys",
        )
    sys.stdout.write(f"revoked {key.id} of {key.principal}; servers refuse it within a second\n")
    return ExitCode.PASSED


_ACTIONS: Final = {"create": _create, "list": _list, "revoke": _revoke}


def _today(data_dir: str | None) -> dict[str, float] | None:
    """Return the cost of judges today (UTC) by principal, as recorded by a server; None without a data directory."""
    if not data_dir:
        return None
    path = Path(data_dir) / SPENDING_FILE
    try:
        return read_totals(path, utc_day())
    except UNUSABLE:
        raise usage_error(
            f"{path}: cannot be read", "name a server's data directory with --data-dir DIR"
        ) from None


def _as_json(key: ApiKey, now: float, today: Mapping[str, float] | None) -> dict[str, object]:
    used = {} if today is None else {"judgeUsdToday": today.get(key.principal, 0.0)}
    return {
        "id": key.id,
        "principal": key.principal,
        "roles": list(key.roles),
        "types": list(key.types),
        "rate": key.rate,
        "inFlight": key.in_flight,
        "judgeUsdPerDay": key.judge_usd_per_day,
        **used,
        "state": key.state(now),
        "created": _date(key.created),
        "expires": _date(key.expires) or None,
        "revoked": _date(key.revoked) or None,
        "note": key.note,
    }


def _limits(key: ApiKey) -> str:
    found = limits_of(key).items()
    return ", ".join(_LIMITS[name].format(limit) for name, limit in found if limit is not None)


def _until(key: ApiKey) -> str:
    return f"valid until {_date(key.expires)}" if key.expires is not None else "without expiry"


def _date(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _run_certs(args: argparse.Namespace) -> int:
    folder = Path(args.directory)
    if found := [name for name in FILES if (folder / name).exists()]:
        raise usage_error(
            f"{folder / found[0]}: already exists", "name another directory, or remove the file"
        )
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *args.names]
    for name in names:
        if not name.isascii() or not name.replace("-", "").replace(".", "").replace(":", "").isalnum():
            raise usage_error(f"--name: got {name!r}, wanted a host name or an address")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Made in a temporary directory, so that a failure of openssl leaves none of the files.
        with tempfile.TemporaryDirectory(dir=folder) as place:
            make_certificates(Path(place), names, args.days)
            for name in FILES:
                (Path(place) / name).replace(folder / name)
    except OpensslProblem as problem:
        raise CommandError(ExitCode.USAGE, f"evald certs: {problem}", "apt-get install openssl") from None
    except OSError as problem:
        raise usage_error(f"{folder}: {problem.strerror}") from None
    sys.stdout.write(
        f"{folder}: a CA (ca.pem), a server certificate (server.pem, server.key) for "
        f"{', '.join(dict.fromkeys(names))}, a client certificate (client.pem, client.key), valid for {args.days} days\n"
        "For tests only. Do not share ca.key: it can sign a certificate for any name\n"
    )
    return ExitCode.PASSED
