"""
§ 16: "Do that" in B resolves against B's preceding exchange; A's unrelated proposal is labelled foreign evidence.

What a model makes of a request is its own; here it is what B's request contains, in which block, and under whose name.
"""

from typing import Any

import pytest

import optchat
from tests.acceptance.scripted import WIRE, Message, Scripted, block, converse, says

PROPOSAL = "I could drop the staging database to free the disk. Shall I do that?"
PLAN = "I could rename Foo to Bar in all twelve files. Shall I do that?"


def exchange(memory: optchat.Memory, key: str, request: str, answer: str) -> optchat.Session[Any]:
    session = memory.session(key, adapter=WIRE)
    with session.turn(request) as turn:
        converse(turn, Scripted(says(answer)))
    return session


def do_that(session: optchat.Session[Any]) -> list[Message]:
    model = Scripted(says("Done."))
    with session.turn("Do that.") as turn:
        converse(turn, model)
    return model.messages[0]


@pytest.fixture
def b(memory: optchat.Memory) -> optchat.Session[Any]:
    """B proposed something, and then A proposed something else."""
    b = exchange(memory, "b", "The name Foo is confusing.", PLAN)
    exchange(memory, "a", "The disk is full.", PROPOSAL)
    return b


def test_the_preceding_exchange_is_bs_own_and_in_full(b: optchat.Session[Any]) -> None:
    messages = do_that(b)
    previous = block(messages, "previous_exchange")
    assert previous.splitlines() == [
        f'<previous_exchange session="{b.id}" request="0+1" answer="1+1">',
        "0+1 | user: The name Foo is confusing.",
        f"1+1 | assistant: {PLAN}",
        "</previous_exchange>",
    ]
    assert messages[-2]["content"] == previous, "it stands directly before the request"
    assert messages[-1] == {"role": "user", "content": "Do that."}


def test_as_proposal_is_foreign_evidence(memory: optchat.Memory, b: optchat.Session[Any]) -> None:
    messages = do_that(b)
    a = memory.session("a")
    holding = [message for message in messages if "staging" in str(message["content"])]
    assert [message["content"] for message in holding] == [block(messages, "since")], "B's second turn: it is new"
    line = next(line for line in holding[0]["content"].splitlines() if "staging" in line)
    assert line.startswith(f"pub:1+1 [{a.id}] | ")
    assert a.id != b.id
    assert "historical evidence from other conversations" in messages[0]["content"]


def test_bs_own_history_is_bs_alone(b: optchat.Session[Any]) -> None:
    messages = do_that(b)
    assert block(messages, "session_memory").startswith(f'<session_memory session="{b.id}" generation="0" through="0">')
    new = block(messages, "since").splitlines()
    assert 'session_through="2"' in new[0]
    own = [line for line in new[1:-1] if not line.startswith("pub:")]
    assert [line.split(" | ")[0] for line in own] == ["0+1", "1+1"]
    assert not any("staging" in line for line in own)


def test_what_a_has_not_finished_is_nowhere(memory: optchat.Memory, b: optchat.Session[Any]) -> None:
    a = memory.session("a", adapter=WIRE)
    unfinished = a.turn("Delete the vault.")
    unfinished.tool_call("c1", "delete", {"what": "vault"})
    sent = str(do_that(b))
    assert "vault" not in sent
    assert [call.call_id for call in unfinished.pending] == ["c1"]


def test_a_failed_attempt_of_a_is_labelled_as_that(memory: optchat.Memory, b: optchat.Session[Any]) -> None:
    a = memory.session("a")
    with pytest.raises(RuntimeError), a.turn("Switch to blue/green.") as turn:
        turn.assistant("switched")
        raise RuntimeError
    messages = do_that(b)
    line = next(line for line in block(messages, "since").splitlines() if "blue/green" in line)
    assert line.startswith(f"pub:2+1 [{a.id} failed] | failed: ")


def test_without_a_preceding_exchange_there_is_none(memory: optchat.Memory) -> None:
    exchange(memory, "a", "The disk is full.", PROPOSAL)
    fresh = memory.session("fresh", adapter=WIRE)
    messages = do_that(fresh)
    assert not any(str(message["content"]).startswith("<previous_exchange") for message in messages)


def test_a_note_is_no_exchange(b: optchat.Session[Any]) -> None:
    b.note("The build is green.")
    previous = block(do_that(b), "previous_exchange")
    assert PLAN in previous
    assert "green" not in previous


def test_an_answer_too_long_to_repeat_is_shown_by_its_line(memory: optchat.Memory) -> None:
    long = "First step. " * 3000
    b = exchange(memory, "b", "Make a plan.", long)
    memory.settle()
    with b.turn("Do that.") as turn:
        context = turn.context(optchat.Budget(64_000, 1_000))
        ref = f"session:{b.id}:0:1+1"
        assert context.receipt.left_out == (ref,)
        text = next(each.text for each in context.blocks if each.kind == "previous_exchange")
        assert text.splitlines()[1] == "0+1 | user: Make a plan."
        assert len(text.splitlines()[2]) < 700
        assert turn.source("1+1").part == optchat.TextPart(long)
