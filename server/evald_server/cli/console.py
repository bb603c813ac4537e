"""Terminal output with Rich: two consoles, lines, error messages, progress bars and tables."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TextIO

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

# Width without a terminal. Rich's default of 80 columns would wrap most reasons.
_FILE_WIDTH = 120


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again for `main`. Rich would exit with code 1, which means that a conversation failed."""
        raise  # noqa: PLE0704 - called while the error is handled


def _console(stream: TextIO, *, stderr: bool) -> Console:
    if hasattr(stream, "reconfigure"):
        # Escape what the terminal's encoding cannot represent.
        stream.reconfigure(errors="backslashreplace")
    width = None
    if not stream.isatty() and not os.environ.get("COLUMNS"):
        width = _FILE_WIDTH
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


@lru_cache(maxsize=1)
def out() -> Console:
    """Return the console of standard output, for reports."""
    return _console(sys.stdout, stderr=False)


@lru_cache(maxsize=1)
def err() -> Console:
    """Return the console of standard error, for progress and error messages."""
    return _console(sys.stderr, stderr=True)


@contextmanager
def progress_bar(
    what: str, text: str, total: int | None, *, hidden: bool = False, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a progress bar during a block, if standard error is a terminal.

    what: text before the bar. text: text after the bar, with `{task.fields[NAME]}` for fields. fields: initial values.

    Yields a function that updates the bar: it takes `advance` and fields.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if hidden or not err().is_terminal:
        yield lambda **_: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(text),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err(), transient=True) as bar:
        yield partial(bar.update, bar.add_task(what, total=total, **fields))


def say(*parts: str | tuple[str, str]) -> None:
    """Print texts and (text, style) pairs as one line. The line never wraps, so that grep finds all of it."""
    out().print(Text.assemble(*parts), soft_wrap=True)


def show(*parts: RenderableType) -> None:
    """Print tables and other renderables to standard output."""
    for part in parts:
        out().print(part)


def warn(message: str, hint: str = "") -> None:
    """Print an error message to standard error."""
    err().print(Text.assemble(("evald: ", "bold red"), message), soft_wrap=True)
    if hint:
        err().print(Text.assemble(("  hint: ", "bold"), hint), soft_wrap=True)


def new_table(*columns: str | tuple[str, str]) -> Table:
    """Return an empty table.

    columns: headings, or (heading, alignment). Only the last column wraps and takes the remaining width.
    """
    table = Table(box=box.ROUNDED, header_style="bold")
    for position, column in enumerate(columns, start=1):
        name, side = column if isinstance(column, tuple) else (column, "left")
        justify: JustifyMethod = "right" if side == "right" else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=position < len(columns))
    return table
