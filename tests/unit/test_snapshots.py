"""The one visibility predicate (§ 9, § 11)."""

import pytest

from optchat.core.snapshots import (
    OwnRange,
    PublicationState,
    Published,
    Sight,
    foreign_node_visible,
    publication_visible,
)

SIGHT = Sight(scope=1, clock=50, publications=8, documents=40, own=(OwnRange(1, 0, 8), OwnRange(5, 8, 12)))


@pytest.mark.parametrize(
    ("number", "retired_clock", "removed", "visible"),
    [
        (0, None, False, True),
        (7, None, False, True),
        (8, None, False, False),  # made after the pin
        (9, None, False, False),
        (3, 51, False, True),  # retired after the pin: the pin still shows it
        (3, 50, False, False),  # retired at the pin's clock
        (3, 49, False, False),
        (3, None, True, False),  # removed: whatever the pin
        (3, 51, True, False),
        (8, 51, False, False),
    ],
)
def test_a_publication_under_a_pin(number: int, retired_clock: int | None, removed: bool, visible: bool) -> None:
    assert publication_visible(PublicationState(number, retired_clock, removed), SIGHT) is visible


def test_nothing_is_published_before_the_first_publication() -> None:
    assert not publication_visible(PublicationState(0, None, False), Sight(1, 0, 0, 0))


@pytest.mark.parametrize(
    ("segment", "start", "end", "owned"),
    [
        (5, 8, 12, True),
        (5, 9, 10, True),
        (5, 11, 13, False),  # past the boundary
        (5, 7, 9, False),  # below the link's own part
        (1, 0, 8, True),
        (1, 7, 8, True),
        (1, 8, 9, False),  # what the base went on to say after it was left
        (2, 0, 1, False),
    ],
)
def test_what_is_a_readers_own(segment: int, start: int, end: int, owned: bool) -> None:
    assert SIGHT.owns(segment, start, end) is owned
    assert Sight(1, 50, 8, 40, owner=True).owns(segment, start, end), "the memory's own reading sees every session"


@pytest.mark.parametrize(
    ("start", "end", "published", "base_length", "visible"),
    [
        (4, 8, Published(2, 8), 0, True),
        (2, 3, Published(2, 8), 0, True),
        (4, 8, Published(4, 8), 4, True),
        (4, 8, None, 0, False),  # nothing of the session is published
        (4, 8, Published(0, 7), 0, False),  # its end waits for publication
        (0, 8, Published(2, 8), 0, False),  # its last record is published, and an earlier turn's is not
        (0, 8, Published(0, 8), 4, False),  # it reaches into what the session was forked from
        (8, 12, Published(0, 8), 0, False),
    ],
)
def test_a_foreign_node_is_visible_only_where_all_under_it_is(
    start: int, end: int, published: Published | None, base_length: int, visible: bool
) -> None:
    assert foreign_node_visible(start, end, published, base_length) is visible
