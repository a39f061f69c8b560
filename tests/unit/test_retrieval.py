"""The shapes of answers, and times as callers give them."""

from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest

from optchat.core.errors import BadArgument
from optchat.core.retrieval import Hit, Page, SearchPage, read_time
from optchat.core.snapshots import Snapshot

AT = datetime(2026, 10, 1, 8, 30, tzinfo=timezone(timedelta(hours=2)))
PINNED = Snapshot("42", 26, 1, AT)


@pytest.mark.parametrize(
    "when",
    [AT, "2026-10-01T08:30:00+02:00", "2026-10-01 08:30+02:00", "20261001T083000+0200", "2026-10-01T06:30:00Z"],
)
def test_a_time_is_a_datetime_or_iso_8601(when: datetime | str) -> None:
    assert read_time("since", when) == AT


def test_a_time_keeps_its_offset_and_its_microseconds() -> None:
    read = read_time("since", "2026-10-01T08:30:00.000001-07:00")

    assert read is not None
    assert read.isoformat() == "2026-10-01T08:30:00.000001-07:00"


def test_no_time_is_none() -> None:
    assert read_time("since", None) is None


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("", "before is no ISO 8601 time"),
        ("yesterday", "before is no ISO 8601 time"),
        ("2026-13-01T00:00:00Z", "before is no ISO 8601 time"),
        ("2026-10-01T00:00:00Z ", "before is no ISO 8601 time"),
        ("\ud800", "before is no ISO 8601 time"),
        ("2026-10-01", "before is a naive time"),
        ("2026-10-01T08:30:00", "before is a naive time"),
        (datetime(2026, 10, 1, 8, 30), "before is a naive time"),  # noqa: DTZ001
        (date(2026, 10, 1), "not date"),
        (time(8, 30, tzinfo=UTC), "not time"),
        (1_790_000_000, "not int"),
        (b"2026-10-01T00:00:00Z", "not bytes"),
    ],
)
def test_a_time_that_names_no_instant_is_refused_by_its_name(when: object, said: str) -> None:
    with pytest.raises(BadArgument, match=said) as raised:
        read_time("before", when)  # type: ignore[arg-type] # the point
    assert "; " in str(raised.value)


def test_a_page_is_its_items() -> None:
    page = Page(("a", "b"), "next", PINNED)

    assert list(page) == ["a", "b"]
    assert len(page) == 2
    assert len(Page((), None, PINNED)) == 0


def test_a_search_page_is_its_hits() -> None:
    hit = Hit("pub:0+1", "user", "…", AT, "k3f9a2bq", "pub:0+1")
    page = SearchPage((hit,), None, PINNED)

    assert page.hits == tuple(page) == (hit,)
    assert (page.words, page.unindexed) == ({}, 0)
    assert page.words is not SearchPage((), None, PINNED).words
