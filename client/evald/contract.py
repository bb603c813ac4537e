"""Validate results.

`checked` is applied to the result of every evaluator (in the server, in a worker, or remote), so that an invalid
result affects only that evaluator.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final

from .errorcodes import CODES
from .result import Check, ErrorInfo, Kind, Result, TokenUsage, Verdict
from .structs import MAX_DEPTH

MAX_REASON_BYTES: Final = 8192
MAX_METADATA_ITEMS: Final = 10_000
# 256 KiB is enough for a thousand lines of evidence, and a hundred times that fits into the largest gRPC message.
MAX_METADATA_BYTES: Final = 256 << 10
MAX_CHECKS: Final = 1000
MAX_CHECKS_BYTES: Final = 256 << 10
MAX_DETAILS: Final = 32
MAX_DETAIL_CHARACTERS: Final = 500
MAX_INSTANCE_ID: Final = 128
# The sum of a hundred such counts fits into the int64 of a summary.
MAX_TOKENS: Final = (1 << 53) - 1
# Sums of costs must stay finite.
MAX_COST_USD: Final = 1e12

_EXACT: Final = 1 << 53
_NO_ID: Final = ""
_NO_CHECKS: Final = ()

# Approximate serialized size of a metadata item without its text, in bytes.
_ITEM_BYTES: Final = 12
_MOST_SHOWN: Final = 60

# A lookup of an enum member takes as long as a whole check.
_ERROR, _FAILED, _METRIC = Verdict.ERROR, Verdict.FAILED, Kind.METRIC


class ContractViolation(TypeError):
    """An evaluator returned something that is not a valid result. The message names the field."""


def checked(kind: Kind, result: object) -> Result:
    """Return a validated copy of a result, made of plain Python data.

    The copy shares nothing with the original, which may contain subclasses of `str` and `dict`, or lists that the
    author still modifies. The reason is cut at 8 KiB, and lone surrogates in it are replaced. Numbers of any
    `numbers.Real` type, such as NumPy's, become `int` and `float`.

    Raises ContractViolation, which names the field, and any exception of the result's own methods.
    """
    if not issubclass(type(result), Result):
        raise ContractViolation(f"got {_type(result)}, wanted a Result")
    assert isinstance(result, Result)
    verdict = result.verdict
    if type(verdict) is not Verdict:
        raise ContractViolation(f"verdict: got {_type(verdict)}, wanted a Verdict")
    reason = result.reason
    if not issubclass(type(reason), str):
        raise ContractViolation(f"reason: got {_type(reason)}, wanted text")
    score, error = _number("score", result.score), _error(result.error)
    if verdict is _ERROR and error is None:
        raise ContractViolation("error: missing, but the verdict is ERROR")
    if verdict is not _ERROR and error is not None:
        raise ContractViolation("error: set, but the verdict is not ERROR")
    if kind is _METRIC:
        if verdict is _FAILED:
            raise ContractViolation("verdict: FAILED, but a metric never fails")
        if score is not None:
            raise ContractViolation("score: set, but a metric has no score")
    if score is not None:
        if verdict is _ERROR:
            raise ContractViolation("score: set, but the verdict is ERROR")
        if not 0 <= score <= 1:
            raise ContractViolation(f"score: {score:g} is not between 0 and 1")
    pending, unproven = _flag("pending", result.pending), _flag("unproven", result.unproven)
    if verdict is not _FAILED and (pending or unproven):
        name = "pending" if pending else "unproven"
        raise ContractViolation(f"{name}: set, but the verdict is {verdict.name}")
    return Result(
        verdict,
        cut(reason),
        score,
        _number("value", result.value),
        plain_data("metadata", result.metadata),
        _checks(result.checks),
        pending,
        error,
        _usage(result.token_usage),
        _cost(result.cost_usd),
        plain_data("raw_request", result.raw_request),
        unproven,
        _flag("cached", result.cached),
        _instance_id(result.instance_id),
    )


def violation(kind: Kind, result: object) -> str | None:
    """Return the problem of a result, with the name of the field; None if it is valid."""
    try:
        checked(kind, result)
    except ContractViolation as problem:
        return str(problem)
    return None


def cut(reason: str) -> str:
    """Return the reason as text that UTF-8 can encode, cut at 8 KiB."""
    if type(reason) is str and len(reason) <= MAX_REASON_BYTES and reason.isascii():
        return reason  # the common case
    # Encode only what may fit: a character takes at least a byte.
    data = str.encode(str.__getitem__(reason, slice(MAX_REASON_BYTES + 1)), "utf-8", "replace")
    if len(data) > MAX_REASON_BYTES:
        data = data[: MAX_REASON_BYTES - 3]
        return data.decode("utf-8", "ignore") + "…"
    return data.decode("utf-8")


def progress_said(message: object, fraction: object) -> tuple[str, float | None]:
    """Return a progress message as text that UTF-8 can encode, and its fraction, from 0 to 1 or None."""
    done: float | None = None
    if issubclass(type(fraction), Real) and type(fraction) is not bool:
        done = float(fraction)  # type: ignore[arg-type]
    return cut(str(message)), done if done is not None and 0 <= done <= 1 else None


def plain_data(name: str, data: object) -> dict[str, Any] | None:
    """Copy JSON-like data as dicts, lists and plain values. name: name of the field, for errors.

    Raises ContractViolation, which names the location, for a value that is not JSON, and for more than 32 levels,
    10,000 items or 256 KiB.
    """
    if data is None:
        return None
    if type(data) is not dict and not isinstance(data, Mapping):
        raise ContractViolation(f"{name}: got {_type(data)}, wanted a dict")
    return _Copy(name).mapping(data, name, MAX_DEPTH)


class _Copy:
    """Copies JSON-like data up to the limits of items, bytes and levels."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._items = 0
        self._bytes = 0

    def mapping(self, data: Mapping[Any, Any], path: str, levels: int) -> dict[str, Any]:
        self._go_down(levels)
        found: dict[str, Any] = {}
        for key, value in data.items():
            if not issubclass(type(key), str):
                raise ContractViolation(f"{path}: a key is {_type(key)}, wanted text")
            name = self._text(key, f"{path}: a key")
            found[name] = self._value(value, f"{path}.{name[:_MOST_SHOWN]}", levels - 1)
        return found

    def _value(self, item: Any, path: str, levels: int) -> Any:
        self._items += 1
        if self._items > MAX_METADATA_ITEMS:
            raise ContractViolation(f"{self._name}: more than {MAX_METADATA_ITEMS} items")
        self._take(_ITEM_BYTES)
        kind = type(item)
        if item is None or kind is bool:
            return item
        if issubclass(kind, str):
            return self._text(item, path)
        if kind is int and -_EXACT < item < _EXACT:
            return item
        if issubclass(kind, dict):
            return self.mapping(item, path, levels)
        if issubclass(kind, list | tuple):
            self._go_down(levels)
            return [self._value(one, f"{path}[{index}]", levels - 1) for index, one in enumerate(item)]
        if issubclass(kind, Real):
            number = _number(path, item)
            return int(item) if issubclass(kind, Integral) else number
        if issubclass(kind, Mapping):
            return self.mapping(item, path, levels)
        raise ContractViolation(f"{path}: {_type(item)} is not JSON")

    def _text(self, text: str, path: str) -> str:
        # Check before encoding: a character takes at least a byte.
        if str.__len__(text) > MAX_METADATA_BYTES:
            self._take(str.__len__(text))
        text, size = _sendable(text, path)
        self._take(size)
        return text

    def _take(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MAX_METADATA_BYTES:
            raise ContractViolation(f"{self._name}: more than {MAX_METADATA_BYTES >> 10} KiB")

    def _go_down(self, levels: int) -> None:
        if levels < 1:
            raise ContractViolation(f"{self._name}: nested deeper than {MAX_DEPTH} levels")


def _type(value: object) -> str:
    """Return the name of a value's type, for errors. Does not access the type's own attributes (foreign code)."""
    return str(type.__dict__["__name__"].__get__(type(value)))[:_MOST_SHOWN]


def _sendable(text: str, path: str) -> tuple[str, int]:
    """Return plain text and its size in UTF-8. Raises ContractViolation."""
    text = str.__str__(text)
    if text.isascii():
        return text, len(text)
    try:
        return text, len(text.encode())
    except UnicodeEncodeError as problem:
        raise ContractViolation(
            f"{path}: half of a surrogate pair at position {problem.start}, wanted text that UTF-8 can carry"
        ) from None


def _text(name: str, value: object) -> tuple[str, int]:
    if not issubclass(type(value), str):
        raise ContractViolation(f"{name}: got {_type(value)}, wanted text")
    return _sendable(value, name)  # type: ignore[arg-type]


def _flag(name: str, value: object) -> bool:
    if value is True or value is False:
        return value
    raise ContractViolation(f"{name}: got {_type(value)}, wanted a bool")


def _number(name: str, number: object) -> float | None:
    if number is None:
        return None
    kind = type(number)
    if kind is float and math.isfinite(number):  # type: ignore[arg-type]
        return number  # type: ignore[return-value]
    if kind is bool or not issubclass(kind, Real):
        raise ContractViolation(f"{name}: got {_type(number)}, wanted a number")
    try:
        plain = float(number)  # type: ignore[arg-type]
    except OverflowError:
        plain = math.inf
    if type(plain) is not float or not math.isfinite(plain):
        raise ContractViolation(f"{name}: {plain} is not a finite number")
    return plain


def _cost(number: object) -> float | None:
    cost = _number("cost_usd", number)
    if cost is not None and not 0 <= cost <= MAX_COST_USD:
        raise ContractViolation(f"cost_usd: got {cost:g}, wanted 0 to {MAX_COST_USD:g}")
    return cost


def _usage(usage: object) -> TokenUsage | None:
    if usage is None:
        return None
    if not isinstance(usage, TokenUsage):
        raise ContractViolation(f"token_usage: got {_type(usage)}, wanted a TokenUsage")
    counts: list[int | None] = []
    for name in TokenUsage._fields:
        count: Any = getattr(usage, name)
        if count is not None:
            if type(count) is bool or not issubclass(type(count), Integral):
                raise ContractViolation(f"token_usage.{name}: got {_type(count)}, wanted a whole number")
            count = int(count)
            if not 0 <= count <= MAX_TOKENS:
                raise ContractViolation(f"token_usage.{name}: wanted 0 or more, and less than 2**53")
        counts.append(count)
    return TokenUsage(*counts)


def _checks(checks: object) -> Sequence[Check]:
    if checks is _NO_CHECKS:
        return _NO_CHECKS
    if not issubclass(type(checks), list | tuple):
        raise ContractViolation(f"checks: got {_type(checks)}, wanted a list")
    found: list[Check] = []
    size = 0
    for index, check in enumerate(checks):  # type: ignore[arg-type, var-annotated]
        if index >= MAX_CHECKS:
            raise ContractViolation(f"checks: more than {MAX_CHECKS} checks")
        place = f"checks[{index}]"
        if not issubclass(type(check), Check):
            raise ContractViolation(f"{place}: got {_type(check)}, wanted a Check")
        text, length = _text(f"{place}.text", check.text)
        evidence, more = _text(f"{place}.evidence", check.evidence)
        size += length + more
        if size > MAX_CHECKS_BYTES:
            raise ContractViolation(f"checks: more than {MAX_CHECKS_BYTES >> 10} KiB of text")
        found.append(Check(text, _flag(f"{place}.met", check.met), evidence))
    return found or _NO_CHECKS


def _error(error: object) -> ErrorInfo | None:
    if error is None:
        return None
    if not isinstance(error, ErrorInfo):
        raise ContractViolation(f"error: got {_type(error)}, wanted an ErrorInfo")
    code, _ = _text("error.code", error.code)
    if code not in CODES:
        raise ContractViolation(f"error.code: got {code[:80]!r}, wanted one of {', '.join(CODES)}")
    if not issubclass(type(error.message), str):
        raise ContractViolation(f"error.message: got {_type(error.message)}, wanted text")
    if not isinstance(error.details, Mapping):
        raise ContractViolation(f"error.metadata: got {_type(error.details)}, wanted a dict")
    details: dict[str, str] = {}
    for count, (key, value) in enumerate(error.details.items()):
        if count >= MAX_DETAILS:
            raise ContractViolation(f"error.metadata: more than {MAX_DETAILS} entries")
        name, _ = _text("error.metadata: a key", key)
        details[name[:MAX_DETAIL_CHARACTERS]] = _text("error.metadata", value)[0][:MAX_DETAIL_CHARACTERS]
    return ErrorInfo(code, cut(error.message), details)


def _instance_id(value: object) -> str:
    if value is _NO_ID:
        return _NO_ID
    text, _ = _text("instance_id", value)
    if len(text) > MAX_INSTANCE_ID:
        raise ContractViolation(f"instance_id: got {len(text)} characters, wanted at most {MAX_INSTANCE_ID}")
    return text
