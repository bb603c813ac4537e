"""Judge files of tau2-bench: conversations of an agent with tools, as recorded judges saw them.

github.com/sierra-research/tau2-bench, MIT. Reads JSON Lines with conversation_id, user_prompt (in
which the transcript stands) and programmatic_reward: what the benchmark's own checker found, 1 when
the task was solved. That label is a program's, not a person's.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from evald_server.calibration.cases import Case

from .records import BadCases, Record, text_at

_TRANSCRIPT: Final = "\nConversation transcript:\n"
_INSTRUCTIONS: Final = "\nJudging instructions:\n"
_POLICY: Final = re.compile(r"\nDomain policy[^\n]*:\n(.*)", re.DOTALL)
_ENTRY: Final = re.compile(
    r"^(\d+)\. (Assistant TOOL CALL ->|Assistant:|User:|Tool \S+:)(?: |$)", re.MULTILINE
)
_CALL: Final = re.compile(r"(\S+) (.*)", re.DOTALL)


def fits(data: Mapping[str, Any]) -> bool:
    """Whether a record is of these files."""
    return {"conversation_id", "user_prompt", "programmatic_reward"} <= data.keys()


def conversations(records: Sequence[Record]) -> int:
    """How many different conversations were judged: several judges saw each."""
    return len({record.data.get("conversation_id") for record in records})


def read(records: Sequence[Record]) -> Iterator[Case]:
    """A case a conversation. The policy, where the judge saw one, goes into the criteria. Raises BadCases."""
    seen: dict[str, Record] = {}
    for record in records:
        seen.setdefault(text_at(record, "conversation_id"), record)
    for name, record in seen.items():
        reward = record.data["programmatic_reward"]
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
    """The numbered entries as messages, up to the agent's last words: what the user says after them is not
    judged. An entry may go over many lines, so only the number that is next begins another one."""
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
            # The transcript has a line for each call of a message, below that of its text.
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
    _link(messages)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not messages:
        raise BadCases(f"{place}: user_prompt: no transcript with an answer of the agent in it")
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
    except (ValueError, SyntaxError):
        arguments = None
    if call is None or not isinstance(arguments, dict):
        raise BadCases(f"{place}: got {text[:80]!r}, wanted NAME {{ARGUMENTS}}")
    function = {"name": call[1], "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def _link(messages: Sequence[dict[str, Any]]) -> None:
    """Give every call the id of its result: the transcript shows results in the order of the calls."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    results = [message for message in messages if message["role"] == "tool"]
    for call, result in zip(calls, results, strict=False):
        call["id"] = result["tool_call_id"]
