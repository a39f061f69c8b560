"""§ 16: foreign search results and excerpts cannot include publications after the pinned boundary; nor can counts."""

import json
from typing import Any

import pytest

import optchat
from optchat import Order
from tests.peer import Peer

ORDERS: list[Order] = ["best", "newest"]


def publish(memory: optchat.Memory, key: str, text: str) -> None:
    with memory.session(key).turn(text) as turn:
        turn.assistant(f"noted: {text}")


@pytest.fixture
def turn(memory: optchat.Memory) -> optchat.Turn[optchat.HostMessage]:
    """B's turn, pinned between the old publications and the new ones."""
    for number in range(12):
        publish(memory, "a", f"old walrus number {number}")
    turn = memory.session("b").turn("what of the walrus?")
    before = every_answer(turn)
    for number in range(12):
        publish(memory, "a", f"new walrus zebrafish {number}")
        publish(memory, "c", f"walrus number {number}, again and again: walrus walrus")
    unpublished = memory.session("d").turn("walrus zebrafish, not published")
    unpublished.assistant("walrus zebrafish")
    memory.settle()
    assert every_answer(turn) == before
    return turn


def every_answer(turn: optchat.Turn[Any]) -> list[Any]:
    """All pages of several queries in both orders, as results and as a model's tool tells them."""
    answers: list[Any] = []
    for order in ORDERS:
        for query in ("walrus", "walrus number", '"old walrus"', "walrus zebrafish"):
            cursor = None
            while True:
                page = turn.search(query, order=order, limit=5, cursor=cursor)
                answers.append(page)
                cursor = page.cursor
                if cursor is None:
                    break
            answers.append(turn.call("memory_search", {"query": query, "order": order}))
    return answers


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_later_is_found(turn: optchat.Turn[Any], order: Order) -> None:
    page = turn.search("walrus", order=order, limit=50)
    own = [hit for hit in page if hit.session_id == turn.sessions().items[-1].id]
    foreign = [hit for hit in page if hit not in own]
    assert len(own) == 1
    assert len(foreign) == 24
    assert {hit.publication_ref for hit in foreign} <= {f"pub:{number}+1" for number in range(12)}
    assert all("old walrus" in hit.excerpt for hit in foreign)


@pytest.mark.parametrize("order", ORDERS)
def test_a_word_that_came_later_counts_nothing(turn: optchat.Turn[Any], order: Order) -> None:
    page = turn.search("zebrafish", order=order)
    assert page.hits == ()
    assert dict(page.words).get("zebrafish", 0) == 0
    newest = turn.search("walrus zebrafish", order="newest")
    assert newest.hits == ()
    assert newest.words == {"walrus": 25, "zebrafish": 0}


def test_a_page_begun_before_goes_on_as_if_nothing_had_come(memory: optchat.Memory) -> None:
    for number in range(12):
        publish(memory, "a", f"old walrus number {number}")
    turns = [memory.session(key).turn("and?") for key in ("b", "c")]
    firsts = [turn.search("walrus", limit=5) for turn in turns]
    assert [hit.ref for hit in firsts[0]] == [hit.ref for hit in firsts[1]]
    rest = turns[0].search("walrus", limit=50, cursor=turns[0].search("walrus", limit=50).cursor)
    assert rest.cursor is None
    second = turns[0].search("walrus", limit=5, cursor=firsts[0].cursor)
    publish(memory, "a", "walrus walrus walrus")
    assert [hit.ref for hit in turns[1].search("walrus", limit=5, cursor=firsts[1].cursor)] == [
        hit.ref for hit in second
    ]


def test_a_tools_answer_is_the_same_again(memory: optchat.Memory) -> None:
    """Answers are not stored but rendered again, page after page, whatever others have said since."""
    for number in range(12):
        publish(memory, "a", f"old walrus number {number}")
    turn = memory.session("b").turn("and?")
    first = turn.call("memory_search", {"query": "walrus", "limit": 3})
    turn.tool_call("c1", "memory_search", {"query": "walrus", "limit": 3})
    (ref,) = turn.tool_result("c1", first)
    arguments = {"query": "walrus", "limit": 3, "cursor": json.loads(first.text)["cursor"]}
    turn.tool_call("c2", "memory_search", arguments)
    second = turn.call("memory_search", arguments)
    (other,) = turn.tool_result("c2", second)
    publish(memory, "c", "walrus walrus walrus")
    assert turn.zoom(ref).text == first.text
    assert turn.zoom(other).text == second.text
    assert memory.zoom(ref).text == first.text
    assert memory.search("walrus", session=turn.sessions().items[-1].id).hits == (), "an answer is no evidence"


def test_another_process_adds_nothing_either(memory: optchat.Memory, peer: Peer) -> None:
    publish(memory, "a", "old walrus")
    turn = memory.session("b").turn("and?")
    peer("with memory.session('x').turn('new walrus') as turn: turn.assistant('walrus')")
    assert {hit.publication_ref for hit in turn.search("walrus")} == {"pub:0+1"}
    assert len(memory.search("walrus")) == 4


def test_the_next_turn_sees_it(memory: optchat.Memory, turn: optchat.Turn[Any]) -> None:
    turn.end("completed")
    later = memory.session("b").turn("and now?")
    assert len(later.search("zebrafish", limit=50)) == 24, "all but the unpublished turn's"
    assert not any("not published" in hit.excerpt for hit in later.search("zebrafish", limit=50))


def test_its_own_live_turn_is_found(memory: optchat.Memory) -> None:
    turn = memory.session("b").turn("where is the aardvark?")
    turn.tool_call("c1", "find", {"animal": "aardvark"})
    turn.tool_result("c1", "the aardvark sleeps")
    assert {hit.kind for hit in turn.search("aardvark")} == {"user", "tool_call", "tool_result"}
    other = memory.session("c").turn("and?")
    assert other.search("aardvark").hits == ()


def test_sessions_that_appeared_later_are_not_listed(turn: optchat.Turn[Any]) -> None:
    assert [info.key for info in turn.sessions()] == ["a", "b"]
    told = json.loads(turn.call("memory_sessions", "{}").text)
    assert [item["key"] for item in told["items"]] == ["a", "b"]
    with pytest.raises(optchat.UnknownRef):
        turn.work("a report that nobody made")
