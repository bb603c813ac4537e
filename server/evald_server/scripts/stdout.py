"""Parser of a script's standard output into a Result.

Two formats are accepted, and mixtures of them: evald's `{pass, score, value, reason, checks, metadata}`
and AgentV's `{score, hits, misses, reasoning}`. Nothing is invented: without a verdict and a score there is
no result, whatever other keys are there.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from evald.result import Check, Result, TokenUsage, Verdict, reaches
from evald.strict_json import NESTED_TOO_DEEP, LevelDecoder, no_constant, unique_keys

# AgentV's pass threshold for a script that gives a score and no verdict.
PASS_SCORE: Final = 0.8

# Every integer with this number of digits fits into a double.
_MOST_DIGITS: Final = 308

_FLAGS: Final = ("pass", "success", "passed")
_CHECK_FLAGS: Final = ("pass", "passed", "met")
_FINDINGS: Final = ("checks", "assertions", "hits", "misses")
_WANTED: Final = {
    bool: "true or false",
    float: "a number",
    str: "a string",
    dict: "an object",
    list: "a list",
}
_VERDICTS: Final = {
    "pass": Verdict.PASSED,
    "passed": Verdict.PASSED,
    "fail": Verdict.FAILED,
    "failed": Verdict.FAILED,
    "skip": Verdict.SKIPPED,
    "skipped": Verdict.SKIPPED,
}


class InvalidOutput(ValueError):
    """The output is no result. The message names the problem without quoting the output.

    code: one of evald.errorcodes.CODES.
    """

    def __init__(self, message: str, code: str = "SCRIPT_OUTPUT_INVALID") -> None:
        super().__init__(message)
        self.code = code


def read_output(output: bytes, pass_score: float = PASS_SCORE) -> Result:
    """Parse the output. Raises InvalidOutput."""
    data = _parse(output)
    checks = _checks(data)
    score: float | None = _get(data, float, "score")
    if score is not None and not 0 <= score <= 1:
        raise InvalidOutput(f"score: {score:g} is not between 0 and 1")
    verdict = _verdict(data)
    if verdict is None:
        if score is None:
            raise _no_verdict(data)
        verdict = Verdict.PASSED if reaches(score, pass_score) else Verdict.FAILED
    elif score is not None and verdict is (Verdict.FAILED if reaches(score, pass_score) else Verdict.PASSED):
        raise InvalidOutput(
            f"a script that {verdict.name.lower()} and score {score:g} contradict each other: the passing score is "
            f"{pass_score:g}; print one of the two, or set config.threshold to the score from which the script passes"
        )
    if score is None and checks:
        share = sum(check.met for check in checks) / len(checks)
        # If the script itself reports a failure, a high share is not used as score: a threshold would make it a pass.
        if verdict is Verdict.PASSED or not reaches(share, pass_score):
            score = share
    reason = _get(data, str, "reason", "reasoning") or ""
    result = Result(verdict, reason, score, _get(data, float, "value"))
    result.checks = checks
    result.metadata = _get(data, dict, "metadata", "details")
    result.pending = verdict is Verdict.FAILED and _get(data, bool, "pending") is True
    result.token_usage = _usage(data)
    result.cost_usd = _get(data, float, "cost_usd", "costUsd")
    if result.cost_usd is not None and result.cost_usd < 0:
        raise InvalidOutput(f"cost_usd: {result.cost_usd:g} is below 0")
    if not result.reason:
        result.reason = _reason(result, pass_score)
    return result


def _parse(output: bytes) -> dict[str, Any]:
    if not output.strip():
        raise InvalidOutput("it is empty: wanted one JSON object")
    try:
        data = _DECODER.decode(output.decode())
        # A lone surrogate is valid JSON, but cannot be encoded as UTF-8.
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeDecodeError as problem:
        raise InvalidOutput(f"not UTF-8 at byte {problem.start}") from None
    except UnicodeEncodeError:
        raise InvalidOutput("a string in it contains half of a surrogate pair") from None
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        raise InvalidOutput(
            f"not JSON: {problem.msg} at {where}; wanted one JSON object and nothing else"
        ) from None
    except RecursionError:
        raise InvalidOutput(NESTED_TOO_DEEP) from None
    except ValueError as problem:
        raise InvalidOutput(f"not JSON: {problem}") from None
    if not isinstance(data, dict):
        raise InvalidOutput(f"a JSON {_kind(data)}; wanted a JSON object")
    return data


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number outside the range of a double")
    return number


_DECODER: Final = LevelDecoder(
    object_pairs_hook=unique_keys, parse_constant=no_constant, parse_int=_integer, parse_float=_finite
)


def _no_verdict(data: Mapping[str, Any]) -> InvalidOutput:
    found = [f"`{key}`" for key in _FINDINGS if data.get(key) is not None]
    if found:
        text = f"{' and '.join(found)} without a score: wanted `score`, 0 to 1, or `pass` beside it"
        return InvalidOutput(text, "CONTRACT_VIOLATION")
    return InvalidOutput("it has no verdict: wanted `score`, 0 to 1, or `pass`")


def _verdict(data: Mapping[str, Any]) -> Verdict | None:
    said: dict[str, Verdict] = {}
    for key in _FLAGS:
        flag = _get(data, bool, key)
        if flag is not None:
            said[key] = Verdict.PASSED if flag else Verdict.FAILED
    word = data.get("verdict")
    if word is not None:
        if not isinstance(word, str) or word.lower() not in _VERDICTS:
            raise InvalidOutput("verdict: wanted pass, fail or skip")
        said["verdict"] = _VERDICTS[word.lower()]
    if len(set(said.values())) > 1:
        raise InvalidOutput(f"{' and '.join(said)} contradict each other")
    return next(iter(said.values()), None)


def _checks(data: Mapping[str, Any]) -> list[Check]:
    """Return the checks of `checks`, of AgentV's `assertions`, and of its older `hits` and `misses`."""
    found: list[Check] = []
    for key in ("checks", "assertions"):
        for index, item in enumerate(_get(data, list, key) or ()):
            found.append(_check(item, f"{key}[{index}]"))
    for key, met in (("hits", True), ("misses", False)):
        for index, item in enumerate(_get(data, list, key) or ()):
            if not isinstance(item, str):
                raise InvalidOutput(f"{key}[{index}]: a {_kind(item)}, wanted a string")
            if item.strip():
                found.append(Check(item, met))
    return found


def _check(item: Any, where: str) -> Check:
    if not isinstance(item, dict):
        raise InvalidOutput(f"{where}: a {_kind(item)}, wanted an object with `text` and `pass`")
    text = item.get("text")
    if not isinstance(text, str):
        raise InvalidOutput(f"{where}.text: {_kind(text)}, wanted a string")
    said = [item[key] for key in _CHECK_FLAGS if key in item]
    if not said or any(flag is not said[0] for flag in said) or not isinstance(said[0], bool):
        raise InvalidOutput(f"{where}.pass: wanted true or false")
    evidence = item.get("evidence") or item.get("reason") or ""
    if not isinstance(evidence, str):
        raise InvalidOutput(f"{where}.evidence: a {_kind(evidence)}, wanted a string")
    return Check(text, said[0], evidence)


def _usage(data: Mapping[str, Any]) -> TokenUsage | None:
    """Parse the tokens that the script itself has spent on models."""
    usage = _get(data, dict, "token_usage", "tokenUsage")
    if usage is None:
        return None
    counts = []
    for name in ("input", "output", "total"):
        count = usage.get(name, usage.get(f"{name}_tokens"))
        if count is not None and (
            isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 1 << 63
        ):
            raise InvalidOutput(f"token_usage.{name}: wanted a whole number, 0 or more")
        counts.append(count)
    return TokenUsage(*counts)


def _reason(result: Result, pass_score: float) -> str:
    said = []
    if result.checks:
        met = sum(check.met for check in result.checks)
        said.append(f"{met} of {len(result.checks)} checks met")
    if result.score is not None:
        said.append(f"score {result.score:.4g}, wanted at least {pass_score:g}")
    if result.value is not None:
        said.append(f"value {result.value:g}")
    text = "; ".join(said) or f"Verdict of the script: {result.verdict.name.lower()}"
    return text[0].upper() + text[1:]


def _get(data: Mapping[str, Any], kind: type, *keys: str) -> Any:
    """Return the first value under these keys, None when all are missing or null. Raises InvalidOutput."""
    for key in keys:
        value = data.get(key)
        if value is None:
            continue
        is_kind = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if not is_kind or (isinstance(value, bool) and kind is not bool):
            raise InvalidOutput(f"{key}: a {_kind(value)}, wanted {_WANTED[kind]}")
        return value
    return None


def _kind(value: object) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "number", float: "number", list: "list", dict: "object"}
    return names.get(type(value), "value")
