"""Rules for TLS: a plugin accepts only peers that prove their identity."""

import asyncio
import socket
import ssl
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc

from evald_server.dev_certificates import OpensslProblem, make_certificates

from ..link import PluginGone
from ..rules import CONNECT, TARGET, NotTestable, RuleBroken, Severity, Trial, rule

_HANDSHAKE_SECONDS: Final = 5.0


@rule("EV70", "The plugin does not connect to a server with a certificate from another CA.", CONNECT)
async def _refuses_another_ca(trial: Trial) -> None:
    link = trial.session
    if link.tls is None:
        raise NotTestable("needs TLS; give --cert and --key")
    host, _, port = link.address.rpartition(":")
    host = host.strip("[]")
    try:
        context = await asyncio.to_thread(_context_of_another_ca, host)
    except OpensslProblem as problem:
        raise NotTestable(str(problem)) from None
    count = len(link.streams)
    await link.go_away()
    try:
        accepted = await asyncio.to_thread(_next_accepts, context, (host, int(port)), trial.timeouts.back)
    except TimeoutError:
        raise RuleBroken(f"the plugin did not dial again within {trial.timeouts.back:g}s") from None
    except OSError as problem:
        raise NotTestable(f"the kit cannot listen at {link.address} again: {problem.strerror}") from None
    finally:
        await link.open()
    try:
        await link.arrived(trial.timeouts.back, after=count)
    except PluginGone:
        raise RuleBroken(
            f"the plugin did not connect within {trial.timeouts.back:g}s after the right server was back"
        ) from None
    if accepted:
        raise RuleBroken(
            "the plugin continues with a server whose certificate is from a CA that it does not trust"
        )


@rule("EV71", "Callers without a certificate get no answer.", TARGET, severity=Severity.SHOULD)
async def _wants_a_certificate(trial: Trial) -> None:
    tls = trial.target.tls
    if tls is None or tls.cert is None:
        raise NotTestable("needs TLS with a certificate of the caller; give --cert and --key")
    async with trial.target.channel_with(replace(tls, cert=None, key=None)) as channel:
        try:
            await trial.target.describe(channel)
        except grpc.aio.AioRpcError as problem:
            if problem.code() is not grpc.StatusCode.UNAVAILABLE:
                raise RuleBroken(
                    f"the plugin answers a caller without a certificate with {problem.code().name}"
                ) from None
            return
    raise RuleBroken("the plugin answers a caller without a certificate")


def _context_of_another_ca(name: str) -> ssl.SSLContext:
    """Return the TLS context of a server with that name, with a certificate that no client has reason to trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Without ALPN some clients would disconnect for that reason, and not because of the certificate.
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), ["localhost", "127.0.0.1", "::1", name], days=1)
        context.load_cert_chain(Path(folder, "server.pem"), Path(folder, "server.key"))
    return context


def _next_accepts(context: ssl.SSLContext, address: tuple[str, int], seconds: float) -> bool:
    """Return whether the next client accepts the certificate. Raises TimeoutError if no client connects in time."""
    begun = False

    def begin(*_: Any) -> None:
        nonlocal begun
        begun = True

    context.sni_callback = begin
    end = time.monotonic() + seconds
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.create_server(address, family=family) as listener:
        while True:
            listener.settimeout(max(0.0, end - time.monotonic()) or 1e-3)
            connection, _ = listener.accept()
            connection.settimeout(_HANDSHAKE_SECONDS)
            with connection:
                try:
                    # This succeeds only when the client has accepted the certificate and continues.
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:  # of which ssl.SSLError is one
                    # A connection that ends before its first message shows nothing about the certificate.
                    if begun:
                        return False
                else:
                    return True
