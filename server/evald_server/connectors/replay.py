"""Connector `replay`: a recorded conversation of user and agent."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic import Field

from evald.errors import InvalidInput
from evald.fields import duration_to_pb, number, shown, snake
from evald.messages import fill_messages
from evald.shapes import read_usage
from evald.shapes.usage import add_usages, of_whole_turn
from evald.structs import struct_to_dict
from evald.v1 import connector_service_pb2, context_pb2, message_pb2
from evald_server.engine.contexts import MAX_COST, MAX_SECONDS, MAX_TOKENS

from .connector import (
    AgentRequest,
    ChatMessages,
    Connector,
    ConnectorConfig,
    ConnectorFailure,
    ConnectorOptions,
)

_ALIASES: Final = {"token_usage": "usage", "tokens_usage": "usage", "cost_usd": "cost"}

# timestamp: the year 9999.
_MOST: Final = {
    "latency_ms": 1000 * MAX_SECONDS,
    "cost": MAX_COST,
    "timestamp": 253_402_300_799,
    "usage": MAX_TOKENS,
}


class ReplayConfig(ConnectorConfig):
    """Config of `replay`."""

    messages: list[Any] | dict[str, Any] = Field(
        description="The conversation, in OpenAI's format or that of another framework."
    )
    message_meta: list[dict[str, Any] | None] = Field(
        [],
        description="Recorded metadata of each message, in the same order: usage, cost (USD), "
        "latencyMs, timestamp (ISO 8601), model. It can also be in the metadata of the "
        "messages themselves.",
    )


class _Recorded(NamedTuple):
    """One message and its recorded metadata, with keys in snake_case."""

    pb: message_pb2.ChatMessage
    meta: Mapping[str, Any]


class _RecordedTurn(NamedTuple):
    user: _Recorded
    answer: list[_Recorded]


class Replay(Connector):
    """A recorded conversation: both the user's and the agent's messages come from the recording, and no agent is called."""

    type_name = "replay"
    label = "Replay"
    config_model = ReplayConfig

    def __init__(
        self, pb: connector_service_pb2.Connector, config: ReplayConfig, options: ConnectorOptions
    ) -> None:
        if pb.base_url:
            raise InvalidInput("base_url", shown(pb.base_url), "none: a recording has no address")
        recorded = _read(config, options.max_messages)
        self._opening: list[message_pb2.ChatMessage] = []
        self._turns: list[_RecordedTurn] = []
        for index, message in enumerate(recorded):
            if message.pb.role == "user":
                if self._turns and not self._turns[-1].answer:
                    raise InvalidInput(
                        f"config.messages[{index}]",
                        "a second user message in a row",
                        "an answer of the agent between them, or one joined message",
                    )
                self._turns.append(_RecordedTurn(message, []))
            elif self._turns:
                self._turns[-1].answer.append(message)
            else:
                self._opening.append(message.pb)
        if self._turns and not self._turns[-1].answer:
            self._turns.pop()  # the user's last message, which has no answer
        if not self._turns:
            raise InvalidInput("config.messages", "no user message with an answer", "at least one")

    @property
    def brings_user(self) -> bool:
        """See Connector."""
        return True

    @property
    def opening(self) -> ChatMessages:
        """See Connector. For example a system prompt or a greeting."""
        return self._opening

    def user_message(self, messages: ChatMessages) -> message_pb2.ChatMessage | None:
        """See Connector."""
        said = _users(messages)
        return self._turns[said].user.pb if said < len(self._turns) else None

    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """Return the recorded answer to the user's last message, without messages already in the conversation."""
        turn = _users(request.messages)
        if not 0 < turn <= len(self._turns):
            raise ConnectorFailure(
                "CONNECTOR_BAD_ANSWER",
                f"the recording has answers to {len(self._turns)} user messages, but the "
                f"conversation has {turn}",
            )
        user, answer = self._turns[turn - 1]
        rest = answer[_said_since(request.messages) :]
        if not rest:
            raise ConnectorFailure(
                "CONNECTOR_BAD_ANSWER", f"the recording has no more messages of turn {turn}"
            )
        return _invocation(user, rest)


def _users(messages: ChatMessages) -> int:
    return sum(message.role == "user" for message in messages)


def _said_since(messages: ChatMessages) -> int:
    """Return how many messages follow the user's last one."""
    count = 0
    for message in reversed(messages):
        if message.role == "user":
            break
        count += 1
    return count


def _read(config: ReplayConfig, max_messages: int) -> list[_Recorded]:
    found = context_pb2.Invocation()
    whole = isinstance(config.messages, dict)
    items = [config.messages] if isinstance(config.messages, dict) else config.messages
    if len(items) > max_messages:
        raise InvalidInput("config.messages", f"{len(items)} messages", f"at most {max_messages}")
    usages: dict[int, Any] = {}
    for index, item in enumerate(items):
        try:
            reading = fill_messages([item], found.messages, "", max_messages=max_messages)
        except InvalidInput as problem:
            rest = problem.path.removeprefix("[0]")
            place = "config.messages" if whole else f"config.messages[{index}]"
            raise InvalidInput(f"{place}{rest}", problem.got, problem.wanted) from None
        if reading is not None and reading.usage and found.messages:
            usages[len(found.messages) - 1] = reading.usage
    if config.message_meta and len(config.message_meta) != len(found.messages):
        raise InvalidInput(
            "config.messageMeta",
            f"{len(config.message_meta)} entries",
            f"{len(found.messages)}, as many as messages",
        )
    recorded = []
    for index, pb in enumerate(found.messages):
        meta = {"usage": usages[index]} if index in usages else {}
        meta |= {snake(key): value for key, value in struct_to_dict(pb.metadata).items()}
        given = config.message_meta[index] if config.message_meta else None
        meta |= {snake(key): value for key, value in (given or {}).items()}
        for alias, key in _ALIASES.items():
            meta.setdefault(key, meta.get(alias))
        _check_meta(meta, f"config.messageMeta[{index}]" if given else f"config.messages[{index}].metadata")
        recorded.append(_Recorded(pb, meta))
    return recorded


def _check_meta(meta: dict[str, Any], path: str) -> None:
    for key in ("latency_ms", "cost"):
        if meta.get(key) is not None:
            _check_most(number(meta[key], f"{path}.{key}"), f"{path}.{key}", _MOST[key])
    if meta.get("usage") is not None:
        for count in read_usage(meta["usage"], f"{path}.usage").values():
            _check_most(count, f"{path}.usage", _MOST["usage"])
    if isinstance(meta.get("timestamp"), str):
        try:
            meta["timestamp"] = datetime.fromisoformat(meta["timestamp"]).timestamp()
        except (ValueError, OverflowError):
            raise InvalidInput(f"{path}.timestamp", shown(meta["timestamp"]), "a time in ISO 8601") from None
    elif meta.get("timestamp") is not None:
        since = number(meta["timestamp"], f"{path}.timestamp", unit="seconds since 1970")
        _check_most(since, f"{path}.timestamp", _MOST["timestamp"])


def _check_most(value: float, path: str, most: int) -> None:
    if value > most:
        raise InvalidInput(path, shown(value), f"at most {most}")


def _invocation(user: _Recorded, answer: Sequence[_Recorded]) -> context_pb2.Invocation:
    """Build the answer of a turn. Values that were not recorded stay unset."""
    invocation = context_pb2.Invocation(messages=[message.pb for message in answer])
    spoken = [message.meta for message in answer if message.pb.role == "assistant"]

    def known(key: str) -> list[Any]:
        return of_whole_turn([meta.get(key) for meta in spoken])

    if usages := known("usage"):
        for name, count in add_usages(usages).items():
            setattr(invocation.token_usage, name, count)
    if costs := known("cost"):
        invocation.cost.currency_code, invocation.cost.amount = "USD", sum(costs)
    models = [meta["model"] for meta in spoken if meta.get("model") is not None]
    if models:
        invocation.model = str(models[-1])
    times = [message.meta.get("timestamp") for message in (user, answer[-1])]
    if latencies := known("latency_ms"):
        duration_to_pb(sum(latencies) / 1000, invocation.latency)
    elif times[0] is not None and times[1] is not None and times[1] >= times[0]:
        duration_to_pb(times[1] - times[0], invocation.latency)
    return invocation
