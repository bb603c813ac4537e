"""A plugin's description: validation of PluginInfo, as sent by Describe, Register or Attach."""

import asyncio
import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from evald.evaluator import TYPE_PATTERN, ConfigProblem, InvalidConfig, default_label
from evald.plugin.v1 import task_pb2
from evald.result import Kind, Metric
from evald.strict_json import TooLarge, parse_json
from evald.v1 import evaluator_pb2
from evald_server.jsonschema.schema import Schema
from evald_server.untrusted import encodable

from .errors import Refusal, invalid

CONTRACT: Final = "evald.plugin.v1"

MAX_TYPES: Final = 100
MAX_PLUGIN_BYTES: Final = 512 << 10
MAX_TEXT: Final = 200
MAX_DESCRIPTION: Final = 2000
MAX_BUCKETS: Final = 20
MAX_CONCURRENCY: Final = 10_000

# A type without a schema takes no config, like an in-process evaluator.
NO_CONFIG: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

_log = logging.getLogger("evald.remote")

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")

# A schema that cannot check a config of this size in the event loop is hostile, and is refused.
_MIN_INLINE_BYTES: Final = 256
# A config may be this much larger than data checked on every call, because it is checked once per plan.
_PLAN_FACTOR: Final = 16

Key: TypeAlias = tuple[str, str]
"""Type and version."""


@dataclass(frozen=True, slots=True, eq=False)
class PluginType:
    """One evaluator type in one version.

    fingerprint: hash of the kind and of the parsed schema, because two processes may write the keys of the same schema
    in another order. It must be equal on all instances. digest: of the type's whole description.
    """

    name: str
    version: str
    kind: Kind
    label: str
    description: str
    schema_json: str
    checker: Schema
    deterministic: bool
    final_turn_only: bool
    metric: Metric | None
    required_data: tuple[str, ...]
    fingerprint: str
    digest: str

    @property
    def key(self) -> Key:
        """The type and version."""
        return self.name, self.version

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Validate a config. Raises InvalidConfig with all problems.

        Never fetches a reference; patterns take linear time.
        """
        data = dict(config)
        if self.checker.is_valid(data):
            return
        text = json.dumps(data)
        if len(text) > self.checker.inline_bytes * _PLAN_FACTOR:
            raise InvalidConfig.at(
                "", f"got {len(text)} characters, which is too long to check with this schema"
            )
        errors = self.checker.errors(data, text)
        raise InvalidConfig([ConfigProblem(error["path"], error["message"]) for error in errors])


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plugin:
    """A validated PluginInfo. max_concurrency: most concurrent tasks, at least 1."""

    name: str
    version: str
    sdk: str
    max_concurrency: int
    capabilities: frozenset[int]
    types: tuple[PluginType, ...]
    pb: task_pb2.PluginInfo

    def can(self, capability: int) -> bool:
        """Return whether the plugin lists a capability."""
        return capability in self.capabilities

    def same_types(self, other: "Plugin") -> bool:
        """Return whether both offer the same types, versions, kinds and schemas."""
        return {one.key: one.fingerprint for one in self.types} == {
            one.key: one.fingerprint for one in other.types
        }


# By digest, so that hundreds of instances of one plugin share one object.
_plugins: Final[WeakValueDictionary[bytes, Plugin]] = WeakValueDictionary()


async def load_plugin(pb: task_pb2.PluginInfo, path: str = "plugin") -> Plugin:
    """Like `read_plugin`, but in a thread, because a hundred schemas take a second."""
    return await asyncio.to_thread(read_plugin, pb, path)


def read_plugin(pb: task_pb2.PluginInfo, path: str = "plugin") -> Plugin:
    """Validate a plugin's description. Raises Refusal that names the field."""
    size = pb.ByteSize()
    if size > MAX_PLUGIN_BYTES:
        raise invalid(path, f"got {size} bytes, wanted at most {MAX_PLUGIN_BYTES}")
    digest = sha256(pb.SerializeToString(deterministic=True)).digest()
    plugin = _plugins.get(digest)
    if plugin is None:
        plugin = _plugins[digest] = _read_plugin(pb, path)
    return plugin


def _read_plugin(pb: task_pb2.PluginInfo, path: str) -> Plugin:
    if CONTRACT not in pb.contract_versions:
        spoken = ", ".join(version[:40] for version in pb.contract_versions[:5]) or "none"
        raise Refusal(
            "CONTRACT_VERSION_UNSUPPORTED",
            f"{path}.contract_versions: got {spoken}; this server supports {CONTRACT}",
            f"{path}.contract_versions",
        )
    for name in ("name", "version", "sdk"):
        _check_text(getattr(pb, name), f"{path}.{name}", MAX_TEXT)
    if not pb.name:
        raise invalid(f"{path}.name", 'missing; wanted a stable name, for example "acme.safety"')
    if pb.max_concurrency < 0:
        raise invalid(f"{path}.max_concurrency", f"got {pb.max_concurrency}, wanted 0 or more")
    if not pb.evaluator_types:
        raise invalid(f"{path}.evaluator_types", "empty; wanted at least one evaluator type")
    if len(pb.evaluator_types) > MAX_TYPES:
        raise invalid(
            f"{path}.evaluator_types", f"got {len(pb.evaluator_types)} types, wanted at most {MAX_TYPES}"
        )
    types: dict[str, PluginType] = {}
    for index, item in enumerate(pb.evaluator_types):
        try:
            plugin_type = _read_type(item, f"{path}.evaluator_types[{index}]")
        except Refusal as problem:
            # The author knows the type's name, but not its index.
            ((field, text, _),) = problem.violations
            named = text if field.endswith(".type") else f'"{item.type}": {text}'
            raise Refusal(problem.reason, named, field) from None
        if plugin_type.name in types:
            raise invalid(f"{path}.evaluator_types[{index}].type", f'"{plugin_type.name}" is offered twice')
        types[plugin_type.name] = plugin_type
    return Plugin(
        name=pb.name,
        version=pb.version,
        sdk=pb.sdk,
        max_concurrency=min(max(1, pb.max_concurrency), MAX_CONCURRENCY),
        capabilities=frozenset(pb.capabilities),
        types=tuple(types.values()),
        pb=pb,
    )


def _read_type(pb: evaluator_pb2.EvaluatorType, path: str) -> PluginType:
    if not TYPE_PATTERN.fullmatch(pb.type):
        raise invalid(
            f"{path}.type",
            f"got {pb.type[:80]!r}, wanted at most 63 characters: lower case letters, digits, '-' and '.'",
        )
    version = pb.version or "1.0.0"
    if not _VERSION.fullmatch(version):
        raise invalid(f"{path}.version", f'got {version[:80]!r}, wanted a version such as "1.4.0"')
    if int(pb.kind) not in (1, 2):
        raise invalid(
            f"{path}.kind", f"got {pb.kind}, wanted EVALUATOR_KIND_ASSERTION or EVALUATOR_KIND_METRIC"
        )
    kind = Kind(pb.kind)
    _check_text(pb.label, f"{path}.label", MAX_TEXT)
    _check_text(pb.description, f"{path}.description", MAX_DESCRIPTION)
    schema, checker = read_schema(pb.config_schema_json, f"{path}.config_schema_json")
    return PluginType(
        name=pb.type,
        version=version,
        kind=kind,
        label=pb.label or default_label(pb.type),
        description=pb.description,
        schema_json=pb.config_schema_json,
        checker=checker,
        deterministic=pb.deterministic,
        final_turn_only=pb.final_turn_only,
        metric=read_metric(pb, kind, f"{path}.metric"),
        required_data=tuple(text[:MAX_TEXT] for text in pb.required_data[:MAX_BUCKETS]),
        fingerprint=sha256(f"{int(kind)} {json.dumps(schema, sort_keys=True)}".encode()).hexdigest(),
        digest=sha256(pb.SerializeToString(deterministic=True)).hexdigest(),
    )


def read_schema(text: str, path: str) -> tuple[Mapping[str, Any], Schema]:
    """Parse and compile a config schema; "" means that there is no config. Raises Refusal."""
    try:
        schema = parse_json(text) if text else NO_CONFIG
    except ValueError as problem:
        raise invalid(path, f"not JSON: {str(problem)[:MAX_TEXT]}") from None
    except TooLarge as problem:
        raise invalid(path, str(problem)) from None
    if not isinstance(schema, dict):
        raise invalid(path, f"got {type(schema).__name__}, wanted a JSON Schema that is an object")
    of = schema.get("type", "object")
    if of != "object" and not (isinstance(of, list) and "object" in of):
        raise invalid(
            path, f'type: got {json.dumps(of)[:MAX_TEXT]}, wanted "object", because every config is one'
        )
    try:
        checker = Schema(schema, "")
    except InvalidConfig as problem:
        first = problem.problems[0]
        raise invalid(path, f"{first.path}: {first.message}" if first.path else first.message) from None
    for place, unknown in checker.unknown:
        _log.warning("%s%s: %s", path, encodable(place), unknown)
    if checker.inline_bytes < _MIN_INLINE_BYTES:
        raise invalid(
            path,
            "checking a config with this schema could take very long; make it simpler, and refer to its parts "
            'by "$ref": "#/$defs/..." alone, without $id, $anchor and $dynamicRef',
        )
    return schema, checker


def read_metric(pb: evaluator_pb2.EvaluatorType, kind: Kind, path: str) -> Metric | None:
    """Return how to read the values of a type; None if it has none. Raises Refusal."""
    if not pb.HasField("metric"):
        return Metric() if kind is Kind.METRIC else None
    metric = pb.metric
    _check_text(metric.unit, f"{path}.unit", 63)
    bounds = tuple(metric.bucket_bounds)
    if (
        len(bounds) > MAX_BUCKETS
        or not all(map(math.isfinite, bounds))
        or not all(low < high for low, high in pairwise(bounds))
    ):
        raise invalid(f"{path}.bucket_bounds", f"wanted at most {MAX_BUCKETS} finite numbers that increase")
    if metric.HasField("minimum") and metric.HasField("maximum") and not metric.minimum <= metric.maximum:
        raise invalid(
            f"{path}.minimum", f"got {metric.minimum:g}, wanted at most the maximum, {metric.maximum:g}"
        )
    return Metric(
        metric.unit,
        metric.higher_is_better if metric.HasField("higher_is_better") else None,
        metric.minimum if metric.HasField("minimum") else None,
        metric.maximum if metric.HasField("maximum") else None,
        bounds,
    )


def _check_text(text: str, path: str, max_length: int) -> None:
    if len(text) > max_length:
        raise invalid(path, f"got {len(text)} characters, wanted at most {max_length}")
    # These texts are shown in terminals and logs.
    if not all(character.isprintable() or character == "\n" for character in text):
        raise invalid(path, "contains control characters; wanted printable text")
