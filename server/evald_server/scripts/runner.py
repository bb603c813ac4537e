"""Runs the scripts of a server: checks the policy, limits concurrency, isolates, redacts secrets."""

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from evald_server.auth.current_call import caller
from evald_server.config import Settings
from evald_server.fair_slots import FairSlots

from . import isolation
from .policy import BASE_ENVIRONMENT, AllowedCommand, AllowList, CommandNotAllowed, added_variables
from .process import LaunchRequest, ScriptExit, ScriptProcesses

_SHELL: Final = "/bin/sh"

_FILE_BYTES: Final = 16 << 20
_OPEN_FILES: Final = 256

# Runtimes reserve more addresses than they use: Node.js 20 starts with 1 GiB of addresses, but not with half of that.
_ADDRESS_FACTOR: Final = 4

# Shorter values occur in any text by chance.
_SHORTEST_SECRET: Final = 6
_REDACTED: Final = b"[redacted]"


class ScriptsBusy(Exception):
    """No slot became free in time."""


class ScriptCommand(NamedTuple):
    """A command that may run.

    argv: absolute path and arguments. shown: the command as the caller wrote it. allowed: the operator's entry; None
    for a shell. cwd: an absolute path.
    """

    argv: Sequence[str]
    shown: Sequence[str]
    allowed: AllowedCommand | None
    cwd: str


class ScriptRunner:
    """Runs the scripts of one server. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for settings that this machine cannot enforce."""
        self.settings = settings
        self._commands = AllowList(settings.code_allow)
        self._processes = ScriptProcesses()
        self._slots = FairSlots(settings.code_concurrency)
        self._variables = added_variables(settings.code_environment)
        self.unavailable = self._why_unavailable()
        """The reason why scripts cannot run on this server; "" when they can."""

    @property
    def allows_any(self) -> bool:
        """Whether the operator allows any script."""
        return bool(self._commands) or self.settings.code_shell

    def _why_unavailable(self) -> str:
        if not self.allows_any:
            return (
                "scripts are disabled on this server; the operator allows each script with the "
                "setting code_allow (EVALD_CODE_ALLOW, --allow-code)"
            )
        if sys.platform != "linux":
            return "scripts run on Linux only"
        if not self.settings.code_directory.is_dir():
            raise ValueError(f"code_directory: {self.settings.code_directory} is not a directory")
        if self.settings.code_isolation == "bubblewrap" and (problem := isolation.bubblewrap_problem()):
            return (
                f"scripts run isolated by bubblewrap (setting code_isolation), but {problem}, or write "
                'code_isolation = "none" (EVALD_CODE_ISOLATION=none): scripts then reach the network and every '
                "file that their user may"
            )
        return ""

    def command(self, words: Sequence[str], cwd: str | None) -> ScriptCommand:
        """Return the allowed command. Raises CommandNotAllowed, and ValueError for a directory that is not allowed."""
        allowed = self._commands.find(words[0])
        return ScriptCommand([allowed.path, *words[1:]], words, allowed, self._directory(cwd))

    def shell(self, script: str, cwd: str | None) -> ScriptCommand:
        """Return the shell with this script. Raises like `command`."""
        if not self.settings.code_shell:
            raise CommandNotAllowed(
                "it needs a shell, which the operator does not allow (setting code_shell); "
                "write the command as a list of words"
            )
        return ScriptCommand([_SHELL, "-c", script], [script], None, self._directory(cwd))

    async def run(
        self,
        command: ScriptCommand,
        write_payload: Callable[[], bytes],
        seconds: float,
        deadline: float | None,
    ) -> ScriptExit:
        """Run a command for at most `seconds`. Cancelling kills it.

        write_payload: returns its standard input. It is called in a thread, because a long conversation takes seconds,
        and only once there is a slot, so that few payloads are in memory.
        deadline: `time.monotonic()` by which the command must have ended, including the wait for a slot; None for none.
        Raises ScriptsBusy, and CommandChanged if the file is no longer the allowed one.
        """
        principal = caller().name
        try:
            async with asyncio.timeout(_left(deadline)):
                await self._slots.acquire(principal)
        except TimeoutError:
            raise ScriptsBusy from None
        try:
            if command.allowed is not None:
                command.allowed.verify()
            payload = await asyncio.to_thread(write_payload)
            left = _left(deadline)
            seconds = seconds if left is None else min(seconds, left)
            ended = await self._processes.run(
                self._launch_request(command, seconds), payload, seconds, self.settings.code_output_bytes
            )
        finally:
            self._slots.release(principal)
        secrets = self._variables.values()
        return ended._replace(
            stdout=_redacted(ended.stdout, secrets), stderr=_redacted(ended.stderr, secrets)
        )

    async def aclose(self) -> None:
        """Kill all scripts and wait for their end."""
        await self._processes.aclose()

    def _directory(self, cwd: str | None) -> str:
        top = self.settings.code_directory.resolve()
        if cwd is None:
            return str(top)
        wanted = (top / cwd).resolve()
        if top == Path("/") or not wanted.is_relative_to(top):
            raise ValueError(
                "scripts run in the directory that the operator has set (code_directory), or below it"
            )
        return str(wanted)

    def _launch_request(self, command: ScriptCommand, seconds: float) -> LaunchRequest:
        settings = self.settings
        prefix: Sequence[str] = ()
        if settings.code_isolation == "bubblewrap":
            readable = [*settings.code_read]
            if settings.code_directory != Path("/"):  # the default: everything must not become readable
                readable.append(str(settings.code_directory))
            if command.allowed is not None:
                readable.append(command.allowed.path)
            prefix = isolation.bubblewrap(readable, command.cwd)
        return LaunchRequest(
            file=command.argv[0],
            argv=[*prefix, *command.argv],
            cwd=command.cwd,
            environment={**BASE_ENVIRONMENT, **self._variables},
            limits={
                "processor_seconds": math.ceil(seconds) + 1,
                "data_bytes": settings.code_memory_bytes,
                "address_bytes": settings.code_memory_bytes * _ADDRESS_FACTOR,
                "file_bytes": _FILE_BYTES,
                "open_files": _OPEN_FILES,
                # The kernel counts by user, so concurrent scripts share this limit.
                "tasks": settings.code_processes * settings.code_concurrency,
                "core_bytes": 0,
            },
            user=isolation.script_user(),
        )


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _redacted(data: bytes, secrets: Iterable[str]) -> bytes:
    """Replace secret values."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            data = data.replace(secret.encode(), _REDACTED)
    return data
