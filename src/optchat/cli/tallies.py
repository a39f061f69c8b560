"""
What becomes of scopes while their jobs are worked, in figures.

Decides: what counts as done, what a run cost, and how calls are told. What a provider did not report is unknown, and
never shown as nothing.
Refuses to know: who works the jobs. All of it is read off ``status()``, so other processes' work counts too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

import optchat
from optchat.cli import output

_RATE_SECONDS: Final = 60.0  # the window of a rate
_FAILURES_TOLD: Final = 20  # as many as a Status names; there may be more


@define
class Tally:
    """One scope: its state when the run began, and now."""

    memory: optchat.Memory
    first: optchat.Status
    now: optchat.Status
    done: int = 0
    upgraded: int = 0
    repaired: int = 0
    unrepaired: list[str] = field(factory=list[str])

    @staticmethod
    def of(memory: optchat.Memory) -> Tally:
        """Nothing is done yet."""
        status = memory.status()
        return Tally(memory, status, status)

    @property
    def scope(self) -> str:
        """Its name."""
        return self.memory.scope

    @property
    def calls(self) -> optchat.Calls:
        """The calls since the run began."""
        return calls_between(self.first.total, self.now.total)

    def saw(self, status: optchat.Status) -> None:
        """
        Take a newer state. Jobs that are fewer than before were done; those that were added since are not told from
        them, so that a tally which looks seldom counts too few.
        """
        self.done += max(0, open_jobs(self.now) - open_jobs(status))
        self.now = status

    def look(self) -> None:
        """See for itself."""
        self.saw(self.memory.status())


class Rate:
    """Jobs a minute, over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def saw(self, done: int) -> None:
        """So many are done in all."""
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_SECONDS:
            self._seen.popleft()

    def a_minute(self) -> float:
        """0 where nothing was seen yet."""
        (since, before), (now, done) = self._seen[0], self._seen[-1]
        return 60 * (done - before) / (now - since) if now > since else 0.0


@define
class Board:
    """Several scopes as one line."""

    tallies: list[Tally] = field(factory=list[Tally])
    rate: Rate = field(factory=Rate)

    @property
    def done(self) -> int:
        """Jobs of all scopes."""
        return sum(tally.done for tally in self.tallies)

    @property
    def left(self) -> int:
        """Jobs of all scopes that wait or run."""
        return sum(open_jobs(tally.now) for tally in self.tallies)

    def look(self) -> None:
        """See for itself how things stand."""
        for tally in self.tallies:
            tally.look()
        self.rate.saw(self.done)

    def figures(self) -> str:
        """What is done, what is left, what it took, how fast it goes, and what holds it up."""
        parts = [figures(self.tallies), f"{self.rate.a_minute():.0f} jobs/min"]
        parts += [
            f"{tally.scope} is paused{until(tally.now)}: {tally.now.paused}"
            for tally in self.tallies
            if tally.now.paused is not None
        ]
        return "; ".join(parts)


def figures(tallies: Sequence[Tally]) -> str:
    """What is done, what is left, and what it took."""
    done, left = sum(tally.done for tally in tallies), sum(open_jobs(tally.now) for tally in tallies)
    calls = sum_of(tally.calls for tally in tallies)
    return f"{done} done, {left} pending, {failed(tally.now for tally in tallies)} failed; {told(calls)}"


def open_jobs(status: optchat.Status) -> int:
    """Jobs that wait or run."""
    return status.pending + status.running


def failed(states: Iterable[optchat.Status]) -> str:
    """How many jobs have failed, as far as it is known."""
    counts = [len(status.failures) for status in states]
    return f"{sum(counts)}{' or more' if any(count >= _FAILURES_TOLD for count in counts) else ''}"


def until(status: optchat.Status) -> str:
    """When a pause ends, where that is known."""
    return "" if status.resumes_at is None else f" until {output.moment(status.resumes_at)}"


# ---- calls -----------------------------------------------------------------------------------------------------------


def told(calls: optchat.Calls) -> str:
    """The calls and what they took, the unknown as unknown."""
    if not calls.calls:
        return "no calls"
    cached = "unknown" if calls.cache_read_tokens is None else calls.cache_read_tokens
    cost = "unknown" if calls.cost is None else f"{calls.cost:.4f}"
    return (
        f"{calls.calls} calls, tokens {_or_unknown(calls.input_tokens)} in ({cached} cached) and "
        f"{_or_unknown(calls.output_tokens)} out, cost {cost}"
    )


def _or_unknown(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def calls_between(before: optchat.Calls, after: optchat.Calls) -> optchat.Calls:
    """What a later sum has more than an earlier one; unknown where nothing was reported in between."""
    calls = after.calls - before.calls

    def more(name: str) -> int | None:
        total: int | None = getattr(after, name)
        earlier: int | None = getattr(before, name)
        return None if total is None or not calls else total - (earlier or 0)

    cost = None if after.cost is None or not calls else after.cost - (before.cost or 0.0)
    tokens_in = more("input_tokens")
    if not tokens_in:  # no call has an empty input: none of them reported anything
        return optchat.Calls(calls, None, None, None, cost or None)
    return optchat.Calls(calls, tokens_in, more("output_tokens"), more("cache_read_tokens"), cost)


def sum_of(several: Iterable[optchat.Calls]) -> optchat.Calls:
    """Sums of scopes as one."""
    each = [calls for calls in several if calls.calls]

    def total(name: str) -> int | None:
        known = [count for calls in each if (count := getattr(calls, name)) is not None]
        return sum(known) if known else None

    costs = [calls.cost for calls in each if calls.cost is not None]
    return optchat.Calls(
        sum(calls.calls for calls in each),
        total("input_tokens"),
        total("output_tokens"),
        total("cache_read_tokens"),
        sum(costs) if costs else None,
    )
