"""What models cost, and that an estimate is never too low."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evald.result import TokenUsage
from evald_server.judge.budget import SHIPPED_PRICES, Price, price_of


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("gpt-4o-mini", Price(0.15, 0.6)),
        ("gpt-4o-2024-11-20", Price(2.5, 10)),
        ("gpt-4o-2024-05-13", Price(5, 15)),
        ("claude-haiku-4-5-20251001", Price(1, 5)),
        ("gpt-4o-mini-tuned", None),
        ("gpt-4o-2024", None),
        ("llama", None),
        ("", None),
    ],
)
def test_a_price_is_of_the_model_or_of_its_dated_snapshot(model: str, price: Price | None) -> None:
    assert price_of(model, {}) == price


def test_the_operators_price_comes_first() -> None:
    own = {"gpt-4o": Price(1, 2), "llama": Price(0, 0)}
    assert price_of("gpt-4o", own) == price_of("gpt-4o-2024-11-20", own) == Price(1, 2)
    assert price_of("llama", own) == Price(0, 0)
    assert price_of("gpt-4o-2024-05-13", own | {"gpt-4o-2024-05-13": Price(3, 4)}) == Price(3, 4)


def test_a_cost_is_known_only_when_both_directions_are() -> None:
    price = Price(2.5, 10)
    assert price.cost(TokenUsage(1_000_000, 100_000)) == 3.5
    assert price.cost(TokenUsage(1_000_000, 0)) == 2.5
    assert price.cost(TokenUsage(None, 5)) is None
    assert price.cost(TokenUsage(5, None, 10)) is None
    assert price.cost(TokenUsage(0, 0, 0)) is None, "an endpoint that does not count"


def test_reasoning_that_only_the_total_has_is_paid_for() -> None:
    assert Price(2, 10).cost(TokenUsage(1_000_000, 100_000, 1_300_000)) == 5.0


def test_shipped_prices_are_of_this_world() -> None:
    for model, price in SHIPPED_PRICES.items():
        assert 0 < price.input_usd < price.output_usd <= 100, model


@given(st.text(min_size=1), st.integers(0, 10_000))
def test_no_request_costs_more_than_the_estimate(text: str, output: int) -> None:
    """A tokenizer that makes a token of every byte is the worst there can be."""
    price = Price(3, 15)
    size = len(text.encode())
    cost = price.cost(TokenUsage(size, output))
    assert cost is not None
    assert cost <= price.max_cost(size, output)
