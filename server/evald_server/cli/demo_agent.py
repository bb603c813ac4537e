"""A small agent with two tools, for `evald demo` and to try scenarios with.

It books appointments by a handful of rules, without a model, and serves evald.agent.v1.AgentService:
python -m evald_server.cli.demo_agent [HOST:PORT]
"""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import grpc

from evald.agent.v1 import agent_service_pb2, agent_service_pb2_grpc
from evald.v1 import message_pb2

_FREE: Final = {"thursday": ("11:00",), "friday": ("10:00", "15:30")}


def find_slots(day: str) -> dict[str, Any]:
    """Return the free times of a day."""
    return {"day": day, "slots": _FREE.get(day, ())}


def book(day: str, time: str) -> dict[str, Any]:
    """Book a time and return the reference."""
    if time not in _FREE.get(day, ()):
        return {"error": "not free"}
    return {"reference": f"BK-{10_000 + 100 * sorted(_FREE).index(day) + int(time[:2])}"}


_TOOLS: Final[dict[str, Callable[..., dict[str, Any]]]] = {"find_slots": find_slots, "book": book}


def answer(messages: Sequence[message_pb2.ChatMessage]) -> Iterator[message_pb2.ChatMessage]:
    """Yield what the agent says to a conversation: tool calls, their results, and a text."""
    said = [message.text.lower() for message in messages if message.role == "user"]
    days = [day for text in said for day in _FREE if day in text]
    times = re.findall(r"\b\d\d:\d\d\b", said[-1]) if said else []
    if not days:
        yield _says("Which day suits you? We are open on Thursday and Friday.")
        return
    name, arguments = "find_slots", {"day": days[-1]}
    if times:
        name, arguments = "book", {"day": days[-1], "time": times[-1]}
    call_id = f"call_{len(messages)}"
    function = {"name": name, "arguments": json.dumps(arguments)}
    yield message_pb2.ChatMessage(
        role="assistant", tool_calls=[message_pb2.ToolCall(id=call_id, type="function", function=function)]
    )
    result = _TOOLS[name](**arguments)
    yield message_pb2.ChatMessage(role="tool", tool_call_id=call_id, name=name, text=json.dumps(result))
    day = days[-1].title()
    if "reference" in result:
        yield _says(f"Booked: {day} at {times[-1]}. Your reference is {result['reference']}.")
    elif result.get("slots"):
        yield _says(f"On {day} you can come at {' or '.join(result['slots'])}. When shall I book it?")
    else:
        yield _says(f"I am sorry, that is not free. Shall I look for another time on {day}?")


def _says(text: str) -> message_pb2.ChatMessage:
    return message_pb2.ChatMessage(role="assistant", text=text)


class BookingAgent(agent_service_pb2_grpc.AgentServiceServicer):
    """Answers as `answer` does."""

    def Invoke(  # noqa: N802 - gRPC's name
        self, request: agent_service_pb2.InvokeRequest, context: grpc.ServicerContext
    ) -> agent_service_pb2.InvokeResponse:
        """Answer what the user said last."""
        response = agent_service_pb2.InvokeResponse()
        response.invocation.messages.extend(answer(request.messages))
        return response


@contextmanager
def serve_agent(address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve the agent. Yields its address."""
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(BookingAgent(), server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        server.stop(None).wait()


if __name__ == "__main__":
    with serve_agent(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50062") as served:
        sys.stdout.write(f"the agent listens on {served}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
