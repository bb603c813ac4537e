"""Build the services of resources, runs and suites together, because they check references to each other."""

from collections.abc import Callable
from typing import NamedTuple

from evald_server.batch.pool import BatchPool
from evald_server.connectors.build import Connectors
from evald_server.engine.engine import Engine
from evald_server.monitoring import Telemetry
from evald_server.runs.runner import Runner
from evald_server.store.database import Database
from evald_server.store.resources import ResourceStore
from evald_server.store.runs import RunStore
from evald_server.store.suites import SuiteStore

from .admission import Admission
from .connectors import ConnectorService
from .experiments import ExperimentService
from .personas import PersonaService
from .runs import NAME, RunService
from .scenarios import ScenarioService
from .server import Handler, RpcServer
from .stream_tasks import LoopTurns
from .suites import NAME as SUITES
from .suites import SuiteService


class RunServices(NamedTuple):
    """The services. handlers: by service and method. suites: to be started and stopped with the server."""

    handlers: dict[str, dict[str, Handler]]
    suites: SuiteService


def run_services(
    rpc: RpcServer,
    database: Database,
    engine: Engine,
    admission: Admission,
    telemetry: Telemetry,
    connectors: Connectors,
    runner: Runner,
    judge_problem: Callable[[str], str],
    max_messages: int,
    pool: BatchPool,
    turns: LoopTurns,
) -> RunServices:
    """Return the services.

    judge_problem: returns the problem with the name of a judge, "" if there is none.
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
    suites = SuiteService(SuiteStore(database), engine, admission, telemetry, connector_service, pool, turns)
    handlers = {one.service_name(): one.handlers(rpc) for one in services}
    return RunServices(handlers | {NAME: runs.handlers(rpc), SUITES: suites.handlers(rpc)}, suites)
