"""The requests: an airline agent's turn of 2.9 KB, five deterministic evaluators, an answer of 700 bytes of JSON.

The requests are deterministic and every evaluator passes, so that every server does all the work.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from evald.v1 import context_pb2, evaluation_service_pb2, evaluator_pb2, message_pb2

PLUGINS: Final = Path(__file__).with_name("plugins.py")

BATCH_ITEMS: Final = 256
BATCH_MESSAGES: Final = 8
SESSION_TURNS: Final = 100

SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["booking", "passenger", "segments", "price", "policy", "next_steps"],
    "additionalProperties": False,
    "properties": {
        "booking": {"type": "string", "pattern": "^BK-[0-9]{6}$"},
        "passenger": {
            "type": "object",
            "required": ["id", "name"],
            "properties": {"id": {"type": "string"}, "name": {"type": "string", "minLength": 1}},
        },
        "segments": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["flight", "from", "to", "date", "cabin"],
                "properties": {
                    "flight": {"type": "string", "pattern": "^[A-Z]{3}[0-9]{3}$"},
                    "from": {"type": "string", "minLength": 3, "maxLength": 3},
                    "to": {"type": "string", "minLength": 3, "maxLength": 3},
                    "date": {"type": "string"},
                    "cabin": {"enum": ["basic_economy", "economy", "business"]},
                },
            },
        },
        "price": {
            "type": "object",
            "required": ["amount", "currency"],
            "properties": {"amount": {"type": "number", "minimum": 0}, "currency": {"const": "USD"}},
        },
        "policy": {"type": "string"},
        "next_steps": {"type": "array", "items": {"type": "string"}},
    },
}
PATTERN: Final = r"BK-[0-9]{6}"
SUBSTRINGS: Final = ("HAT170", "refund", "USD")
MAX_LATENCY_MS: Final = 3000
MAX_TOKENS: Final = 2000

LATENCY_MS: Final = 1234
INPUT_TOKENS: Final = 812
OUTPUT_TOKENS: Final = 203

_SYSTEM = (
    "You are an agent of an airline. You may book, change and cancel reservations. Before any change, list the "
    "details of what you are going to do and obtain explicit consent. Basic economy cannot be changed; it can be "
    "cancelled within 24 hours of booking. Refunds go to the original payment method within 5 to 7 business days. "
    "Answer in JSON only, following the schema that you have been given. Say nothing that no tool "
    "has told you."
)
_QUESTION = (
    "Hello, I need to move my trip from Boston to Denver by one day, and my user id is mia_li_3668. If the change "
    "costs more than 100 dollars I would rather have the whole reservation cancelled and get my money back."
)


def answer(number: int = 170_293, *, small: bool = False) -> str:
    """Return the agent's answer as JSON: about 700 bytes, or 300 if small. number: booking number, six digits."""
    segment = {"flight": "HAT170", "from": "BOS", "to": "DEN", "date": "2026-05-21", "cabin": "economy"}
    onward = {"flight": "HAT211", "from": "DEN", "to": "SEA", "date": "2026-05-24", "cabin": "economy"}
    return json.dumps(
        {
            "booking": f"BK-{number:06d}",
            "passenger": {"id": "mia_li_3668", "name": "Mia Li"},
            "segments": [segment] if small else [segment, onward],
            "price": {"amount": 86.5, "currency": "USD"},
            "policy": "A refund goes to the original payment method."
            if small
            else "Economy can be changed for a fee of 86.50 USD, which is below the limit of 100 USD that you gave. "
            "A refund, should you cancel later, goes to the original payment method in 5 to 7 business days.",
            "next_steps": []
            if small
            else [
                "You receive a confirmation by mail within the hour.",
                "Check in opens 24 hours before departure; seats are assigned there.",
            ],
        }
    )


def specs(copies: int = 1) -> list[evaluator_pb2.EvaluatorSpec]:
    """Return the five evaluators, repeated. Each copy has a different config, so that none is shared."""
    found = []
    for number in range(copies):
        suffix = f"-{number}" if copies > 1 else ""
        for kind, config in (
            ("json-schema", {"schema": {**SCHEMA, "title": f"Answer{suffix}"}}),
            ("regex", {"pattern": PATTERN if not number else f"{PATTERN}|never{number}"}),
            ("contains", {"substrings": list(SUBSTRINGS)}),
            ("latency-budget", {"maxMs": MAX_LATENCY_MS + number}),
            ("token-budget", {"maxTokens": MAX_TOKENS + number}),
        ):
            found.append(_spec(kind, config, f"{kind}{suffix}" if suffix else ""))
    return found


def catastrophic_specs() -> list[evaluator_pb2.EvaluatorSpec]:
    """Return regex evaluators whose patterns take a backtracking engine exponential time."""
    return [
        _spec("regex", {"pattern": r"^(a+)+$", "mustMatch": False}, "nested"),
        _spec("regex", {"pattern": r"(a|aa)+b", "mustMatch": False}, "overlapping"),
        _spec("regex", {"pattern": r"(.*a){12}b", "mustMatch": False}, "counted"),
    ]


def catastrophic_context() -> context_pb2.EvaluatorContext:
    """Return a turn with an answer of 3 KB that almost matches the catastrophic patterns."""
    context = context_pb2.EvaluatorContext()
    context.messages.add(role="user", text="Say a.")
    context.messages.add(role="assistant", text="a" * 3000 + "!")
    return context


def context(number: int = 170_293, *, messages: int = 5) -> context_pb2.EvaluatorContext:
    """Return a turn. messages: length of the conversation, at least 5; the last turn and the system prompt are 5."""
    pb = context_pb2.EvaluatorContext(turn=1, is_final=True)
    pb.messages.add(role="system", text=_SYSTEM)
    for index in range(messages - 5):
        if index % 2:
            pb.messages.add(
                role="assistant", text=f"Flight HAT{index:03d} is on time, at 14:{index % 60:02d}."
            )
        else:
            pb.messages.add(role="user", text=f"Question {index}: is flight HAT{index:03d} on time today?")
    pb.messages.add(role="user", text=_QUESTION)
    call = message_pb2.ToolCall(id="call_1")
    call.function.name = "get_reservation_details"
    call.function.arguments = json.dumps({"reservation_id": f"BK-{number:06d}"})
    pb.messages.add(role="assistant", tool_calls=[call])
    pb.messages.add(
        role="tool",
        tool_call_id="call_1",
        text=json.dumps(
            {"reservation_id": f"BK-{number:06d}", "cabin": "economy", "fare": 412.0, "fee": 86.5}
        ),
    )
    pb.messages.add(role="assistant", text=answer(number))
    _measured(pb.last_invocation)
    return pb


def evaluate_request(*, copies: int = 1, messages: int = 5) -> evaluation_service_pb2.EvaluateRequest:
    """Return the request of Evaluate, 2.9 KB by default."""
    return evaluation_service_pb2.EvaluateRequest(
        context=context(messages=messages), evaluators=specs(copies)
    )


def unary_request(*, copies: int = 1, messages: int = 5) -> evaluation_service_pb2.EvaluateUnaryRequest:
    """Return the same request for EvaluateUnary."""
    return evaluation_service_pb2.EvaluateUnaryRequest(
        request=evaluate_request(copies=copies, messages=messages)
    )


def judge_request() -> evaluation_service_pb2.EvaluateUnaryRequest:
    """Return the same turn with a judge as its only evaluator."""
    request = evaluation_service_pb2.EvaluateRequest(
        context=context(),
        evaluators=[_spec("llm-judge", {"criteria": "The agent did what it was asked, within its policy."})],
    )
    return evaluation_service_pb2.EvaluateUnaryRequest(request=request)


def as_sent(raw_request: Struct) -> dict[str, Any]:
    """Return the body of a judge's request, from a result. Restore integers, because a Struct has only doubles."""
    body = json.loads(json_format.MessageToJson(raw_request))
    assert isinstance(body, dict)
    return {
        key: int(value) if isinstance(value, float) and key != "temperature" else value
        for key, value in body.items()
    }


def catastrophic_request() -> evaluation_service_pb2.EvaluateUnaryRequest:
    """Return a call whose patterns block a server with a backtracking engine."""
    request = evaluation_service_pb2.EvaluateRequest(
        context=catastrophic_context(), evaluators=catastrophic_specs()
    )
    return evaluation_service_pb2.EvaluateUnaryRequest(request=request)


def session(turns: int = SESSION_TURNS) -> list[evaluation_service_pb2.EvaluateSessionRequest]:
    """Return the frames of a session: the opening, which gets no answer, and `turns` small turns of equal size."""
    opened = evaluation_service_pb2.EvaluateSessionRequest()
    opened.open.base_context.messages.add(role="system", text=_SYSTEM)
    opened.open.evaluators.extend(specs())
    frames = [opened]
    for number in range(1, turns + 1):
        frame = evaluation_service_pb2.EvaluateSessionRequest()
        turn = frame.turn
        turn.turn_id = number
        turn.new_messages.add(role="user", text="And what if I leave a day later instead?")
        turn.new_messages.add(role="assistant", text=answer(number, small=True))
        _measured(turn.last_invocation)
        frames.append(frame)
    return frames


def batch(
    messages: int = BATCH_MESSAGES, items: int = BATCH_ITEMS
) -> list[evaluation_service_pb2.EvaluateBatchRequest]:
    """Return `messages` messages of a batch with `items` items each. The first one also opens the batch."""
    requests = []
    for index in range(messages):
        request = evaluation_service_pb2.EvaluateBatchRequest()
        if not index:
            request.open.evaluators.extend(specs())
        for number in range(index * items, (index + 1) * items):
            request.items.add(item_id=f"case-{number}", context=context(number))
        requests.append(request)
    return requests


def framed(messages: Iterable[bytes]) -> bytes:
    """Frame messages as gRPC does: a byte for "uncompressed", four bytes of length, the message."""
    return b"".join(b"\0" + struct.pack(">I", len(message)) + message for message in messages)


def _spec(kind: str, config: Mapping[str, Any], name: str = "") -> evaluator_pb2.EvaluatorSpec:
    data = Struct()
    data.update(dict(config))
    return evaluator_pb2.EvaluatorSpec(type=kind, name=name, config=data)


def _measured(invocation: context_pb2.Invocation) -> None:
    invocation.latency.FromMilliseconds(LATENCY_MS)
    invocation.token_usage.input_tokens = INPUT_TOKENS
    invocation.token_usage.output_tokens = OUTPUT_TOKENS
    invocation.model = "gpt-4o-2024-11-20"
