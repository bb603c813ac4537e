"""The page in a real browser: Debian's Chromium, driven by playwright, checked by axe-core."""

from pathlib import Path
from typing import Any

import pytest

from evald_server.suites.reports.page import write_page
from evald_server.suites.reports.report import SuiteReport

from ...chromium import open_all, violations
from . import samples
from .hostile import HOSTILE, hostile_report

pytestmark = pytest.mark.browser

# Looked at by people, and kept by CI.
SHOTS = Path(__file__).parents[3] / "build/reports"


def _pages() -> dict[str, list[SuiteReport]]:
    staging, production = samples.rich_report(), samples.rich_report(target="production", shift=3)
    return {
        "one": [staging],
        "targets": [staging._replace(comparison=None), production._replace(history=())],
        "empty": [samples.report([])],
        "nothing": [],
        "hostile": [hostile_report()],
        "large": [
            samples.report(
                [samples.case(f"case-{number}", "PPPPPPPPPF"[number % 10]) for number in range(600)]
            )
        ],
    }


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, reports in _pages().items():
        with (folder / f"{name}.html").open("w", encoding="utf-8") as stream:
            write_page(reports, stream)
    return {name: folder / f"{name}.html" for name in _pages()}


class Screen:
    """A page that is open, with what it did that it must not do."""

    def __init__(
        self, browser: Any, path: Path, width: int = 1280, scheme: str = "light", **options: Any
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on(
            "dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss())
        )
        self.page.on("console", lambda message: self.faults.append(f"console {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error {error}"))
        self.page.on("request", lambda request: self._asked(request, path))
        self.page.goto(path.as_uri())

    def _asked(self, request: Any, path: Path) -> None:
        if request.url != path.as_uri():
            self.faults.append(f"request {request.url}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert not self.faults


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"), (320, "light")]
)
@pytest.mark.parametrize("name", ["one", "targets", "empty", "nothing", "hostile"])
def test_a_page_is_accessible_and_fits_every_screen(
    browser: Any, axe: str, files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    with Screen(browser, files[name], width, scheme) as page:
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(SHOTS / f"{name}-{width}-{scheme}.png"), full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        open_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        reasons = "[...document.querySelectorAll('.case[open] > summary > .why')]"
        assert page.evaluate(f"{reasons}.every((one) => one.scrollHeight <= one.clientHeight + 1)")
        if width == 320:  # which WCAG asks for; for all else it is as 390
            return
        assert not violations(page, axe)


def test_nothing_that_callers_send_runs_or_loads(browser: Any, files: dict[str, Path]) -> None:
    """Texts stay texts: the same elements as with harmless ones, and each text is there to read."""
    with Screen(browser, files["hostile"]) as page:
        open_all(page)
        harmless = page.evaluate(
            "[...document.querySelectorAll('main *')].map((one) => one.localName).join()"
        )
        said = page.inner_text("main")
        page.wait_for_timeout(300)  # what would load late has had its chance
    assert "script" not in harmless.split(",")
    assert not {"img", "iframe", "object", "embed", "link", "base", "meta", "style", "video"} & set(
        harmless.split(",")
    )
    for text in HOSTILE:
        if text.isprintable() and len(text) < 120:
            assert " ".join(text.split()) in " ".join(said.split()), text


def test_the_policy_stops_a_script_that_gets_into_the_page(
    browser: Any, files: dict[str, Path], tmp_path: Path
) -> None:
    """Were the escaping broken, the policy would still hold."""
    changed = tmp_path / "changed.html"
    page_text = files["one"].read_text(encoding="utf-8")
    changed.write_text(
        page_text.replace(
            "<main",
            "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\"><main",
        )
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto(changed.as_uri())
    page.wait_for_timeout(200)
    assert page.title() != "run"
    context.close()


def test_a_page_reads_without_script(browser: Any, files: dict[str, Path]) -> None:
    with Screen(browser, files["one"], java_script_enabled=False) as page:
        assert not page.locator("form.filter").is_visible()
        first = page.locator("details.case").first
        first.locator("summary").first.click()
        assert first.locator(".trial[open] .conversation").is_visible()


def test_cases_are_filtered_by_text_and_verdict(browser: Any, files: dict[str, Path]) -> None:
    with Screen(browser, files["large"]) as page:
        shown = page.locator(".cases > li:visible")
        assert shown.count() == 600
        verdicts = page.eval_on_selector_all(".cases > li", "all => all.map((one) => one.dataset.verdict)")
        assert verdicts == ["fail"] * 60 + ["pass"] * 540
        page.fill("form.filter input", "case-11")
        assert shown.count() == 11
        page.select_option("form.filter select", "fail")
        assert shown.count() == 1
        assert page.inner_text("form.filter output") == "1 of 600"


def test_what_failed_is_unfolded_on_paper(browser: Any, files: dict[str, Path]) -> None:
    with Screen(browser, files["one"]) as page:
        page.emulate_media(media="print")
        page.pdf(path=str(SHOTS / "one.pdf"))
        assert (
            page.locator("details.case.fail[open]").count() == page.locator("details.case.fail").count() > 0
        )
        assert not page.locator("form.filter").is_visible()
