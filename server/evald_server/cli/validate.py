"""`evald validate`: report all violations of evaluators before anything runs."""

import argparse
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from .console import say
from .exit_codes import ExitCode, usage_error
from .sanitize import clean, print_json
from .server_connection import connect, run_async
from .specs import SpecSet, load_specs

if TYPE_CHECKING:
    from evald import AsyncClient

_INDEX: Final = re.compile(r"evaluators\[(\d+)\]\.?")

# The field at the start of a server's message. `place` and `path` replace it.
_FIELD_PREFIX: Final = re.compile(r"evaluators\[\d+\][^:\s]*: ")


def run(args: argparse.Namespace) -> int:
    """Check the files and the expressions."""
    specs = load_specs([*args.files, *args.spec_files], args.expressions)
    if not specs.specs:
        raise usage_error(
            "no evaluators are given", "evald validate checks.toml, or -e regex:pattern='BK-[0-9]+'"
        )
    return run_async(_validate(args, specs))


async def _validate(args: argparse.Namespace, specs: SpecSet) -> int:
    async with connect(args) as client:
        violations = await find_violations(client, specs)
    if args.json:
        print_json({"valid": not violations, "violations": [asdict(one) for one in violations]}, indent=2)
    else:
        for violation in violations:
            say(("✗ ", "red"), clean(str(violation)))
        if not violations:
            say(("✓ ", "green"), f"{len(specs.specs)} evaluator{'s' * (len(specs.specs) != 1)} can be run")
    return ExitCode.USAGE if violations else ExitCode.PASSED


@dataclass(frozen=True)
class LocatedViolation:
    """A violation of a spec, with the place of the spec.

    place: file or option. path: JSON Pointer into the spec. reason: stable code, for example UNKNOWN_TYPE.
    """

    index: int
    place: str
    path: str
    reason: str
    message: str

    @property
    def hint(self) -> str:
        """The remedy, or an empty string."""
        return "evald types lists all evaluators" if self.reason == "UNKNOWN_TYPE" else ""

    def __str__(self) -> str:
        where = self.path.strip("/").replace("/", ".")
        return f"{self.place}: {where}: {self.message}" if where else f"{self.place}: {self.message}"


async def find_violations(client: "AsyncClient", specs: SpecSet) -> list[LocatedViolation]:
    """Return all violations of the evaluators, without running them."""
    from evald import InvalidInput

    def located(index: int, path: str, reason: str, message: str) -> LocatedViolation:
        in_range = 0 <= index < len(specs.places)
        place = specs.places[index] if in_range else f"evaluators[{index}]"
        return LocatedViolation(index, place, path, reason, message)

    try:
        found = await client.validate(specs.specs)
    except InvalidInput as problem:
        # The SDK raised it before sending anything. The path contains the index of the spec.
        match = _INDEX.match(problem.path)
        if not match:
            raise
        path = "/" + problem.path[match.end() :].replace(".", "/")
        return [located(int(match[1]), path, "INVALID_SPEC", f"{problem.got}; wanted {problem.wanted}")]
    return [located(v.index, v.path, v.reason, _FIELD_PREFIX.sub("", v.message, count=1)) for v in found]
