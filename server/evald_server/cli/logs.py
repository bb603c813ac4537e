"""What a command says on standard error of a server that runs inside it."""

import logging
import traceback
from pathlib import Path

from .exits import is_debugging
from .plain import clean


class BriefFormatter(logging.Formatter):
    """One line: the message, and for an exception where it was raised."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        text = clean(record.getMessage())
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
