"""RunService."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import uuid4

from evald.v1 import run_service_pb2 as pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.result_pb2 import VERDICT_ERROR, VERDICT_PASSED, Verdict
from evald.v1.run_service_pb2 import Run
from evald_server.auth.current_call import caller, recorded
from evald_server.call_errors import BadField, CallError, invalid, refusal
from evald_server.connectors.headers import mask
from evald_server.engine.engine import Engine
from evald_server.runs.loop import scenario_plan
from evald_server.runs.rules import counted_roles
from evald_server.runs.runner import Runner, RunStateProblem
from evald_server.runs.turn_events import all_events, split_run, watch_responses, whole_run
from evald_server.store.resources import IdTaken
from evald_server.store.runs import (
    UNFINISHED,
    RunActive,
    RunEvent,
    RunEventKind,
    RunFilter,
    RunNotFound,
    RunStore,
    listed,
)

from .errors import impossible_values, microseconds
from .idempotency import check_length, reused
from .kinds import MAX_RUNS, ResourceKinds
from .pages import page_size, page_token, read_token
from .server import RpcStream
from .stored import USUAL_PAGE, not_found, read_filter

_EVENTS: Final = 200  # per read

# Maximum size of a page with conversations, unless its first run is larger: clients accept 4 MiB by default.
_LIST_BYTES: Final = 3 << 20

# Events that change the status of a run.
_MOVES: Final = (RunEventKind.STATUS, RunEventKind.END)

# Maximum characters of an imported run's id.
_MAX_ID: Final = 100


@dataclass
class RunService:
    """Handlers of RunService."""

    store: RunStore
    runner: Runner
    engine: Engine
    resources: ResourceKinds

    async def start_run(self, request: pb.StartRunRequest) -> pb.StartRunResponse:
        """Queue one run."""
        resources = self.resources
        scenario = await resources.scenarios.load(request.scenario_id, "scenario_id")
        persona = None
        if request.persona_id:
            persona = await resources.personas.load(request.persona_id, "persona_id")
        connector = await resources.connectors.load(request.connector_id, "connector_id")
        brings_user = await self._brings_user(connector)
        await scenario_plan(self.engine, scenario)
        run = self._new_run(scenario, persona, connector, brings_user=brings_user)
        [stored] = await self._queue([run], request.request_id)
        return pb.StartRunResponse(run=_shown(stored))

    async def start_runs(self, request: pb.StartRunsRequest) -> pb.StartRunsResponse:
        """Queue the runs of an experiment."""
        resources = self.resources
        experiment = await resources.experiments.load(request.experiment_id, "experiment_id")
        connector = await resources.connectors.load(experiment.connector_id, "experiment.connector_id")
        brings_user = await self._brings_user(connector)
        execution_id = await self.store.next_execution_id()
        runs: list[Run] = []
        personas: dict[str, Persona | None] = {"": None}
        for scenario_id in experiment.scenario_ids:
            scenario = await resources.scenarios.load(scenario_id, "experiment.scenario_ids")
            await scenario_plan(self.engine, scenario)
            for persona_id in experiment.persona_ids or scenario.persona_ids or ("",):
                if persona_id not in personas:
                    personas[persona_id] = await resources.personas.load(persona_id, "experiment.persona_ids")
                run = self._new_run(scenario, personas[persona_id], connector, brings_user=brings_user)
                run.experiment_id, run.execution_id = experiment.id, execution_id
                runs.append(run)
                if len(runs) > MAX_RUNS:
                    raise invalid("experiment_id", f"the experiment has more than {MAX_RUNS} runs")
        stored = await self._queue(runs, request.request_id)
        shown = [_shown(listed(run)) for run in stored]
        return pb.StartRunsResponse(runs=shown, execution_id=stored[0].execution_id)

    async def watch_run(self, request: pb.WatchRunRequest, stream: RpcStream) -> None:
        """Send the events of a run until it has ended."""
        after = request.after_sequence
        if after < 0:
            raise invalid("after_sequence", f"got {after}, wanted 0 or more")
        with self.runner.watch(request.run_id) as changed:
            # Read the row, with its snapshots, only if the run's status may have changed.
            run, moved = Run(), True
            while True:
                woken = changed.is_set()
                changed.clear()
                events = await self.store.events(request.run_id, after, _EVENTS)
                # Woken without events: the run may have been deleted.
                moved = moved or (woken and not events) or any(event.kind in _MOVES for event in events)
                if moved:
                    # Read it after the events, so that the END event contains the final state of the run.
                    run = _shown(await self._load(request.run_id))
                for event in events:
                    # If more events follow, the run was continued after this END event.
                    if event.kind is not RunEventKind.END or event.sequence >= run.last_sequence:
                        for response in watch_responses(event, run, after):
                            await stream.send(response.SerializeToString())
                    after = event.sequence
                if not events:
                    if run.status not in UNFINISHED and run.last_sequence <= after:
                        return
                    moved = False
                    await changed.wait()

    async def get_run(self, request: pb.GetRunRequest) -> bytes:
        """Return a run with its conversation and its turns."""
        run, events = await self._load(request.run_id), await self._events(request.run_id)
        return await asyncio.to_thread(_response, pb.GetRunResponse, run, events)

    async def list_runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """Return a page of runs."""
        size, wanted = page_size(request.page_size, USUAL_PAGE), read_filter(request, RunFilter)
        place = read_token(request.page_token, "[0-9]{1,18}")
        rows = await self.store.list(
            wanted, after=int(place) if place else None, limit=size + 1, oldest_first=request.oldest_first
        )
        response, last, total = pb.ListRunsResponse(), "", 0
        for number, run in rows:
            if request.include_messages and len(response.runs) < size:
                events = await self._events(run.id)
                await asyncio.to_thread(_add_messages, run, events)
                total += run.ByteSize()
            if response.runs and (len(response.runs) == size or total > _LIST_BYTES):
                response.next_page_token = page_token(last)
                break
            response.runs.append(_shown(run))
            last = str(number)
        return response

    async def cancel_run(self, request: pb.CancelRunRequest) -> pb.CancelRunResponse:
        """Cancel a queued or running run."""
        cancelling = self._changed(self.runner.cancel, request.run_id)
        run = await recorded(cancelling, "cancelled", "run", request.run_id)
        return pb.CancelRunResponse(run=run)

    async def retry_run(self, request: pb.RetryRunRequest) -> pb.RetryRunResponse:
        """Restart a run that ended in error."""
        return pb.RetryRunResponse(run=await self._changed(self.runner.retry, request.run_id))

    async def resume_run(self, request: pb.ResumeRunRequest) -> pb.ResumeRunResponse:
        """Resume an interrupted run."""
        return pb.ResumeRunResponse(run=await self._changed(self.runner.resume, request.run_id))

    async def import_run(self, request: pb.ImportRunRequest) -> bytes:
        """Store a run that has ended elsewhere."""
        row, events = await asyncio.to_thread(_checked, request.run, self.resources.max_messages)
        try:
            await recorded(self.store.import_run(row, events), "imported", "run", row.id)
        except IdTaken:
            text = f'a run with the id "{row.id}" already exists; delete it before you import this one'
            raise invalid("run.id", text, "RESOURCE_EXISTS") from None
        return await asyncio.to_thread(_response, pb.ImportRunResponse, row, events)

    async def delete_run(self, request: pb.DeleteRunRequest) -> pb.DeleteRunResponse:
        """Delete a run that has ended."""
        try:
            if not await recorded(self.store.delete(request.run_id), "deleted", "run", request.run_id):
                raise _no_run(request.run_id)
        except RunActive:
            raise _wrong_status("the run has not ended; cancel it first, then delete it") from None
        return pb.DeleteRunResponse()

    async def _brings_user(self, connector: Connector) -> bool:
        """Return whether a connector brings its own user. Raises CallError if it is not valid.

        A stored connector or scenario can become invalid later, for example after a change of the settings.
        """
        built = self.resources.build_connector(connector)
        await built.aclose()
        return built.brings_user

    def _new_run(
        self, scenario: Scenario, persona: Persona | None, connector: Connector, *, brings_user: bool
    ) -> Run:
        """Return a run to queue. Raises CallError if its user must be simulated but the judge cannot be used."""
        simulated = not brings_user and not (persona is not None and persona.script)
        if simulated and counted_roles(scenario)[-1:] != ["user"]:
            problem = self.resources.judge_problem(persona.judge if persona is not None else "")
            if problem:
                raise invalid("persona_id", f"a model must simulate the user, but {problem}")
        run = Run(
            id=str(uuid4()),
            thread_id=str(uuid4()),
            scenario_id=scenario.id,
            persona_id=persona.id if persona is not None else "",
            connector_id=connector.id,
            status=pb.RUN_STATUS_QUEUED,
            attempt=1,
            scenario=scenario,
            persona=persona,
            connector=connector,
        )
        run.create_time.FromNanoseconds(time.time_ns())
        run.update_time.CopyFrom(run.create_time)
        return run

    async def _queue(self, runs: list[Run], request_id: str) -> list[Run]:
        """Store runs and queue them. Returns the stored runs.

        If the caller has used the request_id before, returns the runs of that call; raises CallError if that call
        requested other runs.
        """
        check_length(request_id)
        name = caller().name
        key = f"{name}\n{request_id}" if request_id and name else request_id

        async def create() -> list[Run]:
            stored = await self.store.create(runs, key)
            if request_id and _asked(stored[0]) != _asked(runs[0]):
                raise reused()
            return stored

        # Queue the runs of an earlier call too: the call may have failed before it queued them.
        return await self.runner.enqueue(create)

    async def _load(self, run_id: str) -> Run:
        run = await self.store.get(run_id) if run_id else None
        if run is None:
            raise _no_run(run_id)
        return run

    async def _changed(self, change: Callable[[str], Awaitable[Run | None]], run_id: str) -> Run:
        """Call a method of the runner and return the changed run without secrets. Raises CallError."""
        try:
            run = await change(run_id)
        except RunStateProblem as problem:
            raise _wrong_status(str(problem)) from None
        except RunNotFound:
            run = None
        if run is None:
            raise _no_run(run_id)
        return _shown(run)

    async def _events(self, run_id: str) -> list[RunEvent]:
        return await all_events(partial(self.store.events, run_id))


def _checked(run: Run, max_messages: int) -> tuple[Run, list[RunEvent]]:
    """Return the row and the events of an imported run, without its secrets. Raises CallError. Takes long."""
    problems = []
    if not run.id or len(run.id) > _MAX_ID or not run.id.isprintable():
        text = (
            f"got {len(run.id)} characters, wanted the id of the run on the server that it comes from: "
            f"1 to {_MAX_ID} printable characters"
        )
        problems.append(BadField("run.id", text))
    for name, size in (
        ("messages", len(run.messages)),
        ("turns", len(run.turns)),
        ("scenario.max_messages", run.scenario.max_messages),
    ):
        if size > max_messages:
            problems.append(BadField(f"run.{name}", f"got {size}, wanted at most {max_messages}"))
    if run.status in (pb.RUN_STATUS_UNSPECIFIED, *UNFINISHED):
        problems.append(
            BadField("run.status", f"got {run.status}, wanted the status of a run that has ended")
        )
    problems += impossible_values(run, "run")
    for name in ("create_time", "start_time", "update_time", "complete_time"):
        try:
            microseconds(run, name, f"run.{name}")
        except CallError as problem:
            problems += problem.violations
    if problems := problems or _contradictions(run):
        raise refusal(problems)
    return split_run(_shown(run))


def _contradictions(run: Run) -> list[BadField]:
    """Return the fields of an ended run that say different things about how it ended."""
    verdict = Verdict.Name(run.verdict)
    if run.verdict and (run.verdict == VERDICT_ERROR) == (run.status == pb.RUN_STATUS_COMPLETED):
        status = pb.RunStatus.Name(run.status)
        return [BadField("run.verdict", f"got {verdict}, wanted one that a run with {status} can have")]
    if run.HasField("result") and run.result.success != (run.verdict == VERDICT_PASSED):
        wanted = f"got {run.result.success} beside {verdict}, wanted true exactly beside VERDICT_PASSED"
        return [BadField("run.result.success", wanted)]
    return []


def _asked(run: Run) -> tuple[str, ...]:
    """Return the ids in the request that created a run."""
    return (run.experiment_id,) if run.experiment_id else (run.scenario_id, run.persona_id, run.connector_id)


def _add_messages(run: Run, events: Sequence[RunEvent]) -> None:
    for event in events:
        if event.kind is RunEventKind.MESSAGE:
            run.messages.append(pb.RunMessage.FromString(event.body).message)


def _response(
    kind: type[pb.GetRunResponse] | type[pb.ImportRunResponse], run: Run, events: Sequence[RunEvent]
) -> bytes:
    """Return a serialised response with the whole run."""
    return kind(run=_shown(whole_run(run, events))).SerializeToString()


def _shown(run: Run) -> Run:
    """Return a copy with masked headers."""
    shown = Run()
    shown.CopyFrom(run)
    mask(shown.connector.headers)
    mask(shown.persona.headers)
    return shown


def _no_run(run_id: str) -> CallError:
    return not_found("run_id", "run", run_id, "ListRuns")


def _wrong_status(text: str) -> CallError:
    return invalid("run_id", text, "RUN_STATUS")
