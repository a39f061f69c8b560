"""
The loop is never blocked: not by another process that holds the writer lock, nor by hundreds of tasks; and a memory is
closed when nobody is in it any more.
"""

import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import optchat
import optchat.aio
from optchat.store.connection import Store
from tests.aio.gates import Attempt, Gate, Said, Stuck, Writing, until
from tests.peer import Peer

pytestmark = pytest.mark.anyio
BUDGET = optchat.Budget(window=32_000, output=2_000)


async def test_the_loop_goes_on_while_another_process_writes(path: Path, new_peer: Callable[[], Peer]) -> None:
    """
    The other process lets go only when the loop has beaten often: a loop that waited would wait until StoreBusy.
    """
    policy = optchat.Policy(lock_wait_seconds=30)
    async with optchat.aio.open(path, scope="project-17", compact="manual", policy=policy) as memory:
        session, other = await memory.session("a"), await memory.session("b")
        begun = await session.turn("hi")
        peer = new_peer()
        peer("memory = optchat.open(path, scope='project-17', compact='manual')", path=str(path))
        peer("block = memory._scope.store.write(); db = block.__enter__()")
        done: list[str] = []
        begins: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("add", lambda: begun.add(optchat.HostMessage.assistant("said"))),
            ("note", lambda: other.note("x")),
            ("session", lambda: memory.session("new")),
            ("scoped", lambda: memory.scoped("new").status()),
            ("open", lambda: opened(path)),
        )

        async def do(name: str, operation: Callable[[], Awaitable[object]]) -> None:
            await operation()
            done.append(name)

        with anyio.fail_after(40):
            async with anyio.create_task_group() as tasks:
                for name, operation in begins:
                    tasks.start_soon(do, name, operation)
                for _ in range(20):
                    await anyio.sleep(0.001)
                    assert (begun.outcome, begun.pending, len(begun.messages)) == (None, (), 1)
                    await memory.sessions()  # readers wait for no writer
                assert done == []
                await anyio.to_thread.run_sync(peer, "block.__exit__(None, None, None)")
        assert sorted(done) == ["add", "note", "open", "scoped", "session"]
        await begun.end("completed")


async def opened(path: Path) -> None:
    async with optchat.aio.open(path, scope="another", compact="manual") as memory:
        await memory.status()


async def test_nothing_reads_or_writes_in_the_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But `messages`, which cannot be awaited."""
    mine, touched = threading.get_ident(), list[str]()

    def watched(was: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            if threading.get_ident() == mine:
                touched.append(was.__name__)
            return was(*arguments, **more)

        return watched

    for name in ("read", "write", "exclusive", "open", "close"):
        monkeypatch.setattr(Store, name, watched(getattr(Store, name)))
    async with optchat.aio.open(path, scope="project-17", compact="manual") as memory:
        session = await memory.session("a")
        async with session.turn("hi") as turn:
            await turn.tool_call("c1", "look", "{}")
            assert turn.pending
            await turn.tool_result("c1", "found")
            await turn.assistant("said")
            await turn.context(BUDGET)
            assert (turn.snapshot.through, turn.outcome, len(turn.tools.names)) == (0, None, 5)
        other = memory.scoped("other")
        repr(other), repr(turn), repr(session)
        memory.count_tokens("x")
        async with memory.pin() as reader:
            await reader.view()
        await other.settle()
    assert touched == []


async def test_no_more_threads_than_it_was_given(sync: optchat.Memory, gate: Gate) -> None:
    memory = optchat.aio.AsyncMemory(sync, threads=3)
    sessions = [await memory.session(f"s{number}", adapter=gate) for number in range(8)]
    async with anyio.create_task_group() as tasks:
        for session in sessions:
            tasks.start_soon(begin, session)
        await until(lambda: gate.inside == 3)
        await anyio.sleep(0.02)
        gate.open()
    assert gate.most == 3
    with pytest.raises(optchat.BadArgument, match="threads"):
        optchat.aio.AsyncMemory(sync, threads=0)
    with pytest.raises(optchat.BadArgument, match="threads"):
        optchat.aio.open("never.db", scope="s", threads=True)


async def begin(session: optchat.aio.AsyncSession[Said]) -> None:
    async with session.turn(Said("hi", by_user=True, slow=True)) as turn:
        await turn.assistant("hello")


async def test_tasks_share_a_turn(memory: optchat.aio.AsyncMemory, sync: optchat.Memory) -> None:
    session = await memory.session("a")
    async with session.turn("look at all of it") as turn:
        calls = [optchat.ToolCallPart(f"c{number}", "look", "{}") for number in range(12)]
        await turn.assistant("", calls=calls)

        async def look(call: optchat.ToolCallPart) -> None:
            await turn.search("look")
            await turn.tool_result(call.call_id, f"saw {call.call_id}")

        async with anyio.create_task_group() as tasks:
            for call in turn.pending:
                tasks.start_soon(look, call)
        assert turn.pending == ()
        await turn.assistant("All seen.")
        assert (await turn.context(BUDGET)).messages
    assert turn.outcome == "completed"
    assert sync.status().records == 26
    assert sync.verify().ok


# ---- closing ---------------------------------------------------------------------------------------------------------


async def test_closing_waits_for_what_is_under_way(path: Path, gate: Gate) -> None:
    memory = await optchat.aio.open(path, scope="project-17", compact="manual", threads=1)
    session = await memory.session("a", adapter=gate)
    turn = await session.turn(Said("hi", by_user=True))
    adding, waiting, closing, again = (Attempt("scope") for _ in range(4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(adding.run, lambda: turn.add(Said("one", slow=True)))
        await until(lambda: gate.inside)
        tasks.start_soon(waiting.run, lambda: turn.add(Said("two")))  # for the thread
        await anyio.sleep(0.01)
        tasks.start_soon(closing.run, memory.aclose)
        await until(lambda: memory._threads._closing)
        tasks.start_soon(again.run, memory.aclose)
        await anyio.sleep(0.01)
        closing.cancel()  # it closes all the same
        await anyio.sleep(0.01)
        assert (closing.ended, again.ended) == (None, None)
        gate.open()
    assert (adding.ended, waiting.ended, again.ended) == ("returned",) * 3
    assert closing.ended in {"cancelled", "returned"}
    with pytest.raises(optchat.ConfigError, match="closed"):
        await session.info()
    with optchat.open(path, scope="project-17", compact="manual") as there:
        (ended,) = there.session("a").turns()
        assert (ended.outcome, there.status().records) == ("interrupted", 3)


async def test_closing_ends_waits(path: Path) -> None:
    stuck = Stuck()
    memory = await optchat.aio.open(path, scope="project-17", summarizer=stuck)
    session = await memory.session("a")
    async with session.turn("word " * 400) as turn:
        await turn.assistant("word " * 400)
    await until(stuck.asked.is_set)
    turn = await session.turn("and now?")
    waiting, settling = Attempt("scope"), Attempt("scope")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.run, lambda: turn.context(BUDGET, wait_seconds=50))
        tasks.start_soon(settling.run, memory.settle)
        await memory.status()
        await memory.aclose()
    assert isinstance(waiting.ended, optchat.SummariesPending)
    assert isinstance(settling.value, optchat.Status)


async def test_the_end_of_a_block_closes(path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        async with optchat.aio.open(path, scope="project-17") as memory:
            session = await memory.session("a")
            await session.turn("left open")
            raise RuntimeError("mine")
    assert not [thread for thread in threading.enumerate() if thread.name == "optchat-worker"]
    with optchat.open(path, scope="project-17", compact="manual") as there:
        assert [turn.outcome for turn in there.session("a").turns()] == ["interrupted"]


async def test_what_cannot_be_opened(path: Path) -> None:
    with pytest.raises(optchat.ConfigError):
        await optchat.aio.open(path, scope="project-17", mode="rw")
    with pytest.raises(optchat.BadArgument):
        async with optchat.aio.open(path, scope=""):
            pytest.fail("it was opened")


def test_one_loop_at_a_time(path: Path) -> None:
    """One after the other is fine; both at once is told."""
    with optchat.open(path, scope="project-17", compact="manual") as sync, Writing(sync) as writing:
        memory = optchat.aio.AsyncMemory(sync)
        first = threading.Thread(target=anyio.run, args=(noted, memory, "first"))
        first.start()
        while not writing.waited_for():
            time.sleep(0.001)
        with pytest.raises(optchat.ConfigError, match="another event loop"):
            anyio.run(noted, memory, "second")
        writing.end()
        first.join()
        anyio.run(noted, memory, "third", backend="trio")
        assert sync.status().records == 2


async def noted(memory: optchat.aio.AsyncMemory, text: str) -> None:
    await (await memory.session("a")).note(text)
