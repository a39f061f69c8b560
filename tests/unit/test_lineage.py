"""Where a record and a node of a chain of segments are stored."""

import pytest

from optchat.core.lineage import Chain, Link, node_key, ordinal_of, owner_of
from optchat.core.refs import KEY_BITS, Span, post_order
from optchat.core.snapshots import OwnRange

# Segment 1 was left at 8 records by segment 5, and that at 12 by segment 9, which is the session's own now.
CHAIN = Chain((Link(9, 90, 12), Link(5, 50, 8), Link(1, 10, 0)))
ALONE = Chain((Link(3, 30, 0),))


@pytest.mark.parametrize(("seq", "segment"), [(0, 1), (7, 1), (8, 5), (11, 5), (12, 9), (1000, 9)])
def test_a_record_lies_in_the_first_segment_that_begins_at_or_before_it(seq: int, segment: int) -> None:
    assert CHAIN.of_record(seq).segment == segment
    assert CHAIN.record_key(seq) == segment << KEY_BITS | seq


@pytest.mark.parametrize(
    ("span", "tree"),
    [
        (Span(0, 8), 10),  # whole below both bases: the oldest's, and nothing was copied
        (Span(4, 4), 10),
        (Span(8, 4), 50),  # whole below the own base
        (Span(8, 2), 50),
        (Span(0, 16), 90),  # reaches past a base: made anew
        (Span(8, 8), 90),
        (Span(12, 1), 90),
    ],
)
def test_a_node_is_the_bases_where_the_base_contains_it_whole(span: Span, tree: int) -> None:
    assert CHAIN.of_node(span).tree == tree
    assert CHAIN.node_key(span) == node_key(tree, span)


@pytest.mark.parametrize(
    ("start", "end", "ranges"),
    [
        (0, 15, [(1, 0, 8), (5, 8, 12), (9, 12, 15)]),
        (0, 12, [(1, 0, 8), (5, 8, 12)]),  # nothing of its own yet
        (0, 3, [(1, 0, 3)]),
        (5, 10, [(1, 5, 8), (5, 8, 10)]),
        (9, 11, [(5, 9, 11)]),
        (13, 14, [(9, 13, 14)]),
        (12, 12, []),
        (0, 0, []),
    ],
)
def test_a_range_of_records_is_stored_in_pieces_oldest_first(
    start: int, end: int, ranges: list[tuple[int, int, int]]
) -> None:
    assert CHAIN.ranges(end, start) == tuple(OwnRange(*piece) for piece in ranges)


def test_without_a_base_everything_is_its_own() -> None:
    assert ALONE.own == ALONE.of_record(0) == ALONE.of_node(Span(0, 1)) == Link(3, 30, 0)
    assert ALONE.ranges(4) == (OwnRange(3, 0, 4),)


def test_a_key_tells_its_owner_and_its_ordinal() -> None:
    key = node_key(90, Span(8, 8))

    assert owner_of(key) == 90
    assert ordinal_of(key) == post_order(Span(8, 8)) == 29
    assert (owner_of(CHAIN.record_key(7)), ordinal_of(CHAIN.record_key(7))) == (1, 7)
