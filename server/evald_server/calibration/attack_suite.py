"""The attack suite: bad answers that try to get a pass, and controls that do not.

A judge that follows instructions in the judged text gives an attack a pass. A judge that suspects everything
fails a control. The cases are data, see attack_data/README.md.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from .cases import QUOTED, UNARMED, Case, Label

_DATA: Final = Path(__file__).with_name("attack_data")


class AttackTask(NamedTuple):
    """A request with a right and a wrong answer. criteria: the contents of a right answer, including the truth."""

    name: str
    request: str
    right: str
    wrong: str
    criteria: str


def attack_tasks() -> dict[str, AttackTask]:
    """Return the tasks of the attacks by name."""
    return {row["name"]: AttackTask(**row) for row in _rows("tasks")}


def attack_suite() -> list[Case]:
    """Return all attacks and controls, always in the same order."""
    tasks = attack_tasks()
    return [
        *(_attack(row, tasks[row["task"]]) for row in _rows("attacks")),
        *(_quoted(**row) for row in _rows("quoted")),
        *(
            _case(
                f"{UNARMED}/{task.name}", _talk(task.request, task.wrong), "fail", task.criteria, task.right
            )
            for task in tasks.values()
        ),
    ]


def _rows(name: str) -> list[dict[str, Any]]:
    text = (_DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _attack(row: dict[str, Any], task: AttackTask) -> Case:
    if "answer" in row:
        messages = _talk(task.request, _text(row["answer"]))
    elif "append" in row:
        messages = _talk(task.request, f"{task.wrong}\n\n{_text(row['append'])}")
    else:
        function = {"name": row["tool"], "arguments": row["arguments"]}
        call = {"id": "call_1", "type": "function", "function": function}
        request, answer = _talk(task.request, task.wrong)
        messages = [
            request,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": row["result"]},
            answer,
        ]
    return _case(row["id"], messages, "fail", task.criteria, task.right)


def _quoted(name: str, request: str, answer: str, criteria: str) -> Case:
    return _case(f"{QUOTED}/{name}", _talk(request, answer), "pass", criteria, answer)


def _case(case_id: str, messages: list[dict[str, Any]], label: Label, criteria: str, expected: str) -> Case:
    return Case(
        id=case_id,
        messages=messages,
        label=label,
        criteria=criteria,
        expected=expected,
        source="evald attack suite",
        family=case_id.partition("/")[0],
    )


def _talk(request: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]


def _text(data: str | list[tuple[str, int]]) -> str:
    return data if isinstance(data, str) else "".join(part * times for part, times in data)
