"""The closed list of codes of evaluation errors.

A code names the problem, its category who must act, and `retryable` whether
the same call may succeed later. Callers switch on codes; telemetry counts them.
"""

from enum import IntEnum
from typing import NamedTuple


class Category(IntEnum):
    """The category of an error: who must act on it. Values as in the contract's EvaluationError.Category."""

    INFRASTRUCTURE = 1
    CONFIG = 2
    EVALUATOR = 3
    JUDGE = 4
    CANCELLED = 5


class CodeInfo(NamedTuple):
    """The fixed properties of a code."""

    category: Category
    retryable: bool
    meaning: str


CODES: dict[str, CodeInfo] = {
    "EVALUATOR_EXCEPTION": CodeInfo(
        Category.EVALUATOR, False, "The evaluator's own code raised an exception."
    ),
    "TIMEOUT": CodeInfo(Category.INFRASTRUCTURE, True, "The evaluator did not finish within its time limit."),
    "CONTRACT_VIOLATION": CodeInfo(
        Category.EVALUATOR, False, "The evaluator returned a result that breaks the contract."
    ),
    "MISSING_DATA": CodeInfo(
        Category.CONFIG, False, "The context lacks data that the evaluator needs, and onMissing is error."
    ),
    "INPUT_TOO_LARGE": CodeInfo(
        Category.CONFIG, False, "The text or the check is larger than this evaluator's limit."
    ),
    "UNREADABLE_CONTENT": CodeInfo(
        Category.CONFIG,
        False,
        "The messages have a text that the evaluator reads, or something that looks like a tool call where it reads "
        "tool calls, in a form that evald does not understand; or a negated evaluator cannot read the answer's JSON or "
        "number in one way.",
    ),
    "UNKNOWN_TYPE": CodeInfo(
        Category.CONFIG, False, "The plugin that was called does not offer that type or version."
    ),
    "INVALID_CONFIG": CodeInfo(Category.CONFIG, False, "The config is not valid for the evaluator."),
    "EVALUATOR_BUSY": CodeInfo(
        Category.INFRASTRUCTURE, True, "Too many calls of this evaluator are still running."
    ),
    "UNEVALUABLE": CodeInfo(
        Category.EVALUATOR, False, "Evaluators that this evaluator combines gave no verdict."
    ),
    "CANCELLED": CodeInfo(Category.CANCELLED, True, "The caller cancelled the call or disconnected."),
    "INVALID_ITEM": CodeInfo(Category.CONFIG, False, "The batch item, session turn or context is not valid."),
    "NOT_FINISHED": CodeInfo(
        Category.CONFIG, False, "The session ended without a final turn, for which enforced assertions wait."
    ),
    "RESOURCE_EXHAUSTED": CodeInfo(Category.INFRASTRUCTURE, True, "The server is at its capacity limit."),
    "REMOTE_UNAVAILABLE": CodeInfo(
        Category.INFRASTRUCTURE, True, "No live instance of the remote evaluator."
    ),
    "REMOTE_CIRCUIT_OPEN": CodeInfo(
        Category.INFRASTRUCTURE, True, "The remote evaluator failed too often and is not called for a while."
    ),
    "SCRIPT_FAILED": CodeInfo(Category.EVALUATOR, False, "The script exited with an error."),
    "SCRIPT_OUTPUT_INVALID": CodeInfo(Category.EVALUATOR, False, "The script did not print a valid result."),
    "JUDGE_UNPARSEABLE": CodeInfo(Category.JUDGE, True, "The judge's answer contains no verdict."),
    "JUDGE_REFUSED": CodeInfo(Category.JUDGE, False, "The judge refused to answer."),
    "JUDGE_TRUNCATED": CodeInfo(Category.JUDGE, False, "The judge's answer was cut off."),
    "JUDGE_RATE_LIMITED": CodeInfo(Category.INFRASTRUCTURE, True, "The judge's endpoint limits the rate."),
    "JUDGE_UNAVAILABLE": CodeInfo(Category.INFRASTRUCTURE, True, "The judge's endpoint does not respond."),
    "JUDGE_TIMEOUT": CodeInfo(Category.INFRASTRUCTURE, True, "The judge did not answer in time."),
    "JUDGE_BUDGET_EXCEEDED": CodeInfo(
        Category.CONFIG, False, "Another request to the judge could exceed a cost limit."
    ),
}
