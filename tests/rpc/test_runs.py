"""Runs over a real channel: started, watched from any number, listed, cancelled, resumed, imported, refused."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from evald.v1 import connector_service_pb2 as connectors_pb
from evald.v1 import experiment_service_pb2 as experiments_pb
from evald.v1 import persona_service_pb2 as personas_pb
from evald.v1 import run_service_pb2 as runs_pb
from evald.v1 import scenario_service_pb2 as scenarios_pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.experiment_service_pb2 import Experiment
from evald.v1.experiment_service_pb2_grpc import ExperimentServiceStub
from evald.v1.message_pb2 import ChatMessage
from evald.v1.persona_service_pb2_grpc import PersonaServiceStub
from evald.v1.run_service_pb2 import Run, RunTurn, WatchRunResponse
from evald.v1.run_service_pb2_grpc import RunServiceStub
from evald.v1.scenario_service_pb2_grpc import ScenarioServiceStub
from evald_server.auth.principal import Role
from evald_server.store.database import StoreProblem
from evald_server.store.runs import RunEvent, RunStore

from ..auth.keyring import Metadata, bearer, guarded, make_key
from ..monitoring.scrape import value
from ..remote.scripted import WORD, listening, register
from .live import Live, refusal, serving, spec, until

RECORDED = [
    {"role": "user", "content": "Move my booking"},
    {"role": "assistant", "content": "To which day?"},
    {"role": "user", "content": "Friday"},
    {"role": "assistant", "content": "Moved to Friday: BK-12345"},
]
METRIC = spec("response-length")
REFERENCE = spec("regex", {"pattern": r"BK-\d{5}"}, turn_policy=2)


class Floor:
    """The stubs of a server, and something to run."""

    def __init__(self, live: Live, metadata: Metadata = ()) -> None:
        self.live = live
        self.metadata = metadata
        self.runs = RunServiceStub(live.channel)

    async def scenario(self, *specs: Any, name: str = "Booking", **fields: Any) -> Scenario:
        scenario = Scenario(name=name, evaluators=specs or [METRIC, REFERENCE], **fields)
        request = scenarios_pb.CreateScenarioRequest(scenario=scenario)
        return (
            await ScenarioServiceStub(self.live.channel).CreateScenario(request, metadata=self.metadata)
        ).scenario

    async def connector(self, *, name: str = "agent", **fields: Any) -> Connector:
        connector = Connector(name=name, **({"type": "replay"} | fields))
        if connector.type == "replay":
            connector.config.update({"messages": RECORDED})
        request = connectors_pb.CreateConnectorRequest(connector=connector)
        return (
            await ConnectorServiceStub(self.live.channel).CreateConnector(request, metadata=self.metadata)
        ).connector

    async def start(self, scenario: Scenario, connector: Connector, **fields: Any) -> Run:
        request = runs_pb.StartRunRequest(scenario_id=scenario.id, connector_id=connector.id, **fields)
        return (await self.runs.StartRun(request, metadata=self.metadata)).run

    async def watch(self, run_id: str, after: int = 0) -> list[WatchRunResponse]:
        request = runs_pb.WatchRunRequest(run_id=run_id, after_sequence=after)
        return [event async for event in self.runs.WatchRun(request, metadata=self.metadata)]

    async def get(self, run_id: str) -> Run:
        return (await self.runs.GetRun(runs_pb.GetRunRequest(run_id=run_id), metadata=self.metadata)).run

    async def played(self, **fields: Any) -> Run:
        """A run that has ended."""
        run = await self.start(await self.scenario(**fields), await self.connector())
        await self.watch(run.id)
        return await self.get(run.id)


async def silent_agent() -> tuple[asyncio.Server, str]:
    """An agent that takes connections and never answers, and its address."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_run_is_played_turn_by_turn_and_kept() -> None:
    async with serving() as live:
        run = await Floor(live).played()
        assert run.status == runs_pb.RUN_STATUS_COMPLETED
        assert run.verdict == 1
        assert run.result.success
        assert [message.text for message in run.messages] == [one["content"] for one in RECORDED]
        first, second = run.turns
        assert [first.is_final, second.is_final] == [False, True]
        assert [result.verdict for result in first.evaluation.results] == [1, 4]
        assert [result.verdict for result in second.evaluation.results] == [1, 1]
        made = [[one.provenance for one in turn.evaluation.results] for turn in run.turns]
        assert made[0] == made[1]
        assert all(one.config_sha256 for one in made[0])
        assert [(turn.first_message, turn.message_count) for turn in run.turns] == [(0, 2), (2, 2)]
        assert list(run.output.evaluator_results) == list(second.evaluation.results)
        assert run.output.metrics["response-length"] == len(RECORDED[3]["content"])
        assert run.scenario.name == "Booking"
        assert run.connector.type == "replay"


async def test_a_watch_goes_on_from_any_number_without_loss_or_doubles() -> None:
    async with serving() as live:
        floor = Floor(live)
        run = await floor.played()
        events = await floor.watch(run.id)
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds[-1] == "end"
        assert kinds.count("message") == 4
        assert kinds.count("result") == 4
        assert kinds.count("turn") == 2
        numbers = [event.sequence for event in events]
        assert numbers == sorted(set(numbers))
        for position, event in enumerate(events):
            assert await floor.watch(run.id, after=event.sequence) == events[position + 1 :]


async def test_a_watch_that_reads_while_the_run_ends_shows_it_as_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, address = await silent_agent()
    async with agent, serving() as live:
        floor = Floor(live)
        connector = await floor.connector(type="http", base_url=address)
        run = await floor.start(await floor.scenario(messages=[{"role": "user", "text": "hi"}]), connector)
        events = RunStore.events

        async def after_the_end(self: RunStore, run_id: str, *arguments: int) -> list[RunEvent]:
            monkeypatch.setattr(RunStore, "events", events)
            await floor.runs.CancelRun(runs_pb.CancelRunRequest(run_id=run_id))
            return await events(self, run_id, *arguments)

        async def running() -> bool:
            return (await floor.get(run.id)).status == runs_pb.RUN_STATUS_RUNNING

        await until(running)
        monkeypatch.setattr(RunStore, "events", after_the_end)
        assert (await floor.watch(run.id))[-1].end.status == runs_pb.RUN_STATUS_CANCELLED


async def test_a_watch_of_a_run_that_is_deleted_before_its_end_was_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, address = await silent_agent()
    async with agent, serving() as live:
        floor = Floor(live)
        connector = await floor.connector(type="http", base_url=address)
        run = await floor.start(await floor.scenario(messages=[{"role": "user", "text": "hi"}]), connector)
        events = RunStore.events

        reads = 0

        async def read(self: RunStore, run_id: str, *arguments: int) -> list[RunEvent]:
            nonlocal reads
            reads += 1
            if reads == 3:  # after all that there was, and nothing
                await floor.runs.DeleteRun(runs_pb.DeleteRunRequest(run_id=run_id))
            return await events(self, run_id, *arguments)

        async def running() -> bool:
            return (await floor.get(run.id)).status == runs_pb.RUN_STATUS_RUNNING

        await until(running)
        monkeypatch.setattr(RunStore, "events", read)
        watching = asyncio.create_task(floor.watch(run.id))
        await until(lambda: reads == 2)
        await floor.runs.CancelRun(runs_pb.CancelRunRequest(run_id=run.id))
        assert (await refusal(watching)).reason == "RESOURCE_NOT_FOUND"


async def test_a_watch_of_a_run_that_ends_and_is_deleted_while_others_of_its_events_are_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = asyncio.Event()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"text": "fine"}')
        await reader.read()
        writer.close()

    agent = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    async with agent, serving() as live:
        floor = Floor(live)
        address = f"http://127.0.0.1:{agent.sockets[0].getsockname()[1]}"
        request = personas_pb.CreatePersonaRequest(persona=Persona(name="Maria", script=["one", "two"]))
        persona = (await PersonaServiceStub(live.channel).CreatePersona(request)).persona
        connector = await floor.connector(type="http", base_url=address)
        run = await floor.start(await floor.scenario(METRIC), connector, persona_id=persona.id)
        events, reads = RunStore.events, 0

        async def read(self: RunStore, run_id: str, *arguments: int) -> list[RunEvent]:
            nonlocal reads
            found = await events(self, run_id, *arguments)
            reads += not found
            if found and reads:
                await floor.runs.CancelRun(runs_pb.CancelRunRequest(run_id=run_id))
                await floor.runs.DeleteRun(runs_pb.DeleteRunRequest(run_id=run_id))
            return found

        async def running() -> bool:
            return (await floor.get(run.id)).status == runs_pb.RUN_STATUS_RUNNING

        await until(running)
        monkeypatch.setattr(RunStore, "events", read)
        watching = asyncio.create_task(floor.watch(run.id))
        await until(lambda: reads)
        go_on.set()
        assert (await asyncio.wait_for(refusal(watching), 30)).reason == "RESOURCE_NOT_FOUND"


async def test_a_watch_that_reads_an_end_before_a_retry_goes_on_to_the_next_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as live:
        floor = Floor(live)
        connector = await floor.connector(type="http", base_url="http://127.0.0.1:9")
        run = await floor.start(await floor.scenario(messages=[{"role": "user", "text": "hi"}]), connector)
        await floor.watch(run.id)
        events = RunStore.events

        async def before_the_retry(self: RunStore, run_id: str, *arguments: int) -> list[RunEvent]:
            read = await events(self, run_id, *arguments)
            monkeypatch.setattr(RunStore, "events", events)
            await floor.runs.RetryRun(runs_pb.RetryRunRequest(run_id=run_id))
            return read

        monkeypatch.setattr(RunStore, "events", before_the_retry)
        ends = [event.end for event in await floor.watch(run.id) if event.HasField("end")]
        assert [(end.status, end.attempt) for end in ends] == [(runs_pb.RUN_STATUS_ERROR, 2)]


async def test_every_filter_finds_its_runs_and_pages_hold_each_once() -> None:
    async with serving() as live:
        floor = Floor(live)
        booking, other = (
            await floor.scenario(),
            await floor.scenario(spec("contains", {"text": "zebra"}), name="Other"),
        )
        agent = await floor.connector()
        ids = [(await floor.start(scenario, agent)).id for scenario in (booking, other, booking, booking)]
        for run_id in ids:
            await floor.watch(run_id)

        async def listed(**fields: Any) -> list[str]:
            page = await floor.runs.ListRuns(runs_pb.ListRunsRequest(**fields))
            return [run.id for run in page.runs]

        assert await listed() == ids[::-1]
        assert await listed(oldest_first=True) == ids
        assert await listed(scenario_id=booking.id) == [ids[3], ids[2], ids[0]]
        assert await listed(connector_id=agent.id, verdict=2) == [ids[1]]
        assert await listed(failed_evaluator="contains") == [ids[1]]
        assert await listed(failed_evaluator="regex") == []
        assert await listed(status=runs_pb.RUN_STATUS_ERROR) == []
        found, token = [], ""
        while True:
            page = await floor.runs.ListRuns(runs_pb.ListRunsRequest(page_size=3, page_token=token))
            assert not any(run.messages or run.turns for run in page.runs)
            found += [run.id for run in page.runs]
            token = page.next_page_token
            if not token:
                break
        assert found == ids[::-1]
        (with_messages,) = (
            await floor.runs.ListRuns(runs_pb.ListRunsRequest(page_size=1, include_messages=True))
        ).runs
        assert len(with_messages.messages) == 4


async def test_a_page_with_long_conversations_ends_early_and_loses_none() -> None:
    async with serving() as live:
        floor = Floor(live)
        run = await floor.played()
        run.messages[0].text = "x" * (1 << 20)
        wanted = []
        for number in range(7):
            run.id = f"run {number}"
            wanted.append(run.id)
            await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run))
        run.id, run.messages[0].text = "longest", "y" * (5 << 20)
        await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run))
        request = runs_pb.ListRunsRequest(include_messages=True)
        sizes, found = [], []
        while True:
            page = await floor.runs.ListRuns(request)
            sizes.append(page.ByteSize())
            found += [(one.id, len(one.messages)) for one in page.runs]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    assert sorted(found[:-1]) == [("longest", 4), *((one, 4) for one in wanted)]
    assert found[-1][0] not in [*wanted, "longest"]
    assert [size > 4 << 20 for size in sizes].count(True) == 1


async def test_a_long_run_is_given_whole_and_without_what_may_be_a_secret() -> None:
    async with serving() as live:
        floor = Floor(live)
        run = await floor.played()
        run.id = "long"
        run.connector.headers["x-tenant"] = "acme"
        for number in range(3000):
            run.messages.add(role="user", text=f"{number} " * 20)
        await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run))
        run.connector.headers["x-tenant"] = "***"
        got = await floor.get("long")
        page = await floor.runs.ListRuns(runs_pb.ListRunsRequest(include_messages=True))
    (listed,) = [one for one in page.runs if one.id == "long"]
    assert got.messages == listed.messages == run.messages
    assert listed.connector.headers == {}
    assert got.turns == run.turns
    assert got.connector == run.connector


async def test_an_experiment_runs_each_scenario_with_each_persona() -> None:
    async with serving() as live:
        floor = Floor(live)
        scenarios = [await floor.scenario(name=name) for name in ("a", "b")]
        personas = []
        for name in ("Maria", "Omar"):
            request = personas_pb.CreatePersonaRequest(persona=Persona(name=name, script=["hello"]))
            personas.append((await PersonaServiceStub(live.channel).CreatePersona(request)).persona)
        experiment = Experiment(
            name="all",
            scenario_ids=[one.id for one in scenarios],
            persona_ids=[one.id for one in personas],
            connector_id=(await floor.connector()).id,
        )
        made = await ExperimentServiceStub(live.channel).CreateExperiment(
            experiments_pb.CreateExperimentRequest(experiment=experiment)
        )
        started = await floor.runs.StartRuns(
            runs_pb.StartRunsRequest(experiment_id=made.experiment.id, request_id="8f14e45f")
        )
        pairs = [(run.scenario.name, run.persona.name) for run in started.runs]
        assert pairs == [("a", "Maria"), ("a", "Omar"), ("b", "Maria"), ("b", "Omar")]
        assert not any(run.connector.HasField("config") for run in started.runs)
        assert {run.execution_id for run in started.runs} == {started.execution_id}
        again = await floor.runs.StartRuns(
            runs_pb.StartRunsRequest(experiment_id=made.experiment.id, request_id="8f14e45f")
        )
        assert [run.id for run in again.runs] == [run.id for run in started.runs]
        for run in started.runs:
            await floor.watch(run.id)
        page = await floor.runs.ListRuns(runs_pb.ListRunsRequest(execution_id=started.execution_id))
        assert len(page.runs) == 4


async def test_an_id_of_a_request_stands_for_no_other_one() -> None:
    async with serving() as live:
        floor = Floor(live)
        first, second = [await floor.scenario(name=name) for name in ("a", "b")]
        connector = await floor.connector()
        request = personas_pb.CreatePersonaRequest(persona=Persona(name="Maria", script=["hello"]))
        persona = (await PersonaServiceStub(live.channel).CreatePersona(request)).persona
        experiment = Experiment(
            name="all",
            scenario_ids=[first.id, second.id],
            persona_ids=[persona.id],
            connector_id=connector.id,
        )
        made = await ExperimentServiceStub(live.channel).CreateExperiment(
            experiments_pb.CreateExperimentRequest(experiment=experiment)
        )
        run = await floor.start(first, connector, request_id="one")
        assert (await floor.start(first, connector, request_id="one")).id == run.id
        started = await floor.runs.StartRuns(
            runs_pb.StartRunsRequest(experiment_id=made.experiment.id, request_id="all")
        )

        def start_all(request_id: str) -> Any:
            return floor.runs.StartRuns(
                runs_pb.StartRunsRequest(experiment_id=made.experiment.id, request_id=request_id)
            )

        for other in (
            floor.start(second, connector, request_id="one"),
            floor.start(first, await floor.connector(name="other"), request_id="one"),
            floor.start(first, connector, persona_id=persona.id, request_id="one"),
            floor.start(first, connector, persona_id=persona.id, request_id="all"),
            start_all("one"),
        ):
            refused = await refusal(other)
            assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED")
            assert refused.fields == ["request_id"]
        for long in (floor.start(first, connector, request_id="x" * 129), start_all("x" * 129)):
            assert (await refusal(long)).fields == ["request_id"]
        page = await floor.runs.ListRuns(runs_pb.ListRunsRequest())
        assert {one.id for one in page.runs} == {run.id, *(one.id for one in started.runs)}


async def test_a_running_run_can_be_cancelled_and_not_deleted_and_an_ended_one_the_other_way_round() -> None:
    agent, address = await silent_agent()
    async with agent, serving() as live:
        floor = Floor(live)
        connector = await floor.connector(type="http", base_url=address)
        run = await floor.start(await floor.scenario(messages=[{"role": "user", "text": "hi"}]), connector)

        async def running() -> bool:
            return (await floor.get(run.id)).status == runs_pb.RUN_STATUS_RUNNING

        await until(running)
        refused = await refusal(floor.runs.DeleteRun(runs_pb.DeleteRunRequest(run_id=run.id)))
        assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.reason == "RUN_STATUS"
        cancelled = await floor.runs.CancelRun(runs_pb.CancelRunRequest(run_id=run.id))
        assert cancelled.run.status == runs_pb.RUN_STATUS_CANCELLED
        assert (await floor.watch(run.id))[-1].end.status == runs_pb.RUN_STATUS_CANCELLED
        for method, request in (
            (floor.runs.CancelRun, runs_pb.CancelRunRequest(run_id=run.id)),
            (floor.runs.RetryRun, runs_pb.RetryRunRequest(run_id=run.id)),
            (floor.runs.ResumeRun, runs_pb.ResumeRunRequest(run_id=run.id)),
        ):
            assert (await refusal(method(request))).reason == "RUN_STATUS"
        await floor.runs.DeleteRun(runs_pb.DeleteRunRequest(run_id=run.id))
        assert (await refusal(floor.get(run.id))).code is grpc.StatusCode.NOT_FOUND


async def test_an_agent_that_is_away_is_an_error_that_can_be_retried() -> None:
    async with serving() as live:
        floor = Floor(live)
        connector = await floor.connector(type="http", base_url="http://127.0.0.1:9")
        run = await floor.start(await floor.scenario(messages=[{"role": "user", "text": "hi"}]), connector)
        end = (await floor.watch(run.id))[-1].end
        assert end.status == runs_pb.RUN_STATUS_ERROR
        assert end.verdict == 3
        assert end.error.code == "CONNECTOR_UNAVAILABLE"
        assert not end.HasField("result")
        retried = await floor.runs.RetryRun(runs_pb.RetryRunRequest(run_id=run.id))
        assert retried.run.attempt == 2
        again = await floor.watch(run.id, after=end.last_sequence)
        assert again[0].status.attempt == 2
        assert again[-1].end.status == runs_pb.RUN_STATUS_ERROR


async def test_a_run_is_interrupted_by_the_end_of_the_server_and_resumed_by_the_next(tmp_path: Path) -> None:
    agent, address = await silent_agent()
    async with agent:
        async with serving(data_dir=tmp_path) as live:
            floor = Floor(live)
            connector = await floor.connector(type="http", base_url=address)
            scenario = await floor.scenario(messages=[{"role": "user", "text": "hi"}])
            run = await floor.start(scenario, connector)

            async def running() -> bool:
                return (await floor.get(run.id)).status == runs_pb.RUN_STATUS_RUNNING

            await until(running)
        async with serving(data_dir=tmp_path) as live:
            floor = Floor(live)
            assert (await floor.get(run.id)).status == runs_pb.RUN_STATUS_INTERRUPTED
            resumed = await floor.runs.ResumeRun(runs_pb.ResumeRunRequest(run_id=run.id))
            assert resumed.run.status in (runs_pb.RUN_STATUS_QUEUED, runs_pb.RUN_STATUS_RUNNING)
            cancelled = await floor.runs.CancelRun(runs_pb.CancelRunRequest(run_id=run.id))
            assert [message.text for message in (await floor.get(run.id)).messages] == ["hi"]
            assert cancelled.run.attempt == 1


async def test_one_principal_takes_not_all_places_of_runs(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    greedy, other = (
        bearer(make_key(file, name, Role.CALLER, Role.VIEWER, Role.ADMIN)) for name in ("greedy", "other")
    )
    settings: dict[str, Any] = {"data_dir": tmp_path / "data", "max_runs": 4}
    agent, address = await silent_agent()

    def counts(live: Live) -> tuple[float | None, float | None]:
        telemetry = live.app.telemetry
        return value(telemetry, "evald_runs_running"), value(telemetry, "evald_runs_queued")

    async def ends(live: Live, name: str) -> None:
        floor = Floor(live, other)
        run = await floor.start(await floor.scenario(name=name), await floor.connector(name=name))
        async with asyncio.timeout(60):
            assert (await floor.watch(run.id))[-1].end.status == runs_pb.RUN_STATUS_COMPLETED

    async with agent:
        async with guarded(file, **settings) as live:
            floor = Floor(live, greedy)
            scenario = await floor.scenario(name="slow", messages=[{"role": "user", "text": "hi"}])
            for name in ("one", "two"):
                connector = await floor.connector(name=name, type="http", base_url=address)
                for _ in range(4):
                    await floor.start(scenario, connector)
            await until(lambda: counts(live) == (3, 5), 60)
            await ends(live, "before")
        # A later server plays the queued runs, as those of one principal.
        async with guarded(file, **settings) as live:
            await until(lambda: counts(live) == (3, 2), 60)
            await ends(live, "after")


async def test_a_queued_run_waits_until_its_remote_evaluator_is_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path, "remote_allowed": ["127.0.0.1"]}
    agent, address = await silent_agent()
    async with agent:
        async with listening("acme.word") as plugin, serving(**settings, max_runs=1) as live:
            await register(live, plugin)
            floor = Floor(live)
            scenario = await floor.scenario(WORD, messages=[{"role": "user", "text": "Move my booking"}])
            await floor.start(scenario, await floor.connector(name="silent", type="http", base_url=address))
            run = await floor.start(await floor.scenario(WORD, name="Queued"), await floor.connector())
        async with serving(**settings) as live:
            floor = Floor(live)
            assert (await floor.get(run.id)).status == runs_pb.RUN_STATUS_QUEUED
            await plugin.start(plugin.address)
            end = (await floor.watch(run.id))[-1].end
            await plugin.stop()
    assert (end.status, end.verdict) == (runs_pb.RUN_STATUS_COMPLETED, 1)


async def test_a_run_is_imported_as_it_was() -> None:
    async with serving() as live:
        floor = Floor(live)
        run = await floor.played()
        whole = Run()
        whole.CopyFrom(run)
        whole.id = "imported"
        await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=whole))
        got = await floor.get("imported")
        assert got.messages == run.messages
        assert got.turns == run.turns
        assert got.output == run.output
        assert got.result == run.result
        refused = await refusal(floor.runs.ImportRun(runs_pb.ImportRunRequest(run=whole)))
        assert refused.reason == "RESOURCE_EXISTS"
        whole.id, whole.status = "other", runs_pb.RUN_STATUS_RUNNING
        refused = await refusal(floor.runs.ImportRun(runs_pb.ImportRunRequest(run=whole)))
        assert refused.fields == ["run.status"]


async def test_an_imported_run_has_no_more_messages_and_turns_than_a_run_may_have() -> None:
    async with serving(max_messages=50) as live:
        floor = Floor(live)
        run = Run(id="many", status=runs_pb.RUN_STATUS_COMPLETED, verdict=1)
        run.messages.extend([ChatMessage(role="user", text="x")] * 51)
        run.turns.extend([RunTurn()] * 51)
        found = await refusal(floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run)))
        assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["run.messages", "run.turns"])


IMPOSSIBLE: dict[str, Any] = {
    "verdict": {"verdict": 7},
    "turn_count": {"turn_count": -1},
    "token_usage.input_tokens": {"token_usage": {"input_tokens": -5}},
    "cost.amount": {"cost": {"currency_code": "USD", "amount": -0.5}},
    "result.score": {"result": {"score": 1.5}},
    "output.total_latency": {"output": {"total_latency": {"seconds": -1}}},
    "output.evaluator_results[0].verdict": {"output": {"evaluator_results": [{"verdict": 99}]}},
    "turns[0].latency": {"turns": [{"latency": {"nanos": -1}}]},
    "turns[0].time_to_first_token": {"turns": [{"time_to_first_token": {"seconds": 1 << 60}}]},
    "turns[0].evaluation.verdict": {"turns": [{"evaluation": {"verdict": -1}}]},
    "turns[0].evaluation.failed_count": {"turns": [{"evaluation": {"failed_count": -1}}]},
    "turns[0].evaluation.results[0].kind": {"turns": [{"evaluation": {"results": [{"kind": 9}]}}]},
    "turns[0].evaluation.results[0].duration": {
        "turns": [{"evaluation": {"results": [{"duration": {"seconds": -9}}]}}]
    },
    "result.success": {"verdict": 2, "result": {"success": True}},
}
CONTRADICTIONS = {
    "error that completed": {"verdict": 3},
    "failure that did not complete": {"verdict": 2, "status": runs_pb.RUN_STATUS_ERROR},
    "pass that was cancelled": {"verdict": 1, "status": runs_pb.RUN_STATUS_CANCELLED},
}


async def test_an_imported_run_with_impossible_values_is_refused_with_their_paths() -> None:
    async with serving() as live:
        floor = Floor(live)
        for path, more in (*IMPOSSIBLE.items(), *(("verdict", more) for more in CONTRADICTIONS.values())):
            run = Run(**{"id": "odd", "status": runs_pb.RUN_STATUS_COMPLETED, "verdict": 1, **more})
            found = await refusal(floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run)))
            assert (found.code, found.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [f"run.{path}"])
            assert "wanted" in found.message
            with pytest.raises(grpc.aio.AioRpcError):
                await floor.get("odd")


async def test_an_imported_run_that_was_interrupted_goes_on_and_is_watched_to_its_end() -> None:
    async with serving() as live:
        floor = Floor(live)
        half = await floor.played()
        half.id, half.status = "half", runs_pb.RUN_STATUS_INTERRUPTED
        del half.messages[2:], half.turns[1:]
        half.turn_count = 1
        half.ClearField("verdict")
        half.ClearField("result")
        await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=half))
        assert not any(event.HasField("end") for event in await floor.watch("half"))
        await floor.runs.ResumeRun(runs_pb.ResumeRunRequest(run_id="half"))
        ends = [event.end for event in await floor.watch("half") if event.HasField("end")]
        assert [(end.status, end.turn_count) for end in ends] == [(runs_pb.RUN_STATUS_COMPLETED, 2)]


async def test_what_may_be_a_secret_of_an_imported_run_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[Run] = []

    async def import_run(self: RunStore, run: Run, events: Sequence[RunEvent]) -> None:
        stored.append(run)

    async with serving() as live:
        floor = Floor(live)
        run = await floor.played()
        run.connector.headers["x-key"] = run.persona.headers["x-key"] = "plain"
        monkeypatch.setattr(RunStore, "import_run", import_run)
        await floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run))
        assert "plain" not in str(stored)


async def test_what_no_server_can_have_played_is_not_imported() -> None:
    async with serving() as live:
        floor = Floor(live)
        run = Run(id="\x1b" * 101, status=-3, verdict=77)  # type: ignore[arg-type]
        run.scenario.max_messages = 2**31 - 1
        run.result.score = float("nan")
        run.output.metrics["cost"] = float("inf")
        run.connector.config.update({"temperatures": [0.5, {"high": float("nan")}]})
        run.turns.add(turn=1, first_message=-3, message_count=2)
        run.create_time.seconds = 1 << 60
        refused = await refusal(floor.runs.ImportRun(runs_pb.ImportRunRequest(run=run)))
        assert refused.fields == [
            "run.id",
            "run.scenario.max_messages",
            "run.status",
            "run.verdict",
            "run.result.score",
            'run.output.metrics["cost"]',
            "run.turns[0].first_message",
            'run.connector.config["temperatures"][1]["high"]',
            "run.create_time",
        ]


async def test_a_repeated_start_plays_what_an_earlier_one_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as live:
        floor = Floor(live)
        scenario, connector = await floor.scenario(), await floor.connector()
        create = RunStore.create

        async def lose_the_answer(self: RunStore, runs: Sequence[Run], request_id: str = "") -> list[Run]:
            monkeypatch.setattr(RunStore, "create", create)
            await create(self, runs, request_id)
            raise StoreProblem("STORAGE_UNAVAILABLE", "the connection was lost")

        monkeypatch.setattr(RunStore, "create", lose_the_answer)
        assert (
            await refusal(floor.start(scenario, connector, request_id="r"))
        ).reason == "STORAGE_UNAVAILABLE"
        run = await floor.start(scenario, connector, request_id="r")
        assert (await floor.watch(run.id))[-1].end.status == runs_pb.RUN_STATUS_COMPLETED


async def test_what_cannot_run_is_refused_before_anything_is_queued() -> None:
    async with serving() as live:
        floor = Floor(live)
        scenario, connector = await floor.scenario(), await floor.connector()
        no_id = Scenario(id="nothing")
        refused = await refusal(floor.start(no_id, connector))
        assert refused.code is grpc.StatusCode.NOT_FOUND
        assert refused.fields == ["scenario_id"]
        refused = await refusal(floor.start(scenario, connector, persona_id="nobody"))
        assert refused.fields == ["persona_id"]
        refused = await refusal(floor.start(scenario, Connector(id="nowhere")))
        assert refused.fields == ["connector_id"]
        agent = await floor.connector(name="other", type="http", base_url="http://127.0.0.1:9")
        refused = await refusal(floor.start(scenario, agent))
        assert "EVALD_JUDGE_MODEL" in refused.message
        assert not (await floor.runs.ListRuns(runs_pb.ListRunsRequest())).runs


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (runs_pb.ListRunsRequest(page_size=-1), "page_size"),
        (runs_pb.ListRunsRequest(page_token="x"), "page_token"),
        (runs_pb.ListRunsRequest(page_token="YWJj"), "page_token"),
        (runs_pb.ListRunsRequest(page_token="wrI="), "page_token"),  # a digit, but not of 0 to 9
        (runs_pb.ListRunsRequest(page_token="OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"), "page_token"),
        (runs_pb.ListRunsRequest(since=Timestamp(seconds=1 << 62)), "since"),
        (runs_pb.ListRunsRequest(until=Timestamp(seconds=1 << 62)), "until"),
        (runs_pb.ListRunsRequest(status=99), "status"),  # type: ignore[arg-type]
        (runs_pb.ListRunsRequest(verdict=-1), "verdict"),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_a_bad_list_request_is_refused(request_: runs_pb.ListRunsRequest, field: str) -> None:
    async with serving() as live:
        assert (await refusal(Floor(live).runs.ListRuns(request_))).fields == [field]


async def test_a_watch_of_no_run_or_from_a_negative_number_is_refused() -> None:
    async with serving() as live:
        floor = Floor(live)
        assert (await refusal(floor.watch("nothing"))).reason == "RESOURCE_NOT_FOUND"
        assert (await refusal(floor.watch("nothing", after=-1))).fields == ["after_sequence"]


async def test_no_more_runs_are_kept_than_the_settings_allow(tmp_path: Path) -> None:
    async with serving(data_dir=tmp_path) as live:
        floor = Floor(live)
        scenario, connector = await floor.scenario(), await floor.connector()
        ids = [(await floor.start(scenario, connector)).id for _ in range(5)]
        for run_id in ids:
            await floor.watch(run_id)
    async with serving(data_dir=tmp_path, runs_max_count=2) as live:
        runs = RunServiceStub(live.channel)

        async def trimmed() -> bool:
            return len((await runs.ListRuns(runs_pb.ListRunsRequest())).runs) == 2

        await until(trimmed)
        page = await runs.ListRuns(runs_pb.ListRunsRequest())
        assert [run.id for run in page.runs] == [ids[4], ids[3]]
