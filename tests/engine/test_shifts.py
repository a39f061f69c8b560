"""A worker's loop when something goes wrong in it: nothing is lost, nothing is paid for twice, and it goes on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import apsw
import pytest

import optchat
from optchat.compactor import asking, shift
from optchat.engine import calls, work
from optchat.memory.opening import open_with
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from optchat.testing.memories import open_beside
from tests.engine.helpers import BUDGET, say, words
from tests.engine.working import SECONDS, Gate, rows

_UNMET: list[BaseException] = []


def once(real: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """A function that fails the first time. That there was one is checked at the test's end."""
    left = [error]
    _UNMET.append(error)

    def replaced(*arguments: Any, **named: Any) -> Any:
        if left:
            _UNMET.remove(error)
            raise left.pop()
        return real(*arguments, **named)

    return replaced


def met_soon(worker: Any) -> None:
    """Wait for a failure that comes when the worker has nothing to do: after a while, and not with the last summary."""
    end = monotonic() + SECONDS
    while _UNMET and monotonic() < end:
        worker.wake()
        sleep(0.02)


@pytest.fixture(autouse=True)
def every_failure_was_met() -> Iterator[None]:
    _UNMET.clear()
    yield
    assert not _UNMET, "a function that was to fail is not the one that is called"


def in_background(path: Any, summarizer: optchat.Summarizer, **policy: Any) -> optchat.Memory:
    return optchat.open(path, scope="test", summarizer=summarizer, policy=optchat.Policy(**policy))


def ready(memory: optchat.Memory) -> optchat.Status:
    status = memory.settle(SECONDS)
    assert status.ready, status
    return status


def test_a_time_limit_ends_a_settle_over_calls_that_take_long() -> None:
    clock = ManualClock()
    gate = Gate(lambda: clock.advance(60))
    with temporary_memory(summarizer=gate, clock=clock) as memory:
        say(memory.session("s"), words(1, 3_000))
        status = memory.settle(timeout_seconds=30)  # the call would take for ever
        assert (status.running, status.pending) == (0, 2), "the leaf, and the publication that waits for it"
        assert rows(memory, "SELECT outcome FROM call") == [("cancelled",)]
        gate.open.set()
        assert memory.settle().ready


def test_a_time_limit_ends_a_settle_that_always_finds_more_to_do() -> None:
    clock = ManualClock()

    def tick(_request: optchat.SummaryRequest) -> None:
        clock.advance(1)

    with temporary_memory(summarizer=DeterministicSummarizer(fail=tick), clock=clock) as memory:
        for number in range(20):
            say(memory.session(f"s{number}"), words(number, 3_000))
        status = memory.settle(timeout_seconds=4)
        assert not status.running
        assert 4 <= status.total.calls < 20
        assert memory.settle().ready


def test_where_very_many_are_ready_a_job_is_claimed_ahead_and_no_call_more_is_under_way() -> None:
    under_way, most, running = [0], [0], set[int]()

    def count(_request: optchat.SummaryRequest) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        running.add(memory.status().running)
        under_way[0] -= 1

    with temporary_memory(summarizer=DeterministicSummarizer(fail=count), policy=optchat.Policy(workers=1)) as memory:
        for number in range(40):
            say(memory.session(f"s{number}"), words(number, 3_000))
        status = memory.settle()
        assert status.ready
        assert (most[0], running) == (1, {1, 2})
        assert rows(memory, "SELECT DISTINCT outcome FROM call") == [("accepted",)]
        assert rows(memory, "SELECT sum(nodes) FROM recipe WHERE kind = 'summary'") == [(status.total.calls,)]


def test_what_was_claimed_ahead_is_given_back_when_the_shift_ends() -> None:
    clock = ManualClock()

    def tick(_request: optchat.SummaryRequest) -> None:
        clock.advance(1)

    policy = optchat.Policy(workers=1)
    with temporary_memory(summarizer=DeterministicSummarizer(fail=tick), policy=policy, clock=clock) as memory:
        for number in range(50):
            say(memory.session(f"s{number}"), words(number, 3_000))
        status = memory.settle(timeout_seconds=6)
        assert (status.running, status.total.calls >= 6) == (0, True)
        assert memory.settle().ready


def test_what_was_removed_after_it_was_read_ahead_is_sent_to_nobody() -> None:
    """The job is of a turn that stays: only what explains it was removed."""
    told: list[bool] = []

    def look(request: optchat.SummaryRequest) -> None:
        told.append(any("heliotrope" in message.text for message in request.messages))
        if len(told) == 3:
            other.session("s").delete(only=["first"])

    policy = optchat.Policy(workers=1)
    with temporary_memory(summarizer=DeterministicSummarizer(fail=look), policy=policy) as memory:
        other = open_beside(memory)
        session = memory.session("s")
        with session.turn("heliotrope", turn_id="first") as turn:
            turn.assistant("a short answer")
        for number in range(8):
            say(session, words(number, 3_000))
        for number in range(40):
            say(memory.session(f"s{number}"), words(number, 3_000))
        assert memory.settle().ready
        assert told[:3] == [True] * 3
        assert not any(told[3:])
        assert not rows(memory, "SELECT 1 FROM call WHERE outcome = 'started'")


def test_a_call_that_was_reserved_and_could_not_be_made_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit reserves the call of the job that was claimed ahead, and then something goes wrong."""
    loaded, busy = work.load_leased, [optchat.StoreBusy("held elsewhere")]

    def once_it_is_reserved(scope: Any, leased: work.Leased) -> work.Claimed:
        if not leased.jobs and busy:
            raise busy.pop()
        return loaded(scope, leased)

    with temporary_memory(summarizer=DeterministicSummarizer(), policy=optchat.Policy(workers=1)) as memory:
        for number in range(50):
            say(memory.session(f"s{number}"), words(number, 3_000))
        monkeypatch.setattr(work, "load_leased", once_it_is_reserved)
        with pytest.raises(optchat.StoreBusy):
            memory.settle()
        assert not busy
        assert memory.settle().ready
        assert rows(memory, "SELECT count(*) FROM call WHERE outcome = 'cancelled'") == [(1,)]
        assert not rows(memory, "SELECT 1 FROM call WHERE outcome = 'started'")


def test_a_store_that_is_busy_loses_no_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What was paid for is committed when the lock is to be had, under the same lease."""
    gate = Gate()
    with in_background(tmp_path / "memory.db", gate) as memory:
        monkeypatch.setattr(work, "commit_and_lease", once(work.commit_and_lease, optchat.StoreBusy("held elsewhere")))
        say(memory.session("s"), words(1, 3_000))
        gate.open.set()
        status = ready(memory)
        assert status.total.calls == len(gate.requests) == 1
        assert rows(memory, "SELECT outcome FROM call") == [("accepted",)]


def test_a_call_that_could_not_be_written_down_is_made_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    gate = Gate()
    gate.open.set()
    with in_background(tmp_path / "memory.db", gate) as memory:
        monkeypatch.setattr(calls, "begin_all", once(calls.begin_all, optchat.StoreBusy("held elsewhere")))
        say(memory.session("s"), words(1, 3_000))
        ready(memory)
        assert len(gate.requests) == 1
        assert rows(memory, "SELECT count(*) FROM job") == [(0,)]


def test_a_lease_that_could_not_be_given_back_is_given_back_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The store is busy when a call is to begin, and again when its job is to be let go: no lease waits for it."""
    gate = Gate()
    gate.open.set()
    with in_background(tmp_path / "memory.db", gate) as memory:
        monkeypatch.setattr(calls, "begin_all", once(calls.begin_all, optchat.StoreBusy("held elsewhere")))
        monkeypatch.setattr(work, "give_back", once(work.give_back, optchat.StoreBusy("held elsewhere")))
        say(memory.session("s"), words(1, 3_000))
        ready(memory)
        assert len(gate.requests) == 1


def test_a_claim_that_breaks_off_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        for number in range(3):
            say(memory.session(f"s{number}"), words(number, 3_000))
        with monkeypatch.context() as patch:
            patch.setattr(work, "load", once(work.load, optchat.StoreBusy("held elsewhere")))
            with pytest.raises(optchat.StoreBusy):
                memory.settle()
        assert (memory.status().running, memory.status().pending) == (0, 6)
        assert memory.settle().ready


def test_an_index_step_that_breaks_off_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        for number in range(3):
            say(memory.session(f"s{number}"), f"heliotrope{number} " + "x y " * 17_000)
        with monkeypatch.context() as patch:
            patch.setattr(shift, "index_step", once(shift.index_step, optchat.StoreBusy("held elsewhere")))
            with pytest.raises(optchat.StoreBusy):
                memory.settle()
        assert memory.settle().ready
        assert memory.search("heliotrope1").unindexed == 0


def test_an_error_of_our_own_uses_up_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a call would be made and paid for again and again."""

    def broken(*_arguments: object, **_named: object) -> None:
        raise ArithmeticError("a rule that fails")

    clock, summarizer = ManualClock(), DeterministicSummarizer()
    policy = optchat.Policy(job_attempts=3)
    with temporary_memory(summarizer=summarizer, clock=clock, policy=policy) as memory:
        say(memory.session("s"), words(1, 3_000))
        monkeypatch.setattr(asking, "judge", broken)
        monkeypatch.setattr("optchat.core.summarizing.judge", broken)
        for _ in range(6):
            with suppress(ArithmeticError):
                memory.settle()
            clock.advance(60)
        status = memory.status()
        assert len(summarizer.requests) == 3
        assert (status.ready, status.stand_ins) == (True, 1)


def test_a_result_that_cannot_be_taken_uses_up_attempts_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    real = work._commit_one
    bad: list[int] = []

    def broken(landing: Any, result: work.Result) -> bool:
        if result.recipe.kind == "summary" and result.task.job.job_pk in bad:
            raise ArithmeticError("a rule that fails")
        return real(landing, result)

    clock, summarizer = ManualClock(), DeterministicSummarizer()
    policy = optchat.Policy(job_attempts=3)
    with temporary_memory(summarizer=summarizer, clock=clock, policy=policy) as memory:
        for number in range(3):
            say(memory.session(f"s{number}"), words(number, 3_000))
        bad += [job for (job,) in rows(memory, "SELECT min(job_pk) FROM job")]
        monkeypatch.setattr(work, "_commit_one", broken)
        for _ in range(6):
            memory.settle()
            clock.advance(60)
        status = memory.status()
        assert (status.ready, status.stand_ins, status.publications) == (True, 1, 3)
        leaves = [request for request in summarizer.requests if request.purpose == "leaf"]
        assert len(leaves) == 5
        assert rows(memory, "SELECT count(*) FROM call WHERE outcome = 'started'") == [(0,)]


@pytest.mark.parametrize("where", ["next_look", "may_run"])
def test_an_error_while_it_waits_is_raised_as_it_is(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> float:
        raise optchat.SchemaTooNew("another version")

    with temporary_memory(summarizer=DeterministicSummarizer(fail=lambda _: ValueError("no"))) as memory:
        say(memory.session("s"), words(1, 3_000))
        monkeypatch.setattr(shift, where, broken)
        with pytest.raises(optchat.SchemaTooNew):
            memory.settle()
        assert memory.status().running == 0


def test_the_background_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    gate = Gate()
    gate.open.set()
    with in_background(tmp_path / "memory.db", gate) as memory:
        worker = memory._house.worker
        assert worker is not None
        for name in ("next_look", "can_claim", "upkeep", "settle"):
            monkeypatch.setattr(shift, name, once(getattr(shift, name), optchat.StoreError("the disk is away")))
            say(memory.session(name), words(1, 3_000))
            ready(memory)
            met_soon(worker)
            assert worker.running


def test_a_late_answer_of_a_call_that_was_left_alone_changes_nothing() -> None:
    clock = ManualClock()
    gate = Gate(lambda: clock.advance(60))
    with temporary_memory(summarizer=gate, clock=clock) as memory:
        say(memory.session("s"), words(1, 3_000))
        memory.settle(timeout_seconds=30)
        gate.is_asked()
        fresh = open_with(
            memory.path,
            scope="test",
            summarizer=DeterministicSummarizer(),
            tokenizer=None,
            policy=optchat.Policy(),
            background=False,
            mode="rwc",
            clock=memory._house.clock,
        )
        with fresh:
            assert fresh.settle().ready
            before = fresh.view(memory.session("s").id).text
            gate.open.set()
            memory.settle()
            assert fresh.view(memory.session("s").id).text == before
            assert fresh.verify().ok


def test_no_look_of_a_worker_reads_all_jobs() -> None:
    """A backlog may be of any size, and a worker looks many times a second: only status() counts every job."""
    ran: dict[str, Any] = {}

    def note(_cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        ran.setdefault(sql, bindings)
        return True

    def watch(db: apsw.Connection) -> None:
        db.exec_trace = note

    def fail(request: optchat.SummaryRequest) -> BaseException | None:
        return ConnectionError("down") if request.purpose == "merge" else None

    apsw.connection_hooks.append(watch)
    try:
        clock = ManualClock()
        with temporary_memory(summarizer=DeterministicSummarizer(fail=fail), clock=clock) as memory:
            session = memory.session("s")
            for number in range(3):
                say(session, words(number, 3_000))
            worker = memory._house.worker
            assert worker is not None
            turn = session.turn("and now?")
            ran.clear()
            for _ in range(4):
                worker.work_off(memory._scope, lambda: False)
                with suppress(optchat.SummariesPending):
                    turn.context(BUDGET)
                clock.advance(60)
            db = apsw.Connection(str(memory.path))
            plans = {
                sql: [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, bindings)]
                for sql, bindings in list(ran.items())
                if sql.startswith(("SELECT", "UPDATE")) and " job " in sql
            }
            db.close()
    finally:
        apsw.connection_hooks.remove(watch)
    assert len(plans) > 10
    assert not [(sql, plan) for sql, plan in plans.items() if "job_scope" in str(plan)]
