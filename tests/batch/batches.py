"""Batches of real conversations under all deterministic evaluators, and a server with batch processes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evald.evaluator import EvaluatorDefinition
from evald.messages import parse_messages_json
from evald.v1 import context_pb2, evaluation_service_pb2, evaluator_pb2
from evald_server import wire_pb2
from evald_server.evaluators import BUILT_INS

from ..rpc.live import Live, request, serving, spec

Message = evaluation_service_pb2.EvaluateBatchRequest
Response = evaluation_service_pb2.EvaluateBatchResponse

_SAMPLE = Path(__file__).parents[2] / "server/evald_server/cli/demo_data/conversations.jsonl"

# Its work is its size times that of the text: more than the server does in its event loop as soon as an answer
# has about a thousand characters, which a sixth of them have.
_COSTLY = {"pattern": r"(.*e){10}b", "mustMatch": False}

_ANSWER_SCHEMA = {"type": "object", "required": ["reservation_id"]}

CONFIGS: dict[str, dict[str, Any]] = {
    "completed-within": {"limitMs": 1000},
    "contains": {"substrings": ["reservation", "flight"], "mode": "any", "ignoreCase": True},
    "cost-within": {"maxUsd": 0.002},
    "ends-with": {"text": "?"},
    "exact-match": {"expected": "###STOP###"},
    "execution-limits": {"maxToolCalls": 3, "maxTurns": 5},
    "field-accuracy": {"fields": [{"path": "total"}], "onMissing": "skip"},
    "finish-reason": {"allowed": ["stop"]},
    "is-json": {},
    "json-match": {"expected": {"a": 1}},
    "json-schema": {"schema": _ANSWER_SCHEMA, "onlyFinal": True},
    "latency-budget": {"maxMs": 1000},
    "length-within": {"max": 60, "unit": "words"},
    "numeric": {"expected": 250, "tolerance": 50, "extract": "first"},
    "regex": {"pattern": r"\$\d+"},
    "response-cost": {},
    "response-latency": {},
    "response-length": {"unit": "words"},
    "similarity-check": {"input": "{{sample.output_text}}", "reference": "Your flight has been booked."},
    "starts-with": {"text": "I"},
    "string-check": {"input": "{{sample.output_text}}", "reference": "flight", "operation": "like"},
    "text-similarity": {"expected": "Your flight has been booked.", "threshold": 0.3},
    "token-budget": {"maxTokens": 500, "onMissing": "error"},
    "token-usage": {},
    "tool-call-budget": {"maxCalls": 1},
    "tool-call-count": {"scope": "conversation"},
    "tool-use": {"expectations": [{"name": "get_user_details"}]},
    "trajectory": {"expected": ["get_user_details", "search_direct_flight"], "argsMatch": "ignore"},
    "turn-count": {},
}
assert CONFIGS.keys() == BUILT_INS.keys()


def specs() -> list[evaluator_pb2.EvaluatorSpec]:
    """Return specs of all deterministic built-ins, with all options of a spec."""
    return [
        *(spec(name, config) for name, config in CONFIGS.items()),
        spec("contains", {"text": "certificate"}, name="negated", negate=True),
        spec("length-within", {"max": 10}, name="shadow", enforcement=evaluator_pb2.ENFORCEMENT_SHADOW),
        spec("text-similarity", {"expected": "no"}, name="lenient", threshold=0.01, weight=3),
        spec(
            "regex", {"pattern": "transfer"}, name="final", turn_policy=evaluator_pb2.TURN_POLICY_FINAL_TURN
        ),
        spec("regex", _COSTLY, name="costly"),
        spec(
            "any-of",
            {"evaluators": [{"type": "is-json"}, {"type": "regex", "config": _COSTLY}]},
            name="combined",
        ),
        spec("token-budget", {"maxTokens": 5}, name="missing"),
    ]


def contexts() -> Iterator[context_pb2.EvaluatorContext]:
    """Return all turns of the recorded conversations, half of them as JSON."""
    for line in _SAMPLE.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        ends = [at for at, message in enumerate(messages, 1) if message["role"] == "assistant"]
        for number, end in enumerate(ends, 1):
            pb = context_pb2.EvaluatorContext(turn=number, is_final=number == len(ends))
            text = json.dumps(messages[:end])
            if number % 2:
                pb.messages_json = text
            else:
                parse_messages_json(text, pb.messages, max_messages=1000)
                pb.last_invocation.latency.FromMilliseconds(number * 200)
                pb.last_invocation.token_usage.total_tokens = number * 40
            yield pb


def items() -> list[evaluation_service_pb2.BatchItem]:
    """Return the turns, mixed with items that are invalid or have their own evaluators."""
    made = [
        evaluation_service_pb2.BatchItem(item_id=f"turn-{number}", context=context)
        for number, context in enumerate(contexts())
    ]
    plain = request().context
    strange = [evaluation_service_pb2.BatchItem(item_id=f"strange-{number}") for number in range(7)]
    strange[0].evaluators.append(spec("is-json"))
    strange[0].context.CopyFrom(plain)
    strange[1].evaluators.append(spec("contans"))
    strange[2].context.messages_json = "["
    strange[3].context.messages_json = "[]"
    strange[3].context.messages.add(role="user", text="twice")
    for _ in range(300):
        strange[4].context.messages.add(role="user", text="too many")
    strange[5].context.scenario.instructions = "no criteria"
    strange[5].context.messages.extend(plain.messages)
    strange[6].context.scenario.success_criteria = "needs a judge"
    for number, item in enumerate(strange):
        made.insert(number * len(made) // len(strange), item)
    return made


def messages(
    *, size: int = 40, copies: int = 1, opened: Sequence[Any] | None = None, **fields: Any
) -> list[bytes]:
    """Return `copies` of all items, in messages of `size` items; the last one is malformed."""
    made = [
        evaluation_service_pb2.BatchItem(
            item_id=f"{item.item_id}-{copy}", context=item.context, evaluators=item.evaluators
        ).SerializeToString()
        for copy in range(copies)
        for item in items()
    ]
    made.append(b"\xff\xff\xff")
    shared = evaluation_service_pb2.BatchOpen(evaluators=specs() if opened is None else opened, **fields)
    sent = [
        wire_pb2.EvaluateBatchRequest(items=made[begin : begin + size]).SerializeToString()
        for begin in range(0, len(made), size)
    ]
    opening = evaluation_service_pb2.EvaluateBatchRequest(open=shared)
    return [opening.SerializeToString() + sent[0], *sent[1:]]


async def send(live: Live, sent: Iterable[bytes]) -> list[Response]:
    """Return all answers to a batch."""
    call = live.channel.stream_stream("/evald.v1.EvaluationService/EvaluateBatch")
    return [Response.FromString(data) async for data in call(iter(sent))]


async def helped(live: Live, count: int) -> list[int]:
    """Start batch processes, which all batches use. Returns their process ids."""
    pool = live.app.batch_processes
    assert pool.size >= count
    pool.after = pool.least = 0
    warm = [
        Message(
            open=evaluation_service_pb2.BatchOpen(evaluators=[spec("is-json")]),
            items=[evaluation_service_pb2.BatchItem(context=request().context)] * 200,
        ).SerializeToString()
    ]
    async with asyncio.timeout(30):
        while len(pool.processes) < count:
            # Beside each other, because another process is started when all are busy.
            await asyncio.gather(*(send(live, warm) for _ in range(4)))
            await asyncio.sleep(0.02)
    return pool.processes


@asynccontextmanager
async def serving_with(
    processes: int, evaluators: Iterable[EvaluatorDefinition] = (), **settings: Any
) -> AsyncIterator[Live]:
    """Run a server with batch processes that are ready."""
    async with serving(evaluators, batch_processes=processes, **settings) as live:
        await helped(live, processes)
        yield live


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    async with asyncio.timeout(20):
        while _alive(pid):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
