"""Convert stored resources to JSON data and back: scenarios, personas, connectors, experiments."""

import json
from collections.abc import Mapping
from typing import Any, Final

from ..chat import message_text
from ..errors import InvalidInput
from ..structs import duration_ms
from ..v1 import connector_service_pb2, context_pb2, experiment_service_pb2
from .json_shapes import COUNT, HEADERS, MESSAGES, SPECS, STRUCT, TEXT, TEXTS, TIME, Codec, Pb, Shape, choice

_TIMES: Final = {"create_time": "created_at", "update_time": "updated_at"}


def _resource(
    message: type[Pb],
    fields: Mapping[str, Codec],
    *,
    always: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    title: str = "",
) -> Shape[Pb]:
    """Return the shape of a resource: an id, a name, times, and the given fields. Arguments as in `Shape`."""
    return Shape(
        message,
        {"id": TEXT, "name": TEXT, **fields, **dict.fromkeys(_TIMES, TIME)},
        renamed=_TIMES,
        read_only=("id", *_TIMES),
        always=("name", *always),
        ignored=ignored,
        title=title,
    )


SCENARIO: Final = _resource(
    context_pb2.Scenario,
    {
        "instructions": TEXT,
        "goal": TEXT,
        "messages": MESSAGES,
        "max_messages": COUNT,
        "success_criteria": TEXT,
        "failure_criteria": TEXT,
        "failure_criteria_mode": choice("every_turn", "on_max_messages"),
        "criteria_policy": choice("both", "evaluatorsOnly"),
        "on_assertion_failure": choice("stop", "continue"),
        "evaluators": SPECS,
        "persona_ids": TEXTS,
    },
)

PERSONA: Final = _resource(
    context_pb2.Persona,
    {
        "description": TEXT,
        "system_prompt": TEXT,
        "headers": HEADERS,
        "script": TEXTS,
        "judge": TEXT,
    },
    ignored=("image_url",),  # EvalStudio's portrait of the persona
)

CONNECTOR: Final = _resource(
    connector_service_pb2.Connector,
    {"type": TEXT, "base_url": TEXT, "headers": HEADERS, "config": STRUCT},
    always=("type", "base_url"),
)

EXPERIMENT: Final = _resource(
    experiment_service_pb2.Experiment,
    {"scenario_ids": TEXTS, "persona_ids": TEXTS, "connector_id": TEXT},
    always=("connector_id",),
    title="Eval",
)

_MASK: Final = "***"


def check_masks(resource: Any) -> None:
    """Raise InvalidInput for a header whose value is the mask of a secret."""
    for name, value in getattr(resource, "headers", {}).items():
        if value == _MASK:
            raise InvalidInput(
                f"headers.{name}",
                f'got "{_MASK}", which stands for a value that was not exported',
                'the value, or "${NAME}" for a variable of the server\'s environment',
            )


def connector_type_to_json(pb: connector_service_pb2.ConnectorType) -> dict[str, Any]:
    """Convert a connector type to JSON data."""
    return {
        "type": pb.type,
        "label": pb.label,
        "description": pb.description,
        "configSchema": json.loads(pb.config_schema_json),
    }


def connector_test_to_json(pb: connector_service_pb2.TestConnectorResponse) -> dict[str, Any]:
    """Convert the result of a connector test to JSON data."""
    data = {"success": pb.success, "latencyMs": round(duration_ms(pb.latency))}
    text = next((message_text(one) for one in reversed(pb.messages) if one.role == "assistant"), "")
    return data | ({"response": text} if pb.success else {"error": pb.error})
