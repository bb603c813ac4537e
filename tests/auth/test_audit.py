"""Whatever callers are called, a line of the audit log says what it says."""

import asyncio
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import pytest

from evald.v1 import connector_service_pb2 as connectors_pb
from evald.v1 import experiment_service_pb2 as experiments_pb
from evald.v1 import persona_service_pb2 as personas_pb
from evald.v1 import run_service_pb2 as runs_pb
from evald.v1 import scenario_service_pb2 as scenarios_pb
from evald.v1.context_pb2 import Persona, Scenario
from evald_server.auth.audit import Audit, peer_of, record
from evald_server.auth.principal import Principal, Role
from evald_server.logs import JsonFormatter, TextFormatter
from evald_server.store.resources import ResourceStore

from ..rpc.live import CONTAINS, refusal, request, serving, until
from .issuer import Issuer
from .keyring import bearer, guarded, make_key

HOSTILE = [
    "alice key=boss outcome=ok",
    'alice" principal="boss',
    "alice\n2026-11-22 12:00:00 INFO evald.audit: refused principal=boss",
    "alice\r\x1b[2Kboss",
    "alice\u2028refused principal=boss",
    "alice\u202eboss",
    "alice\u00a0boss",
]


@pytest.mark.parametrize("name", [*HOSTILE, "jwt:alice", "jwt:jürgen@example.org", ""])
def test_a_name_is_one_field_of_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    principal = Principal(f"jwt:{name}", frozenset((Role.CALLER,)), key_id=name)
    with caplog.at_level(logging.INFO, "evald.audit"):
        record("refused", principal, method="/a/B", why="wrong role", left_out=3)
    [line] = caplog.records
    entry = json.loads(JsonFormatter().format(line))
    assert (entry["principal"], entry["key_id"], entry["outcome"]) == (f"jwt:{name}", name, "refused")
    text = TextFormatter().format(line)
    assert len(text.splitlines()) == len(JsonFormatter().format(line).splitlines()) == 1
    fields = [word.partition("=")[0] for word in shlex.split(text.partition("evald.audit: ")[2])]
    assert fields == ["refused", "principal", "key", "method", "why", "left_out"]


async def test_the_subject_of_a_token_forges_no_field(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.publish()
    with caplog.at_level(logging.INFO, "evald.audit"):
        async with serving(**issuer.settings) as live:
            token = issuer.token(sub="alice key=boss")
            assert (await live.unary(request(CONTAINS), metadata=bearer(token))).summary.success
    assert 'used principal="jwt:alice key=boss" key=' in caplog.text


async def test_changes_of_what_is_stored_say_who_made_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evald.audit")
    path = tmp_path / "keys.toml"
    lead = bearer(make_key(path, "lead", Role.ADMIN, Role.CALLER))
    wanted: list[tuple[str, str, str]] = []
    async with guarded(path) as live:

        async def call(service: str, method: str, message: Any) -> bytes:
            name = f"/evald.v1.{service}Service/{method}"
            return await live.raw(name, message.SerializeToString(), metadata=lead)

        said = [{"role": role, "content": "hello"} for role in ("user", "assistant")]
        connector = connectors_pb.Connector(id="c", name="c", type="replay")
        connector.config.update({"messages": said})
        scenario = Scenario(id="s", name="s", evaluators=[{"type": "response-length"}])
        stored: dict[str, tuple[Any, Any]] = {
            "persona": (personas_pb, Persona(id="p", name="p")),
            "connector": (connectors_pb, connector),
            "scenario": (scenarios_pb, scenario),
            "experiment": (
                experiments_pb,
                experiments_pb.Experiment(id="e", name="e", scenario_ids=["s"], connector_id="c"),
            ),
        }
        for kind, (module, one) in stored.items():
            service = kind.capitalize()
            await call(service, f"Create{service}", getattr(module, f"Create{service}Request")(**{kind: one}))
            for name in ("other", "other"):  # the second one changes nothing
                one.name = name
                change = getattr(module, f"Update{service}Request")(**{kind: one})
                change.update_mask.paths.append("name")
                await call(service, f"Update{service}", change)
            wanted += [("created", kind, one.id), ("updated", kind, one.id)]
        start = runs_pb.StartRunRequest(scenario_id="s", connector_id="c")
        run = runs_pb.StartRunResponse.FromString(await call("Run", "StartRun", start)).run

        async def ended() -> bool:
            data = await call("Run", "GetRun", runs_pb.GetRunRequest(run_id=run.id))
            run.CopyFrom(runs_pb.GetRunResponse.FromString(data).run)
            return run.HasField("complete_time")

        await until(ended)
        delete = runs_pb.DeleteRunRequest(run_id=run.id)
        await call("Run", "DeleteRun", delete)
        assert (await refusal(call("Run", "DeleteRun", delete))).reason == "RESOURCE_NOT_FOUND"
        await call("Run", "ImportRun", runs_pb.ImportRunRequest(run=run))
        wanted += [("deleted", "run", run.id), ("imported", "run", run.id)]
        for kind, (module, one) in reversed(stored.items()):
            service = kind.capitalize()
            gone = getattr(module, f"Delete{service}Request")(**{f"{kind}_id": one.id})
            await call(service, f"Delete{service}", gone)
            wanted.append(("deleted", kind, one.id))
    lines: list[Any] = [record for record in caplog.records if hasattr(record, "kind")]
    assert [(line.outcome, line.kind, line.id) for line in lines] == wanted
    assert {line.principal for line in lines} == {"lead"}


async def test_a_change_is_logged_although_its_call_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "evald.audit")
    path = tmp_path / "keys.toml"
    lead = bearer(make_key(path, "lead", Role.ADMIN))
    begun, go_on = asyncio.Event(), asyncio.Event()
    create = ResourceStore.create

    async def wait_first(*arguments: Any) -> None:
        begun.set()
        await go_on.wait()
        await create(*arguments)

    monkeypatch.setattr(ResourceStore, "create", wait_first)
    async with guarded(path) as live:
        request = personas_pb.CreatePersonaRequest(persona=Persona(id="p", name="p"))
        method: Any = live.channel.unary_unary("/evald.v1.PersonaService/CreatePersona")
        call = method(request.SerializeToString(), metadata=lead)
        await asyncio.wait_for(begun.wait(), 30)
        call.cancel()
        await until(call.done)
        go_on.set()
        await until(lambda: "created principal=lead" in caplog.text)


def test_refusals_are_logged_again_after_a_second_in_which_too_many_addresses_were_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1.0
    audit = Audit(lambda: now)
    caplog.set_level(logging.INFO, "evald.audit")
    for number in range(2000):
        audit.refused("/x/y", f"ipv4:10.0.{number // 256}.{number % 256}:1", "INVALID", "why", None)
    logged = len(caplog.records)
    now = 2.0
    audit.refused("/x/y", "ipv4:10.0.0.1:1", "INVALID", "why", None)
    assert (logged, len(caplog.records)) == (1000, 1001)


def test_refusals_of_one_address_are_counted_over_its_ports(caplog: pytest.LogCaptureFixture) -> None:
    now = 1.0
    audit = Audit(lambda: now)
    caplog.set_level(logging.INFO, "evald.audit")
    for address in ("10.0.0.1", "::1"):
        for port in range(30):
            audit.refused("/x/y", peer_of((address, port, 0, 0)), "INVALID", "why", None)
    lines: list[Any] = caplog.records
    assert [line.peer for line in lines] == [
        *(f"ipv4:10.0.0.1:{port}" for port in range(10)),
        *(f"ipv6:[::1]:{port}" for port in range(10)),
    ]
    now = 2.0
    audit.refused("/x/y", "ipv4:10.0.0.1:1", "INVALID", "why", None)
    assert sum(getattr(line, "left_out", 0) for line in lines) == 40
