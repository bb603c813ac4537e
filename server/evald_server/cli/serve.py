"""`evald serve`: run the server until a signal stops it. `evald health`: ask whether it lives, or takes calls."""

import argparse
import asyncio
import ipaddress
import signal
import ssl
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evald_server.config import Settings, SettingsError, load_settings, split_address
from evald_server.descriptors import raise_limit
from evald_server.logs import configure_logging
from evald_server.loop import event_loop
from evald_server.memory import prepare_for_calls

from .exit_codes import CommandError, ExitCode, usage_error

if TYPE_CHECKING:
    from evald_server.app import App


def run(args: argparse.Namespace) -> int:
    """Run the server, list the settings, or ask whether a server lives."""
    if args.command == "health":
        return _ask_health(args)
    if args.settings:
        return _list_settings()
    settings = load_command_settings(args)
    configure_logging(settings.log_format, settings.log_level)
    raise_limit()
    with event_loop() as runner:
        runner.run(_serve(settings))
    return ExitCode.PASSED


def load_command_settings(args: argparse.Namespace, **fixed: Any) -> Settings:
    """Load the settings for a command line. fixed: settings that the command sets itself."""
    overrides = {
        name: getattr(args, name, None) for name in ("listen", "http", "web", "data_dir", "plugins")
    } | fixed
    if getattr(args, "code_allow", None):
        # Paths on a command line are relative to the working directory; the setting needs absolute paths.
        overrides["code_allow"] = [str(Path.cwd() / path) for path in args.code_allow]
    try:
        return load_settings(overrides, config_file=args.config)
    except SettingsError as problem:
        raise usage_error(str(problem), "evald serve --settings lists all settings") from None


async def start_app(settings: Settings) -> "App":
    """Start a server. Raises CommandError if it cannot listen."""
    from evald_server.app import App, StartError

    try:
        app = App(settings)
    except (StartError, ValueError) as problem:  # ValueError: a plugin cannot be loaded
        raise usage_error(str(problem)) from problem
    try:
        await app.start()
    except StartError as problem:
        raise usage_error(str(problem)) from problem
    return app


async def _serve(settings: Settings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Installed before the server starts: a supervisor may stop it at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    app = await start_app(settings)
    prepare_for_calls()
    try:
        announce(app)
        await stopping.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
    finally:
        await app.stop(settings.drain_grace)


def announce(app: "App") -> None:
    """Print that the server is ready, with its addresses."""
    from importlib.metadata import version

    mtls = f", with client certificates on {app.mtls_address}" if app.mtls_address else ""
    http = f", HTTP on {app.http_address}" if app.http_address else ""
    sys.stdout.write(f"evald {version('evald')} is ready: gRPC on {app.address}{mtls}{http}\n")
    if app.web_address is not None:
        what = "console" if app.settings.web_console else "HTTP API"
        scheme = "https" if app.settings.tls_cert_file else "http"
        sys.stdout.write(f"{what}: {scheme}://{app.web_address}\n")
    sys.stdout.flush()


def _list_settings() -> int:
    from .console import new_table, say, show

    table = new_table("Setting", "Environment", "Default", "Meaning")
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None or default in ([], {}) else str(default)
        table.add_row(name, f"EVALD_{name.upper()}", shown, field.description)
    show(table)
    say("Times are in seconds, sizes in bytes.")
    return ExitCode.PASSED


# The port answers from a thread of its own, within milliseconds.
_SECONDS: Final = 2.0


def _ask_health(args: argparse.Namespace) -> int:
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
