"""Spans, covers, places in a tree, and the grammar of refs. The laws are in tests/property/test_refs.py."""

import pytest

from optchat.core.errors import MalformedRef
from optchat.core.refs import (
    KEY_MASK,
    MAX_ORDINAL,
    SESSION_ID_ALPHABET,
    PublicationRef,
    SessionId,
    SessionRef,
    Span,
    completed_by,
    exact_cover,
    parse_ref,
    post_order,
    publication_ref,
    session_ref,
    span_of_post_order,
)

SESSION = SessionId("k3f9a2bq")


# ---- spans -----------------------------------------------------------------------------------------------------------


def test_a_span_and_its_family() -> None:
    span = Span(24, 8)

    assert (span.end, span.level, span.index) == (32, 3, 3)
    assert Span.at(3, 3) == span
    assert span.parent == Span(16, 16)
    assert span.sibling == Span(16, 8)
    assert span.sibling.sibling == span
    assert span.children == (Span(24, 4), Span(28, 4))
    assert [child.parent for child in span.children] == [span, span]


def test_a_leaf_has_no_children() -> None:
    with pytest.raises(MalformedRef):
        _ = Span(3, 1).children


@pytest.mark.parametrize(("start", "count"), [(0, 0), (0, -1), (0, 3), (0, 6), (1, 2), (4, 8), (-2, 2)])
def test_what_is_no_aligned_power_of_two_is_no_span(start: int, count: int) -> None:
    with pytest.raises(MalformedRef, match="use a ref as it was shown"):
        Span(start, count)


def test_spans_order_by_start_and_hash_apart() -> None:
    tree = [Span.at(level, index) for level in range(5) for index in range(16 >> level)]

    assert len({hash(span) for span in tree}) == len(tree) == 31
    assert sorted([Span(4, 4), Span(4, 1), Span(0, 8)]) == [Span(0, 8), Span(4, 1), Span(4, 4)]


@pytest.mark.parametrize(
    ("start", "end", "cover"),
    [
        (3, 8, "3+1 4+4"),
        (0, 0, ""),
        (5, 5, ""),
        (0, 1, "0+1"),
        (0, 8, "0+8"),
        (0, 7, "0+4 4+2 6+1"),
        (1, 7, "1+1 2+2 4+2 6+1"),
        (6, 9, "6+2 8+1"),
        (8, 24, "8+8 16+8"),
    ],
)
def test_a_cover_is_the_fewest_aligned_spans(start: int, end: int, cover: str) -> None:
    assert " ".join(map(str, exact_cover(start, end))) == cover


# ---- places in a tree ------------------------------------------------------------------------------------------------


def test_nodes_are_numbered_as_they_complete() -> None:
    in_order = "0+1 1+1 0+2 2+1 3+1 2+2 0+4 4+1 5+1 4+2 6+1 7+1 6+2 4+4 0+8 8+1"

    assert " ".join(str(span_of_post_order(place)) for place in range(16)) == in_order
    assert [post_order(span_of_post_order(place)) for place in range(16)] == list(range(16))


def test_every_node_of_the_largest_tree_has_a_place_within_its_key() -> None:
    """A node's key is its tree and its place: a place that ran over would be another tree's node."""
    root, last = Span(0, MAX_ORDINAL), Span(MAX_ORDINAL - 1, 1)

    assert post_order(root) == 2 * MAX_ORDINAL - 2 <= KEY_MASK
    for span in (root, last, last.parent, root.children[1]):
        assert span_of_post_order(post_order(span)) == span


@pytest.mark.parametrize(
    ("leaf", "nodes"), [(0, ""), (1, "0+2"), (2, ""), (7, "6+2 4+4 0+8"), (11, "10+2 8+4"), (12, "")]
)
def test_a_leaf_completes_its_ancestors_on_the_right_edge_smallest_first(leaf: int, nodes: str) -> None:
    assert " ".join(map(str, completed_by(leaf))) == nodes


# ---- the grammar -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("pub:24+1", PublicationRef(Span(24, 1))),
        ("pub:0+64", PublicationRef(Span(0, 64))),
        ("session:k3f9a2bq:0:4+4", SessionRef(SESSION, 0, Span(4, 4))),
        ("session:k3f9a2bq:12:7+1", SessionRef(SESSION, 12, Span(7, 1))),
        ("0+1", SessionRef(None, None, Span(0, 1))),
        ("2:96+32", SessionRef(None, 2, Span(96, 32))),
        ("0:0+1", SessionRef(None, 0, Span(0, 1))),
    ],
)
def test_a_ref_has_one_spelling(text: str, ref: PublicationRef | SessionRef) -> None:
    assert parse_ref(text) == ref
    assert str(ref) == text


def test_refs_are_written_as_they_are_read() -> None:
    assert session_ref("k3f9a2bq", 3, 8, 8) == str(SessionRef(SESSION, 3, Span(8, 8)))
    assert session_ref("k3f9a2bq", 0, 5) == "session:k3f9a2bq:0:5+1"
    assert publication_ref(5) == str(PublicationRef(Span(5, 1)))
    assert publication_ref(16, 16) == "pub:16+16"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5+",
        "+1",
        "pub:",
        "pub:5",
        "pub:5-1",
        "pub:5+1 ",
        " pub:5+1",
        "pub:5+1\n",
        "pub: 5+1",
        "pub:5 + 1",
        "PUB:5+1",
        "pub:0:5+1",
        "pub::5+1",
        "publication:5+1",
        "pub:5+1 | user: hi",
        "pub:5+1+1",
        "-1+1",
        "pub:-2+2",
        "0x4+4",
        "1e3+1",
        "4_0+1",
        # leading zeros: a second spelling
        "00+1",
        "pub:05+1",
        "pub:5+01",
        "00:5+1",
        "session:k3f9a2bq:00:5+1",
        # digits that are not ASCII: int() would read them
        "pub:٥+1",
        "pub:５+1",
        "5²+1",
        # sessions
        "session:k3f9a2bq:5+1",
        "session:k3f9a2bq::5+1",
        "session::0:5+1",
        "session:k3f9a2b:0:5+1",
        "session:k3f9a2bqq:0:5+1",
        "session:K3F9A2BQ:0:5+1",
        "session:k3f9a2bi:0:5+1",
        "session:k3f9a2b/:0:5+1",
        "k3f9a2bq:0:5+1",
        "1:2:5+1",
        # no power of two, or not aligned to it
        "0+0",
        "pub:0+3",
        "pub:0+6",
        "pub:1+2",
        "session:k3f9a2bq:0:4+8",
        # beyond the last position, and beyond what any position is
        "pub:549755813888+1",
        "pub:0+1099511627776",
        "999999999999+1",
        "1000000000000+1",
        "9" * 60 + "+1",
        "9" * 5000 + "+1",
        "99999999999999:5+1",
    ],
)
def test_what_is_no_ref_is_refused_with_advice(text: str) -> None:
    with pytest.raises(MalformedRef, match="as it was shown"):
        parse_ref(text)


@pytest.mark.parametrize("letter", sorted(set("abcdefghijklmnopqrstuvwxyz") - set(SESSION_ID_ALPHABET)))
def test_letters_that_look_like_others_are_in_no_session_id(letter: str) -> None:
    assert letter in "ilou"
    with pytest.raises(MalformedRef):
        parse_ref(f"session:{letter * 8}:0:0+1")


def test_the_last_position_is_a_ref() -> None:
    assert parse_ref(f"pub:{MAX_ORDINAL - 1}+1").span.end == MAX_ORDINAL
    assert parse_ref(f"0+{MAX_ORDINAL}").span == Span(0, MAX_ORDINAL)


@pytest.mark.parametrize("value", [None, 5, b"pub:5+1", ("pub:5+1",)])
def test_what_is_no_text_is_no_ref(value: object) -> None:
    with pytest.raises(MalformedRef, match=type(value).__name__):
        parse_ref(value)  # type: ignore[arg-type] # as a model's arguments may hold anything


def test_the_error_repeats_no_more_than_the_beginning() -> None:
    with pytest.raises(MalformedRef) as raised:
        parse_ref("secret " * 1000)
    assert len(str(raised.value)) < 120
