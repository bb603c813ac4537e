"""Rules for the description of a plugin."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import grpc
import jsonschema_rs

from evald.evaluator import TYPE_PATTERN
from evald.v1 import evaluator_pb2
from evald.worker.offer import CONTRACT

from ..rules import TARGET, RuleBroken, Severity, Trial, rule
from ..samples import schema_of

_SERVING: Final = 1
_MAX_SCHEMA_BYTES: Final = 64 << 10
_MAX_BUCKETS: Final = 20
_DRAFT: Final = "json-schema.org/draft/2020-12/schema"


@rule("EV01", "The plugin has a name and a version.")
async def _is_named(trial: Trial) -> None:
    info = trial.link.info
    for field in ("name", "version"):
        if not getattr(info, field):
            raise RuleBroken(f"plugin.{field} is empty")


@rule("EV02", "The plugin supports evald.plugin.v1.")
async def _speaks_the_contract(trial: Trial) -> None:
    versions = list(trial.link.info.contract_versions)
    if CONTRACT not in versions:
        raise RuleBroken(f"contract_versions is {versions}, wanted {CONTRACT!r} among them")


@rule("EV03", "The plugin offers at least one type, and each type once.")
async def _offers_types_once(trial: Trial) -> None:
    counts = Counter(found.type for found in trial.link.info.evaluator_types)
    if not counts:
        raise RuleBroken("evaluator_types is empty")
    for name, count in counts.items():
        if count > 1:
            raise RuleBroken(f'"{name}" is offered {count} times')


@rule("EV04", "Type names are lower case, at most 63 bytes.")
async def _names_fit_the_pattern(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        for name in (found.type, *found.aliases):
            if not TYPE_PATTERN.fullmatch(name):
                raise RuleBroken(
                    f"{name[:80]!r}; wanted lower case letters, digits, '-' and '.', at most 63 bytes"
                )


@rule("EV05", "Type names have a vendor prefix.", severity=Severity.SHOULD)
async def _names_have_a_prefix(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        if "." not in found.type.strip("."):
            raise RuleBroken(f'"{found.type}"; wanted a prefix, for example "acme.{found.type.strip(".")}"')


@rule("EV06", "Every type has a version.")
async def _types_have_versions(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        if not found.version:
            raise RuleBroken(f'"{found.type}" has no version')


@rule("EV07", "Every type is an assertion or a metric.")
async def _types_have_kinds(trial: Trial) -> None:
    known = (evaluator_pb2.EVALUATOR_KIND_ASSERTION, evaluator_pb2.EVALUATOR_KIND_METRIC)
    for found in trial.link.info.evaluator_types:
        if found.kind not in known:
            raise RuleBroken(f'"{found.type}" has kind {found.kind}, wanted ASSERTION or METRIC')


@rule("EV08", "Config schemas are JSON Schemas of an object.")
async def _schemas_are_valid(trial: Trial) -> None:
    is_schema = jsonschema_rs.Draft202012Validator({"$ref": f"https://{_DRAFT}"}, validate_formats=True)
    for found in trial.link.info.evaluator_types:
        size = len(found.config_schema_json.encode())
        if size > _MAX_SCHEMA_BYTES:
            raise RuleBroken(
                f'"{found.type}": config_schema_json has {size} bytes, wanted at most {_MAX_SCHEMA_BYTES}'
            )
        schema = schema_of(found)
        if schema is None:
            raise RuleBroken(f'"{found.type}": config_schema_json is no JSON object')
        problem = next(is_schema.iter_errors(schema), None)
        if problem is not None:
            raise RuleBroken(f'"{found.type}": config_schema_json: {problem.message[:200]}')
        if schema.get("type", "object") != "object":
            raise RuleBroken(f'"{found.type}": the schema is of a {schema["type"]!r}, wanted "object"')


@rule("EV09", "Config schemas have no external references.")
async def _schemas_stand_alone(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        for reference in _references(schema_of(found)):
            if not reference.startswith("#") and _DRAFT not in reference:
                raise RuleBroken(f'"{found.type}": the schema refers to {reference[:200]!r}, wanted "#..."')


def _references(schema: Any) -> Iterator[str]:
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key in ("$ref", "$dynamicRef"):
                if isinstance(item.get(key), str):
                    yield item[key]
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


@rule("EV10", "max_concurrency is 0 or more.")
async def _concurrency_is_a_number(trial: Trial) -> None:
    if trial.link.info.max_concurrency < 0:
        raise RuleBroken(f"max_concurrency is {trial.link.info.max_concurrency}, wanted 0 or more")


@rule("EV11", "Metric descriptors are consistent.")
async def _metrics_can_be_read(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        metric = found.metric
        bounds = list(metric.bucket_bounds)
        if not all(map(math.isfinite, bounds)) or bounds != sorted(set(bounds)):
            raise RuleBroken(f'"{found.type}": metric.bucket_bounds are not strictly increasing: {bounds}')
        if len(bounds) > _MAX_BUCKETS:
            raise RuleBroken(
                f'"{found.type}": {len(bounds)} metric.bucket_bounds, wanted at most {_MAX_BUCKETS}'
            )
        if metric.HasField("minimum") and metric.HasField("maximum") and metric.minimum > metric.maximum:
            raise RuleBroken(f'"{found.type}": metric.minimum {metric.minimum:g} is above {metric.maximum:g}')


@rule("EV12", "Describe always says the same.", TARGET)
async def _describes_itself_alike(trial: Trial) -> None:
    again = await trial.target.describe()
    if again != trial.link.info:
        raise RuleBroken("a second Describe gives another description")


@rule("EV13", "Health of the service is SERVING.", TARGET)
async def _is_healthy(trial: Trial) -> None:
    try:
        status = await trial.target.health()
    except grpc.aio.AioRpcError as problem:
        raise RuleBroken(
            f"grpc.health.v1.Health/Check of the service's full name: {problem.code().name} "
            f"{problem.details()}"
        ) from None
    if status != _SERVING:
        raise RuleBroken(f"grpc.health.v1 says {status}, wanted SERVING ({_SERVING})")
