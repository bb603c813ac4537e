"""LLMBar: pairs of answers to an instruction, with a label on which people agree.

Zeng et al., "Evaluating Large Language Models at Evaluating Instruction Following", ICLR 2024;
github.com/princeton-nlp/LLMBar, MIT. Reads its `dataset.json` (input, output_1, output_2, label), and
JSON Lines with instruction, output_1, output_2, gold_winner and optionally recorded_judges.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evald_server.calibration.cases import Case, Label

from .records import BadCases, CaseRecord, answer_at, text_at

_CRITERIA: Final = (
    "The better one follows the user's instruction more exactly; style and tone count for nothing."
)
_LABELS: Final[dict[Any, Label]] = {1: "a", 2: "b"}


def fits(data: Mapping[str, Any]) -> bool:
    """Return whether a record is of this dataset."""
    return {"output_1", "output_2"} <= data.keys() and ("gold_winner" in data or "label" in data)


def read(records: Sequence[CaseRecord]) -> Iterator[Case]:
    """Convert each record to a pair. Raises BadCases."""
    for record in records:
        winner = record.data.get("gold_winner", record.data.get("label"))
        if isinstance(winner, bool) or not isinstance(winner, int | float) or winner not in _LABELS:
            raise BadCases(f"{record.place}: label: got {winner!r:.80}, wanted 1 or 2")
        key = "instruction" if "instruction" in record.data else "input"
        recorded = _recorded(record.data.get("recorded_judges"))
        yield Case(
            id=str(record.data.get("id", f"llmbar-{record.number}")),
            messages=[{"role": "user", "content": text_at(record, key)}],
            label=_LABELS[winner],
            pair=(answer_at(record, "output_1"), answer_at(record, "output_2")),
            criteria=_CRITERIA,
            source="LLMBar",
            metadata={"recorded": recorded} if recorded else {},
        )


def _recorded(judges: Any) -> dict[str, dict[str, str]]:
    """Return the answers that recorded judges preferred, by judge and order: "a", "b", or "" if they named none."""
    if not isinstance(judges, Mapping):
        return {}
    orders = {"ab": "order_12", "ba": "order_21"}
    return {
        judge: {order: _preferred(said, key) for order, key in orders.items()}
        for judge, said in judges.items()
    }


def _preferred(said: Any, order: str) -> str:
    answer = said.get(order) if isinstance(said, Mapping) else None
    winner = answer.get("parsed_winner") if isinstance(answer, Mapping) else None
    return {"1": "a", "2": "b"}.get(winner, "") if isinstance(winner, str) else ""
