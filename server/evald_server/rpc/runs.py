"""RunService."""

import asyncio
import time
from collections.abc import Awaitable, Callable
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
from evald_server.connectors.headers import mask, masked
from evald_server.engine.engine import Engine
from evald_server.loop import in_thread_if_large
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

from .connectors import ConnectorService
from .errors import check_enum, impossible_values, microseconds
from .experiments import MAX_RUNS, ExperimentService
from .idempotency import check_length, reused
from .pages import page_size, page_token, read_token
from .personas import PersonaService
from .scenarios import ScenarioService
from .server import Methods, RpcStream

NAME: Final = "evald.v1.RunService"

_USUAL_PAGE: Final = 50
_EVENTS: Final = 200  # per read

# Maximum size of a page with conversations, unless its first run is larger: clients accept 4 MiB by default.
_LIST_BYTES: Final = 3 << 20

# Events that change the status of a run.
_MOVES: Final = (RunEventKind.STATUS, RunEventKind.END)

_LARGEST_STATUS: Final = max(pb.RunStatus.values())
_LARGEST_VERDICT: Final = 4

# Maximum characters of an imported run's id.
_MAX_ID: Final = 100

# Maximum results in all turns of an imported run: 20 evaluators in each of 5,000 turns.
_MAX_RESULTS: Final = 100_000
_MAX_OUTPUT_RESULTS: Final = 10_000


class RunService:
    """Handlers of RunService."""

    def __init__(
        self,
        store: RunStore,
        runner: Runner,
        engine: Engine,
        judge_problem: Callable[[str], str],
        max_messages: int,
        *,
        scenarios: ScenarioService,
        personas: PersonaService,
        connectors: ConnectorService,
        experiments: ExperimentService,
    ) -> None:
        """judge_problem: returns the problem with the name of a judge, "" if there is none."""
        self._store = store
        self._runner = runner
        self._engine = engine
        self._judge_problem = judge_problem
        self._max_messages = max_messages
        self._scenarios = scenarios
        self._personas = personas
        self._connectors = connectors
        self._experiments = experiments

    def methods(self) -> Methods:
        """Return the handlers by method."""
        return {
            "StartRun": self.start,
            "StartRuns": self.start_all,
            "GetRun": self.get,
            "ListRuns": self.list_page,
            "CancelRun": self.cancel,
            "RetryRun": self.retry,
            "ResumeRun": self.resume,
            "ImportRun": self.import_run,
            "DeleteRun": self.delete,
            "WatchRun": self.watch,
        }

    async def start(self, request: pb.StartRunRequest) -> pb.StartRunResponse:
        """Queue one run."""
        scenario = await self._scenarios.load(request.scenario_id, "scenario_id")
        persona = await self._personas.load(request.persona_id, "persona_id") if request.persona_id else None
        connector = await self._connectors.load(request.connector_id, "connector_id")
        brings_user = await self._check_connector(connector)
        await scenario_plan(self._engine, scenario)
        self._check_user(scenario, persona, brings_user=brings_user)
        run = _new_run(scenario, persona, connector)
        (stored,) = await self._queue([run], request.request_id)
        return pb.StartRunResponse(run=_shown(stored))

    async def start_all(self, request: pb.StartRunsRequest) -> pb.StartRunsResponse:
        """Queue the runs of an experiment."""
        experiment = await self._experiments.load(request.experiment_id, "experiment_id")
        connector = await self._connectors.load(experiment.connector_id, "experiment.connector_id")
        brings_user = await self._check_connector(connector)
        execution_id = await self._store.next_execution_id()
        runs: list[Run] = []
        personas: dict[str, Persona | None] = {"": None}
        for scenario_id in experiment.scenario_ids:
            scenario = await self._scenarios.load(scenario_id, "experiment.scenario_ids")
            await scenario_plan(self._engine, scenario)
            for persona_id in experiment.persona_ids or scenario.persona_ids or ("",):
                if persona_id not in personas:
                    personas[persona_id] = await self._personas.load(persona_id, "experiment.persona_ids")
                self._check_user(scenario, personas[persona_id], brings_user=brings_user)
                run = _new_run(scenario, personas[persona_id], connector)
                run.experiment_id, run.execution_id = experiment.id, execution_id
                runs.append(run)
                if len(runs) > MAX_RUNS:
                    raise invalid("experiment_id", f"the experiment has more than {MAX_RUNS} runs")
        stored = await self._queue(runs, request.request_id)
        return pb.StartRunsResponse(
            runs=[_shown(listed(run)) for run in stored], execution_id=stored[0].execution_id
        )

    async def watch(self, request: pb.WatchRunRequest, stream: RpcStream) -> None:
        """Send the events of a run until it has ended."""
        after = request.after_sequence
        if after < 0:
            raise invalid("after_sequence", f"got {after}, wanted 0 or more")
        with self._runner.watch(request.run_id) as changed:
            # Read the row, with its snapshots, only if the run's status may have changed.
            run, moved = Run(), True
            while True:
                woken = changed.is_set()
                changed.clear()
                events = await self._store.events(request.run_id, after, _EVENTS)
                # Woken without events: the run may have been deleted.
                moved = moved or (woken and not events) or any(event.kind in _MOVES for event in events)
                if moved:
                    # Read it after the events, so that the END event contains the final state of the run.
                    run = await self._load(request.run_id)
                for event in events:
                    if event.kind is RunEventKind.END:
                        if event.sequence < run.last_sequence:
                            after = event.sequence
                            continue  # the run was continued after this END event
                        run = _shown(run)
                    for response in watch_responses(event, run, after):
                        await stream.send(response.SerializeToString())
                    after = event.sequence
                if not events:
                    if run.status not in UNFINISHED and run.last_sequence <= after:
                        return
                    moved = False
                    await changed.wait()

    async def get(self, request: pb.GetRunRequest) -> bytes:
        """Return a run with its conversation and its turns."""
        run, events = await self._load(request.run_id), await self._events(request.run_id)
        return await in_thread_if_large(_size(events), _response, run, events)

    async def list_page(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        """Return a page of runs."""
        size = page_size(request.page_size, _USUAL_PAGE)
        for field, largest in (("status", _LARGEST_STATUS), ("verdict", _LARGEST_VERDICT)):
            check_enum(request, field, largest)
        place = read_token(request.page_token, "[0-9]{1,18}")
        wanted = RunFilter(
            scenario_id=request.scenario_id,
            persona_id=request.persona_id,
            connector_id=request.connector_id,
            experiment_id=request.experiment_id,
            execution_id=request.execution_id,
            status=request.status,
            verdict=request.verdict,
            failed_evaluator=request.failed_evaluator,
            since=microseconds(request, "since", "since"),
            until=microseconds(request, "until", "until"),
        )
        found = await self._store.list(
            wanted, after=int(place) if place else None, limit=size + 1, oldest_first=request.oldest_first
        )
        response = pb.ListRunsResponse()
        shown = total = 0
        for _, run in found[:size]:
            if request.include_messages:
                events = await self._events(run.id)
                await in_thread_if_large(_size(events), _add_messages, run, events)
                total += run.ByteSize()
                if shown and total > _LIST_BYTES:
                    break
            _mask(run)
            response.runs.append(run)
            shown += 1
        if len(found) > shown:
            response.next_page_token = page_token(str(found[shown - 1][0]))
        return response

    async def cancel(self, request: pb.CancelRunRequest) -> pb.CancelRunResponse:
        """Cancel a queued or running run."""
        cancelling = self._changed(self._runner.cancel, request.run_id)
        run = await recorded(cancelling, "cancelled", "run", request.run_id)
        return pb.CancelRunResponse(run=run)

    async def retry(self, request: pb.RetryRunRequest) -> pb.RetryRunResponse:
        """Restart a run that ended in error."""
        await self._check_headers(request.run_id)
        run = await self._changed(self._runner.retry, request.run_id)
        return pb.RetryRunResponse(run=run)

    async def resume(self, request: pb.ResumeRunRequest) -> pb.ResumeRunResponse:
        """Resume an interrupted run."""
        await self._check_headers(request.run_id)
        run = await self._changed(self._runner.resume, request.run_id)
        return pb.ResumeRunResponse(run=run)

    async def import_run(self, request: pb.ImportRunRequest) -> bytes:
        """Store a run that has ended elsewhere."""
        run = request.run
        found = self._size_problems(run)
        if found:
            raise refusal(found)
        row, events = await asyncio.to_thread(self._checked_parts, run)
        try:
            await recorded(self._store.import_run(row, events), "imported", "run", row.id)
        except IdTaken:
            text = f'a run with the id "{run.id}" already exists; delete it before you import this one'
            raise invalid("run.id", text, "RESOURCE_EXISTS") from None
        run, events = await self._load(row.id), await self._events(row.id)
        return await in_thread_if_large(_size(events), _response, run, events, pb.ImportRunResponse)

    async def delete(self, request: pb.DeleteRunRequest) -> pb.DeleteRunResponse:
        """Delete a run that has ended."""
        try:
            if not await recorded(self._store.delete(request.run_id), "deleted", "run", request.run_id):
                raise _no_run(request.run_id)
        except RunActive:
            raise _wrong_status("the run has not ended; cancel it first, then delete it") from None
        return pb.DeleteRunResponse()

    def _size_problems(self, run: Run) -> list[BadField]:
        """Return the fields with too many entries. No real run has that many, and checking each would take minutes."""
        sizes = {
            "messages": (len(run.messages), self._max_messages),
            "turns": (len(run.turns), self._max_messages),
            "output.evaluator_results": (len(run.output.evaluator_results), _MAX_OUTPUT_RESULTS),
        }
        found = [
            BadField(f"run.{name}", f"got {size}, wanted at most {most}")
            for name, (size, most) in sizes.items()
            if size > most
        ]
        if not found:
            results = sum(len(turn.evaluation.results) for turn in run.turns)
            if results > _MAX_RESULTS:
                problem = f"got {results} results in all turns together, wanted at most {_MAX_RESULTS}"
                found.append(BadField("run.turns", problem))
        return found

    def _checked_parts(self, run: Run) -> tuple[Run, list[RunEvent]]:
        """Return the row and the events of an imported run, without its secrets. Raises CallError. Runs in a thread."""
        found = self._import_problems(run)
        if found:
            raise refusal(found)
        return split_run(_shown(run))

    def _import_problems(self, run: Run) -> list[BadField]:
        """Return the invalid fields of a run from another server."""
        found = []

        def note(field: str, text: str) -> None:
            found.append(BadField(f"run.{field}", text))

        if not run.id or len(run.id) > _MAX_ID or not run.id.isprintable():
            note(
                "id",
                f"got {len(run.id)} characters, wanted the id of the run on the server that it comes from: "
                f"1 to {_MAX_ID} printable characters",
            )
        if run.status in (pb.RUN_STATUS_UNSPECIFIED, *UNFINISHED):
            note("status", f"got {run.status}, wanted the status of a run that has ended")
        most = run.scenario.max_messages
        if most > self._max_messages:
            note("scenario.max_messages", f"got {most}, wanted at most {self._max_messages}")
        for position, turn in enumerate(run.turns):
            first, count = turn.first_message, turn.message_count
            if first + count > len(run.messages):
                note(
                    f"turns[{position}]",
                    f"got {count} messages from index {first} for turn {turn.turn}, wanted a range within the "
                    f"{len(run.messages)} messages of the run",
                )
        found += impossible_values(run, "run")
        for name in ("create_time", "start_time", "update_time", "complete_time"):
            try:
                microseconds(run, name, f"run.{name}")
            except CallError as problem:
                found += problem.violations
        ended = run.HasField("start_time") and run.HasField("complete_time")
        if ended and not found and run.complete_time.ToMicroseconds() < run.start_time.ToMicroseconds():
            note("complete_time", "got a time before start_time, wanted one after it")
        return found or _contradictions(run)

    async def _check_connector(self, connector: Connector) -> bool:
        """Return whether the connector brings its own user. Raises CallError if it is not valid.

        A stored connector or scenario can become invalid later, for example after a change of the settings.
        """
        built = self._connectors.build(connector)
        await built.aclose()
        return built.brings_user

    def _check_user(self, scenario: Scenario, persona: Persona | None, *, brings_user: bool) -> None:
        """Raise CallError if the user must be simulated but its judge cannot be used."""
        simulated = not brings_user and not (persona is not None and persona.script)
        if simulated and counted_roles(scenario)[-1:] != ["user"]:
            text = self._judge_problem(persona.judge if persona is not None else "")
            if text:
                raise invalid("persona_id", f"a model must simulate the user, but {text}")

    async def _queue(self, runs: list[Run], request_id: str) -> list[Run]:
        """Store runs and queue them. Returns the stored runs.

        If the caller has used the request_id before, returns the runs of that call; raises CallError if that call
        requested other runs.
        """
        check_length(request_id)
        name = caller().name
        key = f"{name}\n{request_id}" if request_id and name else request_id

        async def create() -> list[Run]:
            stored = await self._store.create(runs, key)
            if request_id and _asked(stored[0]) != _asked(runs[0]):
                raise reused()
            return stored

        # Queue the runs of an earlier call too: the call may have failed before it queued them.
        return await self._runner.enqueue(create)

    async def _load(self, run_id: str) -> Run:
        return _there(run_id, await self._store.get(run_id) if run_id else None)

    async def _changed(self, change: Callable[[str], Awaitable[Run | None]], run_id: str) -> Run:
        """Call a method of the runner and return the changed run without secrets. Raises CallError."""
        try:
            return _shown(_there(run_id, await change(run_id)))
        except RunStateProblem as problem:
            raise _wrong_status(str(problem)) from None
        except RunNotFound:
            raise _no_run(run_id) from None

    async def _check_headers(self, run_id: str) -> None:
        """Raise CallError for an imported run without the values of its headers: its agent cannot be called."""
        run = await self._load(run_id)
        missing = [
            f"{owner}.headers[{name[:100]!r}]"
            for owner, headers in (("connector", run.connector.headers), ("persona", run.persona.headers))
            for name in masked(headers)
        ]
        if missing:
            raise _wrong_status(
                f"the run was imported without the values of {', '.join(missing)}, so its agent cannot be called; "
                "resume it on the server that it comes from, or start a new run with a connector and a persona that "
                "have these values"
            )

    async def _events(self, run_id: str) -> list[RunEvent]:
        return await all_events(partial(self._store.events, run_id))


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


def _new_run(scenario: Scenario, persona: Persona | None, connector: Connector) -> Run:
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


def _asked(run: Run) -> tuple[str, ...]:
    """Return the ids in the request that created a run."""
    return (run.experiment_id,) if run.experiment_id else (run.scenario_id, run.persona_id, run.connector_id)


def _size(events: list[RunEvent]) -> int:
    return sum(len(event.body) for event in events)


def _add_messages(run: Run, events: list[RunEvent]) -> None:
    for event in events:
        if event.kind is RunEventKind.MESSAGE:
            run.messages.append(pb.RunMessage.FromString(event.body).message)


def _response(
    run: Run,
    events: list[RunEvent],
    kind: type[pb.GetRunResponse] | type[pb.ImportRunResponse] = pb.GetRunResponse,
) -> bytes:
    """Return a response with the whole run. May run in a thread, because nothing else uses its arguments."""
    response = kind(run=whole_run(run, events))
    _mask(response.run)
    return response.SerializeToString()


def _shown(run: Run) -> Run:
    """Return a copy with masked headers."""
    shown = Run()
    shown.CopyFrom(run)
    _mask(shown)
    return shown


def _mask(run: Run) -> None:
    mask(run.connector.headers)
    mask(run.persona.headers)


def _there(run_id: str, run: Run | None) -> Run:
    if run is None:
        raise _no_run(run_id)
    return run


def _no_run(run_id: str) -> CallError:
    text = f'no run has the id "{run_id[:100]}"; ListRuns returns the existing ones'
    return invalid("run_id", text, "RESOURCE_NOT_FOUND")


def _wrong_status(text: str) -> CallError:
    return invalid("run_id", text, "RUN_STATUS")
