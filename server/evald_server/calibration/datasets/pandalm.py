"""PandaLM's test set: pairs of answers, each judged by three annotators (1, 2, or 0 for a tie).

Wang et al., "PandaLM", ICLR 2024; github.com/WeOpenML/PandaLM, Apache-2.0. Reads its
`testset-v1.json` (response1, response2, annotator1 to annotator3), and JSON Lines with output_1,
output_2 and human. A pair is used if at least two annotators prefer the same answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evald_server.calibration.cases import Case, Label

from .records import BadCases, CaseRecord, answer_at

_CRITERIA: Final = "The better one does what was asked more correctly, more clearly and more completely."
_LABELS: Final[dict[int, Label]] = {1: "a", 2: "b"}


def fits(data: Mapping[str, Any]) -> bool:
    """Return whether a record is of this dataset."""
    return "instruction" in data and ("annotator1" in data or "human" in data)


def read(records: Sequence[CaseRecord]) -> Iterator[Case]:
    """Convert each record to a pair, without ties and pairs that have no majority. Raises BadCases."""
    for record in records:
        votes = _votes(record)
        winner = next((answer for answer in _LABELS if votes.count(answer) * 2 > len(votes)), None)
        if winner is None:
            continue
        parts = [answer_at(record, key).strip() for key in ("instruction", "input") if key in record.data]
        if not any(parts):
            raise BadCases(
                f"{record.place}: instruction, input: both empty, wanted the request in one of them"
            )
        first, second = ("response1", "response2") if "response1" in record.data else ("output_1", "output_2")
        yield Case(
            id=str(record.data.get("id", f"pandalm-{record.data.get('idx', record.number)}")),
            messages=[{"role": "user", "content": "\n\n".join(filter(None, parts))}],
            label=_LABELS[winner],
            pair=(answer_at(record, first), answer_at(record, second)),
            criteria=_CRITERIA,
            source="PandaLM",
            tags=("unanimous",) if len(set(votes)) == 1 else (),
        )


def _votes(record: CaseRecord) -> list[int]:
    votes = record.data.get("human") or [record.data.get(f"annotator{number}") for number in (1, 2, 3)]
    if not isinstance(votes, list) or any(vote not in (0, 1, 2) for vote in votes):
        raise BadCases(f"{record.place}: annotators: got {votes!r:.80}, wanted 0, 1 or 2 of each")
    return votes
