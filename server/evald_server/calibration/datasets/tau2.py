"""Judge files of tau2-bench: conversations of an agent with tools, as shown to recorded judges.

github.com/sierra-research/tau2-bench, MIT. Reads JSON Lines with conversation_id, user_prompt
(which contains the transcript) and programmatic_reward, the result of the benchmark's own checker: 1 if the
task was solved. The label comes from a program, not from a person.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evald_server.calibration.cases import Case

from .records import BadCases, CaseRecord, text_at

_TRANSCRIPT: Final = "\nConversation transcript:\n"
_INSTRUCTIONS: Final = "\nJudging instructions:\n"
_POLICY: Final = re.compile(r"\nDomain policy[^\n]*:\n(.*)", re.DOTALL)
_ENTRY: Final = re.compile(
    r"^(\d+)\. (Assistant TOOL CALL ->|Assistant:|User:|Tool \S+:)(?: |$)", re.MULTILINE
)
_CALL: Final = re.compile(r"(\S+) (.*)", re.DOTALL)


def fits(data: Mapping[str, Any]) -> bool:
    """Return whether a record is of such a file."""
    return {"conversation_id", "user_prompt", "programmatic_reward"} <= data.keys()


def conversations(records: Sequence[CaseRecord]) -> int:
    """Return the number of different conversations. Each was shown to several judges."""
    return len({record.data.get("conversation_id") for record in records})


def read(records: Sequence[CaseRecord]) -> Iterator[Case]:
    """Convert each conversation to a case, with its policy as part of the criteria. Raises BadCases."""
    seen: dict[str, CaseRecord] = {}
    for record in records:
        seen.setdefault(text_at(record, "conversation_id"), record)
    for name, record in seen.items():
        reward = record.data.get("programmatic_reward")
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            raise BadCases(f"{record.place}: programmatic_reward: got {reward!r:.80}, wanted 0 to 1")
        prompt = text_at(record, "user_prompt")
        before, _, after = prompt.partition(_TRANSCRIPT)
        transcript = after.partition(_INSTRUCTIONS)[0]
        messages = _messages(transcript, record.place)
        policy = _POLICY.search(before)
        yield Case(
            id=name,
            messages=messages,
            label="pass" if reward >= 1 else "fail",
            criteria=_criteria(policy[1].strip() if policy else ""),
            source="tau2",
            tags=tuple(str(record.data[key]) for key in ("domain",) if record.data.get(key)),
        )


def _criteria(policy: str) -> str:
    solved = "By the end the agent has done exactly what the user is entitled to, and nothing else"
    return f"{solved}, and has followed this policy throughout:\n\n{policy}" if policy else f"{solved}."


def _messages(transcript: str, place: str) -> list[dict[str, Any]]:
    """Convert the numbered entries to messages, up to the agent's last one.

    An entry may span several lines, so a new entry starts only at the next number.
    """
    starts: list[re.Match[str]] = []
    for match in _ENTRY.finditer(transcript):
        if int(match[1]) == len(starts) + 1:
            starts.append(match)
    messages: list[dict[str, Any]] = []
    for position, match in enumerate(starts):
        end = starts[position + 1].start() if position + 1 < len(starts) else len(transcript)
        text = transcript[match.end() : end].removesuffix("\n")
        message = _message(match[2], text, f"{place}: user_prompt: entry {match[1]}")
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
            # In the transcript each tool call has its own entry, after the text of its message.
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
    _link(messages)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise BadCases(f"{place}: user_prompt: got no transcript with an answer of the agent")
    return messages


def _message(who: str, text: str, place: str) -> dict[str, Any]:
    if who == "User:":
        return {"role": "user", "content": text}
    if who == "Assistant:":
        return {"role": "assistant", "content": text}
    if who.startswith("Tool "):
        return {"role": "tool", "tool_call_id": who[5:-1], "content": text}
    call = _CALL.fullmatch(text)
    try:
        arguments = ast.literal_eval(call[2]) if call else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        arguments = None
    if call is None or not isinstance(arguments, dict):
        raise BadCases(f"{place}: got {text[:80]!r}, wanted NAME {{ARGUMENTS}}")
    function = {"name": call[1], "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def _link(messages: Sequence[dict[str, Any]]) -> None:
    """Set the id of each call to the id of its result; results are in the order of the calls."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    results = [message for message in messages if message["role"] == "tool"]
    for call, result in zip(calls, results, strict=False):
        call["id"] = result["tool_call_id"]
