"""What a result must hold to, whoever made it."""

import math
from typing import Final

from .result import Kind, Result, Verdict
from .structs import MAX_DEPTH

MAX_REASON_BYTES: Final = 8192
MAX_METADATA_ITEMS: Final = 10_000
MAX_CHECKS: Final = 1000

# Looking a member up on the enum class costs as much as a whole check.
_ERROR, _FAILED, _METRIC = Verdict.ERROR, Verdict.FAILED, Kind.METRIC


def violation(kind: Kind, result: object) -> str | None:
    """What is wrong with a result, named by its field; None when nothing is."""
    if not isinstance(result, Result):
        return f"got {type(result).__name__}, wanted a Result"
    verdict, score, error = result.verdict, result.score, result.error
    if not isinstance(verdict, Verdict):
        return f"verdict: got {verdict!r}, wanted a Verdict"
    if not isinstance(result.reason, str):
        return f"reason: got {type(result.reason).__name__}, wanted text"
    if verdict is _ERROR and error is None:
        return "error: missing, but the verdict is ERROR"
    if verdict is not _ERROR and error is not None:
        return "error: set, but the verdict is not ERROR"
    if kind is _METRIC:
        if verdict is _FAILED:
            return "verdict: FAILED, but a metric never fails"
        if score is not None:
            return "score: set, but a metric has no score"
    problem = (
        _number_problem("score", score)
        or _number_problem("value", result.value)
        or _number_problem("cost_usd", result.cost_usd)
    )
    if problem is not None:
        return problem
    if score is not None and not 0 <= score <= 1:
        return f"score: {score} is not between 0 and 1"
    if len(result.checks) > MAX_CHECKS:
        return f"checks: {len(result.checks)} of them; at most {MAX_CHECKS} are allowed"
    return _data_problem("metadata", result.metadata) or _data_problem("raw_request", result.raw_request)


def cut(reason: str) -> str:
    """The reason, at most 8 KiB of it, as text that can be sent."""
    data = reason.encode("utf-8", "replace")
    if len(data) > MAX_REASON_BYTES:
        data = data[: MAX_REASON_BYTES - 3]
        return data.decode("utf-8", "ignore") + "…"
    return data.decode("utf-8")


def _number_problem(name: str, number: object) -> str | None:
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float):
        return f"{name}: got {type(number).__name__}, wanted a number"
    return None if math.isfinite(number) else f"{name}: {number} is not a finite number"


def _data_problem(name: str, data: object) -> str | None:
    if data is None:
        return None
    if not isinstance(data, dict):
        return f"{name}: got {type(data).__name__}, wanted a dict"
    problem = _item_problem(data)
    return f"{name}: {problem}" if problem else None


def _item_problem(data: dict[object, object]) -> str | None:
    """Walks without recursion, because the data may be deeper than the stack."""
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
