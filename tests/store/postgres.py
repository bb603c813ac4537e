"""A PostgreSQL server for tests, in a temporary directory, on a Unix socket."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg


def programs() -> Path | None:
    """Return the folder of initdb and postgres: Debian's newest, on the PATH, or of PyPI's pgserver."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    if there := shutil.which("initdb"):
        return Path(there).parent
    package = importlib.util.find_spec("pgserver")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall/bin"
    return None


class Postgres:
    """A server. `start` and `stop` may be called repeatedly.

    fsync: not needed by tests, which kill processes and not machines.
    """

    def __init__(self, folder: Path, *, fsync: bool = False) -> None:
        self._programs = folder
        self._fsync = "on" if fsync else "off"
        self._folder = Path(tempfile.mkdtemp(prefix="evald-postgres-"))
        # PostgreSQL does not run as root.
        self._user = pwd.getpwnam("postgres" if self._is_user("postgres") else "nobody")
        self._demote = os.geteuid() == 0
        if self._demote:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._run(
            "initdb", "--pgdata", str(self._data), "--username", "evald", "--no-sync", "--auth", "trust"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @staticmethod
    def _is_user(name: str) -> bool:
        try:
            pwd.getpwnam(name)
        except KeyError:
            return False
        return True

    def _start(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        as_user: dict[str, Any] = {}
        if self._demote:
            as_user = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [str(self._programs / program), *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            **as_user,
        )
        return process

    def _run(self, program: str, *arguments: str) -> None:
        process = self._start(program, *arguments)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()

    def start(self) -> None:
        """Start, and wait until the server answers."""
        options = ("-c", "listen_addresses=", "-c", f"fsync={self._fsync}", "-c", "max_connections=50")
        self._process = self._start("postgres", "-D", str(self._data), "-k", str(self._folder), *options)
        until = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert time.monotonic() < until, "PostgreSQL does not start"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Stop at once, ending all sessions."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """Stop, and remove everything."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://evald@/{database}?host={self._folder}"

    def create(self) -> str:
        """Create an empty database, and return its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)
