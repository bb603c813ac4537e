"""What the agent reported about a turn: time, tokens, cost."""

from typing import TYPE_CHECKING, Any

from .chat import UNREAD
from .result import TokenUsage
from .structs import duration_ms, struct_to_dict

if TYPE_CHECKING:
    from .v1 import context_pb2


class Invocation:
    """What the agent reported about the turn. None always means: not reported."""

    __slots__ = ("_latency_ms", "_pb", "_total_tokens")

    def __init__(self, pb: "context_pb2.Invocation") -> None:
        self._pb = pb
        self._latency_ms: Any = UNREAD
        self._total_tokens: Any = UNREAD

    @property
    def latency_ms(self) -> float | None:
        """Milliseconds from request to complete answer."""
        if self._latency_ms is UNREAD:
            self._latency_ms = duration_ms(self._pb.latency) if self._pb.HasField("latency") else None
        return self._latency_ms  # type: ignore[no-any-return]

    @property
    def time_to_first_token_ms(self) -> float | None:
        """Milliseconds to the first token, when the agent streams."""
        if not self._pb.HasField("time_to_first_token"):
            return None
        return duration_ms(self._pb.time_to_first_token)

    @property
    def token_usage(self) -> TokenUsage | None:
        """Token usage of the turn."""
        if not self._pb.HasField("token_usage"):
            return None
        pb = self._pb.token_usage
        return TokenUsage(
            pb.input_tokens if pb.HasField("input_tokens") else None,
            pb.output_tokens if pb.HasField("output_tokens") else None,
            pb.total_tokens if pb.HasField("total_tokens") else None,
        )

    @property
    def total_tokens(self) -> int | None:
        """`token_usage.total`, without reading the rest."""
        if self._total_tokens is UNREAD:
            self._total_tokens = self._read_total_tokens()
        return self._total_tokens  # type: ignore[no-any-return]

    def _read_total_tokens(self) -> int | None:
        pb = self._pb
        if not pb.HasField("token_usage"):
            return None
        usage = pb.token_usage
        if usage.HasField("total_tokens"):
            return usage.total_tokens
        if usage.HasField("input_tokens") or usage.HasField("output_tokens"):
            return usage.input_tokens + usage.output_tokens
        return None

    @property
    def cost_usd(self) -> float | None:
        """Cost in US dollars; None also when it is in another currency."""
        if not self._pb.HasField("cost") or self._pb.cost.currency_code not in ("USD", ""):
            return None
        return self._pb.cost.amount

    @property
    def model(self) -> str | None:
        """Model that answered, as the agent names it."""
        return self._pb.model if self._pb.HasField("model") else None

    def metadata_text(self, key: str) -> str | None:
        """One text of the metadata, without reading the rest; None when there is no text of that key."""
        fields = self._pb.metadata.fields
        if key not in fields or not fields[key].HasField("string_value"):
            return None
        return fields[key].string_value

    @property
    def metadata(self) -> dict[str, Any]:
        """Further data, for example "finish_reason"."""
        return struct_to_dict(self._pb.metadata)
