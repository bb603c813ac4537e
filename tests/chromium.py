"""Pages in a real browser: Debian's Chromium, driven by playwright, checked by axe-core."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parent / "suites/reports/node"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def _need(program: str, packages: str) -> str:
    """Return the path of a program. Skips the test if it is missing, or fails it if all tools are required."""
    path = shutil.which(program)
    if path is None:
        missing = f"no {program} (Debian: apt-get install {packages})"
        assert not os.environ.get("EVALD_REQUIRE_TOOLS"), missing
        pytest.skip(missing)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = _need("chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Chromium's sandbox refuses to run as root, as CI does.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = driver.chromium.launch(executable_path=path, args=options)
        yield found
        found.close()


@pytest.fixture(scope="module")
def axe() -> str:
    subprocess.run(
        [_need("npm", "nodejs npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=TOOLS,
        check=True,
    )
    return (TOOLS / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


def open_all(page: Any) -> None:
    """Unfold all details, so that they are checked too."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def violations(page: Any, axe_source: str) -> list[tuple[str, list[str]]]:
    """Return the violations that axe-core finds on a page."""
    page.evaluate(axe_source)
    found = page.evaluate(f"axe.run({{runOnly: {RULES}, resultTypes: ['violations']}})")
    return [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found["violations"]]
