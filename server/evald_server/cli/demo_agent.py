"""A small agent with two tools, to try connectors and scenarios with, and for `evald demo`.

It books appointments by rules, without a model, so its answers are deterministic. It keeps no state: the messages
have all its data, as with most agents over HTTP. It serves gRPC and HTTP:
python -m evald_server.cli.demo_agent --grpc 127.0.0.1:50071 --http 127.0.0.1:8071
"""

import argparse
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from evald.agent.v1 import agent_service_pb2, agent_service_pb2_grpc
from evald.messages import fill_messages

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
SLOTS = ("09:00", "10:30", "14:00")


def find_slots(day: str) -> list[str]:
    """Tool: return the free slots of a day."""
    return [slot for at, slot in enumerate(SLOTS) if (DAYS.index(day) + at) % 3]


def book(day: str, slot: str) -> dict[str, str]:
    """Tool: book a slot. Returns the reference."""
    return {"reference": f"BK-{DAYS.index(day) + 1}{slot.replace(':', '')}"}


TOOLS: dict[str, Callable[..., Any]] = {"find_slots": find_slots, "book": book}


def respond(said: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the agent's new messages. said: (role, text) of each message so far."""
    user = [text.lower() for role, text in said if role == "user"]
    days = [day for text in user for day in DAYS if day in text]
    slots = re.findall(r"\b\d\d:\d\d\b", user[-1]) if user else []
    if not days:
        return [_says("I can book an appointment for you. For which day of the week?")]
    day = days[-1]
    if not slots:
        call, free = _calls("find_slots", day=day)
        return [*call, _says(f"On {day.title()} I have {' and '.join(free)}. Which one?")]
    if slots[-1] not in find_slots(day):
        return [_says(f"{slots[-1]} is taken on {day.title()}. I have {' and '.join(find_slots(day))}.")]
    call, booked = _calls("book", day=day, slot=slots[-1])
    return [*call, _says(f"Booked: {day.title()} at {slots[-1]}. Your reference is {booked['reference']}.")]


def _says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _calls(name: str, **arguments: str) -> tuple[list[dict[str, Any]], Any]:
    """Call a tool. Returns the messages of call and result, and the result."""
    result = TOOLS[name](**arguments)
    call = {
        "id": f"call-{name}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)},
    ], result


class BookingService(agent_service_pb2_grpc.AgentServiceServicer):
    """The agent over gRPC: connector type "grpc"."""

    def Invoke(  # noqa: N802 - the contract's name
        self, request: agent_service_pb2.InvokeRequest, context: grpc.ServicerContext
    ) -> agent_service_pb2.InvokeResponse:
        """Return the agent's response to the conversation."""
        response = agent_service_pb2.InvokeResponse()
        said = [(message.role, message.text) for message in request.messages]
        fill_messages(respond(said), response.invocation.messages)
        return response


class BookingHandler(BaseHTTPRequestHandler):
    """The agent over HTTP: connector type "http", without any config."""

    def do_POST(self) -> None:
        """Answer {"messages": [...]} with {"messages": [...]}: only the new messages."""
        try:
            data = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
            said = [(str(one["role"]), str(one.get("content") or "")) for one in data["messages"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            self._send(400, {"error": 'wanted {"messages": [{"role": "user", "content": "..."}]}'})
            return
        self._send(200, {"messages": respond(said)})

    def _send(self, status: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serve_agent(grpc_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0") -> Iterator[list[str]]:
    """Serve the agent. Yields both addresses, gRPC first; port 0 picks a free one."""
    server = grpc.server(ThreadPoolExecutor(8))
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(BookingService(), server)
    host, _, port = http_address.rpartition(":")
    web = ThreadingHTTPServer((host, int(port)), BookingHandler)
    grpc_port = server.add_insecure_port(grpc_address)
    server.start()
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield [f"{grpc_address.rpartition(':')[0]}:{grpc_port}", f"{host}:{web.server_port}"]
    finally:
        web.shutdown()
        web.server_close()
        server.stop(1).wait()


def main() -> None:
    """Serve on both addresses until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A small agent with two tools.")
    parser.add_argument("--grpc", default="127.0.0.1:50071", metavar="HOST:PORT", help="port 0: any free one")
    parser.add_argument("--http", default="127.0.0.1:8071", metavar="HOST:PORT", help="port 0: any free one")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with serve_agent(options.grpc, options.http) as addresses:
        sys.stdout.write("booking agent: grpc {}, http {}\n".format(*addresses))
        sys.stdout.flush()
        stop.wait()


if __name__ == "__main__":
    main()
