"""What a result must hold to, whoever made it."""

import math
from typing import Final

from .result import Kind, Result, Verdict
from .structs import MAX_DEPTH

MAX_REASON_BYTES: Final = 8192
MAX_METADATA_ITEMS: Final = 10_000
MAX_CHECKS: Final = 1000


def violation(kind: Kind, result: object) -> str | None:
    """What is wrong with a result, named by its field; None when nothing is."""
    if not isinstance(result, Result):
        return f"got {type(result).__name__}, wanted a Result"
    if not isinstance(result.verdict, Verdict):
        return f"verdict: got {result.verdict!r}, wanted a Verdict"
    if not isinstance(result.reason, str):
        return f"reason: got {type(result.reason).__name__}, wanted text"
    if result.verdict is Verdict.ERROR and result.error is None:
        return "error: missing, but the verdict is ERROR"
    if result.verdict is not Verdict.ERROR and result.error is not None:
        return "error: set, but the verdict is not ERROR"
    if kind is Kind.METRIC:
        if result.verdict is Verdict.FAILED:
            return "verdict: FAILED, but a metric never fails"
        if result.score is not None:
            return "score: set, but a metric has no score"
    for name, number in (("score", result.score), ("value", result.value), ("cost_usd", result.cost_usd)):
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{name}: got {type(number).__name__}, wanted a number"
        if not math.isfinite(number):
            return f"{name}: {number} is not a finite number"
    if result.score is not None and not 0 <= result.score <= 1:
        return f"score: {result.score} is not between 0 and 1"
    if len(result.checks) > MAX_CHECKS:
        return f"checks: {len(result.checks)} of them; at most {MAX_CHECKS} are allowed"
    for name, data in (("metadata", result.metadata), ("raw_request", result.raw_request)):
        if data is not None:
            problem = _data_problem(data)
            if problem:
                return f"{name}: {problem}"
    return None


def cut(reason: str) -> str:
    """The reason, at most 8 KiB of it, as text that can be sent."""
    data = reason.encode("utf-8", "replace")
    if len(data) > MAX_REASON_BYTES:
        data = data[: MAX_REASON_BYTES - 3]
        return data.decode("utf-8", "ignore") + "…"
    return data.decode("utf-8")


def _data_problem(data: object) -> str | None:
    """Walks without recursion, because the data may be deeper than the stack."""
    if not isinstance(data, dict):
        return f"got {type(data).__name__}, wanted a dict"
    seen = 0
    pending: list[tuple[object, int]] = [(data, 1)]
    while pending:
        item, depth = pending.pop()
        seen += 1
        if seen > MAX_METADATA_ITEMS:
            return f"more than {MAX_METADATA_ITEMS} items"
        if depth > MAX_DEPTH and isinstance(item, dict | list | tuple):
            return f"nested deeper than {MAX_DEPTH} levels"
        if isinstance(item, dict):
            for key, value in item.items():
                if not isinstance(key, str):
                    return f"key {key!r} is not text"
                pending.append((value, depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((value, depth + 1) for value in item)
        elif isinstance(item, float) and not math.isfinite(item):
            return f"{item} is not a finite number"
        elif item is not None and not isinstance(item, str | bool | int | float):
            return f"{type(item).__name__} is not JSON"
    return None
