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
    entered: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES):
            entered[f"{Path(code.co_filename).stem}.{code.co_qualname}"] += 1

    async with serving() as live:
        for _ in range(20):  # warm: plan, series, and the batcher, which probes its first calls
            await live.unary(small)
        sys.setprofile(count)
        try:
            answer = await live.unary(small)
        finally:
            sys.setprofile(None)
    assert answer.summary.success
    assert entered["regex.Regex.evaluate"] == 1, entered
    assert 0 < entered.total() <= MOST, sorted(entered.items())
