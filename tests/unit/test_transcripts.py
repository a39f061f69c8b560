"""Transcripts: what a line must say, what makes a turn, and how turns are called. Files: test_importing.py."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from optchat.core.errors import BadArgument, ImportRejected
from optchat.core.grouping import TranscriptTurn, group_turns
from optchat.core.messages import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.transcripts import (
    MAX_SESSION_CHARACTERS,
    MAX_TURN_CHARACTERS,
    Transcript,
    is_transcript,
    read_note,
    read_transcript,
)

AT = "2026-01-05T12:17:31.459+05:30"
REAL = Path(__file__).parents[3] / "shared" / "data" / "coding-sessions.jsonl.gz"


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "tool_call", "call_id": call_id, "name": "ls", "arguments": arguments}


def result(call_id: str, content: Any = "done") -> dict[str, Any]:
    return {"type": "tool_result", "call_id": call_id, "content": content}


def line(role: str, *parts: dict[str, Any], session: str = "s", **more: Any) -> bytes:
    return json.dumps({"session": session, "at": AT, "role": role, "parts": list(parts)} | more).encode() + b"\n"


def turns_of(*lines: bytes) -> tuple[TranscriptTurn, ...]:
    (session,) = read_transcript(lines).sessions
    return session.turns


def shape(*lines: bytes) -> list[tuple[str, int, bool, str]]:
    return [(turn.turn_id, len(turn.messages), turn.has_request, turn.outcome) for turn in turns_of(*lines)]


# ---- lines ----------------------------------------------------------------------------------------------------------


def test_every_part_is_read_as_given() -> None:
    (turn,) = turns_of(
        line(
            "user",
            text("look \ud800 at\x00this"),
            {"type": "image", "media_type": "image/png", "data": "aGk="},
            {"type": "image", "media_type": "image/png", "uri": "file:///a.png"},
            key="m1",
        ),
        line("assistant", text("yes"), call("c", "{not json")),
        line("tool", result("c") | {"is_error": True, "truncated": True}),
        line("tool", {"type": "report", "name": "tests", "text": "2 failed", "complete": False}),
    )
    assert [message.parts for message in turn.messages] == [
        (
            TextPart("look \ud800 at\x00this"),
            BlobPart("image/png", data=b"hi"),
            BlobPart("image/png", uri="file:///a.png"),
        ),
        (TextPart("yes"), ToolCallPart("c", "ls", "{not json")),
        (ToolResultPart("c", (TextPart("done"),), is_error=True, truncated=True),),
        (ReportPart("tests", "2 failed", complete=False),),
    ]
    assert [message.key for message in turn.messages] == ["m1", None, None, None]


def test_a_result_may_hold_pictures() -> None:
    picture = {"type": "image", "media_type": "image/png", "data": "aGk="}
    (turn,) = turns_of(line("tool", result("c", [text("seen"), picture])))
    assert turn.messages[0].parts == (ToolResultPart("c", (TextPart("seen"), BlobPart("image/png", data=b"hi"))),)


def test_times_keep_their_offset() -> None:
    (turn,) = turns_of(line("user", text("hi")))
    assert turn.messages[0].at is not None
    assert turn.messages[0].at.isoformat() == "2026-01-05T12:17:31.459000+05:30"
    assert turn.messages[0].at.utcoffset() == timedelta(hours=5, minutes=30)


def test_blank_lines_windows_line_ends_a_mark_and_fields_of_the_host_are_passed_over() -> None:
    hello = line("user", text("hi"), model="m", usage={"tokens": 3})
    assert len(turns_of(b"\xef\xbb\xbf" + hello, b"\n", b"  \r\n", hello.rstrip() + b"\r\n")) == 2


def test_sessions_interleave_and_stand_in_the_order_of_their_first_message() -> None:
    transcript = read_transcript(
        [
            line("user", text("1"), session="b"),
            line("user", text("2"), session="a"),
            line("assistant", text("3"), session="b"),
        ]
    )
    assert [(session.key, len(session.turns[0].messages)) for session in transcript.sessions] == [("b", 2), ("a", 1)]


def test_host_summaries_are_counted_never_read() -> None:
    transcript = read_transcript([line("host_summary", {"type": "no such part"}), line("user", text("hi"))])
    assert transcript.skipped == {"host_summary": 1}
    assert transcript.sessions[0].turns[0].turn_id == "import-0"  # it takes no ordinal either


def test_nothing_is_an_empty_transcript() -> None:
    assert read_transcript([]) == read_transcript([b"\n", b" "]) == Transcript(())


def test_a_large_result_comes_back_whole() -> None:
    large = "x€" * 3_000_000
    (turn,) = turns_of(line("tool", result("c", large)))
    assert turn.messages[0].parts == (ToolResultPart("c", (TextPart(large),)),)


def raw(**changes: Any) -> bytes:
    whole: dict[str, Any] = {"session": "s", "at": AT, "role": "user", "parts": [text("hi")]}
    return json.dumps({key: value for key, value in (whole | changes).items() if value is not ...}).encode()


BAD = {
    "cut off": (b'{"session": "s", "at"', "not valid JSON"),
    "two objects": (b"{} {}", "not valid JSON"),
    "a list": (b"[1]", "not a JSON object but a list"),
    "null": (b"null", "not a JSON object but null"),
    "bad UTF-8": (raw()[:-2] + b"\xff", "not UTF-8"),
    "raw surrogate": (raw().replace(b"hi", b"\xed\xa0\x80"), "not UTF-8"),
    "too deep": (b'{"a":' * 100_000, "nested too deep"),
    "huge number": (b'{"a": ' + b"9" * 5_000 + b"}", "a number too long"),
    "no session": (raw(session=...), "no 'session'"),
    "empty session": (raw(session=""), "'session' is ''; give it a name"),
    "long session": (raw(session="s" * (MAX_SESSION_CHARACTERS + 1)), "1 to 500 printable"),
    "surrogate in the session": (raw(session="\ud800"), "1 to 500 printable"),
    "a line break in the session": (raw(session="a\nb"), "1 to 500 printable"),
    "long turn": (raw(turn="t" * (MAX_TURN_CHARACTERS + 1)), "1 to 200 printable"),
    "empty key": (raw(key=""), "'key' is empty"),
    "session is a number": (raw(session=3), "'session' of the message is a number"),
    "no time": (raw(at=...), "no 'at'"),
    "naive time": (raw(at="2026-01-05T12:17:31"), "naive time"),
    "a date": (raw(at="2026-01-05"), "naive time"),
    "no such time": (raw(at="2026-13-05T12:17:31Z"), "is no time"),
    "time is a number": (raw(at=1767615451), "'at' of the message is a number"),
    "before year 1": (raw(at="0001-01-01T00:00:00+01:00"), "outside the years"),
    "fraction in the offset": (raw(at="2026-01-05T12:17:31+01:00:00.5"), "fractions of a second"),
    "no role": (raw(role=...), "no 'role'"),
    "system": (raw(role="system"), "unknown role 'system'"),
    "no parts": (raw(parts=...), "no 'parts'"),
    "empty parts": (raw(parts=[]), "has no parts"),
    "parts as text": (raw(parts="hi"), "'parts' of the message is text"),
    "part as text": (raw(parts=["hi"]), "part 0 is not an object but text"),
    "part without type": (raw(parts=[{}]), "part 0 has no 'type'"),
    "unknown part": (raw(parts=[text("hi"), {"type": "video"}]), "part 1 is of unknown type 'video'"),
    "text is null": (raw(parts=[{"type": "text", "text": None}]), "part 0 has no 'text'"),
    "text is an object": (raw(parts=[{"type": "text", "text": {}}]), "'text' of part 0 is an object"),
    "a user's call": (raw(parts=[call("c")]), "cannot hold a ToolCallPart"),
    "parsed arguments": (
        raw(role="assistant", parts=[call("c") | {"arguments": {}}]),
        "'arguments' of part 0 is an object",
    ),
    "a flag as text": (raw(role="tool", parts=[result("c") | {"is_error": "no"}]), "'is_error' of part 0 is text"),
    "a call in a result": (raw(role="tool", parts=[result("c", [call("d")])]), "neither text nor image"),
    "bad base64": (raw(parts=[{"type": "image", "media_type": "a/b", "data": "a*=="}]), "not base64"),
    "base64 of letters": (raw(parts=[{"type": "image", "media_type": "a/b", "data": "é"}]), "not base64"),
    "data and uri": (raw(parts=[{"type": "image", "media_type": "a/b", "data": "", "uri": "u"}]), "exactly one"),
    "no data": (raw(parts=[{"type": "image", "media_type": "a/b"}]), "exactly one"),
    "unknown end": (raw(end="done"), "unknown 'end' 'done'"),
    "one id twice": (raw(role="assistant", parts=[call("c"), call("c")]), "uses a call id twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_names_its_number_and_reason(name: str) -> None:
    bad, reason = BAD[name]
    with pytest.raises(ImportRejected, match=r"^line 3: ") as raised:
        read_transcript([line("user", text("fine")), b"\n", bad + b"\n", b"never looked at"])
    assert raised.value.line == 3
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


# ---- the same again -------------------------------------------------------------------------------------------------


def test_a_key_again_with_the_same_content_is_the_same_message() -> None:
    once = line("user", text("hi"), key="m")
    later = line("user", text("hi"), key="m", at="2026-02-01T00:00:00Z")
    transcript = read_transcript([once, line("assistant", text("yes")), later])
    assert len(transcript.sessions[0].turns[0].messages) == 2
    assert transcript.skipped == {"redelivered": 1}


def test_keys_are_of_their_session() -> None:
    lines = [line("user", text("a"), session="a", key="m"), line("user", text("b"), session="b", key="m")]
    assert len(read_transcript(lines).sessions) == 2


@pytest.mark.parametrize(
    ("first", "again", "reason"),
    [
        (line("user", text("a"), key="m"), line("user", text("b"), key="m"), "key 'm'"),
        (line("user", text("a"), key="m"), line("assistant", text("a"), key="m"), "key 'm'"),
        (line("assistant", call("c")), line("assistant", call("c", "[]")), "call id 'c'"),
        (line("tool", result("c")), line("tool", result("c", "other")), "call id 'c'"),
    ],
)
def test_other_content_under_a_key_or_a_call_id_of_the_turn_is_refused(first: bytes, again: bytes, reason: str) -> None:
    with pytest.raises(ImportRejected, match=reason) as raised:
        read_transcript([first, again])
    assert raised.value.line == 2


def test_a_call_id_may_be_used_again_in_a_later_turn_and_a_result_may_have_no_call() -> None:
    assert shape(
        line("tool", result("lost")),
        line("user", text("1")),
        line("assistant", call("c")),
        line("tool", result("c", "first")),
        line("user", text("2")),
        line("assistant", call("c", "[]")),
        line("tool", result("c", "second")),
        line("assistant", text("done")),
    ) == [
        ("import-0", 1, False, "interrupted"),
        ("import-1", 3, True, "interrupted"),
        ("import-4", 4, True, "completed"),
    ]


def test_the_same_call_and_result_again_in_a_turn_are_the_same() -> None:
    lines = [line("user", text("1")), line("assistant", call("c")), line("tool", result("c"))]
    transcript = read_transcript([*lines, *lines[1:]])
    assert transcript.skipped == {"redelivered": 2}
    assert len(transcript.sessions[0].turns[0].messages) == 3


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_a_users_message_with_text_begins_a_turn() -> None:
    assert shape(
        line("user", text("1")), line("assistant", text("a")), line("user", text("2")), line("assistant", text("b"))
    ) == [("import-0", 2, True, "completed"), ("import-2", 2, True, "completed")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "media_type": "a/b", "uri": "u"},
        {"type": "report", "name": "ci", "text": "red"},
        {"type": "text", "text": ""},
    ],
)
def test_a_users_message_without_text_joins_the_turn_before_it(part: dict[str, Any]) -> None:
    assert shape(line("user", text("1")), line("user", part), line("assistant", text("a"))) == [
        ("import-0", 3, True, "completed")
    ]


def test_what_comes_before_the_first_request_is_a_turn_without_one() -> None:
    assert shape(
        line("assistant", text("resuming")), line("user", {"type": "image", "media_type": "a/b", "uri": "u"}),
        line("user", text("1")), line("assistant", text("a")),
    ) == [("import-0", 2, False, "interrupted"), ("import-2", 2, True, "completed")]  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [line("assistant", call("c"))],
        [line("assistant", text("let me look"), call("c")), line("tool", result("c"))],
        [line("assistant", text("meanwhile"), call("c"))],
        [line("assistant", call("c")), line("assistant", text("done, I think"))],
    ],
    ids=["no answer", "a call", "an answer before a result", "an answer with a call", "a call that waits"],
)
def test_a_turn_that_is_cut_off_is_interrupted_wherever_it_stands(lines: list[bytes]) -> None:
    cut_off = [line("user", text("1")), *lines]
    after = [line("user", text("2")), line("assistant", text("b"))]
    assert [turn.outcome for turn in turns_of(*cut_off, *after)] == ["interrupted", "completed"]
    assert [turn.outcome for turn in turns_of(*cut_off)] == ["interrupted"]


def test_turns_that_are_named_are_told_by_name() -> None:
    assert shape(
        line("user", text("1"), turn="t1"),
        line("user", text("and quickly"), turn="t1"),
        line("assistant", text("a"), turn="t1"),
        line("user", {"type": "image", "media_type": "a/b", "uri": "u"}, turn="t2"),
        line("assistant", text("b"), turn="t2", end="failed"),
        line("tool", {"type": "report", "name": "ci", "text": "red"}),
        line("user", text("3")),
        line("assistant", text("c"), end="interrupted"),
    ) == [
        ("t1", 3, True, "completed"),
        ("t2", 2, True, "failed"),
        ("import-5", 1, False, "interrupted"),
        ("import-6", 2, True, "interrupted"),
    ]


def test_an_end_is_taken_as_given() -> None:
    assert shape(line("user", text("1"), end="completed")) == [("import-0", 1, True, "completed")]


def test_an_end_may_come_with_the_message_again() -> None:
    assert shape(line("user", text("1"), key="m"), line("user", text("1"), key="m", end="failed")) == [
        ("import-0", 1, True, "failed")
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [line("user", text("1"), turn="t", end="completed"), line("assistant", text("a"), turn="t")],
        [line("user", text("1"), turn="t"), line("user", text("2"), turn="u"), line("assistant", text("a"), turn="t")],
        [line("user", text("1"), turn="import-1"), line("user", text("2"))],
        [line("user", text("1"), key="m", end="failed"), line("user", text("1"), key="m", end="completed")],
        [line("user", text("1"), key="m"), line("user", text("2")), line("user", text("1"), key="m", end="failed")],
    ],
    ids=["after its end", "after another", "under our name", "two ends", "a late end"],
)
def test_a_turn_that_contradicts_itself_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(ImportRejected, match="turn") as raised:
        read_transcript(lines)
    assert raised.value.line == len(lines)


def test_a_file_that_grows_names_what_it_held_as_before() -> None:
    lines = [
        line("assistant", text("0")), line("user", text("1")), line("host_summary", text("…")),
        line("assistant", text("a")),
        line("user", text("2"), key="m"), line("user", text("2"), key="m"), line("user", text("3")),
    ]  # fmt: skip
    whole = [turn.turn_id for turn in turns_of(*lines)]
    for end in range(1, len(lines)):
        part = [turn.turn_id for turn in turns_of(*lines[:end])]
        assert part == whole[: len(part)]


def test_group_turns_follows_the_same_rules_and_blames_the_argument() -> None:
    messages = [
        HostMessage.user("1"),
        HostMessage.assistant("a"),
        HostMessage("user", (TextPart("2"),), outcome="failed"),
    ]
    assert [(turn.turn_id, turn.outcome) for turn in group_turns(messages)] == [
        ("import-0", "completed"),
        ("import-2", "failed"),
    ]
    with pytest.raises(BadArgument, match="other content"):
        group_turns([HostMessage.user("1", key="m"), HostMessage.user("2", key="m")])


# ---- notes ----------------------------------------------------------------------------------------------------------


def test_what_does_not_open_an_object_is_a_note() -> None:
    assert is_transcript(b"\xef\xbb\xbf \n\r\n {")
    assert is_transcript(b"\n")
    assert not is_transcript(b"# Notes")
    assert not is_transcript(b"\xff\xfe{\x00")


def test_a_note_is_its_text_and_the_same_text_is_the_same_turn() -> None:
    note = read_note(b"\xef\xbb\xbfwe chose the broker\r\n")
    assert note.text == "we chose the broker\r\n"
    assert note == read_note(note.text.encode())
    assert note.turn_id != read_note(b"other").turn_id


@pytest.mark.parametrize(
    ("data", "at_line", "reason"),
    [
        (b"fine\nb\xe9d", 2, "not UTF-8"),
        (b"\xed\xa0\x80", 1, "not UTF-8 text"),
        ("text".encode("utf-16"), 1, "not UTF-8 text"),
        (b" \n", 0, "has no text"),
        (b'[{"role": "user"}]', 1, "one object a line"),
    ],
)
def test_what_is_no_text_is_refused_with_advice(data: bytes, at_line: int, reason: str) -> None:
    with pytest.raises(ImportRejected, match=reason) as raised:
        read_note(data)
    assert raised.value.line == at_line


def test_text_that_begins_like_a_list_is_still_a_note() -> None:
    assert read_note(b"[1, 2]").text == "[1, 2]"
    assert read_note(b"[draft] use the broker").text == "[draft] use the broker"


# ---- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/coding-sessions.jsonl.gz is not beside the project")
def test_the_real_sessions() -> None:
    with gzip.open(REAL) as file:
        lines = list(file)
    transcript = read_transcript(lines)
    turns = [turn for session in transcript.sessions for turn in session.turns]
    assert len(transcript.sessions) == 40
    assert sum(len(turn.messages) for turn in turns) == 3026
    assert transcript.skipped == {"host_summary": 1}
    assert sum(turn.has_request for turn in turns) == 195
    assert [turn.has_request for session in transcript.sessions for turn in session.turns[1:]].count(False) == 0
    kept = [message.at.isoformat() for message in transcript.sessions[0].turns[0].messages if message.at]
    assert kept == [json.loads(line)["at"].replace("Z", "000+00:00") for line in lines[: len(kept)]]
