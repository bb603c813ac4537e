"""The pages on which people write, in a real browser."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator, EvaluatorDefinition
from evald.result import ASSERTION, Result, passed
from evald_server.testing import server

from ..chromium import open_all, violations
from ..remote.scripted import Worker
from ..suites.reports.hostile import HOSTILE
from .test_console_browser import PICTURES, SHOTS, check_page, fits, opened
from .test_console_catalog import card, put

pytestmark = pytest.mark.browser

REPLAY = {
    "messages": [
        {"role": role, "content": text}
        for turn in (1, 2)
        for role, text in (("user", f"question {turn}"), ("assistant", f"answer {turn}"))
    ]
}
BANNER = "Success/Failure Criteria are deprecated."


GO = threading.Event()


class Slow(Evaluator, type="slow", kind=ASSERTION):
    """Waits until the test lets it answer."""

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        while not GO.is_set():  # noqa: ASYNC110 - it runs in another loop than the test
            await asyncio.sleep(0.01)
        return passed("at last")


def _create(web: str, kind: str, data: dict[str, Any]) -> str:
    made = httpx.post(f"{web}/api/{kind}", json=data, timeout=30, trust_env=False)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[None]:
    """An instance of a remote evaluator."""
    async with grpc.aio.insecure_channel(address) as channel:
        worker = await Worker(channel, "acme.word", name="words", version="1.2").start()
        yield
        await worker.stop()


@pytest.fixture(name="web", scope="module")
def _web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("written")
    judges = {"strict": {"base_url": "http://127.0.0.1:9/v1", "model": "small"}}
    with start_blocking_portal() as portal:
        put(folder, portal.call(card))
        with (
            server(Slow, web="127.0.0.1:0", data_dir=folder, judges=judges) as found,
            portal.wrap_async_context_manager(_connected(found.address)),
        ):
            yield f"http://{found.web_address}"


@pytest.fixture(name="pages", scope="module")
def _pages(web: str) -> dict[str, str]:
    """One of everything, and hundreds of scenarios; the address of each page by a name for it."""
    persona = _create(
        web,
        "personas",
        {"name": "Maria", "description": "Impatient", "script": ["I have to move it", "Friday"]},
    )
    agent = {
        "name": "staging",
        "type": "http",
        "baseUrl": "http://127.0.0.1:9/chat",
        "headers": {"x-team": "a"},
    }
    connector = _create(web, "connectors", agent)
    for number in range(120):
        specs = [{"type": "regex", "name": f"{name} {'of a long name ' * 3}"} for name in "abcdef"]
        given = [{**spec, "config": {"pattern": "BK"}} for spec in specs]
        _create(
            web,
            "scenarios",
            {"name": f"Case {number}", "instructions": "Move it. " * 60, "evaluators": given},
        )
    scenario = {
        "name": "Booking flow",
        "instructions": "Customer wants to move a booking.",
        "messages": [{"role": "user", "content": "Hi"}],
        "successCriteria": "The booking is moved.",
        "personaIds": [persona],
        "evaluators": [
            {"type": "latency-budget", "config": {"maxMs": 800}},
            {"type": "regex", "config": {"pattern": "BK"}, "required": True},
            {"type": "tool-use", "config": {"expectations": [{"name": "find_slots"}]}},
        ],
    }
    return {
        "scenarios": "/console/scenarios",
        "scenario": f"/console/scenarios/{_create(web, 'scenarios', scenario)}",
        "scenario-new": "/console/scenarios/new",
        "import": "/console/scenarios/import",
        "personas": "/console/personas",
        "persona": f"/console/personas/{persona}",
        "connectors": "/console/connectors",
        "connector": f"/console/connectors/{connector}",
        "evaluators": "/console/evaluators",
        "evaluator": "/console/evaluators/llm-judge",
        "remotes": "/console/remotes",
        "judge": "/console/judge",
        "try": "/console/try?type=regex",
    }


NAMES = (
    "scenarios scenario scenario-new import personas persona connectors connector evaluators evaluator remotes judge try"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_accessible_fits_every_screen_and_reads_without_script(
    browser: Any, axe: str, web: str, pages: dict[str, str], name: str
) -> None:
    check_page(browser, axe, web + pages[name], name)


@pytest.mark.parametrize("name", ["scenario", "try"])
def test_the_pictures_of_the_documentation(browser: Any, web: str, pages: dict[str, str], name: str) -> None:
    """Those in docs/console are copies of these, so that a run of the tests changes no file of the repository."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    with opened(browser, web + pages[name], 1000, timezone_id="UTC", locale="en-GB") as page:
        if name == "try":
            page.fill("[name='/evaluators/0/config/pattern']", "Friday")
            page.get_by_role("button", name="Evaluate").click()
            page.locator(".results .verdict").first.wait_for()
        else:
            page.locator(".evaluator").first.scroll_into_view_if_needed()
        made = SHOTS / f"docs-{name}.png"
        page.screenshot(path=str(made))
    assert made.stat().st_size < 120_000
    assert (PICTURES / f"{name}.png").stat().st_size < 120_000


def test_a_refused_form_is_accessible(browser: Any, axe: str, web: str, pages: dict[str, str]) -> None:
    with opened(browser, web + pages["scenario"]) as page:
        page.fill("[name='/evaluators/0/config/maxMs']", "-3")
        page.get_by_role("button", name="Save", exact=True).click()
        field = page.locator("[name='/evaluators/0/config/maxMs']")
        assert field.get_attribute("aria-invalid") == "true"
        assert field.input_value() == "-3"
        page.screenshot(path=str(SHOTS / "scenario-refused.png"), full_page=True)
        assert not violations(page, axe)


@pytest.mark.parametrize("scripts", [True, False])
def test_a_scenario_is_written_saved_and_run_by_keyboard_and_its_failing_turn_opened(
    browser: Any, web: str, scripts: bool
) -> None:
    """Nothing is clicked. Without script the same works; there Tab does what it does anyway, and is left out."""
    name = f"By keyboard {scripts}"
    recorded = {"name": f"recorded {scripts}", "type": "replay", "baseUrl": "", "config": REPLAY}
    _create(web, "connectors", recorded)
    with opened(browser, web + "/console/scenarios", java_script_enabled=scripts) as page:
        press = page.keyboard.press

        def to(selector: str, button: bool = False) -> None:
            """Go on with Tab until something has the focus."""
            if not scripts:
                page.locator(selector).first.focus()
            for _ in range(400):
                if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                    break
                press("Tab")
            else:
                raise AssertionError(f"Tab never comes to {selector}")
            if button:
                press("Enter")

        to("a[href='/console/scenarios/new']", button=True)
        page.wait_for_url("**/new")
        for index, (kind, field, value) in enumerate(
            (("Contains", "text", "answer"), ("Regex", "pattern", "answer 1"), ("Response Length", "", ""))
        ):
            to("[name=add-type]")
            page.keyboard.type(kind)
            to("[value='add:/evaluators']", button=True)
            page.locator(f"[name='/evaluators/{index}/type']").wait_for(state="attached")
            if field:
                to(f"[name='/evaluators/{index}/config/{field}']")
                page.keyboard.type(value)
        to("[name='/name']")
        page.keyboard.type(name)
        to("button[value=save]", button=True)
        page.wait_for_url("**?saved=1")
        to("select[name=connector]")
        page.keyboard.type(str(recorded["name"]))
        to("button[value=run]", button=True)
        page.wait_for_url("**/console/runs/*")
        red = page.locator("#turns [data-red]").first
        if scripts:  # the page follows the run, and loads itself again when it has ended
            red.wait_for()
            page.locator("#live").wait_for(state="detached")
        for _ in range(100):
            if red.count():
                break
            page.wait_for_timeout(100)
            page.reload()
        to("#turns [data-red] a, #turns a[data-red]", button=True)
        page.wait_for_url("**?turn=2*")
        assert "Regex" in page.inner_text("main")
        assert page.locator("main .verdict.fail").first.is_visible()


def test_what_is_tried_shows_each_result_when_it_is_there(browser: Any, web: str) -> None:
    GO.clear()
    with opened(browser, web + "/console/try?type=slow") as page:
        page.select_option("[name=add-type]", "response-length")
        page.locator("[value='add:/evaluators']").click()
        page.get_by_role("button", name="Evaluate").click()
        page.locator("#results th", has_text="Response Length").wait_for()
        assert "at last" not in page.inner_text("#results")
        assert page.locator("#results .outcome").count() == 0
        GO.set()
        page.locator("#results .outcome").wait_for()
        assert "at last" in page.inner_text("#results")
        assert page.locator("#results .outcome").inner_text().split()[1] == "Passed"
        page.fill("#conversation", "[{")
        page.get_by_role("button", name="Evaluate").click()
        page.locator("#results .error").wait_for()
        assert "not valid JSON" in page.inner_text("#results .error")
        assert "?" not in page.url.replace("?type=slow", "")


def test_a_dismissed_banner_stays_away_on_its_scenario(browser: Any, web: str, pages: dict[str, str]) -> None:
    other = _create(web, "scenarios", {"name": "Other criteria", "successCriteria": "x"})
    with opened(browser, web + pages["scenario"]) as page:
        banner = page.get_by_text(BANNER)
        page.get_by_role("button", name="Dismiss").click()
        assert not banner.is_visible()
        page.reload()
        assert not banner.is_visible()
        page.goto(f"{web}/console/scenarios/{other}")
        assert banner.is_visible()


def test_nothing_that_callers_write_runs_or_loads(browser: Any) -> None:
    """Each text in every field of what is written, and in what evaluators say of themselves."""
    texts = [text.replace("\0", "") for text in HOSTILE]
    hostile = [_hostile_type(number, text) for number, text in enumerate(texts) if text.strip()]
    with server(*hostile, web="127.0.0.1:0") as found:
        web = f"http://{found.web_address}"
        paths = ["/console/scenarios", "/console/personas", "/console/connectors", "/console/evaluators"]
        paths += [f"/console/evaluators/{one.type}" for one in hostile]
        for number, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError:
                continue
            name = f"{number} {''.join(filter(str.isprintable, text))}"[:200]
            data = {
                "name": name,
                "description": text,
                "systemPrompt": text,
                "script": [text if text.strip() else "a"],
            }
            persona = _create(web, "personas", data)
            config = {
                "messages": [
                    {"role": "user", "content": text if text.strip() else "a"},
                    {"role": "assistant", "content": text if text.strip() else "a"},
                ]
            }
            connector = _create(
                web, "connectors", {"name": name, "type": "replay", "config": config, "baseUrl": ""}
            )
            scenario = {
                "name": name,
                "instructions": text,
                "goal": text,
                "successCriteria": text if text.strip() else "a",
                "failureCriteria": text,
                "messages": [{"role": "user", "content": text if text.strip() else "a"}],
                "personaIds": [persona],
                "evaluators": [
                    {"type": "contains", "name": name, "config": {"text": text if text.strip() else "a"}}
                ],
            }
            paths += [f"/console/personas/{persona}", f"/console/connectors/{connector}"]
            paths += [f"/console/scenarios/{_create(web, 'scenarios', scenario)}"]
        with opened(browser, web + paths[0], 320) as page:
            for path in paths:
                page.goto(web + path)
                open_all(page)
                assert fits(page, 320), path
                seen = page.evaluate("[...document.querySelectorAll('main *')].map((one) => one.localName)")
                assert not {"script", "img", "iframe", "object", "embed", "style", "b", "math"} & set(seen)


def _hostile_type(number: int, text: str) -> EvaluatorDefinition:
    """A type that says a text of itself wherever it may."""
    schema = {
        "type": "object",
        "title": text,
        "description": text,
        "properties": {
            text: {"type": "string", "title": text, "description": text, "default": text},
            "choice": {"title": text, "enum": [text, f"{text}2"]},
            "free": {"description": text, "patternProperties": {"x": {}}},
        },
    }
    return Slow.definition()._replace(
        type=f"hostile-{number}",
        label=text,
        description=text,
        config_schema=lambda: json.dumps(schema),
        version=text[:20],
    )


def test_who_is_overtaken_is_told_and_a_double_click_does_it_once(browser: Any, axe: str, web: str) -> None:
    for number in range(25):
        _create(web, "personas", {"name": f"Persona {number}", "script": ["hi"]})
    evaluators = [{"type": "regex", "config": {"pattern": "BK"}}]
    address = f"/scenarios/{_create(web, 'scenarios', {'name': 'Shared', 'evaluators': evaluators})}"
    with opened(browser, f"{web}/console{address}") as page:
        changed = httpx.put(f"{web}/api{address}", json={"goal": "first"}, timeout=30, trust_env=False)
        assert changed.status_code == 200
        page.fill("[name='/goal']", "second")
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("link", name="Open the stored one").wait_for()
        page.screenshot(path=str(SHOTS / "scenario-overtaken.png"))
        assert not violations(page, axe)
        assert page.input_value("[name='/goal']") == "second"
        page.fill("[name=find-persona]", "persona 24")
        page.press("[name=find-persona]", "Enter")
        page.get_by_text("Not saved yet.").wait_for()
        assert page.get_by_role("checkbox", name="Persona").count() == 1
        page.get_by_role("button", name="Save", exact=True).click()
        page.get_by_role("button", name="Save anyway", exact=True).dblclick()
        page.get_by_text("Saved.").wait_for()
        assert page.input_value("[name='/goal']") == "second"
        page.goto(f"{web}/console/personas/new")
        page.fill("[name='/name']", "Double")
        page.get_by_role("button", name="Save", exact=True).dblclick()
        page.get_by_text("Saved.").wait_for()
    found = httpx.get(f"{web}/api/personas", timeout=30, trust_env=False).json()
    assert [one["name"] for one in found].count("Double") == 1
