"""The server's log on standard error: text, or one JSON object per line."""

import json
import logging
import secrets
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from evald.foreign import EvaluatorRaised, raised_by

LogFormat: TypeAlias = Literal["auto", "text", "json"]

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# Loggers of the judge's client and its HTTP libraries. They log every request's address, and the conversation at debug.
_HTTP_CLIENTS: Final = ("openai", "httpx", "httpx2", "httpcore", "httpcore2")


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line: `time` (UTC), `level`, `logger`, `message`, the record's extras, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Writes one line, followed by the traceback of foreign code if the record carries one as text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        trace = getattr(record, "exception", "")
        return f"{super().format(record)}\n{trace}" if trace else super().format(record)


def configure_logging(style: LogFormat, level: str) -> None:
    """Log to standard error. auto: text on a terminal, else JSON."""
    handler = logging.StreamHandler(sys.stderr)
    if style == "json" or (style == "auto" and not sys.stderr.isatty()):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _HTTP_CLIENTS:
        logging.getLogger(name).setLevel(logging.WARNING)


class Incident(NamedTuple):
    """An exception that was logged. id: in the log and in the caller's error. note: what that error says about it."""

    id: str
    note: str


def log_incident(log: logging.Logger, what: str, problem: BaseException) -> Incident:
    """Log an exception that the caller must not see. what: what failed."""
    raised = problem if isinstance(problem, EvaluatorRaised) else raised_by(problem)
    incident = secrets.token_hex(6)
    # Text only: a record with the exception itself would keep the call open.
    log.error("%s (incident %s): %s", what, incident, str(raised), extra={"exception": raised.trace})
    return Incident(incident, f"(incident {incident}; the server's log has the details)")
