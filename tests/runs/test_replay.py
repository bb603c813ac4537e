"""A recording that is played as a run gives, turn by turn, what EvaluateSession gives on it."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from evald.convert.spec import spec_to_pb
from evald.v1 import connector_service_pb2
from evald.v1.evaluation_service_pb2 import EvaluateSessionRequest as Frame
from evald.v1.result_pb2 import AggregatedEvaluation
from evald_server.config import Settings
from evald_server.connectors.build import Connectors
from evald_server.connectors.connector import Connector
from evald_server.runs.simulator import RecordedUser

from ..rpc.live import serving
from .scripted import messages, play, scenario

DATA = Path(__file__).parent / "data/taubench_airline.jsonl.gz"

SPECS: Sequence[Mapping[str, Any]] = (
    {"type": "contains", "config": {"text": "reservation", "ignoreCase": True}},
    {"type": "regex", "config": {"pattern": r"\$\d+", "mustMatch": False}},
    {
        "type": "tool-use",
        "config": {"expectations": [{"name": "get_user_details"}, {"name": "think", "maxCalls": 0}]},
    },
    {"type": "tool-call-budget", "config": {"maxCalls": 3}},
    {"type": "length-within", "config": {"max": 600}},
    {"type": "is-json", "turn_policy": "final", "enforcement": "shadow"},
    {"type": "latency-budget", "config": {"maxMs": 3000, "onMissing": "skip"}},
    {
        "type": "all-of",
        "config": {"evaluators": [{"type": "contains", "config": {"text": "a"}, "turn_policy": "final"}]},
    },
    {"type": "tool-call-count", "name": "calls"},
    {"type": "tool-call-count", "name": "all calls", "config": {"scope": "conversation"}},
    {"type": "response-length"},
    {"type": "turn-count"},
    {"type": "token-usage"},
)


class Recording:
    """A recorded conversation. opening: before the user's first message. turns: question and answer."""

    def __init__(self, data: Sequence[Mapping[str, Any]]) -> None:
        self.data = data
        recorded = messages(data)
        starts = [index for index, message in enumerate(recorded) if message.role == "user"]
        self.opening = recorded[: starts[0]]
        spans = [recorded[start:end] for start, end in pairwise([*starts, len(recorded)])]
        self.turns = [span for span in spans if len(span) > 1]  # the user's last word has no answer

    def connector(self) -> Connector:
        """What plays it."""
        pb = connector_service_pb2.Connector(id="1", name="recorded", type="replay")
        pb.config.update({"messages": self.data})
        return Connectors(Settings()).build(pb)


def recordings(path: Path = DATA) -> Iterator[Recording]:
    """The conversations."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield Recording(json.loads(line)["messages"])


def frames(recording: Recording) -> Iterator[Frame]:
    """The same as a session."""
    first = Frame()
    first.open.evaluators.extend(spec_to_pb(spec) for spec in SPECS)
    first.open.base_context.messages.extend(recording.opening)
    yield first
    for number, turn in enumerate(recording.turns, 1):
        frame = Frame()
        frame.turn.turn_id = number
        frame.turn.new_messages.extend(turn)
        frame.turn.last_invocation.messages.extend(turn[1:])
        frame.turn.is_final = number == len(recording.turns)
        yield frame


def plain(summary: AggregatedEvaluation, results: Sequence[Any]) -> Mapping[str, Any]:
    """All that is said of a turn, without times."""
    whole = AggregatedEvaluation()
    whole.CopyFrom(summary)
    del whole.results[:]
    whole.results.extend(results)
    for part in (whole, *whole.results):
        part.ClearField("duration")
        part.ClearField("start_time")
    shown: Mapping[str, Any] = json_format.MessageToDict(whole)
    return shown


async def compare(recording: Recording, live: Any) -> int:
    """Play and send one recording. How many turns it has."""
    connector = recording.connector()
    made = scenario(SPECS, maxMessages=1000, onAssertionFailure="ASSERTION_FAILURE_POLICY_CONTINUE")
    run = await play(made, connector, RecordedUser(connector))
    *events, _last = await live.session(frames(recording))
    assert run.turn_count == len(recording.turns)
    for turn in run.turns:
        # What did not fit into a time slice comes in an event of its own.
        of_turn = [frame.event for frame in events if frame.turn_id == turn.turn]
        results = sorted((r for event in of_turn for r in event.results), key=lambda result: result.index)
        assert plain(turn.evaluation, turn.evaluation.results) == plain(of_turn[-1].summary, results)
    assert [m.SerializeToString() for m in run.messages] == [
        m.SerializeToString() for m in [*recording.opening, *(m for turn in recording.turns for m in turn)]
    ]
    return run.turn_count


async def test_a_replayed_recording_gives_what_a_session_gives() -> None:
    async with serving() as live:
        turns = [await compare(recording, live) for recording in recordings()]
    assert len(turns) == 12
    assert sum(turns) > 60


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_recording_may_be_cut_by_the_limit(limit: int) -> None:
    connector = next(recordings()).connector()
    run = await play(scenario(SPECS[-3:], maxMessages=2 * limit), connector, RecordedUser(connector))
    assert run.turn_count == limit
    assert run.turns[-1].is_final
    assert run.output.max_messages_reached
