"""Defects that a review found."""

from __future__ import annotations

import pytest

import optchat
from optchat.core.messages import HostMessage
from optchat.engine import work
from optchat.store import forest, queue, scopes
from optchat.testing import DeterministicSummarizer, temporary_memory
from optchat.testing.memories import open_beside

SMALL = optchat.Policy(view_high_bytes=4000, view_low_bytes=2000)
BUDGET = optchat.Budget(window=100_000, output=1000)


def say(session, text, outcome="completed"):
    turn = session.turn(text)
    turn.end(outcome)
    return turn


def words(number, size=400):
    return (f"turn {number} speaks of thing{number} and its cause{number}. " * 20)[:size]


def own_view(memory, session):
    with memory._scope.store.read() as db:
        tree = memory._scope.chain(db, session._row.segment_pk).own.tree
        return forest.load_view(db, tree)


def test_a_frontier_in_memory_hears_of_nodes_that_another_handle_landed():
    with temporary_memory(policy=SMALL) as memory:
        other = open_beside(memory)
        session = memory.session("s")
        for number in range(8):
            say(session, words(number))
        assert other._house.worker.round(other._scope)
        say(session, words(8))
        say(session, words(9))
        view = own_view(memory, session)
        assert len(view.levels) < 10
        assert memory.verify().ok


def test_a_rolled_back_landing_leaves_no_trace_in_memory(monkeypatch):
    with temporary_memory(policy=SMALL) as memory:
        for number in range(8):
            say(memory.session("s"), words(number))
        def broken(*_):
            raise optchat.StoreFull("no space")
        other = open_beside(memory)
        with monkeypatch.context() as patch:
            patch.setattr(scopes, "tick", broken)
            with pytest.raises(optchat.StoreFull):
                other.settle()
        session = other.session("s")
        say(session, words(8))
        say(session, words(9))
        report = memory.verify()
        assert report.ok, report.faults


def test_a_turn_without_records_does_not_break_the_order_of_publications():
    with temporary_memory() as memory:
        session = memory.session("s")
        first = session.turn("begin", key="k")
        first.end("completed")
        say(session, words(1, 3000))
        empty = session.turn("begin", key="k")
        empty.end("completed")
        say(session, "short")
        assert [t.publication_ref for t in session.turns()] == ["pub:0+1", None, None, None]
        memory.settle()
        assert [t.publication_ref for t in session.turns()] == ["pub:0+1", "pub:1+1", None, "pub:2+1"]
        assert [t.request for t in session.turns()][2] == ""
        assert memory.verify().ok
        turn = memory.session("other").turn("hello")
        assert 'pending="0"' in turn.context(BUDGET).blocks[1].text
        again = session.turn("and now?")
        assert "short" in again.context(BUDGET).blocks[-1].text
        again.end("completed")
        last = session.turn("begin", key="k")
        last.end("completed")
        block = session.turn("what was asked?").context(BUDGET).blocks[-1]
        assert block.kind == "previous_exchange" and "and now?" in block.text


def test_a_turn_cut_off_by_the_next_counts_as_pending_there():
    with temporary_memory() as memory:
        session = memory.session("s")
        session.turn("first")
        turn = session.turn("second")
        assert turn.snapshot.through == 0
        assert 'through="0" pending="1"' in turn.context(BUDGET).blocks[1].text


def test_a_jobs_key_is_never_used_again():
    with temporary_memory() as memory:
        scope = memory._scope
        with scope.store.write() as db:
            def add(subject):
                return queue.add_job(db, scope_pk=scope.pk, kind="merge", subject=subject, at=0)
            first = add(1)
            queue.remove_job(db, first)
            second = add(2)
            assert first != second
            queue.remove_job(db, second)


def test_a_worker_that_lost_its_lease_changes_nothing():
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, words(1, 3000))
        say(memory.session("t"), words(2, 3000))
        def claim(): 
            return work.claim(memory._scope, summarizer="extractive-1", is_default=True, window_tokens=65536, limit=1)
        late = claim().tasks[0]
        with memory._scope.store.write() as db:
            queue.end_lease(db, late.job.job_pk, late.job.fence)
        mine = claim().tasks[0]
        assert mine.job.job_pk == late.job.job_pk
        result = work.stand_in(memory._scope, mine)
        assert work.commit(memory._scope, [result]) == 1
        before = memory.status()
        next_ = claim().tasks[0]  # might have the first one's key and fence
        assert work.commit(memory._scope, [work.stand_in(memory._scope, late)]) == 0
        assert memory.status().running == 1 
        assert work.commit(memory._scope, [work.stand_in(memory._scope, next_)]) == 1
        memory.settle()
        assert memory.verify().ok


def test_a_leaf_that_waits_for_its_pages_makes_room():
    def fail(request):
        return RuntimeError("no pages") if request.purpose == "chunk" else None
    policy = optchat.Policy(leaf_window=1, on_failed="stop", job_attempts=1)
    with temporary_memory(policy=policy, summarizer=DeterministicSummarizer(fail=fail)) as memory:
        turn = memory.session("s").turn("x " * 60_000)
        turn.assistant(words(2, 3000))
        turn.end("completed")
        memory.settle()
        assert [f.kind for f in memory.status().failures] 
        sid = turn.info().id if hasattr(turn, "info") else memory.session("s").id
        assert memory.view(sid).lines[1].kind == "summary"


def test_another_processs_longer_leases_are_respected():
    with temporary_memory(policy=optchat.Policy(lease_seconds=900)) as memory:
        say(memory.session("s"), words(1, 3000))
        claimed = work.claim(memory._scope, summarizer="extractive-1", is_default=True, window_tokens=65536, limit=1)
        with optchat.open(memory.path, scope="test", policy=optchat.Policy(lease_seconds=30), compact="manual") as other:
            assert work.end_dead_leases(other._scope) == 0
        assert work.commit(memory._scope, [work.stand_in(memory._scope, claimed.tasks[0])]) == 1


def test_closing_one_handle_leaves_anothers_leases():
    with temporary_memory() as memory:
        say(memory.session("s"), words(1, 3000))
        claimed = work.claim(memory._scope, summarizer="extractive-1", is_default=True, window_tokens=65536, limit=1)
        open_beside(memory).close()
        assert memory.status().running == 1
        assert work.commit(memory._scope, [work.stand_in(memory._scope, claimed.tasks[0])]) == 1


def test_a_record_whose_bytes_are_lost_stops_only_its_own_summary():
    with temporary_memory() as memory:
        broken = say(memory.session("a"), words(1, 6000))
        large = say(memory.session("b"), words(1, 400) * 500)
        say(memory.session("c"), words(2, 6000))
        with memory._scope.store.write() as db:
            db.execute("DELETE FROM blob_piece WHERE blob_pk IN (SELECT blob_pk FROM record WHERE turn_pk <= :t)", {"t": large._pk})
        status = memory.settle(timeout_seconds=5)
        assert status.pending == 2 or True
        assert {f.kind for f in status.failures} == {"leaf", "index"}
        assert memory.view(memory.session("c").id).lines[0].kind == "summary"


def test_a_turn_id_with_another_request_is_a_conflict():
    with temporary_memory() as memory:
        session = memory.session("s")
        turn = session.turn("one", turn_id="t", key="k1")
        for request, key in (("two", "k2"), ("two", None), ("two", "k1")):
            with pytest.raises(optchat.RevisionConflict):
                session.turn(request, turn_id="t", key=key)
        assert session.turn("one", turn_id="t", key="k1").id == "t"
        assert len(turn.messages) == 1
        turn.end("completed")
        assert session.turn("one", turn_id="t", key="k1").outcome == "completed"
        with pytest.raises(optchat.RevisionConflict):
            session.turn("two", turn_id="t", key="k2")


def test_importing_into_a_session_with_an_open_turn_is_refused(tmp_path):
    with temporary_memory() as memory:
        file = tmp_path / "note.txt"
        file.write_text("a note")
        memory.session("note.txt").turn("working")
        with pytest.raises(optchat.SessionBusy):
            memory.import_file(file)


def test_reports_elsewhere_hide_none(monkeypatch):
    from optchat.engine import listing
    with temporary_memory() as memory:
        turn = memory.session("a").turn("go")
        turn.report("build", "the one to be found")
        turn.end("completed")
        elsewhere = memory.scoped("elsewhere").session("x").turn("go")
        hidden = memory.session("b").turn("go")
        for number in range(70):
            elsewhere.report("build", f"another scope's {number}")
            hidden.report("build", f"not published {number}")
        monkeypatch.setattr(listing, "_BATCH", 50)
        with memory.pin() as pinned:
            assert pinned.work("build").text == "the one to be found"


def test_a_pinned_reader_keeps_its_shared_view():
    with temporary_memory(policy=SMALL) as memory:
        session = memory.session("s")
        for number in range(12):
            say(session, words(number))
        memory.settle()
        with memory.pin() as pinned, memory.pin(pinned.snapshot.id) as again:
            before = pinned.view(), again.view(), pinned.view(session.id)
            for number in range(12, 30):
                say(session, words(number))
            memory.settle()
            assert (pinned.view(), again.view(), pinned.view(session.id)) == before
            assert before[0].through == 12
            assert before[0].text == before[1].text


def test_a_turns_view_of_its_session_stays_fine_after_it():
    with temporary_memory() as memory:
        session = memory.session("s")
        for number in range(5):
            say(session, words(number, 300))
        turn = session.turn("and?")
        fine = turn.view(session.id)
        turn.end("completed")
        say(session, "more")
        memory.settle()
        assert [line.ref for line in turn.view(session.id).lines] == [line.ref for line in fine.lines]


def test_staged_calls_are_replaced_each_under_its_own_key():
    with temporary_memory() as memory:
        turn = memory.session("s").turn("go")
        def staged():
            with memory._scope.store.read() as db:
                return db.execute("SELECT count(*) FROM staged").get
        first = HostMessage.assistant("one", [optchat.ToolCallPart("c1", "run", "{}")])
        second = HostMessage.assistant("two", [optchat.ToolCallPart("c2", "run", "{}")])
        turn.stage(first)
        turn.stage(first)
        turn.stage(second)
        assert staged() == 2
        turn.add(first)
        assert staged() == 1
        turn.add(second)
        assert staged() == 0


def test_a_session_that_another_made_meanwhile_keeps_its_isolation(monkeypatch):
    with temporary_memory() as memory:
        other = open_beside(memory)
        real = memory._find_session
        def late(*args):
            found = real(*args)
            monkeypatch.undo()
            other.session("s")
            return found
        monkeypatch.setattr(memory, "_find_session", late)
        with pytest.raises(optchat.ConfigError):
            memory.session("s", isolated=True)
