"""Jobs, leases and fences as the use cases handle them: who may commit, and that no job stops another."""

import pytest

import optchat
from optchat.compactor.worker import Worker
from optchat.engine import work
from optchat.store import payloads, queue
from optchat.store.ledger import RecordRow
from optchat.store.rows import Connection
from optchat.testing import DeterministicSummarizer, temporary_memory
from optchat.testing.memories import open_beside
from tests.engine.helpers import say, words


def claim(memory: optchat.Memory, limit: int = 1) -> work.Claimed:
    return work.claim(memory._scope, summarizer="extractive-1", is_default=True, window_tokens=65_536, limit=limit)


def commit(memory: optchat.Memory, task: work.Task) -> int:
    return work.commit(memory._scope, [work.stand_in(memory._scope, task)])


def worker_of(memory: optchat.Memory) -> Worker:
    worker = memory._house.worker
    assert worker is not None
    return worker


def test_a_jobs_key_is_never_used_again() -> None:
    with temporary_memory() as memory:
        scope = memory._scope
        with scope.store.write() as db:
            first = queue.add_job(db, scope_pk=scope.pk, kind="merge", subject=1, at=0)
            queue.remove_job(db, first)
            second = queue.add_job(db, scope_pk=scope.pk, kind="merge", subject=2, at=0)
            queue.remove_job(db, second)
        assert first != second


def test_a_worker_that_lost_its_lease_changes_nothing() -> None:
    with temporary_memory() as memory:
        say(memory.session("s"), words(1, 3_000))
        late = claim(memory).tasks[0]
        with memory._scope.store.write() as db:
            assert queue.end_lease(db, late.job.job_pk, late.job.fence)
        mine = claim(memory).tasks[0]
        assert mine.job.job_pk == late.job.job_pk
        assert commit(memory, mine) == 1
        say(memory.session("t"), words(2, 3_000))
        other = claim(memory).tasks[0]  # a key that came back would come back with the late one's fence
        assert other.job.fence == late.job.fence
        assert commit(memory, late) == 0
        assert commit(memory, other) == 1
        memory.settle()
        assert memory.verify().ok


def test_ending_a_lease_leaves_the_one_that_followed_it() -> None:
    with temporary_memory() as memory:
        say(memory.session("s"), words(1, 3_000))
        first = claim(memory).tasks[0].job
        with memory._scope.store.write() as db:
            assert queue.end_lease(db, first.job_pk, first.fence)
        second = claim(memory).tasks[0]
        with memory._scope.store.write() as db:
            assert not queue.end_lease(db, first.job_pk, first.fence)
        assert commit(memory, second) == 1


def test_a_leaf_that_waits_for_its_pages_makes_room_for_the_next() -> None:
    def fail(request: optchat.SummaryRequest) -> BaseException | None:
        return RuntimeError("no pages") if request.purpose == "chunk" else None

    policy = optchat.Policy(leaf_window=1, on_failed="stop", job_attempts=1)
    with temporary_memory(policy=policy, summarizer=DeterministicSummarizer(fail=fail)) as memory:
        session = memory.session("s")
        turn = session.turn("x " * 60_000)
        turn.assistant(words(2, 3_000))
        turn.end("completed")
        status = memory.settle()
        assert {failure.kind for failure in status.failures} == {"chunk"}
        assert memory.view(session.id).lines[1].kind == "summary"


def test_another_processs_longer_lease_is_respected() -> None:
    with temporary_memory(policy=optchat.Policy(lease_seconds=900)) as memory:
        say(memory.session("s"), words(1, 3_000))
        task = claim(memory).tasks[0]
        brief = optchat.Policy(lease_seconds=30)
        with optchat.open(memory.path, scope="test", policy=brief, compact="manual") as other:
            assert work.end_dead_leases(other._scope) == 0
        assert commit(memory, task) == 1


def test_closing_a_handle_leaves_anothers_leases_of_the_same_process() -> None:
    with temporary_memory() as memory:
        say(memory.session("s"), words(1, 3_000))
        task = claim(memory).tasks[0]
        open_beside(memory).close()
        assert memory.status().running == 1
        assert commit(memory, task) == 1


def test_a_round_that_broke_off_gives_its_jobs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> int:
        raise optchat.StoreBusy("held elsewhere")

    with temporary_memory() as memory:
        say(memory.session("s"), words(1, 3_000))
        with monkeypatch.context() as patch:
            patch.setattr(work, "commit", busy)
            with pytest.raises(optchat.StoreBusy):
                memory.settle()
        assert memory.status().running == 1
        assert memory.settle().ready


def test_damaged_records_fail_alone() -> None:
    with temporary_memory() as memory:
        say(memory.session("a"), words(1, 6_000))
        large = say(memory.session("b"), words(1, 400) * 500)
        say(memory.session("c"), words(2, 6_000))
        lost = "SELECT blob_pk FROM record WHERE turn_pk <= :turn"
        with memory._scope.store.write() as db:
            db.execute(f"DELETE FROM blob_piece WHERE blob_pk IN ({lost})", {"turn": large._pk})
        status = memory.settle()
        assert {failure.kind for failure in status.failures} == {"leaf", "index"}
        assert not status.running
        assert memory.view(memory.session("c").id).lines[0].kind == "summary"


def test_the_inputs_of_a_large_text_are_read_outside_the_writing_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one text are claimed together: it is read once, and no writer waits for it."""
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        say(memory.session("s"), "large " * 60_000)
        worker_of(memory).round(memory._scope)  # the pages are due now
        store, reading = memory._scope.store, list[str | None]()
        real = payloads.load_payload

        def noted(db: Connection, record: RecordRow) -> bytes:
            reading.append(store._this_thread.doing)
            return real(db, record)

        monkeypatch.setattr(payloads, "load_payload", noted)
        assert len(claim_as(memory, "deterministic-1", 8).tasks) == 8
        assert reading == ["reading"]


def claim_as(memory: optchat.Memory, name: str, limit: int) -> work.Claimed:
    return work.claim(memory._scope, summarizer=name, is_default=False, window_tokens=65_536, limit=limit)
