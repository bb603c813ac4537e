"""A small call stays small: its speed is the number of Python functions that it enters."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import evald
import evald_server

from .live import request, serving, spec

PACKAGES = tuple(str(Path(package.__path__[0])) for package in (evald, evald_server))

MOST = 50


async def test_a_small_call_enters_few_functions_of_evald() -> None:
    small = request(spec("regex", {"pattern": "b+"}), spec("response-length"), answer="abc")
    counts: list[Counter[str]] = []

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES):
            counts[-1][f"{Path(code.co_filename).stem}.{code.co_name}"] += 1

    async with serving() as live:
        for _ in range(20):  # warm: plan, series, and the batcher, which probes its first calls
            await live.unary(small)
        sys.setprofile(count)
        try:
            for _ in range(5):
                counts.append(Counter())
                assert (await live.unary(small)).summary.success
        finally:
            sys.setprofile(None)
    entered = min(counts, key=Counter.total)  # without what else runs in the loop from time to time
    assert entered["regex.evaluate"] == 1, sorted(entered.items())
    assert entered.total() <= MOST, sorted(entered.items())
