"""promptfoo, whose vocabulary AgentV shares: `type`, `value`, `threshold`, and a `not-` prefix.

Its score is the verdict as 0 or 1, except for tool-call-f1.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from evald_server.suites.documents import Document, InvalidDocument
from evald_server.suites.foreign.assertions import spec_of
from evald_server.suites.foreign.node import Node

from ..replay import (
    ERROR,
    Call,
    Case,
    Difference,
    Expect,
    Outcome,
    Spec,
    Vector,
    Wanted,
    answered,
    called,
    refused,
    says,
    scripted,
)

DIFFERENCES: dict[str, Difference] = {}


def adapt(vector: Vector) -> Case:
    """Return the vector in evald's terms."""
    config, given, expected = (vector[key] for key in ("config", "input", "expected"))
    kind = vector["evaluator"]
    if kind == "not-webhook":
        return _malformed(given["remote_response"])
    try:
        spec = assertion(kind, config)
    except InvalidDocument as problem:
        return Case(partial(Outcome, refused=str(problem)), _expect(kind, expected))
    if "latency_ms" in given or "cost_usd" in given:
        turn = answered("ok", latency_ms=given.get("latency_ms"), cost_usd=given.get("cost_usd"))
    elif kind == "tool-call-f1" or "tool_calls" in given:
        turn = called(*_calls(given))
    else:
        turn = answered(given["output"])
    return Case(Call([spec], turn), _expect(kind, expected))


def assertion(kind: str, config: Vector) -> Spec:
    """Return the spec of a promptfoo assertion, as `evald test` reads it."""
    data = {**config, "type": kind}
    return spec_of(kind, Node(Document(data, {(): 1}, "promptfooconfig.yaml"), data))


def _calls(given: Vector) -> tuple[list[Any], str]:
    """Return tool calls in any provider's shape, or the text of an output without calls."""
    if "tool_calls" in given:
        return given["tool_calls"], "Done."
    if "tools_called" in given:
        return [{"name": name, "args": {}} for name in given["tools_called"]], "Done."
    output = given["output"]
    if isinstance(output, str):
        try:
            output = json.loads(output)
        except ValueError:
            return [], str(output)
    if isinstance(output, Mapping):
        output = output.get("tool_calls", [output])
    return list(output or ()), "Done."


def _expect(kind: str, expected: Vector) -> Expect:
    if "error" in expected:
        return refused(_WRONG[kind])
    if kind != "tool-call-f1":
        return says(expected["pass"], expected.get("score") if expected["pass"] else None)
    passes = expected.get("pass", expected["score"] == 1)
    return says(passes, expected["score"], expected.get("abs_tol", 1e-9))


# What of the config is wrong in their cases that end in an error.
_WRONG = {
    "contains-any": "is not a comma-separated list of texts",
    "cost": "threshold: got nothing, wanted a number",
    "latency": "threshold: got nothing, wanted a number",
    "trajectory:tool-sequence": "no steps",
    "word-count": "wanted",
}


def _malformed(response: Any) -> Case:
    """Expect an error for a malformed verdict, negated or not."""
    answer = {"success": response["pass"]} if response and "pass" in response else response
    specs: list[Spec] = [{"type": "webhook"}, {"type": "webhook", "negate": True}]
    call = Call(specs, answered("ok"), plugins=[scripted("webhook", answer)])
    error = Wanted(ERROR, success=False)
    return Case(call, Expect((error, error), Wanted(ERROR, success=False)))
