"""Beginning, repeating, importing and staging: what a host may do twice, or at the wrong moment."""

from pathlib import Path

import pytest

import optchat
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside


def test_a_turn_id_with_another_request_is_a_conflict() -> None:
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


def test_importing_into_a_session_with_an_open_turn_is_refused_in_our_words(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("a note")
    with temporary_memory() as memory:
        turn = memory.session("note.txt").turn("working")
        with pytest.raises(optchat.SessionBusy, match=turn.id):
            memory.import_file(note)
        turn.end("completed")
        assert memory.import_file(note).sealed == 1


def test_staged_calls_are_replaced_each_under_its_own_key() -> None:
    with temporary_memory() as memory:
        turn = memory.session("s").turn("go")
        first = optchat.HostMessage.assistant("one", [optchat.ToolCallPart("c1", "run", "{}")])
        second = optchat.HostMessage.assistant("two", [optchat.ToolCallPart("c2", "run", "{}")])

        def staged() -> int:
            with memory._scope.store.read() as db:
                count = db.execute("SELECT count(*) FROM staged").get
            assert isinstance(count, int)
            return count

        for message in (first, first, second):
            turn.stage(message)
        assert staged() == 2
        turn.add(first)
        assert staged() == 1
        turn.add(second)
        assert staged() == 0


def test_a_session_that_was_made_otherwise_meanwhile_is_not_taken_for_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory() as memory:
        other, find = open_beside(memory), memory._find_session

        def overtaken(host: str, key: str, *, recreate: bool) -> object:
            found = find(host, key, recreate=recreate)
            other.session(key)
            return found

        monkeypatch.setattr(memory, "_find_session", overtaken)
        with pytest.raises(optchat.ConfigError, match="opened as isolated"):
            memory.session("s", isolated=True)
