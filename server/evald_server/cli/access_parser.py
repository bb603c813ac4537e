"""The options of `evald keys` and `evald certs`."""

import argparse
from collections.abc import Callable
from typing import Any

from .options import add_flag, add_option, add_repeatable

_KEYS = """\
Makes, lists and revokes API keys. The file holds digests only: a key is shown
once, when it is made. A running server reads the file again when it changes.
"""

_KEYS_EXAMPLES = """\
examples:
  evald keys create --keys-file keys.toml --principal ci --role caller
  evald keys create --keys-file keys.toml --principal pii-plugin --role plugin --types 'acme.*'
  evald keys list --keys-file keys.toml
  evald keys revoke --keys-file keys.toml 7f3k2m9q4x1z

roles:
  caller   evaluates, and runs scenarios          viewer   reads what is stored, and metrics
  plugin   offers evaluators                      admin    writes connectors and personas, reads all
  ingest   sends traces
"""


_CERTS = """\
Makes a CA and certificates signed by it, with the program openssl. For trying
TLS out only: a production server needs a certificate from the CA of its
organisation.
"""

_CERTS_EXAMPLES = """\
examples:
  evald certs dev certs
  evald certs dev certs --name evald.example.org --name 10.0.0.7 --days 90
"""


def _days(text: str) -> int | None:
    """Parse a lifetime in days: 90d, or never (None)."""
    return None if text == "never" else _count_of_days(text, ", or never")


def _count_of_days(text: str, others: str = "") -> int:
    """Parse a number of days: 30 or 30d. others: further values that the option takes, for the error."""
    number = text.removesuffix("d")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 3650:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 1d to 3650d{others}")
    return int(number)


def add_access_commands(command: Callable[..., Any]) -> None:
    """Add `evald keys` and `evald certs`. command: (name, summary, text, examples) -> parser of the command."""
    certs = command("certs", "make test certificates for TLS", _CERTS, _CERTS_EXAMPLES)
    making = certs.add_subparsers(metavar="ACTION", title="actions", dest="action", required=True)
    dev = making.add_parser("dev", help="make a CA, a server certificate and a client certificate")
    dev.add_argument("directory", metavar="DIR", help="directory for the files")
    name = "host name or address of the server, in addition to localhost and this machine's name; repeatable"
    add_repeatable(dev, "--name", "HOST", "names", name)
    add_option(
        dev, "--days", "DAYS", "validity of the certificates in days [30]", type=_count_of_days, default=30
    )
    keys = command("keys", "make, list and revoke API keys", _KEYS, _KEYS_EXAMPLES)
    actions = keys.add_subparsers(metavar="ACTION", title="actions", dest="action", required=True)
    create = actions.add_parser("create", help="make a key, and show it once")
    add_option(
        create,
        "--principal",
        "NAME",
        "name of the caller; several keys may have the same principal",
        required=True,
    )
    add_option(
        create,
        "--role",
        "ROLE",
        "caller, plugin, viewer, admin or ingest; repeatable",
        action="append",
        dest="roles",
        required=True,
        choices=("caller", "plugin", "viewer", "admin", "ingest"),
    )
    types = "for the role plugin: evaluator types that it may offer; repeatable"
    add_repeatable(create, "--types", "TYPE|PREFIX*", "types", types)
    add_option(create, "--expires", "DAYS", "lifetime: 30d, or never [90d]", type=_days, default=90)
    add_option(create, "--rate", "N", "maximum calls per second", type=float)
    add_option(create, "--in-flight", "N", "maximum concurrent calls, sessions and watches", type=int)
    turns = "maximum turns evaluated per second; batches, sessions, suites and runs wait, and are not refused"
    add_option(create, "--turn-rate", "N", turns, type=float)
    add_option(create, "--turns-per-day", "N", "maximum turns evaluated per day (UTC)", type=int)
    add_option(
        create,
        "--judge-usd-per-day",
        "USD",
        "maximum cost of judges per day (UTC), in US dollars",
        type=float,
    )
    add_option(create, "--note", "TEXT", "shown by `evald keys list`", default="")
    listed = actions.add_parser("list", help="list all keys, without their secrets")
    add_option(
        listed,
        "--data-dir",
        "DIR",
        "the server's data directory; adds the cost of judges and the turns of today [EVALD_DATA_DIR]",
    )
    add_flag(listed, "--json", "as JSON")
    revoke = actions.add_parser("revoke", help="revoke a key: running servers refuse it within a second")
    revoke.add_argument("id", metavar="ID", help="the key's id, or the whole key")
    for action in (create, listed, revoke):
        add_option(action, "--keys-file", "FILE", "the keys file [EVALD_KEYS_FILE]")
