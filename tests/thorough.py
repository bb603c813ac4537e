"""Rows of tests that only `make thorough` and CI run."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(rows: Iterable[Any], count: int) -> list[Any]:
    """Return rows for `parametrize`, of which all after the first `count` are thorough."""
    return [
        row if index < count else pytest.param(row, marks=pytest.mark.thorough)
        for index, row in enumerate(rows)
    ]
