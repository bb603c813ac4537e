"""`evald certs dev`: a CA, a server's and a client's certificate, for trying TLS out."""

import argparse
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .exit_codes import CommandError, ExitCode, usage_error

_FILES: Final = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def run(args: argparse.Namespace) -> int:
    """Make the files."""
    folder = Path(args.directory)
    if found := [name for name in _FILES if (folder / name).exists()]:
        raise usage_error(f"{folder / found[0]}: is there already", "name another directory, or remove it")
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *args.names]
    for name in names:
        if not name.isascii() or not name.replace("-", "").replace(".", "").replace(":", "").isalnum():
            raise usage_error(f"--name: got {name!r}, wanted a host name or an address")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Together or not at all.
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _make(Path(place), names, args.days)
            for name in _FILES:
                (Path(place) / name).replace(folder / name)
    except OSError as problem:
        raise usage_error(f"{folder}: {problem.strerror}") from None
    sys.stdout.write(
        f"{folder}: a CA (ca.pem), a server's certificate (server.pem, server.key) for "
        f"{', '.join(dict.fromkeys(names))}, a client's (client.pem, client.key), for {args.days} days\n"
        "For trying out: ca.key can sign for any name, so keep it, or delete it, but do not share it\n"
    )
    return ExitCode.PASSED


def _make(place: Path, names: Sequence[str], days: int) -> None:
    sans = ",".join(dict.fromkeys(map(_san, names)))
    subject = "/O=evald dev"
    _openssl(
        place, "req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.pem", "-days", str(days), "-subj",
        f"{subject}/CN=evald dev CA", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    for name, usage, alternative in (
        ("server", "serverAuth", sans),
        ("client", "clientAuth", "URI:spiffe://evald.dev/client"),
    ):
        _openssl(
            place, "req", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"{subject}/CN={name}"
        )  # fmt: skip
        (place / "extensions").write_text(
            f"subjectAltName={alternative}\nextendedKeyUsage={usage}\nbasicConstraints=critical,CA:FALSE\n"
            "keyUsage=critical,digitalSignature\n"
        )
        _openssl(
            place, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", str(days), "-extfile", "extensions",
        )  # fmt: skip
    for name in _FILES:
        (place / name).chmod(0o600 if name.endswith(".key") else 0o644)


def _san(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _openssl(place: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise CommandError(
            ExitCode.USAGE,
            "evald certs needs the program openssl, which is not there",
            "apt-get install openssl",
        )
    before = os.umask(0o077)
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and names are checked
            [program, *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        os.umask(before)
    if done.returncode:
        raise CommandError(ExitCode.USAGE, f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
