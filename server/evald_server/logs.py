"""The server's own log, on standard error: text for people, a JSON object a line for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["auto", "text", "json"]

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# The judge's client and its HTTP libraries: one line per request for each, with its address, and at level debug
# the conversation in it.
_CLIENTS: Final = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


class JsonFormatter(logging.Formatter):
    """A JSON object a line: `time` (UTC), `level`, `logger`, `message`, the record's extras, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """A line for people, and below it the traceback of foreign code where the record has one as text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        trace = getattr(record, "exception", "")
        return f"{super().format(record)}\n{trace}" if trace else super().format(record)


def configure_logging(style: LogFormat, level: str) -> None:
    """Log to standard error. auto: text on a terminal, JSON elsewhere."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json" or (style == "auto" and not sys.stderr.isatty()):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)
