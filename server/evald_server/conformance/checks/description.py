"""Rules for the description of a plugin."""

from collections import Counter
from typing import Any, Final

import grpc

from evald.evaluator import TYPE_PATTERN, Evaluator
from evald.plugin.v1 import task_pb2
from evald.result import Kind
from evald.v1 import evaluator_pb2
from evald.worker.offer import CONTRACT
from evald_server.engine.combinators import COMBINATORS
from evald_server.evaluators import BUILT_INS
from evald_server.judge.config import LlmJudge
from evald_server.remote.errors import Refusal
from evald_server.remote.plugin_type import load_plugin, read_metric, read_schema
from evald_server.scripts.evaluator import Code

from ..rules import TARGET, RuleBroken, Severity, Trial, need_unbroken, rule
from ..samples import schema_of

_SERVING: Final = 1


@rule("EV01", "The plugin has a name.")
async def _is_named(trial: Trial) -> None:
    if not trial.link.info.name:
        raise RuleBroken("plugin.name is empty")


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
        if not TYPE_PATTERN.fullmatch(found.type):
            raise RuleBroken(
                f"{found.type[:80]!r}; wanted lower case letters, digits, '-' and '.', at most 63 bytes"
            )


@rule("EV05", "Type names have a vendor prefix.", severity=Severity.SHOULD)
async def _names_have_a_prefix(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        if "." not in found.type.strip("."):
            raise RuleBroken(f'"{found.type}"; wanted a prefix, for example "acme.{found.type.strip(".")}"')


@rule("EV06", "The plugin and every type have a version.", severity=Severity.SHOULD)
async def _have_versions(trial: Trial) -> None:
    if not trial.link.info.version:
        raise RuleBroken("plugin.version is empty")
    for found in trial.link.info.evaluator_types:
        if not found.version:
            raise RuleBroken(f'"{found.type}" has no version; a server reads that as 1.0.0')


@rule("EV07", "Every type is an assertion or a metric.")
async def _types_have_kinds(trial: Trial) -> None:
    known = (evaluator_pb2.EVALUATOR_KIND_ASSERTION, evaluator_pb2.EVALUATOR_KIND_METRIC)
    for found in trial.link.info.evaluator_types:
        if found.kind not in known:
            raise RuleBroken(f'"{found.type}" has kind {found.kind}, wanted ASSERTION or METRIC')


@rule("EV08", "Config schemas are JSON Schemas of an object.")
async def _schemas_are_valid(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        refusal = _schema_refusal(found)
        if refusal and _outside(found) is None:
            raise RuleBroken(f'"{found.type}": {refusal}')


@rule("EV09", "Config schemas have no external references.")
async def _schemas_stand_alone(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        reference = _outside(found)
        if reference is not None and _schema_refusal(found):
            raise RuleBroken(f'"{found.type}": the schema refers to {reference[:200]!r}, wanted "#..."')


def _schema_refusal(found: evaluator_pb2.EvaluatorType) -> str:
    """Return why a server refuses the config schema, "" if it does not."""
    try:
        read_schema(found.config_schema_json, "config_schema_json")
    except Refusal as problem:
        return problem.message
    return ""


def _outside(found: evaluator_pb2.EvaluatorType) -> str | None:
    """Return a reference of the config schema to another document, None if there is none."""
    pending: list[Any] = [schema_of(found)]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key in ("$ref", "$dynamicRef"):
                if isinstance(item.get(key), str) and not item[key].startswith("#"):
                    return str(item[key])
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return None


@rule("EV10", "max_concurrency is 0 or more.")
async def _concurrency_is_a_number(trial: Trial) -> None:
    if trial.link.info.max_concurrency < 0:
        raise RuleBroken(f"max_concurrency is {trial.link.info.max_concurrency}, wanted 0 or more")


@rule("EV11", "Metric descriptors are consistent.")
async def _metrics_can_be_read(trial: Trial) -> None:
    for found in trial.link.info.evaluator_types:
        try:
            read_metric(found, Kind.METRIC, f'"{found.type}": metric')
        except Refusal as problem:
            raise RuleBroken(problem.message) from None


@rule("EV12", "Describe always offers the same types.", TARGET)
async def _describes_itself_alike(trial: Trial) -> None:
    before, after = _offered(trial.link.info), _offered(await trial.target.describe())
    if before != after:
        raise RuleBroken("a second Describe gives other types, versions, kinds or schemas")


def _offered(info: task_pb2.PluginInfo) -> list[object]:
    return [(found.type, found.version, found.kind, schema_of(found)) for found in info.evaluator_types]


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


# Rules that explain why a server refuses a description.
_EXPLAINED: Final = (
    _is_named,
    _speaks_the_contract,
    _offers_types_once,
    _names_fit_the_pattern,
    _types_have_kinds,
    _schemas_are_valid,
    _schemas_stand_alone,
    _concurrency_is_a_number,
    _metrics_can_be_read,
)


@rule("EV14", "A server accepts the description.")
async def _is_accepted(trial: Trial) -> None:
    await need_unbroken(trial, _EXPLAINED)
    try:
        await load_plugin(trial.link.info)
    except Refusal as problem:
        raise RuleBroken(str(problem)) from None
    own = {name for cls in _SERVERS_OWN for name in (cls.type, *cls.definition().aliases)}
    for found in trial.link.info.evaluator_types:
        if found.type in own:
            raise RuleBroken(
                f'"{found.type}" is an evaluator of the server itself; put your own prefix before it'
            )


_SERVERS_OWN: Final[tuple[type[Evaluator], ...]] = (*BUILT_INS.values(), *COMBINATORS, LlmJudge, Code)
