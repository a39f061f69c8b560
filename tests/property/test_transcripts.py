"""
Laws of the transcript reader.

1. Whatever the bytes, it answers or raises ImportRejected with a line of the file.
2. What it answers holds every message that was written, in order, each in exactly one turn.
3. A prefix of a file has the turns of the whole, up to its last one.
4. What is written is read back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from attrs import evolve, fields
from hypothesis import assume, given, strategies as st

from optchat.core.errors import ImportRejected
from optchat.core.messages import HostMessage, TextPart
from optchat.core.terms import Outcome
from optchat.core.transcripts import Transcript, is_transcript, read_note, read_transcript, write_line
from optchat.testing.strategies import host_messages

A = TypeVar("A")
R = TypeVar("R")

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
times = st.sampled_from(["2026-01-05T12:17:31Z", "1999-12-31T23:59:59.999999-11:30", "2026-01-05T00:00:00+05:45"])
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


def answer_or_refusal(read: Callable[[A], R], argument: A) -> R | ImportRejected:
    try:
        return read(argument)
    except ImportRejected as error:
        return error


def words(*names: str) -> st.SearchStrategy[Any]:
    return st.sampled_from(names) | json_values


# Almost right: every field of the format, with values that are right, wrong, or absent.
almost_parts = st.fixed_dictionaries(
    {"type": words("text", "tool_call", "tool_result", "image", "report")},
    optional={
        "text": json_values, "call_id": words("a", "b"), "name": json_values, "arguments": json_values,
        "content": json_values | st.lists(st.deferred(lambda: almost_parts), max_size=2), "is_error": json_values,
        "media_type": words("image/png"), "data": words("aGk=", "a"), "uri": json_values, "complete": json_values,
    },
)  # fmt: skip
almost_lines = st.fixed_dictionaries(
    {"session": words("a", "b"), "at": times | json_values, "role": words("user", "assistant", "tool", "host_summary")},
    optional={
        "parts": st.lists(almost_parts, max_size=3) | json_values,
        "key": words("k", "l"), "turn": words("t", "u"), "end": words("completed", "failed"),
    },
).map(lambda value: json.dumps(value).encode())  # fmt: skip


@given(
    st.lists(
        st.binary(max_size=60) | almost_lines | json_values.map(lambda value: json.dumps(value).encode()), max_size=5
    )
)
def test_hostile_lines_are_read_or_refused_with_their_number(lines: list[bytes]) -> None:
    answer = answer_or_refusal(read_transcript, lines)
    if isinstance(answer, ImportRejected):
        assert 1 <= answer.line <= len(lines)
        assert str(answer).startswith(f"line {answer.line}: ")
        assert str(answer).encode()  # can be printed
    else:
        assert all(turn.messages for session in answer.sessions for turn in session.turns)


@given(st.binary(max_size=200))
def test_hostile_files_are_text_or_refused(data: bytes) -> None:
    if is_transcript(data):
        return
    answer = answer_or_refusal(read_note, data)
    if isinstance(answer, ImportRejected):
        assert 0 <= answer.line <= data.count(b"\n") + 1
    else:
        assert answer.text.encode() in (data, data.removeprefix(b"\xef\xbb\xbf"))


@st.composite
def good_lines(draw: st.DrawFn) -> list[bytes]:
    lines: list[bytes] = []
    for number in range(draw(st.integers(1, 12))):
        role = draw(st.sampled_from(["user", "assistant", "tool", "host_summary"]))
        part: dict[str, Any] = {"type": "text", "text": draw(any_text)}
        if role == "tool":
            part = {"type": "tool_result", "call_id": f"c{number}", "content": draw(any_text)}
        elif role == "assistant" and draw(st.booleans()):
            part = {
                "type": "tool_call",
                "call_id": f"c{number + draw(st.integers(0, 2))}x{number}",
                "name": "f",
                "arguments": "",
            }
        line: dict[str, Any] = {
            "session": draw(st.sampled_from("ab")),
            "at": draw(times),
            "role": role,
            "parts": [part],
        }
        if draw(st.integers(0, 3)) == 0:
            line["end"] = draw(st.sampled_from(["completed", "interrupted", "failed"]))
        lines.append(json.dumps(line).encode())
    return lines


@given(good_lines())
def test_every_message_stands_in_one_turn_in_order(lines: list[bytes]) -> None:
    transcript = read_transcript(lines)
    said: dict[str, list[str]] = {}
    for line in map(json.loads, lines):
        if line["role"] != "host_summary":
            said.setdefault(line["session"], []).append(line["role"])
    assert {
        session.key: [message.role for turn in session.turns for message in turn.messages]
        for session in transcript.sessions
    } == said
    for session in transcript.sessions:
        assert len({turn.turn_id for turn in session.turns}) == len(session.turns)


@given(good_lines(), st.data())
def test_a_prefix_has_the_turns_of_the_whole(lines: list[bytes], data: st.DataObject) -> None:
    def ids(transcript: Transcript) -> dict[str, list[str]]:
        return {session.key: [turn.turn_id for turn in session.turns] for session in transcript.sessions}

    whole = ids(read_transcript(lines))
    for key, part in ids(read_transcript(lines[: data.draw(st.integers(0, len(lines)))])).items():
        assert part == whole[key][: len(part)]


@given(host_messages(), st.sampled_from(["completed", "failed", None]), st.booleans())
def test_what_is_written_is_read_back(message: HostMessage, outcome: Outcome | None, note: bool) -> None:
    said = evolve(message, at=message.at or datetime(2026, 1, 5, tzinfo=UTC), turn_id="t", outcome=outcome)
    note = note and all(isinstance(part, TextPart) for part in said.parts)
    assume(said.parts and _is_whole(said))
    (session,) = read_transcript([write_line("a", said, note=note)]).sessions
    (turn,) = session.turns
    (read,) = turn.messages
    assert read == (evolve(said, role="user") if note else said)
    assert turn.notes == ({0} if note else set())


def _is_whole(message: HostMessage) -> bool:
    """Whether no two halves of a character stand side by side: JSON would join them."""
    texts = [value for part in message.parts for value in texts_of(part)]
    return all(json.loads(json.dumps(text)) == text for text in texts)


def texts_of(part: Any) -> list[str]:
    values = [getattr(part, field.name) for field in fields(type(part))]
    inner = [value for value in values if isinstance(value, tuple)]
    return [value for value in values if isinstance(value, str)] + [
        text for pieces in inner for piece in pieces for text in texts_of(piece)
    ]
