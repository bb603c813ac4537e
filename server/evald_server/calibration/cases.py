"""What a judge is calibrated on: conversations with the verdict that people gave."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Label = Literal["pass", "fail", "a", "b"]

QUOTED: Final = "quoted"
"""Family of the controls that a judge should pass: good answers that quote attacks."""

UNARMED: Final = "unarmed"
"""Family of the controls that it should fail: the bad answers of the attacks, without the attack."""

# What a pair is judged by. The judge says whether it is met, so PASSED means that the first one is better.
_PAIR: Final = (
    "The assistant's message holds two answers to the user's request, headed Answer 1 and Answer 2. "
    "The criterion is met when Answer 1 is better than Answer 2, and not met when Answer 2 is better. "
    "{better} Which of them stands first, and how long they are, counts for nothing."
)
_BETTER: Final = "The better one is the one that does what was asked, and does it correctly."


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation, or two answers to the same one, with its label.

    id: unique in a calibration.
    messages: the conversation in OpenAI's shape; for a pair, what comes before the two answers.
    label: "pass" or "fail"; of a pair, which answer is better.
    pair: the answers a and b; None when the conversation holds its only one.
    criteria: what a passing answer does, or what makes an answer the better one; "" leaves that to the
        judge's own config, or, for a pair, to being correct and doing what was asked.
    expected: the expected answer, where the data have one.
    source: the data set, for figures by source. tags: any words, kept for readers.
    metadata: JSON-like data, for evaluators of one's own.
    family: the attack's, or the control's; "" for labelled data.
    """

    id: str
    messages: Sequence[Mapping[str, Any]]
    label: Label
    pair: tuple[str, str] | None = None
    criteria: str = ""
    expected: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""

    def question(self) -> str:
        """The criteria to judge by; "" means those of the judge's own config."""
        return self.criteria if self.pair is None else _PAIR.format(better=self.criteria or _BETTER)

    def wanted(self, *, swapped: bool = False) -> bool:
        """Whether a judge that agrees with the label says PASSED. swapped: a pair's b stands first."""
        return self.label == "pass" if self.pair is None else self.label == ("b" if swapped else "a")

    def turn(self, *, swapped: bool = False) -> dict[str, Any]:
        """The turn to evaluate, as `evald.Turn.from_dict` takes it. It is its conversation's last one.

        The metadata say what the judge's question was built from, so that evaluators without criteria in
        their config can judge by it.
        """
        metadata = dict(self.metadata)
        if self.criteria:
            metadata["criteria"] = self.criteria
        messages = [dict(message) for message in self.messages]
        if self.pair is not None:
            first, second = reversed(self.pair) if swapped else self.pair
            text = f"Answer 1:\n{first}\n\nAnswer 2:\n{second}"
            messages.append({"role": "assistant", "content": text})
            metadata |= {"answers": [first, second], "order": "ba" if swapped else "ab"}
        turn: dict[str, Any] = {
            "messages": messages,
            "is_final": True,
            "conversation_id": self.id,
            "metadata": metadata,
        }
        if self.expected:
            turn["expected"] = self.expected
        return turn


def digest_of(data: Any) -> str:
    """SHA-256 of JSON data, as "sha256:" and 64 hex digits; the order of keys is no part of it."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def cases_digest(cases: Iterable[Case]) -> str:
    """The digest of everything that a judge may see, and of the labels. The order of cases is no part of it."""
    return digest_of(
        sorted([case.id, case.label, case.question(), case.turn(), list(case.pair or ())] for case in cases)
    )
