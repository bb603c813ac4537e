"""Create a CA, a server certificate and a client certificate with the program openssl, for trying out TLS."""

import ipaddress
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FILES: Final = ("ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key")
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class OpensslProblem(Exception):
    """The certificates could not be created. The message names the reason."""


def make_certificates(place: Path, names: Iterable[str], days: int) -> None:
    """Write FILES to an empty directory. names: the server's host names and addresses. Raises OpensslProblem, OSError."""
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
    for name in FILES:
        (place / name).chmod(0o600 if name.endswith(".key") else 0o644)


def _san(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _openssl(place: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise OpensslProblem("the program openssl was not found; install it")
    before = os.umask(0o077)
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and names are checked
            [program, *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        os.umask(before)
    if done.returncode:
        raise OpensslProblem(f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
