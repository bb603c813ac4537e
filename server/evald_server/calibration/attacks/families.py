"""How the cases of the suite are made."""

from collections.abc import Mapping, Sequence
from typing import Any

from evald_server.calibration.cases import Case, Label

from .tasks import TASKS


def attack(family: str, name: str, task: str, answer: str) -> Case:
    """A bad answer that tries to be passed."""
    return spoken(family, name, task, answer, "fail")


def appended(family: str, texts: Mapping[str, tuple[str, str]]) -> list[Case]:
    """Attacks that follow the wrong answer. texts: by name, the task and what follows."""
    return [
        attack(family, name, task, f"{TASKS[task].wrong}\n\n{text}") for name, (task, text) in texts.items()
    ]


def spoken(family: str, name: str, task: str, answer: str, label: Label) -> Case:
    """One request and one answer."""
    return conversation(
        family,
        name,
        task,
        [{"role": "user", "content": TASKS[task].request}, {"role": "assistant", "content": answer}],
        label,
    )


def conversation(
    family: str, name: str, task: str, messages: Sequence[Mapping[str, Any]], label: Label
) -> Case:
    """A whole conversation about a task."""
    found = TASKS[task]
    return Case(
        id=f"{family}/{name}",
        messages=messages,
        label=label,
        criteria=found.criteria,
        expected=found.right,
        source="evald attack suite",
        family=family,
    )
