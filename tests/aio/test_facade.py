"""What is awaited does and answers what the synchronous façade does and answers."""

from pathlib import Path

import anyio
import pytest

import optchat
import optchat.aio
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.aio.gates import Gate, Said, until

pytestmark = pytest.mark.anyio
BUDGET = optchat.Budget(window=32_000, output=2_000)


async def test_a_turn(memory: optchat.aio.AsyncMemory) -> None:
    first = await memory.session("planning", title="Queue")
    async with first.turn("Should the queue live in Redis?") as turn:
        await turn.tool_call("c1", "list_services", {"all": True})
        assert [call.name for call in turn.pending] == ["list_services"]
        await turn.tool_result("c1", "broker 3.13")
        assert turn.pending == ()
        await turn.user("hurry")
        await turn.report("scan", "nothing else runs")
        await turn.stage(optchat.HostMessage.assistant("No. Dec", key="m1"))
        (ref,) = await turn.assistant("No. Decided against Redis.", key="m1")
        assert [message.role for message in turn.messages] == ["user", "assistant", "tool", "user", "tool", "assistant"]
        assert (await turn.source(ref)).part == optchat.TextPart("No. Decided against Redis.")
    assert turn.outcome == "completed"

    second = await memory.session("building")
    async with second.turn("add a queue") as turn:
        context = await turn.context(BUDGET)
        assert "Decided against Redis" in str(context.messages)
        assert context.receipt.snapshot == turn.snapshot
        assert (await turn.context(BUDGET, active=[context.messages[-1]])).receipt.active_source == "passed"
        names = [tool.name for tool in turn.tools]
        assert "Decided against Redis" in (await turn.call(names[0], {"ref": "pub:0+1"})).text
        assert await turn.observe([optchat.HostMessage.user("add a queue"), optchat.HostMessage.assistant("Done.")])
        await turn.end("completed", "because")
    assert turn.outcome == "completed"
    assert [each.outcome for each in await second.turns()] == ["completed"]
    assert (await memory.verify()).ok


async def test_reads_answer_what_the_synchronous_ones_do(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a", project="p")
    async with session.turn("where is the broker?") as turn:
        await turn.report("scan", "on host seven")
        await turn.assistant("On host seven.")
    there = memory.sync
    (ref,) = ((await memory.view()).lines[0].ref,)
    assert await memory.zoom(ref) == there.zoom(ref)
    assert await memory.zoom(ref, depth=2, max_tokens=10) == there.zoom(ref, depth=2, max_tokens=10)
    assert await memory.search("broker", order="newest") == there.search("broker", order="newest")
    assert await memory.date(ref) == there.date(ref)
    assert await memory.sessions(limit=1) == there.sessions(limit=1)
    assert await memory.work("scan") == there.work("scan")
    assert await memory.view(session.id) == there.view(session.id)
    hit = (await memory.search("broker")).hits[0]
    assert await memory.source(hit.ref) == there.source(hit.ref)
    assert await memory.status() == there.status()
    assert await session.info() == there.session("a").info()
    assert await session.preview(BUDGET, request="and now?") == there.session("a").preview(BUDGET, request="and now?")
    assert memory.count_tokens("one", {"two": 2}) == there.count_tokens("one", {"two": 2})
    assert (await memory.session_by_id(session.id)).key == "a"


async def test_errors_are_the_same(memory: optchat.aio.AsyncMemory) -> None:
    with pytest.raises(optchat.MalformedRef):
        await memory.zoom("nothing")
    with pytest.raises(optchat.UnknownRef):
        await memory.session("absent", create=False)
    with pytest.raises(optchat.UnknownRef):
        await (await memory.session("a")).resume()
    session = await memory.session("a")
    async with session.turn("hi") as turn:
        await turn.assistant("hello")
    with pytest.raises(optchat.TurnEnded):
        await turn.context(BUDGET)
    with pytest.raises(optchat.BadArgument, match="readiness"):
        await turn.context(BUDGET, readiness="none")  # type: ignore[arg-type]
    with pytest.raises(optchat.RevisionConflict):
        await session.turn("another", turn_id=turn.id)


async def test_a_turn_goes_on_elsewhere(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    async with session.turn("deploy") as turn:
        await turn.tool_call("c1", "deploy", "{}")
        await turn.suspend()
    assert turn.outcome is None
    async with (await memory.session("a")).resume() as again:
        assert (again.id, [call.call_id for call in again.pending]) == (turn.id, ["c1"])
        await again.tool_result("c1", "denied", is_error=True)
        await again.assistant("Denied.")
    assert again.outcome == "completed"


async def test_notes_and_reports(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    note, report = await session.note("The broker moves on Friday."), await session.report("nightly", "2 failures")
    assert (await memory.source(note)).kind == "note"
    assert (await memory.source(report)).kind == "report"


async def test_another_scope_shares_file_and_threads(memory: optchat.aio.AsyncMemory) -> None:
    other = memory.scoped("project-18")
    async with (await other.session("a")).turn("in the other") as turn:
        await turn.assistant("yes")
    assert len((await other.view()).lines) == 1
    assert (await memory.view()).lines == ()
    assert (other.sync.scope, other.sync.path) == ("project-18", memory.sync.path)
    assert other.sync is other.sync
    assert other.count_tokens("x") == memory.count_tokens("x")
    assert "project-18" in repr(other)


async def test_a_scope_is_made_by_the_first_thing_awaited_of_it(path: Path, memory: optchat.aio.AsyncMemory) -> None:
    memory.scoped("never")
    await memory.scoped("once").status()
    with optchat.open(path, scope="project-17", mode="ro") as there:
        reading = optchat.aio.AsyncMemory(there)
        await reading.scoped("once").status()
        with pytest.raises(optchat.ConfigError, match="no scope 'never'"):
            await reading.scoped("never").status()


async def test_a_pinned_reader_stays(memory: optchat.aio.AsyncMemory) -> None:
    session = await memory.session("a")
    await session.note("before")
    async with memory.pin() as entered:
        given = await memory.pin()
        await session.note("after")
        for reader in (entered, given):
            assert len((await reader.view()).lines) == 1
            assert (await reader.search("after")).hits == ()
    assert len((await memory.view()).lines) == 2
    again = await memory.pin((await given.view()).snapshot.id)
    assert await again.view() == await given.view()
    with pytest.raises(optchat.UnknownRef):
        await memory.pin("17.never")


async def test_upkeep(tmp_path: Path) -> None:
    failing = True

    def fail(_request: optchat.SummaryRequest) -> Exception | None:
        return ValueError("not today") if failing else None

    policy = optchat.Policy(summary_attempts=1, job_attempts=1, on_failed="stop")
    with temporary_memory(summarizer=DeterministicSummarizer(fail=fail), policy=policy) as sync:
        memory = optchat.aio.AsyncMemory(sync, threads=1)
        session = await memory.session("a", project="p")
        async with session.turn("word " * 400) as turn:
            await turn.assistant("word " * 400)
        assert (await memory.settle()).failures
        failing = False
        assert await memory.retry_failed() > 0
        assert (await memory.settle(timeout_seconds=60)).ready
        assert await memory.repair((await memory.view()).lines[0].ref) > 0
        await memory.link_project("p", "other name")
        note = tmp_path / "note.txt"
        note.write_text("to be imported")
        assert (await memory.import_file(note)).sealed == 1
        await memory.settle()
        assert (await memory.verify(repair=True)).ok
        await memory.aclose()
        await memory.aclose()


async def test_it_works_beside_the_synchronous_one() -> None:
    with temporary_memory() as sync:
        memory = optchat.aio.AsyncMemory(sync)
        assert memory.sync is sync
        async with (await memory.session("a")).turn("hi") as turn:
            sync.session("a").note("said meanwhile")
            await turn.assistant("hello")
        assert len(turn.messages) == 3
        with sync.session("b").turn("hi"):
            assert (await (await memory.session("b")).info()).turns == 1


async def test_lists_are_taken_as_they_are(memory: optchat.aio.AsyncMemory, gate: Gate) -> None:
    """A thread reads them; meanwhile the loop goes on, and so may their owner."""
    session = await memory.session("a", adapter=gate)
    said = [Said("hi", by_user=True), Said("one", slow=True)]
    turn = await session.turn(said[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.observe, said)
        await until(lambda: gate.inside)
        said.append(Said("two"))
        gate.open()
    assert len(turn.messages) == 2
    await turn.end("completed")
