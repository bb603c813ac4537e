"""The standard input of a script: one JSON object that describes the turn.

The first block of keys is evald's own. The other keys are those that AgentV gives its scripts, current and former
names, so that AgentV's scripts work unchanged.
Source of AgentV's keys: EntityProcess/agentv, packages/core/src/evaluation: graders/script-grader.ts,
evaluators/code-evaluator.ts.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evald.chat import Message, ToolCall
from evald.context import EvaluatorContext


def payload_of(ctx: EvaluatorContext, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of the payload as JSON text, by key. Serialises the conversation once.

    Raises OutOfTime once the call's time is over.
    """

    def read(message: Message) -> dict[str, Any]:
        ctx.check_time()
        return _message(message)

    own = [read(message) for message in ctx.turn_messages]
    everything = ctx.messages
    # The turn is the end of the conversation if the caller sent both.
    split = max(0, len(everything) - len(own))
    before = ",".join(_json(read(message)) for message in everything[:split])
    turn = ",".join(map(_json, own))
    messages = f"[{before}{',' if before and turn else ''}{turn}]"
    before, turn = f"[{before}]", f"[{turn}]"
    expected_messages = _json([read(message) for message in ctx.expected.messages])
    answer, expected_text = _json(ctx.answer), _json(ctx.expected.text)
    criteria = _json(ctx.scenario.success_criteria if ctx.scenario else None)
    question, latency = _json(_question(everything[:split])), _json(ctx.last_invocation.latency_ms)
    return {
        "version": "1",
        "turn": _json(ctx.turn),
        "is_final": _json(ctx.is_final),
        "attempt": _json(ctx.attempt),
        "answer": answer,
        "messages": messages,
        "turn_messages": turn,
        "tool_calls": _json([_tool_call(call) for call in ctx.turn_tool_calls]),
        "expected": _json(_expected(ctx)),
        "scenario": _json(_scenario(ctx)),
        "persona": _json(_persona(ctx)),
        "model": _json(ctx.last_invocation.model),
        "latency_ms": latency,
        "run_duration_ms": _json(ctx.run_duration_ms),
        "invocation_metadata": _json(ctx.last_invocation.metadata),
        "metadata": _json(ctx.metadata),
        "config": _json(config),
        "token_usage": _json(_usage(ctx)),
        "cost_usd": _json(ctx.last_invocation.cost_usd),
        # AgentV, current names.
        "input": before,
        "output": answer,
        "expected_output": expected_messages if ctx.expected.messages else expected_text,
        "criteria": criteria,
        "duration_ms": latency,
        "trace_summary": _json(_trace(ctx)),
        "input_files": "[]",
        # AgentV, former names.
        "question": question,
        "expected_outcome": criteria,
        "reference_answer": expected_text,
        "candidate_answer": answer,
        "input_messages": before,
        "output_messages": turn,
        "expected_messages": expected_messages,
        "guideline_files": "[]",
        # AgentV, oldest names.
        "task": question,
        "outcome": criteria,
        "system_message": _json(_system(everything)),
    }


def written(payload: Mapping[str, str]) -> bytes:
    """Return the whole object as bytes."""
    text = ",".join(f'"{key}":{value}' for key, value in payload.items())
    return f"{{{text}}}\n".encode()


def _json(data: Any) -> str:
    # ASCII: independent of the script's locale, and safe for lone surrogates.
    return json.dumps(data, separators=(",", ":"))


def _message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": message.role,
        "content": None if message.is_null else message.text,
    }
    calls = message.tool_calls
    if calls:
        found["tool_calls"] = [_tool_call(call) for call in calls]
    for key in ("tool_call_id", "name", "id", "refusal"):
        value = getattr(message, key)
        if value is not None:
            found[key] = value
    metadata = message.metadata
    if metadata:
        found["metadata"] = metadata
    return found


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """Return the call in OpenAI's format, plus AgentV's `tool` and `input`."""
    try:
        arguments = call.args
    except ValueError:
        arguments = None
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        "tool": call.name,
        "input": arguments,
    } | ({} if call.duration_ms is None else {"duration_ms": call.duration_ms})


def _expected(ctx: EvaluatorContext) -> dict[str, Any]:
    expected = ctx.expected
    found: dict[str, Any] = {}
    if expected.text is not None:
        found["text"] = expected.text
    if expected.has_data:
        found["data"] = expected.data
    if expected.messages:
        found["messages"] = [_message(message) for message in expected.messages]
    return found


def _scenario(ctx: EvaluatorContext) -> dict[str, Any] | None:
    scenario = ctx.scenario
    if scenario is None:
        return None
    names = ("name", "instructions", "max_messages", "success_criteria", "failure_criteria")
    return {name: getattr(scenario, name) for name in names}


def _persona(ctx: EvaluatorContext) -> dict[str, Any] | None:
    persona = ctx.persona
    return None if persona is None else {"name": persona.name, "description": persona.description}


def _usage(ctx: EvaluatorContext) -> dict[str, int | None] | None:
    usage = ctx.last_invocation.token_usage
    if usage is None:
        return None
    return {"input": usage.input_tokens, "output": usage.output_tokens, "total": usage.total}


def _trace(ctx: EvaluatorContext) -> dict[str, Any]:
    names = Counter(call.name for call in ctx.turn_tool_calls)
    return {
        "tool_names": sorted(names),
        "tool_calls_by_name": dict(names),
        "tool_calls": dict(names),
        "token_usage": _usage(ctx),
        "cost_usd": ctx.last_invocation.cost_usd,
        "duration_ms": ctx.last_invocation.latency_ms,
    }


def _question(before: Sequence[Message]) -> str | None:
    return next((message.text for message in reversed(before) if message.role == "user"), None)


def _system(messages: Sequence[Message]) -> str | None:
    return next((message.text for message in messages if message.role in ("system", "developer")), None)
