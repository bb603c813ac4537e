"""Connector `langgraph`: a graph behind the API of LangGraph servers."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field

from evald.convert.context import TurnData
from evald.convert.json_shapes import message_to_openai
from evald.fields import shown
from evald.v1 import context_pb2
from evald_server.loop import in_thread_if_large
from evald_server.remote.errors import printable

from .answers import bad_answer, set_times, to_invocation
from .connector import AgentRequest, ConnectorFailure
from .headers import ResolvedHeaders
from .http_client import HttpConfig
from .network_agent import HttpAgent


class LangGraphConfig(HttpConfig):
    """Config of `langgraph`."""

    assistant_id: str = Field(min_length=1, description="Id of the assistant, or name of the graph.")
    configurable: dict[str, Any] = Field({}, description="Values for config.configurable of the graph.")


class LangGraph(HttpAgent):
    """A graph behind the API of a LangGraph server, which keeps the conversation in a thread."""

    type_name = "langgraph"
    label = "LangGraph"
    config_model = LangGraphConfig
    pauses = True  # a graph can interrupt before its tools
    _config: LangGraphConfig

    async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
        """Send the messages that the thread does not have yet, and return the messages that the graph adds."""
        thread = _uuid(request.thread_id)
        # With fixed ids, a message that is sent twice is only once in the thread.
        ids = [message.id or str(uuid5(thread, str(at))) for at, message in enumerate(request.messages)]
        new = [
            {**message_to_openai(request.messages[at]), "id": ids[at]}
            for at in range(_first_new(request), len(ids))
        ]
        body: dict[str, Any] = {
            "assistant_id": self._config.assistant_id,
            # None without new messages: the graph continues where it stopped.
            "input": {"messages": new} if new else None,
            "if_not_exists": "create",
            "multitask_strategy": "enqueue",
        }
        if self._config.configurable:
            body["config"] = {"configurable": self._config.configurable}
        path = f"/threads/{thread}/runs/wait"
        answer = await self._http.send("POST", path, body, headers, key=request.request_id)
        found = TurnData(response=_added(answer.data, frozenset(ids)))
        invocation = await in_thread_if_large(answer.size, to_invocation, found, self._options.max_messages)
        set_times(invocation, answer.seconds, None)
        return invocation


def _uuid(thread_id: str) -> UUID:
    """Return the thread's id as a UUID, as LangGraph requires; if it is no UUID, a hash of it."""
    try:
        return UUID(thread_id)
    except ValueError:
        return uuid5(NAMESPACE_URL, thread_id)


def _first_new(request: AgentRequest) -> int:
    """Return the index of the first message that the thread does not have.

    The first turn sends all messages; later turns send only those after the graph's last message.
    """
    messages = request.messages
    answered = (at for at in range(len(messages), 0, -1) if messages[at - 1].role in ("assistant", "tool"))
    last = next(answered, 0)
    return 0 if request.turn <= 1 and last < len(messages) else last


def _added(state: Any, known: frozenset[str]) -> list[Any]:
    """Return the messages of the state after the user's last one, without those in `known`."""
    problem = state.get("__error__") if isinstance(state, Mapping) else None
    if problem:
        raise ConnectorFailure(
            "CONNECTOR_UNAVAILABLE", f"the graph failed: {printable(json.dumps(problem))}", retryable=True
        )
    messages = state.get("messages") if isinstance(state, Mapping) else None
    if not isinstance(messages, list):
        raise bad_answer(f"{shown(state)}, wanted the state of a graph, with a list of messages")
    start = len(messages)
    while start and not _is_user(messages[start - 1]):
        start -= 1
    return [one for one in messages[start:] if not (isinstance(one, Mapping) and str(one.get("id")) in known)]


def _is_user(message: Any) -> bool:
    return isinstance(message, Mapping) and (message.get("type") or message.get("role")) in ("human", "user")
