"""ScenarioService."""

from typing import Final

from evald.chat import ROLES, message_text
from evald.errors import InvalidInput
from evald.v1 import scenario_service_pb2 as pb
from evald.v1.context_pb2 import Scenario
from evald_server.call_errors import BadField
from evald_server.engine.planner import Planner
from evald_server.runs.rules import counted_roles, most_messages
from evald_server.runs.simulator import simulator_prompt
from evald_server.store.resources import ResourceKind, ResourceStore

from .errors import impossible_values
from .personas import PersonaService
from .resources import ResourceService
from .server import Methods

_ENUMS: Final = {"failure_criteria_mode": 2, "criteria_policy": 2, "on_assertion_failure": 2}


class ScenarioService(ResourceService[Scenario]):
    """Handlers of ScenarioService."""

    kind = ResourceKind.SCENARIO
    message = Scenario
    requests = pb
    plural = "Scenarios"

    def __init__(
        self, store: ResourceStore, planner: Planner, personas: PersonaService, max_messages: int
    ) -> None:
        super().__init__(store)
        self._planner = planner
        self._personas = personas
        self._max_messages = max_messages

    def methods(self) -> Methods:
        """See ResourceService."""
        return super().methods() | {"GetScenarioPrompt": self.get_prompt}

    async def problems(self, resource: Scenario) -> list[BadField]:
        """See ResourceService."""
        found = [
            BadField(f"scenario.{name}", f"got {getattr(resource, name)}, wanted a value this server knows")
            for name, largest in _ENUMS.items()
            if not 0 <= getattr(resource, name) <= largest
        ]
        criteria = resource.success_criteria.strip() or resource.failure_criteria.strip()
        if not criteria and not resource.evaluators:
            found.append(BadField("scenario", "Scenario must have evaluation criteria"))
        found += self._length_problems(resource)
        found += _message_problems(resource)
        found += [
            BadField(f"scenario.{one.field}", one.message, one.reason)
            for one in await self._planner.violations(resource.evaluators)
        ]
        return found + await self._personas.unknown(resource.persona_ids, "scenario.persona_ids")

    async def get_prompt(self, request: pb.GetScenarioPromptRequest) -> pb.GetScenarioPromptResponse:
        """Return the prompt and the messages for the simulated user of a scenario."""
        scenario = await self.load(request.scenario_id)
        persona = await self._personas.load(request.persona_id, "persona_id") if request.persona_id else None
        system_prompt, messages = simulator_prompt(scenario, persona)
        return pb.GetScenarioPromptResponse(system_prompt=system_prompt, messages=messages)

    def _length_problems(self, scenario: Scenario) -> list[BadField]:
        """Return a problem if max_messages is invalid or leaves no room for the agent's answer."""
        wanted = most_messages(scenario)
        field = "scenario.max_messages"
        if not 1 <= wanted <= self._max_messages:
            return [BadField(field, f"got {wanted}, wanted 1 to {self._max_messages}")]
        spoken = counted_roles(scenario)
        least = len(spoken) + (1 if spoken and spoken[-1] == "user" else 2)
        if wanted < least:
            return [
                BadField(
                    field,
                    f"got {wanted}, wanted {least} or more: the conversation starts with {len(spoken)} messages, "
                    f"and the agent must be able to answer",
                )
            ]
        return []


def _message_problems(scenario: Scenario) -> list[BadField]:
    """Return problems of messages that agents or evaluators cannot read."""
    found = []
    for number, message in enumerate(scenario.messages):
        field = f"scenario.messages[{number}]"
        if message.role not in ROLES:
            got = f'got "{message.role[:60]}"' if message.role else "missing"
            found.append(BadField(f"{field}.role", f"{got}; wanted one of {', '.join(ROLES)}"))
        try:
            message_text(message)
        except InvalidInput as problem:
            wrong = problem.below(field)
            found.append(BadField(wrong.path, f"{wrong.got}; wanted {wrong.wanted}"))
        found += impossible_values(message, field)
    return found
