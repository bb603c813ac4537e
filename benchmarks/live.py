"""Waiting times in Chromium: for a page with an empty cache, and from an evaluator's result to its text on screen."""

import http.client
import json
import os
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from . import workload
from .lab import Lab
from .load import BrokenRun, MissingTool
from .pairs import Row, at_most, in_turn, number
from .web import start_web

# Number of results per round.
_RESULTS: Final = 30

# Logs the age of each result in milliseconds, in the frame after the one that shows it. Results from before the page
# was loaded do not count.
_OBSERVER: Final = """() => {
  const now = () => performance.timeOrigin + performance.now();
  const began = now();
  const look = (records) => {
    for (const node of records.flatMap((one) => [...one.addedNodes])) {
      const told = Number(/answered at ([0-9.]+)/.exec(node.textContent)?.[1]);
      if (told > began) requestAnimationFrame(() => setTimeout(() => console.log(`shown ${now() - told}`)));
    }
  };
  new MutationObserver(look).observe(document.querySelector("main"), { childList: true, subtree: true });
}"""


def live(lab: Lab) -> list[Row]:
    """Measure live runs, and the "Try it" page of an evaluator."""
    _, port = start_web(lab, plugins=workload.PLUGINS)
    address = f"http://127.0.0.1:{port}"
    rows = []
    with _browser() as browser:
        for name, watch in (("a live run", _watch_run), ("Try it", _try)):
            rounds = []
            for _ in range(lab.rounds + 1):
                page = browser.new_page()
                shown: list[float] = []
                page.on("console", lambda said, shown=shown: shown.extend(_shown(said.text)))
                watch(page, address)
                page.close()
                if len(shown) < _RESULTS / 2:
                    raise BrokenRun(f"{name}: {len(shown)} of {_RESULTS} results were seen")
                rounds.append(sorted(shown))
            del rounds[0]  # warm-up
            middle = statistics.median(map(statistics.median, rounds))
            slowest = max(found[-1] for found in rounds)
            loads = "/".join(f"{load:.0f}" for load in os.getloadavg()[:2])
            rows.append(
                Row(
                    f"{name}: p95 from a result to its text on the screen, ms",
                    at_most(300),
                    [found[95 * len(found) // 100] for found in rounds],
                    f"median {number(middle)}, slowest {number(slowest)}, load of the machine {loads}",
                )
            )
    return rows


def first_page(lab: Lab) -> list[Row]:
    """Load a page with an empty cache and, in turn, a response of a few bytes from the same server."""
    _, port = start_web(lab)
    address = f"http://127.0.0.1:{port}"
    with _browser() as browser:

        def loaded(path: str) -> tuple[float, float]:
            context = browser.new_context()  # has its own empty cache
            page = context.new_page()
            page.goto(f"{address}{path}")
            ready, whole = page.evaluate(
                "(({domContentLoadedEventEnd, loadEventEnd}) => [domContentLoadedEventEnd, loadEventEnd])"
                "(performance.getEntriesByType('navigation')[0])"
            )
            context.close()
            return ready, whole

        slices = in_turn(lab.rounds, lambda: loaded("/console"), lambda: loaded("/api/status"))
    ready, empty = ([side[0] for side in sides] for sides in zip(*slices, strict=True))
    more = [page - bare for page, bare in zip(ready, empty, strict=True)]
    return [
        Row("first page with an empty cache, DOMContentLoaded, ms", at_most(100), ready),
        Row(
            "the same, more than an answer of a few bytes, ms",
            at_most(60),
            more,
            f"that: {number(statistics.median(empty))} ms",
        ),
        Row(
            "the same page with its scripts and styles, to its load event, ms",
            None,
            [page[1] for page, _ in slices],
        ),
    ]


def _watch_run(page: Any, address: str) -> None:
    turns = [
        {"role": role, "content": f"{role} {turn}"}
        for turn in range(_RESULTS)
        for role in ("user", "assistant")
    ]
    scenario = {"name": str(uuid4()), "evaluators": ["bench.telling-time"]}
    ids = {
        "scenarioId": _post(address, "scenarios", scenario | {"maxMessages": len(turns)}),
        "connectorId": _post(
            address, "connectors", {"name": scenario["name"], "type": "replay", "config": {"messages": turns}}
        ),
    }
    page.goto(f"{address}/console/runs/{_post(address, 'runs/playground', ids)}")
    page.evaluate(_OBSERVER)
    page.get_by_text(f"Turn {_RESULTS} of {_RESULTS}, final").wait_for()


def _try(page: Any, address: str) -> None:
    page.goto(f"{address}/console/try?type=bench.telling-time")
    page.evaluate(_OBSERVER)
    for _ in range(_RESULTS):
        page.get_by_role("button", name="Evaluate").click()
        page.locator("#results .outcome").wait_for()


def _shown(text: str) -> list[float]:
    return [float(text.removeprefix("shown "))] if text.startswith("shown ") else []


def _post(address: str, kind: str, data: dict[str, Any]) -> str:
    """Create a resource or a run. Return its id."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    connection.request("POST", f"/api/{kind}", json.dumps(data), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if "id" not in answer:
        raise BrokenRun(f"/api/{kind}: {answer}")
    return str(answer["id"])


@contextmanager
def _browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        raise MissingTool("no chromium; on Debian: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise MissingTool("no playwright; pip install -e '.[browser]'") from None
    with sync_playwright() as driver:
        # Chromium's sandbox does not run as root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()
