"""What is shown while it happens, in a real browser whose network fails."""

from typing import Any

import httpx
import pytest

from evald_server.testing import server

from .cutting_proxy import CuttingProxy
from .test_console_browser import GATE, Gated, start_run

pytestmark = pytest.mark.browser

FAULT = "#live-fault"


def test_a_live_page_whose_connection_is_cut_shows_everything_once(browser: Any) -> None:
    with server(Gated, web="127.0.0.1:0") as found, CuttingProxy(found.web_address or "") as proxy:
        run_id = start_run(found)
        page = browser.new_page()
        page.goto(f"http://{proxy.address}/console/runs/{run_id}")
        page.evaluate("window.kept = true")
        for turn in (1, 2):
            page.get_by_text(f"assistant {turn}", exact=True).wait_for()
            proxy.down = True
            proxy.cut()
            page.locator(FAULT).wait_for()
            assert page.inner_text(FAULT) == "Connection lost. Reconnecting."
            GATE.open()  # what happens meanwhile comes later
            proxy.down = False
            page.get_by_text(f"answered: <b>assistant {turn}</b>").first.wait_for()
            page.locator(FAULT).wait_for(state="detached")
        page.get_by_text("assistant 3", exact=True).wait_for()
        said = page.locator("#talk .text").all_inner_texts()
        assert said == [f"{role} {turn}" for turn in (1, 2, 3) for role in ("user", "assistant")]
        assert page.locator("#turns li").count() == 2
        assert page.evaluate("window.kept")
        GATE.open()
        page.get_by_text("Turn 3 of 3, final").wait_for()
        page.close()


def test_a_run_that_is_deleted_while_it_is_watched_is_said_to_be_and_asked_for_no_more(browser: Any) -> None:
    with server(Gated, web="127.0.0.1:0") as found, CuttingProxy(found.web_address or "") as proxy:
        run = f"http://{found.web_address}/api/runs/{start_run(found)}"
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda one: asked.append(one.url))
        page.goto(run.replace(str(found.web_address), proxy.address).replace("/api/", "/console/"))
        page.get_by_text("assistant 1", exact=True).wait_for()
        proxy.down = True
        proxy.cut()
        assert httpx.post(f"{run}/cancel", json={}, trust_env=False).status_code == 200
        assert httpx.delete(run, trust_env=False).status_code == 204
        GATE.open()  # its evaluator waits no more
        proxy.down = False
        page.get_by_text("The run was deleted. This page shows the last known state of the run.").wait_for()
        before = len(asked)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.locator("#said", has_text="deleted").wait_for(state="attached")  # for screen readers
        assert len(asked) == before
        assert page.get_by_text("assistant 1", exact=True).is_visible()
        page.close()


def test_what_is_tried_says_that_its_answer_broke_off_and_keeps_what_came(browser: Any) -> None:
    with server(Gated, web="127.0.0.1:0") as found, CuttingProxy(found.web_address or "") as proxy:
        page = browser.new_page()
        page.goto(f"http://{proxy.address}/console/try?type=gated")
        page.select_option("[name=add-type]", "response-length")
        page.locator("[value='add:/evaluators']").click()
        page.get_by_role("button", name="Evaluate").click()
        page.locator("#results th", has_text="Response Length").wait_for()
        proxy.cut()
        page.get_by_text("The response ended too early: some results are missing.").wait_for()
        assert page.locator("#results th", has_text="Response Length").is_visible()
        GATE.open()
        page.close()
