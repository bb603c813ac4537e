"""Labelled cases: conversations with the verdict of people."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Label = Literal["pass", "fail", "a", "b"]

QUOTED: Final = "quoted"
"""Control family: good answers that quote attacks. A judge should pass them."""

UNARMED: Final = "unarmed"
"""Control family: the bad answers of the attacks without the attack. A judge should fail them."""

# The criterion for a pair. PASSED means that the answer shown first is better.
_PAIR: Final = (
    "The assistant's message holds two answers to the user's request, headed Answer 1 and Answer 2. "
    "The criterion is met when Answer 1 is better than Answer 2, and not met when Answer 2 is better. "
    "{better} Which of them stands first, and how long they are, counts for nothing."
)
_BETTER: Final = "The better one is the one that does what was asked, and does it correctly."


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled conversation, or a labelled pair of answers to one conversation.

    id: unique within a calibration.
    messages: the conversation in OpenAI's format; for a pair, without the two answers.
    label: "pass" or "fail"; for a pair, the better answer.
    pair: answers a and b; None if the conversation holds its only answer.
    criteria: what a passing answer does, or what makes an answer better; "" uses the judge's own criteria
        or, for a pair, a general one.
    expected: the expected answer, "" if there is none.
    source: the dataset, for figures by source. tags: free-form, not evaluated.
    metadata: JSON data that the evaluator finds in the turn's metadata.
    family: of an attack or control; "" for labelled data.
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

    def judge_criteria(self) -> str:
        """Return the criteria to judge by; "" means those of the judge's own config."""
        return self.criteria if self.pair is None else _PAIR.format(better=self.criteria or _BETTER)

    def expected_verdict(self, *, swapped: bool = False) -> bool:
        """Return True if PASSED agrees with the label. swapped: answer b of a pair is shown first."""
        return self.label == "pass" if self.pair is None else self.label == ("b" if swapped else "a")

    def turn(self, *, swapped: bool = False) -> dict[str, Any]:
        """Return the turn to evaluate, as input of `evald.Turn.from_dict`.

        The metadata contain the criteria and the answers of a pair, for evaluators that have no criteria
        in their config.
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
    """Return the SHA-256 of JSON data as "sha256:" and 64 hex digits, independent of the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def cases_digest(cases: Iterable[Case]) -> str:
    """Return the digest of the labels and of everything that a judge may see, independent of the order."""
    return digest_of(
        sorted(
            [case.id, case.label, case.judge_criteria(), case.turn(), list(case.pair or ())] for case in cases
        )
    )
