"""Every route of the web port and every state of credentials: which refusal, what is logged, what is counted."""

import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from starlette.routing import Route

from evald_server.auth.keys import new_key, revoke_key
from evald_server.auth.principal import Role
from evald_server.auth.roles import METHODS
from evald_server.http.api.catalog import LIST
from evald_server.http.api.routes import ROUTES
from evald_server.http.console.routes import PAGES

from ..auth.issuer import Issuer
from ..auth.keyring import bearer, guarded, make_key
from ..rpc.live import Live
from .exchange import JSON, Exchange, connected, head, receive, send
from .test_bridge import GRPC_ONLY, OVER_HTTP, web

# Whoever comes gets the same answer.
OPEN = {
    "GET /",
    "GET /console",
    "GET /console/",
    "GET /console/sign-in",
    "POST /console/sign-in",
    "POST /console/sign-out",
    "GET /console/static/{digest}/{name}",
    "GET /console/{path:path}",
}

# A browser cannot read the status of an event stream: it begins, and its first event says so.
EVENTS = "GET /console/runs/{run_id}/events"

FORM = {"content-type": "application/x-www-form-urlencoded"}


class WebRoute(NamedTuple):
    """A method of a path. calls: the method of gRPC whose roles it asks for; "" for none."""

    method: str
    template: str
    calls: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def path(self) -> str:
        known = {"projectId": "default", "index": "0"}
        return re.sub(r"\{(\w+)[^}]*\}", lambda part: known.get(part[1], "x"), self.template)

    @property
    def is_page(self) -> bool:
        return self.template.startswith("/console")

    @property
    def roles(self) -> frozenset[Role]:
        return METHODS[f"/{self.calls}"]


def routes_of(found: Any) -> Iterator[WebRoute]:
    """What a route of the application answers. A route of a table that nobody thought of here fails."""
    assert isinstance(found, Route), found
    path = found.path
    if path == "/evald.v1.{service}/{method}":
        yield from (WebRoute("POST", f"/{name}", name) for name in OVER_HTTP)
    elif path.startswith("/api/"):
        rows = [row for row in ROUTES if f"/api{row.path}" == path]
        assert rows, path
        yield from (WebRoute(row.method, path, row.rpc_method or LIST) for row in rows)
    elif path == "/console/static/{digest}/{name}":
        yield WebRoute("GET", path, "")
    else:
        rows = [row for row in PAGES if row.path == path and row.method in (found.methods or ())]
        assert len(rows) == 1, path
        method = rows[0].method
        watches = f"{method} {path}" == EVENTS
        yield WebRoute(method, path, "evald.v1.RunService/WatchRun" if watches else rows[0].calls)


class Guarded(NamedTuple):
    """A server that takes keys and tokens, what makes both, and headers of states that take some making."""

    live: Live
    issuer: Issuer
    keys: Path
    made: dict[str, dict[str, str]]

    @property
    def routes(self) -> list[WebRoute]:
        application: Any = self.live.app._web._config.app  # type: ignore[union-attr]
        return [route for found in application.routes for route in routes_of(found)]


@pytest.fixture(name="server", scope="module")
async def _server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("matrix")
    path = folder / "keys.toml"
    issuer = Issuer(folder / "jwks.json")
    issuer.add("one")
    issuer.publish()
    gone = make_key(path, "gone", *Role)
    unknown, _ = new_key("nobody", list(Role))
    made = {
        "unknown key": unknown,
        "expired key": make_key(path, "late", *Role, expires=-1),
        "revoked key": gone,
    }
    async with guarded(path, web="127.0.0.1:0", **issuer.settings) as live:
        cookie = await _signed_in(live, gone)
        assert (await send(web(live), "GET", "/console/runs", cookie)).status == 200
        revoke_key(path, gone.split("_")[1])
        live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
        headers = {name: dict(bearer(key)) for name, key in made.items()} | {"revoked session": cookie}
        yield Guarded(live, issuer, path, headers)


class State(NamedTuple):
    """One state of credentials. headers: of a request to this route. counted: kind and outcome."""

    headers: Callable[[Guarded, WebRoute], dict[str, str]]
    status: int
    reason: str
    why: str
    counted: tuple[str, str]


def _made(name: str) -> Callable[[Guarded, WebRoute], dict[str, str]]:
    return lambda server, _: server.made[name]


def _token(**changes: Any) -> Callable[[Guarded, WebRoute], dict[str, str]]:
    return lambda server, _: dict(bearer(server.issuer.token(roles=list(Role), **changes)))


def _wrong_role(server: Guarded, route: WebRoute) -> dict[str, str]:
    roles = set(Role) - (route.roles if route.calls else set())
    return dict(bearer(server.issuer.token(roles=sorted(roles))))


INVALID = "CREDENTIALS_INVALID"
STATES = {
    "none": State(lambda *_: {}, 401, "CREDENTIALS_MISSING", "no credentials", ("none", "missing")),
    "malformed": State(lambda *_: dict(bearer("evald_x_y")), 401, INVALID, "malformed", ("key", "invalid")),
    "unknown key": State(_made("unknown key"), 401, INVALID, "unknown or forged", ("key", "invalid")),
    "expired key": State(_made("expired key"), 401, "CREDENTIALS_EXPIRED", "expired", ("key", "expired")),
    "revoked key": State(_made("revoked key"), 401, INVALID, "revoked", ("key", "invalid")),
    "revoked session": State(_made("revoked session"), 401, INVALID, "revoked", ("key", "invalid")),
    "expired token": State(
        _token(exp=int(time.time()) - 60), 401, "CREDENTIALS_EXPIRED", "expired", ("jwt", "expired")
    ),
    "token for another": State(
        _token(aud="another"), 401, INVALID, "token: invalid_claim aud", ("jwt", "invalid")
    ),
    "wrong role": State(_wrong_role, 403, "ROLE_MISSING", "wrong role", ("jwt", "role")),
}


def _counts(server: Guarded) -> Counter[tuple[str, str]]:
    (family,) = server.live.app.telemetry.access.checks.collect()  # a whole scrape for each route takes long
    checks = [one for one in family.samples if one.name.endswith("_total")]
    return Counter({(one.labels["kind"], one.labels["outcome"]): int(one.value) for one in checks})


async def _unsent(server: Guarded, route: WebRoute, headers: dict[str, str]) -> Exchange:
    """The answer to a request whose body, if it may have one, never comes: who reads it waits for 30 s."""
    has_body = route.method in ("POST", "PUT")
    kind = (FORM if route.is_page else JSON) | {"content-length": "9"} if has_body else {}
    async with connected(web(server.live)) as (reader, writer):
        writer.write(head(route.method, route.path, {"host": "localhost", **kind, **headers}))
        return await receive(reader, route.method)


@pytest.mark.parametrize("state", STATES)
async def test_no_route_is_open_to_who_may_not_call_it(
    state: str, server: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cell: status, reason, an unread body, a line of the audit log and a counter."""
    wanted = STATES[state]
    audit = server.live.app._gate._audit
    tokens: Any = server.live.app._gate._authenticator.tokens  # type: ignore[union-attr]
    for route in server.routes:
        if route.name in OPEN:
            continue
        audit._lines.clear()
        tokens._failures._hosts.clear()
        caplog.clear()
        before = _counts(server)
        with caplog.at_level(logging.INFO, "evald.audit"):
            answer = await _unsent(server, route, wanted.headers(server, route))
        _check(route, wanted, answer)
        lines: list[Any] = [record for record in caplog.records if record.name == "evald.audit"]
        assert [(line.outcome, line.method, line.reason, line.why) for line in lines] == [
            ("refused", f"/{route.calls}", wanted.reason, wanted.why)
        ], route.name
        assert _counts(server) - before == {wanted.counted: 1}, route.name


def _check(route: WebRoute, wanted: State, answer: Exchange) -> None:
    if route.name == EVENTS:
        assert (answer.status, b"event: failed" in answer.body) == (200, True)
        assert b'"final":true' in answer.body
    elif not route.is_page:
        assert (answer.status, answer.json["details"][0]["reason"]) == (wanted.status, wanted.reason), route
        assert ("www-authenticate" in answer.headers) == (wanted.status == 401)
    elif wanted.status == 401 and route.method == "GET":
        following = quote(route.path, safe="")
        assert (answer.status, answer.headers["location"]) == (303, f"/console/sign-in?next={following}")
    else:
        assert answer.status == wanted.status, route.name
        title = {401: b"Not signed in", 403: b"Not allowed"}[wanted.status]
        assert b"<h1>" + title in answer.body, route.name


async def test_what_is_open_answers_everybody_alike(server: Guarded) -> None:
    found = [route for route in server.routes if route.name in OPEN]
    assert {route.name for route in found} == OPEN
    for route in found:
        answers = set()
        for state in STATES.values():
            answer = await send(
                web(server.live), route.method, route.path, FORM | state.headers(server, route)
            )
            answers.add(answer.status)
        assert len(answers) == 1, route.name
        assert answers.isdisjoint((401, 403)) or route.name == "POST /console/sign-in"


async def test_every_route_is_open_to_each_role_of_its_row(server: Guarded) -> None:
    """The positive controls: what is there to be complained of is something else. Keys, tokens and sessions take
    turns."""
    headers: dict[Role, Iterator[dict[str, str]]] = {}
    for role in Role:
        key = make_key(server.keys, f"a-{role}", role)
        server.live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
        token = server.issuer.token(roles=[role])
        sessions = [await _signed_in(server.live, one) for one in (key, token)]
        headers[role] = cycle([dict(bearer(key)), dict(bearer(token)), *sessions])
    for route in server.routes:
        for role in route.roles if route.calls else ():
            status = await _status(server, route, next(headers[role]))
            assert status not in (401, 403, 405), (route.name, role)
            assert status != 303 or route.method == "POST", (route.name, role)


async def test_every_route_that_is_got_answers_to_head(server: Guarded) -> None:
    key = bearer(make_key(server.keys, "headless", *Role))
    server.live.app._gate._authenticator.keys.reload()  # type: ignore[union-attr]
    found = [route for route in server.routes if route.method == "GET"]
    assert {EVENTS, "GET /api/runs/{id}/events", "GET /console/scenarios/export"} <= {
        one.name for one in found
    }
    for route in found:
        for headers in ({}, dict(key)):
            whole = await send(web(server.live), "GET", route.path, headers)
            bare = await send(web(server.live), "HEAD", route.path, headers)
            assert (bare.status, bare.body) == (whole.status, b""), route.name
            assert bare.headers.get("content-type") == whole.headers.get("content-type"), route.name
            assert bare.headers.get("location") == whole.headers.get("location"), route.name


async def test_pages_for_everybody_offer_to_sign_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ada", Role.VIEWER)
    async with guarded(path, web="127.0.0.1:0", auth_anonymous_roles=["caller"]) as live:
        page = await send(web(live), "GET", "/console/runs", {})
        assert page.status == 200
        assert b'<a href="/console/sign-in">Sign in</a>' in page.body
        assert b"Sign out" not in page.body
        for answer in (
            await send(web(live), "GET", "/console/remotes", {}),
            await send(web(live), "GET", "/console/runs", dict(bearer(key[:-1]))),
        ):
            assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/console/sign-in")
        assert (await send(web(live), "GET", "/api/remotes", {})).status == 403
        cookie = await _signed_in(live, key)
        assert b"Sign out" in (await send(web(live), "GET", "/console/remotes", cookie)).body


async def _signed_in(live: Live, key: str) -> dict[str, str]:
    """The cookie of a session."""
    answer = await send(web(live), "POST", "/console/sign-in", FORM, f"key={quote(key)}".encode())
    assert answer.status == 303
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def _status(server: Guarded, route: WebRoute, headers: dict[str, str]) -> int:
    """The status of an answer, which may go on for ever."""
    body = b"" if route.method not in ("POST", "PUT") else b"do=show" if route.is_page else b"{}"
    kind = FORM if route.is_page else JSON
    sent = {"host": "localhost", "content-length": str(len(body)), **kind, **headers}
    async with connected(web(server.live)) as (reader, writer):
        writer.write(head(route.method, route.path, sent) + body)
        return int((await reader.readline()).split()[1])


def test_every_route_is_in_the_matrix(server: Guarded) -> None:
    found = server.routes
    names = [route.name for route in found]
    assert len(set(names)) == len(names)
    assert {name.removeprefix("POST /") for name in names} >= set(OVER_HTTP)
    assert {f"{row.method} /api{row.path}" for row in ROUTES} <= set(names)
    assert {f"{row.method} {row.path}" for row in PAGES} <= set(names)
    assert {route.name for route in found if not route.calls} == OPEN
    assert len(STATES) >= 8


@pytest.mark.parametrize("method", GRPC_ONLY)
async def test_what_is_for_grpc_alone_says_so(server: Guarded, method: str) -> None:
    assert (await send(web(server.live), "POST", f"/{method}", JSON, b"{}")).status == 501
