"""Connection of a command to its server: a named one, or one inside the command's own process."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evald_server.loop import event_loop

from .exit_codes import is_debugging, usage_error
from .sanitize import clean
from .serve import load_command_settings, start_app

if TYPE_CHECKING:
    import grpc

    from evald import AsyncClient
    from evald.credentials import Access

# The options of the server inside the command, by argument name.
_INSIDE_OPTIONS: Final = {
    "plugins": "--plugin",
    "code_allow": "--allow-code",
    "config": "--config",
    "data_dir": "--data-dir",
}

_CONNECTION_OPTIONS: Final = ("tls", "ca", "cert", "key", "token_file")

# A frame of a formatted traceback, and the exception's name at the start of its last line.
_FRAME: Final = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_EXCEPTION: Final = re.compile(r"^(?:\w+\.)*(\w+)(?=:|$)", re.MULTILINE)


def run_async(main: Coroutine[Any, Any, int]) -> int:
    """Run a command's coroutine and return its exit code.

    SIGTERM and Ctrl-C cancel the coroutine. Raises KeyboardInterrupt after either.
    """
    with event_loop() as runner:
        # Windows has no SIGTERM. Only the main thread gets signals.
        signalled = sys.platform != "win32" and threading.current_thread() is threading.main_thread()
        code = runner.run(_until_terminated(main) if signalled else main)
    if code is None:
        raise KeyboardInterrupt
    return code


async def _until_terminated(main: Coroutine[Any, Any, int]) -> int | None:
    """Return the exit code of the coroutine; None after SIGTERM."""
    task, loop = asyncio.ensure_future(main), asyncio.get_running_loop()
    before, terminated = signal.getsignal(signal.SIGTERM), False

    def terminate() -> None:
        nonlocal terminated
        if not terminated:  # a second cancellation would interrupt the cleanup
            terminated = True
            task.cancel()

    # A handler of the loop: an exception from a signal.signal handler could surface inside gRPC's code.
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if not terminated:
            raise
        return None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


@asynccontextmanager
async def connect(args: argparse.Namespace) -> AsyncIterator["AsyncClient"]:
    """Yield a client of the server that `serving` finds or starts."""
    from evald import AsyncClient

    async with serving(args) as (address, credentials), AsyncClient(address, **credentials) as client:
        yield client


@asynccontextmanager
async def serving(
    args: argparse.Namespace, data_dir: str | None = None, *, large_batch: bool = False
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield a server's address, and `tls` and `token` for it.

    The server is `--server`, else EVALD_SERVER, else a new one inside this process.

    An option of the server inside takes precedence over EVALD_SERVER, because the command line takes
    precedence over the environment. data_dir: default data directory of the server inside.
    large_batch: the server inside starts its batch processes at once, because a large batch will follow.
    """
    inside = next((name for name in _INSIDE_OPTIONS if getattr(args, name, None)), None)
    if inside and args.server:
        option = _INSIDE_OPTIONS[inside]
        raise usage_error(
            f"{option} configures the command's own server, so it cannot be used with --server {args.server}",
            f"remove --server, or give the option to that server: evald serve {option} ...",
        )
    address = args.server or (None if inside else os.environ.get("EVALD_SERVER"))
    if address:
        yield address, credentials_of(args)
        return
    unused = next((name for name in _CONNECTION_OPTIONS if getattr(args, name, None)), None)
    if unused:
        raise usage_error(
            f"--{unused.replace('_', '-')} is for the connection to a server that runs already, and none is named",
            "--server HOST:PORT names one, and so does EVALD_SERVER; without the option the command starts its own"
            if not inside
            else f"--server HOST:PORT names one; {_INSIDE_OPTIONS[inside]} makes the command start its own",
        )

    _configure_logging()
    fixed = {"listen": "127.0.0.1:0", "http": "", "web": ""}
    settings = load_command_settings(args, **fixed)
    if data_dir and settings.data_dir is None:
        settings = load_command_settings(args, **fixed, data_dir=data_dir)
    app = await start_app(settings)
    try:
        if large_batch:
            app.batch_processes.prepare()
        yield app.address, {"tls": False, "token": ""}
    finally:
        await app.stop(0)


def credentials_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return `tls` and `token` from the command line. None leaves a value to the environment."""
    from evald import Tls

    tls = None
    if args.tls or args.ca or args.cert or args.key:
        said = (args.ca, args.cert, args.key)
        names = ("EVALD_CA_FILE", "EVALD_CERT_FILE", "EVALD_KEY_FILE")
        tls = Tls(*(one or os.environ.get(name) or None for one, name in zip(said, names, strict=True)))
    return {"tls": tls, "token": Path(args.token_file) if args.token_file else None}


def open_channel(address: str, access: "Access", options: list[tuple[str, Any]]) -> "grpc.aio.Channel":
    """Return a channel to a server, encrypted if `access` has credentials."""
    import grpc

    options = [*options, *access.options(address)]
    if access.credentials is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, access.credentials, options)


def _configure_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("evald: %(message)s") if is_debugging() else OneLineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


class OneLineFormatter(logging.Formatter):
    """A log formatter of one line per record: the message and, for an exception, the place that raised it.

    A plugin's traceback is text: the record's `exception`, or the lines of the message after the first.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message, _, trace = record.getMessage().partition("\n")
        trace = getattr(record, "exception", trace)
        text = f"evald: {clean(message)}"
        frames = _FRAME.findall(trace)
        if frames:
            file, line = frames[-1]
            names = _EXCEPTION.findall(trace)
            return f"{text} ({clean(names[-1], 60) if names else 'raised'} at {Path(file).name}:{line})"
        problem = record.exc_info[1] if record.exc_info else None
        last = traceback.extract_tb(problem.__traceback__)[-1:] if problem else []
        if not last:
            return text
        return f"{text} ({type(problem).__name__} at {Path(last[0].filename).name}:{last[0].lineno})"
