"""Cursors: opaque, of one query, and never trusted. The laws are in tests/property/test_cursors.py."""

import base64
import json

import pytest

from optchat.core.cursors import Cursor, query_digest, read_cursor, write_cursor
from optchat.core.errors import BadCursor

DIGEST = query_digest("search", "broker", 10)


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_cursor_is_read_as_it_was_written() -> None:
    text = write_cursor(DIGEST, 7, 40, 2)

    assert read_cursor(text, DIGEST) == Cursor(7, (40, 2))
    assert read_cursor(write_cursor(DIGEST, 0), DIGEST) == Cursor(0, ())
    assert text.replace("-", "").replace("_", "").isalnum(), "it stands in a URL or a command line as it is"


def test_a_cursor_is_tied_to_every_argument_of_its_query() -> None:
    queries = [
        ("search", "broker", 10),
        ("zoom", "broker", 10),
        ("search", "brokers", 10),
        ("search", "broker", 11),
        ("search", "broker"),
        ("search", "broker 10"),
        ("search", "broker", 10, None),
    ]
    assert len({query_digest(*query) for query in queries}) == len(queries)
    assert query_digest("search", "\ud800")

    for query in queries[1:]:
        with pytest.raises(BadCursor, match="belongs to another query; repeat the query that gave it"):
            read_cursor(write_cursor(DIGEST, 7, 40), query_digest(*query))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "garbage",
        "!!!!",
        "é" * 8,
        "\ud800",
        "=" * 8,
        "A" * 401,
        "A" * 100_000,
        base64.urlsafe_b64encode(b"\xff\xfe\x00").decode(),
        encoded(None),
        encoded("text"),
        encoded({}),
        encoded({"a": 1, "b": 2}),
        encoded([]),
        encoded([DIGEST]),
        encoded([DIGEST, None]),
        encoded([DIGEST, "7", 40]),
        encoded([DIGEST, 7, "40"]),
        encoded([DIGEST, 7, 4.0]),
        encoded([DIGEST, 7, True]),
        encoded([DIGEST, 7, -1]),
        encoded([DIGEST, -1, 40]),
        encoded([DIGEST, 7, 1 << 62]),  # past what a column of the file can hold
        encoded([DIGEST, 7, [40]]),
        encoded([DIGEST, 7, 40]) + "A",
        encoded([DIGEST, 7, 40]) + "éééé",
        base64.urlsafe_b64encode(b" " * 300 + json.dumps([DIGEST, 7, 40]).encode()).decode(),  # longer than any
        encoded([DIGEST, 7, 40])[:-4],
        base64.urlsafe_b64encode(b"[" * 290).decode(),
    ],
)
def test_what_is_no_cursor_is_refused_with_advice(text: str) -> None:
    with pytest.raises(BadCursor, match="ask again without one"):
        read_cursor(text, DIGEST)


def test_a_cursor_of_the_right_shape_and_no_digest_is_anothers() -> None:
    for found in (None, 5, "", DIGEST[:-1], [DIGEST]):
        with pytest.raises(BadCursor, match="another query"):
            read_cursor(encoded([found, 7, 40]), DIGEST)
