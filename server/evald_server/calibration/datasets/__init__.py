"""Files of labelled cases, in evald's own format and in those of public datasets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from evald_server.calibration.cases import Case

from . import labelled, llmbar, pandalm, tau2
from .records import BadCases, CaseRecord, read_records


class CaseFormat(NamedTuple):
    """A file format of labelled cases.

    fits: whether a record has this format. read: converts records to cases, without records that have no
    usable label. Raises BadCases.
    """

    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Sequence[CaseRecord]], Iterable[Case]]


# The first format that fits is used. evald's own format, which refuses unknown keys, is last.
FORMATS: Final[dict[str, CaseFormat]] = {
    "llmbar": CaseFormat(llmbar.fits, llmbar.read),
    "pandalm": CaseFormat(pandalm.fits, pandalm.read),
    "tau2": CaseFormat(tau2.fits, tau2.read),
    "evald": CaseFormat(labelled.fits, labelled.read),
}


class CaseFile(NamedTuple):
    """The content of a file. left_out: records without a usable label, such as ties."""

    name: str
    cases: list[Case]
    left_out: int


def read_cases(path: Path, format_name: str | None = None) -> CaseFile:
    """Read the labelled cases of a file, JSON Lines or a JSON list.

    format_name: one of FORMATS; None detects it from the first record.
    Raises BadCases.
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


__all__ = ["FORMATS", "BadCases", "CaseFile", "CaseFormat", "read_cases"]
