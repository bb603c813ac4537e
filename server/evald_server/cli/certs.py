"""`evald certs dev`: make a CA, a server's and a client's certificate, for trying TLS out."""

import argparse
import socket
import sys
import tempfile
from pathlib import Path

from evald_server.dev_certificates import FILES, OpensslProblem, make_certificates

from .exit_codes import CommandError, ExitCode, usage_error


def run(args: argparse.Namespace) -> int:
    """Make the files."""
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
