"""The terminal: colours only where they can be seen."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

# Reports in logs have room for a reason; 80 columns break most of them.
_LOG_WIDTH = 120


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave a closed pipe to `main`: Rich would exit with 1, which says that a conversation failed."""
        raise  # noqa: PLE0704 - called while the error is handled


def _console(stream: TextIO, *, stderr: bool) -> Console:
    if hasattr(stream, "reconfigure"):
        # A terminal in another encoding shows escapes instead of ending the command.
        stream.reconfigure(errors="backslashreplace")
    width = None
    if not stream.isatty() and not os.environ.get("COLUMNS"):
        width = _LOG_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


@lru_cache(maxsize=1)
def out() -> Console:
    """Standard output: reports."""
    return _console(sys.stdout, stderr=False)


@lru_cache(maxsize=1)
def err() -> Console:
    """Standard error: progress and complaints."""
    return _console(sys.stderr, stderr=True)


def while_shown(bar: "Progress") -> AbstractContextManager[object]:
    """The bar as a block's context. One that is disabled stays out of it: older versions of Rich end it with
    an empty line."""
    return nullcontext() if bar.disable else bar


def say(*parts: str | tuple[str, str]) -> None:
    """Print one line out of texts and (text, style) pairs. It never wraps, so that it can be grepped."""
    out().print(Text.assemble(*parts), soft_wrap=True)


def show(*parts: RenderableType) -> None:
    """Print tables and the like to standard output."""
    for part in parts:
        out().print(part)


def warn(message: str, hint: str = "") -> None:
    """Print a complaint to standard error."""
    err().print(Text.assemble(("evald: ", "bold red"), message), soft_wrap=True)
    if hint:
        err().print(Text.assemble(("  hint: ", "bold"), hint), soft_wrap=True)
