"""Laws of spans, covers, places and the grammar of refs."""

import pytest
from hypothesis import given, strategies as st

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
    span_of_post_order,
)
from tests.property.strategies import spans

ends = st.one_of(st.integers(0, 300), st.integers(0, MAX_ORDINAL))
any_spans = st.one_of(
    spans(),
    st.integers(0, 39).flatmap(lambda level: st.builds(Span.at, st.just(level), st.integers(0, (1 << 39 - level) - 1))),
)
generations = st.integers(0, 999_999_999_999)
session_ids = st.text(SESSION_ID_ALPHABET, min_size=8, max_size=8).map(SessionId)
refs = st.one_of(
    st.builds(PublicationRef, any_spans),
    st.builds(SessionRef, session_ids, generations, any_spans),
    st.builds(SessionRef, st.none(), st.none() | generations, any_spans),
)


@given(ends, ends)
def test_a_cover_is_ordered_disjoint_exact_and_aligned(one: int, other: int) -> None:
    start, end = sorted((one, other))

    cover = exact_cover(start, end)

    at = start
    for span in cover:
        assert span.start == at
        assert span.count.bit_count() == 1
        assert span.start % span.count == 0
        at = span.end
    assert at == end


@given(ends, ends)
def test_a_cover_has_the_fewest_spans_and_they_grow_by_the_logarithm(one: int, other: int) -> None:
    start, end = sorted((one, other))

    cover = exact_cover(start, end)

    for span in cover:
        assert span.parent.start < start or span.parent.end > end, f"{span.parent} would have done"
    length = end - start
    assert len(cover) <= max(min(length, 1), 2 * (length.bit_length() - 1))


@given(any_spans)
def test_places_are_the_inverse_of_spans(span: Span) -> None:
    place = post_order(span)

    assert 0 <= place <= KEY_MASK
    assert span_of_post_order(place) == span


@given(st.integers(0, 2 * MAX_ORDINAL - 2))
def test_spans_are_the_inverse_of_places_so_that_none_is_left_out(place: int) -> None:
    assert post_order(span_of_post_order(place)) == place


@given(any_spans, any_spans)
def test_places_are_in_order_of_completion(one: Span, other: Span) -> None:
    assert (post_order(one) < post_order(other)) == ((one.end, one.count) < (other.end, other.count))


@given(st.integers(0, MAX_ORDINAL - 1))
def test_what_a_leaf_completes_follows_it_directly(leaf: int) -> None:
    completed = [Span(leaf, 1), *completed_by(leaf)]

    first = post_order(completed[0])
    assert [post_order(span) for span in completed] == list(range(first, first + len(completed)))
    assert {span.end for span in completed} == {leaf + 1}
    assert completed[-1].parent.end > leaf + 1


@given(any_spans.filter(lambda span: span.count > 1))
def test_children_halve_their_parent(span: Span) -> None:
    left, right = span.children

    assert (left.start, left.end, right.end) == (span.start, right.start, span.end)
    assert left.parent == right.parent == span
    assert (left.sibling, right.sibling) == (right, left)
    assert Span.at(span.level, span.index) == span


@given(refs)
def test_a_ref_is_read_as_it_was_written(ref: PublicationRef | SessionRef) -> None:
    assert parse_ref(str(ref)) == ref


almost = st.lists(
    st.sampled_from(["pub", "session", "k3f9a2bq", ":", "+", "0", "1", "2", "4", "12", "007", "٣", " ", "\n", "-"]),
    max_size=9,
).map("".join)


@given(st.one_of(almost, st.text(max_size=90), refs.map(lambda ref: f"{ref}0"), refs.map(lambda ref: str(ref)[1:])))
def test_whatever_is_read_as_a_ref_was_its_one_spelling(text: str) -> None:
    try:
        ref = parse_ref(text)
    except MalformedRef as error:
        assert "as it was shown" in str(error)
        return
    assert str(ref) == text


@given(st.integers(-4, 70), st.integers(-4, 70))
def test_no_other_pair_of_numbers_is_a_span(start: int, count: int) -> None:
    if start >= 0 and count in {1, 2, 4, 8, 16, 32, 64} and start % count == 0:
        assert str(Span(start, count)) == f"{start}+{count}"
        return
    with pytest.raises(MalformedRef):
        Span(start, count)
