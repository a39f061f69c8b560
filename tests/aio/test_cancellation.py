"""
Cancelled at any moment, an operation is whole or has not begun, and nothing is left behind.

Both ways to cancel: a scope's, which comes again at every await, and asyncio's own, which comes once and minds no
shield.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import optchat
import optchat.aio
from optchat.store.writer_lock import LockFile
from optchat.testing import temporary_memory
from tests.aio.gates import PATIENCE_SECONDS, Attempt, Gate, Said, Stuck, Writing, until

pytestmark = pytest.mark.anyio
BUDGET = optchat.Budget(window=32_000, output=2_000)
SLOW = Said("to be cancelled", by_user=True, slow=True)


@pytest.fixture(params=["asyncio-scope", "asyncio-task", "trio-scope"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def anyio_backend(how: str) -> str:
    return how.partition("-")[0]


def turns(memory: optchat.Memory, key: str = "a") -> list[tuple[str, str | None]]:
    return [(turn.state, turn.outcome) for turn in memory.session(key).turns()]


@pytest.fixture
async def session(memory: optchat.aio.AsyncMemory, gate: Gate) -> optchat.aio.AsyncSession[Said]:
    return await memory.session("a", adapter=gate)


async def test_before_it_has_begun(how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory) -> None:
    async def operation() -> None:
        attempt.cancel()
        await session.note("never said")

    attempt = Attempt(how)
    await attempt.run(operation)
    assert attempt.ended == "cancelled"
    assert turns(sync) == []


async def test_while_it_waits_for_a_thread(how: str, sync: optchat.Memory, gate: Gate) -> None:
    memory = optchat.aio.AsyncMemory(sync, threads=1)
    session = await memory.session("a", adapter=gate)
    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.preview, BUDGET)
        first = await session.turn(Said("hi", by_user=True))
        tasks.start_soon(first.add, Said("one", slow=True))
        await until(lambda: gate.inside)
        tasks.start_soon(attempt.run, lambda: first.add(Said("never said")))
        await anyio.sleep(0.01)
        attempt.cancel()
        await until(lambda: attempt.ended)
        gate.open()
    assert attempt.ended == "cancelled"
    assert len(first.messages) == 2
    await first.end("completed")


async def test_while_it_is_done(
    how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory, gate: Gate
) -> None:
    turn = await session.turn(Said("hi", by_user=True))
    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, lambda: turn.add(Said("one"), Said("two", slow=True)))
        await until(lambda: gate.inside)
        attempt.cancel()
        attempt.cancel()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        attempt.cancel()
        assert attempt.ended is None, "its caller goes on while a thread still seals"
        assert len(sync.session("a").turns().items) == 1
        gate.open()
    assert attempt.ended == "cancelled"
    assert len(turn.messages) == 3
    await turn.assistant("three")
    await turn.end("completed")


async def test_a_turn_that_begins(
    how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory, gate: Gate
) -> None:
    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, lambda: session.turn(SLOW))
        await until(lambda: gate.inside)
        attempt.cancel()
        await anyio.lowlevel.checkpoint()
        gate.open()
    assert (attempt.ended, attempt.value) == ("cancelled", None)
    assert turns(sync) == [("ended", "interrupted")]


async def test_a_turn_that_somebody_has(
    how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory, gate: Gate
) -> None:
    """The same request twice: the one that is cancelled does not end the other's turn."""
    attempt = Attempt(how)
    async with session.turn("to be cancelled", turn_id="r1") as turn, anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, lambda: session.turn(SLOW, turn_id="r1"))
        await until(lambda: gate.inside)
        attempt.cancel()
        await anyio.lowlevel.checkpoint()
        gate.open()
        await until(lambda: attempt.ended)
        assert turns(sync) == [("open", None)]
        await turn.assistant("said")
    assert attempt.ended == "cancelled"
    assert turns(sync) == [("ended", "completed")]


async def test_a_turn_that_is_resumed(how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory) -> None:
    turn = await session.turn("deploy")
    await turn.suspend()
    attempt = Attempt(how)
    with Writing(sync) as writing:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, session.resume)
            await until(writing.waited_for)
            attempt.cancel()
            await anyio.lowlevel.checkpoint()
            writing.end()
    assert attempt.ended == "cancelled"
    assert turns(sync) == [("suspended", None)]


async def test_a_file_that_is_opened(how: str, path: Path, sync: optchat.Memory) -> None:
    (lock,) = LockFile._registry.values()
    attempt = Attempt(how)
    with Writing(sync) as writing:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, lambda: optchat.aio.open(path, scope="project-17"))
            await until(writing.waited_for)
            assert lock.handles == 2
            attempt.cancel()
            await anyio.lowlevel.checkpoint()
            writing.end()
    assert attempt.ended == "cancelled"
    assert lock.handles == 1, "the file was left open"
    assert not [thread for thread in threading.enumerate() if thread.name == "optchat-worker"]


async def test_a_pin(how: str, memory: optchat.aio.AsyncMemory, monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    left: list[str] = []

    @contextmanager
    def pin(_self: optchat.Memory, _snapshot_id: str | None = None) -> Iterator[optchat.Reader]:
        gate.decode(SLOW)
        try:
            yield memory.sync
        finally:
            left.append("left")

    monkeypatch.setattr(optchat.Memory, "pin", pin)
    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, memory.pin)
        await until(lambda: gate.inside)
        attempt.cancel()
        await anyio.lowlevel.checkpoint()
        gate.open()
    assert attempt.ended == "cancelled"
    assert left == ["left"]


async def test_a_block(how: str, session: optchat.aio.AsyncSession[Said], sync: optchat.Memory) -> None:
    begun = anyio.Event()

    async def operation() -> None:
        async with session.turn("hi") as turn:
            await turn.assistant("said")
            begun.set()
            await anyio.sleep_forever()

    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, operation)
        await begun.wait()
        attempt.cancel()
    assert attempt.ended == "cancelled"
    assert turns(sync) == [("ended", "interrupted")]


async def test_an_end_that_is_cancelled_again(how: str, gate: Gate, sync: optchat.Memory) -> None:
    """While it waits for the only thread, and while it waits for the writer lock."""
    memory = optchat.aio.AsyncMemory(sync, threads=1)
    session, other = await memory.session("a", adapter=gate), await memory.session("b", adapter=gate)
    begun = anyio.Event()

    async def operation() -> None:
        async with session.turn("hi") as turn:
            await turn.assistant("said")
            begun.set()
            await anyio.sleep_forever()

    attempt = Attempt(how)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempt.run, operation)
        await begun.wait()
        tasks.start_soon(opened, other.turn(SLOW))
        await until(lambda: gate.inside)
        for _ in range(3):
            attempt.cancel()
            await anyio.sleep(0.01)
        assert turns(sync) == [("open", None)]
        with Writing(sync) as writing:
            gate.open()
            await until(writing.waited_for)
            attempt.cancel()
            await anyio.sleep(0.01)
            assert attempt.ended is None
    assert attempt.ended == "cancelled"
    assert turns(sync) == [("ended", "interrupted")]


async def opened(opening: optchat.aio.Opening[optchat.aio.AsyncTurn[Said]]) -> None:
    await opening


# ---- what may take long ----------------------------------------------------------------------------------------------


async def unsummarised(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("long")
    async with session.turn("word " * 400) as turn:
        await turn.assistant("word " * 400)


async def test_a_wait_for_summaries(how: str, path: Path) -> None:
    """It has no thread, and ends while the summary is still out."""
    stuck = Stuck()
    async with optchat.aio.open(path, scope="project-17", summarizer=stuck, threads=1) as memory:
        await unsummarised(memory)
        await until(stuck.asked.is_set)
        session = await memory.session("long")
        turn = await session.turn("and now?")
        attempt = Attempt(how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, lambda: turn.context(BUDGET, wait_seconds=PATIENCE_SECONDS))
            await anyio.sleep(0.05)
            assert attempt.ended is None
            await session.info()  # there is one thread, and it is free
            attempt.cancel()
            await until(lambda: attempt.ended)
        assert attempt.ended == "cancelled"
        async with anyio.create_task_group() as tasks:
            attempt = Attempt(how)
            tasks.start_soon(attempt.run, lambda: turn.context(BUDGET, wait_seconds=PATIENCE_SECONDS))
            await anyio.sleep(0.05)
            stuck.answer()
        assert isinstance(attempt.value, optchat.Context)
        assert attempt.value.receipt.waited_seconds > 0


async def test_settling(how: str) -> None:
    stuck = Stuck()
    with temporary_memory(summarizer=stuck) as sync:
        memory = optchat.aio.AsyncMemory(sync)
        await unsummarised(memory)
        attempt = Attempt(how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, memory.settle)
            await until(stuck.asked.is_set)
            attempt.cancel()
        assert attempt.ended == "cancelled"
        status = await memory.status()
        assert status.running == 0, "a lease was not given back"
        assert status.pending > 0
        stuck.answer()
        assert (await memory.settle()).pending == 0


async def test_settling_beside_a_live_worker(how: str, path: Path) -> None:
    stuck = Stuck()
    async with optchat.aio.open(path, scope="project-17", summarizer=stuck, threads=1) as memory:
        await unsummarised(memory)
        await until(stuck.asked.is_set)
        attempt = Attempt(how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, memory.settle)
            await memory.status()
            attempt.cancel()
        assert attempt.ended == "cancelled"
        stuck.answer()
        assert (await memory.settle()).pending == 0


async def test_a_repair(how: str) -> None:
    stuck = Stuck()
    stuck.answer()
    with temporary_memory(summarizer=stuck) as sync:
        memory = optchat.aio.AsyncMemory(sync)
        await unsummarised(memory)
        await memory.settle()
        before = await memory.view()
        stuck.begin_again()
        attempt = Attempt(how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, lambda: memory.repair(before.lines[0].ref))
            await until(stuck.asked.is_set)
            attempt.cancel()
        assert attempt.ended == "cancelled"
        assert (await memory.view()) == before
        stuck.answer()
        assert await memory.repair(before.lines[0].ref) > 0


# ---- at any moment ---------------------------------------------------------------------------------------------------


async def test_at_any_moment(how: str, memory: optchat.aio.AsyncMemory, sync: optchat.Memory) -> None:
    """A turn, its messages and its end, cancelled after ever more passes of the loop: no turn is ever left open."""
    ended: set[str | Exception | None] = set()
    for passes in range(0, 48, 4):
        key = f"s{passes}"

        async def operation(key: str = key) -> None:
            session = await memory.session(key)
            async with session.turn("hi", turn_id=f"{key}-1") as turn:
                await turn.tool_call("c1", "look", "{}")
                await turn.tool_result("c1", "found")
                await turn.assistant("said")

        attempt = Attempt(how)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt.run, operation)
            await anyio.lowlevel.checkpoint()
            for _ in range(passes):
                await anyio.sleep(0.0005)
            attempt.cancel()
        ended.add(attempt.ended)
        for state, outcome in turns(sync, key):
            assert state == "ended"
            if outcome == "completed":
                assert len(sync.session(key).turns()) == 1
    assert ended <= {"cancelled", "returned"}
    assert "cancelled" in ended
    assert sync.verify().ok
