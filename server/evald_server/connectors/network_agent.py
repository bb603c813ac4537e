"""Base classes of connectors that call an agent: they resolve headers and redact secrets in answers."""

import logging
import time
from typing import Any, Final

from evald.v1 import connector_service_pb2, context_pb2
from evald_server.remote.errors import Refusal

from .answers import bad_answer
from .connector import AgentRequest, Connector, ConnectorFailure, ConnectorOptions
from .headers import MissingSecret, ResolvedHeaders, without_secrets
from .http_client import AgentHttp, HttpConfig

_log = logging.getLogger("evald.connectors")

_MAX_FAILURE: Final = 2000


class NetworkAgent(Connector):
    """Base class of the connectors that call an agent: a subclass implements `answer`."""

    def __init__(self, pb: connector_service_pb2.Connector, config: Any, options: ConnectorOptions) -> None:
        self._stored_headers = dict(pb.headers)
        self._options = options

    async def invoke(self, request: AgentRequest) -> context_pb2.Invocation:
        """See Connector. Headers are resolved here, and their secrets removed from answers and errors."""
        try:
            headers = self._options.secrets.resolve(self._stored_headers, request.headers)
        except MissingSecret as problem:
            raise ConnectorFailure("CONNECTOR_CONFIG", str(problem)) from None
        began = time.time_ns()
        try:
            invocation = await self.answer(request, headers)
        except ConnectorFailure as failure:
            text = headers.redactor.redact_text(failure.message)[:_MAX_FAILURE]
            text = "".join(character if character.isprintable() else " " for character in text)
            raise ConnectorFailure(failure.code, text, retryable=failure.retryable) from None
        except Refusal as problem:
            raise ConnectorFailure(
                "CONNECTOR_CONFIG", problem.message.replace("target", "base_url", 1)
            ) from None
        except (TypeError, OverflowError, RecursionError, UnicodeError) as problem:
            # The exception's text may contain data of the agent.
            _log.warning("the answer of an agent cannot be read: %s", type(problem).__name__)
            raise bad_answer("the answer cannot be read") from None
        invocation.start_time.FromNanoseconds(began)
        return without_secrets(invocation, headers.secrets)

    async def answer(self, request: AgentRequest, headers: ResolvedHeaders) -> context_pb2.Invocation:
        """Return the agent's answer. Raises ConnectorFailure, and Refusal for an address that is not allowed."""
        raise NotImplementedError


class HttpAgent(NetworkAgent):
    """Base class of the connectors over HTTP."""

    def __init__(
        self, pb: connector_service_pb2.Connector, config: HttpConfig, options: ConnectorOptions
    ) -> None:
        super().__init__(pb, config, options)
        self._config = config
        url = options.targets.read_url(pb.base_url)
        self._http = AgentHttp(url, options.targets.resolver, config, options.yield_to_calls)

    async def aclose(self) -> None:
        """See Connector."""
        await self._http.close()
