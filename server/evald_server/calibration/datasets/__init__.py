"""Files of labelled cases: in evald's own format, and in those of public data sets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from evald_server.calibration.cases import Case

from . import labelled, llmbar, pandalm, tau2
from .records import BadCases, Record, read_records


class Format(NamedTuple):
    """A way to write labelled cases.

    fits: whether a record is one of these. read: the cases in the records; a record without a usable
    label gives none. Raises BadCases.
    """

    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Sequence[Record]], Iterable[Case]]


# The first one that fits is taken, so evald's own, which refuses what it does not know, comes last.
FORMATS: Final[dict[str, Format]] = {
    "llmbar": Format(llmbar.fits, llmbar.read),
    "pandalm": Format(pandalm.fits, pandalm.read),
    "tau2": Format(tau2.fits, tau2.read),
    "evald": Format(labelled.fits, labelled.read),
}


class CaseFile(NamedTuple):
    """What a file holds. left_out: records without a usable label, such as ties."""

    name: str
    cases: list[Case]
    left_out: int


def read_cases(path: Path, format_name: str | None = None) -> CaseFile:
    """The labelled cases of a file, JSON Lines or a JSON list.

    format_name: one of FORMATS; None takes the one that the first record has. Raises BadCases.
    """
    records = read_records(path)
    name = format_name or next(
        (name for name, found in FORMATS.items() if found.fits(records[0].data)), "evald"
    )
    cases = list(FORMATS[name].read(records))
    units = tau2.conversations(records) if name == "tau2" else len(records)
    if not cases:
        raise BadCases(f"{path}: none of {units} records has a usable label")
    return CaseFile(path.name, cases, units - len(cases))


__all__ = ["FORMATS", "BadCases", "CaseFile", "Format", "read_cases"]
