"""Whether the last request may be repeated, and which lines stand in which block."""

import pytest
from attrs import evolve

from optchat.core.anchors import MOST_ADDED, Anchor, Head, Wanted, full, parts, plan_addition
from optchat.core.errors import IntegrityError

FIRST = Head("4", 2, 3, 1)
LAST = Anchor((FIRST,), b"\1", b"\1\0", b"\1", b"\1\0", b"hash", "counter", 1_000)
WANTED = Wanted(Head("7", 4, 5, 0), b"\1\0\0", b"\1\0\0\0", "counter", 1_000, 10.0, 300.0)


def test_what_both_views_gained_is_added() -> None:
    added = plan_addition(LAST, WANTED)
    assert isinstance(added, Anchor)
    assert added.heads == (FIRST, WANTED.head)
    assert (added.shared, added.own) == (WANTED.shared_view, WANTED.own_view)
    assert added.stable == LAST.stable
    assert not added.is_coarse


def test_nothing_new_is_added_too() -> None:
    added = plan_addition(LAST, evolve(WANTED, shared_view=LAST.shared, own_view=LAST.own))
    assert isinstance(added, Anchor)
    assert (added.shared, added.own) == (LAST.shared, LAST.own)


def test_a_coarse_anchor_is_added_to_as_the_view_that_it_is_of_grew() -> None:
    coarse = evolve(LAST, own=b"\2", own_view=b"\1\0\0")
    added = plan_addition(coarse, evolve(WANTED, own_view=b"\1\0\0\0"))
    assert isinstance(added, Anchor)
    assert added.own == b"\2\0"
    assert added.own_view == b"\1\0\0\0"
    assert added.is_coarse


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"idle_seconds": 300.0}, "older than the provider's cache"),
        ({"tokenizer": "another"}, "another tokenizer"),
        ({"shared_view": b"\2"}, "the shared view has changed"),
        ({"shared_view": b""}, "the shared view has changed"),
        ({"own_view": b"\2"}, "the session's view has changed"),
        ({"own_view": b"\1"}, "the session's view has changed"),
        ({"own_view": b"\0\0\0"}, "the session's view has changed"),
    ],
)
def test_otherwise_it_is_said_why_not(changed: dict[str, object], reason: str) -> None:
    assert reason in str(plan_addition(LAST, evolve(WANTED, **changed)))


def test_just_before_the_cache_forgets_it_is_repeated() -> None:
    assert isinstance(plan_addition(LAST, evolve(WANTED, idle_seconds=299.9)), Anchor)


def test_what_was_erased_is_not_repeated() -> None:
    assert "erased" in str(plan_addition(evolve(LAST, stable=b""), WANTED))


def test_a_coarse_anchor_gives_way_to_more_room() -> None:
    coarse = evolve(LAST, shared=b"", shared_view=b"\1")
    assert isinstance(plan_addition(coarse, evolve(WANTED, room=1_125)), Anchor)
    assert "more detail" in str(plan_addition(coarse, evolve(WANTED, room=1_126)))
    assert isinstance(plan_addition(LAST, evolve(WANTED, room=1_126)), Anchor)


def test_blocks_are_added_up_to_a_number() -> None:
    many = evolve(LAST, heads=(FIRST,) * MOST_ADDED)
    added = plan_addition(many, WANTED)
    assert isinstance(added, Anchor)
    assert "blocks were added" in str(plan_addition(added, WANTED))


def test_a_full_rendering_is_an_anchor_of_its_own() -> None:
    anchor = full(WANTED, b"\2", WANTED.own_view)
    assert anchor.heads == (WANTED.head,)
    assert anchor.is_coarse
    assert not anchor.stable


def test_lines_are_parted_by_the_ends_of_blocks() -> None:
    ends = [2, 3, 4, 6]
    assert [ends[part] for part in parts(ends, [3, 3, 6])] == [[2, 3], [], [4, 6]]
    assert [ends[part] for part in parts(ends, [0, 6])] == [[], ends]
    assert [ends[part] for part in parts(ends, [6])] == [ends]
    assert [[][part] for part in parts([], [0, 0])] == [[], []]


@pytest.mark.parametrize(
    ("ends", "heads"), [([2, 4], [2]), ([2, 4], [3, 4]), ([2, 4], [2, 5]), ([4], [2, 4]), ([], [1])]
)
def test_no_line_is_left_out_and_none_crosses_an_end(ends: list[int], heads: list[int]) -> None:
    with pytest.raises(IntegrityError):
        parts(ends, heads)
