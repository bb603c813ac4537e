"""The `code` evaluator: a script of the operator judges the turn."""

import asyncio
import hashlib
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import Field, PositiveFloat

from evald.context import EvaluatorContext
from evald.contract import violation
from evald.evaluator import Evaluate, Evaluator, EvaluatorDefinition, InvalidConfig
from evald.result import ASSERTION, Kind, Result, errored
from evald.scope import current_scope
from evald.strict_json import TooLarge

from .policy import CommandChanged, CommandNotAllowed
from .process import ScriptExit
from .runner import ScriptCommand, ScriptRunner, ScriptsBusy
from .stdin import payload_of, written
from .stdout import PASS_SCORE, InvalidOutput, read_output

# Linux limits an argument to 128 KiB; this is a quarter of it.
_MAX_COMMAND_BYTES: Final = 32 << 10

# Twice the largest request by default, because the payload contains the conversation twice.
_MAX_PAYLOAD_BYTES: Final = 32 << 20

# Reserved from the call's time, to report a timeout together with the script's stderr.
_REPORT_SECONDS: Final = 0.02

_HINT: Final = (
    ". In isolation, the script's interpreter and what it loads must be among the system's programs, "
    "or in the setting code_read"
)

_MAX_STDERR_CHARACTERS: Final = 2000

# Terminal control: CSI and OSC sequences, and escapes of one character.
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_SHELL_SYNTAX: Final = frozenset("|&;<>()$`*?[]{}~#!\n")


class Code(
    Evaluator,
    type="code",
    kind=ASSERTION,
    label="Code",
    aliases={"script": {}, "code-judge": {}},
    deterministic=False,
):
    """A script that the operator allows judges the turn: it reads JSON from standard input and writes JSON to
    standard output."""

    command: list[str] | None = Field(
        None,
        min_length=1,
        description="The command and its arguments; the command by its path or file name, as the "
        "operator allows it.",
    )
    script: str | list[str] | None = Field(
        None,
        min_length=1,
        description="The command in AgentV's form: a list, or a string, which is split into words, "
        "or run by a shell if the operator allows one.",
    )
    cwd: str | None = Field(
        None, description="Working directory: the one that the operator has set, or a directory below it."
    )
    timeout_ms: PositiveFloat | None = Field(
        None, description="Time limit of the script, in milliseconds. Default: the operator's limit."
    )
    threshold: float = Field(
        PASS_SCORE,
        gt=0,
        le=1,
        description="Minimum score that passes. A script that gives a verdict as well must not contradict it.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Passed to the script unchanged, under the key `config`."
    )

    def prepare(self) -> None:
        """Check that there is either command or script, within the limits; the schema cannot express this."""
        if (self.command is None) == (self.script is None):
            raise ValueError("wanted exactly one of command and script")
        words = self.command or self.script or ()
        if sum(len(word.encode("utf-8", "replace")) + 1 for word in words) > _MAX_COMMAND_BYTES:
            raise ValueError(f"the command is longer than {_MAX_COMMAND_BYTES} bytes")
        if any("\0" in word for word in words):
            raise ValueError("a word of the command contains a NUL character")


def code_definition(scripts: ScriptRunner) -> EvaluatorDefinition:
    """Return the `code` evaluator of a server. If scripts cannot run, it gives the reason and refuses every config."""
    definition = Code.definition()
    why = scripts.unavailable

    def compile_config(config: Mapping[str, Any]) -> Evaluate:
        code = Code.from_config(config)
        if why:
            raise InvalidConfig.at("", why)
        return CodeCheck(scripts, code).evaluate

    note = (
        f"Not available: {why}." if why else f"Isolation on this server: {scripts.settings.code_isolation}."
    )
    return definition._replace(description=f"{definition.description} {note}", compile=compile_config)


class CodeCheck:
    """A compiled config. config: the config itself."""

    def __init__(self, scripts: ScriptRunner, code: Code) -> None:
        """Raises InvalidConfig for a command that the operator does not allow."""
        self._scripts = scripts
        self.config = code
        self._command = _command(scripts, code)
        longest = scripts.settings.code_timeout
        self._seconds = longest if code.timeout_ms is None else min(longest, code.timeout_ms / 1000)

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        """Run the script on the turn."""
        evidence: dict[str, Any] = {
            "command": list(self._command.shown),
            "isolation": self._scripts.settings.code_isolation,
        }

        def write_payload() -> bytes:
            payload = payload_of(ctx, self.config.config)
            data = written(payload)
            if len(data) > _MAX_PAYLOAD_BYTES:
                raise TooLarge(
                    f"The script's input has {len(data)} bytes, wanted at most {_MAX_PAYLOAD_BYTES}"
                )
            evidence.update(
                payload_keys=list(payload),
                payload_bytes=len(data),
                payload_sha256=hashlib.sha256(data).hexdigest(),
            )
            return data

        result = await self._run(write_payload)
        result.raw_request = evidence
        return result

    async def _run(self, write_payload: Callable[[], bytes]) -> Result:
        deadline = current_scope().deadline
        if deadline is not None:
            deadline -= _REPORT_SECONDS
        try:
            ended = await self._scripts.run(self._command, write_payload, self._seconds, deadline)
        except TooLarge as problem:
            return errored("INPUT_TOO_LARGE", str(problem))
        except ScriptsBusy:
            slots = self._scripts.settings.code_concurrency
            return errored(
                "EVALUATOR_BUSY",
                f"No slot became free in time: at most {slots} scripts run at a time (setting "
                "code_concurrency)",
            )
        except CommandChanged as problem:
            return errored("SCRIPT_FAILED", f"The script was not run: {problem}")
        # In a thread, because a megabyte of empty objects takes half a second.
        return await asyncio.to_thread(self._result, ended)

    def _result(self, ended: ScriptExit) -> Result:
        isolation = self._scripts.settings.code_isolation
        if isolation == "bubblewrap" and ended.code == 1 and ended.stderr.startswith(b"bwrap: "):
            ended = ended._replace(problem="bubblewrap could not execute it", stderr=b"")
        if ended.problem:
            hint = "" if isolation == "none" else _HINT
            return errored(
                "SCRIPT_FAILED", _with_stderr(f"The script did not run: {ended.problem}{hint}", ended)
            )
        if ended.timed_out:
            return errored(
                "TIMEOUT", _with_stderr(f"The script was killed after {ended.seconds:.3g}s", ended)
            )
        most = self._scripts.settings.code_output_bytes
        if ended.excess:
            code = "SCRIPT_OUTPUT_INVALID" if ended.excess == "stdout" else "SCRIPT_FAILED"
            return errored(
                code,
                _with_stderr(
                    f"The script was killed: it wrote more than {most} bytes to {ended.excess}", ended
                ),
            )
        if ended.code:
            return errored("SCRIPT_FAILED", _with_stderr(f"The script {_exit(ended.code)}", ended))
        try:
            result = read_output(ended.stdout, self.config.threshold)
            if (problem := violation(Kind.ASSERTION, result)) is None:
                return result
            code = "SCRIPT_OUTPUT_INVALID"
        except InvalidOutput as found:
            problem, code = str(found), found.code
        return errored(
            code, _with_stderr(f"The script's standard output is not a valid result: {problem}", ended)
        )


def _command(scripts: ScriptRunner, code: Code) -> ScriptCommand:
    key, words = ("command", code.command) if code.command is not None else ("script", code.script)
    assert words is not None
    shell = isinstance(words, str) and (scripts.settings.code_shell or bool(_SHELL_SYNTAX & set(words)))
    if isinstance(words, str) and not shell:
        try:
            words = shlex.split(words)
        except ValueError as problem:
            raise InvalidConfig.at(f"/{key}", f"cannot be split into words: {problem}") from None
    try:
        # If the text has shell syntax and no shell is allowed, `shell` raises the error that says so.
        return scripts.shell(str(words), code.cwd) if shell else scripts.command(list(words), code.cwd)
    except CommandNotAllowed as problem:
        raise InvalidConfig.at(f"/{key}", str(problem)) from None
    except ValueError as problem:
        raise InvalidConfig.at("/cwd", str(problem)) from None


def _exit(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hints = {
        signal.SIGXCPU: ", because it used up its processor time",
        signal.SIGXFSZ: ", because a file that it wrote became too large",
    }
    return f"was ended by {name}{hints.get(-code, '')}"  # type: ignore[call-overload]


def _with_stderr(what: str, ended: ScriptExit) -> str:
    said = stderr_tail(ended.stderr)
    return f"{what}: {said}" if said else what


def stderr_tail(data: bytes) -> str:
    """Return the last 2,000 characters, without control characters and terminal sequences."""
    text = _SEQUENCE.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    text = _CONTROL.sub("", text).strip()
    return text if len(text) <= _MAX_STDERR_CHARACTERS else "…" + text[-_MAX_STDERR_CHARACTERS:]
