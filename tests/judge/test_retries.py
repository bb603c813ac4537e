"""Waits double, are shortened by chance, and are never shorter than what the endpoint asked for."""

from datetime import UTC, datetime

import pytest

from evald_server.retries import RetryBackoff, parse_retry_after

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def test_waits_double_up_to_the_longest() -> None:
    waits = [RetryBackoff(0.5, 8.0).delay(faults, None, lambda: 1.0) for faults in range(1, 8)]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_chance_takes_half_of_a_wait_at_most() -> None:
    assert RetryBackoff(0.5, 8.0).delay(3, None, lambda: 0.0) == 1.0
    spread = {RetryBackoff().delay(3, None) for _ in range(20)}
    assert len(spread) > 10
    assert all(1.0 <= wait <= 2.0 for wait in spread)


@pytest.mark.parametrize(("asked", "wait"), [(0.0, 0.5), (0.2, 0.5), (30.0, 30.0)])
def test_no_wait_is_shorter_than_asked(asked: float, wait: float) -> None:
    assert RetryBackoff(0.5, 8.0).delay(1, asked, lambda: 1.0) == wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "?", "retry-after": "7"}, 7.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 -0000"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2099 11:00:00 GMT"}, 86_400.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 +99999999999999"}, None),
        ({"retry-after": "1e9"}, 86_400.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_the_endpoints_wish_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, lambda: NOW) == seconds
