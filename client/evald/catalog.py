"""The catalogue of a server: evaluator types, changes, and violations of specs."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from .records import present, read_kind, tuple_to_dict
from .result import Kind, Metric

if TYPE_CHECKING:
    from .v1 import catalog_service_pb2, evaluation_service_pb2, evaluator_pb2

Origin = Literal["unknown", "built_in", "remote", "plugin"]
State = Literal["unknown", "active", "unavailable", "deprecated"]

_ORIGINS: Final[dict[int, Origin]] = {1: "built_in", 2: "remote", 3: "plugin"}
_STATES: Final[dict[int, State]] = {1: "active", 2: "unavailable", 3: "deprecated"}


@dataclass(frozen=True, slots=True)
class EvaluatorType:
    """One entry of the catalogue.

    type: unique name; aliases: other names that a spec may use.
    label, description: for people.
    kind: assertion or metric.
    auto: the server runs it on every call.
    config_schema_json: JSON Schema (2020-12) of the config, as the author wrote it.
    origin: where it runs. state: whether it is available now.
    deterministic: the same context and config always give the same result.
    final_turn_only: its result is meaningful only on the final turn.
    metric: unit and range of a metric's value; None if not declared.
    deprecation_message: the replacement of a deprecated type.
    instance_count: number of live instances of a remote evaluator.
    required_data: data that it needs beyond the messages, for example "last_invocation.token_usage".
    """

    type: str
    version: str
    label: str
    description: str
    kind: Kind
    auto: bool
    config_schema_json: str
    config_schema_sha256: str
    origin: Origin
    state: State
    deterministic: bool
    final_turn_only: bool
    metric: Metric | None
    deprecation_message: str
    instance_count: int
    aliases: tuple[str, ...]
    required_data: tuple[str, ...]

    @property
    def config_schema(self) -> dict[str, Any]:
        """The JSON Schema as data, parsed at each access; {} if there is none."""
        schema: dict[str, Any] = json.loads(self.config_schema_json or "{}")
        return schema

    @classmethod
    def from_pb(cls, pb: "evaluator_pb2.EvaluatorType") -> "EvaluatorType":
        """Create the record from the server's message."""
        return cls(
            type=pb.type,
            version=pb.version,
            label=pb.label,
            description=pb.description,
            kind=read_kind(pb.kind),
            auto=pb.auto,
            config_schema_json=pb.config_schema_json,
            config_schema_sha256=pb.config_schema_sha256,
            origin=_ORIGINS.get(pb.origin, "unknown"),
            state=_STATES.get(pb.state, "unknown"),
            deterministic=pb.deterministic,
            final_turn_only=pb.final_turn_only,
            metric=_metric(pb.metric) if pb.HasField("metric") else None,
            deprecation_message=pb.deprecation_message,
            instance_count=pb.instance_count,
            aliases=tuple(pb.aliases),
            required_data=tuple(pb.required_data),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON data in camelCase, with the schema as data, without unknown values."""
        return present(
            {
                "type": self.type,
                "version": self.version,
                "label": self.label,
                "description": self.description,
                "kind": self.kind.name.lower(),
                "aliases": list(self.aliases),
                "auto": self.auto,
                "origin": self.origin,
                "state": self.state,
                "deterministic": self.deterministic,
                "finalTurnOnly": self.final_turn_only,
                "metric": tuple_to_dict(self.metric) if self.metric else None,
                "deprecationMessage": self.deprecation_message,
                "instanceCount": self.instance_count or None,
                "requiredData": list(self.required_data),
                "configSchema": self.config_schema,
                "configSchemaSha256": self.config_schema_sha256,
            }
        )


def _metric(pb: "evaluator_pb2.MetricDescriptor") -> Metric:
    return Metric(
        pb.unit,
        pb.higher_is_better if pb.HasField("higher_is_better") else None,
        pb.minimum if pb.HasField("minimum") else None,
        pb.maximum if pb.HasField("maximum") else None,
        tuple(pb.bucket_bounds),
    )


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """One event of `watch_evaluator_types`.

    what: "upserted" (`evaluator_type` is new or changed), "removed" (`type` and `version` no longer exist),
        or "snapshot_complete" (all further events are changes).
    revision: revision of the catalogue after the event; a later watch can continue from it.
    """

    what: Literal["upserted", "removed", "snapshot_complete"]
    revision: int
    type: str = ""
    version: str = ""
    evaluator_type: EvaluatorType | None = None

    @classmethod
    def from_pb(cls, pb: "catalog_service_pb2.WatchEvaluatorTypesResponse") -> "CatalogChange | None":
        """Create the event from the server's message. Returns None for an unknown kind of event."""
        event = pb.WhichOneof("event")
        if event == "upserted":
            entry = EvaluatorType.from_pb(pb.upserted)
            return cls("upserted", pb.revision, entry.type, entry.version, entry)
        if event == "removed":
            return cls("removed", pb.revision, pb.removed.type, pb.removed.version)
        return cls("snapshot_complete", pb.revision) if event == "snapshot_complete" else None


@dataclass(frozen=True, slots=True)
class SpecViolation:
    """One problem of one spec.

    index: index of the spec. path: JSON Pointer into it, for example "/config/threshold".
    reason: stable code, for example "UNKNOWN_TYPE". message: for people.
    """

    index: int
    path: str
    reason: str
    message: str

    @classmethod
    def from_pb(cls, pb: "evaluation_service_pb2.SpecViolation") -> "SpecViolation":
        """Create the record from the server's message."""
        return cls(pb.index, pb.path, pb.reason, pb.message)
