"""
What calls of summarizers cost, and how much they may (§ 10, § 15).

Decides: what a call is known by, when a ceiling leaves no room for one more, and when it will again.
Refuses to know: prices, where calls are written down, and what was said in them.

A ceiling counts every call from the moment it is reserved: with its reported figures once they are known, with the most
it can have taken until then, and for good where nothing was reported. So it can stop too early and never too late.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from optchat.core.policy import Policy

CallOutcome: TypeAlias = Literal["started", "accepted", "rejected", "refused", "failed", "trouble", "cancelled"]
Measure: TypeAlias = Literal["calls", "tokens", "cost"]

HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 86_400


@frozen
class Calls:
    """What summarizer calls cost; None where the summarizer reported nothing."""

    calls: int
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cost: float | None


@frozen
class Need:
    """The most that one call can take; ``cost`` is None where no price is known, and is then not counted."""

    tokens: int
    cost: float | None = None

    def of(self, measure: Measure) -> float:
        """How much of a measure."""
        if measure == "calls":
            return 1
        return self.tokens if measure == "tokens" else self.cost or 0.0


@frozen
class Spent:
    """What calls since a time have taken, reservations included."""

    calls: int
    tokens: int
    cost: float

    def of(self, measure: Measure) -> float:
        """How much of a measure."""
        return self.calls if measure == "calls" else self.tokens if measure == "tokens" else self.cost


@frozen
class Ceiling:
    """The most of a measure within any window of that length."""

    name: str  # of the policy's field
    measure: Measure
    window_seconds: int
    limit: float

    def leaves_room(self, spent: Spent, need: Need) -> bool:
        """Whether a call still fits under it."""
        return spent.of(self.measure) + need.of(self.measure) <= self.limit

    def can_ever_hold(self, need: Need) -> bool:
        """Whether a call would fit if nothing else had been spent."""
        return need.of(self.measure) <= self.limit


def ceilings_of(policy: Policy) -> tuple[Ceiling, ...]:
    """The ceilings that a policy sets."""
    measures: tuple[Measure, ...] = ("calls", "tokens", "cost")
    found: list[Ceiling] = []
    for period, seconds in (("hour", HOUR_SECONDS), ("day", DAY_SECONDS)):
        for measure in measures:
            name = f"{measure}_per_{period}"
            limit: float | None = getattr(policy, name)
            if limit is not None:
                found.append(Ceiling(name, measure, seconds, limit))
    return tuple(found)


def reached(ceilings: Sequence[Ceiling], spent: Mapping[int, Spent], need: Need) -> Ceiling | None:
    """
    The first ceiling that leaves no room for a call.

    Args:
        spent: by length of window.
    """
    return next((each for each in ceilings if not each.leaves_room(spent[each.window_seconds], need)), None)


def room_again(ceiling: Ceiling, calls: Sequence[tuple[int, float]], need: Need) -> int | None:
    """
    When a ceiling that was reached has room for a call, in microseconds; None if it never will.

    Args:
        calls: (time, amount) of each call in the window, oldest first.
    """
    if not calls or not ceiling.can_ever_hold(need):
        return None
    amounts, own = [amount for _at, amount in calls], need.of(ceiling.measure)

    def fits_without(oldest: int) -> bool:
        # Summed anew: taken off a sum one by one, three tenths leave something that no limit is large enough for.
        return math.fsum(amounts[oldest:]) + own <= ceiling.limit

    leave = bisect_left(range(1, len(calls) + 1), True, hi=len(calls) - 1, key=fits_without)
    return calls[leave][0] + ceiling.window_seconds * 1_000_000 + 1
