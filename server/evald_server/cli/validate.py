"""`evald validate`: say everything that is wrong with evaluators before anything runs."""

import argparse

from .console import say
from .exits import Exit, usage_error
from .plain import clean, print_json
from .specs import SpecSet, load_specs
from .target import connected, run_async
from .violations import find_violations


def run(args: argparse.Namespace) -> int:
    """Check the files and the expressions."""
    specs = load_specs([*args.files, *args.spec_files], args.expressions)
    if not specs.specs:
        raise usage_error(
            "no evaluators to check", "evald validate checks.toml, or -e regex:pattern='BK-[0-9]+'"
        )
    return run_async(_validate(args, specs))


async def _validate(args: argparse.Namespace, specs: SpecSet) -> int:
    async with connected(args) as client:
        violations = await find_violations(client, specs)
    if args.json:
        found = [violation.to_dict() for violation in violations]
        print_json({"valid": not found, "violations": found}, indent=2)
    else:
        for violation in violations:
            say(("✗ ", "red"), clean(str(violation)))
        if not violations:
            say(("✓ ", "green"), f"{len(specs.specs)} evaluator{'s' * (len(specs.specs) != 1)} can be run")
    return Exit.USAGE if violations else Exit.PASSED
