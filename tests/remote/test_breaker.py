"""The circuit of one instance, and the retries of one type, without a server."""

import random

import pytest

from evald_server.remote.breaker import CircuitBreaker, RetryBudget


class Clock:
    """Time that only passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _breaker() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    return CircuitBreaker(clock, jitter=lambda: 0.0), clock


def _call(breaker: CircuitBreaker, *, worked: bool | None) -> bool:
    return breaker.end(probe=breaker.begin("a"), worked=worked)


@pytest.mark.parametrize(
    ("outcomes", "opens"),
    [
        ("....................", False),
        ("xxxx", False),
        ("xxxxx", True),
        (".x.x.x.x.x", True),
        ("..x..x..x..x..x..x..", False),
        ("...............xxxxx", False),
        ("..........xxxxxxxxxx", True),
        ("?????????????", False),
        ("xxxx?????????", False),
        ("xxxx????x", True),
    ],
)
def test_it_opens_when_half_of_the_last_calls_failed_and_at_least_five(outcomes: str, opens: bool) -> None:
    breaker, _ = _breaker()
    meaning = {".": True, "x": False, "?": None}
    for outcome in outcomes:
        assert breaker.allows("a")
        _call(breaker, worked=meaning[outcome])
    assert breaker.is_open == opens
    assert breaker.allows("a") == (not opens)


def _opened() -> tuple[CircuitBreaker, Clock]:
    breaker, clock = _breaker()
    assert [_call(breaker, worked=False) for _ in range(5)] == [False] * 4 + [True]
    return breaker, clock


def test_one_call_at_a_time_probes_after_the_wait_and_closes_it() -> None:
    breaker, clock = _opened()
    clock.now = 0.99
    assert not breaker.allows("a")
    clock.now = 1.0
    assert breaker.allows("a")
    probe = breaker.begin("a")
    assert probe
    assert not breaker.allows("a"), "one probe at a time"
    breaker.end(probe=probe, worked=True)
    assert not breaker.is_open
    # The failures of before are forgotten, and the next opening is like the first one.
    assert [_call(breaker, worked=False) for _ in range(5)] == [False] * 4 + [True]
    assert not breaker.allows("a")
    clock.now = 2.0
    assert breaker.allows("a")


def test_each_failed_probe_doubles_the_wait_up_to_30_s() -> None:
    breaker, clock = _opened()
    waits = []
    for _ in range(7):
        began = clock.now
        while not breaker.allows("a"):
            clock.now += 0.5
        waits.append(clock.now - began)
        _call(breaker, worked=False)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_a_probe_that_says_nothing_lets_another_one_try() -> None:
    breaker, clock = _opened()
    clock.now = 1.0
    _call(breaker, worked=None)
    assert breaker.is_open
    assert breaker.allows("a")


def test_calls_from_before_the_opening_change_nothing_after_it() -> None:
    breaker, clock = _breaker()
    late = [breaker.begin("a") for _ in range(3)]
    for _ in range(5):
        _call(breaker, worked=False)
    clock.now = 0.5
    for probe in late:
        assert not breaker.end(probe=probe, worked=True)
    for _ in range(5):
        assert not breaker.end(probe=False, worked=False)
    assert breaker.is_open
    clock.now = 1.0
    assert breaker.allows("a")
    clock.now = 100.0
    assert not breaker.end(probe=False, worked=True)
    assert breaker.is_open


def test_servers_do_not_probe_at_the_same_moment() -> None:
    draw = random.Random(1)
    clock = Clock()
    times = set()
    for _ in range(20):
        breaker = CircuitBreaker(clock, draw.random)
        for _ in range(5):
            _call(breaker, worked=False)
        clock.now = 0.0
        while not breaker.allows("a"):
            clock.now += 0.001
        times.add(round(clock.now, 3))
        clock.now = 0.0
    assert min(times) >= 1.0
    assert max(times) <= 1.201
    assert len(times) > 10


def _late(breaker: CircuitBreaker, principal: str, count: int = 5) -> None:
    for _ in range(count):
        breaker.end(probe=breaker.begin(principal), worked=False, late=principal)


def _allowed(breaker: CircuitBreaker) -> str:
    return "".join(name for name in "abc" if breaker.allows(name))


def test_late_calls_of_one_principal_open_it_for_this_one_only() -> None:
    breaker, clock = _breaker()
    _late(breaker, "a")
    assert breaker.is_open
    assert _allowed(breaker) == "bc"
    # Calls of `a` that began before change nothing, and neither do calls of others that work.
    for _ in range(20):
        breaker.end(probe=False, worked=False, late="a")
        breaker.end(probe=breaker.begin("b"), worked=True)
    assert _allowed(breaker) == "bc"
    clock.now = 1.0
    _late(breaker, "a", count=1)
    assert _allowed(breaker) == "bc"
    clock.now = 3.0
    breaker.end(probe=breaker.begin("a"), worked=False)
    assert _allowed(breaker) == "bc", "a probe that is lost closes it to nobody else"
    assert breaker.only == "a"
    clock.now = 7.0
    breaker.end(probe=breaker.begin("a"), worked=True)
    assert not breaker.is_open


def test_it_closes_when_the_only_principal_has_gone_and_calls_of_others_work() -> None:
    breaker, clock = _breaker()
    _late(breaker, "a")
    clock.now = 30.9
    assert not breaker.end(probe=breaker.begin("b"), worked=True)
    clock.now = 31.0
    probe = breaker.begin("a")
    assert not breaker.end(probe=breaker.begin("b"), worked=True), "it probes"
    breaker.end(probe=probe, worked=None)
    assert breaker.end(probe=breaker.begin("b"), worked=True)
    assert not breaker.is_open


@pytest.mark.parametrize(
    "late", [["a"] * 5 + ["b"] * 5, ["a", "b", "a", "b", "c"], [""] * 5, ["a"] * 5 + [""] * 5]
)
def test_late_calls_of_a_second_principal_or_lost_ones_open_it_for_all(late: list[str]) -> None:
    breaker, _ = _breaker()
    for name in late:
        assert _allowed(breaker)
        breaker.end(probe=breaker.begin(name or "b"), worked=False, late=name)
    assert _allowed(breaker) == ""
    assert breaker.only == ""


def test_after_a_late_probe_others_wait_half_as_long() -> None:
    breaker, clock = _opened()
    clock.now = 1.0
    _late(breaker, "a", count=1)
    clock.now = 1.99
    assert _allowed(breaker) == ""
    clock.now = 2.0
    assert _allowed(breaker) == "bc"
    assert breaker.only == ""
    assert breaker.begin("b")
    assert _allowed(breaker) == ""
    breaker.end(probe=True, worked=False)
    assert _allowed(breaker) == ""
    clock.now = 6.0
    assert breaker.begin("b")
    breaker.end(probe=True, worked=True)
    assert _allowed(breaker) == "abc"


@pytest.mark.parametrize("calls", [0, 1, 4, 5, 6, 50, 5000])
def test_retries_are_never_more_than_a_fifth_of_the_calls(calls: int) -> None:
    budget = RetryBudget()
    retries = 0
    for _ in range(calls):
        budget.record_call()
        retries += budget.take()
    assert retries == calls // 5


def test_unused_retries_do_not_pile_up_without_end() -> None:
    budget = RetryBudget()
    for _ in range(100_000):
        budget.record_call()
    assert sum(budget.take() for _ in range(1000)) == 100
