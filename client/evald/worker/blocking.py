"""Serving evaluators from a program that does nothing else: a call that blocks until it is told to stop."""

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TypedDict, Unpack

import grpc

from ..errors import EvaldError
from .dialling import DiallingWorker
from .listening import ListeningWorker
from .offer import AnyEvaluator


class ListeningOptions(TypedDict, total=False):
    """What `ListeningWorker` takes."""

    listen: str
    register: str | None
    advertise: str | None
    name: str
    version: str
    max_concurrency: int
    grace_seconds: float
    listen_credentials: grpc.ServerCredentials
    insecure_public: bool
    credentials: grpc.ChannelCredentials
    metadata: Mapping[str, str]
    tls_profile: str


class DiallingOptions(TypedDict, total=False):
    """What `DiallingWorker` takes."""

    server: str | None
    name: str
    version: str
    max_concurrency: int
    grace_seconds: float
    credentials: grpc.ChannelCredentials
    metadata: Mapping[str, str]


def serve(*evaluators: AnyEvaluator, **options: Unpack[ListeningOptions]) -> None:
    """Listen, and evaluate for the servers that dial, until Ctrl-C or SIGTERM; then finish what is open.

    evaluators, options: as for `ListeningWorker`, for example `listen="127.0.0.1:50061"`,
        `register="127.0.0.1:50051"`.
    Says on standard error what happens, unless logging is configured.
    Raises ValueError and TypeError for arguments that cannot be used, OSError for an address that
    cannot be had, and SystemExit with code 1, after it has said why, when the server refuses the
    registration for good; its `__cause__` is the EvaldError.
    """
    _run(ListeningWorker(*evaluators, own_loop=True, **options))


def connect(*evaluators: AnyEvaluator, **options: Unpack[DiallingOptions]) -> None:
    """Dial a server and evaluate for it until Ctrl-C or SIGTERM; then finish what is open.

    Connects again by itself whenever the server comes back.

    evaluators, options: as for `DiallingWorker`, for example `server="127.0.0.1:50051"`.
    Says on standard error what happens, unless logging is configured.
    Raises ValueError and TypeError for arguments that cannot be used, and SystemExit with code 1, after
    it has said why, when the server refuses the worker for good; its `__cause__` is the EvaldError.
    """
    _run(DiallingWorker(*evaluators, own_loop=True, **options))


def _run(worker: ListeningWorker | DiallingWorker) -> None:
    _log_by_default()
    try:
        asyncio.run(_until_told(worker))
    except EvaldError as refusal:
        # It is in the log, with what to do. A traceback of evald's insides would only hide that.
        raise SystemExit(1) from refusal


async def _until_told(worker: ListeningWorker | DiallingWorker) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    # Signals reach the main thread alone; elsewhere the program that started the thread decides.
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            loop.add_signal_handler(number, told.set)
    async with worker:
        stopped = asyncio.create_task(worker.wait())
        asked = asyncio.create_task(told.wait())
        await asyncio.wait((stopped, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if stopped.done():
            stopped.result()
        stopped.cancel()
        if told.is_set():
            # The second one ends the process at once.
            for number in signals:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)


def _log_by_default() -> None:
    """Show what happens to who has configured nothing: a worker that says nothing looks stuck."""
    log = logging.getLogger("evald")
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
