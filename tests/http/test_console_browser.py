"""The pages that show runs and suite runs, in a real browser."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evald.context import EvaluatorContext
from evald.evaluator import Evaluator
from evald.result import ASSERTION, Result, passed
from evald.v1 import (
    connector_service_pb2,
    context_pb2,
    evaluator_pb2,
    run_service_pb2,
    scenario_service_pb2,
)
from evald_server.suites.reports.report import SuiteReport
from evald_server.testing import LocalServer, server

from ..chromium import open_all, violations
from ..suites.reports.hostile import HOSTILE, hostile_report
from . import stored

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).parents[2] / "build/console"
# Of docs/console.md.
PICTURES = Path(__file__).parents[2] / "docs/console"
PAGES = stored.pages()
SCREENS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


def _serve(folder: Path, runs: list[stored.Run], reports: list[SuiteReport] | None = None) -> Iterator[str]:
    # In a thread, because playwright has a loop in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(stored.fill(folder, runs, reports))).result()
    with server(web="127.0.0.1:0", data_dir=folder) as found:
        yield f"http://{found.web_address}"


@pytest.fixture(name="web", scope="module")
def _web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from _serve(tmp_path_factory.mktemp("usual"), stored.usual_runs())


@pytest.fixture(name="hostile", scope="module")
def _hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from _serve(tmp_path_factory.mktemp("hostile"), stored.hostile_runs(), [hostile_report()] * 2)


@contextmanager
def opened(
    browser: Any, address: str, width: int = 1280, scheme: str = "light", **options: Any
) -> Iterator[Any]:
    """A page that asks for nothing elsewhere, says nothing and opens no dialog."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    page = context.new_page()
    faults: list[str] = []
    origin = "/".join(address.split("/")[:3])
    page.on("dialog", lambda dialog: (faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("pageerror", lambda error: faults.append(f"error {error}"))
    page.on("console", lambda said: faults.append(f"console {said.text}") if said.type == "error" else None)
    page.on(
        "request", lambda one: None if one.url.startswith(origin) else faults.append(f"request {one.url}")
    )
    page.goto(address)
    try:
        yield page
    finally:
        context.close()
    refused = ("status of 404", "status of 400", "status of 412")
    assert not [fault for fault in faults if not any(said in fault for said in refused)]


def fits(page: Any, width: int) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") <= width)


def check_page(browser: Any, axe: str, address: str, name: str) -> None:
    """Check a page on every screen, with all that it folds and without script.

    Screens are changed while it is open, as by who turns a phone or the lights: to load it for each takes twice the
    time. 320 pixels are 1,280 at 400 %, and less than any page has at 200 %.
    """
    SHOTS.mkdir(parents=True, exist_ok=True)
    with opened(browser, address) as page:
        for width, scheme in SCREENS:
            _show_on(page, width, scheme)
            page.screenshot(path=str(SHOTS / f"{name}-{width}-{scheme}.png"), full_page=True)
            assert fits(page, width)
        open_all(page)
        for width, scheme in SCREENS:
            _show_on(page, width, scheme)
            assert fits(page, width)
            assert not violations(page, axe)
        _show_on(page, 320, "light")
        assert fits(page, 320)
    with opened(browser, address, 320, java_script_enabled=False) as page:
        assert page.locator("h1").is_visible()
        assert not page.locator("#keys-button").is_visible()


def _show_on(page: Any, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_fits_every_screen_and_reads_without_script(
    browser: Any, axe: str, web: str, name: str
) -> None:
    check_page(browser, axe, web + PAGES[name], name)


def test_nothing_that_callers_send_runs_or_loads(browser: Any, hostile: str) -> None:
    paths = [f"/console/runs/{stored.run_id(f'hostile-{number}')}" for number in range(len(HOSTILE))]
    pages = [PAGES[name] for name in ("overview", "runs", "suites", "suite", "compare")]
    with opened(browser, hostile + pages[0], 320) as page:
        for path in (*pages, *paths):
            page.goto(hostile + path)
            open_all(page)
            assert fits(page, 320), path
            found = page.evaluate("[...document.querySelectorAll('main *')].map((one) => one.localName)")
            assert not {"script", "img", "iframe", "object", "embed", "style", "b", "math"} & set(found)


def test_the_next_failing_turn_is_opened_by_keyboard(browser: Any, web: str) -> None:
    with opened(browser, web + "/console/overview") as page:
        page.keyboard.press("g")
        page.keyboard.press("r")
        page.wait_for_url("**/console/runs")
        page.keyboard.press("f")
        first = page.evaluate("document.activeElement.href")
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert page.evaluate("document.activeElement.href") == first
        page.goto(web + PAGES["run"] + "?turn=1")
        page.keyboard.press("f")
        page.keyboard.press("Enter")
        page.wait_for_url("**?turn=3#turn-3")
        page.keyboard.press("Escape")
        page.wait_for_url("**/console/runs")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "scenario"


def test_keys_can_be_switched_off_and_are_text_in_fields(browser: Any, web: str) -> None:
    with opened(browser, web + "/console/suites") as page:
        page.locator("input[name=suite]").press("g")
        page.keyboard.press("o")
        assert page.input_value("input[name=suite]") == "go"
        page.locator("h1").click()
        page.keyboard.press("?")
        page.locator("#keys-on").uncheck()
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        assert not page.locator("#keys").is_visible()
        page.locator("#keys-button").click()
        assert page.locator("#keys").is_visible()


def test_times_are_those_of_the_reader(browser: Any, web: str) -> None:
    with opened(browser, web + PAGES["run"], timezone_id="Asia/Tokyo", locale="en-GB") as page:
        shown = page.locator(".summary time").first
        assert "UTC" in shown.get_attribute("title")
        assert "UTC" not in shown.inner_text()


def test_base_and_new_are_compared_from_the_list(browser: Any, web: str) -> None:
    with opened(browser, web + "/console/suites") as page:
        page.get_by_role("button", name="Compare base with new").click()
        assert page.locator("h1").inner_text() == "Comparison of suite runs"


class Gate:
    """Lets the evaluator of a test answer, result by result."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(0)

    def open(self) -> None:
        self._places.release()

    async def passed(self) -> None:
        await asyncio.to_thread(self._places.acquire, timeout=30)


GATE = Gate()


class Gated(Evaluator, type="gated", kind=ASSERTION):
    """Passes when the test lets it."""

    async def evaluate(self, ctx: EvaluatorContext) -> Result:
        await GATE.passed()
        return passed(f"answered: <b>{ctx.answer}</b>")


def start_run(found: LocalServer) -> str:
    """Start a run of three turns, whose evaluator waits. Returns its id."""
    import grpc

    from evald.v1 import connector_service_pb2_grpc, run_service_pb2_grpc, scenario_service_pb2_grpc

    with grpc.insecure_channel(found.address) as channel:
        said = [
            {"role": role, "content": f"{role} {turn}"}
            for turn in (1, 2, 3)
            for role in ("user", "assistant")
        ]
        connector = connector_service_pb2.Connector(name="recorded", type="replay")
        connector.config.update({"messages": said})
        scenario = context_pb2.Scenario(name="Live", evaluators=[evaluator_pb2.EvaluatorSpec(type="gated")])
        scenario.max_messages = 10
        connector_id = (
            connector_service_pb2_grpc.ConnectorServiceStub(channel)
            .CreateConnector(connector_service_pb2.CreateConnectorRequest(connector=connector))
            .connector.id
        )
        scenario_id = (
            scenario_service_pb2_grpc.ScenarioServiceStub(channel)
            .CreateScenario(scenario_service_pb2.CreateScenarioRequest(scenario=scenario))
            .scenario.id
        )
        wanted = run_service_pb2.StartRunRequest(scenario_id=scenario_id, connector_id=connector_id)
        return str(run_service_pb2_grpc.RunServiceStub(channel).StartRun(wanted).run.id)


def test_a_run_goes_on_before_the_readers_eyes_in_eight_tabs(browser: Any) -> None:
    """Messages, results and turns come without a reload, once each, also after the stream was cut; the end is the
    whole page. Tabs that nobody sees hold no connection."""
    with server(Gated, web="127.0.0.1:0") as found:
        run_id = start_run(found)
        address = f"http://{found.web_address}/console/runs/{run_id}"
        context = browser.new_context()
        tabs = [context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(address)
            tab.evaluate("window.kept = true")
            if tab is not tabs[-1]:
                tab.evaluate(
                    "Object.defineProperty(document, 'hidden', {value: true});"
                    "document.dispatchEvent(new Event('visibilitychange'))"
                )
        tab = tabs[-1]
        tab.get_by_text("assistant 1", exact=True).wait_for()
        GATE.open()
        tab.get_by_text("answered: <b>assistant 1</b>").first.wait_for()
        tab.locator("#turns li").first.wait_for()
        tab.get_by_text("assistant 2", exact=True).wait_for()
        tab.evaluate("document.dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pagehide'))")
        GATE.open()
        tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # seen again
        tab.get_by_text("answered: <b>assistant 2</b>").first.wait_for()
        tab.get_by_text("assistant 3", exact=True).wait_for()
        assert tab.evaluate("window.kept")
        assert tab.locator("#turns li").count() == 2
        said = tab.locator("#talk .text").all_inner_texts()
        assert said == ["user 1", "assistant 1", "user 2", "assistant 2", "user 3", "assistant 3"]
        GATE.open()
        tab.get_by_text("Turn 3 of 3, final").wait_for()
        assert tab.locator("#turns li").count() == 3
        assert tab.locator(".summary .verdict.pass").is_visible()
        context.close()


@pytest.mark.parametrize("name", ["overview", "run", "compare"])
def test_the_pictures_of_the_documentation(browser: Any, web: str, name: str) -> None:
    """Those in docs/console are copies of these, so that a run of the tests changes no file of the repository."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    with opened(browser, web + PAGES[name], 1000, timezone_id="UTC", locale="en-GB") as page:
        made = SHOTS / f"docs-{name}.png"
        page.screenshot(path=str(made), clip={"x": 0, "y": 0, "width": 1000, "height": 640})
    assert made.stat().st_size < 100_000
    assert (PICTURES / f"{name}.png").stat().st_size < 100_000
