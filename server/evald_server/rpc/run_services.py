"""The services of the runs floor, built together: each checks what it names with the others."""

from collections.abc import Callable

from evald_server.connectors.build import Connectors
from evald_server.engine.engine import Engine
from evald_server.runs.runner import Runner
from evald_server.store.database import Database
from evald_server.store.resources import ResourceStore
from evald_server.store.runs import RunStore

from .connectors import ConnectorService
from .experiments import ExperimentService
from .personas import PersonaService
from .runs import NAME, RunService
from .scenarios import ScenarioService
from .server import Handler, RpcServer


def run_services(
    rpc: RpcServer,
    database: Database,
    engine: Engine,
    connectors: Connectors,
    runner: Runner,
    judge_problem: Callable[[str], str],
    max_messages: int,
) -> dict[str, dict[str, Handler]]:
    """Return the handlers by service and method.

    judge_problem: returns what is wrong with the name of a judge, "" if nothing is.
    """
    store = ResourceStore(database)
    personas = PersonaService(store, connectors, judge_problem)
    scenarios = ScenarioService(store, engine.planner, personas, max_messages)
    connector_service = ConnectorService(store, connectors)
    experiments = ExperimentService(store, scenarios, personas, connector_service)
    runs = RunService(
        RunStore(database),
        runner,
        engine,
        judge_problem,
        max_messages,
        scenarios=scenarios,
        personas=personas,
        connectors=connector_service,
        experiments=experiments,
    )
    services = (scenarios, personas, connector_service, experiments)
    return {one.service_name(): one.handlers(rpc) for one in services} | {NAME: runs.handlers(rpc)}
