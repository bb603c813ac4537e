"""`evald health`: ask the server of this machine whether it lives, or takes calls."""

import argparse
import ipaddress
import ssl
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final

from evald_server.config import Settings, split_address

from .exit_codes import CommandError, ExitCode, usage_error
from .serve import load_command_settings

# The port answers from a thread of its own, within milliseconds.
_SECONDS: Final = 2.0


def run(args: argparse.Namespace) -> int:
    """Ask for /healthz, or /readyz with --ready. Raises CommandError if nothing answers."""
    settings = load_command_settings(args)
    connection = _connection(settings)
    path = "/readyz" if args.ready else "/healthz"
    url = f"{'https' if isinstance(connection, HTTPSConnection) else 'http'}://{settings.http}{path}"
    with closing(connection):
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            said = response.read(1000).decode(errors="replace").strip()
        except (OSError, HTTPException) as problem:
            why = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            raise CommandError(
                ExitCode.UNREACHABLE,
                f"{url}: {why}",
                "is the server running, with the same EVALD_ variables, --config and --http?",
            ) from None
    if response.status not in (200, 503):
        raise CommandError(ExitCode.UNREACHABLE, f"{url}: status {response.status}, so it is no evald server")
    sys.stdout.write(f"{said}\n")
    return ExitCode.PASSED if response.status == 200 else ExitCode.FAILED


def _connection(settings: Settings) -> HTTPConnection:
    """Return a connection to the HTTP port of these settings, which uses no proxy. Raises CommandError."""
    host, port = split_address(settings.http) if settings.http else ("", 0)
    if not port:
        raise usage_error(
            f"http: got {settings.http or ''!r}, wanted the address of the HTTP port",
            "give the server a fixed one with EVALD_HTTP or --http HOST:PORT, for example 127.0.0.1:9464",
        )
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        everywhere = False
    if everywhere:
        host = "::1" if ":" in host else "127.0.0.1"
    if settings.tls_cert_file is None or not settings.http_tls:
        return HTTPConnection(host, port, timeout=_SECONDS)
    # The certificate names the server as others reach it, not this address. Nothing secret is sent.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=_SECONDS, context=context)
