"""What a command says on standard error of a server that runs inside it."""

import logging
import re
import traceback
from pathlib import Path
from typing import Final

from .exits import is_debugging
from .plain import clean

# A frame as a traceback writes it.
_FRAME: Final = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)

# What was raised, as the last line of a traceback begins.
_KIND: Final = re.compile(r"^(?:\w+\.)*(\w+)(?=:|$)", re.MULTILINE)


class BriefFormatter(logging.Formatter):
    """One line: the message, and for an exception where it was raised.

    The traceback of foreign code is text: the record's `exception`, or what follows the message's first line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message, _, trace = record.getMessage().partition("\n")
        trace = getattr(record, "exception", trace)
        text = clean(message)
        found = _FRAME.findall(trace)
        if found:
            file, line = found[-1]
            kinds = _KIND.findall(trace)
            return (
                f"evald: {text} ({clean(kinds[-1], 60) if kinds else 'raised'} at {Path(file).name}:{line})"
            )
        problem = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(problem.__traceback__) if problem else []
        if not frames:
            return f"evald: {text}"
        return f"evald: {text} ({type(problem).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno})"


def log_briefly() -> None:
    """Tell the user of a server inside a command what an evaluator's author has to know."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("evald: %(message)s") if is_debugging() else BriefFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
