"""The examples in other languages: how to build and start them, and their output."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parents[2] / "examples/remote"
WAITING = Path(__file__).with_name("waiting")
# Nothing of the developer's own environment reaches an example. The JVM's better compiler takes longer than it
# saves in programs that run for a second.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("EVALD_")} | {
    "EVALD_WEB": "",
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
}


class Language(NamedTuple):
    """A language's folder of examples.

    tools: programs that have to be there. builds: commands that make it, in
    its folder. plugin, caller: commands that start it. waiting: starts a
    plugin whose one type, "test.wait", takes as long as its config says.
    unit_tests: its own, if any. assertion, metric: the plugin's two types.
    good, bad: answers that the assertion passes and fails under `config`.
    value: what the metric measures in `bad`. caller_fails: a config under
    which it fails the caller's turn. agent: starts an agent, if there is one.
    """

    name: str
    tools: tuple[str, ...]
    builds: tuple[tuple[str, ...], ...]
    plugin: tuple[str, ...]
    caller: tuple[str, ...]
    waiting: tuple[str, ...]
    unit_tests: tuple[str, ...]
    assertion: str
    config: Mapping[str, Any]
    good: str
    bad: str
    metric: str
    value: float
    caller_fails: Mapping[str, Any]
    agent: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name


LANGUAGES = [
    Language(
        name="go",
        tools=("go",),
        builds=(
            ("go", "build", "-o", "bin/", "./pii", "./caller", "./agent"),
            ("go", "build", "-o", "bin/waiting", f"{WAITING}/waiting.go"),
        ),
        plugin=("bin/pii",),
        caller=("bin/caller",),
        waiting=("bin/waiting",),
        unit_tests=("go", "test", "./..."),
        assertion="acme.pii",
        config={"allowedDomains": ["acme.example"]},
        good="Write to help@acme.example, order 4111 1111 1111 1112.",
        bad="It is on 12 4111-1111-1111-1111, Jürgen: jürgen@post.example.",
        metric="acme.pii-count",
        value=2,
        caller_fails={},
        agent=("bin/agent",),
    ),
    Language(
        name="typescript",
        tools=("node", "npm"),
        builds=(("npm", "ci", "--ignore-scripts"), ("npm", "run", "build")),
        plugin=("node", "dist/tone.js"),
        caller=("node", "dist/caller.js"),
        waiting=("node", f"{WAITING}/waiting.js"),
        unit_tests=("npm", "test"),
        assertion="acme.tone",
        config={"forbidden": ["calm down", "как всегда"]},
        good="Of course. I calmed down at once.",
        bad="Now CALM DOWN! Как всегда!",
        metric="acme.exclamations",
        value=2,
        caller_fails={"forbidden": ["you fly"]},
    ),
    Language(
        name="java",
        tools=("java", "mvn"),
        builds=(("mvn", "package"),),
        plugin=("java", "-jar", "target/readability.jar"),
        caller=("java", "-cp", "target/readability.jar", "acme.Caller"),
        waiting=("java", "-cp", "target/readability.jar", f"{WAITING}/Waiting.java"),
        unit_tests=(),
        assertion="acme.sentence-length",
        config={"maxWords": 8},
        good="Short one. Another short one, with eight words here.",
        bad="Short one. This sentence has a rather extraordinarily complicated wording, unfortunately.",
        metric="acme.readability",
        # 11 words in 2 sentences, 5 of them longer than six letters.
        value=11 / 2 + 100 * 5 / 11,
        caller_fails={"maxWords": 3},
    ),
]


def missing_tools(language: Language) -> list[str]:
    """Return the programs that a language needs and that are not installed."""
    return [tool for tool in language.tools if shutil.which(tool) is None]


def build(language: Language) -> str | None:
    """Build a language's examples. Returns the error; None on success."""
    for command in language.builds:
        ended = run(language, command, seconds=480)
        if ended.returncode != 0:
            return f"{' '.join(command)}:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return None


def run(
    language: Language,
    command: Sequence[str],
    seconds: float = 60,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a language's folder to its end."""
    return subprocess.run(
        command,
        cwd=language.folder,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


class Plugin:
    """A running plugin. output: the lines that it has printed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.output: list[str] = []
        self._printed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._printed:
                self.output.append(line.rstrip())
                self._printed.notify_all()

    def line(self, part: str, timeout: float = 30) -> str:
        """Wait for the first line that contains a text."""

        def found() -> str | None:
            return next((line for line in self.output if part in line), None)

        with self._printed:
            self._printed.wait_for(found, timeout)
            line = found()
        assert line is not None, f"no {part!r} in {self.output}"
        return line

    def end(self) -> None:
        """Kill the process if it is still running."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout
        self.process.stdout.close()

    def listening(self) -> str:
        """Return the address on which it listens."""
        return self.line(" listens on ").rpartition(" ")[2]

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(timeout=30)


@contextmanager
def started(
    language: Language,
    *arguments: str,
    waiting: bool = False,
    command: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Plugin]:
    """Run a plugin or another command with arguments; kill it at the end if it is still running."""
    process = subprocess.Popen(
        [*(command or (language.waiting if waiting else language.plugin)), *arguments],
        cwd=language.folder,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    plugin = Plugin(process)
    try:
        yield plugin
    except BaseException:
        print(f"{language.name} printed:", *plugin.output, sep="\n")
        raise
    finally:
        plugin.end()
