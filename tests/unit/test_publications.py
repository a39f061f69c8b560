"""How a turn ends, and what its publication's leaf is made of."""

from typing import get_args

import pytest

from optchat.core.errors import TurnEnded
from optchat.core.publications import (
    TURN_TRANSITIONS,
    Turn,
    TurnEvent,
    TurnState,
    leaf_of,
    natural_outcome,
    publication_leaf,
    turn_after,
)
from optchat.core.refs import Span
from optchat.core.render import escaped_size
from optchat.core.retrieval import LineKind
from optchat.core.terms import OUTCOMES, Outcome, RecordKind
from optchat.core.tree import Node

EVENTS: tuple[TurnEvent, ...] = get_args(TurnEvent)


def turn(outcome: Outcome = "completed") -> Turn:
    return Turn(start=3, end=8, outcome=outcome, started_at=100, ended_at=900)


def node(text: str, kind: LineKind = "verbatim") -> Node:
    return Node(Span(4, 1), 2, kind, text, escaped_size(text), 0, 0, 200, 300)


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        ("open", "seal", "open"),
        ("open", "suspend", "suspended"),
        ("open", "resume", "open"),
        ("open", "end", "ended"),
        ("suspended", "seal", "suspended"),  # a call that ran on may still answer
        ("suspended", "suspend", "suspended"),
        ("suspended", "resume", "open"),
        ("suspended", "end", "ended"),
    ],
)
def test_every_step_of_a_turn(state: TurnState, event: TurnEvent, after: TurnState) -> None:
    assert turn_after(state, event) == after


def test_the_table_is_complete() -> None:
    assert set(TURN_TRANSITIONS) == {(state, event) for state in ("open", "suspended") for event in EVENTS}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_ended_turn_keeps_its_outcome(event: TurnEvent, outcome: Outcome) -> None:
    with pytest.raises(TurnEnded, match=f"ended as {outcome}; begin a new turn") as raised:
        turn_after("ended", event, outcome)
    assert raised.value.outcome == outcome


@pytest.mark.parametrize(
    ("last", "pending", "outcome"),
    [
        ("assistant", 0, "completed"),
        ("assistant", 1, "interrupted"),
        ("tool_call", 1, "interrupted"),
        ("tool_result", 0, "interrupted"),
        ("report", 0, "interrupted"),
        ("user", 0, "interrupted"),
        (None, 0, "interrupted"),
    ],
)
def test_a_turn_that_stopped_is_completed_only_on_an_answer(
    last: RecordKind | None, pending: int, outcome: Outcome
) -> None:
    assert natural_outcome(last, pending) == outcome


def test_a_turns_cover() -> None:
    assert [str(span) for span in turn().cover] == ["3+1", "4+4"]


def test_a_leaf_is_its_covers_texts_if_they_fit() -> None:
    cover = [node("user: a <b>"), node("assistant: c")]

    leaf = publication_leaf(7, turn(), cover, 64)

    assert leaf == Node(
        span=Span(7, 1),
        revision=0,
        kind="verbatim",
        text="user: a <b>\nassistant: c",
        escaped_bytes=escaped_size("user: a <b>\nassistant: c"),
        failed=0,
        interrupted=0,
        first_at=100,
        last_at=900,
    )


@pytest.mark.parametrize(
    ("outcome", "mark"), [("completed", ""), ("failed", "failed: "), ("interrupted", "interrupted: ")]
)
def test_a_leaf_says_in_its_text_and_in_its_structure_how_the_turn_ended(outcome: Outcome, mark: str) -> None:
    leaf = publication_leaf(0, turn(outcome), [node("user: a\nof two lines"), node("assistant: b")], 96)

    assert leaf is not None
    assert leaf.text == f"{mark}user: a\nof two lines\n{mark}assistant: b"
    assert leaf.escaped_bytes == escaped_size(leaf.text)
    assert (leaf.failed, leaf.interrupted) == (int(outcome == "failed"), int(outcome == "interrupted"))


def test_the_mark_is_part_of_what_must_fit() -> None:
    cover = [node("user: " + "a" * 58)]

    assert publication_leaf(0, turn(), cover, 64) is not None
    assert publication_leaf(0, turn("failed"), cover, 64) is None
    assert publication_leaf(0, turn("failed"), cover, 64 + len("failed: ")) is not None


@pytest.mark.parametrize(
    ("kinds", "kind"),
    [
        (["verbatim"], "verbatim"),
        (["stand_in", "stand_in"], "stand_in"),
        (["verbatim", "summary"], "summary"),
        (["stand_in", "tombstone"], "summary"),
    ],
)
def test_a_leaf_is_what_its_cover_is_where_that_agrees(kinds: list[LineKind], kind: LineKind) -> None:
    leaf = publication_leaf(0, turn(), [node("x", each) for each in kinds], 64)
    assert leaf is not None
    assert leaf.kind == kind


def test_a_summarised_leaf_has_its_outcome_from_the_turn() -> None:
    leaf = leaf_of(4, turn("interrupted"), "all went well", 13)

    assert (leaf.span, leaf.kind, leaf.failed, leaf.interrupted) == (Span(4, 1), "summary", 0, 1)
