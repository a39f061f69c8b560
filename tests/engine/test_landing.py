"""What follows when something lands: views in memory, the order of publications, what is pending."""

import pytest

import optchat
from optchat.store import forest, scopes
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside
from tests.engine.helpers import SMALL_VIEWS, Session, previous_exchange, say, shared_block, words


def own_view(memory: optchat.Memory, session: Session) -> forest.ViewRow:
    scope = memory._scope
    with scope.store.read() as db:
        return forest.load_view(db, scope.chain(db, session._row.segment_pk).own.tree)


def test_a_frontier_in_memory_hears_of_nodes_that_another_handle_landed() -> None:
    with temporary_memory(policy=SMALL_VIEWS) as memory:
        other = open_beside(memory)
        session = memory.session("s")
        for number in range(8):
            say(session, words(number))
        worker = other._house.worker
        assert worker is not None
        assert worker.round(other._scope), "the other handle summarised nothing"
        say(session, words(8))
        say(session, words(9))
        assert len(own_view(memory, session).levels) < 10, "the view did not shrink by the nodes that were there"
        assert memory.verify().ok


def test_a_landing_that_was_rolled_back_leaves_no_trace_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory(policy=SMALL_VIEWS) as memory:
        for number in range(8):
            say(memory.session("s"), words(number))

        def no_space(*_: object) -> int:
            raise optchat.StoreFull("no space")

        other = open_beside(memory)
        with monkeypatch.context() as patch:
            patch.setattr(scopes, "tick", no_space)
            with pytest.raises(optchat.StoreFull):
                other.settle()
        say(other.session("s"), words(8))
        say(other.session("s"), words(9))
        report = memory.verify()
        assert report.ok, report.faults


def test_a_turn_without_records_neither_breaks_the_order_of_publications_nor_stays_pending() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        session.turn("begin", key="k").end("completed")
        say(session, words(1, 3_000))
        session.turn("begin", turn_id="again", key="k").end("completed")  # what is sealed, as a turn of its own
        say(session, "short")
        assert [turn.publication_ref for turn in session.turns()] == ["pub:0+1", None, None, None]
        memory.settle()
        assert [turn.publication_ref for turn in session.turns()] == ["pub:0+1", "pub:1+1", None, "pub:2+1"]
        assert [turn.request for turn in session.turns()][2:] == ["", "short"]
        assert 'pending="0"' in shared_block(memory.session("other").turn("hello"))
        assert memory.verify().ok


def test_a_turn_without_records_is_no_previous_exchange() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        session.turn("begin", key="k").end("completed")
        say(session, "and now?")
        session.turn("begin", turn_id="again", key="k").end("completed")
        assert "and now?" in previous_exchange(session.turn("what was asked?"))


def test_a_turn_that_the_next_one_cuts_off_is_pending_there() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        session.turn("first")
        turn = session.turn("second")
        assert turn.snapshot.through == 0
        assert 'through="0" pending="1"' in shared_block(turn)


def test_turns_of_an_isolated_session_are_never_pending() -> None:
    with temporary_memory() as memory:
        say(memory.session("alone", isolated=True), words(1, 3_000))
        assert 'pending="0"' in shared_block(memory.session("s").turn("hello"))
