"""Build the requests of all calls."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidInput
from ..fields import flag, shown, text, whole
from ..result import Kind
from ..spec import OptionsLike, SpecLike
from ..v1 import catalog_service_pb2, context_pb2, evaluation_service_pb2
from .spec import fill_options, fill_specs


def _fill_call(
    pb: Any,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
) -> None:
    """Fill in the fields that every evaluating call has. Raises InvalidInput."""
    fill_specs(evaluators, pb.evaluators)
    fill_options(options, pb.options)
    if labels is None:
        return
    if not isinstance(labels, Mapping):
        raise InvalidInput("labels", shown(labels), "an object of names and values")
    for key, value in labels.items():
        pb.labels[text(key, "labels")] = text(value, f"labels.{key}")


def evaluate_request(
    context: context_pb2.EvaluatorContext,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    request_id: str,
    into: evaluation_service_pb2.EvaluateRequest | None = None,
) -> evaluation_service_pb2.EvaluateRequest:
    """Build the request of `Evaluate`. into: the message to fill; None creates one. Raises InvalidInput."""
    pb = evaluation_service_pb2.EvaluateRequest() if into is None else into
    pb.request_id = text(request_id, "request_id")
    pb.context.CopyFrom(context)
    _fill_call(pb, evaluators, options, labels)
    return pb


def unary_request(
    context: context_pb2.EvaluatorContext,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    request_id: str,
) -> evaluation_service_pb2.EvaluateUnaryRequest:
    """Build the request of `EvaluateUnary`. Raises InvalidInput."""
    pb = evaluation_service_pb2.EvaluateUnaryRequest()
    evaluate_request(context, evaluators, options, labels, request_id, pb.request)
    return pb


def session_open(
    base: context_pb2.EvaluatorContext | None,
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
) -> evaluation_service_pb2.EvaluateSessionRequest:
    """Build the first message of a session. Raises InvalidInput."""
    pb = evaluation_service_pb2.EvaluateSessionRequest()
    pb.open.SetInParent()
    if base is not None:
        pb.open.base_context.CopyFrom(base)
    _fill_call(pb.open, evaluators, options, labels)
    return pb


def session_turn(
    turn_id: int, context: context_pb2.EvaluatorContext
) -> evaluation_service_pb2.EvaluateSessionRequest:
    """Build the message of one turn. Raises InvalidInput for data that belong in the session's base."""
    for name in ("scenario", "persona", "metadata"):
        if context.HasField(name):
            raise InvalidInput(name, "given for one turn of a session", "it in the base of the session")
    pb = evaluation_service_pb2.EvaluateSessionRequest()
    turn = pb.turn
    turn.turn_id = turn_id
    turn.is_final = context.is_final
    turn.last_invocation.CopyFrom(context.last_invocation)
    if context.messages_json:
        turn.new_messages_json = context.messages_json
    elif context.messages:
        turn.new_messages.extend(context.messages)
    else:
        turn.new_messages.extend(context.last_invocation.messages)
        turn.new_messages_json = context.last_invocation.messages_json
    if context.HasField("expected"):
        turn.expected.CopyFrom(context.expected)
    if context.HasField("run_duration"):
        turn.run_duration.CopyFrom(context.run_duration)
    return pb


def batch_open(
    evaluators: Iterable[SpecLike],
    options: OptionsLike | None,
    labels: Mapping[str, str] | None,
    *,
    brief: bool,
) -> evaluation_service_pb2.BatchOpen:
    """Build the opening of a batch: the data that all items share. Raises InvalidInput."""
    pb = evaluation_service_pb2.BatchOpen(brief=flag(brief, "brief"))
    _fill_call(pb, evaluators, options, labels)
    return pb


def batch_item(
    item_id: str, context: context_pb2.EvaluatorContext, evaluators: Iterable[SpecLike]
) -> evaluation_service_pb2.BatchItem:
    """Build one item of a batch. Raises InvalidInput."""
    pb = evaluation_service_pb2.BatchItem(item_id=item_id, context=context)
    fill_specs(evaluators, pb.evaluators)
    return pb


def batch_request(
    opening: evaluation_service_pb2.BatchOpen | None, items: Iterable[evaluation_service_pb2.BatchItem]
) -> evaluation_service_pb2.EvaluateBatchRequest:
    """Build one message of a batch."""
    return evaluation_service_pb2.EvaluateBatchRequest(open=opening, items=items)


def validate_request(evaluators: Iterable[SpecLike]) -> evaluation_service_pb2.ValidateSpecsRequest:
    """Build the request of `ValidateSpecs`. Raises InvalidInput."""
    pb = evaluation_service_pb2.ValidateSpecsRequest()
    fill_specs(evaluators, pb.evaluators)
    return pb


def list_types_request(kind: Kind | None, page_token: str) -> catalog_service_pb2.ListEvaluatorTypesRequest:
    """Build the request of `ListEvaluatorTypes`. kind: None for all. Raises InvalidInput."""
    if kind not in (None, *Kind):
        raise InvalidInput("kind", shown(kind), "Kind.ASSERTION or Kind.METRIC")
    # 1,000 is the largest page that the contract allows; normally one call is enough.
    number: Any = kind or 0
    return catalog_service_pb2.ListEvaluatorTypesRequest(page_size=1000, page_token=page_token, kind=number)


def get_type_request(name: str, version: str) -> catalog_service_pb2.GetEvaluatorTypeRequest:
    """Build the request of `GetEvaluatorType`. Raises InvalidInput."""
    return catalog_service_pb2.GetEvaluatorTypeRequest(
        type=text(name, "type_name"), version=text(version, "version")
    )


def watch_types_request(after_revision: int) -> catalog_service_pb2.WatchEvaluatorTypesRequest:
    """Build the request of `WatchEvaluatorTypes`. Raises InvalidInput."""
    return catalog_service_pb2.WatchEvaluatorTypesRequest(
        after_revision=whole(after_revision, "after_revision")
    )
