"""Pages that show runs and suite runs: what they say, and that what callers send stays text."""

import json
import re
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evald_server.http import console
from evald_server.http.guards import HEADERS
from evald_server.store import rollups
from evald_server.store.database import FILE_NAME, Database
from evald_server.store.rollups import HOUR, METRIC, Rollup, ValueCount
from evald_server.testing import async_server

from ..suites.reports import samples
from ..suites.reports.hostile import COMBINED, HOSTILE, hostile_report
from . import stored
from .exchange import Exchange, send

SOURCES = Path(console.__file__).parent
SHARED = SOURCES.parents[1] / "pages"
PAGES = stored.pages()

VOID = {"meta", "link", "input", "line", "rect", "circle", "path", "img", "br"}


class Elements(HTMLParser):
    """The elements of a page, in order, and what is wrong with them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.faults: list[str] = []
        self.text = ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag} {name}>")
            if name in ("href", "src", "action") and not (value or "").startswith(("/", "#")):
                self.faults.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self.open.pop() != tag:
            self.faults.append(f"</{tag}>")


def read(found: Exchange) -> Elements:
    elements = Elements()
    elements.feed(found.body.decode())
    assert not elements.faults
    assert not elements.open
    return elements


@pytest.fixture(name="web", scope="module")
async def _web(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("usual")
    await stored.fill(folder, stored.usual_runs())
    async with async_server(web="127.0.0.1:0", data_dir=folder) as server:
        assert server.web_address is not None
        yield server.web_address


@pytest.fixture(name="empty", scope="module")
async def _empty() -> AsyncIterator[str]:
    async with async_server(web="127.0.0.1:0") as server:
        assert server.web_address is not None
        yield server.web_address


async def text_of(web: str, path: str, status: int = 200) -> str:
    found = await send(web, "GET", path)
    assert found.status == status, found.body[:2000]
    return found.body.decode()


@pytest.mark.parametrize("name", PAGES)
async def test_every_page_has_its_headers_and_one_heading(web: str, name: str) -> None:
    found = await send(web, "GET", PAGES[name])
    assert found.status == (404 if name == "nowhere" else 200)
    assert {key: found.headers[key.lower()] for key in HEADERS} == dict(HEADERS)
    elements = read(found)
    assert elements.seen.count("h1") == elements.seen.count("main") == 1
    assert len(found.body) <= 100_000


@pytest.mark.parametrize("path", ["/console/overview", "/console/runs", "/console/suites"])
async def test_a_page_without_data_says_how_to_get_some(empty: str, path: str) -> None:
    found = await send(empty, "GET", path)
    read(found)
    assert 'class="empty"' in found.body.decode()


async def test_the_root_leads_to_the_overview(empty: str) -> None:
    for path in ("/", "/console", "/console/"):
        found = await send(empty, "GET", path)
        assert (found.status, found.headers["location"]) == (302, "/console/overview")


async def test_files_are_kept_for_good_and_change_their_address_with_their_content(web: str) -> None:
    page = await text_of(web, PAGES["runs"])
    addresses = set(re.findall(r'"(/console/static/[^"]+)"', page))
    assert {address.rpartition(".")[2] for address in addresses} == {"css", "js", "svg"}
    sizes = {"css": 0, "js": 0}
    for address in addresses:
        found = await send(web, "GET", address)
        assert (found.status, "immutable" in found.headers["cache-control"]) == (200, True)
        assert (await send(web, "GET", re.sub("[0-9a-f]{16}", "0" * 16, address))).status == 404
        sizes[address.rpartition(".")[2]] = len(found.body)
    assert sizes["css"] <= 20_000
    assert sum(path.stat().st_size for path in (SOURCES / "static").glob("*.js")) <= 30_000


async def test_a_run_shows_the_two_tables_of_the_chosen_turn(web: str) -> None:
    """The words are those of the specification."""
    page = await text_of(web, PAGES["run"] + "?turn=1")
    assert "Turn 1 of 3" in page
    assert [page.count(f"<caption>{name}</caption>") for name in ("Assertions", "Metrics")] == [1, 1]
    for words in (
        '<th scope="col">Evaluator</th><th scope="col">Result</th><th scope="col" class="n">Score</th>',
        '<th scope="col">Metric</th><th scope="col" class="n">Value</th><th scope="col">Reason</th>',
        ">LLM Judge</th>",
        ">0.95</td>",
        "</span> Pass</span>",
        "request to the judge",
        "not calibrated",
    ):
        assert words in page, words
    last = await text_of(web, PAGES["run"])
    assert "Turn 3 of 3, final" in last
    assert "</span> Fail</span>" in last


async def test_a_turn_that_can_still_pass_is_no_failure(web: str) -> None:
    strip = (await text_of(web, PAGES["run"])).partition('<ol id="turns">')[2].partition("</ol>")[0]
    assert re.findall(r'<span class="hidden">([^<]+)</span>', strip) == ["Passed", "Failed so far", "Failed"]
    assert strip.count("data-red") == 1


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The texts of the cells of the table that begins with a heading."""
    tables = [part.partition("</table>")[0] for part in page.split("<table")[1:]]
    (table,) = [one for one in tables if re.search(rf"<th[^>]*>{heading}</th>", one)]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in table.split("<tr")[1:]]
    return [[" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row] for row in rows]


@pytest.mark.parametrize(
    ("name", "outcome", "reason", "regex"),
    [
        (stored.PASSED, "pass ✓ Passed", "Regex, turn 3", ["✓ Passed", "✓ Passed", "✓ Passed"]),
        (stored.FAILED, "fail ✗ Failed", "Regex, turn 3", ["✓ Passed", "◌ Failed so far", "✗ Failed"]),
        (
            stored.BROKE,
            "error ! Inconclusive",
            "EVALUATOR_ERROR: Regex: TIMEOUT",
            ["✓ Passed", "! Inconclusive"],
        ),
    ],
)
async def test_a_run_shows_its_outcome_and_the_results_of_all_turns(
    web: str, name: str, outcome: str, reason: str, regex: list[str]
) -> None:
    page = await text_of(web, f"/console/runs/{stored.run_id(name)}")
    found = re.search(r'class="outcome"><span class="verdict (\w+)"><span[^>]*>(.)</span> (\w+)<', page)
    assert found is not None
    assert " ".join(found.groups()) == outcome
    assert reason in page.partition('class="outcome"')[2].partition("<nav")[0]
    turns = [str(number) for number in range(1, len(regex) + 1)]
    head, *rows = rows_of(page, "1")
    assert head == ["Evaluator", *turns]
    assert {row[0]: row[1:] for row in rows} == {
        "LLM Judge": ["✓ Passed"] * len(turns),
        "Regex": regex,
        "Tool Call Count": ["1"] * len(turns),
        "Token Usage": ["n/a"] * len(turns),
    }


async def test_suite_runs_show_their_verdict_pass_rate_and_its_change(web: str) -> None:
    _, *rows = rows_of(await text_of(web, "/console/suites"), "Change")
    assert [" ".join(row[:5]).replace("\u202f", " ") for row in rows] == [
        "✗ Failed checkout staging 54.5 % 28 to 78.7 % +8.4",
        "✗ Failed checkout staging 46.2 % 23.2 to 70.9 % \u2013",
    ]
    page = await text_of(web, PAGES["suite"])
    (others,) = re.findall(r'<select name="base">(.*?)</select>', page, re.DOTALL)
    assert re.findall(r'value="([^"]+)"', others) == [stored.run_id("suite-0")]


async def test_a_watch_of_a_run_that_is_gone_says_that_it_is_over(web: str) -> None:
    said = await text_of(web, "/console/runs/00000000-0000-4000-8000-000000000000/events")
    assert "event: failed\n" in said
    assert json.loads(said.rpartition("data: ")[2])["final"] is True


async def test_the_overview_shows_how_metrics_are_spread_and_in_what_unit(tmp_path: Path) -> None:
    now = time.time_ns() // 1000
    begin = now - now % HOUR
    counted = [Rollup(begin, METRIC, "response-latency", 20, 0, 0, 0, 20, 210.0)]
    values = [ValueCount(begin, "response-latency", float(value), 1) for value in range(1, 21)]
    # As an earlier version has left it, of a name that callers give.
    old = [Rollup(begin, METRIC, "mine", 1, 0, 0, 0, 1, 2.0)]
    seen = []
    for counts in ([*counted, *values], old):
        database = Database(tmp_path / FILE_NAME)
        await database.start()
        await database.write(lambda connection, counts=counts: rollups.add(connection, counts))  # type: ignore[misc]
        await database.close()
        async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
            page = read(await send(server.web_address or "", "GET", "/console/overview"))
        seen.append(page.text.partition("Over time")[2].partition("Failing now")[0].split("\n"))
    rows, note = [line.strip() for line in seen[0] if line.strip()]
    assert rows == "Response Latency20010.519seconds"
    assert "at most 11.1" in note
    assert "only in the mean" not in note
    first, second, note = [line.strip() for line in seen[1] if line.strip()]
    assert (first, second) == (rows, "mine102n/a")
    assert "only in the mean" in note


async def test_what_broke_is_never_drawn_as_failed(web: str) -> None:
    page = await text_of(web, PAGES["run-broke"])
    assert "</span> Inconclusive</span>" in page
    assert "Failed" not in page
    assert "</span> Fail<" not in page
    listed = await text_of(web, "/console/runs?status=error")
    assert "</span> Inconclusive</span>" in listed
    assert "</span> Failed</span>" not in listed


async def test_what_a_page_has_no_room_for_is_counted_and_passed(tmp_path: Path) -> None:
    crowd = stored.a_run("crowd", "PF")
    found = crowd.turns[1].evaluation
    found.CopyFrom(samples.crowded().trials[-1].turns[0].evaluation)
    broken = found.results.add(name="broken metric", kind=2, verdict=samples.ERROR)  # type: ignore[arg-type]
    broken.error.code = "TIMEOUT"
    runs = [stored.a_run(f"run-{number}", "F") for number in range(12)]
    for number, one in enumerate(runs):
        one.scenario_id = f"scenario-{number}"
    await stored.fill(tmp_path, [crowd, *runs])
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
        web = server.web_address or ""
        overview = await text_of(web, "/console/overview")
        assert "The last 13 runs of this period that did not pass." in overview
        assert "3 more runs with other failures" in overview
        page = await text_of(web, f"/console/runs/{crowd.id}")
    assert "16 more results in the JSON" in page
    assert "40 more warnings" in page
    assert re.search(r">at the end</th><td class=\"fixed\"><span class=\"verdict error\">", page)
    assert re.search(r">broken metric</th><td class=\"n\"><span class=\"verdict error\">", page)
    columns = page.partition("All turns")[2]
    assert re.search(
        r">broken metric</th><td class=\"n\"></td><td class=\"n\"><span class=\"error\">", columns
    )


async def test_a_run_that_did_not_end_has_no_verdict(web: str) -> None:
    for name, word in (("run-cancelled", "Cancelled"), ("run-interrupted", "Interrupted")):
        page = await text_of(web, f"/console/runs/{stored.run_id(name)}")
        summary = page.partition('<div class="summary">')[2].partition("</div>")[0]
        assert f'<span id="status">{word}</span>' in summary
        assert "verdict pass" not in summary


async def test_a_long_message_is_cut_and_there_as_a_whole(web: str) -> None:
    page = await text_of(web, PAGES["run-long"])
    address = re.search(r'href="([^"]+/messages/\d+)"', page)
    assert address is not None
    found = await send(web, "GET", address[1])
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.body.decode() == stored.LONG
    assert len(page) < 100_000


async def test_a_long_conversation_shows_the_messages_around_the_turn(web: str) -> None:
    page = await text_of(web, PAGES["run-talk"])
    assert "Messages 31 to 80 of 120" in page
    assert 'id="turn-20"' in page


async def test_filters_are_in_the_address_and_unknown_ones_are_refused(web: str) -> None:
    for query, wanted in (
        ("verdict=failed", {stored.FAILED}),
        ("status=error", {stored.BROKE}),
        ("status=interrupted", {"run-interrupted"}),
        ("evaluator=regex&verdict=failed", {stored.FAILED}),
        ("scenario=other", set()),
    ):
        page = await text_of(web, f"/console/runs?{query}")
        found = set(re.findall(r'href="/console/runs/([0-9a-f-]{36})" data-item', page))
        assert found == {stored.run_id(name) for name in wanted}, query
    assert "wanted one of" in await text_of(web, "/console/runs?verdict=green", 400)
    chips = (await text_of(web, "/console/runs?persona=persona&experiment=e&verdict=failed")).partition(
        "chips"
    )[2]
    for filters in ("experiment=e&amp;verdict=failed", "persona=persona&amp;verdict=failed"):
        assert f'href="/console/runs?{filters}" aria-label="Remove' in chips
    assert "page_token" in await text_of(web, "/console/runs?page=%C3%BC", 400)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/runs/none", 404),
        (PAGES["run"] + "?turn=99", 404),
        (PAGES["run"] + "?turn=x", 400),
        (PAGES["run"] + "/messages/999", 404),
        ("/console/suites/none", 404),
        ("/console/suites/compare", 400),
        ("/console/suites/compare?base=a&new=b", 404),
        (PAGES["suite"] + "/case?id=none", 404),
        (PAGES["suite"] + "/case", 404),
        (PAGES["suite"] + "?page=x", 400),
        ("/console/overview?period=1y", 400),
    ],
)
async def test_what_is_not_there_is_said(web: str, path: str, status: int) -> None:
    read(found := await send(web, "GET", path))
    assert found.status == status


async def test_a_metric_of_a_suite_run_is_no_assertion_that_passed(web: str) -> None:
    page = await text_of(web, PAGES["suite"])
    assertions, metrics = (
        page.partition(f"<caption>{caption}</caption>")[2].partition("</table>")[0]
        for caption in ("Assertions", "Metrics")
    )
    assert "regex" in assertions.lower()
    assert "Tool Call Count" in metrics
    assert "Tool Call Count" not in assertions
    history = page.partition('aria-label="Metrics of the last runs, 1"')[2].partition("</table>")[0]
    assert "tool-call-count" in history
    assert 'class="spark"' in history


async def test_cases_that_did_not_pass_come_first(web: str) -> None:
    page = await text_of(web, PAGES["suite"])
    cases = page.partition('id="cases"')[2]
    words = re.findall(r"</span> (Failed|Inconclusive|Passed|Skipped)</span>", cases)
    order = ["Failed", "Inconclusive", "Passed", "Skipped"]
    assert words == sorted(words, key=order.index)
    assert set(words) == set(order)


@pytest.mark.parametrize(
    ("only", "failed", "passed"), [("", 60, 50), ("", 50, 60), ("failed", 60, 50), ("failed", 50, 60)]
)
async def test_every_case_of_a_large_suite_run_is_on_one_of_its_pages(
    tmp_path: Path, only: str, failed: int, passed: int
) -> None:
    counts = {"failed": failed, "passed": passed}
    names = {verdict: [f"{verdict}-{n:02}" for n in range(count)] for verdict, count in counts.items()}
    cases = [samples.case(name, name[0].upper()) for name in names["passed"] + names["failed"]]
    await stored.fill(tmp_path, [], [samples.report(cases)])
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
        path = f"/console/suites/{stored.run_id('suite-0')}" + (f"?verdict={only}" if only else "")
        found = list[str]()
        while path and len(found) <= len(cases):
            page = await text_of(server.web_address or "", path)
            found += re.findall(r'/case\?id=([^"&]+)"', page.partition('id="cases"')[2])
            older = re.search(r'<a[^>]* href="([^"]+)"[^>]*>More cases', page)
            path = older[1].replace("&amp;", "&") if older else ""
    assert found == names["failed"] + ([] if only else names["passed"])


async def test_a_comparison_shows_its_counts_and_changed_cases(web: str) -> None:
    page = await text_of(web, PAGES["compare"])
    for words in ("McNemar p", "broken</span>", "fixed</span>", "Changed cases"):
        assert words in page
    address = re.search(r'href="([^"]+/case\?id=[^"]+)"', page)
    assert address is not None
    assert "Assertions" in await text_of(web, address[1].replace("&amp;", "&"))


async def test_a_run_is_deleted_from_its_page(tmp_path: Path) -> None:
    await stored.fill(tmp_path, [stored.a_run("gone", "P"), stored.a_run("broke", "E")])
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
        web = server.web_address or ""
        path = f"/console/runs/{stored.run_id('gone')}"
        found = await send(web, "POST", f"{path}/delete")
        assert (found.status, found.headers["location"]) == (303, "/console/runs")
        assert (await send(web, "GET", path)).status == 404
        assert (await send(web, "POST", f"{path}/retry")).status == 404
        assert (await send(web, "POST", f"{path}/explode")).status == 405
        suite = f"/console/suites/{stored.run_id('suite-0')}"
        assert (await send(web, "POST", f"{suite}/delete")).status == 303
        assert (await send(web, "GET", suite)).status == 404


async def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    """In every field: the page is well-formed, and no element or attribute comes from them."""
    runs = stored.hostile_runs()
    await stored.fill(tmp_path, runs, [hostile_report()] * 2)
    allowed: set[str] = set()
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
        web = server.web_address or ""
        suite = stored.pages()["suite"]
        cases = re.findall(r'href="([^"]+/case\?id=[^"]+)"', await text_of(web, suite))
        paths = [
            "/console/overview",
            "/console/runs",
            "/console/suites",
            suite,
            stored.pages()["compare"],
            *(f"/console/runs/{run.id}" for run in runs),
            *(case.replace("&amp;", "&") for case in cases),
        ]
        for path in paths:
            allowed |= set(read(await send(web, "GET", path)).seen)
    assert not allowed & {"iframe", "img", "base", "object", "embed", "style", "math", "b", "font"}


async def test_10_pages_with_hostile_texts_have_the_elements_of_pages_with_harmless_ones(
    tmp_path: Path,
) -> None:
    """Only runs: their fields are those of all pages that show what callers send."""
    same_shapes = 6  # of the runs, which differ in verdicts and roles
    runs = stored.hostile_runs(("harmless",) * same_shapes + tuple(COMBINED))
    await stored.fill(tmp_path, runs)
    async with async_server(web="127.0.0.1:0", data_dir=tmp_path) as server:
        seen = [
            read(await send(server.web_address or "", "GET", f"/console/runs/{run.id}")).seen for run in runs
        ]
    assert len(HOSTILE) + len(COMBINED) >= 200
    for number, elements in enumerate(seen):
        assert elements == seen[number % same_shapes], runs[number].scenario.name


def test_sources_mark_nothing_as_safe_and_write_no_html() -> None:
    """Statement 11."""
    wrong = re.compile(
        r"\|\s*safe\b|Markup|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\sstyle=|\son[a-z]+=\"|\beval\("
    )
    files = [
        path
        for folder in (SOURCES, SHARED)
        for path in folder.rglob("*")
        if path.suffix in (".py", ".html", ".js", ".svg", ".css")
    ]
    assert len(files) > 20
    found = [
        f"{path.name}: {match[0]}"
        for path in files
        for match in wrong.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found
