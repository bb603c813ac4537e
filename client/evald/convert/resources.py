"""What services keep by name as JSON data: scenarios, personas, connectors, experiments."""

import json
from typing import Any, Final

from ..chat import message_text
from ..errors import InvalidInput
from ..structs import duration_ms
from ..v1 import connector_service_pb2, context_pb2, experiment_service_pb2
from .json_shapes import COUNT, HEADERS, MESSAGES, SPECS, STRUCT, TEXT, TEXTS, TIME, Shape, choice

_TIMES: Final = {"create_time": "created_at", "update_time": "updated_at"}
_READ_ONLY: Final = ("id", *_TIMES)
_TIME_CODECS: Final = dict.fromkeys(_TIMES, TIME)

SCENARIO: Final = Shape(
    context_pb2.Scenario,
    {
        "id": TEXT,
        "name": TEXT,
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
        **_TIME_CODECS,
    },
    renamed=_TIMES,
    read_only=_READ_ONLY,
    always=("name",),
)

PERSONA: Final = Shape(
    context_pb2.Persona,
    {
        "id": TEXT,
        "name": TEXT,
        "description": TEXT,
        "system_prompt": TEXT,
        "headers": HEADERS,
        "script": TEXTS,
        "judge": TEXT,
        **_TIME_CODECS,
    },
    renamed=_TIMES,
    read_only=_READ_ONLY,
    always=("name",),
    ignored=("image_url",),  # EvalStudio's portrait of the persona
)

CONNECTOR: Final = Shape(
    connector_service_pb2.Connector,
    {
        "id": TEXT,
        "name": TEXT,
        "type": TEXT,
        "base_url": TEXT,
        "headers": HEADERS,
        "config": STRUCT,
        **_TIME_CODECS,
    },
    renamed=_TIMES,
    read_only=_READ_ONLY,
    always=("name", "type", "base_url"),
)

EXPERIMENT: Final = Shape(
    experiment_service_pb2.Experiment,
    {
        "id": TEXT,
        "name": TEXT,
        "scenario_ids": TEXTS,
        "persona_ids": TEXTS,
        "connector_id": TEXT,
        **_TIME_CODECS,
    },
    renamed=_TIMES,
    read_only=_READ_ONLY,
    always=("name", "connector_id"),
    title="Eval",
)

_MASK: Final = "***"


def check_masks(resource: Any) -> None:
    """Raise InvalidInput for a header that has the mask of a secret in place of its value."""
    for name, value in getattr(resource, "headers", {}).items():
        if value == _MASK:
            raise InvalidInput(
                f"headers.{name}",
                f'got "{_MASK}", which stands for a value that was not exported',
                'the value, or "${NAME}" for a variable of the server\'s environment',
            )


def connector_type_to_json(pb: connector_service_pb2.ConnectorType) -> dict[str, Any]:
    """Convert a type of connectors."""
    return {
        "type": pb.type,
        "label": pb.label,
        "description": pb.description,
        "configSchema": json.loads(pb.config_schema_json),
    }


def connector_test_to_json(pb: connector_service_pb2.TestConnectorResponse) -> dict[str, Any]:
    """Convert what came of the test of a connector."""
    data = {"success": pb.success, "latencyMs": round(duration_ms(pb.latency))}
    text = next((message_text(one) for one in reversed(pb.messages) if one.role == "assistant"), "")
    return data | ({"response": text} if pb.success else {"error": pb.error})
