"""Results as JSON for models: exact fields, no bytes, a bounded size."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from attrs import evolve, fields

from optchat.core.answers import ANSWER_BYTES, Answer, answer_json, fitting
from optchat.core.cursors import query_digest, write_cursor
from optchat.core.messages import BlobPart
from optchat.core.retrieval import Dates, Hit, Line, Page, SearchPage, SessionInfo, TurnInfo, ZoomResult
from optchat.core.snapshots import Snapshot

AT = datetime(2026, 10, 9, 19, 0, tzinfo=timezone(timedelta(hours=-5)))
PINNED = Snapshot("42", 26, 1, AT)
TURN = TurnInfo("t", "session:k3f9a2bq:0:0+1", None, "add a queue", "failed", AT, "ended", AT, None, "abc")


def line(text: str = "decided against Redis") -> Line:
    return Line("pub:0+1", "summary", text, "k3f9a2bq", "completed", AT, AT, 0)


def record(text: str, attachments: Sequence[BlobPart] = ()) -> ZoomResult:
    return ZoomResult(
        "session:k3f9a2bq:0:0+1",
        "record",
        (),
        text,
        0,
        False,
        "next",
        AT,
        AT,
        PINNED,
        None,
        None,
        tuple(attachments),
        TURN,
        False,
        False,
    )


def node(lines: Sequence[Line]) -> ZoomResult:
    return evolve(record(""), kind="node", lines=tuple(lines), text=None, turn=None)


def hits(*excerpts: str) -> SearchPage:
    found = tuple(Hit(f"pub:{n}+1", "user", text, AT, "k3f9a2bq", None) for n, text in enumerate(excerpts))
    return SearchPage(found, "next", PINNED, {"redis": 3}, 1)


SESSION = SessionInfo("k3f9a2bq", "chat", "local", 0, 9, 2, None, None, None, None, False, AT, AT, "active")
RESULTS: list[Answer] = [
    record("text"),
    node([line()]),
    hits("an excerpt"),
    Dates("pub:0+1", AT, AT, None, PINNED),
    Page((SESSION,), None, PINNED),
]
NAMES = [type(result).__name__ for result in RESULTS]


@pytest.mark.parametrize("result", RESULTS, ids=NAMES)
def test_an_answer_is_its_result_field_by_field(result: Answer) -> None:
    answer = json.loads(answer_json(result))

    assert list(answer) == [field.name for field in fields(type(result))]
    assert answer["snapshot"] == {"id": "42", "through": 26, "epoch": 1, "at": "2026-10-09T19:00:00-05:00"}
    assert fitting(result) is None


def test_what_stands_inside_is_plain_too() -> None:
    answer = json.loads(answer_json(record("text")))

    assert answer["turn"]["outcome"] == "failed"
    assert answer["first_at"] == "2026-10-09T19:00:00-05:00"
    assert json.loads(answer_json(hits("a")))["words"] == {"redis": 3}
    assert json.loads(answer_json(node([line()])))["lines"][0]["text"] == "decided against Redis"


def test_text_is_not_escaped_beyond_need_and_surrogates_are_replaced() -> None:
    answer = answer_json(record('naïve 队列 "x" <shared_memory>\n\ud800'))

    assert 'naïve 队列 \\"x\\" <shared_memory>\\n\ufffd' in answer
    answer.encode()


def test_an_attachment_is_described_and_never_sent() -> None:
    shown = [
        BlobPart("image/png", data=b"\x89PNG" * 1000),
        BlobPart("image/*", uri="https://example.org/a.png"),
        BlobPart("image/png", uri="data:image/png;base64," + "A" * 100_000),
    ]

    attachments = json.loads(answer_json(record("", shown)))["attachments"]

    assert attachments[0] == {"media_type": "image/png", "bytes": 4000, "uri": None}
    assert attachments[1] == {"media_type": "image/*", "bytes": None, "uri": "https://example.org/a.png"}
    assert len(attachments[2]["uri"]) == 201


TOO_LARGE = {
    "text": record("word " * 10_000),
    "control characters": record("\x00" * 16_384),
    "wide text": record("队列🙂" * 5_000),
    "surrogates": record("\ud800" * 20_000),
    "lines": node([line("l" * 500)] * 100),
    "hits": hits(*["e" * 240] * 200),
    "sessions": Page((evolve(SESSION, title="t" * 900),) * 50, "next", PINNED),
    "attachments": record("text", [BlobPart("image/png", uri="https://example.org/" + "a" * 180)] * 500),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_large_result_is_cut_to_valid_json_that_says_so(kind: str) -> None:
    result = TOO_LARGE[kind]

    text = answer_json(result)
    answer = json.loads(text)

    assert len(text.encode()) <= ANSWER_BYTES
    assert answer["cut"]["shown"] < answer["cut"]["of"] or kind == "attachments"
    assert "call again with a smaller" in answer["cut"]["go_on"]
    assert answer["cursor"] is None, "a cursor would lead past what was cut"
    assert answer.get("complete", False) is False
    if kind != "attachments":
        assert len(text.encode()) > ANSWER_BYTES - 1_100, "what fits is kept"


@pytest.mark.parametrize("kind", [kind for kind in TOO_LARGE if kind != "attachments"])
def test_what_fitting_says_does_fit_and_no_more(kind: str) -> None:
    """The engine reads that much anew, and its answer then goes out whole, with a cursor that goes on after it."""
    result = TOO_LARGE[kind]

    def shortened(count: int) -> Answer:
        if isinstance(result, ZoomResult) and result.text is not None:
            text = result.text.encode(errors="replace" if "\ud800" in result.text else "strict")
            if kind == "surrogates":
                return evolve(result, text="\ufffd" * (count // 3))
            return evolve(result, text=text[:count].decode(errors="ignore"))
        if isinstance(result, ZoomResult):
            return evolve(result, lines=result.lines[:count])
        assert isinstance(result, Page)
        return evolve(result, items=result.items[:count])

    count = fitting(result)

    assert count is not None
    assert fitting(shortened(count)) is None
    assert fitting(shortened(count + 4 if kind != "surrogates" else count + 12)) is not None


@pytest.mark.parametrize("kind", ["text", "hits"])
def test_a_last_page_that_is_read_in_part_has_room_for_its_cursor(kind: str) -> None:
    """It had none while it was whole. Without the room the part was cut, and nothing led to its rest."""
    last = (
        evolve(record("\x01" * 20_000), cursor=None) if kind == "text" else evolve(hits(*["a" * 900] * 50), cursor=None)
    )
    most = (1 << 62) - 1
    cursor = write_cursor(query_digest("a"), most, most, most, most, most)

    count = fitting(last)

    assert count is not None
    part = (
        evolve(last, text="\x01" * count, cursor=cursor, complete=False)
        if isinstance(last, ZoomResult)
        else evolve(last, items=last.items[:count], cursor=cursor)
    )
    assert fitting(part) is None


def test_what_cannot_be_shortened_is_still_answered() -> None:
    endless = evolve(record("text"), turn=evolve(TURN, request="r" * 50_000))

    answer = json.loads(answer_json(endless))

    assert answer == {"cut": {"shown": 0, "of": 4, "unit": "characters", "go_on": "zoom a smaller range"}}
    assert fitting(endless) == 0
    assert json.loads(answer_json(Dates("r" * 40_000, AT, AT, None, PINNED)))["cut"]["go_on"] == "zoom a smaller range"


def test_times_keep_their_offset() -> None:
    assert json.loads(answer_json(Dates("pub:0+1", AT, AT.astimezone(UTC), None, PINNED)))["last_at"].endswith("+00:00")
