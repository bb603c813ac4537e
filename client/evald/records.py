"""What the records of a server's answers have in common: their values read, and written as JSON data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .result import Kind, TokenUsage, Verdict

if TYPE_CHECKING:
    from .v1 import message_pb2

NO_TOKENS: Final = TokenUsage()

_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}


def read_verdict(number: int) -> Verdict:
    """The verdict; one that this client does not know must not count as passed: it is no verdict."""
    return _VERDICTS.get(number, Verdict.ERROR)


def read_kind(number: int) -> Kind:
    """The kind; one that this client does not know gates, to be on the safe side."""
    return Kind.METRIC if number == Kind.METRIC else Kind.ASSERTION


def read_usage(pb: "message_pb2.TokenUsage") -> TokenUsage:
    """The tokens, as far as they are known."""
    return TokenUsage(
        pb.input_tokens if pb.HasField("input_tokens") else None,
        pb.output_tokens if pb.HasField("output_tokens") else None,
        pb.total_tokens if pb.HasField("total_tokens") else None,
    )


def read_cost_usd(pb: Any) -> float | None:
    """The message's cost in US dollars; None when it is unknown or in another currency."""
    if not pb.HasField("cost") or pb.cost.currency_code not in ("USD", ""):
        return None
    amount: float = pb.cost.amount
    return amount


def usage_dict(usage: TokenUsage) -> dict[str, int | None]:
    """The tokens as JSON data in camelCase."""
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
    }


def present(data: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that say something: not None and not empty."""
    return {
        key: value
        for key, value in data.items()
        if value is not None and not (isinstance(value, str | Mapping | Sequence) and not value)
    }
