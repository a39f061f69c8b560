"""A pinned reader's views and reports do not move, whatever others do."""

import pytest

from optchat.engine import listing
from optchat.testing import temporary_memory
from tests.engine.helpers import SMALL_VIEWS, say, words


def test_a_pinned_readers_views_stay_as_they_are() -> None:
    with temporary_memory(policy=SMALL_VIEWS) as memory:
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
            assert before[0].through == before[2].through == 12
            assert before[0].text == before[1].text


def test_a_pinned_view_of_a_session_ends_with_what_was_published() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "published")
        with memory.pin() as pinned:
            session.turn("not yet").assistant("nor this")
            view = pinned.view(session.id)
            assert [line.text for line in view.lines] == ["user: published"]
            assert view.through == 1


def test_an_ended_turns_view_of_its_session_is_as_fine_as_it_was() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        for number in range(5):
            say(session, words(number, 300))
        turn = session.turn("and?")
        before = [line.ref for line in turn.view(session.id).lines]
        assert len(before) == 6
        turn.end("completed")
        say(session, "more")
        memory.settle()
        assert [line.ref for line in turn.view(session.id).lines] == before


def test_no_number_of_reports_that_a_reader_may_not_see_hides_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_BATCH", 5)
    with temporary_memory() as memory:
        turn = memory.session("a").turn("go")
        turn.report("build", "the one to be found")
        turn.end("completed")
        elsewhere, hidden = memory.scoped("elsewhere").session("x").turn("go"), memory.session("b").turn("go")
        for number in range(7):
            elsewhere.report("build", f"another scope's {number}")
            hidden.report("build", f"not published {number}")
        with memory.pin() as pinned:
            assert pinned.work("build").text == "the one to be found"
