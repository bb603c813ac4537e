"""The languages whose tools are installed."""

from typing import Any

import pytest

from .examples import LANGUAGES, Language, build


@pytest.fixture(scope="session", params=LANGUAGES, ids=lambda language: language.name)
def language(request: Any) -> Language:
    """One language, built; skipped where its tools are missing."""
    build(request.param)
    return request.param
