"""Lifecycle: archive, share, a session begun anew; what is stored of segments; what foreign readers see meanwhile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import optchat
from optchat.core.refs import Span
from optchat.engine import ingest
from optchat.engine.lifecycle import begin_anew
from optchat.store import connection, registry
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, say, shared_block, words


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer()) as memory:
        yield memory


def keys(reader: optchat.Reader, *, archived: bool = False) -> list[str]:
    return [info.key for info in reader.sessions(archived=archived)]


# ---- archive ---------------------------------------------------------------------------------------------------------


def test_an_archived_session_is_hidden_and_not_forgotten(memory: optchat.Memory) -> None:
    session = memory.session("a")
    say(session, "decided on heliotrope")
    reader = memory.session("b").turn("reads")
    running = session.turn("runs on")
    for _ in range(2):
        session.archive()
        assert session.info().state == "archived"
    assert keys(memory) == ["b"]
    assert keys(memory, archived=True) == ["a", "b"]
    assert keys(reader) == ["a", "b"], "an open turn is not disturbed"
    assert [info.state for info in reader.sessions()] == ["active", "active"]
    assert "heliotrope" in memory.view().text
    assert memory.search("heliotrope").hits
    running.assistant("and ends")
    running.end("completed")
    assert memory.status().publications == 2, "it goes on, and is shared"
    later = memory.session("b").turn("later")
    assert keys(later) == ["b"]
    assert "heliotrope" in shared_block(later)
    for _ in range(2):
        session.unarchive()
        assert session.info().state == "active"
    assert keys(memory) == ["a", "b"]


def test_what_a_state_says_first(memory: optchat.Memory) -> None:
    session = memory.session("a")
    say(session, "something")
    session.archive()
    session.revoke()
    assert session.info().state == "revoked"
    session.unarchive()
    assert session.info().state == "revoked"
    session.share()
    assert session.info().state == "active"
    session.archive()
    assert session.info().state == "archived"
    with pytest.raises(optchat.ResyncNeeded):
        session.reconcile([optchat.HostMessage.user("another history")])
    assert session.info().state == "needs_resync"
    for write in (lambda: session.fork("f"), lambda: session.rewind(before="x"), lambda: session.turn("more")):
        with pytest.raises(optchat.ResyncNeeded):
            write()


# ---- share -----------------------------------------------------------------------------------------------------------


def shared_texts(memory: optchat.Memory) -> list[str]:
    return [line.text for line in memory.view().lines if line.kind != "tombstone"]


def test_shared_from_now_on(memory: optchat.Memory) -> None:
    session = memory.session("a")
    say(session, "one")
    session.revoke()
    say(session, "two")
    running = session.turn("three")
    assert shared_texts(memory) == []
    session.share()
    running.end("completed")
    assert shared_texts(memory) == [], "the turn that is open began before"
    say(session, "four")
    for _ in range(2):
        session.share()
    say(session, "five")
    assert shared_texts(memory) == ["user: four", "user: five"]
    with memory.pin() as pinned:
        assert [(info.length, info.turns) for info in pinned.sessions()] == [(5, 2)]
        for number in range(3):
            with pytest.raises(optchat.UnknownRef):
                pinned.zoom(f"session:{session.id}:0:{number}+1")
        assert pinned.zoom(f"session:{session.id}:0:3+1").text == "four"
        assert not pinned.search("one").hits
    with pytest.raises(optchat.ConfigError, match="revoke"):
        session.share(history=True)
    assert memory.verify().ok


def test_shared_with_its_history(memory: optchat.Memory) -> None:
    """Revoked, then shared: what is published once is so at a new number, and once (schedule 21)."""
    session = memory.session("a")
    ids = [say(session, text).id for text in ("one", "two", words(3, 3_000), "four")]
    memory.settle()
    before = memory.status().publications
    session.revoke()
    assert memory.status().publications == 0
    for _ in range(2):
        session.share(history=True)
        memory.settle()
        assert memory.status().publications == before == 4
    through = memory.view().through
    assert through == 8
    published = [memory.zoom(f"pub:{number}+1").turn for number in range(4, 8)]
    assert [turn.id for turn in published if turn is not None] == ids, "in the order of its turns"
    for number in range(4):
        with pytest.raises(optchat.UnknownRef):
            memory.zoom(f"pub:{number}+1")
    with memory.pin() as pinned:
        assert pinned.search("one").hits
        assert [(info.length, info.turns) for info in pinned.sessions()] == [(4, 4)]
        assert pinned.zoom(f"session:{session.id}:0:0+1").text == "one"
    say(session, "five")
    assert memory.view().through == 9
    assert memory.verify().ok


def test_a_shared_history_waits_for_its_summaries_in_order(memory: optchat.Memory) -> None:
    session = memory.session("a")
    session.revoke()
    ids = [say(session, text).id for text in (words(1, 3_000), "short", words(2, 3_000))]
    session.share(history=True)
    say(session, "after")
    assert memory.status().publications == 0, "a later turn never comes before an earlier one"
    memory.settle()
    published = [memory.zoom(f"pub:{number}+1").turn for number in range(4)]
    assert [turn.id for turn in published if turn is not None][:3] == ids
    assert memory.verify().ok


def test_a_history_over_generations_is_shared(memory: optchat.Memory) -> None:
    parent = memory.session("p")
    say(parent, "of the parent")
    session = parent.fork("a")
    kept = say(session, "one").id
    say(session, "two")
    session.rewind(after=kept)
    say(session, "three")
    session.revoke()
    assert shared_texts(memory) == ["user: of the parent"]
    session.share(history=True)
    assert shared_texts(memory) == ["user: of the parent", "user: one", "user: three"]
    with memory.pin() as pinned:
        assert [(info.key, info.length, info.turns) for info in pinned.sessions()] == [("p", 1, 1), ("a", 3, 2)]
    assert memory.verify().ok


def test_a_rewind_of_a_revoked_session_publishes_nothing(memory: optchat.Memory) -> None:
    session = memory.session("a")
    kept = say(session, "one").id
    session.revoke()
    say(session, "two")
    session.rewind(after=kept)
    say(session, "three")
    fork = session.fork("f")
    say(fork, "four")
    assert shared_texts(memory) == []
    assert fork.info().state == "revoked"
    session.share()
    say(session, "five")
    assert shared_texts(memory) == ["user: five"]
    assert memory.verify().ok


def test_an_isolated_session_is_not_shared(memory: optchat.Memory) -> None:
    session = memory.session("a", isolated=True)
    with pytest.raises(optchat.ConfigError, match="isolated"):
        session.share()


# ---- begun anew ------------------------------------------------------------------------------------------------------


def test_a_session_begun_anew(memory: optchat.Memory) -> None:
    session = memory.session("a", title="Old", worktree="/w")
    assert begin_anew(memory._scope, session._row).session_id == session.id, "it has said nothing: it is new"
    say(session, "remember heliotrope")
    running = session.turn("cut off")
    row = begin_anew(memory._scope, session._row)
    assert begin_anew(memory._scope, session._row).session_id == row.session_id
    new = memory.session("a")
    assert new.id == row.session_id != session.id
    assert (new.info().length, new.info().title, new.info().worktree, new.info().state) == (0, None, "/w", "active")
    with pytest.raises(optchat.TurnEnded):
        running.assistant("late")
    assert session.info().state == "archived"
    assert memory.session_by_id(session.id).info().length == 2
    assert keys(memory) == ["a"]
    turn = new.turn("what do we know?")
    assert "heliotrope" in shared_block(turn), "its memory stays"
    assert "heliotrope" not in next(b.text for b in turn.context(BUDGET).blocks if b.kind == "session")
    turn.end("completed")
    assert memory.verify().ok


def test_recreated_after_a_deletion(memory: optchat.Memory) -> None:
    session = memory.session("a")
    say(session, "secret")
    fork = session.fork("f")
    session.delete()
    for again in (lambda: memory.session("a"), lambda: fork.fork("a"), lambda: memory.session("a", create=False)):
        with pytest.raises(optchat.SessionDeleted):
            again()
    writes: list[Callable[[], object]] = [
        lambda: session.turn("more"),
        lambda: session.fork("g"),
        lambda: session.rewind(before="x"),
        session.archive,
        session.unarchive,
        session.share,
        lambda: begin_anew(memory._scope, session._row),
    ]
    for write in writes:
        with pytest.raises(optchat.SessionDeleted):
            write()
    new = memory.session("a", recreate=True)
    assert memory.session("a").id == new.id
    assert memory.session("a", recreate=True).id == new.id
    say(new, "another life")
    assert new.info().length == 1
    assert fork.info().length == 1, "a fork keeps what it rests on"


# ---- segments --------------------------------------------------------------------------------------------------------


def current_lengths(memory: optchat.Memory) -> list[int | None]:
    with memory._scope.store.read() as db:
        return [row[0] for row in db.execute("SELECT current_length FROM segment ORDER BY segment_pk").fetchall()]


def test_a_segment_knows_how_far_it_is_on_any_present_history(memory: optchat.Memory) -> None:
    session = memory.session("a")
    ids = [say(session, f"turn {number}").id for number in range(4)]
    assert current_lengths(memory) == [None]
    session.rewind(after=ids[2])
    assert current_lengths(memory) == [3, None]
    fork = session.fork("f", after=ids[1])
    assert current_lengths(memory) == [3, None, None]
    session.rewind(after=ids[0])
    assert current_lengths(memory) == [2, 3, None, None], "the fork has two of its records; the second generation none"
    fork.rewind(before=ids[0])
    assert current_lengths(memory) == [1, 3, 2, None, None]
    session.rewind(before=ids[0])
    assert current_lengths(memory)[0] == 0
    with memory._scope.store.read() as db:
        assert registry.holder_of(db, session._row.segment_pk, 0) is not None
        assert registry.holder_of(db, 1, 1) is None


def test_what_only_a_deleted_fork_had_is_nobodys(memory: optchat.Memory) -> None:
    session = memory.session("a")
    ids = [say(session, f"heliotrope {number}").id for number in range(4)]
    fork = session.fork("f", after=ids[2])
    say(fork, "of the fork")
    session.rewind(after=ids[0])
    assert {hit.session_id for hit in memory.search("heliotrope 2", order="newest")} == {fork.id}
    fork.delete()
    assert not memory.search("heliotrope 2", order="newest").hits
    assert [hit.ref for hit in memory.search("heliotrope")] == [f"session:{session.id}:1:0+1"]
    assert memory.zoom(f"session:{session.id}:0:2+1").superseded, "the parent's own, as before"
    memory.settle()
    assert memory.verify().ok


@pytest.mark.parametrize("undone", ["rewound", "deleted"])
def test_a_note_that_meets_a_rewind(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch, undone: str) -> None:
    """Its words are made outside of the transaction; meanwhile the history that it belongs to is no more."""
    session = memory.session("a")
    kept = say(session, "kept").id
    say(session, "superseded")
    other = memory.session("a")
    real = ingest.ready

    def ready(*arguments: Any) -> Any:
        monkeypatch.setattr(ingest, "ready", real)
        if undone == "rewound":
            other.rewind(after=kept)
        else:
            other.delete()
        return real(*arguments)

    monkeypatch.setattr(ingest, "ready", ready)
    with pytest.raises(optchat.GenerationSuperseded if undone == "rewound" else optchat.SessionDeleted):
        session.note("late")
    assert not memory.search("late").hits
    assert memory.verify().ok


def test_a_segment_that_was_never_committed_is_forgotten(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is given to another one, and the chain that was read of it must not be that one's."""
    session = memory.session("a")
    ids = [say(session, f"turn {number}").id for number in range(4)]
    real = connection._commit

    def fails(_db: object) -> None:
        raise OSError("no more room")

    monkeypatch.setattr(connection, "_commit", fails)
    with pytest.raises(OSError, match="room"):
        session.fork("f", after=ids[0])
    monkeypatch.setattr(connection, "_commit", real)
    fork = session.fork("f", after=ids[2])
    assert fork.info().length == 3
    with memory._scope.store.read() as db:
        chain = memory._scope.chain(db, fork._row.segment_pk)
        assert chain == registry.load_chain(db, fork._row.segment_pk)
        assert chain.own.base_length == 3
    say(fork, "more")
    assert memory.verify().ok


def test_short_refs_of_a_chain(memory: optchat.Memory) -> None:
    session = memory.session("a")
    ids = [say(session, f"turn {number}").id for number in range(4)]
    session.rewind(after=ids[2])
    session.rewind(after=ids[1])
    say(session, "more")
    session.rewind(after=ids[1])  # not lower than before
    with memory._scope.store.read() as db:
        chain = memory._scope.chain(db, session._row.segment_pk)
    assert (chain.generation, chain.boundary) == (3, 2)
    assert [chain.short(span) for span in (Span(0, 2), Span(2, 1), Span(0, 4))] == ["0+2", "3:2+1", "3:0+4"]


# ---- what foreign readers see of generations -------------------------------------------------------------------------


def test_a_kept_turn_that_waits_leaks_nothing(memory: optchat.Memory) -> None:
    """The next generation's turn is published while a kept one waits: no node over both is shown (schedule 6)."""
    session = memory.session("a")
    say(session, "first")
    kept = say(session, words(1, 3_000)).id
    say(session, "superseded")
    session.rewind(after=kept)
    say(session, "third")
    say(session, "fourth")
    reader = memory.session("b").turn("reads")
    with memory.pin() as early:
        memory.settle()
        for eyes in (reader, early):
            for generation in (0, 1):
                for span in ("1+1", "0+2", "0+4", "2+2" if generation == 0 else "1+1"):
                    with pytest.raises(optchat.UnknownRef):
                        eyes.zoom(f"session:{session.id}:{generation}:{span}")
            assert eyes.zoom(f"session:{session.id}:1:2+1").text == "third"
            assert eyes.zoom(f"session:{session.id}:0:0+1").text == "first"
            lines = eyes.view(session.id).lines
            assert [line.ref for line in lines] == [f"session:{session.id}:1:2+2"] or [line.ref for line in lines] == [
                f"session:{session.id}:1:{number}+1" for number in (2, 3)
            ]
            assert not eyes.search("thing1").hits
    with memory.pin() as later:
        assert later.zoom(f"session:{session.id}:1:1+1").text
        assert later.zoom(f"session:{session.id}:1:0+4").lines
        assert later.view(session.id).lines[0].first_at <= later.view(session.id).lines[-1].first_at
        assert [(info.length, info.turns) for info in later.sessions()] == [(4, 4)]


def test_a_generation_that_is_to_come_does_not_answer_under_a_pin(memory: optchat.Memory) -> None:
    session = memory.session("a")
    ids = [say(session, f"turn {number}").id for number in range(3)]
    turn = session.turn("own")
    turn.end("completed")
    with memory.pin() as pinned:
        refs = [f"session:{session.id}:1:{span}" for span in ("0+1", "1+1", "0+2", "2+1")]

        def answers(reader: optchat.Reader) -> list[str]:
            found = list[str]()
            for ref in refs:
                try:
                    found.append(reader.zoom(ref).ref)
                except optchat.UnknownRef:
                    found.append("unknown")
            return found

        assert answers(pinned) == answers(turn) == ["unknown"] * 4
        session.rewind(after=ids[1])
        say(session, "another")
        assert answers(pinned) == answers(turn) == ["unknown"] * 4
        assert turn.zoom("2+1").text == "turn 2", "a turn's own history is that of its generation"
        assert turn.zoom(f"session:{session.id}:0:2+1").superseded is False
    with memory.pin() as now:
        assert answers(now) == [refs[0], refs[1], refs[2], refs[3]]


def test_two_handles_rewind_at_once(tmp_path: Path) -> None:
    with (
        optchat.open(tmp_path / "m.db", scope="s", compact="manual") as one,
        optchat.open(tmp_path / "m.db", scope="s", compact="manual") as two,
    ):
        session = one.session("a")
        ids = [say(session, f"turn {number}").id for number in range(3)]
        other: Session = two.session("a")
        session.rewind(after=ids[1])
        with pytest.raises(optchat.GenerationSuperseded):
            other.rewind(after=ids[0])
        other = two.session("a")
        other.rewind(after=ids[0])
        say(other, "theirs")
        with pytest.raises(optchat.GenerationSuperseded):
            session.turn("ours")
        assert one.session("a").info().generation == 2
        assert [line.text for line in one.view(session.id).lines] == ["user: turn 0", "user: theirs"]
        assert one.verify().ok
