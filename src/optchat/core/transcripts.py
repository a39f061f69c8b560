"""
The transcript format (§ 3): a history as lines of JSON, read whole before any of it is stored.

Decides: what a line must say, and how one is written. Refuses to know: files, compression, what is stored already, and
what makes a turn (:mod:`optchat.core.grouping`: ``turn`` names a message's turn, ``end`` on its last message says how
it ended).

One JSON object a line is one message, in order within its session; sessions may interleave. Its fields: ``session``,
``at`` (ISO 8601 with offset), ``role`` (``user``, ``assistant``, ``tool``, ``note``, ``host_summary``), ``parts``; and
optional ``key``, ``turn``, ``end``. Fields beyond these are a host's own and are passed over. What is written here is
read back as it was, but for two halves of a character that stand side by side: JSON cannot keep them apart.

The first bad line refuses the file. So there is nothing here that the ledger would refuse later, half a file in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeGuard, cast

from attrs import field, frozen

from optchat.core.errors import BadArgument, ImportRejected
from optchat.core.grouping import TranscriptTurn, Turns, shown
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.terms import OUTCOMES, ROLES, Outcome, Role

SUMMARY_ROLE: Final = "host_summary"
NOTE_ROLE: Final = "note"  # text that is kept as a note; in a list of messages no role stands for one
# What the façade takes: a file that names more could be stored by half.
MAX_SESSION_CHARACTERS: Final = 500
MAX_TURN_CHARACTERS: Final = 200

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n\v\f"


@frozen
class TranscriptSession:
    """One conversation under its host's key."""

    key: str
    turns: tuple[TranscriptTurn, ...]


@frozen
class Transcript:
    """
    A whole file.

    Sessions stand in the order of their first message. ``skipped`` counts what is no source, by reason.
    """

    sessions: tuple[TranscriptSession, ...]
    skipped: Mapping[str, int] = field(factory=dict[str, int])


@frozen
class Note:
    """A file of plain text. ``turn_id`` follows from the text: the same text again is the same turn."""

    text: str
    turn_id: str


class _Refused(Exception):
    """What is wrong with a line, in words; its number is added where it is known."""


# ---- what a file is -------------------------------------------------------------------------------------------------


def is_transcript(data: bytes) -> bool:
    """
    Whether a file that begins so is a transcript: its first byte that is not blank opens a JSON object.

    Anything else is plain text, a note. A file without any such byte is a transcript of nothing.
    """
    head = data.removeprefix(_BOM).lstrip(_BLANK)
    return not head or head.startswith(b"{")


def read_note(data: bytes) -> Note:
    """
    Plain text as a note; a byte-order mark at its front is not part of it.

    Raises:
        ImportRejected: not UTF-8 (lone surrogates included), nothing but blanks, or a JSON list of messages, which
            would otherwise be remembered as one long text.
    """
    try:
        text = data.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ImportRejected(
            f"line {line}: not UTF-8 text (byte {error.start} of the file); convert it and import it again",
            line=line,
        ) from None
    if not text.strip():
        raise ImportRejected("the file has no text; give one that does")
    if text.lstrip().startswith("[") and _is_message_list(text):
        raise ImportRejected(
            "line 1: a JSON list of messages is not the transcript format; write one object a line, without brackets",
            line=1,
        )
    return Note(text, f"import-{hashlib.sha256(text.encode()).hexdigest()[:16]}")


def _is_message_list(text: str) -> bool:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return False
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(_is_object(item) and "role" in item for item in items)


def read_transcript(lines: Iterable[bytes]) -> Transcript:
    """
    Read a transcript, whole.

    Args:
        lines: the file's lines, ended by a line feed or not. Blank lines count but say nothing.

    Returns:
        Every session with its turns. ``skipped`` counts ``host_summary`` lines, and as ``redelivered`` messages that
        come again under their key, or under their call id within a turn.

    Raises:
        ImportRejected: with the number of the first bad line, counted from 1, and the reason.
    """
    sessions: dict[str, Turns] = {}
    skipped: dict[str, int] = {}
    for number, raw in enumerate(lines, start=1):
        line = (raw.removeprefix(_BOM) if number == 1 else raw).strip(_BLANK)
        if not line:
            continue
        try:
            key, message, note = _read_line(line)
            if message is None:
                reason = SUMMARY_ROLE
            elif sessions.setdefault(key, Turns()).add(message, note=note):
                continue
            else:
                reason = "redelivered"
        except (_Refused, BadArgument) as error:
            raise ImportRejected(f"line {number}: {error}", line=number) from None
        skipped[reason] = skipped.get(reason, 0) + 1
    return Transcript(tuple(TranscriptSession(key, turns.finished()) for key, turns in sessions.items()), skipped)


# ---- one line -------------------------------------------------------------------------------------------------------


def _read_line(line: bytes) -> tuple[str, HostMessage | None, bool]:
    """A line's session, its message (None for a host's summary, which is no source), and whether that is a note."""
    try:
        value: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Refused(f"not UTF-8 text (byte {error.start} of the line); convert the file to UTF-8") from None
    except RecursionError:
        raise _Refused("JSON nested too deep; a message needs no more than a few levels") from None
    except json.JSONDecodeError as error:
        raise _Refused(f"not valid JSON ({error.msg}, column {error.colno}); write one whole object a line") from None
    except ValueError:  # an integer of more digits than Python reads
        raise _Refused("not valid JSON (a number too long to read); write it as text") from None
    if not _is_object(value):
        raise _Refused(f"not a JSON object but {_named(value)}; write one object a line")
    session = _name(value, "session", MAX_SESSION_CHARACTERS)
    at = _time(value)
    role = _text(value, "role", "the message")
    if role == SUMMARY_ROLE:
        return session, None, False
    note, parts = role == NOTE_ROLE, _parts(value)
    if note and not all(isinstance(part, TextPart) for part in parts):
        raise _Refused("a note holds something else than text; give that the role of whoever said it")
    if note:
        role = "user"
    if not _is_role(role):
        raise _Refused(
            f"unknown role {shown(role)}; use 'user', 'assistant', 'tool', 'note' or 'host_summary', "
            "and leave system messages out"
        )
    message = HostMessage(
        role,
        parts,
        key=None if value.get("key") is None else _key(value),
        at=at,
        turn_id=None if value.get("turn") is None else _name(value, "turn", MAX_TURN_CHARACTERS),
        outcome=_outcome(value),
    )
    return session, message, note


def _time(source: Mapping[str, object]) -> datetime:
    written = _text(source, "at", "the message")
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise _Refused(f"'at' is no time: {shown(written)}; write ISO 8601, as 2026-01-05T12:17:31+01:00") from None
    offset = at.utcoffset()
    if offset is None:
        raise _Refused(f"'at' is a naive time: {shown(written)}; write its offset, as 2026-01-05T12:17:31+01:00 or …Z")
    if offset.microseconds:
        raise _Refused(f"'at' has an offset with fractions of a second: {shown(written)}; write whole seconds")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise _Refused(f"'at' lies outside the years 1 to 9999 in UTC: {shown(written)}; correct it") from None
    return at


def _outcome(source: Mapping[str, object]) -> Outcome | None:
    if source.get("end") is None:
        return None
    end = _text(source, "end", "the message")
    for outcome in OUTCOMES:
        if end == outcome:
            return outcome
    raise _Refused(f"unknown 'end' {shown(end)}; use 'completed', 'interrupted' or 'failed'")


def _parts(source: Mapping[str, object]) -> tuple[Part, ...]:
    listed = _list(source, "parts", "the message")
    if not listed:
        raise _Refused("the message has no parts; leave the line out, or give it a text")
    return tuple(_part(item, f"part {number}") for number, item in enumerate(listed))


def _part(item: object, of: str) -> Part:
    if not _is_object(item):
        raise _Refused(f'{of} is not an object but {_named(item)}; write it as {{"type": "text", "text": …}}')
    kind = _text(item, "type", of)
    match kind:
        case "text":
            return TextPart(_text(item, "text", of))
        case "tool_call":
            return ToolCallPart(_text(item, "call_id", of), _text(item, "name", of), _text(item, "arguments", of))
        case "tool_result":
            call_id, content = _text(item, "call_id", of), _content(item, of)
            return ToolResultPart(
                call_id, content, _flag(item, "is_error", of, False), _flag(item, "truncated", of, False)
            )
        case "image":
            return _image(item, of)
        case "report":
            return ReportPart(_text(item, "name", of), _text(item, "text", of), _flag(item, "complete", of, True))
        case _:
            raise _Refused(
                f"{of} is of unknown type {shown(kind)}; use 'text', 'tool_call', 'tool_result', 'image' or 'report'"
            )


def _content(source: Mapping[str, object], of: str) -> tuple[TextPart | BlobPart, ...]:
    """A result's content: text, or as tools with pictures answer, a list of text and image parts."""
    if not isinstance(source.get("content"), list):
        return (TextPart(_text(source, "content", of)),)
    pieces: list[TextPart | BlobPart] = []
    for number, item in enumerate(_list(source, "content", of)):
        piece = _part(item, f"{of}, content {number}")
        if not isinstance(piece, (TextPart, BlobPart)):
            raise _Refused(f"{of}, content {number} is neither text nor image; a result holds nothing else")
        pieces.append(piece)
    return tuple(pieces)


def _image(source: Mapping[str, object], of: str) -> BlobPart:
    media_type = _text(source, "media_type", of)
    has_data, has_uri = source.get("data") is not None, source.get("uri") is not None
    if has_data == has_uri:
        raise _Refused(f"{of} needs exactly one of 'data' and 'uri'; give the bytes in base64, or where they are")
    if has_uri:
        return BlobPart(media_type, uri=_text(source, "uri", of))
    try:
        return BlobPart(media_type, data=base64.b64decode(_text(source, "data", of), validate=True))
    except (binascii.Error, ValueError):
        raise _Refused(f"'data' of {of} is not base64; encode the bytes without line breaks") from None


# ---- fields ---------------------------------------------------------------------------------------------------------


def _text(source: Mapping[str, object], name: str, of: str) -> str:
    value = source.get(name)
    if isinstance(value, str):
        return value
    if value is None:
        raise _Refused(f"{of} has no {name!r}; add it")
    raise _Refused(f"{name!r} of {of} is {_named(value)}; write it as text")


def _name(source: Mapping[str, object], name: str, most: int) -> str:
    value = _text(source, name, "the message")
    if not 0 < len(value) <= most or not value.isprintable():
        raise _Refused(f"{name!r} is {shown(value)}; give it a name of 1 to {most} printable characters")
    return value


def _key(source: Mapping[str, object]) -> str:
    value = _text(source, "key", "the message")
    if not value:
        raise _Refused("'key' is empty; leave it out, or give the host's id of the message")
    return value


def _flag(source: Mapping[str, object], name: str, of: str, default: bool) -> bool:
    value = source.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise _Refused(f"{name!r} of {of} is {_named(value)}; write true or false")


def _list(source: Mapping[str, object], name: str, of: str) -> list[object]:
    value = source.get(name)
    if isinstance(value, list):
        return cast("list[object]", value)
    if value is None:
        raise _Refused(f"{of} has no {name!r}; add it")
    raise _Refused(f"{name!r} of {of} is {_named(value)}; write it as a list")


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)  # JSON has no other keys than text


def _is_role(text: str) -> TypeGuard[Role]:
    return text in ROLES


def _named(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


# ---- writing --------------------------------------------------------------------------------------------------------


def write_line(session: str, message: HostMessage, *, note: bool = False) -> bytes:
    """
    A message as a line of the format, its line feed included.

    Args:
        session: its host's key.
        message: with its time, its turn, and on the turn's last message its outcome.
        note: its texts are notes.
    """
    assert message.at is not None, "what is written has its time"
    line: dict[str, object] = {
        "session": session,
        "at": message.at.isoformat(),
        "role": NOTE_ROLE if note else message.role,
        "parts": [_written(part) for part in message.parts],
        "key": message.key,
        "turn": message.turn_id,
        "end": message.outcome,
    }
    said = {name: value for name, value in line.items() if value is not None}
    return json.dumps(said, separators=(",", ":")).encode("ascii") + b"\n"


def _written(part: Part) -> dict[str, object]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case BlobPart(media_type, None, uri):
            return {"type": "image", "media_type": media_type, "uri": uri}
        case BlobPart(media_type, data, _):
            return {"type": "image", "media_type": media_type, "data": base64.b64encode(data or b"").decode("ascii")}
        case ToolCallPart(call_id, name, arguments):
            return {"type": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}
        case ReportPart(name, text, complete):
            return {"type": "report", "name": name, "text": text, "complete": complete}
        case ToolResultPart(call_id, content, is_error, truncated):
            only = content[0] if len(content) == 1 else None
            shown_content = only.text if isinstance(only, TextPart) else [_written(piece) for piece in content]
            flags = {"is_error": is_error, "truncated": truncated}
            said: dict[str, object] = {"type": "tool_result", "call_id": call_id, "content": shown_content}
            return said | {name: True for name, value in flags.items() if value}
