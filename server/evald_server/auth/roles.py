"""The roles that may call each method. Methods outside this table are refused to everybody."""

from collections.abc import Mapping
from typing import Final

from .principal import Role

_CALLER: Final = frozenset((Role.CALLER,))
_PLUGIN: Final = frozenset((Role.PLUGIN,))
_ADMIN: Final = frozenset((Role.ADMIN,))
_WATCHERS: Final = frozenset((Role.VIEWER, Role.ADMIN))
_READERS: Final = frozenset((Role.CALLER, Role.VIEWER, Role.ADMIN))
_WRITERS: Final = frozenset((Role.CALLER, Role.ADMIN))
_ALL: Final = frozenset((Role.CALLER, Role.PLUGIN, Role.VIEWER, Role.ADMIN))

OPEN: Final[frozenset[Role]] = frozenset()
"""The roles of a method that needs no credentials."""

# Connectors and personas name addresses and the server's secrets. Only admins may write them, because a writer can send
# the secrets to every address in connector_allowed. An imported run contains both.
_SERVICES: Final[Mapping[str, Mapping[frozenset[Role], str]]] = {
    "evald.v1.EvaluationService": {
        _CALLER: "Evaluate EvaluateUnary EvaluateSession EvaluateBatch ValidateSpecs",
    },
    "evald.v1.CatalogService": {
        _READERS: "ListEvaluatorTypes GetEvaluatorType WatchEvaluatorTypes",
    },
    "evald.v1.ScenarioService": {
        _READERS: "GetScenario ListScenarios GetScenarioPrompt",
        _WRITERS: "CreateScenario UpdateScenario DeleteScenario",
    },
    "evald.v1.PersonaService": {
        _READERS: "GetPersona ListPersonas",
        _ADMIN: "CreatePersona UpdatePersona DeletePersona",
    },
    "evald.v1.ConnectorService": {
        _READERS: "GetConnector ListConnectors ListConnectorTypes",
        _ADMIN: "CreateConnector UpdateConnector DeleteConnector TestConnector",
    },
    "evald.v1.ExperimentService": {
        _READERS: "GetExperiment ListExperiments",
        _WRITERS: "CreateExperiment UpdateExperiment DeleteExperiment",
    },
    "evald.v1.RunService": {
        _CALLER: "StartRun StartRuns RetryRun ResumeRun",
        _ADMIN: "ImportRun",
        _READERS: "WatchRun GetRun ListRuns",
        _WRITERS: "CancelRun DeleteRun",
    },
    "evald.v1.SuiteService": {
        _CALLER: "RunSuite",
        _READERS: "GetSuiteRun ListSuiteRuns ListCaseResults CompareSuiteRuns",
        _WRITERS: "DeleteSuiteRun",
    },
    "evald.plugin.v1.RegistryService": {
        _PLUGIN: "Attach Register KeepAlive RenewLease",
        frozenset((Role.PLUGIN, Role.ADMIN)): "Deregister",
        _ADMIN: "ForgetType",
        _WATCHERS: "ListRegistrations WatchRegistrations",
    },
    "grpc.health.v1.Health": {OPEN: "Check Watch List"},
    "grpc.reflection.v1.ServerReflection": {_ALL: "ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {_ALL: "ServerReflectionInfo"},
}

METHODS: Final[Mapping[str, frozenset[Role]]] = {
    f"/{service}/{method}": roles
    for service, rows in _SERVICES.items()
    for roles, methods in rows.items()
    for method in methods.split()
}
"""The roles that may call each method, by its full name."""

SCRAPERS: Final = _WATCHERS
"""The roles that may read /metrics at a public address."""
