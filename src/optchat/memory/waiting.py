"""
Waiting, in steps (§ 9).

Decides: that what waits for summaries is whole between its steps: nothing is open or locked while it pauses.
Refuses to know: what is waited for.

A synchronous caller pauses in its own thread, an asynchronous one in its loop, with no thread taken meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TypeAlias, TypeVar, cast

from optchat.core.errors import MemoryNotReady
from optchat.engine.handle import Scope
from optchat.engine.naming import load_failures
from optchat.memory.house import House
from optchat.store import scopes

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


def may_land(house: House, scope: Scope, pending: MemoryNotReady, seconds: float) -> bool:
    """
    Whether waiting so long can help: some live worker works this file, no pause lasts longer, and what is missing has
    not failed for good.
    """
    if pending.paused is not None:
        now = house.clock.now()
        if pending.resumes_at is None or pending.resumes_at > now + timedelta(seconds=seconds):
            return False
    worker = house.worker
    with scope.store.read() as db:
        if pending.failures and not {each.ref for each in load_failures(scope, db)}.isdisjoint(pending.missing):
            return False
        if worker is not None and worker.running:
            return True
        return any(scope.store.owner_alive(db, owner) for owner in scopes.working_owners(db))
