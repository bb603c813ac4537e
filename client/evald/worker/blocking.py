"""Blocking calls that run a worker until Ctrl-C or SIGTERM."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TypedDict, Unpack

import grpc

from ..credentials import Tls, Token
from ..errors import EvaldError
from .connecting import first_of
from .dialling import DiallingWorker
from .listening import ListeningWorker
from .offer import AnyEvaluator


class WorkerOptions(TypedDict, total=False):
    """The options of every worker."""

    name: str
    version: str
    max_concurrency: int
    grace_seconds: float
    tls: Tls | bool | None
    token: Token | None
    insecure: bool
    credentials: grpc.ChannelCredentials
    metadata: Mapping[str, str]


class ListeningOptions(WorkerOptions, total=False):
    """The options of `ListeningWorker`."""

    listen: str
    register: str | None
    advertise: str | None
    listen_credentials: grpc.ServerCredentials
    insecure_public: bool
    tls_profile: str


class DiallingOptions(WorkerOptions, total=False):
    """The options of `DiallingWorker`."""

    server: str | None


def serve(*evaluators: AnyEvaluator, **options: Unpack[ListeningOptions]) -> None:
    """Listen and evaluate until Ctrl-C or SIGTERM, then finish open tasks.

    evaluators, options: as in `ListeningWorker`, for example `listen="127.0.0.1:50061"`,
        `register="127.0.0.1:50051"`.

    Logs to standard error, unless logging is configured.

    Raises ValueError and TypeError for invalid arguments, and OSError for an address that cannot be bound. If the
    server rejects the registration permanently, logs the EvaldError and raises SystemExit with code 1 and the error
    as its `__cause__`.
    """
    _run(ListeningWorker(*evaluators, own_loop=True, **options))


def connect(*evaluators: AnyEvaluator, **options: Unpack[DiallingOptions]) -> None:
    """Dial a server and evaluate for it until Ctrl-C or SIGTERM, then finish open tasks. Reconnects.

    evaluators, options: as in `DiallingWorker`, for example `server="127.0.0.1:50051"`.

    Logs to standard error, unless logging is configured.

    Raises ValueError and TypeError for invalid arguments. If the server rejects the worker permanently, logs the
    EvaldError and raises SystemExit with code 1 and the error as its `__cause__`.
    """
    _run(DiallingWorker(*evaluators, own_loop=True, **options))


def _run(worker: ListeningWorker | DiallingWorker) -> None:
    _log_by_default()
    try:
        asyncio.run(_run_until_signal(worker))
    except EvaldError as refusal:
        # Already logged; a traceback would only hide the message.
        raise SystemExit(1) from refusal


async def _run_until_signal(worker: ListeningWorker | DiallingWorker) -> None:
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    # Python delivers signals only to the main thread.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            loop.add_signal_handler(number, signalled.set)
    async with worker:
        await first_of(worker.wait(), signalled.wait())
        if signalled.is_set():
            # A second signal ends the process at once.
            for number in signals:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)


def _log_by_default() -> None:
    """Log to standard error if logging is not configured: a worker without output appears stuck."""
    log = logging.getLogger("evald")
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
