"""Who may reach the web port: hosts, origins, media types, credentials."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import grpc
import pytest
from starlette.requests import Request
from starlette.responses import Response

from evald_server.auth.authenticator import Authenticator
from evald_server.auth.keys import KeyFile, revoke_key
from evald_server.auth.principal import Role
from evald_server.http.access import COOKIE, WebAccess
from evald_server.http.calls import CallFailed, Calls
from evald_server.http.guards import ADMITTED, HEADERS

from ..auth.keyring import guarded, make_key
from ..rpc.live import Live, serving, until
from .exchange import JSON, Exchange, post, send
from .test_bridge import METHODS, web

TYPE = "CatalogService/GetEvaluatorType"
CALL = f"/evald.v1.{TYPE}"
FRIEND = "https://friend.example"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(name="live", scope="module")
async def _live() -> AsyncIterator[Live]:
    async with serving(web="127.0.0.1:0", web_hosts="evald.test", web_origins=FRIEND) as live:
        yield live


class Row(NamedTuple):
    """A request, and the status of its answer. HOST in a header stands for the server's own address."""

    name: str
    status: int
    headers: dict[str, str]
    method: str = "POST"
    path: str = CALL


ROWS: Final = [
    # Hosts
    Row("its own address", 200, {}),
    Row("localhost", 200, {"host": "localhost"}),
    Row("localhost and a port", 200, {"host": "LocalHost:1"}),
    Row("localhost, fully qualified", 200, {"host": "localhost.:80"}),
    Row("another address", 200, {"host": "192.0.2.1:50080"}),
    Row("an IPv6 address", 200, {"host": "[::1]"}),
    Row("an IPv6 address and a port", 200, {"host": "[2001:db8::1]:8080"}),
    Row("a host in web_hosts", 200, {"host": "EVALD.test:443"}),
    Row("a foreign name", 421, {"host": "evil.example"}),
    Row("a foreign name with the port", 421, {"host": "evil.example:50080"}),
    Row("a name that begins like an address", 421, {"host": "127.0.0.1.evil.example"}),
    Row("a name below localhost", 421, {"host": "evil.localhost"}),
    Row("a name below one of web_hosts", 421, {"host": "evil.evald.test"}),
    Row("an address as one number", 421, {"host": "2130706433"}),
    Row("no name", 421, {"host": ""}),
    Row("a foreign name, reading", 421, {"host": "evil.example"}, "GET", "/"),
    Row("a foreign name, where there is nothing", 421, {"host": "evil.example"}, "GET", "/nothing"),
    # Origins of writes
    Row("a page of this server", 200, {"sec-fetch-site": "same-origin", "origin": "http://HOST"}),
    Row("a page of another port", 403, {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"}),
    Row("a page of another site", 403, {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}),
    Row("an address typed by hand", 403, {"sec-fetch-site": "none"}),
    Row("a value that there is not", 403, {"sec-fetch-site": "SAME-ORIGIN"}),
    Row("a page of web_origins", 200, {"sec-fetch-site": "cross-site", "origin": FRIEND}),
    Row(
        "a page of web_origins, without TLS",
        403,
        {"sec-fetch-site": "cross-site", "origin": "http://friend.example"},
    ),
    Row(
        "a page below web_origins", 403, {"sec-fetch-site": "cross-site", "origin": FRIEND + ".evil.example"}
    ),
    Row("an old browser on this server", 200, {"origin": "http://HOST"}),
    Row("an old browser on another port", 403, {"origin": "http://127.0.0.1:1"}),
    Row("an old browser on another site", 403, {"origin": "https://evil.example"}),
    Row("an old browser on web_origins", 200, {"origin": FRIEND}),
    Row("a page without an origin", 403, {"origin": "null"}),
    Row("an empty origin", 403, {"origin": ""}),
    # Reads and methods
    Row("another site, reading", 405, {"sec-fetch-site": "cross-site"}, "GET"),
    Row("a head", 405, {}, "HEAD"),
    Row("a deletion by another site", 403, {"sec-fetch-site": "cross-site"}, "DELETE"),
    Row("a deletion", 405, {}, "DELETE"),
    # Media types
    Row("JSON with its character set", 200, {"content-type": "Application/JSON; charset=utf-8"}),
    Row("a form", 415, FORM),
    Row("a form with files", 415, {"content-type": "multipart/form-data; boundary=x"}),
    Row("plain text, as forms can send it", 415, {"content-type": "text/plain"}),
    Row("a form below /api", 415, FORM, path="/api/scenarios"),
    Row("plain text below /api", 415, {"content-type": "text/plain"}, path="/api/scenarios"),
    Row("a body without a type below /api", 415, {"content-type": ""}, path="/api/scenarios"),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
async def test_a_request_is_answered_or_refused_by_host_origin_and_media_type(live: Live, row: Row) -> None:
    headers = {name: value.replace("HOST", web(live)) for name, value in row.headers.items()}
    body = b'{"type": "regex"}' if row.method != "HEAD" else b""
    if row.method == "HEAD":
        headers["content-length"] = "0"
    answer = await send(web(live), row.method, row.path, JSON | headers, body)
    assert answer.status == row.status, answer.body
    if row.status not in (200, 405):
        assert row.status == 415 or answer.json["message"]
        assert row.path == CALL or row.method == "GET" or answer.json["error"]


def test_the_table_has_40_rows() -> None:
    assert len(ROWS) >= 40
    assert len({row.name for row in ROWS}) == len(ROWS)


async def test_every_response_says_that_nothing_else_may_be_loaded(live: Live) -> None:
    for path in ("/", "/nothing", CALL):
        answer = await send(web(live), "GET", path)
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value
        assert "server" not in answer.headers


async def test_only_pages_of_web_origins_may_read_what_scripts_ask_for(live: Live) -> None:
    answer = await post(web(live), TYPE, {"type": "regex"}, {"origin": FRIEND})
    assert answer.headers["access-control-allow-origin"] == FRIEND
    asked = {
        "origin": FRIEND,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    allowed = await send(web(live), "OPTIONS", CALL, asked)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, FRIEND)
    other = await send(web(live), "OPTIONS", CALL, asked | {"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers
    async with serving(web="127.0.0.1:0") as alone:
        answer = await send(web(alone), "OPTIONS", CALL, asked)
        assert (answer.status, "access-control-allow-origin" in answer.headers) == (405, False)


class Locked(NamedTuple):
    """A server that asks for keys, its file of them, and the `Authorization` of each state."""

    live: Live
    path: Path
    states: dict[str, tuple[int, str, dict[str, str]]]


@pytest.fixture(name="locked", scope="module")
async def _locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    path = tmp_path_factory.mktemp("web") / "keys.toml"
    every = make_key(path, "ann", *Role)
    late = make_key(path, "late", *Role, expires=-1)
    revoked = make_key(path, "gone", *Role)
    revoke_key(path, revoked.split("_")[1])
    wrong = make_key(path, "scraper", Role.INGEST)
    async with guarded(path, web="127.0.0.1:0") as live:
        yield Locked(
            live,
            path,
            {
                "none": (401, "CREDENTIALS_MISSING", {}),
                "no bearer": (401, "CREDENTIALS_INVALID", {"authorization": "Basic YTpi"}),
                "forged": (401, "CREDENTIALS_INVALID", _bearer(every[:-9] + "x" + every[-8:])),
                "expired": (401, "CREDENTIALS_EXPIRED", _bearer(late)),
                "revoked": (401, "CREDENTIALS_INVALID", _bearer(revoked)),
                "a cookie of nobody": (401, "CREDENTIALS_MISSING", {"cookie": f"{COOKIE}=x"}),
                "the wrong role": (403, "ROLE_MISSING", _bearer(wrong)),
                "right": (0, "", _bearer(every)),
            },
        )


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _reason(answer: Exchange) -> tuple[int, str]:
    return answer.status, answer.json["details"][0]["reason"]


@pytest.mark.parametrize(
    "state", ["none", "no bearer", "forged", "expired", "revoked", "a cookie of nobody", "the wrong role"]
)
async def test_every_method_refuses_every_state_of_credentials_that_does_not_count(
    locked: Locked, state: str
) -> None:
    status, reason, headers = locked.states[state]
    for method, found in METHODS.items():
        if not found.client_streaming:
            answer = await send(web(locked.live), "POST", f"/{method}", JSON | headers, b"{}")
            assert _reason(answer) == (status, reason), method
            assert ("www-authenticate" in answer.headers) == (status == 401)


async def test_credentials_come_before_what_is_wrong_with_the_request(locked: Locked) -> None:
    for body in (b"{", b'{"noSuchField": 1}'):
        answer = await send(web(locked.live), "POST", CALL, JSON, body)
        assert _reason(answer) == (401, "CREDENTIALS_MISSING")


async def test_the_right_key_is_let_in(locked: Locked) -> None:
    answer = await post(web(locked.live), TYPE, {"type": "regex"}, locked.states["right"][2])
    assert answer.status == 200


class _Clock:
    """A clock that stands still unless it is moved. now: in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _request(cookie: str = "", scheme: str = "http", **headers: str) -> Request:
    found = [(name.encode(), value.encode()) for name, value in headers.items()]
    if cookie:
        found.append((b"cookie", cookie.encode()))
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": scheme,
            "path": "/",
            "query_string": b"",
            "server": ("127.0.0.1", 1),
            "client": ("::1", 7),
            "headers": found,
        }
    )


def _access(path: Path, clock: Any = None) -> WebAccess:
    return WebAccess(Authenticator(KeyFile(path), lambda *_: None), clock or _Clock())


def _sign_in(access: WebAccess, key: str, scheme: str = "http") -> str:
    """The cookie, as a browser sends it."""
    response = Response()
    access.sign_in(_request(scheme=scheme), response, key)
    return response.headers["set-cookie"].partition(";")[0]


async def test_a_browser_gets_a_cookie_for_a_key_and_loses_it_when_it_signs_out(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", Role.CALLER)
    access = _access(path)
    cookie = _sign_in(access, key)
    assert ("authorization", f"Bearer {key}") in access.caller(_request(cookie)).metadata
    principal = access.principal(_request(cookie))
    assert principal is not None
    assert principal.name == "ann"
    assert access.may(_request(cookie), "evald.v1.RunService/StartRun")
    admitted, calls = _request(cookie), Calls(cast("Any", None), 1)
    await access.admit(calls, admitted, "evald.v1.RunService/StartRun")
    assert admitted.scope[ADMITTED] == "ann", "whose bodies count together"
    assert not access.may(_request(cookie), "evald.v1.ConnectorService/CreateConnector")
    response = Response()
    access.sign_out(_request(cookie), response)
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert access.principal(_request(cookie)) is None


@pytest.mark.parametrize(
    ("scheme", "proxy", "secure"),
    [("http", "", False), ("https", "", True), ("http", "https", True), ("https", "http", True)],
)
def test_the_cookie_is_for_this_server_and_no_script(
    tmp_path: Path, scheme: str, proxy: str, secure: bool
) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", Role.CALLER)
    response = Response()
    access = _access(path)
    request = _request(scheme=scheme)
    request.scope["headers"] += [(b"x-forwarded-proto", proxy.encode())] if proxy else []
    access.sign_in(request, response, key)
    said = response.headers["set-cookie"]
    token, *attributes = said.split("; ")
    assert key not in said
    assert len(token.partition("=")[2]) == 43
    assert {one.lower() for one in attributes} == {"httponly", "samesite=strict", "path=/"} | (
        {"secure"} if secure else set()
    )
    assert token.partition("=")[2] not in repr(vars(access))


def test_a_session_ends_after_12_hours_without_a_request(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.toml", _Clock()
    key = make_key(path, "ann", Role.CALLER)
    access = _access(path, clock)
    cookie = _sign_in(access, key)
    for _ in range(3):
        clock.now += 11 * 3600
        assert access.principal(_request(cookie))
    clock.now += 12 * 3600
    assert access.principal(_request(cookie)) is None


def test_who_signs_in_again_and_again_signs_out_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    ann, bob = (make_key(path, name, Role.CALLER) for name in ("ann", "bob"))
    access = _access(path)
    cookie = _sign_in(access, ann)
    first, *_, last = [_sign_in(access, bob) for _ in range(101)]
    assert access.principal(_request(first)) is None
    assert access.principal(_request(last))
    assert access.principal(_request(cookie))
    assert len(access._sessions) == 101


def test_sessions_are_limited_and_idle_ones_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evald_server.http.access._MAX_SESSIONS", 3)
    path, clock = tmp_path / "keys.toml", _Clock()
    keys = [make_key(path, name, Role.CALLER) for name in ("ann", "bob", "cid", "dan")]
    access, cookies = _access(path, clock), list[str]()
    for key in keys:
        clock.now += 1
        cookies.append(_sign_in(access, key))
        assert access.principal(_request(cookies[0])), "it is used again and again"
        assert access.principal(_request(cookies[-1]))
    assert [bool(access.principal(_request(cookie))) for cookie in cookies] == [True, False, True, True]
    clock.now += 13 * 3600
    _sign_in(access, keys[0])
    assert len(access._sessions) == 1


def test_an_explicit_key_comes_before_the_cookie(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    keys = [make_key(path, name, Role.CALLER) for name in ("ann", "bob")]
    access = _access(path)
    cookie = _sign_in(access, keys[0])
    principal = access.principal(_request(cookie, authorization=f"Bearer {keys[1]}"))
    assert principal is not None
    assert principal.name == "bob"


@pytest.mark.parametrize("key", ["", "secret", "evald_" + "a" * 60])
def test_what_is_no_key_gets_no_cookie(tmp_path: Path, key: str) -> None:
    path = tmp_path / "keys.toml"
    make_key(path, "ann", Role.CALLER)
    with pytest.raises(CallFailed, match="credentials are not valid") as failed:
        _sign_in(_access(path), key)
    assert not key or key not in failed.value.message


def test_an_address_that_fails_too_often_has_to_wait_and_no_other(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.toml", _Clock()
    key = make_key(path, "ann", Role.CALLER)
    access = _access(path, clock)
    for _ in range(10):
        with pytest.raises(CallFailed, match="not valid"):
            _sign_in(access, "evald_x_y")
    with pytest.raises(CallFailed, match="10 failed sign-ins have come from this address") as limited:
        _sign_in(access, key)
    assert limited.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    other = _request()
    other.scope["client"] = ("192.0.2.1", 7)
    access.sign_in(other, Response(), key)
    clock.now += 1
    assert _sign_in(access, key)


def test_a_session_ends_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", Role.CALLER)
    keys = KeyFile(path)
    access = WebAccess(Authenticator(keys, lambda *_: None))
    cookie = _sign_in(access, key)
    assert access.principal(_request(cookie))
    revoke_key(path, key.split("_")[1])
    keys.reload()
    assert access.principal(_request(cookie)) is None


async def test_every_key_is_read_again_while_its_session_lasts(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", *Role)
    async with guarded(path, web="127.0.0.1:0") as live:
        assert (await post(web(live), TYPE, {"type": "regex"}, _bearer(key))).status == 200
        revoke_key(path, key.split("_")[1])

        async def refused() -> bool:
            return (await post(web(live), TYPE, {"type": "regex"}, _bearer(key))).status == 401

        await until(refused)


def test_addresses_of_callers_are_written_as_grpc_writes_them() -> None:
    assert WebAccess().caller(_request()).peer == "ipv6:[::1]:7"
