"""
Readiness (§ 6, § 10): what is shown while summaries are missing, and what becomes of those that cannot be made.

No test waits for time to pass: failures come from a script, and clocks are moved by hand.
"""

import threading
from collections.abc import Callable

import pytest

import optchat
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from tests.acceptance.conftest import Open
from tests.peer import Peer

BUDGET = optchat.Budget(32_000, 1_000)
LONG = "The broker persists, so no Redis. " * 100


def long_turn(memory: optchat.Memory, key: str = "s") -> optchat.Session[optchat.HostMessage]:
    session = memory.session(key)
    with session.turn("Should we?") as turn:
        turn.assistant(LONG)
    return session


def always(_request: optchat.SummaryRequest) -> BaseException:
    return RuntimeError("the model is out")


def settle(memory: optchat.Memory, clock: ManualClock) -> optchat.Status:
    """All attempts of all jobs, with the pauses between them passed by hand."""
    for _ in range(40):
        status = memory.settle()
        if not status.pending or status.failures:
            return status
        clock.advance(60)
    raise AssertionError("jobs that never end")


# ---- strict and partial ----------------------------------------------------------------------------------------------
def test_strict_stops_and_says_what_is_missing(memory: optchat.Memory) -> None:
    session = long_turn(memory)
    turn = session.turn("And now?")
    with pytest.raises(optchat.SummariesPending, match="settle") as caught:
        turn.context(BUDGET)
    error = caught.value
    assert error.missing == (f"session:{session.id}:0:1+1",)
    assert (error.failures, error.paused, error.retryable) == ((), None, True)
    assert isinstance(error, optchat.MemoryNotReady)
    with pytest.raises(optchat.SummariesPending):
        session.preview(BUDGET)
    memory.settle()
    context = turn.context(BUDGET)
    assert context.receipt.missing == ()
    assert "Redis" in context.blocks[2].text


def test_partial_serves_and_discloses(memory: optchat.Memory) -> None:
    session = long_turn(memory)
    turn = session.turn("And now?")
    context = turn.context(BUDGET, readiness="partial")
    own = context.blocks[2].text.splitlines()
    assert 'missing="1+1"' in own[0]
    assert [line.split(" ")[0] for line in own[1:-1]] == ["0+1", "1+1"]
    assert own[2] == "1+1 [missing] | not summarised yet; zoom for the source"
    assert context.receipt.missing == (f"session:{session.id}:0:1+1",)
    assert turn.source("1+1").part == optchat.TextPart(LONG)


def test_partial_by_policy(open_memory: Open) -> None:
    memory = open_memory(policy=optchat.Policy(readiness="partial"))
    session = long_turn(memory)
    assert session.preview(BUDGET).receipt.missing
    turn = session.turn("And now?")
    with pytest.raises(optchat.SummariesPending):
        turn.context(BUDGET, readiness="strict")
    assert turn.context(BUDGET).receipt.missing


def test_the_previous_exchange_is_there_even_then(memory: optchat.Memory) -> None:
    """Verbatim text needs no summary: what "do that" speaks of does not wait for a model."""
    turn = long_turn(memory).turn("And now?")
    context = turn.context(BUDGET, readiness="partial")
    assert LONG.strip() in context.blocks[3].text


def test_other_sessions_never_wait(memory: optchat.Memory) -> None:
    long_turn(memory)
    with memory.session("b").turn("hello") as turn:
        context = turn.context(BUDGET)
        assert 'pending="1"' in context.blocks[1].text
        turn.assistant("hi")
    assert memory.status().publications == 1, "a turn that needs no summary does not wait for one that does"


def test_a_live_worker_is_waited_for(open_memory: Open) -> None:
    memory = open_memory(compact="background")
    turn = long_turn(memory).turn("And now?")
    context = turn.context(BUDGET)
    assert context.receipt.missing == ()


def test_another_processs_worker_is_waited_for(memory: optchat.Memory, peer: Peer) -> None:
    peer("memory.close(); memory = optchat.open(path, scope='project-17', compact='background')")
    assert memory._house.worker is not None
    assert not memory._house.worker.running
    turn = long_turn(memory).turn("And now?")
    assert turn.context(BUDGET).receipt.missing == ()


def test_waiting_ends(open_memory: Open) -> None:
    """A worker that is stuck in its model: the error says how long was waited."""
    gate = threading.Event()
    stuck = optchat.summarizer("stuck-1", window_tokens=32_000)(lambda _request: str(gate.wait()))
    memory = open_memory(compact="background", summarizer=stuck)
    turn = long_turn(memory).turn("And now?")
    try:
        with pytest.raises(optchat.SummariesPending) as caught:
            turn.context(BUDGET, wait_seconds=0.05)
    finally:
        gate.set()
    assert caught.value.waited_seconds >= 0.05


# ---- failures --------------------------------------------------------------------------------------------------------
def test_five_failures_give_a_stand_in() -> None:
    clock, summarizer = ManualClock(), DeterministicSummarizer(fail=always)
    with temporary_memory(summarizer=summarizer, clock=clock) as memory:
        session = long_turn(memory)
        status = settle(memory, clock)
        leaves = [request for request in summarizer.requests if request.purpose == "leaf"]
        assert len(leaves) == 5
        assert status.stand_ins > 0
        assert status.failures == ()
        line = next(line for line in memory.view(session.id).lines if line.ref.endswith(":1+1"))
        assert line.kind == "stand_in"
        with session.turn("And now?") as turn:
            context = turn.context(BUDGET)
            assert context.receipt.missing == ()
            assert turn.source("1+1").part == optchat.TextPart(LONG), "navigation: it still leads to the source"
            assert turn.search("Redis").hits
        assert memory.verify().ok


def test_a_failure_that_passes_is_tried_again() -> None:
    failures = [RuntimeError("once"), RuntimeError("twice"), None]
    clock = ManualClock()
    summarizer = DeterministicSummarizer(fail=lambda _request: failures.pop(0) if failures else None)
    with temporary_memory(summarizer=summarizer, clock=clock) as memory:
        session = long_turn(memory)
        status = settle(memory, clock)
        assert (status.ready, status.stand_ins) == (True, 0)
        assert memory.view(session.id).lines[-1].kind == "summary"


def test_on_failed_stop_it_is_an_error_until_it_is_tried_again() -> None:
    broken = [True]
    clock = ManualClock()
    summarizer = DeterministicSummarizer(fail=lambda _request: RuntimeError("the model is out") if broken[0] else None)
    policy = optchat.Policy(on_failed="stop")
    with temporary_memory(summarizer=summarizer, policy=policy, clock=clock) as memory:
        session = long_turn(memory)
        status = settle(memory, clock)
        assert status.stand_ins == 0
        assert not status.ready
        (failure,) = status.failures
        assert (failure.kind, failure.ref, failure.attempts) == ("leaf", f"session:{session.id}:0:1+1", 5)
        assert "the model is out" in failure.error
        turn = session.turn("And now?")
        with pytest.raises(optchat.MemoryNotReady, match="retry_failed") as caught:
            turn.context(BUDGET)
        assert caught.value.failures == (failure,)
        assert "Redis" not in str(caught.value), "no content in an error"
        assert turn.context(BUDGET, readiness="partial").receipt.missing
        broken[0] = False
        assert memory.retry_failed() == 1
        assert settle(memory, clock).ready
        assert memory.retry_failed() == 0
        assert memory.status().publications == 1


Bad = Callable[[optchat.SummaryRequest], str]


@pytest.mark.parametrize(
    "reply",
    [lambda _request: "x" * 10_000, lambda _request: "", lambda _request: "  \n ", lambda _request: "\x00\ud800"],
    ids=["too long", "empty", "blank", "not text"],
)
def test_a_reply_that_is_no_summary_is_not_stored(open_memory: Open, reply: Bad) -> None:
    bad = optchat.summarizer("bad-1", window_tokens=32_000)(reply)
    memory = open_memory(summarizer=bad)
    session = long_turn(memory)
    memory.settle(timeout_seconds=20)
    for line in memory.view(session.id).lines:
        assert line.kind in ("verbatim", "stand_in")
        assert len(line.text.encode()) <= 512
    assert memory.verify().ok


# ---- whose summaries -------------------------------------------------------------------------------------------------
def test_the_default_never_names_the_scopes_summarizer(open_memory: Open) -> None:
    memory = open_memory()
    long_turn(memory)
    status = memory.settle()
    assert status.by_default_summarizer > 0
    assert status.paused is None
    memory.close()
    other = open_memory(summarizer=DeterministicSummarizer())
    assert other.status().paused is None
    long_turn(other, "t")
    assert other.settle().summarizer == "deterministic-1"


def test_the_first_other_does_and_then_nobody_else_claims(open_memory: Open) -> None:
    first = open_memory(summarizer=DeterministicSummarizer())
    assert first.status().paused is None
    long_turn(first)
    assert first.settle().ready
    by_default = first.status().by_default_summarizer
    first.close()

    default = open_memory()
    long_turn(default, "t")
    status = default.settle()
    assert not status.ready
    assert status.pending > 0
    assert status.paused is not None
    assert "'deterministic-1'" in status.paused
    assert status.by_default_summarizer == by_default
    default.close()

    third = open_memory(summarizer=optchat.summarizer("third-1", window_tokens=32_000)(lambda _request: "third"))
    status = third.settle()
    assert status.paused is not None
    assert status.pending > 0
    with pytest.raises(optchat.SummariesPending) as caught:
        third.session("t").preview(BUDGET)
    assert caught.value.retryable
    third.close()

    again = open_memory(summarizer=DeterministicSummarizer())
    assert again.settle().ready
    assert again.status().paused is None


def test_what_needs_no_model_needs_nobody(open_memory: Open) -> None:
    """Index jobs and verbatim turns go on, whoever is the scope's summarizer."""
    first = open_memory(summarizer=DeterministicSummarizer())
    long_turn(first)
    first.settle()
    first.close()
    default = open_memory()
    with default.session("short").turn("hello") as turn:
        turn.assistant("hi")
    assert default.session("short").turns().items[0].publication_ref is not None
    with default.session("large").turn("hello") as turn:
        turn.assistant("heliotrope " + "x y " * 40_000)
    default.settle()
    found = default.search("heliotrope")
    assert found.unindexed == 0
    assert len(found) == 1


def test_an_async_summarizer_is_awaited(open_memory: Open) -> None:
    class First:
        name, window_tokens = "first-1", 1_000_000

        async def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
            return optchat.SummaryReply("; ".join(source.text[:40] for source in request.sources))

    memory = open_memory(summarizer=First())
    session = long_turn(memory)
    status = memory.settle()
    assert (status.ready, status.summarizer, status.stand_ins) == (True, "first-1", 0)
    assert memory.view(session.id).lines[-1].kind == "summary"
