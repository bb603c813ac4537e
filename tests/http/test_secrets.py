"""Secrets planted in a server, and in all that its callers, agents and judges send, come out nowhere: in no answer,
page, metric, log line or stored file, whatever breaks."""

import asyncio
import json
import re
import signal
import ssl
import subprocess
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote

import grpc
import httpx
import pytest
from starlette.routing import Route

from evald.agent.v1 import agent_service_pb2
from evald.v1 import connector_service_pb2
from evald_server.auth.keys import read_keys, revoke_key
from evald_server.auth.principal import Role
from evald_server.http.access import COOKIE
from evald_server.http.api.routes import ROUTES
from evald_server.http.console.routes import routes as console_routes
from evald_server.http.site import Site
from evald_server.store.database import FILE_NAME

from ..auth.authority import Authority
from ..auth.issuer import Issuer
from ..auth.keyring import bearer, make_key
from ..cli.conftest import evald  # noqa: F401 - a fixture
from ..forks import Fork
from ..judge.wire import answer, completion, events
from ..markers import Markers
from ..processes import ANY_PORT, clean_environment
from ..remote import scripted
from ..rpc.live import until
from .exchange import JSON

FORM: Final = {"content-type": "application/x-www-form-urlencoded"}


def test_the_search_finds_a_secret_however_it_is_escaped() -> None:
    markers = Markers()
    secret = markers.plant("it")
    assert not markers.found_in("nothing of it")
    for spelling in (
        secret,
        secret[:16],
        f"{{{secret[-16:]}}}",
        json.dumps(secret),
        quote(secret),
        "".join(f"%{ord(one):02X}" for one in secret),
        "".join(f"\\u{ord(one):04x}" for one in secret),
        "".join(f"&#{ord(one)};" for one in secret),
        *(b64encode(f"{before}{secret}, and more".encode()).decode() for before in ("", "1", "12", "123")),
    ):
        assert markers.found_in(f"It says {spelling}.") == {"it"}, spelling


# How an endpoint, agent or judge, answers with the request that it got.
ECHOES: Final[dict[str, Callable[[str], bytes]]] = {
    "refused": lambda said: answer(401, {"error": {"message": said, "code": said}}).data,
    "limited": lambda said: answer(429, {"error": {"message": said}}, retry_after="0").data,
    "failed": lambda said: answer(500, said, content_type="text/plain").data,
    "page": lambda said: answer(200, f"<html><p>{said}", content_type="text/html").data,
    "reported": lambda said: answer(200, {"error": said, "detail": said}).data,
    "answered": lambda said: answer(200, completion(said)).data,
    "finished": lambda said: answer(200, completion("fine", said)).data,
    "called": lambda said: (
        answer(
            200,
            completion(
                said,
                "tool_calls",
                tool_calls=[
                    {
                        "id": said,
                        "type": "function",
                        "function": {"name": "f", "arguments": json.dumps({"a": said})},
                    }
                ],
            ),
        ).data
    ),
    "unknown": lambda said: answer(200, {said: said}).data,
    "streamed": lambda said: (
        answer(200, events({"error": {"message": said}}), content_type="text/event-stream").data
    ),
    "redirected": lambda said: answer(302, said, location=f"http://127.0.0.1:1/?{quote(said)}").data,
    "no HTTP": lambda said: said.encode(),
    "bad status": lambda said: f"HTTP/1.1 {said.splitlines()[1]}\r\n\r\n".encode(),
    "bad length": lambda said: answer(200, said, length=10_000, end="close").data,
    "bad chunk": lambda said: (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + said.encode() + b"\r\n"
    ),
    "bad coding": lambda said: answer(200, said, content_encoding=quote(said)).data,
    "slow": lambda said: answer(200, said, length=10_000).data,
}


async def _echo(received: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with its own head, as it is and escaped. The first part of the path says how."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        received.append(head)
        size = int(re.findall(r"(?i)content-length: *(\d+)", head + "\r\ncontent-length: 0")[0])
        await reader.readexactly(size)
        kind = unquote(head.split()[1].split("/")[1])
        said = " ".join(
            (
                head,
                json.dumps(head),
                quote(head),
                b64encode(head.encode()).decode(),
                *map(_decoded, re.findall("[Bb]asic (.+)", head)),
            )
        )
        writer.write(ECHOES[kind](said))
        await writer.drain()
        if kind == "slow":
            await reader.read()
    writer.close()


def _decoded(credentials: str) -> str:
    return b64decode(credentials).decode()


class _EchoingAgent(grpc.GenericRpcHandler):
    """An agent over gRPC that answers with its request's metadata, or breaks with them."""

    def __init__(self, received: list[str]) -> None:
        self._received = received

    def service(self, details: Any) -> Any:
        said = str(details.invocation_metadata)
        self._received.append(said)

        async def invoke(data: bytes, context: Any) -> bytes:
            request = agent_service_pb2.InvokeRequest.FromString(data)
            if request.messages[-1].text != "Hello":
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, said)
            response = agent_service_pb2.InvokeResponse()
            response.invocation.messages.add(role="assistant", text=said)
            return response.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(invoke)


class Heard:
    """Everything that came out of the server, by where it came from."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.texts: list[tuple[str, str]] = []

    def add(self, where: str, text: str | bytes) -> None:
        self.texts.append((where, text.decode("latin-1") if isinstance(text, bytes) else text))

    def leaks(self) -> list[str]:
        """What is wrong: which secrets came out, and where."""
        found = ((where, self.markers.found_in(text)) for where, text in self.texts)
        return [f"{where}: {', '.join(sorted(names))}" for where, names in found if names]


class Planted(NamedTuple):
    """A server full of secrets. client: calls with the key that is valid. received: what agents and judges got.

    address, monitoring, echo, agent: HOST:PORT of gRPC, of metrics, of agents and judges over HTTP, of one over gRPC.
    """

    markers: Markers
    heard: Heard
    process: Fork
    client: httpx.AsyncClient
    channel: grpc.aio.Channel
    address: str
    monitoring: str
    tokens: dict[str, str]
    received: list[str]
    echo: str
    agent: str

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """A request over HTTP whose answer is kept."""
        response = await self.client.request(method, path, **request)
        self.heard.add(f"{method} {path}"[:200], response.text)
        return response

    async def create(self, kind: str, data: dict[str, Any]) -> str:
        """Store a resource. Returns its id."""
        made = await self.ask("POST", f"/api/{kind}", json=data)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def call(self, method: str, data: bytes, **call: Any) -> bytes:
        """A call over gRPC whose answer is kept."""
        try:
            found: bytes = await self.channel.unary_unary(method)(data, timeout=20, **call)
        except grpc.aio.AioRpcError as error:
            found = repr((error, error.details(), error.trailing_metadata())).encode()
        self.heard.add(method, found)
        return found


SECRETS: Final = ("EVALD_SECRET_AGENT", "AGENT_TOKEN", "EVALD_SECRET_BASIC", "JUDGE_KEY", "OPENAI_API_KEY")
HEADERS: Final = {
    "Authorization": "Bearer ${EVALD_SECRET_AGENT}",
    "X-Api-Key": "${AGENT_TOKEN}",
    "Cookie": "sid=${EVALD_SECRET_AGENT}; other=${AGENT_TOKEN}",
    "Proxy-Authorization": "Basic ${EVALD_SECRET_BASIC}",
}


@pytest.fixture(name="certs", scope="module")
def _certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority(tmp_path_factory.mktemp("certs")).folder


def _credentials(folder: Path, markers: Markers) -> dict[str, str]:
    """Keys and tokens by their state; the files of them are in the folder."""
    keys, issuer = folder / "keys.toml", Issuer(folder / "jwks.json")
    found = {name: make_key(keys, name, *Role, types=("*",)) for name in ("valid", "revoked")}
    found["expired"] = make_key(keys, "expired", *Role, types=("*",), expires=-1)
    revoke_key(keys, found["revoked"][6:18])
    for key in read_keys(keys).values():
        markers.know(f"digest of {key.principal}", key.digest)
    for name, key_text in found.items():
        markers.know(f"key: {name}", key_text[19:])
    found["malformed"] = f"evald_{markers.plant('malformed', between='-')}"
    found["foreign"] = markers.plant("foreign")
    issuer.add("one")
    issuer.publish()
    for name, changes in {"token": {}, "old token": {"exp": 1}, "other token": {"aud": "other"}}.items():
        found[name] = issuer.token(**changes)
        markers.know(name, found[name].rpartition(".")[2])
    return found


def _config(folder: Path, certs: Path, echo: str, plugin: str) -> str:
    judges = "".join(
        f'[judges."{kind}"]\nbaseUrl = "http://{echo}/{quote(kind)}/v1"\nmodel = "m"\napiKeyEnv = "JUDGE_KEY"\n'
        "timeout = 0.5\nattempts = 1\n"
        for kind in ECHOES
    )
    return f"""
log_level = "debug"
log_calls = true
drain_grace = 1.0
data_dir = "{folder}/data"
keys_file = "{folder}/keys.toml"
connector_secrets = ["AGENT_TOKEN"]
remote_targets = ["{plugin}"]
judge_base_url = "http://{echo}/refused/v1"
judge_model = "m"
judge_api_key_file = "{folder}/judge.key"
[tls]
cert_file = "{folder}/server.pem"
key_file = "{folder}/server.key"
reload_seconds = 0.1
[jwt]
issuer = "https://issuer.example.org"
audience = "evald"
jwks_file = "{folder}/jwks.json"
{judges}"""


@pytest.fixture(name="server")
async def _server(tmp_path: Path, certs: Path, evald_command: str) -> AsyncIterator[Planted]:
    """A server in a process of its own. When it has stopped, nothing of its secrets has come out."""
    folder, markers = tmp_path, Markers()
    heard = Heard(markers)
    tokens = _credentials(folder, markers)
    for name in ("server.pem", "server.key"):
        (folder / name).write_bytes((certs / name).read_bytes())
    pem = "".join((folder / "server.key").read_text().splitlines()[1:-1])
    markers.know("private key", pem[60:-4])
    (folder / "judge.key").write_text(markers.plant("judge's file"))
    environment = {name: markers.plant(name) for name in SECRETS}
    environment["EVALD_SECRET_BASIC"] = b64encode(f"u:{environment['EVALD_SECRET_BASIC']}".encode()).decode()
    received: list[str] = []
    async with _agents(received) as (echo, agent), scripted.listening("acme.echo") as plugin:

        async def repeat(_: Any) -> Any:
            raise scripted.Refused(grpc.StatusCode.INTERNAL, str(plugin.metadata[-1]))

        plugin.behave = repeat
        (folder / "evald.toml").write_text(_config(folder, certs, echo, plugin.address))
        with (folder / "stderr").open("wb") as log:
            process = Fork(
                *(evald_command, "serve", "--config", str(folder / "evald.toml"), "--listen", ANY_PORT),
                *("--http", ANY_PORT, "--web", ANY_PORT),
                environment=clean_environment(environment),
                stderr=log,
            )
        try:
            assert process.stdout
            ready = "".join([await asyncio.to_thread(process.stdout.readline) for _ in range(2)])
            found = re.findall(r"127\.0\.0\.1:\d+", ready)
            assert len(found) == 3, (folder / "stderr").read_text()
            heard.add("standard output", ready)
            ca = ssl.create_default_context(cafile=str(certs / "ca.pem"))
            credentials = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes())
            async with (
                httpx.AsyncClient(
                    base_url=f"https://{found[2]}",
                    verify=ca,
                    timeout=30,
                    trust_env=False,
                    headers={"authorization": f"Bearer {tokens['valid']}"},
                ) as client,
                grpc.aio.secure_channel(found[0], credentials) as channel,
            ):
                yield Planted(
                    markers,
                    heard,
                    process,
                    client,
                    channel,
                    found[0],
                    found[1],
                    tokens,
                    received,
                    echo,
                    agent,
                )
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                heard.add("standard output", await asyncio.to_thread(process.stdout.read))
                assert await asyncio.to_thread(process.wait) == 0
        finally:
            process.kill()
            await asyncio.to_thread(process.communicate)
    heard.add("log", (folder / "stderr").read_bytes())
    assert not heard.leaks()
    # A literal value is stored to be sent. It is shown to nobody.
    markers.parts.pop("literal", None)
    for path in (folder / "data").rglob("*"):
        heard.add(path.name, path.read_bytes())
    assert not heard.leaks()


@asynccontextmanager
async def _agents(received: list[str]) -> AsyncIterator[tuple[str, str]]:
    """Addresses of an endpoint over HTTP and of an agent over gRPC, which keep and repeat what they are asked."""
    http = await asyncio.start_server(partial(_echo, received), "127.0.0.1", 0)
    agent = grpc.aio.server()
    agent.add_generic_rpc_handlers([_EchoingAgent(received)])
    port = agent.add_insecure_port("127.0.0.1:0")
    await agent.start()
    try:
        yield f"127.0.0.1:{http.sockets[0].getsockname()[1]}", f"127.0.0.1:{port}"
    finally:
        http.close()
        await agent.stop(None)


def _connectors(server: Planted) -> dict[str, dict[str, Any]]:
    """Connectors whose agents repeat secrets, by the name of how."""
    slow = {"timeoutSeconds": 0.3, "maxAttempts": 1}
    found = {}
    for kind in ECHOES:
        url = f"http://{server.echo}/{quote(kind)}"
        found[kind] = {"type": "http", "baseUrl": url, "config": slow}
        found[f"{kind}, chat"] = {"type": "openai-chat", "baseUrl": url, "config": {"model": "m", **slow}}
    for stream in ("sse", "ndjson"):
        url = f"http://{server.echo}/{'streamed' if stream == 'sse' else 'unknown'}"
        found[stream] = {"type": "http", "baseUrl": url, "config": {"stream": stream, **slow}}
    found["langgraph"] = {
        "type": "langgraph",
        "baseUrl": f"http://{server.echo}/refused",
        "config": {"assistantId": "a", **slow},
    }
    found["grpc"] = {"type": "grpc", "baseUrl": server.agent}
    found["nobody"] = {"type": "http", "baseUrl": "http://127.0.0.1:9/"}
    found["not set"] = {
        "type": "http",
        "baseUrl": "http://127.0.0.1:9/",
        "headers": {"Authorization": "${EVALD_SECRET_NONE}"},
    }
    return {name: {"name": name, "headers": HEADERS, **one} for name, one in found.items()}


async def _play(server: Planted) -> None:
    """Test every connector, run a scenario with each, and have every judge asked."""
    ids = {name: await server.create("connectors", one) for name, one in _connectors(server).items()}
    judges = [
        {"type": "llm-judge", "name": kind, "config": {"successCriteria": "It is right.", "judge": kind}}
        for kind in ECHOES
    ]
    judges.append({"type": "llm-judge", "config": {"successCriteria": "It is right."}})
    remote = {"type": "acme.echo", "config": {"word": "x"}}
    persona = {"name": "Maria", "script": ["Hello", "More"], "headers": {"X-Session-Key": "${AGENT_TOKEN}"}}
    persona_id = await server.create("personas", persona)
    title = server.markers.plant("title")
    scenario = await server.create(
        "scenarios", {"name": title, "evaluators": [remote, judges[0]], "maxMessages": 4}
    )
    conversation = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Fine"}]}
    traced = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    asked = [
        server.ask("POST", "/api/evaluate", json={**conversation, "evaluators": [one]}, headers=traced)
        for one in (*judges, remote)
    ]
    asked += [server.ask("POST", f"/api/connectors/{one}/test") for one in ids.values()]
    starts = [
        server.ask(
            "POST",
            "/api/runs/playground",
            json={"scenarioId": scenario, "connectorId": one, "personaId": persona_id},
        )
        for name, one in ids.items()
        if "chat" not in name
    ]
    for response in await asyncio.gather(*asked):
        assert response.status_code == 200, response.text
    for response in await asyncio.gather(*starts):
        assert response.status_code == 201, response.text

    async def all_ended() -> bool:
        runs = (await server.client.get("/api/runs?messages=false")).json()
        return len(runs) == len(starts) and not {"queued", "running"} & {run["status"] for run in runs}

    await until(all_ended)
    page = await server.client.get("/console/scenarios")
    # The search would find a secret.
    assert server.markers.found_in(page.text) == {"title"}
    del server.markers.parts["title"]


_KINDS: Final = {"suites": "suite-runs"}


def _addresses(ids: dict[str, list[str]]) -> Iterator[str]:
    """Every path that can be read, once for each thing that it may name."""
    paths = [
        f"/api{route.path}" for route in ROUTES if route.method == "GET" and "{projectId}" not in route.path
    ]
    paths += [
        route.path
        for route in console_routes(cast("Site", None))
        if isinstance(route, Route) and "GET" in (route.methods or ())
    ]
    for path in paths:
        known = path.replace("{projectId}", "default").replace("{type}", "llm-judge").replace("{index}", "0")
        kind = re.sub("^/(api|console)(/projects/default)?/", "", known).partition("/")[0]
        for one in ids.get(_KINDS.get(kind, kind), []) if "id}" in known else [""]:
            yield re.sub(r"\{\w+(:path)?\}", one or "none", known)


async def _read_all(server: Planted) -> None:
    """Read every route of the API, every page and the metrics."""
    ids = {}
    for kind in ("scenarios", "personas", "connectors", "evals", "runs", "suite-runs"):
        listed = await server.client.get(f"/api/{kind}")
        assert listed.status_code == 200, listed.text
        ids[kind] = [one["id"] for one in listed.json()]
    ids["connectors"] = ids["connectors"][:2]  # all alike
    signed_in = await server.client.post("/console/sign-in", data={"key": server.tokens["valid"]})
    server.markers.know("cookie", signed_in.cookies[COOKIE])
    addresses = list(_addresses(ids))
    assert len(addresses) > 40
    for first in range(0, len(addresses), 20):
        responses = await asyncio.gather(*(server.ask("GET", one) for one in addresses[first : first + 20]))
        for response in responses:
            assert response.status_code < 500 or response.status_code == 501, response.text
    await server.ask("GET", f"https://{server.monitoring}/metrics")


async def test_what_agents_judges_and_plugins_repeat_comes_out_nowhere(server: Planted) -> None:
    await _play(server)
    assert server.markers.found_in("".join(server.received)) == {*SECRETS, "judge's file"} - {
        "OPENAI_API_KEY"
    }
    await _read_all(server)


HTTP_AGENT: Final = '"name": "a", "type": "http", "baseUrl": "http://127.0.0.1:9/"'
CREATE: Final = "/evald.v1.ConnectorService/CreateConnector"
TEST: Final = "/evald.v1.ConnectorService/TestConnector"


class Refused(NamedTuple):
    """A request with MARK in it, a secret, that is refused. status: of the answer."""

    status: int
    method: str
    path: str
    body: str = ""
    headers: dict[str, str] = JSON


def _bodies() -> Iterator[tuple[str, Refused]]:
    """Connectors and personas in which a secret stands where only the name of a variable may, or nothing at all."""
    wrong = {
        "literal": '"headers": {"Authorization": "Bearer MARK"}',
        "beside a variable": '"headers": {"X-Api-Key": "${EVALD_SECRET_AGENT}MARK"}',
        "as a key": '"headers": {"X-Team": "sk-MARK"}',
        "headers as text": '"headers": "MARK"',
        "header as list": '"headers": {"Authorization": ["MARK"]}',
        "header as object": '"headers": {"Authorization": {"Bearer": "MARK"}}',
        "headers as list": '"headers": [{"name": "Authorization", "value": "MARK"}]',
        "unprintable": '"headers": {"Authorization": "MARK\\u0007"}',
        "variable": '"headers": {"Authorization": "${MARK}"}',
        "misspelled": '"header": {"Authorization": "MARK"}',
        "in the config": '"config": {"headers": {"Authorization": "MARK"}}',
        "broken": '"headers": {"Authorization": "MARK"',
        "twice": '"headers": {"Authorization": "MARK"}, "headers": {"Authorization": "MARK"}',
    }
    addresses = {
        "user": '"type": "http", "baseUrl": "http://u:MARK@127.0.0.1/"',
        "query": '"type": "http", "baseUrl": "http://127.0.0.1/?token=MARK"',
        "port": '"type": "http", "baseUrl": "http://u:MARK/"',
        "user, grpc": '"type": "grpc", "baseUrl": "u:MARK@127.0.0.1:1"',
        "URL, grpc": '"type": "grpc", "baseUrl": "https://127.0.0.1:1/?token=MARK"',
    }
    for name, text in wrong.items():
        yield f"connector, {name}", Refused(400, "POST", "/api/connectors", f"{{{HTTP_AGENT}, {text}}}")
        yield f"RPC, {name}", Refused(400, "POST", CREATE, f'{{"connector": {{{HTTP_AGENT}, {text}}}}}')
        if "config" not in name:
            yield f"persona, {name}", Refused(400, "POST", "/api/personas", f'{{"name": "p", {text}}}')
    for name, text in addresses.items():
        yield f"address, {name}", Refused(400, "POST", "/api/connectors", f'{{"name": "a", {text}}}')
        yield f"RPC, address, {name}", Refused(400, "POST", TEST, f'{{"connector": {{"name": "a", {text}}}}}')
    opening = f'{{"suite": "s", "connector": {{{HTTP_AGENT}, {wrong["literal"]}}}}}\n'
    yield "suite", Refused(400, "POST", "/api/suite-runs", opening, {"content-type": "application/x-ndjson"})


REFUSED: Final = {
    **dict(_bodies()),
    "query": Refused(400, "GET", "/api/runs?token=MARK"),
    "query of a page": Refused(200, "GET", "/console/runs?token=MARK"),
    "query, encoded": Refused(400, "GET", "/api/status?access_token=%22MARK"),
    "another scheme": Refused(401, "GET", "/api/runs", "", {"authorization": "Basic MARK"}),
    "another scheme of a page": Refused(303, "GET", "/console/runs", "", {"authorization": "Token MARK"}),
    "no key": Refused(401, "GET", "/api/runs", "", {"authorization": "Bearer MARK"}),
    "a header that is too large": Refused(431, "GET", "/api/runs", "", {"x-api-key": "MARK" * 600}),
    "a cookie": Refused(401, "POST", CREATE, "{}", {"authorization": "", "cookie": f"{COOKIE}=MARK", **JSON}),
    "an origin": Refused(403, "POST", CREATE, "{}", {"origin": "https://u:MARK@evil.example", **JSON}),
    "a media type": Refused(415, "POST", "/api/connectors", "MARK", FORM),
    "sign in": Refused(401, "POST", "/console/sign-in", "key=MARK", FORM),
}


FORMS: Final = {
    "form": Refused(
        400,
        "POST",
        "/console/connectors/new",
        "do=save&/name=a&/type=http&/baseUrl=http://u:MARK@127.0.0.1/&count:/headers=1&/headers/0/name=Authorization&"
        "/headers/0/value=Bearer MARK",
        FORM,
    ),
    "form of a persona": Refused(
        400,
        "POST",
        "/console/personas/new",
        "do=save&/name=a&count:/headers=1&/headers/0/name=Authorization&/headers/0/value=MARK",
        FORM,
    ),
    "import": Refused(
        400, "POST", "/console/scenarios/import", 'lines={"name": "a", "headers": {"X-Key": "MARK"}}', FORM
    ),
}
"""What is typed is in the form again, for who has typed it, and nowhere else."""


async def test_what_is_refused_does_not_repeat_the_secret_in_it(server: Planted, certs: Path) -> None:
    for name, one in {**REFUSED, **FORMS}.items():
        secret = server.markers.plant(name, between="-")
        path, body = (part.replace("MARK", secret) for part in (one.path, one.body))
        headers = {key: value.replace("MARK", secret) for key, value in one.headers.items()}
        ask = server.client.request if name in FORMS else server.ask
        response = await ask(one.method, path, content=body, headers=headers)
        assert response.status_code == one.status, (name, response.text)
    for name, token in server.tokens.items():
        if name in ("valid", "token"):
            continue
        headers = {"authorization": f"Bearer {token}"}
        for path, status in {"/api/runs": 401, "/console/runs": 303}.items():
            assert (await server.ask("GET", path, headers=headers)).status_code == status, name
        await server.ask("GET", f"https://{server.monitoring}/metrics?token={token}", headers=headers)
        await server.call(CREATE, b"", metadata=bearer(token))
    twice = (*bearer(server.tokens["valid"]), *bearer(server.tokens["foreign"]))
    await server.call(CREATE, b"", metadata=twice)
    await server.call(CREATE, b"", metadata=(("authorization", server.tokens["valid"]),))
    for headers in HEADERS, {"Authorization": f"Bearer {server.markers.plant('gRPC')}"}:
        pb = connector_service_pb2.Connector(name="b", type="grpc", base_url="http://x", headers=headers)
        request = connector_service_pb2.CreateConnectorRequest(connector=pb)
        await server.call(CREATE, request.SerializeToString(), metadata=bearer(server.tokens["valid"]))
    for address in (server.client.base_url.netloc.decode(), server.monitoring):
        for request in BROKEN_HTTP:
            said = await _sent(address, certs, request.format(server.markers.plant(request, between="-")))
            server.heard.add(f"{address} {request[:40]!r}", said)
    await _read_all(server)


BROKEN_HTTP: Final = (
    "GET / HTTP/1.1\r\nAuthorization: Bearer {0}\r\nno header {0}\r\n\r\n",
    "GET /metrics?token={0} HTTP/9.9\r\nAuthorization: Bearer {0}\r\n\r\n",
    "Authorization: Bearer {0}\r\n\r\n",
    "POST /api/connectors HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {0}\r\nContent-Length: {0}\r\n\r\n",
    "GET {0} HTTP/1.1\r\nHost: u:{0}@localhost\r\nAuthorization: Bearer {0}\r\n\r\n",
)


async def _sent(address: str, certs: Path, text: str) -> bytes:
    """What comes back for bytes that are no request."""
    host, _, port = address.rpartition(":")
    tls = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    writer.write(text.encode())
    try:
        async with asyncio.timeout(2):
            return await reader.read()
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.close()


SUITE: Final = """
targets: [answered, refused]
connectors:
  answered: {{type: http, baseUrl: "http://{echo}/answered", headers: {headers}}}
  refused: {{type: http, baseUrl: "http://{echo}/refused", headers: {headers}}}
evaluators: [{{type: contains, config: {{text: evald}}}}]
cases: [{{id: a, input: Hello}}]
"""


async def test_commands_reports_and_exports_hold_no_secret(
    server: Planted,
    tmp_path: Path,
    certs: Path,
    evald: Any,  # noqa: F811
) -> None:
    found = _connectors(server)
    ids = [await server.create("connectors", found[name]) for name in ("answered", "refused", "grpc")]
    team = {**found["nobody"], "name": "team", "headers": {"X-Team": server.markers.plant("literal")}}
    await server.create("connectors", team)
    scenario = {"name": "Booking", "evaluators": [{"type": "contains", "config": {"text": "a"}}]}
    persona = await server.create("personas", {"name": "Maria", "script": ["Hello", "More"]})
    scenario_id = await server.create("scenarios", {**scenario, "maxMessages": 4})
    for one in ids:
        start = {"scenarioId": scenario_id, "connectorId": one, "personaId": persona}
        await server.ask("POST", "/api/runs/playground", json=start)
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE.format(echo=server.echo, headers=json.dumps(HEADERS)))
    refused = tmp_path / "connector.yaml"
    literal = {"Authorization": server.markers.plant("file"), "X-Key": [server.markers.plant("list")]}
    agent = {"name": "a", "type": "http", "baseUrl": "http://x", "headers": literal}
    refused.write_text(json.dumps({"connectors": [agent]}))
    reports = [str(tmp_path / f"report.{kind}") for kind in ("xml", "html", "json", "md", "jsonl")]
    environment = {
        "EVALD_SERVER": server.address,
        "EVALD_TOKEN": server.tokens["valid"],
        "EVALD_CA_FILE": str(certs / "ca.pem"),
        "EVALD_DEBUG": "1",
    }
    for code, arguments in (
        (3, ["test", str(suite), *(part for one in reports for part in ("--output", one))]),
        (2, ["import", str(refused)]),
        (0, ["connectors", "export"]),
        (3, ["connectors", "test", "refused"]),
        (0, ["runs", "export"]),
    ):
        done = await asyncio.to_thread(evald, *arguments, **environment)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        server.heard.add(" ".join(arguments[:2]), done.stdout + done.stderr)
    for report in reports:
        server.heard.add(report, Path(report).read_bytes())
    await _read_all(server)


async def test_files_that_break_and_a_server_that_stops_tell_no_secret(
    server: Planted, tmp_path: Path, certs: Path
) -> None:
    markers = server.markers

    async def logged(words: str) -> None:
        await until(lambda: words in (tmp_path / "stderr").read_text())

    slow = {**_connectors(server)["slow"], "config": {"timeoutSeconds": 30}}
    slow_id = await server.create("connectors", slow)
    stalled = asyncio.create_task(server.ask("POST", f"/api/connectors/{slow_id}/test"))
    pem = f"-----BEGIN PRIVATE KEY-----\n{b64encode(markers.plant('garbage').encode()).decode()}\n"
    _openssl(certs, "genpkey", "-algorithm", "ED25519", "-out", "other.key")
    _openssl(certs, "pkey", "-in", "other.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    for name in ("other.key", "locked.key"):
        markers.know(name, "".join((certs / name).read_text().splitlines()[1:-1])[24:-4])
    for number, (content, words) in enumerate(
        (
            (pem, "they cannot be parsed"),
            ((certs / "other.key").read_text(), "do not belong together"),
            ((certs / "locked.key").read_text(), "is encrypted"),
        )
    ):
        (tmp_path / "server.key").write_text(f"{content}\n{number}")
        await logged(words)
    (tmp_path / "keys.toml").write_text(f'[keys.x]\ndigest = "{markers.plant("broken keys")}')
    await logged("not a TOML file")
    private = {"kty": "oct", "kid": "one", "k": markers.plant("symmetric"), "d": markers.plant("private")}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [private]}))
    await logged("contains a private key")
    (tmp_path / "jwks.json").write_text(json.dumps(private)[:-1])
    await logged("not JSON")
    await _read_all(server)
    for path in (tmp_path / "data").glob(f"{FILE_NAME}*"):
        path.rename(tmp_path / path.name)
    (tmp_path / "data" / FILE_NAME).write_text(f"no database {markers.plant('not a database')}" * 1000)
    for path in ("/api/runs", "/api/connectors", "/console/overview", "/console/connectors"):
        assert (await server.ask("GET", path)).status_code == 503, path
    await server.call(CREATE, b"", metadata=bearer(server.tokens["valid"]))
    (tmp_path / "data" / FILE_NAME).unlink()
    server.process.send_signal(signal.SIGTERM)
    with suppress(httpx.HTTPError):
        await stalled
    assert await asyncio.to_thread(server.process.wait) == 0


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
