"""PersonaService."""

from collections.abc import Callable
from typing import Final

from evald.v1 import persona_service_pb2
from evald.v1.context_pb2 import Persona
from evald_server.call_errors import BadField
from evald_server.connectors.build import Connectors
from evald_server.connectors.headers import mask, unmask
from evald_server.store.resources import ResourceKind, ResourceStore

from .resources import ResourceService

# Maximum messages in one script.
_MAX_SCRIPT: Final = 1000


class PersonaService(ResourceService[Persona]):
    """Handlers of PersonaService."""

    kind = ResourceKind.PERSONA
    message = Persona
    requests = persona_service_pb2
    plural = "Personas"

    def __init__(
        self, store: ResourceStore, connectors: Connectors, judge_problem: Callable[[str], str]
    ) -> None:
        """judge_problem: returns the problem with the name of a judge, "" if there is none."""
        super().__init__(store)
        self._connectors = connectors
        self._judge_problem = judge_problem

    async def problems(self, resource: Persona) -> list[BadField]:
        """See ResourceService."""
        found = [
            BadField(path, text)
            for path, text in self._connectors.secrets.violations(resource.headers, "persona.headers")
        ]
        if len(resource.script) > _MAX_SCRIPT:
            text = f"got {len(resource.script)} messages, wanted at most {_MAX_SCRIPT}"
            found.append(BadField("persona.script", text))
        found += [
            BadField(f"persona.script[{number}]", "empty; wanted the text that the persona sends")
            for number, text in enumerate(resource.script)
            if not text.strip()
        ]
        problem = self._judge_problem(resource.judge) if resource.judge else ""
        if problem:
            found.append(BadField("persona.judge", problem))
        return found

    def shown(self, resource: Persona) -> Persona:
        """See ResourceService."""
        mask(resource.headers)
        return resource

    def keep_hidden(self, updated: Persona, stored: Persona, sent: Persona) -> None:
        """See ResourceService."""
        unmask(updated.headers, stored.headers)
