"""Pages on which people write: scenarios, personas, connectors, a conversation to try, a key to sign in with."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from evald import ASSERTION, EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import Result
from evald_server.auth.principal import Role
from evald_server.cli.parser import parse
from evald_server.http.access import COOKIE
from evald_server.http.console.rendering import templates
from evald_server.http.guards import HEADERS

from ..auth.keyring import make_key
from ..judge.scripted import criteria
from ..judge.wire import answer, completion, wire
from ..suites.reports.hostile import HOSTILE
from .api import api
from .exchange import Exchange
from .forms import posted
from .test_console_read import read

NEW = {kind: f"/console/{kind}/new" for kind in ("scenarios", "personas", "connectors")}
PAGES = (
    "/console/scenarios",
    "/console/scenarios/import",
    *NEW.values(),
    "/console/personas",
    "/console/connectors",
    "/console/connectors/new?type=http",
    "/console/evaluators",
    "/console/evaluators/regex",
    "/console/evaluators/llm-judge",
    "/console/remotes",
    "/console/judge",
    "/console/try",
    "/console/try?type=regex",
)
REGEX = {"type": "regex", "config": {"pattern": "BK-[0-9]+"}}
TALK = "user: I have to move it.\nassistant: Done: BK-12345"


class Broken(Evaluator, type="broken", kind=ASSERTION):
    """Breaks whenever it is asked."""

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        raise RuntimeError("secret of the inside")


class Browser:
    """Reads forms and sends them, as a browser without script does."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def page(self, path: str, status: int = 200) -> str:
        """The text of a page."""
        found = await self.client.get(path)
        assert found.status_code == status, found.text[:2000]
        return found.text

    async def press(
        self, path: str, do: str, changes: Mapping[str, str] | None = None, page: str | None = None
    ) -> httpx.Response:
        """What comes of a button. changes: what is typed before. page: the one that is shown, without it the one of the
        path."""
        fields = posted(await self.page(path) if page is None else page) | dict(changes or {})
        return await self.client.post(path.partition("?")[0], data=fields | {"do": do})

    async def create(self, kind: str, fields: Mapping[str, str], path: str = "") -> str:
        """The address of something that was written."""
        saved = await self.press(path or NEW[kind], "save", fields)
        assert saved.status_code == 303, wrong(saved.text)
        address = saved.headers["location"]
        assert address.endswith("?saved=1")
        return str(address.removesuffix("?saved=1"))

    async def exported(self) -> list[dict[str, Any]]:
        """All scenarios, without what differs between two servers."""
        lines = (await self.page("/console/scenarios/export")).splitlines()
        found = [json.loads(line) for line in lines]
        return [
            {key: one[key] for key in one if key not in ("id", "createdAt", "updatedAt")} for one in found
        ]


@asynccontextmanager
async def console(*evaluators: type[Evaluator], **settings: Any) -> AsyncIterator[Browser]:
    async with api(*evaluators, **settings) as client:
        yield Browser(client)


@pytest.fixture(name="browser")
async def _browser() -> AsyncIterator[Browser]:
    async with console(Broken) as found:
        yield found


def wrong(page: str) -> list[str]:
    """What a page says is wrong: at fields, and above them."""
    found = re.findall(r'<p class="wrong"[^>]*>(.*?)</p>|<li dir="auto">(.*?)</li>', page, re.DOTALL)
    return [unescape(re.sub("<[^>]+>", "", one or other)).removeprefix("! ") for one, other in found]


def at_field(page: str, name: str) -> str:
    """What stands at a field. "" when nothing does."""
    assert re.search(rf'name="{re.escape(name)}"[^>]* aria-invalid="true" aria-describedby="e:', page), (
        name,
        wrong(page),
    )
    found = re.search(rf'id="e:{re.escape(name)}:1"[^>]*>(.*?)</p>', page, re.DOTALL)
    return unescape(re.sub("<[^>]+>", "", found[1])) if found else ""


async def with_data(browser: Browser) -> dict[str, str]:
    """One of everything; the addresses by kind."""
    persona = await browser.create("personas", {"/name": "Maria", "/systemPrompt": "in a hurry"})
    made = {"personas": persona, "connectors": await replay(browser, "Done: BK-12345")}
    page = (await browser.press(NEW["scenarios"], "add:/evaluators", {"add-type": "regex"})).text
    fields = {
        "/name": "Booking flow",
        "/instructions": "Wants to move a booking.",
        "/evaluators/0/config/pattern": "BK-[0-9]+",
        f"persona:{persona.rpartition('/')[2]}": "1",
    }
    saved = await browser.press(NEW["scenarios"], "save", fields, page)
    made["scenarios"] = saved.headers["location"].removesuffix("?saved=1")
    return made


async def replay(browser: Browser, *answers: str) -> str:
    """The address of a connector that plays answers."""
    said = [
        {"role": role, "content": text}
        for one in answers
        for role, text in (("user", "go on"), ("assistant", one))
    ]
    page = await browser.page("/console/connectors/new?type=replay")
    boxed = (await browser.press(NEW["connectors"], "show", {"/type": "replay"}, page)).text
    fields = {"/name": "recorded", "/type": "replay"}
    name = "json:/config/messages" if "json:/config/messages" in posted(boxed) else "json:/config"
    value: Any = said if name.endswith("messages") else {"messages": said}
    saved = await browser.press(NEW["connectors"], "save", {**fields, name: json.dumps(value)}, boxed)
    assert saved.status_code == 303, wrong(saved.text)
    return str(saved.headers["location"].removesuffix("?saved=1"))


async def test_every_page_has_its_headers_and_one_heading(browser: Browser) -> None:
    paths = list(PAGES)
    for data in (False, True):
        if data:
            paths += (await with_data(browser)).values()
        for path in paths:
            found = await browser.client.get(path)
            assert found.status_code == 200, path
            assert {key: found.headers[key] for key in HEADERS} == dict(HEADERS), path
            elements = read(Exchange(200, {}, found.content))
            assert elements.seen.count("h1") == elements.seen.count("main") == 1, path
            assert len(found.content) <= 100_000, path


async def test_style_sheets_of_a_form_stay_small(browser: Browser) -> None:
    page = await browser.page(NEW["scenarios"])
    sheets = set(re.findall(r'"(/console/static/[^"]+\.css)"', page))
    assert len(sheets) == 2
    assert sum([len((await browser.client.get(sheet)).content) for sheet in sheets]) <= 20_000


async def test_lists_say_how_to_begin_and_then_what_is_there(browser: Browser) -> None:
    for kind in NEW:
        assert f"No {kind} yet" in await browser.page(f"/console/{kind}")
    made = await with_data(browser)
    for kind, name in {"scenarios": "Booking flow", "personas": "Maria", "connectors": "recorded"}.items():
        page = await browser.page(f"/console/{kind}")
        assert re.search(rf'href="{made[kind]}"[^>]*>{name}<', page)


@pytest.mark.thorough
async def test_a_form_with_more_personas_than_it_lists_is_small_and_keeps_those_that_were_chosen(
    browser: Browser,
) -> None:
    made = await with_data(browser)
    for number in range(1000):
        stored = await browser.client.post("/api/personas", json={"name": f"Persona {number}"})
        assert stored.status_code == 201
    page = await browser.page(made["scenarios"])
    assert len(page) < 100_000
    before = await browser.exported()
    assert before[0]["personaIds"] == [made["personas"].rpartition("/")[2]]
    assert (await browser.press(made["scenarios"], "save", page=page)).status_code == 303
    assert await browser.exported() == before


async def test_every_persona_can_be_found_by_its_name(browser: Browser) -> None:
    made = await with_data(browser)
    maria = made["personas"].rpartition("/")[2]
    ids = {}
    for number in range(300):
        stored = await browser.client.post(
            "/api/personas", json={"name": f"Persona {number:03} 100% _{number}_"}
        )
        ids[number] = stored.json()["id"]
    page = await browser.page(made["scenarios"])
    assert f"persona:{ids[299]}" not in page
    assert "Not all matches are listed" in page
    found = await browser.press(made["scenarios"], "find", {"find-persona": "persona 299"}, page)
    assert found.status_code == 200
    assert re.findall(r'name="persona:([^"]+)"', found.text) == [maria, ids[299]], "chosen ones stay"
    assert f'<option value="{ids[299]}"' in found.text, "one to speak in a run, too"
    chosen = {f"persona:{ids[299]}": "1", "find-persona": "%"}
    again = await browser.press(made["scenarios"], "find", chosen, found.text)
    assert len(re.findall(r'name="persona:', again.text)) == 252
    for text, count in (("_7_", 3), ("nobody", 2), ("_", 252)):
        again = await browser.press(made["scenarios"], "find", {"find-persona": text}, again.text)
        assert len(re.findall(r'name="persona:', again.text)) == count, text
    assert (await browser.press(made["scenarios"], "save", page=again.text)).status_code == 303
    assert set((await browser.exported())[0]["personaIds"]) == {maria, ids[299]}


async def test_the_second_who_saves_the_same_is_told_and_keeps_what_was_typed(browser: Browser) -> None:
    made = await with_data(browser)
    for kind in ("scenarios", "connectors", "personas"):
        path = made[kind]
        opened = [await browser.page(path) for _ in range(2)]
        first = await browser.press(path, "save", {"/name": "first"}, opened[0])
        assert first.status_code == 303, wrong(first.text)
        told = await browser.press(path, "save", {"/name": "second"}, opened[1])
        assert told.status_code == 412
        assert f"Not saved: the stored {kind[:-1]} was changed on <time" in told.text
        assert f'href="{path}" target="_blank">Open the stored one</a>' in told.text
        assert posted(told.text)["/name"] == "second"
        assert 'value="first"' in await browser.page(path)
        (anyway,) = re.findall(r'value="(save:[^"]+)"[^>]*>Save anyway<', told.text)
        # A third one, whose change nobody was told of.
        third = await browser.press(path, "save", {"/name": "third"})
        assert third.status_code == 303
        told = await browser.press(path, anyway, {}, told.text)
        assert (told.status_code, posted(told.text)["/name"]) == (412, "second")
        (anyway,) = re.findall(r'value="(save:[^"]+)"', told.text)
        assert (await browser.press(path, anyway, {}, told.text)).status_code == 303
        page = await browser.page(path)
        assert 'value="second"' in page
        told = await browser.press(path, "delete", {}, opened[0])
        assert (told.status_code, "Not deleted" in told.text) == (412, True)
        (anyway,) = re.findall(r'value="(delete:[^"]+)"[^>]*>Delete anyway<', told.text)
        assert (await browser.press(path, anyway, {}, told.text)).status_code == 303
        gone = await browser.press(path, "save", {"/name": "late"}, page)
        assert (gone.status_code, "was deleted" in gone.text) == (404, True)
        kept = await browser.press(NEW[kind], "save", {}, gone.text)
        assert kept.status_code == 303, wrong(kept.text)
        assert 'value="late"' in await browser.page(kept.headers["location"])


async def test_a_new_connector_has_the_settings_of_the_type_that_is_shown(browser: Browser) -> None:
    page = await browser.page("/console/connectors/new")
    shown = re.findall(r'<option value="([^"]*)"', page)[0]
    assert f"Settings of {shown}</h2>" in page
    assert 'name="/config/' in page


async def test_a_form_that_is_sent_twice_does_what_it_says_once(browser: Browser) -> None:
    made = await with_data(browser)
    page = await browser.page("/console/connectors/new?type=http")
    page = (await browser.press(NEW["connectors"], "add:/headers", {}, page)).text
    fields = {"/name": "twice", "/baseUrl": "http://127.0.0.1:9"}
    fields |= {"/headers/0/name": "X-Team", "/headers/0/value": "blue"}
    new = {
        "personas": (await browser.page(NEW["personas"]), {"/name": "twice", "/description": "a"}),
        "connectors": (page, fields),
        "scenarios": ((await browser.press(made["scenarios"], "up:/evaluators/0")).text, {"/name": "twice"}),
    }
    for kind, (form, typed) in new.items():
        path = NEW[kind]
        both = await asyncio.gather(*(browser.press(path, "save", typed, form) for _ in range(2)))
        both.append(await browser.press(path, "save", typed, form))
        assert [one.status_code for one in both] == [303] * 3, [wrong(one.text) for one in both]
        (address,) = {one.headers["location"].removesuffix("?saved=1") for one in both}
        assert len((await browser.client.get(f"/api/{kind}")).json()) == 2
        # It went back, and typed something else: what is there is not lost in silence.
        told = await browser.press(path, "save", {**typed, "/name": "other"}, form)
        assert told.status_code == 412
        assert 'value="twice"' in await browser.page(address)
        assert f'href="{address}" target="_blank">Open the stored one</a>' in told.text
        assert f'class="edit" action="{address}"' in told.text
        again = await browser.press(address, "save", {"/headers/0/value": "blue"}, told.text)
        assert again.status_code == 412, "still, until somebody says so"
        (anyway,) = re.findall(r'value="(save:[^"]+)"', told.text)
        # Values of headers do not come back.
        once_more = {**typed, "/name": "other"} if kind == "connectors" else {}
        assert (await browser.press(address, anyway, once_more, told.text)).status_code == 303
        stored = await browser.page(address)
        both = [await browser.press(address, "save", {"/name": "again"}, stored) for _ in range(2)]
        assert [one.headers.get("location") for one in both] == [f"{address}?saved=1"] * 2
        stored = await browser.page(address)
        both = [await browser.press(address, "delete", {}, stored) for _ in range(2)]
        assert [one.headers.get("location") for one in both] == [f"/console/{kind}?deleted=1"] * 2


async def test_a_run_is_started_once_by_a_form_and_again_by_another(browser: Browser) -> None:
    made = await with_data(browser)
    path = made["scenarios"]

    async def started(page: str, **changes: str) -> str:
        sent = await browser.press(path, "run", changes, page)
        assert sent.status_code == 303, wrong(sent.text)
        return str(sent.headers["location"])

    page = await browser.page(path)
    first = await started(page)
    assert await asyncio.gather(*(started(page) for _ in range(3))) == [first] * 3
    other = await started(page, persona="")
    changed = await started(page, **{"/goal": "A number."})
    fresh = await started(await browser.page(path))
    assert len({first, other, changed, fresh}) == 4
    new = await browser.page(NEW["scenarios"])
    new = (
        await browser.press(NEW["scenarios"], "add:/evaluators", {"add-type": "response-length"}, new)
    ).text
    both = [await browser.press(NEW["scenarios"], "run", {"/name": "New"}, new) for _ in range(2)]
    assert len({one.headers.get("location") for one in both}) == 1
    assert both[0].status_code == 303
    assert len(await browser.exported()) == 2


async def test_what_is_done_with_a_run_is_done_once(browser: Browser) -> None:
    scenario = {"name": "a", "messages": [{"role": "user", "content": "Hi"}], "evaluators": [REGEX]}
    connector = {"name": "away", "type": "http", "baseUrl": "http://127.0.0.1:9"}
    ids = {
        f"{kind}Id": (await browser.client.post(f"/api/{kind}s", json=data)).json()["id"]
        for kind, data in (("scenario", scenario), ("connector", connector))
    }
    run = await browser.client.post("/api/runs/playground", json=ids)
    location = f"/console/runs/{run.json()['id']}"
    page = await ended(browser, location)
    assert ">Retry<" in page

    async def press(action: str) -> httpx.Response:
        return await browser.client.post(f"{location}/{action}", data={"attempt": posted(page)["attempt"]})

    both = [await press("retry") for _ in range(2)]
    await ended(browser, location)
    both.append(await press("retry"))
    assert [one.headers.get("location") for one in both] == [location] * 3
    assert (await browser.client.get(f"/api{location.removeprefix('/console')}")).json()["status"] == "error"
    assert "attempt 2" in await browser.page(location), "not a third one"
    for action in ("cancel", "resume"):  # on a page from before
        done = await browser.client.post(f"{location}/{action}")
        assert (done.status_code, done.headers.get("location")) == (303, location)
    both = [await browser.client.post(f"{location}/delete") for _ in range(2)]
    assert [one.headers.get("location") for one in both] == ["/console/runs"] * 2
    for gone in ("/console/suites/none/delete", "/console/remotes"):
        sent = await browser.client.post(gone, data={"instance": "none"})
        assert sent.status_code == 303, gone


async def test_literal_secrets_do_not_come_back_after_an_error(browser: Browser) -> None:
    page = await browser.page("/console/connectors/new?type=http")
    for _ in range(3):
        page = (await browser.press(NEW["connectors"], "add:/headers", {}, page)).text
    typed = {"/name": "", "/baseUrl": "http://me:sesame-1@127.0.0.1:9/"}
    for index, (name, value) in enumerate(
        (("Authorization", "Bearer sesame-2"), ("X-Team", "sesame-3"), ("X-Key", "${EVALD_SECRET_AGENT}"))
    ):
        typed |= {f"/headers/{index}/name": name, f"/headers/{index}/value": value}
    refused = await browser.press(NEW["connectors"], "save", typed, page)
    assert refused.status_code == 400
    assert "sesame" not in refused.text
    assert "Values that may be secrets are not shown again" in refused.text
    shown = posted(refused.text)
    assert [shown[f"/headers/{index}/value"] for index in range(3)] == ["", "", "${EVALD_SECRET_AGENT}"]
    assert shown["/headers/1/name"] == "X-Team"
    named = {"/name": "agent", "/baseUrl": "http://127.0.0.1:9", "/headers/0/name": "X-Other"}
    again = await browser.press(NEW["connectors"], "save", named, refused.text)
    assert again.status_code == 400, "nothing is stored in place of what was left out"
    assert any("X-Team: missing value" in said for said in wrong(again.text))
    boxed = (await browser.press(NEW["connectors"], "json:/headers", typed, page)).text
    refused = await browser.press(NEW["connectors"], "save", {"json:/headers": '[{"sesame": '}, boxed)
    assert (refused.status_code, "sesame" in refused.text) == (400, False)


async def test_what_is_saved_is_in_the_form_again(browser: Browser) -> None:
    made = await with_data(browser)
    fields = posted(await browser.page(made["scenarios"]))
    assert fields["/instructions"] == "Wants to move a booking."
    assert fields["/evaluators/0/config/pattern"] == "BK-[0-9]+"
    assert fields[f"persona:{made['personas'].rpartition('/')[2]}"] == "1"
    before = await browser.exported()
    saved = await browser.press(made["scenarios"], "save")
    assert saved.headers["location"] == f"{made['scenarios']}?saved=1"
    assert await browser.exported() == before, "saving what is shown changes nothing"


@pytest.mark.parametrize(
    ("kind", "changes", "field", "said"),
    [
        ("scenarios", {"/name": ""}, "/name", "required"),
        ("scenarios", {"/name": "a", "/maxMessages": "-3"}, "/maxMessages", "-3"),
        ("scenarios", {"/name": "a", "/maxMessages": "many"}, "/maxMessages", "many"),
        ("personas", {"/name": ""}, "/name", ""),
        ("personas", {"/name": "a", "json:/script": "[1"}, "json:/script", "not valid JSON"),
        ("connectors", {"/name": "a", "/type": "http", "/baseUrl": ""}, "/baseUrl", "http://HOST"),
    ],
)
async def test_what_is_refused_says_so_at_its_field_and_keeps_what_was_typed(
    browser: Browser, kind: str, changes: dict[str, str], field: str, said: str
) -> None:
    path = NEW[kind] + ("?type=http" if kind == "connectors" else "")
    page = await browser.page(path)
    if field.startswith("json:"):
        boxed = field.removeprefix("json:")
        page = (await browser.press(path, f"json:{boxed}", {}, page)).text
    refused = await browser.press(path, "save", changes, page)
    assert refused.status_code == 400
    assert said in at_field(refused.text, field), wrong(refused.text)
    again = posted(refused.text)
    assert {name: again[name] for name in changes} == changes
    assert "None" not in str(wrong(refused.text))


async def test_a_config_is_refused_at_its_own_field(browser: Browser) -> None:
    page = (await browser.press(NEW["scenarios"], "add:/evaluators", {"add-type": "latency-budget"})).text
    assert "Not saved yet" in page
    page = (await browser.press(NEW["scenarios"], "add:/evaluators", {"add-type": "regex"}, page)).text
    changes = {
        "/name": "a",
        "/evaluators/0/config/maxMs": "-3",
        "/evaluators/1/config/pattern": "(",
        "/evaluators/1/threshold": "2",
    }
    refused = await browser.press(NEW["scenarios"], "save", changes, page)
    assert refused.status_code == 400
    assert "-3" in at_field(refused.text, "/evaluators/0/config/maxMs")
    assert at_field(refused.text, "/evaluators/1/config/pattern")
    again = posted(refused.text)
    assert {name: again[name] for name in changes} == changes
    assert not await browser.exported()


async def test_a_box_with_what_is_no_json_comes_back_as_it_was(browser: Browser) -> None:
    page = (await browser.press(NEW["scenarios"], "add:/evaluators", {"add-type": "regex"})).text
    page = (await browser.press(NEW["scenarios"], "json:/evaluators/0/config", {}, page)).text
    broken = {"/name": "a", "json:/evaluators/0/config": '{"pattern": "<b>'}
    refused = await browser.press(NEW["scenarios"], "save", broken, page)
    assert refused.status_code == 400
    assert "not valid JSON" in at_field(refused.text, "json:/evaluators/0/config")
    assert posted(refused.text)["json:/evaluators/0/config"] == '{"pattern": "<b>'
    mended = {"json:/evaluators/0/config": '{"pattern": "BK"}'}
    saved = await browser.press(NEW["scenarios"], "save", mended, refused.text)
    assert saved.status_code == 303
    assert (await browser.exported())[0]["evaluators"] == [{"type": "regex", "config": {"pattern": "BK"}}]


async def test_evaluators_are_added_moved_removed_and_shown_as_json(browser: Browser) -> None:
    path, page = NEW["scenarios"], await browser.page(NEW["scenarios"])

    async def press(do: str, **changes: str) -> dict[str, str]:
        nonlocal page
        answer = await browser.press(path, do, {key: changes[key] for key in changes}, page)
        assert answer.status_code == 200
        page = answer.text
        return posted(page)

    for name in ("regex", "contains", "regex"):
        found = await press("add:/evaluators", **{"add-type": name, "/name": "kept"})
    assert [found[f"/evaluators/{index}/type"] for index in range(3)] == ["regex", "contains", "regex"]
    found = await press(
        "up:/evaluators/1", **{"/evaluators/1/config/text": "BK", "/evaluators/2/config/pattern": "x"}
    )
    assert (found["/evaluators/0/type"], found["/evaluators/0/config/text"]) == ("contains", "BK")
    found = await press("remove:/evaluators/1")
    assert (found["/evaluators/1/type"], found["/evaluators/1/config/pattern"]) == ("regex", "x")
    assert "/evaluators/2/type" not in found
    found = await press("json:/evaluators/1/config")
    assert json.loads(found["json:/evaluators/1/config"]) == {"pattern": "x"}
    found = await press("form:/evaluators/1/config", **{"json:/evaluators/1/config": '{"pattern": "y"}'})
    assert found["/evaluators/1/config/pattern"] == "y"
    found = await press("add:/messages")
    found = await press("add:/messages", **{"/messages/0/content": "one\r\ntwo"})
    assert (found["/messages/0/content"], found["count:/messages"]) == ("one\r\ntwo", "2")
    found = await press("remove:/messages/1")
    assert found["count:/messages"] == "1"
    assert found["/name"] == "kept"
    for nonsense in ("remove:/evaluators/9", "up:/x/y", "add:", "add:/name", "remove:", "json:", "what"):
        assert (await press(nonsense))["/evaluators/0/type"] == "contains", nonsense


async def test_what_is_deleted_is_gone(browser: Browser) -> None:
    for kind, path in (await with_data(browser)).items():
        gone = await browser.press(path, "delete")
        assert (gone.status_code, gone.headers["location"]) == (303, f"/console/{kind}?deleted=1")
        await browser.page(path, 404)
        assert "Deleted" in await browser.page(gone.headers["location"])


async def test_a_scenario_runs_from_its_form(browser: Browser) -> None:
    path = (await with_data(browser))["scenarios"]
    started = await browser.press(path, "run")
    assert started.status_code == 303
    assert re.fullmatch(r"/console/runs/[0-9a-f-]{36}", started.headers["location"])
    page = await ended(browser, started.headers["location"])
    assert "Booking flow" in page
    listed = await browser.page("/console/scenarios")
    assert started.headers["location"] in listed


async def test_the_commands_beside_a_scenario_start_its_run(browser: Browser) -> None:
    page = await browser.page((await with_data(browser))["scenarios"])
    shown = dict(re.findall(r'<pre id="as-(\w+)">(.*?)</pre>', page, re.DOTALL))
    given = {name: unescape(text) for name, text in shown.items()}
    made = await asyncio.to_thread(_output, [sys.executable, "-c", given["python"]])
    assert (await browser.client.get(f"/api/runs/{made.strip()}")).status_code == 200
    words = shlex.split(given["curl"])
    body = json.loads(words[words.index("-d") + 1])
    started = await browser.client.post(words[1], json=body)
    assert started.status_code == 201
    command = shlex.split(given["cli"])
    assert command[:3] == ["evald", "runs", "start"]
    args = vars(parse(command[1:]))
    assert {body["scenarioId"], body["connectorId"]} <= {
        value for value in args.values() if isinstance(value, str)
    }


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


async def ended(browser: Browser, path: str) -> str:
    """The page of a run that has ended."""
    async with asyncio.timeout(20):
        while True:
            page = await browser.page(path)
            if "Running" not in page and "Queued" not in page:
                return page
            await asyncio.sleep(0.02)


async def run_of(browser: Browser, path: str) -> dict[str, Any]:
    """Verdict, reason and length of a run of a scenario."""
    started = await browser.press(path, "run")
    assert started.status_code == 303, wrong(started.text)
    await ended(browser, started.headers["location"])
    run_id = started.headers["location"].rpartition("/")[2]
    run = (await browser.client.get(f"/api/runs/{run_id}")).json()
    return {
        "status": run["status"],
        "verdict": run["verdict"],
        "reason": run["result"].get("reason"),
        "length": len(run["messages"]),
    }


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        ([criteria(False, why="not yet"), criteria(True, why="booked")], "PASSED"),
        ([criteria(False, why="not yet"), criteria(False, True, why="gave up")], "FAILED"),
        ([criteria(False, why="not yet")], "FAILED"),
    ],
)
async def test_migrating_criteria_changes_no_run(replies: list[Any], verdict: str) -> None:
    """Same verdict, reason and length before and after."""
    answers = [answer(body=completion(json.dumps(one))) for one in replies]
    judge = {"judge_model": "judge-1", "judge_api_key": "", "judge_cache_bytes": 0}
    found = []
    for migrated in (False, True):
        async with wire(*answers) as asked, console(judge_base_url=asked.base_url, **judge) as browser:
            await replay(browser, "Which day?", "Moved to Friday.", "Anything else?", "Bye.")
            fields = {
                "/name": "Booking flow",
                "/successCriteria": "The booking is moved.",
                "/failureCriteria": "The agent gives up.",
                "/failureCriteriaMode": '"every_turn"',
                "/maxMessages": "6",
            }
            path = await browser.create("scenarios", fields)
            page = await browser.page(path)
            assert (
                "Success/Failure Criteria are deprecated. Migrate to Evaluators for more flexibility." in page
            )
            if migrated:
                before = (await browser.exported())[0]
                shown = await browser.press(path, "migrate")
                assert (shown.status_code, "Not saved yet" in shown.text) == (200, True)
                assert "deprecated" not in shown.text
                assert (await browser.exported())[0] == before
                assert (await browser.press(path, "save", {}, shown.text)).status_code == 303
                (after,) = await browser.exported()
                keys = ("successCriteria", "failureCriteria", "failureCriteriaMode")
                assert after["evaluators"] == [
                    {"type": "llm-judge", "config": {key: before[key] for key in keys}}
                ]
                assert not set(keys) & after.keys()
                assert "deprecated" not in await browser.page(path)
            found.append(await run_of(browser, path))
    assert found[0] == found[1]
    assert found[0]["verdict"] == verdict


async def test_headers_are_not_shown_and_kept_when_they_are_not_typed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVALD_SECRET_AGENT", "sesame")
    async with wire(answer(body={"message": "Hello."})) as agent, console() as browser:
        fields = {"/name": "agent", "/type": "http", "/baseUrl": agent.base_url}
        page = (await browser.press(NEW["connectors"], "add:/headers", fields)).text
        page = (await browser.press(NEW["connectors"], "add:/headers", {}, page)).text
        typed = fields | {
            "/headers/0/name": "X-Key",
            "/headers/0/value": "${EVALD_SECRET_AGENT}",
            "/headers/1/name": "X-Team",
            "/headers/1/value": "blue",
        }
        saved = await browser.press(NEW["connectors"], "save", typed, page)
        assert saved.status_code == 303, wrong(saved.text)
        path = saved.headers["location"].removesuffix("?saved=1")
        page = await browser.page(path)
        assert "sesame" not in page
        assert "blue" not in page
        shown = [posted(page)[f"/headers/{index}/value"] for index in range(2)]
        assert shown == ["${EVALD_SECRET_AGENT}", "***"]
        tested = await browser.press(path, "test", {"/name": "renamed", "say": "Are you there?"})
        assert tested.status_code == 200, wrong(tested.text)
        assert "The agent answered" in tested.text
        assert "Hello." in tested.text
        assert "sesame" not in tested.text
        head, body = agent.requests[-1]
        assert "x-key: sesame" in head.lower()
        assert "x-team: blue" in head.lower()
        assert "Are you there?" in json.dumps(body)
        agent.answers[:] = [answer(500, {"error": "down"})]
        assert "No answer" in (await browser.press(path, "test")).text
        refused = await browser.press(path, "save", {"/headers/1/name": "X-Other"})
        assert refused.status_code == 400
        assert any("***" in said or "X-Other" in said for said in wrong(refused.text))
        moved = await browser.press(path, "save", {"/baseUrl": "http://127.0.0.1:1"})
        assert moved.status_code == 400
        assert any("give the value again" in said for said in wrong(moved.text))


async def test_scenarios_go_out_and_come_in_again(browser: Browser) -> None:
    await with_data(browser)
    lines = (await browser.client.get("/console/scenarios/export")).text
    before = await browser.exported()
    evalstudio = {
        "id": "9387ce0c-d5ee-4a05-bb55-4f5222638128",
        "name": "Theirs",
        "maxMessages": 4,
        "successCriteria": "x",
        "evaluators": [{"type": "latency-budget", "config": {"maxMs": 10}}],
        "createdAt": "2026-11-22T06:26:56.701Z",
        "updatedAt": "2026-11-22T06:26:56.701Z",
    }
    await browser.press("/console/scenarios/" + json.loads(lines)["id"], "delete")
    text = f"{lines}\n{json.dumps(evalstudio)}\r\n"
    done = await browser.client.post("/console/scenarios/import", data={"lines": text})
    assert (done.status_code, "2 scenarios imported" in done.text) == (200, True), wrong(done.text)
    found = {one["name"]: one for one in await browser.exported()}
    assert found["Booking flow"] == before[0]
    assert found["Theirs"] == {
        key: evalstudio[key] for key in ("name", "maxMessages", "successCriteria", "evaluators")
    }


async def test_an_import_with_a_fault_stores_nothing_and_says_where(browser: Browser) -> None:
    good = json.dumps({"name": "a", "evaluators": [REGEX]})
    text = "\n".join([good, "{", '{"nam": 1}', "3", "[" * 5000, '{"name": "\\ud800"}'])
    refused = await browser.client.post("/console/scenarios/import", data={"lines": text})
    assert refused.status_code == 400
    assert [said.partition(":")[0] for said in wrong(refused.text)] == [f"line {n}" for n in range(2, 7)]
    assert not await browser.exported()
    assert posted(refused.text)["lines"].replace("\r\n", "\n") == text
    late = json.dumps({"name": "b", "evaluators": ["regx"]})
    refused = await browser.client.post("/console/scenarios/import", data={"lines": f"{good}\n{late}"})
    assert refused.status_code == 400
    assert any("line 1" in said and "regx" in said for said in wrong(refused.text))
    assert posted(refused.text)["lines"] == late, "what is stored is not there to be stored again"
    assert "1 scenario imported" in refused.text
    empty = await browser.client.post("/console/scenarios/import", data={"lines": " "})
    assert empty.status_code == 400


async def test_an_import_that_is_sent_twice_stores_everything_once(browser: Browser) -> None:
    lines = [json.dumps({"name": f"{n}", "evaluators": [REGEX]}) for n in range(3)]
    form = posted(await browser.page("/console/scenarios/import"))
    sent = form | {"lines": "\n".join(lines)}
    both = await asyncio.gather(
        *(browser.client.post("/console/scenarios/import", data=sent) for _ in range(2))
    )
    assert all("3 scenarios imported" in one.text for one in both), [wrong(one.text) for one in both]
    assert [one["name"] for one in await browser.exported()] == ["0", "1", "2"]
    exported = await browser.page("/console/scenarios/export")
    again = await browser.client.post("/console/scenarios/import", data={"lines": exported})
    assert again.status_code == 200, wrong(again.text)
    other = exported.replace('"name": "1"', '"name": "one"')
    refused = await browser.client.post("/console/scenarios/import", data={"lines": other})
    assert refused.status_code == 400
    assert [said.partition(" '")[0] for said in wrong(refused.text)] == [
        "line 1: another scenario already has the id"
    ]
    assert len(await browser.exported()) == 3


async def test_a_large_import_does_not_come_back_and_can_be_sent_again(browser: Browser) -> None:
    def line(name: str, *types: str) -> str:
        return json.dumps({"name": name, "instructions": name * 30_000, "evaluators": types})

    text = "\n".join([line("a", "response-length"), line("b", "regx"), line("c", "regx")])
    sent = posted(await browser.page("/console/scenarios/import")) | {"lines": text}
    refused = await browser.client.post("/console/scenarios/import", data=sent)
    assert (refused.status_code, len(refused.content) < 20_000) == (400, True)
    assert [said.partition(":")[0] for said in wrong(refused.text)] == ["line 2", "line 3"], "as in the file"
    assert "1 scenario imported" in refused.text
    assert "paste it again" in refused.text
    sent = posted(refused.text) | {"lines": text.replace("regx", "response-length")}
    done = await browser.client.post("/console/scenarios/import", data=sent)
    assert (done.status_code, "3 scenarios imported" in done.text) == (200, True), wrong(done.text)
    many = "\n".join(json.dumps({"name": f"{n}", "evaluators": ["regx"]}) for n in range(150))
    refused = await browser.client.post("/console/scenarios/import", data={"lines": many})
    assert (len(wrong(refused.text)), wrong(refused.text)[-1]) == (101, "50 more lines were not stored")
    wrong_json = await browser.client.post("/console/scenarios/import", data={"lines": f"{text}\n{{"})
    assert (wrong_json.status_code, len(wrong_json.content) < 20_000) == (400, True)


def try_fields(*types: str, **fields: str) -> dict[str, str]:
    """What is posted of the page on which a conversation is tried."""
    specs = {f"/evaluators/{index}/type": name for index, name in enumerate(types)}
    return {"conversation": TALK, **specs, **fields}


@pytest.mark.parametrize(
    "conversation",
    [
        TALK,
        "Done: BK-12345",
        "user: Hi\nassistant: Done:\nBK-12345",
        '{"role": "assistant", "content": "Done: BK-12345"}',
        json.dumps([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Done: BK-12345"}]),
        '{"role": "user", "content": "Hi"}\n{"role": "assistant", "content": "Done: BK-12345"}',
        json.dumps({"messages": [{"role": "assistant", "content": "Done: BK-12345"}]}),
        json.dumps({"id": 7, "messages": [{"role": "assistant", "content": "Done: BK-12345"}]}),
    ],
)
async def test_a_conversation_is_tried_as_a_page_and_as_lines(browser: Browser, conversation: str) -> None:
    fields = try_fields("regex", "response-length") | {
        "conversation": conversation,
        "/evaluators/0/config/pattern": "BK-[0-9]+",
    }
    shown = await browser.client.post("/console/try", data=fields | {"do": "evaluate"})
    assert shown.status_code == 200
    assert "</span> Passed</span>" in shown.text
    for caption, only in (("Assertions", "Regex"), ("Metrics", "Response Length")):
        table = shown.text.partition(f"<caption>{caption}</caption>")[2].partition("</table>")[0]
        assert [title for title in ("Regex", "Response Length") if title in table] == [only]
    streamed = await browser.client.post("/console/try/results", data=fields)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    *results, last = [json.loads(line) for line in streamed.text.splitlines()]
    assert last["summary"]["mark"]["word"] == "Passed"
    by_title = {one["result"]["title"]: one["result"] for one in results}
    assert by_title["Regex"]["mark"]["short"] == "Pass"
    assert by_title["Response Length"]["metric"] is True
    assert not (await browser.client.get("/api/runs")).json(), "nothing is stored"


@pytest.mark.parametrize(("expected", "word"), [("Done: BK-12345", "Passed"), ("Done", "Failed")])
async def test_a_conversation_is_tried_with_the_expected_text(
    browser: Browser, expected: str, word: str
) -> None:
    fields = try_fields("exact-match", expected=expected)
    shown = await browser.client.post("/console/try", data=fields | {"do": "evaluate"})
    assert f"</span> {word}</span>" in shown.text.partition('id="results"')[2]
    streamed = await browser.client.post("/console/try/results", data=fields)
    assert json.loads(streamed.text.splitlines()[-1])["summary"]["mark"]["word"] == word


async def test_streamed_results_show_what_the_page_shows(browser: Browser) -> None:
    fields = try_fields("regex", "regex") | {
        "conversation": TALK,
        "/evaluators/0/config/pattern": "x",
        "/evaluators/0/shadow": "true",
        "/evaluators/1/config/pattern": "gnp\u202e",
    }
    streamed = await browser.client.post("/console/try/results", data=fields)
    first, second, last = [json.loads(line) for line in streamed.text.splitlines()]
    assert first["result"]["flags"] == ["shadow"]
    assert first["result"]["reason"]["cut"] == 0, "the number of characters left out"
    for reason in (second["result"]["reason"]["shown"], last["summary"]["reason"]):
        assert "gnp\\u202e" in reason, "characters that turn text round are made visible"


async def test_an_evaluator_that_breaks_is_neither_pass_nor_fail(browser: Browser) -> None:
    shown = await browser.client.post("/console/try", data=try_fields("broken", do="evaluate"))
    results = shown.text.partition('id="results"')[2]
    assert "Inconclusive" in results
    assert not re.search(r"</span> (Pass|Fail)", results)
    assert "secret of the inside" not in results
    assert not re.search(r"score\s+[0-9]", results)
    streamed = await browser.client.post("/console/try/results", data=try_fields("broken"))
    first, *_, last = [json.loads(line) for line in streamed.text.splitlines()]
    assert first["result"]["mark"]["style"] == last["summary"]["mark"]["style"] == "error"
    assert first["result"]["score"] == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conversation": ""}, "conversation"),
        ({"conversation": "[{]"}, "not valid JSON"),
        ({"conversation": "[" * 5000}, "not valid JSON"),
        ({"conversation": '{"role": 3}'}, "role"),
        ({"conversation": "[3]"}, "messages[0]"),
        ({"conversation": '{"mesages": []}'}, "mesages"),
        ({"latency": "soon"}, "latency"),
        ({"latency": "nan"}, "latency"),
        ({"/evaluators/0/config/pattern": "("}, "pattern"),
        ({"/evaluators/0/type": "regx"}, "regx"),
    ],
)
async def test_what_cannot_be_tried_says_why(browser: Browser, changes: dict[str, str], said: str) -> None:
    fields = try_fields("regex") | {"/evaluators/0/config/pattern": "a"} | changes
    refused = await browser.client.post("/console/try", data=fields | {"do": "evaluate"})
    assert refused.status_code == 400
    assert wrong(refused.text)
    again = posted(refused.text)
    assert {name: again.get(name) for name in changes} == changes
    streamed = await browser.client.post("/console/try/results", data=fields)
    (line,) = [json.loads(line) for line in streamed.text.splitlines()]
    assert said in line["error"]


async def test_a_conversation_becomes_a_scenario(browser: Browser) -> None:
    fields = try_fields("regex") | {"/evaluators/0/config/pattern": "BK", "do": "scenario"}
    shown = await browser.client.post("/console/try", data=fields)
    found = posted(shown.text)
    assert found["/messages/0/content"] == "I have to move it."
    assert found["count:/messages"] == "1"
    saved = await browser.press(NEW["scenarios"], "save", {"/name": "Tried"}, shown.text)
    assert saved.status_code == 303


@pytest.fixture(name="locked")
async def _locked(tmp_path: Path) -> AsyncIterator[tuple[Browser, Path]]:
    path = tmp_path / "keys.toml"
    make_key(path, "first", *Role)
    async with console(keys_file=path) as browser:
        yield browser, path


async def sign_in(browser: Browser, key: str, following: str = "") -> httpx.Response:
    parameters = {"next": following} if following else {}
    return await browser.client.post("/console/sign-in", params=parameters, data={"key": key})


async def test_a_key_opens_the_console_until_its_bearer_signs_out(locked: tuple[Browser, Path]) -> None:
    browser, path = locked
    for page in PAGES:
        sent = await browser.client.get(page)
        assert sent.status_code == 303, page
        assert sent.headers["location"].startswith("/console/sign-in?next=%2Fconsole%2F"), page
    for bad in ("", "nonsense", "evald_x_y"):
        refused = await sign_in(browser, bad)
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        assert 'role="alert"' in refused.text
    key = make_key(path, "ann", *Role)
    async with asyncio.timeout(20):
        while (done := await sign_in(browser, key, "/console/scenarios?page=x")).status_code != 303:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)
    assert (done.status_code, done.headers["location"]) == (303, "/console/scenarios?page=x")
    said = done.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(said.split("; "))
    assert key not in said
    assert "ann" in await browser.page("/console/scenarios")
    out = await browser.client.post("/console/sign-out")
    assert (out.status_code, out.headers["location"]) == (303, "/console/sign-in")
    assert COOKIE not in browser.client.cookies
    assert (await browser.client.get("/console/scenarios")).status_code == 303
    assert (
        await browser.client.get("/console/scenarios", headers={"cookie": said.partition(";")[0]})
    ).status_code == 303


@pytest.mark.parametrize(
    "following",
    [
        "//evil.example/console/",
        "https://evil.example/console/x",
        "https:/console/x",
        "/\\evil.example/console/",
        "/console/\\evil",
        "\\/evil.example",
        "javascript:alert(1)",
        "/console/../../x",
        "/\t/evil.example/console/",
        "/console/\r\nset-cookie: a=b",
        "/evil",
        "http://[",
        *HOSTILE[:20],
    ],
)
async def test_signing_in_leads_nowhere_else(tmp_path: Path, following: str) -> None:
    path = tmp_path / "keys.toml"
    key = make_key(path, "ann", *Role)
    async with console(keys_file=path) as browser:
        done = await sign_in(browser, key, following)
        assert done.status_code == 303
        assert done.headers["location"] == "/console/overview"


async def test_a_console_without_keys_has_no_sign_in(browser: Browser) -> None:
    sent = await browser.client.get("/console/sign-in?next=/console/try")
    assert (sent.status_code, sent.headers["location"]) == (303, "/console/try")
    sent = await browser.client.post("/console/sign-in", data={"key": "any"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/console/overview")
    assert "set-cookie" not in sent.headers
    assert "Sign in" not in await browser.page("/console/overview")


async def test_who_may_not_write_sees_no_buttons_and_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    writer, reader = make_key(path, "ann", *Role), make_key(path, "bob", Role.VIEWER)
    async with console(keys_file=path) as browser:
        await sign_in(browser, writer)
        made = await with_data(browser)
        writes = {kind: posted(await browser.page(address)) for kind, address in made.items()}
        await sign_in(browser, reader)
        for kind, address in made.items():
            page = await browser.page(address)
            assert not set(re.findall(r'name="do" value="([^":]+)', page)) & {"save", "delete", "run", "test"}
            assert f'href="{NEW[kind]}' not in await browser.page(f"/console/{kind}")
            for do in ("save", "delete"):
                for target in (address, NEW[kind]):
                    refused = await browser.client.post(target, data=writes[kind] | {"do": do})
                    assert refused.status_code == 403, (kind, do)
        for do, kind in (("run", "scenarios"), ("test", "connectors")):
            assert (await browser.client.post(made[kind], data=writes[kind] | {"do": do})).status_code == 403
        lines = json.dumps({"name": "a", "evaluators": [REGEX]})
        refused = await browser.client.post("/console/scenarios/import", data={"lines": lines})
        assert refused.status_code in (400, 403)
        assert len(await browser.exported()) == 1


@pytest.mark.parametrize("path", ["/console/scenarios", "/console/personas", "/console/connectors"])
async def test_a_posted_form_of_nonsense_is_refused(browser: Browser, path: str) -> None:
    for body in (
        b"",
        b"%ff%fe=%00",
        b"a" * 5000,
        b"&".join([b"x=1"] * 6000),
        b"do=save&count:/headers=99999999",
    ):
        head = {"content-type": "application/x-www-form-urlencoded"}
        found = await browser.client.post(f"{path}/new", content=body, headers=head)
        assert found.status_code in (400, 413), body[:20]
        assert ("got more than 5,000 fields" in found.text) == (b"x=1" in body)


@pytest.mark.parametrize("path", ["/console/try", "/console/try/results", NEW["scenarios"]])
async def test_a_form_with_more_evaluators_than_a_call_may_have_is_refused(
    browser: Browser, path: str
) -> None:
    fields = {f"/evaluators/{number}/type": "llm-judge" for number in range(101)}
    found = await browser.client.post(path, data=fields | {"do": "add:/messages"})
    assert found.status_code == 400
    assert "wanted at most 100 (max_evaluators)" in found.text
    del fields["/evaluators/100/type"]
    found = await browser.client.post(path, data=fields | {"do": "add:/messages"})
    assert found.status_code == 200


async def test_pages_are_rendered_beside_the_event_loop(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    class Version:
        def __html__(self) -> str:
            threads.add(threading.get_ident())
            return "1"

    monkeypatch.setitem(templates().globals, "version", Version())
    await browser.page("/console/overview")
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "fields",
    [
        {"do": "remove:/evaluators/" + "9" * 5000, "/evaluators/0/type": "regex"},
        {"do": "add:/x", "/evaluators/0/type": "regex", "json:/evaluators/0/config": r'{"a": "\ud800"}'},
        {"do": "evaluate", "conversation": r'[{"role": "user", "content": "\ud800"}]'},
        {"do": "scenario", "conversation": r'[{"role": "user", "content": "\ud800"}]'},
    ],
    ids=["digits", "half-pair-in-box", "half-pair-evaluated", "half-pair-to-scenario"],
)
async def test_what_no_page_can_show_is_no_fault_of_the_server(
    browser: Browser, fields: dict[str, str]
) -> None:
    sent = await browser.client.post("/console/try", data=fields)
    assert sent.status_code in (200, 400)
    assert "half of a surrogate pair" in sent.text or "9" in fields["do"]


async def test_nobody_unknown_has_a_form_or_an_import_read(locked: tuple[Browser, Path]) -> None:
    browser, _ = locked
    for path in (*NEW.values(), "/console/scenarios/import"):
        sent = await browser.client.post(path, data={"do": "add:/script", "lines": "x", "/name": "mine"})
        assert (sent.status_code, "mine" in sent.text) == (401, False), path


async def test_an_import_reads_separators_within_texts_and_names_the_first_wrong_lines(
    browser: Browser,
) -> None:
    said = [{"role": "user", "content": "a\u2028b\x85c"}]
    scenario = {"name": "Booking", "messages": said, "evaluators": [REGEX]}
    lines = json.dumps(scenario, ensure_ascii=False)
    sent = await browser.client.post("/console/scenarios/import", data={"lines": lines})
    assert sent.status_code == 200, wrong(sent.text)
    exported = (await browser.page("/console/scenarios/export")).split("\n")
    assert [json.loads(line)["messages"] for line in exported if line] == [said]
    refused = await browser.client.post("/console/scenarios/import", data={"lines": "x\n" * 500})
    assert len(wrong(refused.text)) == 101
    assert "the lines from 101 on were not read" in wrong(refused.text)[-1]
