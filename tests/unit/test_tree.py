"""Nodes: what joins without a call, what a result depends on, what stands in, and how pages are cut."""

import pytest
from attrs import evolve

from optchat.core.refs import Span
from optchat.core.render import escaped_size
from optchat.core.retrieval import LineKind
from optchat.core.tree import (
    JOIN,
    NODE_FORMAT,
    NODE_KIND_NUMBER,
    Node,
    Recipe,
    inputs_sha256,
    joined,
    merged,
    page_of,
    page_starts,
    stand_in_text,
    text_sha256,
)


def node(
    start: int,
    text: str,
    kind: LineKind = "verbatim",
    failed: int = 0,
    interrupted: int = 0,
    times: tuple[int, int] = (10, 20),
) -> Node:
    return Node(Span(start, 1), 0, kind, text, escaped_size(text), failed, interrupted, *times)


# ---- joins and merges ------------------------------------------------------------------------------------------------


def test_two_children_that_fit_together_are_joined_by_a_line_feed() -> None:
    left = node(4, "user: é <1>", failed=1, times=(10, 40))
    right = node(5, "assistant: &", interrupted=2, times=(15, 30))

    parent = joined(left, right, 64)

    assert parent == Node(
        span=Span(4, 2),
        revision=0,
        kind="verbatim",
        text="user: é <1>\nassistant: &",
        escaped_bytes=escaped_size("user: é <1>\nassistant: &"),
        failed=1,
        interrupted=2,
        first_at=10,
        last_at=40,
    )
    assert parent is not None
    assert parent.not_completed == 3


def test_they_fit_to_the_byte() -> None:
    left, right = node(0, "é" * 20), node(1, "a" * 23)

    assert joined(left, right, 64) is not None
    assert joined(left, evolve(right, text="a" * 24), 64) is None


@pytest.mark.parametrize(
    ("left", "right", "parent"),
    [
        ("verbatim", "verbatim", "verbatim"),
        ("stand_in", "stand_in", "stand_in"),
        ("tombstone", "tombstone", "tombstone"),
        ("verbatim", "stand_in", "summary"),
        ("tombstone", "verbatim", "summary"),
        ("summary", "verbatim", "summary"),
    ],
)
def test_a_join_is_what_its_children_are_where_they_agree(left: LineKind, right: LineKind, parent: LineKind) -> None:
    made = joined(node(0, "a", left), node(1, "b", right), 64)
    assert made is not None
    assert made.kind == parent


def test_a_merge_counts_outcomes_from_structure_whatever_its_text_says() -> None:
    left, right = node(0, "a", failed=2, times=(30, 50)), node(1, "b", failed=1, interrupted=1, times=(5, 40))

    parent = merged(left, right, "all went well", 13, "summary")

    assert (parent.failed, parent.interrupted, parent.first_at, parent.last_at) == (3, 1, 5, 50)
    assert (parent.span, parent.text, parent.escaped_bytes) == (Span(0, 2), "all went well", 13)


def test_numbers_and_words_that_files_were_written_with() -> None:
    assert NODE_KIND_NUMBER == {"verbatim": 0, "summary": 1, "stand_in": 2, "tombstone": 3}
    assert Recipe("join", "", 0, NODE_FORMAT, "{}") == JOIN
    assert NODE_FORMAT == 1


# ---- inputs ----------------------------------------------------------------------------------------------------------

INPUTS = [(1 << 40 | 4, 0, b"\x01" * 32), (1 << 40 | 5, 2, b"\x02" * 32)]


@pytest.mark.parametrize(
    "changed",
    [
        INPUTS[::-1],
        INPUTS[:1],
        [*INPUTS, INPUTS[1]],
        [INPUTS[0], (1 << 40 | 6, 2, b"\x02" * 32)],
        [INPUTS[0], (2 << 40 | 5, 2, b"\x02" * 32)],
        [INPUTS[0], (1 << 40 | 5, 3, b"\x02" * 32)],
        [INPUTS[0], (1 << 40 | 5, 2, b"\x03" * 32)],
    ],
)
def test_any_other_input_position_revision_content_or_order_is_another_hash(
    changed: list[tuple[int, int, bytes]],
) -> None:
    assert inputs_sha256(INPUTS) == inputs_sha256(tuple(INPUTS))
    assert inputs_sha256(changed) != inputs_sha256(INPUTS)


def test_a_text_has_a_hash_lone_surrogates_too() -> None:
    assert text_sha256("") != text_sha256("\ud800") != text_sha256("\ufffd")


# ---- stand-ins -------------------------------------------------------------------------------------------------------


def test_a_stand_in_says_that_it_is_none_and_of_what_and_begins_like_its_source() -> None:
    text = stand_in_text(512, "3 tool results", 14_200_000, "error: no <such>\n file & more")

    assert text == "[not summarised: 3 tool results, 14.2 MB] error: no such file more…"
    assert stand_in_text(512, "a leaf", 900, "") == "[not summarised: a leaf, 900 B]"


@pytest.mark.parametrize(
    ("limit", "text"),
    [(0, ""), (1, "-"), (2, "-"), (3, "[-]"), (15, "[-]"), (16, "[not summarised]"), (30, "[not summarised]")],
)
def test_where_the_label_does_not_fit_it_is_shortened(limit: int, text: str) -> None:
    assert stand_in_text(limit, "a leaf", 900, "the source") == text


@pytest.mark.parametrize("start", ["<&>" * 300, "é👩" * 300, "\ud800" * 300, "words of it " * 100])
def test_a_stand_in_is_never_heavier_than_it_may_be(start: str) -> None:
    for limit in range(300):
        text = stand_in_text(limit, "a leaf", 900, start)
        assert len(text.encode()) <= limit
        assert escaped_size(text) <= limit


# ---- pages -----------------------------------------------------------------------------------------------------------

TEXTS = ["", "short", "x" * 17, "x" * 18, "x" * 170, "é" * 40, "né👩漢" * 30, "👩" * 129]


@pytest.mark.parametrize("text", TEXTS, ids=len)
@pytest.mark.parametrize("page_bytes", [4, 5, 17, 512])
def test_pages_rejoin_exactly_and_cut_no_character(text: str, page_bytes: int) -> None:
    payload = text.encode()
    starts = page_starts(payload, page_bytes)

    pages = [page_of(payload, page_bytes, number) for number in range(len(starts))]

    assert b"".join(pages) == payload
    assert "".join(page.decode() for page in pages) == text
    assert all(page_bytes - 3 <= len(page) <= page_bytes for page in pages[:-1])
    assert len(pages[-1]) <= page_bytes
    assert all(pages) or pages == [b""]


def test_where_pages_start() -> None:
    assert page_starts(b"", 17) == (0,)
    assert page_starts(b"x" * 34, 17) == (0, 17)
    assert page_starts(b"x" * 35, 17) == (0, 17, 34)
    assert page_starts("👩".encode() * 10, 17) == (0, 16, 32)


def test_bytes_that_are_no_text_are_paged_too() -> None:
    payload = b"\x80" * 100

    starts = page_starts(payload, 17)

    assert b"".join(page_of(payload, 17, number) for number in range(len(starts))) == payload
