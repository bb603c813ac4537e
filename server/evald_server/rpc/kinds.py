"""The kinds of resources: what each checks, and the methods that only one kind has."""

from collections.abc import Callable
from typing import Final

from evald.chat import ROLES, message_text
from evald.errors import InvalidInput
from evald.v1 import (
    connector_service_pb2,
    persona_service_pb2,  # noqa: F401 - makes the service known to protobuf
    scenario_service_pb2,
)
from evald.v1.connector_service_pb2 import Connector
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.experiment_service_pb2 import Experiment
from evald_server import methods as standard
from evald_server.call_errors import BadField, invalid, refusal
from evald_server.connectors import connector as agents
from evald_server.connectors.build import Connectors, try_connector
from evald_server.connectors.headers import MASK, may_be_shown
from evald_server.connectors.targets import destination
from evald_server.engine.planner import Planner
from evald_server.runs.rules import counted_roles, most_messages
from evald_server.runs.simulator import simulator_prompt
from evald_server.store.resources import ResourceStore

from .errors import impossible_values
from .resources import ResourceService
from .server import Methods

MAX_RUNS: Final = 1000
"""Maximum runs of one experiment."""

# Maximum messages in the script of a persona.
_MAX_SCRIPT: Final = 1000


class ResourceKinds:
    """The resources of a server, by kind."""

    def __init__(
        self,
        store: ResourceStore,
        planner: Planner,
        connectors: Connectors,
        judge_problem: Callable[[str], str],
        max_messages: int,
    ) -> None:
        """judge_problem: returns the problem with the name of a judge, "" if there is none."""
        self.scenarios = ResourceService(store, standard.SCENARIOS, Scenario, self._scenario_problems)
        self.personas = ResourceService(store, standard.PERSONAS, Persona, self._persona_problems)
        self.connectors = ResourceService(
            store, standard.CONNECTORS, Connector, self._connector_problems, _moved_values
        )
        self.experiments = ResourceService(store, standard.EXPERIMENTS, Experiment, self._experiment_problems)
        self._planner = planner
        self._connectors = connectors
        self.judge_problem = judge_problem
        self.max_messages = max_messages

    def services(self) -> dict[str, Methods]:
        """Return the handlers by service and method."""
        return {
            "evald.v1.PersonaService": self.personas.methods(),
            "evald.v1.ScenarioService": {**self.scenarios.methods(), "GetScenarioPrompt": self.get_prompt},
            "evald.v1.ConnectorService": {
                **self.connectors.methods(),
                "TestConnector": self.test_connector,
                "ListConnectorTypes": self.list_connector_types,
            },
            "evald.v1.ExperimentService": self.experiments.methods(),
        }

    async def get_prompt(
        self, request: scenario_service_pb2.GetScenarioPromptRequest
    ) -> scenario_service_pb2.GetScenarioPromptResponse:
        """Return the prompt and the messages for the simulated user of a scenario."""
        scenario = await self.scenarios.load(request.scenario_id)
        persona = await self.personas.load(request.persona_id, "persona_id") if request.persona_id else None
        system_prompt, messages = simulator_prompt(scenario, persona)
        return scenario_service_pb2.GetScenarioPromptResponse(system_prompt=system_prompt, messages=messages)

    async def test_connector(
        self, request: connector_service_pb2.TestConnectorRequest
    ) -> connector_service_pb2.TestConnectorResponse:
        """Send one message to the agent of a connector."""
        if bool(request.connector_id) == request.HasField("connector"):
            raise invalid("connector_id", "wanted exactly one of connector_id and connector")
        wanted = request.connector
        if request.connector_id:
            wanted = await self.connectors.load(request.connector_id)
        connector = self.build_connector(wanted)
        try:
            return await try_connector(connector, request.message)
        finally:
            await connector.aclose()

    async def list_connector_types(
        self, _request: connector_service_pb2.ListConnectorTypesRequest
    ) -> connector_service_pb2.ListConnectorTypesResponse:
        """List the types of connectors."""
        types = self._connectors.types()
        return connector_service_pb2.ListConnectorTypesResponse(connector_types=types)

    def build_connector(self, wanted: Connector, path: str = "connector") -> agents.Connector:
        """Build a connector without connecting. path: its field's. Raises CallError with all of its problems."""
        built = self._connectors.try_build(wanted, path)
        if isinstance(built, list):
            raise refusal([BadField(*problem) for problem in built])
        return built

    async def _scenario_problems(self, scenario: Scenario) -> list[BadField]:
        problems = [
            BadField(f"scenario.{field.name}", f"got {value}, wanted a value this server knows")
            for field, value in scenario.ListFields()
            if field.enum_type is not None and value not in field.enum_type.values_by_number
        ]
        criteria = scenario.success_criteria.strip() or scenario.failure_criteria.strip()
        if not criteria and not scenario.evaluators:
            problems.append(BadField("scenario", "Scenario must have evaluation criteria"))
        most, field = most_messages(scenario), "scenario.max_messages"
        spoken = counted_roles(scenario)
        least = len(spoken) + (1 if spoken[-1:] == ["user"] else 2)
        if not 1 <= most <= self.max_messages:
            problems.append(BadField(field, f"got {most}, wanted 1 to {self.max_messages}"))
        elif most < least:
            text = (
                f"got {most}, wanted {least} or more: the conversation starts with {len(spoken)} messages, and the "
                "agent must be able to answer"
            )
            problems.append(BadField(field, text))
        problems += _message_problems(scenario)
        problems += [
            BadField(f"scenario.{violation.field}", violation.message, violation.reason)
            for violation in await self._planner.violations(scenario.evaluators)
        ]
        return problems + await self.personas.unknown(scenario.persona_ids, "scenario.persona_ids")

    async def _persona_problems(self, persona: Persona) -> list[BadField]:
        problems = [
            BadField(*problem)
            for problem in self._connectors.secrets.violations(persona.headers, "persona.headers")
        ]
        if len(persona.script) > _MAX_SCRIPT:
            text = f"got {len(persona.script)} messages, wanted at most {_MAX_SCRIPT}"
            problems.append(BadField("persona.script", text))
        problems += [
            BadField(f"persona.script[{number}]", "empty; wanted the text that the persona sends")
            for number, text in enumerate(persona.script)
            if not text.strip()
        ]
        if persona.judge and (problem := self.judge_problem(persona.judge)):
            problems.append(BadField("persona.judge", problem))
        return problems

    async def _connector_problems(self, connector: Connector) -> list[BadField]:
        return [BadField(*problem) for problem in self._connectors.violations(connector)]

    async def _experiment_problems(self, experiment: Experiment) -> list[BadField]:
        size = len(experiment.scenario_ids) * max(len(experiment.persona_ids), 1)
        if not size:
            return [BadField("experiment.scenario_ids", "empty; wanted at least one scenario id")]
        if size > MAX_RUNS:
            return [BadField("experiment", f"got {size} runs, wanted at most {MAX_RUNS}")]
        return [
            *await self.scenarios.unknown(experiment.scenario_ids, "experiment.scenario_ids"),
            *await self.personas.unknown(experiment.persona_ids, "experiment.persona_ids"),
            *await self.connectors.missing(experiment.connector_id, "experiment.connector_id"),
        ]


def _message_problems(scenario: Scenario) -> list[BadField]:
    """Return problems of messages that agents or evaluators cannot read."""
    problems = []
    for number, message in enumerate(scenario.messages):
        field = f"scenario.messages[{number}]"
        if message.role not in ROLES:
            got = f'got "{message.role[:60]}"' if message.role else "missing"
            problems.append(BadField(f"{field}.role", f"{got}; wanted one of {', '.join(ROLES)}"))
        try:
            message_text(message)
        except InvalidInput as problem:
            wrong = problem.below(field)
            problems.append(BadField(wrong.path, f"{wrong.got}; wanted {wrong.wanted}"))
        problems += impossible_values(message, field)
    return problems


def _moved_values(updated: Connector, stored: Connector, sent: Connector) -> list[BadField]:
    """Return the headers whose hidden values an update would send to a new destination."""
    if destination(updated) == destination(stored):
        return []
    text = (
        "its stored value was given for another scheme, host or port and is not sent to this one; "
        "give the value again, or leave the header out"
    )
    return [
        BadField(f"connector.headers[{name[:100]!r}]", text)
        for name, value in sorted(stored.headers.items())
        if name in updated.headers and sent.headers.get(name, MASK) == MASK and not may_be_shown(value)
    ]
