"""Measure evald.

python -m benchmarks                   everything, about 10 minutes
python -m benchmarks unary session     these figures
python -m benchmarks --write           everything, into RESULTS.md
"""

import argparse
import subprocess
import sys
import time

import grpc

from . import results
from .figures import FIGURES
from .lab import Lab

# Fewer rounds give unreliable figures.
_ROUNDS = 7


def main() -> int:
    """Return the exit code: 0 if every figure meets its bound, 1 if one does not, 2 if one could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(FIGURES)}; all when none is given"
    )
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="pairs of slices [%(default)s]")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a slice [%(default)s]")
    parser.add_argument("--write", action="store_true", help=f"write the figures to {results.FILE.name}")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in FIGURES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    if args.rounds < 1 or args.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")

    code = 0
    options = f"--rounds {args.rounds} --seconds {args.seconds:g}"
    for name in args.names or FIGURES:
        began = time.monotonic()
        try:
            with Lab(args.rounds, args.seconds) as lab:
                rows = list(FIGURES[name](lab))
        except (RuntimeError, OSError, subprocess.SubprocessError, grpc.RpcError) as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            code = 2
            continue
        for row in rows:
            verdict = "" if row.bound is None else f"(must be {row.bound}{'' if row.holds else ': MISSED'})"
            print(f"{row.value:7.2f}  {row.figure} {verdict}")
            print(f"         {min(row.values):.2f} to {max(row.values):.2f}; {row.detail}", flush=True)
            code = code or int(not row.holds)
        if args.write:
            results.write({name: rows}, {name: f"python -m benchmarks {name} {options}"}, list(FIGURES))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
