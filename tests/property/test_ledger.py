"""
Laws of ceilings (§ 10).

1. Never above: whatever is begun only where every ceiling has room, no window of its length ever holds more than the
   limit, reported figures and reservations together; also where processes begin calls in turns.
2. Resumes: where a ceiling was reached, it has room again at the moment that is named, and at no earlier one.
3. For good: it never has room again exactly where the call alone is larger than the limit.
4. Every ceiling of a policy counts, and the first that is reached is the one that is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from attrs import define, fields
from hypothesis import assume, given, strategies as st

import optchat
from optchat.core.ledger import (
    DAY_SECONDS,
    HOUR_SECONDS,
    Ceiling,
    Measure,
    Need,
    Spent,
    ceilings_of,
    reached,
    room_again,
)

pytestmark = pytest.mark.property

SECOND_US = 1_000_000
NAMES = [field.name for field in fields(optchat.Policy) if field.name.endswith(("_per_hour", "_per_day"))]

amounts = st.integers(0, 400)
# Sums of these are not what they are on paper: 0.1 + 0.2 is above 0.3.
costs = st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.7, 1e-9, 1.1, 3.3))
needs = st.builds(Need, amounts, st.one_of(st.none(), costs))
measures: st.SearchStrategy[Measure] = st.sampled_from(("calls", "tokens", "cost"))


def limit_of(measure: Measure) -> st.SearchStrategy[float]:
    return {"calls": st.integers(0, 6), "tokens": st.integers(0, 1_000), "cost": costs}[measure]


@st.composite
def ceilings(draw: st.DrawFn) -> Ceiling:
    measure = draw(measures)
    seconds = draw(st.sampled_from((1, 10, HOUR_SECONDS)))
    return Ceiling(f"{measure}_per_test", measure, seconds, draw(limit_of(measure)))


def window(calls: Sequence[tuple[int, float]], now: int, ceiling: Ceiling) -> list[tuple[int, float]]:
    """The calls that count at a moment, as the store finds them: after the window's beginning."""
    since = now - ceiling.window_seconds * SECOND_US
    return [(at, amount) for at, amount in calls if at > since]


def spent(calls: Sequence[tuple[int, float]], now: int, ceiling: Ceiling) -> Spent:
    counted = [amount for _, amount in window(calls, now, ceiling)]
    total = math.fsum(counted) if ceiling.measure == "cost" else sum(counted)
    return Spent(**{"calls": len(counted), "tokens": 0, "cost": 0.0} | {ceiling.measure: total})  # type: ignore[arg-type]


def has_room(calls: Sequence[tuple[int, float]], now: int, ceiling: Ceiling, need: Need) -> bool:
    return ceiling.leaves_room(spent(calls, now, ceiling), need)


# ---- law 1 -----------------------------------------------------------------------------------------------------------


@define
class Call:
    """A call as the ledger has it: what was reserved, then what was reported, if anything was."""

    at: int
    need: Need
    reported: Need | None = None

    def of(self, measure: Measure) -> float:
        return (self.reported or self.need).of(measure)


steps = st.lists(
    st.tuples(
        st.sampled_from(("begin", "begin", "begin", "report", "nothing")),
        st.integers(0, 4 * SECOND_US),  # since the step before
        needs,
        st.integers(0, 100),  # which call reports, and what share of its need
    ),
    max_size=40,
)


@given(steps, st.lists(ceilings(), min_size=1, max_size=4))
def test_no_window_ever_holds_more_than_its_limit(
    schedule: list[tuple[str, int, Need, int]], limits: list[Ceiling]
) -> None:
    now, calls = 0, list[Call]()
    for action, later, need, share in schedule:
        now += later
        if action == "begin":
            by_window: dict[int, Spent] = {}
            for ceiling in limits:
                since = now - ceiling.window_seconds * SECOND_US
                counted = [call for call in calls if call.at > since]
                by_window[ceiling.window_seconds] = Spent(
                    len(counted),
                    int(sum(call.of("tokens") for call in counted)),
                    math.fsum(call.of("cost") for call in counted),
                )
            if reached(limits, by_window, need) is None:
                calls.append(Call(now, need))
        elif action == "report" and calls:
            call = calls[share % len(calls)]
            cost = None if call.need.cost is None else call.need.cost * (share / 100)
            call.reported = Need(call.need.tokens * share // 100, cost)
        for ceiling in limits:
            for end in {call.at for call in calls} | {now}:
                since = end - ceiling.window_seconds * SECOND_US
                within = [Fraction(call.of(ceiling.measure)) for call in calls if since < call.at <= end]
                # A bill is decimal and a float is not: a tenth is what rounding may hide.
                assert sum(within) <= Fraction(ceiling.limit) * (1 + Fraction(1, 10**12)), ceiling


# ---- laws 2 and 3 ----------------------------------------------------------------------------------------------------


@st.composite
def reached_ceilings(draw: st.DrawFn) -> tuple[Ceiling, list[tuple[int, float]], Need, int]:
    """A ceiling that leaves no room: with the calls of its window, the call that does not fit, and the moment."""
    ceiling = draw(ceilings())
    now = 10 * HOUR_SECONDS * SECOND_US
    since = now - ceiling.window_seconds * SECOND_US
    one = {"calls": st.just(1), "tokens": amounts, "cost": costs}[ceiling.measure]
    calls = sorted(draw(st.lists(st.tuples(st.integers(since + 1, now), one), max_size=12)), key=lambda call: call[0])
    need = draw(needs)
    assume(not has_room(calls, now, ceiling, need))
    return ceiling, calls, need, now


@given(reached_ceilings())
def test_there_is_room_again_when_it_says_and_not_before(
    case: tuple[Ceiling, list[tuple[int, float]], Need, int],
) -> None:
    ceiling, calls, need, now = case
    again = room_again(ceiling, calls, need)
    assume(again is not None)
    assert again is not None
    assert again > now
    assert has_room(calls, again, ceiling, need)
    # A call leaves its window at one moment and counts no more one microsecond later: no earlier one has room.
    for moment in {now} | {at + ceiling.window_seconds * SECOND_US - 1 for at, _ in calls}:
        if now <= moment < again - 1:
            assert not has_room(calls, moment, ceiling, need)


@given(reached_ceilings())
def test_it_never_has_room_exactly_where_the_call_alone_is_too_large(
    case: tuple[Ceiling, list[tuple[int, float]], Need, int],
) -> None:
    ceiling, calls, need, _now = case
    assert (room_again(ceiling, calls, need) is None) == (need.of(ceiling.measure) > ceiling.limit)
    assert ceiling.can_ever_hold(need) == (need.of(ceiling.measure) <= ceiling.limit)


def test_a_bill_of_tenths_is_no_bill_for_ever() -> None:
    """Taken off one after the other, three tenths leave something: it once looked like a limit that nothing meets."""
    ceiling = Ceiling("cost_per_hour", "cost", HOUR_SECONDS, 0.3)
    calls = [(at, 0.1) for at in (1, 2, 3)]
    assert room_again(ceiling, calls, Need(0, 0.3)) == 3 + HOUR_SECONDS * SECOND_US + 1


# ---- law 4 -----------------------------------------------------------------------------------------------------------


@given(st.fixed_dictionaries({name: st.one_of(st.none(), st.integers(0, 9)) for name in NAMES}))
def test_every_setting_is_a_ceiling_of_its_own(settings: dict[str, int | None]) -> None:
    found = ceilings_of(optchat.Policy(**settings))  # type: ignore[arg-type]
    assert {ceiling.name: ceiling.limit for ceiling in found} == {
        name: limit for name, limit in settings.items() if limit is not None
    }
    for ceiling in found:
        measure, _, period = ceiling.name.partition("_per_")
        assert ceiling.measure == measure
        assert ceiling.window_seconds == {"hour": HOUR_SECONDS, "day": DAY_SECONDS}[period]


@given(st.lists(ceilings(), max_size=5), st.integers(0, 6), amounts, costs, needs)
def test_the_first_that_is_reached_is_named(
    limits: list[Ceiling], calls: int, tokens: int, cost: float, need: Need
) -> None:
    so_far = Spent(calls, tokens, cost)
    by_window = {ceiling.window_seconds: so_far for ceiling in limits}
    over = reached(limits, by_window, need)
    full = [each for each in limits if so_far.of(each.measure) + need.of(each.measure) > each.limit]
    assert over == (full[0] if full else None)


def test_what_is_not_priced_costs_nothing_and_is_still_counted() -> None:
    unpriced = Need(100)
    assert (unpriced.of("calls"), unpriced.of("tokens"), unpriced.of("cost")) == (1, 100, 0.0)
    free = Ceiling("cost_per_hour", "cost", HOUR_SECONDS, 0.0)
    assert reached([free], {HOUR_SECONDS: Spent(9, 900, 0.0)}, unpriced) is None
