"""One call of an agent, and the checks of its answer."""

from typing import Final

from evald.blocks import UnreadableContent
from evald.chat import message_text
from evald.v1 import context_pb2, message_pb2
from evald_server.connectors.connector import AgentRequest, Connector, ConnectorFailure
from evald_server.engine.contexts import Contexts, InvalidContext, check_invocation

# A conversation with an agent stays in memory to its end. Most connectors could not send more either.
_MAX_CONVERSATION_BYTES: Final = 32 << 20


async def call_agent(
    connector: Connector, request: AgentRequest, contexts: Contexts
) -> context_pb2.Invocation:
    """Return the agent's answer: at least one message, none of role "user". Raises ConnectorFailure."""
    size = sum(message.ByteSize() for message in request.messages)
    if size > _MAX_CONVERSATION_BYTES:
        raise ConnectorFailure(
            "CONNECTOR_BAD_ANSWER",
            f"the conversation has {size} bytes, wanted at most {_MAX_CONVERSATION_BYTES}; have the agent answer shorter",
        )
    answer = await connector.invoke(request)
    try:
        check_invocation(answer, "answer")
        contexts.complete_messages(answer, "answer")
    except InvalidContext as problem:
        raise bad_answer(problem.message) from None
    if not answer.messages:
        raise bad_answer("answer.messages: empty, wanted at least one")
    if any(message.role == "user" for message in answer.messages):
        raise bad_answer('answer.messages: got a message of role "user", wanted messages of the agent only')
    return answer


def goes_on(message: message_pb2.ChatMessage) -> bool:
    """Return whether an agent that pauses continues after this message: a mere tool call, or its result."""
    return message.role == "tool" or bool(message.tool_calls and not message_text(message))


def check_readable(message: message_pb2.ChatMessage, path: str) -> None:
    """Raise UnreadableContent with this path if the message's content is unreadable."""
    try:
        message_text(message)
    except UnreadableContent as problem:
        raise problem.below(path) from None


def bad_answer(problem: str) -> ConnectorFailure:
    """Return the failure for an unusable answer of an agent."""
    return ConnectorFailure("CONNECTOR_BAD_ANSWER", f"The agent's answer cannot be used: {problem}")
