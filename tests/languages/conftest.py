"""The languages whose tools are installed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .examples import LANGUAGES, Language, build, missing_tools


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> dict[str, str | None]:
    """What went wrong with the build, by language; only of those that the chosen tests are for.

    At the same time, because they wait for their registries most of the time.
    """
    chosen = [found for item in request.session.items if (found := _language_of(item))]
    wanted = {language.name: language for language in chosen if not missing_tools(language)}
    with ThreadPoolExecutor() as pool:
        return dict(zip(wanted, pool.map(build, wanted.values()), strict=True))


def _language_of(item: Any) -> Language | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("language") if callspec else None


@pytest.fixture(scope="session", params=LANGUAGES, ids=lambda language: language.name)
def language(request: Any, built: dict[str, str | None]) -> Language:
    """One language, built; skipped where its tools are missing."""
    if missing := missing_tools(request.param):
        pytest.skip(f"{request.param.name}: not installed: {', '.join(missing)}")
    problem = built[request.param.name]
    assert problem is None, problem
    return request.param
