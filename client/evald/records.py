"""Helpers of the record classes: read values from messages, and write JSON data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .result import Kind, Provenance, TokenUsage, Verdict

if TYPE_CHECKING:
    from .v1 import message_pb2, result_pb2

NO_TOKENS: Final = TokenUsage()
UNKNOWN_PROVENANCE: Final = Provenance()

_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}


def read_verdict(number: int) -> Verdict:
    """Return the verdict. An unknown verdict becomes ERROR, because it must not pass."""
    return _VERDICTS.get(number, Verdict.ERROR)


def read_kind(number: int) -> Kind:
    """Return the kind. An unknown kind becomes ASSERTION, which can fail the turn."""
    return Kind.METRIC if number == Kind.METRIC else Kind.ASSERTION


def read_usage(pb: "message_pb2.TokenUsage") -> TokenUsage:
    """Read token counts; unset ones become None."""
    return TokenUsage(
        pb.input_tokens if pb.HasField("input_tokens") else None,
        pb.output_tokens if pb.HasField("output_tokens") else None,
        pb.total_tokens if pb.HasField("total_tokens") else None,
    )


def read_cost_usd(pb: Any) -> float | None:
    """Return a message's cost in US dollars; None if it is unknown or in another currency."""
    if not pb.HasField("cost") or pb.cost.currency_code not in ("USD", ""):
        return None
    amount: float = pb.cost.amount
    return amount


def read_provenance(pb: "result_pb2.Provenance") -> Provenance:
    """Read the provenance of a result."""
    return Provenance(pb.config_sha256, tuple(pb.judge_models), pb.prompt_sha256, pb.calibration_card)


def camel(name: str) -> str:
    """Convert `max_messages` to `maxMessages`."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def tuple_to_dict(record: NamedTuple) -> dict[str, Any]:
    """Return a named tuple as JSON data in camelCase, without unknown values."""
    data = {camel(name): value for name, value in record._asdict().items()}
    return present({key: list(value) if isinstance(value, tuple) else value for key, value in data.items()})


def present(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a mapping that are neither None nor empty."""
    return {
        key: value
        for key, value in data.items()
        if value is not None and not (isinstance(value, str | Mapping | Sequence) and not value)
    }
