"""Laws of cursors: read as written, by their own query only; whatever else is handed in is refused."""

import base64
import json

import pytest
from hypothesis import given, strategies as st

from optchat.core.cursors import Cursor, query_digest, read_cursor, write_cursor
from optchat.core.errors import BadCursor
from tests.property.strategies import hostile_texts

numbers = st.integers(0, (1 << 62) - 1)
positions = st.lists(numbers, max_size=4).map(tuple)
queries = st.tuples(st.sampled_from(["search", "zoom"]), hostile_texts(), st.none() | st.integers(1, 100))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(queries, numbers, positions)
def test_a_cursor_is_read_as_it_was_written(
    query: tuple[str, str, int | None], clock: int, position: tuple[int, ...]
) -> None:
    digest = query_digest(*query)
    assert read_cursor(write_cursor(digest, clock, *position), digest) == Cursor(clock, position)


@given(queries, queries, numbers, positions)
def test_a_cursor_is_its_own_querys_only(
    query: tuple[str, str, int | None], other: tuple[str, str, int | None], clock: int, position: tuple[int, ...]
) -> None:
    text = write_cursor(query_digest(*query), clock, *position)
    if query == other:
        assert read_cursor(text, query_digest(*other)).position == position
        return
    with pytest.raises(BadCursor, match="another query"):
        read_cursor(text, query_digest(*other))


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


forged = st.one_of(
    hostile_texts(),
    st.text(max_size=500),
    st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()),
    anything.map(encoded),
    st.lists(anything, max_size=4).map(lambda more: encoded(["digest", *more])),
)


@given(forged)
def test_whatever_is_handed_in_is_a_position_or_refused(text: str) -> None:
    try:
        cursor = read_cursor(text, "digest")
    except BadCursor as error:
        assert "ask" in str(error)
        return
    assert all(type(number) is int and 0 <= number < 1 << 62 for number in (cursor.clock, *cursor.position))
