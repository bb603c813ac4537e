"""Who calls over HTTP is who calls over gRPC: tokens, money, sign-ins, and what belongs to somebody."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from evald.plugin.v1 import registry_service_pb2 as registry_pb2
from evald_server.auth.keys import add_key, new_key
from evald_server.auth.principal import Role
from evald_server.config import JudgePrice, JudgeSettings
from evald_server.day_totals import SPENDING_FILE, read_totals, utc_day
from evald_server.http import access
from evald_server.rpc.scenarios import ScenarioService

from ..auth.issuer import Issuer
from ..auth.keyring import bearer, guarded, make_key
from ..judge.test_service import GOOD, judging
from ..judge.wire import wire
from ..monitoring.scrape import value
from ..remote.scripted import REGISTRY, listening
from ..rpc.live import Live, serving, until
from .api import CHAT, REGEX
from .exchange import JSON, Exchange, post, send
from .test_access_matrix import FORM
from .test_bridge import web

JUDGE = {"type": "llm-judge", "config": {"criteria": "The answer is polite."}}
EVALUATE = "EvaluationService/EvaluateUnary"
MESSAGES = [{"role": one["role"], "text": one["content"]} for one in CHAT]
CONNECT = {"connect-protocol-version": "1"}


async def _sign_in(live: Live, key: str) -> Exchange:
    return await send(web(live), "POST", "/console/sign-in", FORM, f"key={quote(key)}".encode())


async def _evaluate(live: Live, evaluator: Any, headers: dict[str, str]) -> Exchange:
    """POST /api/evaluate."""
    body = json.dumps({"messages": CHAT, "evaluators": [evaluator]}).encode()
    return await send(web(live), "POST", "/api/evaluate", JSON | headers, body)


async def _call(live: Live, evaluator: Any, headers: dict[str, str]) -> Exchange:
    """The same by Connect's protocol."""
    context = {"turn": 1, "messages": MESSAGES}
    request = {"request": {"context": context, "evaluators": [evaluator]}}
    return await post(web(live), EVALUATE, request, CONNECT | headers)


async def test_a_token_opens_the_api_connect_and_the_console(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("one")
    issuer.publish()
    token = issuer.token(roles=["caller"])
    async with serving(web="127.0.0.1:0", **issuer.settings) as live:
        assert (await _evaluate(live, REGEX, dict(bearer(token)))).json["success"] is True
        assert (await _call(live, REGEX, dict(bearer(token)))).json["summary"]["success"] is True
        signed_in = await _sign_in(live, token)
        cookie = {"cookie": signed_in.headers["set-cookie"].partition(";")[0]}
        page = await send(web(live), "GET", "/console/overview", cookie)
        assert (page.status, b"jwt:alice" in page.body) == (200, True)
        refused = await _sign_in(live, issuer.token(aud="another"))
        assert (refused.status, b"is not valid here" in refused.body) == (401, True)


async def test_a_principal_s_ceiling_for_judges_holds_over_http(tmp_path: Path) -> None:
    """By each door, and for all doors together."""
    file = tmp_path / "keys.toml"
    text, key = new_key("ci", [Role.CALLER], judge_usd_per_day=15.0)
    add_key(file, key)
    price = {"prices": {"dear": JudgePrice(input=1000, output=10_000)}, "model": "dear"}
    settings: dict[str, Any] = {
        "judges": {"default": JudgeSettings.model_validate(price)},
        "judge_model": "dear",
        "judge_cache_bytes": 0,
        "keys_file": file,
        "data_dir": tmp_path / "data",
        "web": "127.0.0.1:0",
    }
    headers = dict(bearer(text))
    async with wire(GOOD) as server, judging(server.base_url, **settings) as live:
        codes: list[str] = []
        while "JUDGE_BUDGET_EXCEEDED" not in codes and len(codes) < 100:
            (result,) = (await _evaluate(live, JUDGE, headers)).json["evaluatorResults"]
            codes.append(result.get("error", {}).get("code", ""))
        assert len(codes) > 2
        assert set(codes[:-1]) == {""}
        answer = (await _call(live, JUDGE, headers)).json
        assert answer["summary"]["results"][0]["error"]["code"] == "JUDGE_BUDGET_EXCEEDED"
        fields = {"conversation": json.dumps(CHAT), "/evaluators/0/type": "llm-judge"}
        fields |= {"count:/evaluators": "1", "/evaluators/0/config/criteria": "The answer is polite."}
        form = "&".join(f"{quote(name, safe='')}={quote(text)}" for name, text in fields.items()).encode()
        tried = await send(web(live), "POST", "/console/try/results", FORM | headers, form)
        assert b"JUDGE_BUDGET_EXCEEDED" in tried.body
        assert len(server.requests) == len(codes) - 1
        assert value(live.app.telemetry, "evald_principal_limited_total", limit="judge_usd_per_day") == 3
    assert 0 < read_totals(tmp_path / "data" / SPENDING_FILE, utc_day())["ci"] <= 15


@pytest.mark.parametrize(
    ("most", "status", "reason", "counted"),
    [
        (10, 401, "CREDENTIALS_INVALID", ("key", "invalid")),
        (0, 429, "RATE_LIMITED", ("other", "limited")),
    ],
)
async def test_a_sign_in_that_fails_is_logged_and_counted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    most: int,
    status: int,
    reason: str,
    counted: tuple[str, str],
) -> None:
    monkeypatch.setattr(access, "_SIGN_INS_A_SECOND", most)
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", *Role)[:-1] + "!"
    async with guarded(path, web="127.0.0.1:0") as live:
        with caplog.at_level(logging.INFO, "evald.audit"):
            refused = await _sign_in(live, key)
        assert (refused.status, b'role="alert"' in refused.body) == (status, True)
        lines: list[Any] = [record for record in caplog.records if record.name == "evald.audit"]
        assert [(line.outcome, line.method, line.reason) for line in lines] == [
            ("refused", "sign in", reason)
        ]
        assert lines[0].peer.startswith("ipv4:127.0.0.1:")
        assert key not in caplog.text
        kind, outcome = counted
        assert value(live.app.telemetry, "evald_auth_total", kind=kind, outcome=outcome) == 1


async def _remove(live: Live, instance_id: str, key: str, query: str = "") -> Exchange:
    return await send(web(live), "DELETE", f"/api/remotes/{instance_id}{query}", dict(bearer(key)))


async def test_an_instance_is_removed_over_http_by_its_own_plugin_and_by_admins(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    mine, other = (make_key(path, name, Role.PLUGIN, types=("*",)) for name in ("mine", "other"))
    admin = make_key(path, "root", Role.ADMIN, Role.VIEWER)
    viewer = make_key(path, "eve", Role.VIEWER)
    settings = {"remote_allowed": ["127.0.0.1/32"], "web": "127.0.0.1:0"}
    async with guarded(path, **settings) as live, listening("acme.word") as plugin:
        request = registry_pb2.RegisterRequest(instance_id="lease", plugin=plugin.info, target=plugin.address)
        registered = (f"{REGISTRY}Register", request.SerializeToString())
        for key, query in ((mine, "?drain=true"), (admin, "")):
            await live.raw(*registered, metadata=bearer(mine))
            refused = await _remove(live, "lease", other)
            assert (refused.status, refused.json["details"][0]["reason"]) == (403, "NOT_OWNER")
            assert (await _remove(live, "lease", viewer)).status == 403
            assert (await _remove(live, "lease", key, query)).status == 204
            assert "lease" not in live.app.remotes.instances.by_id
        gone = await _remove(live, "lease", admin)
        assert gone.status == 404
        assert gone.json["error"] == 'instance_id: no instance has the id "lease"; `evald remotes` lists them'

        await live.raw(*registered, metadata=bearer(mine))
        pages = {}
        for key in (admin, viewer):
            cookie = {"cookie": (await _sign_in(live, key)).headers["set-cookie"].partition(";")[0]}
            pages[key] = (await send(web(live), "GET", "/console/remotes", cookie)).body.decode()
        assert 'name="instance" value="lease"' in pages[admin]
        assert "Deregister" not in pages[viewer]
        form = (await send(web(live), "GET", "/console/personas/new", cookie)).body.decode()
        assert "Your role allows you to read this, but not to change it" in form
        form = dict(bearer(admin)) | FORM
        sent = await send(web(live), "POST", "/console/remotes", form, b"instance=lease")
        assert (sent.status, sent.headers["location"]) == (303, "/console/remotes")
        assert "lease" not in live.app.remotes.instances.by_id


async def test_the_lists_of_one_principal_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, begun, file = asyncio.Event(), 0, tmp_path / "keys.toml"
    collect = ScenarioService.list_page

    async def slow(self: ScenarioService, request: Any) -> Any:
        nonlocal begun
        begun += 1
        await read.wait()
        return await collect(self, request)

    monkeypatch.setattr(ScenarioService, "list_page", slow)
    greedy, other = (dict(bearer(make_key(file, name, Role.CALLER))) for name in ("greedy", "other"))
    async with guarded(file, web="127.0.0.1:0") as live:
        lists = [asyncio.create_task(send(web(live), "GET", "/api/scenarios", greedy)) for _ in range(10)]
        await until(lambda: begun, 60)
        async with asyncio.timeout(30):
            assert (await send(web(live), "GET", "/api/personas", other)).json == []
        assert not any(one.done() for one in lists)
        read.set()
        assert {(await one).status for one in lists} == {200}
