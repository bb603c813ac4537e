"""An agent in another language answers through the connector `grpc`."""

import pytest

from ..connectors.building import built, failure, texts, turn
from .examples import LANGUAGES, Language, started

pytestmark = pytest.mark.interop

WITH_AGENT = [language for language in LANGUAGES if language.agent]


@pytest.mark.parametrize("language", WITH_AGENT, indirect=True, ids=lambda language: language.name)
async def test_an_agent_answers_with_its_tools(language: Language) -> None:
    with started(language, "--listen", "127.0.0.1:0", command=language.agent) as agent:
        async with built("grpc", agent.listening()) as connector:
            invocation = await connector.invoke(turn("Where is order 10423?"))
            assert texts(invocation) == [
                ("assistant", ""),
                ("tool", '{"found":true,"state":"shipped"}'),
                ("assistant", "Order 10423 is shipped."),
            ]
            (call,) = invocation.messages[0].tool_calls
            assert (call.function.name, call.function.arguments) == ("look_up_order", '{"number":"10423"}')
            assert invocation.messages[1].tool_call_id == call.id
            assert (await failure(connector, turn(""))).code == "CONNECTOR_REFUSED"
        assert agent.terminate() == 0
