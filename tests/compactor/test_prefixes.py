"""Who writes a cold prefix while others wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import TaskGroup

from optchat.compactor import prefixes
from optchat.compactor.prefixes import Block, CacheWriters, Prefixes, prefixes_of
from tests.compactor.helpers import run, settled

SYSTEM = Block("system", "rules", marked=True)
PATIENCE_SECONDS = 60.0


def shared(*texts: str, task: str = "task") -> Prefixes:
    """A request with a mark after each of these blocks, and a task of its own."""
    return prefixes_of([SYSTEM, *(Block("user", text, marked=True) for text in texts), Block("user", task)])


# ---- what is shared --------------------------------------------------------------------------------------------------


def test_a_prefix_is_its_blocks_up_to_there() -> None:
    short, longer = shared("a"), shared("a", "b")
    assert longer.readable[1:] == short.readable
    assert set(short.written) == set(short.readable)
    assert shared("a", task="other") == short
    assert not set(prefixes_of([Block("system", "other", marked=True)]).readable) & set(short.readable)


def test_blocks_that_are_cut_or_spoken_differently_are_other_prefixes() -> None:
    def key(*blocks: Block) -> bytes:
        return prefixes_of([*blocks[:-1], Block(blocks[-1].role, blocks[-1].text, marked=True)]).readable[0]

    keys = {
        key(Block("user", "ab")),
        key(Block("user", "a"), Block("user", "b")),
        key(Block("assistant", "ab")),
        key(Block("user", "a"), Block("assistant", "b")),
        key(Block("user", "\ud800")),
    }
    assert len(keys) == 5


def test_without_a_mark_nothing_is_shared() -> None:
    assert prefixes_of([Block("user", "a"), Block("user", "b")]) == Prefixes((), ())


def test_a_mark_reaches_back_so_many_blocks() -> None:
    plain = [Block("user", f"block {number}") for number in range(40)]
    found = prefixes_of([*plain, Block("user", "last", marked=True)])
    assert (len(found.readable), len(found.written)) == (20, 1)
    assert found.readable[0] == found.written[0]


def test_marks_do_not_change_what_a_prefix_is() -> None:
    blocks = [Block("user", "a"), Block("user", "b"), Block("user", "c", marked=True)]
    marked = prefixes_of([blocks[0], Block("user", "b", marked=True), blocks[2]])
    assert marked.readable == prefixes_of(blocks).readable


# ---- who goes first --------------------------------------------------------------------------------------------------


class Calls:
    """Calls that go on when the test says so."""

    def __init__(self, group: TaskGroup) -> None:
        self.group = group
        self.writers = CacheWriters()
        self.sent: list[int] = []
        self.waited: dict[int, float] = {}
        self.start = [anyio.Event() for _ in range(16)]
        self.end = [anyio.Event() for _ in range(16)]
        self.scopes = [anyio.CancelScope() for _ in range(16)]
        self.failing: set[int] = set()

    def send(self, number: int, wanted: Prefixes, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.group.start_soon(self._call, number, wanted, patience_seconds)

    async def _call(self, number: int, wanted: Prefixes, patience_seconds: float) -> None:
        try:
            with self.scopes[number]:
                async with self.writers.turn(wanted, patience_seconds) as turn:
                    self.sent.append(number)
                    self.waited[number] = turn.waited_seconds
                    await self.start[number].wait()
                    self._fail_if_told_to(number)
                    turn.response_started()
                    await self.end[number].wait()
        except LookupError:
            pass

    def _fail_if_told_to(self, number: int) -> None:
        if number in self.failing:
            raise LookupError(number)

    async def started(self, *numbers: int) -> None:
        for number in numbers:
            self.start[number].set()
        await settled()

    def over(self) -> None:
        for event in (*self.start, *self.end):
            event.set()


def in_loop(story: Callable[[Calls], Awaitable[None]]) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            calls = Calls(group)
            await story(calls)
            calls.over()

    run(main)


def test_one_writes_and_the_others_wait_until_its_response_starts() -> None:
    async def story(calls: Calls) -> None:
        for number in range(8):
            calls.send(number, shared("context", task=str(number)))
        await settled()
        assert calls.sent == [0]
        await calls.started(0)
        assert sorted(calls.sent) == list(range(8))  # none of them has ended
        assert calls.waited[0] < calls.waited[7]
        calls.send(8, shared("context"))
        await settled()
        assert calls.sent[-1] == 8  # warm: no waiting at all

    in_loop(story)


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_writer_that_fails_or_is_cancelled_makes_way_for_the_next(cancelled: bool) -> None:
    async def story(calls: Calls) -> None:
        calls.failing = {0, 1}
        for number in range(5):
            calls.send(number, shared("context"))
        await settled()
        for number in (0, 1):
            assert calls.sent == list(range(number + 1))
            if cancelled:
                calls.scopes[number].cancel()
                await settled()
            else:
                await calls.started(number)
        assert calls.sent == [0, 1, 2]
        await calls.started(2)
        assert sorted(calls.sent) == [0, 1, 2, 3, 4]

    in_loop(story)


def test_a_waiter_that_is_cancelled_holds_nobody_up() -> None:
    async def story(calls: Calls) -> None:
        for number in range(3):
            calls.send(number, shared("context"))
        await settled()
        calls.scopes[1].cancel()
        await settled()
        await calls.started(0)
        assert calls.sent == [0, 2]

    in_loop(story)


def test_only_what_is_shared_is_waited_for() -> None:
    async def story(calls: Calls) -> None:
        calls.send(0, shared())  # the system text alone
        await settled()
        await calls.started(0)
        calls.send(1, shared("a"))
        calls.send(2, shared("b"))
        calls.send(3, shared("a", "c"))
        calls.send(4, shared())
        await settled()
        assert sorted(calls.sent) == [0, 1, 2, 4]
        await calls.started(1)
        assert sorted(calls.sent) == [0, 1, 2, 3, 4]

    in_loop(story)


def test_who_waited_for_the_short_prefix_may_write_the_longer_one() -> None:
    async def story(calls: Calls) -> None:
        calls.send(0, shared("a"))
        await settled()
        for number in (1, 2):
            calls.send(number, shared("a", "b"))
        await settled()
        assert calls.sent == [0]
        await calls.started(0)
        assert calls.sent == [0, 1]
        await calls.started(1)
        assert calls.sent == [0, 1, 2]

    in_loop(story)


def test_a_longer_prefix_that_is_warm_is_reason_enough_to_go() -> None:
    async def story(calls: Calls) -> None:
        long, short = shared("a", "b"), shared("a")
        calls.writers.warm(long.readable[:1], anyio.current_time())
        calls.send(0, short)
        await settled()
        calls.send(1, long)
        await settled()
        assert calls.sent == [0, 1]

    in_loop(story)


def test_warmth_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(calls: Calls) -> None:
        calls.send(0, shared("a"))
        await settled()
        await calls.started(0)
        monkeypatch.setattr(anyio, "current_time", lambda: now() + prefixes.LIFETIME_SECONDS + 1)
        calls.send(1, shared("a"))
        calls.send(2, shared("a"))
        await settled()
        assert calls.sent == [0, 1]
        await calls.started(1)
        assert calls.sent == [0, 1, 2]

    now = anyio.current_time
    in_loop(story)


def test_use_keeps_a_prefix_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(calls: Calls) -> None:
        for number in range(4):
            passed = number * (prefixes.LIFETIME_SECONDS - 10)
            monkeypatch.setattr(anyio, "current_time", lambda passed=passed: now() + passed)
            calls.send(number, shared("a"))
            await settled()
            await calls.started(number)
        calls.send(4, shared("a"))
        calls.send(5, shared("a"))
        await settled()
        assert calls.sent == [0, 1, 2, 3, 4, 5]

    now = anyio.current_time
    in_loop(story)


def test_patience_ends() -> None:
    async def story(calls: Calls) -> None:
        calls.send(0, shared("a"))
        await settled()
        calls.send(1, shared("a"), patience_seconds=0.0)
        calls.send(2, shared("a"))
        await settled()
        assert calls.sent == [0, 1]
        calls.end[1].set()
        await calls.started(1)  # it wrote as well, so the third can read
        assert calls.sent == [0, 1, 2]

    in_loop(story)


def test_nothing_is_kept_of_what_is_long_cold() -> None:
    writers = CacheWriters()
    for number in range(1_000):
        writers.warm((str(number).encode(),), float(number))
    assert len(writers._warm_until) <= prefixes.LIFETIME_SECONDS + 1
