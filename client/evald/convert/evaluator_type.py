"""Convert an evaluator to its entry in the catalogue."""

from typing import TYPE_CHECKING

from ..v1 import evaluator_pb2

if TYPE_CHECKING:
    from ..evaluator import EvaluatorDefinition


def type_to_pb(definition: "EvaluatorDefinition") -> evaluator_pb2.EvaluatorType:
    """Convert an evaluator to an entry of the catalogue, without the fields that only a server can fill."""
    pb = evaluator_pb2.EvaluatorType(
        type=definition.type,
        version=definition.version,
        label=definition.label,
        description=definition.description,
        kind=int(definition.kind),  # type: ignore[arg-type]
        auto=definition.auto,
        config_schema_json=definition.config_schema(),
        deterministic=definition.deterministic,
        final_turn_only=definition.final_turn_only,
        # The contract has only names: without its implied config, an alias would mean something else.
        aliases=sorted(alias for alias, implied in definition.aliases.items() if not implied),
        required_data=definition.required_data,
    )
    metric = definition.metric
    if metric is not None:
        pb.metric.unit = metric.unit
        for name in ("higher_is_better", "minimum", "maximum"):
            value = getattr(metric, name)
            if value is not None:
                setattr(pb.metric, name, value)
        pb.metric.bucket_bounds.extend(metric.bucket_bounds)
    return pb
