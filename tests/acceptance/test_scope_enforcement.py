"""
§ 16: guessing another scope's ref fails for views, zoom, search and direct reads.

Not only does it fail: the error and its text are those of a ref that nobody ever had, so that a guess tells nothing.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from attrs import frozen

import optchat

SECRET = "the launch code is heliotrope"
ABSENT = "00000000"  # a session id that is well-formed and nobody's


@frozen
class Scopes:
    """Two scopes of one file. ``there`` holds the secret; ``here`` is what the guesser may read."""

    there: optchat.Memory
    here: optchat.Memory
    secret_id: str
    refs: tuple[str, ...]


@pytest.fixture
def scopes(memory: optchat.Memory) -> Scopes:
    there, here = memory.scoped("there"), memory.scoped("here")
    session = there.session("s", project="vault")
    refs: list[str] = []
    for number in range(4):
        with session.turn(f"{SECRET} {number}", turn_id=f"secret-turn-{number}") as turn:
            refs += turn.report("secret-report", SECRET + " " + "x" * 2000)
            refs += turn.assistant(SECRET)
    with here.session("mine").turn("hello") as turn:
        turn.assistant("hello")
    there.settle()
    here.settle()
    assert there.status().publications == 4
    return Scopes(there, here, session.id, (*refs, f"session:{session.id}:0:0+4", f"session:{session.id}:0:0+8"))


Read = Callable[[Any, str], object]
READS: dict[str, Read] = {
    "zoom": lambda reader, ref: reader.zoom(ref),
    "zoom deep": lambda reader, ref: reader.zoom(ref, depth=4),
    "source": lambda reader, ref: reader.source(ref),
    "date": lambda reader, ref: reader.date(ref),
}
ABOUT_SESSIONS: dict[str, Read] = {
    "view": lambda reader, session: reader.view(session),
    "search": lambda reader, session: reader.search("launch code", session=session),
}


@pytest.fixture(params=["memory", "pin", "turn"])
def reader(scopes: Scopes, request: pytest.FixtureRequest) -> Iterator[optchat.Reader]:
    if request.param == "memory":
        yield scopes.here
    elif request.param == "pin":
        with scopes.here.pin() as pinned:
            yield pinned
    else:
        with scopes.here.session("mine").turn("what is the launch code?") as turn:
            yield turn


def failure(read: Callable[[], object]) -> tuple[type[BaseException], str]:
    with pytest.raises(optchat.OptchatError) as caught:
        read()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("name", READS)
def test_a_guessed_ref_answers_as_an_absent_one(scopes: Scopes, reader: optchat.Reader, name: str) -> None:
    for ref in scopes.refs:
        kind, text = failure(partial(READS[name], reader, ref))
        absent = ref.replace(scopes.secret_id, ABSENT)
        assert kind is optchat.UnknownRef
        assert (kind, text.replace(scopes.secret_id, ABSENT)) == failure(partial(READS[name], reader, absent))


@pytest.mark.parametrize("name", READS)
def test_a_publication_number_means_this_scopes_own(reader: optchat.Reader, name: str) -> None:
    """``pub:1+1`` exists there; here it is as absent as one that exists nowhere."""
    for ref, absent in (("pub:1+1", "pub:9+1"), ("pub:0+4", "pub:8+4"), ("pub:2+2", "pub:8+2")):
        kind, text = failure(partial(READS[name], reader, ref))
        assert kind is optchat.UnknownRef
        assert (kind, text.replace(ref, absent)) == failure(partial(READS[name], reader, absent))
    assert SECRET not in str(reader.zoom("pub:0+1"))


@pytest.mark.parametrize("name", ABOUT_SESSIONS)
def test_a_guessed_session_answers_as_an_absent_one(scopes: Scopes, reader: optchat.Reader, name: str) -> None:
    kind, text = failure(lambda: ABOUT_SESSIONS[name](reader, scopes.secret_id))
    assert kind is optchat.UnknownRef
    assert (kind, text.replace(scopes.secret_id, ABSENT)) == failure(lambda: ABOUT_SESSIONS[name](reader, ABSENT))


def test_no_listing_names_it(reader: optchat.Reader) -> None:
    assert [info.key for info in reader.sessions()] == ["mine"]
    orders: tuple[optchat.Order, ...] = ("best", "newest")
    for order in orders:
        page = reader.search("launch code heliotrope", order=order)
        assert SECRET not in str(page.hits)
        assert not any(page.words.values()) or isinstance(reader, optchat.Turn)  # a turn's own request has the words
    assert SECRET not in reader.view().text
    assert reader.view().through == 1
    assert failure(lambda: reader.work("secret-report"))[0] is optchat.UnknownRef


def test_another_scopes_cursor_opens_nothing(scopes: Scopes, reader: optchat.Reader) -> None:
    """A cursor says where to go on in an answer; it grants no other answer."""
    calls: list[Callable[[Any, str | None], Any]] = [
        lambda who, cursor: who.search("launch", limit=1, cursor=cursor),
        lambda who, cursor: who.sessions(limit=1, cursor=cursor),
        lambda who, cursor: who.work("secret-report", cursor=cursor),
        lambda who, cursor: who.zoom("pub:0+1", max_tokens=1, cursor=cursor),
    ]
    scopes.there.session("another")
    for call in calls:
        cursor = call(scopes.there, None).cursor
        try:
            answer = call(reader, cursor)
        except optchat.RefError:
            continue
        assert SECRET not in str(answer)
        assert scopes.secret_id not in str(answer)


def test_another_scopes_snapshot_is_none_here(scopes: Scopes) -> None:
    name = scopes.there.view().snapshot.id
    assert failure(lambda: scopes.here.pin(name).__enter__()) == failure(lambda: scopes.here.pin(name).__enter__())
    kind, text = failure(lambda: scopes.here.pin(name).__enter__())
    assert kind is optchat.UnknownRef
    assert (kind, text.replace(name, "999")) == failure(lambda: scopes.here.pin("999").__enter__())


def test_another_scopes_session_and_turn_cannot_be_taken(scopes: Scopes) -> None:
    kind, text = failure(lambda: scopes.here.session_by_id(scopes.secret_id))
    assert (kind, text.replace(scopes.secret_id, ABSENT)) == failure(lambda: scopes.here.session_by_id(ABSENT))
    assert failure(lambda: scopes.here.session("s", create=False))[0] is optchat.UnknownRef
    waiting = scopes.there.session("s").turn("wait", turn_id="waiting")
    waiting.suspend()
    assert failure(lambda: scopes.here.session("mine").resume("waiting"))[0] is optchat.UnknownRef
    here = scopes.here.session("s")  # the same key, and not the same session
    assert here.id != scopes.secret_id
    with here.turn("mine", turn_id="secret-turn-0") as turn:
        assert [message.parts for message in turn.messages] == [(optchat.TextPart("mine"),)]
        turn.assistant("mine")
    assert scopes.there.session("s", create=False).info().turns == 5


def test_the_tools_of_a_model_tell_as_little(scopes: Scopes) -> None:
    with scopes.here.session("mine").turn("tell me") as turn:
        for ref in (*scopes.refs, "pub:1+1", "pub:0+4"):
            for tool in ("memory_zoom", "memory_date"):
                absent = ref.replace(scopes.secret_id, ABSENT) if ref.startswith("session") else "pub:8+1"
                answers = [turn.call(tool, {"ref": each}) for each in (ref, absent)]
                assert [answer.is_error for answer in answers] == [True, True]
                assert answers[0].text.replace(ref, absent) == answers[1].text
        asked = turn.call("memory_search", {"query": "launch", "session": scopes.secret_id})
        assert json.loads(asked.text)["error"] == "UNKNOWN_REF"
        assert scopes.secret_id not in turn.call("memory_sessions", {}).text
        assert SECRET not in str(turn.context(optchat.Budget(32_000, 1_000)).blocks)


def test_the_context_holds_this_scope_alone(scopes: Scopes) -> None:
    with scopes.here.session("fresh").turn("go") as turn:
        text = "".join(block.text for block in turn.context(optchat.Budget(32_000, 1_000)).blocks)
    assert 'scope="here"' in text
    assert "heliotrope" not in text
    assert 'through="1"' in text


def test_identical_text_in_two_scopes_is_two_texts(scopes: Scopes) -> None:
    """Bytes are kept once a scope, never across."""
    large = "same words in both " * 10_000
    for each in (scopes.there, scopes.here):
        with each.session("large").turn("go") as turn:
            turn.assistant(large)
        each.settle()
    for each in (scopes.there, scopes.here):
        assert {hit.session_id for hit in each.search("same words")} == {each.session("large").id}
        assert each.verify().ok


def test_of_an_isolated_session_others_see_nothing(memory: optchat.Memory) -> None:
    hermit = memory.session("hermit", isolated=True)
    with hermit.turn(SECRET) as turn:
        turn.assistant(SECRET)
    with memory.session("b").turn("and?") as turn:
        ref = f"session:{hermit.id}:0:0+1"
        for read in READS.values():
            kind, text = failure(partial(read, turn, ref))
            wanted = failure(partial(read, turn, ref.replace(hermit.id, ABSENT)))
            assert (kind, text.replace(hermit.id, ABSENT)) == wanted
        assert turn.search("launch code").hits == ()
        assert [info.key for info in turn.sessions()] == ["b"]
    with hermit.turn("what do others say?") as turn:
        assert turn.view().lines == ()
        assert turn.search("and?").hits == ()
        assert [hit.session_id for hit in turn.search("launch code")] == [hermit.id] * 2
        assert failure(lambda: turn.zoom("pub:0+1"))[0] is optchat.UnknownRef
