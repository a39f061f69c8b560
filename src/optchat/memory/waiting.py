"""
Waiting, in steps (§ 9).

Decides: that what waits for summaries is whole between its steps: nothing is open or locked while it pauses.
Refuses to know: what is waited for.

A synchronous caller pauses in its own thread, an asynchronous one in its loop, with no thread taken meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar, cast

from optchat.memory.house import House

T = TypeVar("T")
# What it yields are the seconds after which to go on; going on sooner is fine, as where the memory closes.
Steps: TypeAlias = Generator[float, None, T]
Stopped: TypeAlias = Callable[[], bool]  # whether whoever waited has gone


def wait_out(house: House, steps: Steps[T]) -> T:
    """Take every step in this thread; where the memory closes, without pauses."""
    while True:
        try:
            seconds = next(steps)
        except StopIteration as done:
            return cast("T", done.value)
        house.closing.wait(seconds)


def never() -> bool:
    """Nobody goes: the caller's own thread waits."""
    return False
