"""What is wrong with evaluators, told by the words that the user wrote them in."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .specs import SpecSet

if TYPE_CHECKING:
    from evald import AsyncClient

_INDEX = re.compile(r"evaluators\[(\d+)\]\.?")

# A server's message begins with the field by its number, which says less than `place` and `path`.
_FIELD = re.compile(r"evaluators\[\d+\][^:\s]*: ")


@dataclass(frozen=True)
class Violation:
    """One thing wrong with one evaluator.

    place: where the user wrote it. path: JSON Pointer into the spec. reason:
    stable code, for example UNKNOWN_TYPE.
    """

    index: int
    place: str
    path: str
    reason: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        where = self.path.strip("/").replace("/", ".")
        return f"{self.place}: {where}: {self.message}" if where else f"{self.place}: {self.message}"


async def find_violations(client: "AsyncClient", specs: SpecSet) -> list[Violation]:
    """Everything that is wrong with the evaluators; nothing runs."""
    from evald import InvalidInput

    try:
        found = await client.validate(specs.specs)
    except InvalidInput as problem:
        # Found before anything was sent; the path names the spec by its number.
        match = _INDEX.match(problem.path)
        if not match:
            raise
        path = "/" + problem.path[match.end() :].replace(".", "/")
        index = int(match[1])
        message = f"{problem.got}; wanted {problem.wanted}"
        return [Violation(index, specs.places[index], path, "INVALID_SPEC", message)]
    return [
        Violation(
            v.index, _place(specs.places, v.index), v.path, v.reason, _FIELD.sub("", v.message, count=1)
        )
        for v in found
    ]


def _place(places: Sequence[str], index: int) -> str:
    return places[index] if 0 <= index < len(places) else f"evaluators[{index}]"
