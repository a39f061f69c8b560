"""A call's cost: every token of the input is counted once, at the price of how it was had."""

import pytest
from attrs import evolve

from optchat.compactor.pricing import Price
from optchat.core.errors import BadArgument
from optchat.core.summarizing import SummaryReply

CLAUDE_LIKE = Price(3.0, 15.0, cache_read=0.3, cache_write=3.75)


def reply(*tokens: int | None) -> SummaryReply:
    whole, output, read, written = tokens
    return SummaryReply(
        "x", input_tokens=whole, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written
    )


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [
        ((1_000_000, 0, 0, 0), 3.0),
        ((0, 1_000_000, 0, 0), 15.0),
        ((1_000_000, 0, 1_000_000, 0), 0.3),
        ((1_000_000, 0, 0, 1_000_000), 3.75),
        ((1_000_000, 200, 600_000, 300_000), (100_000 * 3 + 600_000 * 0.3 + 300_000 * 3.75 + 200 * 15) / 1e6),
        ((1_000, 100, None, None), (1_000 * 3 + 100 * 15) / 1e6),
        ((0, 0, 0, 0), 0.0),
    ],
)
def test_each_token_has_one_price(tokens: tuple[int | None, ...], cost: float) -> None:
    assert CLAUDE_LIKE.cost(reply(*tokens)) == pytest.approx(cost)


@pytest.mark.parametrize("tokens", [(None, 5, 0, 0), (5, None, 0, 0), (None, None, None, None)])
def test_what_was_not_reported_has_no_price(tokens: tuple[int | None, ...]) -> None:
    assert CLAUDE_LIKE.cost(reply(*tokens)) is None


def test_without_prices_of_a_cache_its_tokens_cost_as_any() -> None:
    plain = Price(2.0, 8.0)
    assert plain.cost(reply(1_000, 10, 900, 50)) == plain.cost(reply(1_000, 10, 0, 0)) == pytest.approx(0.00208)


def test_counts_that_contradict_each_other_are_never_negative() -> None:
    assert Price(1.0, 0.0, cache_read=0.0).cost(reply(10, 0, 50, 0)) == 0.0


def test_the_most_is_at_least_what_any_reply_costs() -> None:
    for price in (CLAUDE_LIKE, Price(1.0, 2.0), Price(1.0, 2.0, cache_read=5.0), Price(0.0, 0.0)):
        for read, written in ((0, 0), (900, 100), (0, 1_000), (1_000, 0)):
            cost = price.cost(reply(1_000, 500, read, written))
            assert cost is not None
            assert price.most(1_000, 500) >= cost


@pytest.mark.parametrize("field", ["input", "output", "cache_read", "cache_write"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_price_is_a_number_that_money_can_be(field: str, value: float) -> None:
    with pytest.raises(BadArgument, match=field):
        evolve(CLAUDE_LIKE, **{field: value})
