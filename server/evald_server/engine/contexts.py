"""Validates the context of a request and parses its messages_json."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration

from evald.blocks import TooMany
from evald.context import EvaluatorContext
from evald.errors import InvalidInput
from evald.messages import parse_messages_json
from evald.turn_tail import begin_turn, settle
from evald.v1 import context_pb2, evaluator_pb2, message_pb2
from evald_server.call_errors import BadField, CallError

if TYPE_CHECKING:
    from evald.messages import Messages

JUDGE: Final = "llm-judge"
"""The type that evaluates criteria."""

_BOTH: Final = "got both messages and messages_json, wanted one of them"

# Limits of one answer: a year, a trillion tokens, a billion dollars. So sums over a conversation stay finite.
MAX_SECONDS: Final = 366 * 86_400
MAX_TOKENS: Final = 10**12
MAX_COST: Final = 10**9

# Scenario fields that only runs read, and the alternative for a call.
_OF_RUNS: Final = {
    "evaluators": "put them into the call's evaluators",
    "messages": "put them into context.messages",
    "persona_ids": "describe the persona in context.persona",
    "criteria_policy": "set options.criteria_policy",
    "on_assertion_failure": "leave it out",
    "goal": "put it into instructions",
}

_FAILURE_MODES: Final = {0: "", 1: "every_turn", 2: "on_max_messages"}


class InvalidContext(CallError):
    """A context cannot be evaluated. field: path of the invalid field. details: figures of the problem, for programs."""

    def __init__(self, field: str, problem: str, **details: str) -> None:
        super().__init__(
            "INVALID_FIELD", f"{field}: {problem}", [BadField(field, problem)], field=field, **details
        )


def _refused(problem: InvalidInput) -> InvalidContext:
    limits = {}
    if isinstance(problem, TooMany):
        limits = {"size": str(problem.size), "limit": str(problem.limit)}
    return InvalidContext(problem.path, f"{problem.got}; wanted {problem.wanted}", **limits)


class Contexts:
    """Validates contexts and creates the views that evaluators see. Its methods raise InvalidContext."""

    def __init__(self, max_messages: int) -> None:
        self._max_messages = max_messages

    def view(self, pb: context_pb2.EvaluatorContext) -> EvaluatorContext:
        """Return the view over a valid context."""
        last, most = pb.last_invocation, self._max_messages
        if pb.turn < 0 or pb.attempt < 0 or pb.HasField("run_duration") or pb.HasField("last_invocation"):
            check_numbers(pb, "context")
        if pb.messages_json or last.messages_json or len(pb.messages) > most or len(last.messages) > most:
            self.complete(pb, "context")
        try:
            settle(pb)
        except InvalidInput as problem:
            raise _refused(problem.below("context")) from None
        return EvaluatorContext(pb)

    def complete(self, pb: context_pb2.EvaluatorContext, path: str) -> None:
        """Parse messages_json into messages and check the limits."""
        self.complete_messages(pb, path)
        self.complete_messages(pb.last_invocation, f"{path}.last_invocation")

    def complete_messages(self, pb: context_pb2.EvaluatorContext | context_pb2.Invocation, path: str) -> None:
        """Like `complete`, for the context or its invocation alone."""
        if pb.messages_json:
            if pb.messages:
                raise InvalidContext(f"{path}.messages_json", _BOTH)
            self._parse(pb.messages_json, pb.messages, f"{path}.messages_json")
            pb.ClearField("messages_json")
        self._check_count(len(pb.messages), f"{path}.messages")

    def extend(
        self,
        pb: context_pb2.EvaluatorContext,
        messages: "Sequence[message_pb2.ChatMessage]",
        messages_json: str,
        path: str,
    ) -> None:
        """Append new messages to a conversation. If it raises, nothing is appended."""
        if messages_json:
            if messages:
                raise InvalidContext(f"{path}_json", _BOTH.replace("messages", "new_messages"))
            added = context_pb2.Invocation()
            self._parse(messages_json, added.messages, f"{path}_json")
            messages = added.messages
        self._check_count(len(pb.messages) + len(messages), path)
        pb.messages.extend(messages)

    @staticmethod
    def begin_turn(pb: context_pb2.EvaluatorContext, first: int, invocation: context_pb2.Invocation) -> None:
        """Like `evald.turn_tail.begin_turn`."""
        try:
            begin_turn(pb, first, invocation)
        except InvalidInput as problem:
            raise _refused(problem.below("turn")) from None

    def _parse(self, text: str, into: "Messages", path: str) -> None:
        try:
            parse_messages_json(text, into, max_messages=self._max_messages, path=path)
        except InvalidInput as problem:
            raise _refused(problem) from None

    def _check_count(self, size: int, path: str) -> None:
        limit = self._max_messages
        if size > limit:
            text = f"got {size} messages, wanted at most {limit}"
            raise InvalidContext(path, text, size=str(size), limit=str(limit))


def check_numbers(pb: context_pb2.EvaluatorContext, path: str) -> None:
    """Raise InvalidContext for impossible numbers.

    A negative latency, count or cost would pass every budget. A cost that is NaN or not in US dollars would be
    treated as unreported.
    """
    for name in ("turn", "attempt"):
        if getattr(pb, name) < 0:
            raise _impossible(f"{path}.{name}", getattr(pb, name))
    if pb.HasField("run_duration"):
        check_duration(pb.run_duration, f"{path}.run_duration")
    if pb.HasField("last_invocation"):
        check_invocation(pb.last_invocation, f"{path}.last_invocation")


def check_invocation(pb: context_pb2.Invocation, path: str) -> None:
    """Like `check_numbers`, for an invocation."""
    if pb.HasField("latency"):
        check_duration(pb.latency, f"{path}.latency")
    if pb.HasField("time_to_first_token"):
        check_duration(pb.time_to_first_token, f"{path}.time_to_first_token")
    if pb.HasField("token_usage"):
        for field, count in pb.token_usage.ListFields():
            if not 0 <= count <= MAX_TOKENS:
                raise _impossible(f"{path}.token_usage.{field.name}", count, MAX_TOKENS)
    if pb.HasField("cost"):
        cost = pb.cost
        if not 0 <= cost.amount <= MAX_COST:  # also refuses NaN
            raise _impossible(f"{path}.cost.amount", cost.amount, MAX_COST)
        if cost.currency_code not in ("USD", ""):
            raise InvalidContext(
                f"{path}.cost.currency_code",
                f'got "{cost.currency_code[:20]}", wanted "USD": costs are compared in US dollars; convert it, or '
                "remove the cost",
            )


def check_duration(pb: Duration, path: str) -> None:
    """Raise InvalidContext for a negative duration, or one of more than a year."""
    if not (0 <= pb.seconds <= MAX_SECONDS and 0 <= pb.nanos < 1_000_000_000):
        raise _impossible(path, f"{pb.seconds + pb.nanos * 1e-9:.15g}s", MAX_SECONDS)


def _impossible(field: str, got: object, most: int | None = None) -> InvalidContext:
    wanted = "of 0 or more" if most is None else f"from 0 to {most}"
    return InvalidContext(
        field, f"got {got}, wanted a number {wanted}; leave the field out if the value is unknown"
    )


def criteria_of(pb: context_pb2.EvaluatorContext) -> evaluator_pb2.EvaluatorSpec | None:
    """Return the spec of the judge that evaluates the scenario's criteria; None if there are none.

    Raises InvalidContext for an unknown mode, because a guessed one might ignore a met failure criterion, and for
    fields that only runs read, because a call would ignore them.
    """
    scenario = pb.scenario
    for name, instead in _OF_RUNS.items():
        value = getattr(scenario, name)
        if value:
            got = value if isinstance(value, int) else len(value)
            unit = " characters" if isinstance(value, str) else ""
            raise InvalidContext(
                f"context.scenario.{name}",
                f"got {got}{unit}, wanted it unset: only runs use this field; {instead}",
            )
    if not scenario.success_criteria and not scenario.failure_criteria:
        return None
    mode = _FAILURE_MODES.get(scenario.failure_criteria_mode)
    if mode is None:
        raise InvalidContext(
            "context.scenario.failure_criteria_mode",
            f"got {scenario.failure_criteria_mode}, wanted a FailureCriteriaMode this server knows",
        )
    config = {
        "successCriteria": scenario.success_criteria,
        "failureCriteria": scenario.failure_criteria,
        "failureCriteriaMode": mode,
    }
    spec = evaluator_pb2.EvaluatorSpec(type=JUDGE, name="criteria")
    spec.config.update({key: value for key, value in config.items() if value})
    return spec
