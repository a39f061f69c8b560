"""
§ 16: a backlog produces a visible readiness condition; no source disappears silently.

The summarizers here wait until they are let go, and some never are: whatever waited for one would never end. No test
asks how long a thing took.
"""

import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.engine.working import SECONDS, Gate

BUDGET = optchat.Budget(64_000, 1_000)
LONG = "The broker persists, so no Redis is needed for that. " * 60
PATIENT = optchat.Policy(readiness_wait_seconds=1_000_000.0)  # whoever waits, waits for ever


def hurried(action: Callable[[], Any]) -> Any:
    """Do it in another thread: if it waits for what never comes, the test fails instead of waiting, too."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(action).result(SECONDS)
    finally:
        pool.shutdown(wait=False)


def long_turns(session: optchat.Session[optchat.HostMessage], count: int) -> list[str]:
    """Turns whose answers need summaries; the refs of those."""
    refs: list[str] = []
    for number in range(count):
        with session.turn(f"request{number}") as turn:
            refs += turn.assistant(f"heliotrope{number}: {LONG}")
    return refs


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def slow(open_memory: Open, gate: Gate) -> Any:
    memory = open_memory(compact="background", summarizer=gate, policy=PATIENT)
    yield memory
    gate.open.set()


# ---- nothing waits that need not -------------------------------------------------------------------------------------


def test_neither_what_is_said_nor_the_end_of_a_turn_waits(slow: optchat.Memory, gate: Gate) -> None:
    session = slow.session("a")
    refs = hurried(lambda: long_turns(session, 30))
    gate.is_asked()
    status = slow.status()
    assert (status.records, status.publications) == (60, 0)
    assert [turn.outcome for turn in session.turns(limit=30)] == ["completed"] * 30
    for number, ref in enumerate(refs):
        found = slow.source(ref)
        assert found.part == optchat.TextPart(f"heliotrope{number}: {LONG}")


def test_nor_does_a_session_that_lacks_nothing(slow: optchat.Memory, gate: Gate) -> None:
    long_turns(slow.session("a"), 3)
    gate.is_asked()

    def converse() -> str:
        with slow.session("b").turn("hello") as turn:
            context = turn.context(BUDGET)
            turn.assistant("hi")
            assert context.receipt.missing == ()
            return context.blocks[1].text

    assert 'pending="3"' in hurried(converse), "that others' turns are on their way is said"
    assert slow.status().publications == 1


def test_nor_does_who_wants_no_more_than_there_is(slow: optchat.Memory) -> None:
    session = slow.session("a")
    refs = long_turns(session, 3)
    turn = session.turn("and now?")
    context = hurried(lambda: turn.context(BUDGET, readiness="partial"))
    assert context.receipt.missing == tuple(refs)
    with pytest.raises(optchat.SummariesPending):
        hurried(lambda: turn.context(BUDGET, wait_seconds=0))
    with pytest.raises(optchat.SummariesPending):
        hurried(lambda: session.preview(BUDGET))


# ---- the backlog is visible ------------------------------------------------------------------------------------------


def test_the_error_names_what_is_missing_since_when_and_what_to_do(slow: optchat.Memory, gate: Gate) -> None:
    session = slow.session("a")
    before = slow._scope.clock.now()
    refs = long_turns(session, 12)
    after = slow._scope.clock.now()
    gate.is_asked()
    turn = session.turn("and now?")
    with pytest.raises(optchat.SummariesPending) as caught:
        turn.context(BUDGET, wait_seconds=0.01)
    error = caught.value
    assert error.missing == tuple(refs)
    assert before <= error.since <= after
    assert error.waited_seconds >= 0.01
    assert (error.failures, error.paused, error.retryable) == ((), None, True)
    said = str(error)
    assert refs[0] in said
    assert str(error.since) in said
    assert "partial" in said, "what else can be done"
    assert "heliotrope" not in said
    assert "Redis" not in said


def test_the_status_counts_the_backlog_in_every_process(slow: optchat.Memory, gate: Gate, open_memory: Open) -> None:
    long_turns(slow.session("a"), 12)
    gate.is_asked()
    for memory in (slow, open_memory(mode="ro")):
        status = memory.status()
        assert not status.ready
        assert status.running > 0
        assert status.pending + status.running >= 24, "a leaf and a publication each, and merges"
        assert status.oldest_pending_at is not None
        assert status.newest_record_at is not None
        assert status.oldest_pending_at <= status.newest_record_at
        assert status.total.calls == status.last_hour.calls > 0, "they have begun"


def test_a_partial_view_tells_of_each_gap_where_it_is(slow: optchat.Memory) -> None:
    session = slow.session("a")
    for number in range(6):
        with session.turn(f"request{number}") as turn:
            turn.assistant(LONG if number % 2 else "short")
    with session.turn("and now?") as turn:
        context = hurried(lambda: turn.context(BUDGET, readiness="partial"))
        (block,) = [block.text for block in context.blocks if block.kind == "session"]
        head, *lines = block.splitlines()[:-1]
        gaps = [ref.rpartition(":")[2] for ref in context.receipt.missing]
        assert gaps == ["3+1", "7+1", "11+1"]
        assert f'missing="{" ".join(gaps)}"' in head
        told = [line.partition(" ")[0] for line in lines if "[missing]" in line]
        assert told == gaps, "a line for each, in its place"
        covered = 0
        for line in lines:
            match = re.match(r"(\d+)\+(\d+) ", line)
            assert match is not None
            assert int(match[1]) == covered, "no line is left out, and none is there twice"
            covered += int(match[2])
        assert covered == 12
        for gap in gaps:
            assert turn.source(gap).part == optchat.TextPart(LONG), "and each leads to its source"
        assert {hit.ref for hit in turn.search("Redis", limit=50)} >= set(context.receipt.missing)


def test_nothing_is_lost_and_all_of_it_comes_in_the_end(slow: optchat.Memory, gate: Gate) -> None:
    session = slow.session("a")
    refs = long_turns(session, 12)
    gate.is_asked()
    report = slow.verify()
    assert report.ok, report.faults
    for number, ref in enumerate(refs):
        (hit,) = slow.search(f"heliotrope{number}")
        assert hit.ref == ref
    gate.open.set()
    status = slow.settle(SECONDS)
    assert (status.ready, status.publications, status.stand_ins) == (True, 12, 0)
    assert status.total.calls == len(gate.requests)
    with session.turn("and now?") as turn:
        assert turn.context(BUDGET).receipt.missing == ()
    assert slow.verify().ok


def test_who_waits_gets_it_when_it_is_there(slow: optchat.Memory, gate: Gate) -> None:
    session = slow.session("a")
    long_turns(session, 3)
    turn = session.turn("and now?")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: turn.context(BUDGET))
        gate.is_asked()
        assert not waiting.done()
        gate.open.set()
        assert waiting.result(SECONDS).receipt.missing == ()


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_closing_the_memory_ends_a_wait(slow: optchat.Memory, gate: Gate) -> None:
    session = slow.session("a")
    long_turns(session, 3)
    turn = session.turn("and now?")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: turn.context(BUDGET))
        gate.is_asked()
        slow.close()
        with pytest.raises(optchat.OptchatError):
            waiting.result(SECONDS)


def test_closing_the_memory_ends_a_settle(slow: optchat.Memory, gate: Gate) -> None:
    long_turns(slow.session("a"), 3)
    gate.is_asked()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slow.settle)
        hurried(slow.close)
        try:
            assert not waiting.result(SECONDS).ready
        except optchat.OptchatError as error:
            assert "closed" in str(error)


def test_closing_over_a_stuck_call_gives_its_leases_back(slow: optchat.Memory, gate: Gate, open_memory: Open) -> None:
    """Another handle of this process, which lives on, has them at once: no lease has to run out."""
    beside = open_memory()
    long_turns(slow.session("a"), 3)
    gate.is_asked()
    assert beside.status().running > 0
    hurried(slow.close)
    status = beside.status()
    assert (status.running, status.pending > 0) == (0, True)
    with beside._scope.store.read() as db:
        assert {outcome for (outcome,) in db.execute("SELECT outcome FROM call")} == {"cancelled"}
    taken = open_memory(summarizer=optchat.summarizer(gate.name, window_tokens=65_536)(gate.inner.summarize))
    assert taken.settle().ready
    text = taken.view().text
    gate.open.set()  # what was left alone answers now, and nobody listens
    assert taken.settle().ready
    assert taken.view().text == text
    assert taken.verify().ok


def test_closing_breaks_off_what_is_awaited(open_memory: Open) -> None:
    began, broken_off = threading.Event(), threading.Event()

    class Endless:
        name, window_tokens = "endless-1", 64_000

        async def summarize(self, _request: optchat.SummaryRequest, /) -> str:
            began.set()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                broken_off.set()
                raise
            raise AssertionError("it does not end")

    beside = open_memory()
    memory = open_memory(compact="background", summarizer=Endless())
    long_turns(memory.session("a"), 1)
    assert began.wait(SECONDS)
    hurried(memory.close)
    assert broken_off.is_set()
    assert beside.status().running == 0


def test_a_summarizer_that_blocks_the_workers_own_loop_stops_nobody_else(open_memory: Open, gate: Gate) -> None:
    """It is not what an async one may do; all the same nothing that is said, and no closing, waits for that loop."""

    class Rude:
        name, window_tokens = gate.name, gate.window_tokens

        async def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
            return gate.summarize(request)

    beside = open_memory()
    memory = open_memory(compact="background", summarizer=Rude())
    session = memory.session("a")
    long_turns(session, 1)
    gate.is_asked()
    hurried(lambda: long_turns(session, 5))
    assert memory.status().records == 12
    hurried(memory.close)
    status = beside.status()
    assert (status.running, status.pending > 0) == (0, True)
    gate.open.set()


def test_an_interrupt_ends_a_settle_and_gives_back_its_leases(open_memory: Open, gate: Gate) -> None:
    memory = open_memory(summarizer=gate)
    long_turns(memory.session("a"), 2)
    main = threading.get_ident()

    def press_ctrl_c() -> None:
        gate.is_asked()
        signal.pthread_kill(main, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            memory.settle()
        pressed.result(SECONDS)
    assert memory.status().running == 0
    gate.open.set()
    assert memory.settle().ready
