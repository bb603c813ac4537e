"""Scenarios, personas, connectors and experiments over a real channel: stored, changed, listed, refused with paths."""

import asyncio
import base64
import functools
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from evald.v1 import connector_service_pb2 as connectors_pb
from evald.v1 import experiment_service_pb2 as experiments_pb
from evald.v1 import persona_service_pb2 as personas_pb
from evald.v1 import scenario_service_pb2 as scenarios_pb
from evald.v1.connector_service_pb2 import Connector
from evald.v1.connector_service_pb2_grpc import ConnectorServiceStub
from evald.v1.context_pb2 import Persona, Scenario
from evald.v1.experiment_service_pb2 import Experiment
from evald.v1.experiment_service_pb2_grpc import ExperimentServiceStub
from evald.v1.message_pb2 import ChatMessage
from evald.v1.persona_service_pb2_grpc import PersonaServiceStub
from evald.v1.scenario_service_pb2_grpc import ScenarioServiceStub
from evald_server.store import database
from evald_server.store.database import FILE_NAME
from evald_server.store.resources import ResourceKind, ResourceStore

from .live import CONTAINS, Live, refusal, request, serving, spec

NO_NUMBER = ChatMessage(role="user", text="a")
NO_NUMBER.metadata.update({"at": [float("nan")]})
# A path whose message and details would be larger than the trailers that clients accept.
LONG_KEY = "😀" * 100
DEEP_NO_NUMBER = ChatMessage(role="user", text="a")
DEEP_NO_NUMBER.metadata.update(
    functools.reduce(lambda inner, _: {LONG_KEY: inner}, range(20), {"at": float("nan")})
)
REPLAY = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    async with serving() as live:
        yield live


def scenario(name: str = "Booking", **fields: Any) -> Scenario:
    fields.setdefault("evaluators", [CONTAINS])
    return Scenario(name=name, **fields)


def connector(name: str = "agent", **fields: Any) -> Connector:
    made = Connector(name=name, type="replay", **fields)
    made.config.update(REPLAY)
    return made


async def create_scenario(live: Live, **fields: Any) -> Scenario:
    request = scenarios_pb.CreateScenarioRequest(scenario=scenario(**fields))
    return (await ScenarioServiceStub(live.channel).CreateScenario(request)).scenario


async def test_a_scenario_is_stored_got_listed_updated_and_deleted(live: Live) -> None:
    stub = ScenarioServiceStub(live.channel)
    created = await create_scenario(live, instructions="move a booking", max_messages=4)
    assert created.id
    assert created.create_time == created.update_time
    got = (await stub.GetScenario(scenarios_pb.GetScenarioRequest(scenario_id=created.id))).scenario
    assert got == created
    listed = await stub.ListScenarios(scenarios_pb.ListScenariosRequest())
    assert list(listed.scenarios) == [created]
    change = Scenario(id=created.id, instructions="")
    updated = (
        await stub.UpdateScenario(
            scenarios_pb.UpdateScenarioRequest(
                scenario=change, update_mask={"paths": ["instructions", "max_messages"]}
            )
        )
    ).scenario
    assert updated.instructions == ""
    assert not updated.HasField("max_messages")
    assert updated.name == "Booking"
    assert list(updated.evaluators) == [CONTAINS]
    assert updated.update_time.ToNanoseconds() > updated.create_time.ToNanoseconds()
    await stub.DeleteScenario(scenarios_pb.DeleteScenarioRequest(scenario_id=created.id))
    gone = await refusal(stub.GetScenario(scenarios_pb.GetScenarioRequest(scenario_id=created.id)))
    assert gone.code is grpc.StatusCode.NOT_FOUND
    assert gone.reason == "RESOURCE_NOT_FOUND"
    assert gone.fields == ["scenario_id"]


@pytest.mark.parametrize(
    ("count", "size"), [(25, 10), (130, 60), (130, 200)], ids=["one read", "several reads", "one page"]
)
async def test_pages_hold_everything_once_and_in_order(live: Live, count: int, size: int) -> None:
    names = [f"scenario {number:03}" for number in range(count)]
    for name in names:
        await create_scenario(live, name=name)
    stub, found, token = ScenarioServiceStub(live.channel), [], ""
    while True:
        page = await stub.ListScenarios(scenarios_pb.ListScenariosRequest(page_size=size, page_token=token))
        assert len(page.scenarios) == min(size, count - len(found))
        found += [one.name for one in page.scenarios]
        token = page.next_page_token
        if not token:
            break
    assert found == names
    by_name = await stub.ListScenarios(scenarios_pb.ListScenariosRequest(name="scenario 007"))
    assert [one.name for one in by_name.scenarios] == ["scenario 007"]


async def test_a_page_ends_before_it_is_too_large_for_a_client(live: Live) -> None:
    for number in range(3):
        await create_scenario(live, name=str(number), instructions="a" * 1_000_000)
    stub = ScenarioServiceStub(live.channel)
    first = await stub.ListScenarios(scenarios_pb.ListScenariosRequest())
    rest = await stub.ListScenarios(scenarios_pb.ListScenariosRequest(page_token=first.next_page_token))
    assert [[one.name for one in page.scenarios] for page in (first, rest)] == [["0", "1"], ["2"]]
    assert not rest.next_page_token


@pytest.mark.parametrize("created", ["\u00b2", "9" * 30, ""])
async def test_a_page_token_with_a_strange_number_is_refused(created: str, live: Live) -> None:
    token = base64.urlsafe_b64encode(f"{created} id".encode()).decode()
    request = scenarios_pb.ListScenariosRequest(page_token=token)
    refused = await refusal(ScenarioServiceStub(live.channel).ListScenarios(request))
    assert refused.fields == ["page_token"]


async def test_fields_that_the_server_does_not_know_are_not_stored(live: Live) -> None:
    unknown = Scenario.FromString(scenario().SerializeToString() + b"\xba\x3e\x05later")
    stub = ScenarioServiceStub(live.channel)
    created = (await stub.CreateScenario(scenarios_pb.CreateScenarioRequest(scenario=unknown))).scenario
    unknown.id = created.id
    updated = (await stub.UpdateScenario(scenarios_pb.UpdateScenarioRequest(scenario=unknown))).scenario
    assert b"later" in unknown.SerializeToString()
    assert b"later" not in created.SerializeToString() + updated.SerializeToString()


SCENARIO_PROBLEMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no name": ({"name": ""}, "scenario.name", "Name is required"),
    "nothing to check": ({"evaluators": []}, "scenario", "Scenario must have evaluation criteria"),
    "blank criteria": (
        {"evaluators": [], "success_criteria": "  "},
        "scenario",
        "Scenario must have evaluation criteria",
    ),
    "an unknown type": (
        {"evaluators": [CONTAINS, spec("regexp")]},
        "scenario.evaluators[1].type",
        'did you mean "regex"?',
    ),
    "a config that does not match": (
        {"evaluators": [spec("latency-budget", {"maxMs": -3})]},
        "scenario.evaluators[0].config.maxMs",
        "-3",
    ),
    "no room for an answer": (
        {"max_messages": 2, "messages": [{"role": "user", "text": "a"}, {"role": "assistant", "text": "b"}]},
        "scenario.max_messages",
        "wanted 4 or more",
    ),
    "no messages at all": ({"max_messages": 0}, "scenario.max_messages", "wanted 1 to 5000"),
    "a message without a role": (
        {"messages": [{"text": "a"}]},
        "scenario.messages[0].role",
        "wanted one of user, assistant",
    ),
    "a message of nobody": (
        {"messages": [{"role": "banana", "text": "a"}]},
        "scenario.messages[0].role",
        'got "banana"',
    ),
    "a message with a number that JSON cannot carry": (
        {"messages": [NO_NUMBER]},
        'scenario.messages[0].metadata["at"][0]',
        "got nan, wanted a finite number",
    ),
    "a problem at a path too long for a trailer": (
        {"messages": [DEEP_NO_NUMBER]},
        f'scenario.messages[0].metadata["{LONG_KEY}"]["{LONG_KEY}"]'[:200],
        "got nan, wanted a finite number",
    ),
    "a text that nobody can read": (
        {"messages": [{"role": "user", "blocks": {"items": [{"type": "note", "text": "hi"}]}}]},
        "scenario.messages[0].blocks.items[0].type",
        "note",
    ),
    "an unknown persona": ({"persona_ids": ["nobody"]}, "scenario.persona_ids[0]", "no persona has the id"),
    "too many personas": ({"persona_ids": [""] * 1001}, "scenario.persona_ids", "got 1001 ids"),
    "an unknown mode": ({"failure_criteria_mode": 7}, "scenario.failure_criteria_mode", "got 7"),
    "too large": ({"instructions": "a" * (1 << 20)}, "scenario", "wanted at most 1048576"),
}


@pytest.mark.parametrize("row", SCENARIO_PROBLEMS)
async def test_a_bad_scenario_is_refused_with_the_path(row: str, live: Live) -> None:
    fields, path, text = SCENARIO_PROBLEMS[row]
    refused = await refusal(create_scenario(live, **fields))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.fields == [path]
    assert text in refused.descriptions[0]


async def test_all_problems_come_together(live: Live) -> None:
    refused = await refusal(create_scenario(live, name="", evaluators=[spec("regexp")], max_messages=-1))
    assert refused.fields == ["scenario.name", "scenario.max_messages", "scenario.evaluators[0].type"]


async def test_names_and_ids_are_unique(live: Live) -> None:
    first = await create_scenario(live, id="mine")
    assert first.id == "mine"
    refused = await refusal(create_scenario(live))
    assert refused.code is grpc.StatusCode.ALREADY_EXISTS
    assert refused.message == 'Scenario with name "Booking" already exists'
    refused = await refusal(create_scenario(live, id="mine", name="Other"))
    assert refused.fields == ["scenario.id"]
    second = await create_scenario(live, name="Other")
    stub = ScenarioServiceStub(live.channel)
    update = scenarios_pb.UpdateScenarioRequest(
        scenario=Scenario(id=second.id, name="Booking"), update_mask={"paths": ["name"]}
    )
    assert (await refusal(stub.UpdateScenario(update))).reason == "RESOURCE_EXISTS"


SERVICES = {
    "scenario": (ScenarioServiceStub, scenarios_pb, scenario),
    "persona": (PersonaServiceStub, personas_pb, lambda: Persona(name="Maria", script=["hi"])),
    "connector": (ConnectorServiceStub, connectors_pb, lambda: connector(headers={"X-Tenant": "a"})),
    "experiment": (ExperimentServiceStub, experiments_pb, lambda: Experiment(name="Nightly")),
}


class Standard:
    """The standard methods of one kind of resource."""

    def __init__(self, kind: str, live: Live) -> None:
        stub, self.messages, self.new = SERVICES[kind]
        self.kind = kind
        self.stub: Any = stub(live.channel)

    async def ask(self, verb: str, **fields: Any) -> Any:
        name = f"{verb}{self.kind.capitalize()}"
        return await getattr(self.stub, name)(getattr(self.messages, f"{name}Request")(**fields))

    async def keep(self, verb: str, resource: Any, **fields: Any) -> Any:
        """What a method stores."""
        return getattr(await self.ask(verb, **{self.kind: resource}, **fields), self.kind)


@pytest.mark.parametrize("kind", SERVICES)
async def test_what_was_changed_since_it_was_read_is_neither_replaced_nor_deleted(
    kind: str, live: Live
) -> None:
    one = Standard(kind, live)
    new = one.new()
    if kind == "experiment":
        new.scenario_ids.append((await create_scenario(live)).id)
        new.connector_id = (await Standard("connector", live).keep("Create", connector())).id
    created = await one.keep("Create", new)
    named = {f"{kind}_id": created.id}
    read, mask = {"expected_update_time": created.update_time}, {"update_mask": {"paths": ["name"]}}

    def renamed(name: str) -> Any:
        return type(created)(id=created.id, name=name)

    first = await one.keep("Update", renamed("first"), **mask, **read)
    assert first.update_time != created.update_time
    for refused in (
        await refusal(one.keep("Update", renamed("second"), **mask, **read)),
        await refusal(one.ask("Delete", **named, **read)),
    ):
        assert refused.code is grpc.StatusCode.ABORTED
        assert refused.reason == "RESOURCE_CHANGED"
        assert refused.fields == ["expected_update_time"]
        assert "read it again" in refused.message
        assert first.update_time.ToJsonString() in refused.message
    # The answer to the first one may have been lost: what is stored already is no change.
    assert await one.keep("Update", renamed("first"), **mask, **read) == first
    assert await one.keep("Update", first) == first
    # Without a time the last one counts.
    last = await one.keep("Update", renamed("third"), **mask)
    assert last.name == "third"
    await one.ask("Delete", **named, expected_update_time=last.update_time)
    assert (await refusal(one.ask("Get", **named))).reason == "RESOURCE_NOT_FOUND"


async def test_of_many_who_have_read_the_same_one_saves(live: Live) -> None:
    created = await create_scenario(live)
    stub = ScenarioServiceStub(live.channel)
    outcomes = await asyncio.gather(
        *(
            stub.UpdateScenario(
                scenarios_pb.UpdateScenarioRequest(
                    scenario=scenario(f"number {number}", id=created.id),
                    expected_update_time=created.update_time,
                )
            )
            for number in range(20)
        ),
        return_exceptions=True,
    )
    refused = [one.code() for one in outcomes if isinstance(one, grpc.aio.AioRpcError)]
    assert refused == [grpc.StatusCode.ABORTED] * 19


async def test_a_time_that_is_none_is_refused(live: Live) -> None:
    created = await create_scenario(live)
    named = scenarios_pb.DeleteScenarioRequest(
        scenario_id=created.id, expected_update_time={"seconds": 1 << 60}
    )
    refused = await refusal(ScenarioServiceStub(live.channel).DeleteScenario(named))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["expected_update_time"])


async def test_an_update_that_would_leave_nothing_to_check_is_refused_and_changes_nothing(live: Live) -> None:
    created = await create_scenario(live)
    stub = ScenarioServiceStub(live.channel)
    for mask, fields in ((["evaluators"], ["scenario"]), (["owner"], ["update_mask.paths[0]"])):
        request = scenarios_pb.UpdateScenarioRequest(
            scenario=Scenario(id=created.id), update_mask={"paths": mask}
        )
        assert (await refusal(stub.UpdateScenario(request))).fields == fields
    got = await stub.GetScenario(scenarios_pb.GetScenarioRequest(scenario_id=created.id))
    assert got.scenario == created


async def test_a_simulated_user_is_told_the_scenario_but_not_its_success_criteria(live: Live) -> None:
    created = await create_scenario(
        live,
        instructions="You want to move your booking",
        success_criteria="The agent confirms Friday",
        evaluators=[],
    )
    persona = (
        await PersonaServiceStub(live.channel).CreatePersona(
            personas_pb.CreatePersonaRequest(persona=Persona(name="Maria", description="in a hurry"))
        )
    ).persona
    request = scenarios_pb.GetScenarioPromptRequest(scenario_id=created.id, persona_id=persona.id)
    prompt = await ScenarioServiceStub(live.channel).GetScenarioPrompt(request)
    assert "You want to move your booking" in prompt.system_prompt
    assert "Maria" in prompt.system_prompt
    assert "in a hurry" in prompt.system_prompt
    assert "confirms Friday" not in str(prompt)


async def test_values_of_headers_are_never_shown_and_survive_an_update(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALD_SECRET_KEY", "s3cret")
    stub = ConnectorServiceStub(live.channel)
    headers = {"authorization": "Bearer ${EVALD_SECRET_KEY}", "x-tenant": "blue"}
    made = Connector(name="agent", type="http", base_url="http://127.0.0.1:9", headers=headers)
    created = (await stub.CreateConnector(connectors_pb.CreateConnectorRequest(connector=made))).connector
    assert dict(created.headers) == {"authorization": "Bearer ${EVALD_SECRET_KEY}", "x-tenant": "***"}
    created.base_url = "http://127.0.0.1:9/v2"
    updated = (await stub.UpdateConnector(connectors_pb.UpdateConnectorRequest(connector=created))).connector
    assert updated.base_url == "http://127.0.0.1:9/v2"
    assert dict(updated.headers) == dict(created.headers)
    stored = await ResourceStore(live.app.database).get(ResourceKind.CONNECTOR, created.id)
    assert stored is not None
    assert b"blue" in stored.body
    assert b"s3cret" not in stored.body


@pytest.mark.parametrize(
    ("place", "changed"),
    [
        ("http://127.0.0.1:9", {"base_url": "https://127.0.0.1:9"}),
        ("http://127.0.0.1", {"base_url": "http://127.0.0.2"}),
        ("http://127.0.0.1", {"base_url": "http://127.0.0.1:81"}),
        ("http://127.0.0.1:9", {"base_url": "127.0.0.1:9", "type": "grpc"}),
    ],
    ids=["scheme", "host", "port", "type"],
)
@pytest.mark.parametrize("paths", [[], ["base_url", "type"]], ids=["all fields", "without headers"])
async def test_hidden_values_of_headers_are_not_sent_to_another_place(
    live: Live, place: str, changed: dict[str, str], paths: list[str]
) -> None:
    stub = ConnectorServiceStub(live.channel)
    headers = {"authorization": "Bearer ${EVALD_SECRET_KEY}", "x-tenant": "blue", "x-team": "red"}
    made = Connector(name=str(uuid4()), type="http", base_url=place, headers=headers)
    created = (await stub.CreateConnector(connectors_pb.CreateConnectorRequest(connector=made))).connector
    created.MergeFrom(Connector(**changed))
    created.headers["x-team"] = "green"
    request = connectors_pb.UpdateConnectorRequest(connector=created, update_mask=FieldMask(paths=paths))
    refused = await refusal(stub.UpdateConnector(request))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    wanted = ["connector.headers['x-tenant']"] + (["connector.headers['x-team']"] if paths else [])
    assert refused.fields == sorted(wanted)
    assert "give the value again" in refused.message
    assert "blue" not in refused.message
    del request.update_mask.paths[:]
    request.connector.headers["x-tenant"] = "blue"
    moved = (await stub.UpdateConnector(request)).connector
    assert moved.base_url == changed["base_url"]
    stored = await ResourceStore(live.app.database).get(ResourceKind.CONNECTOR, created.id)
    assert stored is not None
    assert b"blue" in stored.body
    assert b"green" in stored.body
    assert b"red" not in stored.body
    request.connector.headers["x-new"] = "***"
    refused = await refusal(stub.UpdateConnector(request))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "stands for the stored value" in refused.message


async def test_a_secret_in_a_header_is_refused(live: Live) -> None:
    made = Connector(
        name="agent", type="http", base_url="http://127.0.0.1:9", headers={"Authorization": "Bearer abc123"}
    )
    request = connectors_pb.CreateConnectorRequest(connector=made)
    refused = await refusal(ConnectorServiceStub(live.channel).CreateConnector(request))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "authorization" in refused.fields[0].lower()
    assert "abc123" not in refused.message


async def test_an_experiment_names_what_there_is(live: Live) -> None:
    stored = await create_scenario(live)
    stub = ExperimentServiceStub(live.channel)
    made = (
        await ConnectorServiceStub(live.channel).CreateConnector(
            connectors_pb.CreateConnectorRequest(connector=connector())
        )
    ).connector
    experiment = Experiment(name="all", scenario_ids=[stored.id], connector_id=made.id)
    created = await stub.CreateExperiment(experiments_pb.CreateExperimentRequest(experiment=experiment))
    assert created.experiment.id
    bad = Experiment(
        name="bad", scenario_ids=[stored.id, stored.id, "x"], persona_ids=["y"], connector_id="z"
    )
    refused = await refusal(stub.CreateExperiment(experiments_pb.CreateExperimentRequest(experiment=bad)))
    assert refused.fields == [
        "experiment.scenario_ids[1]",
        "experiment.scenario_ids[2]",
        "experiment.persona_ids[0]",
        "experiment.connector_id",
    ]


async def test_types_of_connectors_say_what_their_config_is(live: Live) -> None:
    types = await ConnectorServiceStub(live.channel).ListConnectorTypes(
        connectors_pb.ListConnectorTypesRequest()
    )
    names = [one.type for one in types.connector_types]
    assert names == ["grpc", "http", "langgraph", "openai-chat", "replay"]
    assert all('"properties"' in one.config_schema_json for one in types.connector_types)


async def test_a_database_that_cannot_be_written_refuses_what_it_would_keep_and_nothing_else(
    tmp_path: Path,
) -> None:
    async with serving(data_dir=tmp_path) as live:
        await create_scenario(live, name="before")
        other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
        try:
            other.execute("BEGIN EXCLUSIVE")
            refused = await refusal(create_scenario(live, name="meanwhile"))
            assert refused.code is grpc.StatusCode.UNAVAILABLE
            assert refused.reason == "STORAGE_UNAVAILABLE"
            assert refused.retry is not None
            assert str(tmp_path) not in refused.message
            assert (await live.unary(request(CONTAINS))).summary.success
            other.execute("ROLLBACK")
        finally:
            other.close()
        await create_scenario(live, name="after")
        stub = ScenarioServiceStub(live.channel)
        listed = await stub.ListScenarios(scenarios_pb.ListScenariosRequest())
        assert [one.name for one in listed.scenarios] == ["before", "after"]


async def test_garbage_is_refused_by_every_method_as_no_message(live: Live) -> None:
    for service, methods in (
        ("Scenario", ("Create", "Get", "Update", "Delete")),
        ("Persona", ("Create",)),
        ("Connector", ("Create", "Test")),
        ("Experiment", ("Create",)),
    ):
        for method in methods:
            refused = await refusal(
                live.raw(f"/evald.v1.{service}Service/{method}{service}", b"\xff\xff\xff")
            )
            assert refused.reason == "UNREADABLE_MESSAGE"


async def test_a_database_in_memory_that_is_full_refuses_writes_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "_MEMORY_PAGES", 800)
    async with serving() as live:
        stub: Any = ScenarioServiceStub(live.channel)

        async def create(name: str) -> str:
            made = scenario(name, goal="x" * 900_000)
            sent = scenarios_pb.CreateScenarioRequest(scenario=made)
            return str((await stub.CreateScenario(sent)).scenario.id)

        ids = [await create(f"number {number}") for number in range(3)]
        assert (await refusal(create("one more"))).reason == "STORAGE_FULL"
        assert (await live.unary(request(CONTAINS))).summary.success
        await stub.DeleteScenario(scenarios_pb.DeleteScenarioRequest(scenario_id=ids[0]))
        assert await create("one more")
