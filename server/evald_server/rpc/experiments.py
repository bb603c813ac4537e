"""ExperimentService."""

from typing import Final

from evald.v1 import experiment_service_pb2
from evald.v1.experiment_service_pb2 import Experiment
from evald_server.call_errors import BadField
from evald_server.store.resources import ResourceKind, ResourceStore

from .connectors import ConnectorService
from .personas import PersonaService
from .resources import ResourceService
from .scenarios import ScenarioService

# Maximum runs of one experiment.
MAX_RUNS: Final = 1000


class ExperimentService(ResourceService[Experiment]):
    """Handlers of ExperimentService."""

    kind = ResourceKind.EXPERIMENT
    message = Experiment
    requests = experiment_service_pb2
    plural = "Experiments"

    def __init__(
        self,
        store: ResourceStore,
        scenarios: ScenarioService,
        personas: PersonaService,
        connectors: ConnectorService,
    ) -> None:
        super().__init__(store)
        self._scenarios = scenarios
        self._personas = personas
        self._connectors = connectors

    async def problems(self, resource: Experiment) -> list[BadField]:
        """See ResourceService."""
        size = len(resource.scenario_ids) * max(len(resource.persona_ids), 1)
        if not size:
            return [BadField("experiment.scenario_ids", "empty; wanted at least one scenario id")]
        if size > MAX_RUNS:
            return [BadField("experiment", f"got {size} runs, wanted at most {MAX_RUNS}")]
        found = await self._scenarios.unknown(resource.scenario_ids, "experiment.scenario_ids")
        found += await self._personas.unknown(resource.persona_ids, "experiment.persona_ids")
        return found + await self._connectors.missing(resource.connector_id, "experiment.connector_id")
