"""
The transcript format (§ 3): a history as lines of JSON, read whole before any of it is stored.

Decides: what a line must say, what makes a turn, how a turn ended, and what turns are called, so that a file that has
grown names what it held before just as it did.
Refuses to know: files, compression, and what is stored already.

One JSON object a line is one message, in order within its session; sessions may interleave. Its fields: ``session``,
``at`` (ISO 8601 with offset), ``role`` (``user``, ``assistant``, ``tool``, ``host_summary``), ``parts``; and optional
``key``, ``turn``, ``end``. Fields beyond these are a host's own and are passed over.

Turns: ``turn`` names a message's turn. Without it a user's message with text begins one, and anything else joins the
turn before it; what comes before a session's first request is a turn without one, and so is what follows an ``end``.
A turn's ``end`` is taken as given. Otherwise it is ``completed`` under the rule of a live turn: its last message is an
assistant's text, and no call waits for its result. Else it was cut off: ``interrupted``.

The first bad line refuses the file. So there is nothing here that the ledger would refuse later, half a file in: a key,
or a call id within a turn, that comes again with other content is found here.
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
from optchat.core.messages import BlobPart, HostMessage, Part, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.terms import OUTCOMES, ROLES, Outcome, Role

SUMMARY_ROLE: Final = "host_summary"
# What the façade takes: a file that names more could be stored by half.
MAX_SESSION_CHARACTERS: Final = 500
MAX_TURN_CHARACTERS: Final = 200

_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n\v\f"


@frozen
class TranscriptTurn:
    """A turn as a file tells it: its messages in order, whether the first is its request, and how it ended."""

    turn_id: str
    messages: tuple[HostMessage, ...]
    has_request: bool
    outcome: Outcome


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
    sessions: dict[str, _Turns] = {}
    skipped: dict[str, int] = {}
    for number, raw in enumerate(lines, start=1):
        line = (raw.removeprefix(_BOM) if number == 1 else raw).strip(_BLANK)
        if not line:
            continue
        try:
            key, message = _read_line(line)
            if message is None:
                reason = SUMMARY_ROLE
            elif sessions.setdefault(key, _Turns()).add(message):
                continue
            else:
                reason = "redelivered"
        except (_Refused, BadArgument) as error:
            raise ImportRejected(f"line {number}: {error}", line=number) from None
        skipped[reason] = skipped.get(reason, 0) + 1
    return Transcript(tuple(TranscriptSession(key, turns.finished()) for key, turns in sessions.items()), skipped)


# ---- turns ----------------------------------------------------------------------------------------------------------


def group_turns(messages: Iterable[HostMessage]) -> tuple[TranscriptTurn, ...]:
    """
    One session's messages as turns, by the rules of the transcript format.

    ``turn_id`` and ``outcome`` of a message stand for ``turn`` and ``end``. A message that comes again is dropped.

    Raises:
        BadArgument: a turn that goes on after another began or after its end, or a key or call id with other content.
    """
    turns = _Turns()
    for message in messages:
        try:
            turns.add(message)
        except _Refused as error:
            raise BadArgument(str(error)) from None
    return turns.finished()


class _Turn:
    """A turn that still grows."""

    def __init__(self, turn_id: str, has_request: bool) -> None:
        self.turn_id = turn_id
        self.has_request = has_request
        self.messages: list[HostMessage] = []
        self.end: Outcome | None = None
        # What event keys are made of where the host has no key: (kind, call id) is unique in its turn.
        self.calls: dict[tuple[type[Part], str], HostMessage] = {}

    def finished(self) -> TranscriptTurn:
        return TranscriptTurn(self.turn_id, tuple(self.messages), self.has_request, self.end or self._outcome())

    def _outcome(self) -> Outcome:
        last = self.messages[-1]
        answered = last.role == "assistant" and any(isinstance(part, TextPart) for part in last.parts)
        pending: set[str] = set()
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    pending.add(part.call_id)
                elif isinstance(part, ToolResultPart):
                    pending.discard(part.call_id)
        return "completed" if answered and not pending else "interrupted"


class _Turns:
    """One session while it is read."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._ids: set[str] = set()
        self._count = 0
        self._keys: dict[str, tuple[HostMessage, _Turn]] = {}

    def finished(self) -> tuple[TranscriptTurn, ...]:
        return tuple(turn.finished() for turn in self._turns)

    def add(self, message: HostMessage) -> bool:
        """Put a message into its turn; False if it was there already."""
        if message.key is not None and message.key in self._keys:
            known, turn = self._keys[message.key]
            if not _same(known, message):
                raise _Refused(
                    f"key {_shown(message.key)} was used before with other content; give each message its own key"
                )
            self._end(turn, message.outcome)
            return False
        turn = self._turn_of(message)
        if self._repeats_calls(turn, message):
            self._end(turn, message.outcome)
            return False
        if turn is not self._current:
            self._turns.append(turn)
            self._ids.add(turn.turn_id)
        turn.messages.append(message)
        if message.key is None:
            turn.calls.update((call, message) for call in _calls(message))
        else:
            self._keys[message.key] = (message, turn)
        self._count += 1
        self._end(turn, message.outcome)
        return True

    @property
    def _current(self) -> _Turn | None:
        return self._turns[-1] if self._turns else None

    def _turn_of(self, message: HostMessage) -> _Turn:
        """The turn that a message belongs to: the current one, or a new one that is not in the list yet."""
        current, named = self._current, message.turn_id
        if named is None:
            request = message.role == "user" and any(isinstance(part, TextPart) and part.text for part in message.parts)
            if current is not None and current.end is None and not request:
                return current
            # The ordinal of its first message: what is appended to the file later cannot change it.
            named = f"import-{self._count}"
        else:
            if current is not None and current.turn_id == named:
                if current.end is not None:
                    raise _Refused(
                        f"turn {_shown(named)} has ended as {current.end}; put 'end' on the turn's last message only"
                    )
                return current
            # Named, so no text is needed to tell that it begins: an image alone can be a request.
            request = message.role == "user" and any(isinstance(part, (TextPart, BlobPart)) for part in message.parts)
        if named in self._ids:
            raise _Refused(
                f"turn {_shown(named)} goes on after another turn began; keep a turn's messages together, "
                "or leave 'turn' out of what came late"
            )
        return _Turn(named, request)

    @staticmethod
    def _repeats_calls(turn: _Turn, message: HostMessage) -> bool:
        if message.key is not None:
            return False
        calls = _calls(message)
        if len(set(calls)) < len(calls):
            raise _Refused("one message uses a call id twice; give each call its own id")
        for call in calls:
            known = turn.calls.get(call)
            if known is None:
                continue
            if not _same(known, message):
                raise _Refused(
                    f"call id {_shown(call[1])} was used before in this turn with other content; "
                    "give each call its own id, or each message a key"
                )
            return True
        return False

    def _end(self, turn: _Turn, outcome: Outcome | None) -> None:
        if outcome is None or turn.end == outcome:
            return
        if turn.end is not None or turn is not self._current:
            raise _Refused(
                f"turn {_shown(turn.turn_id)} ended before this line; put 'end' on the turn's last message only"
            )
        turn.end = outcome


def _calls(message: HostMessage) -> list[tuple[type[Part], str]]:
    return [(type(part), part.call_id) for part in message.parts if isinstance(part, (ToolCallPart, ToolResultPart))]


def _same(one: HostMessage, other: HostMessage) -> bool:
    # Not the time: a host that delivers again may stamp it anew, and what was said is still the same.
    return one.role == other.role and one.parts == other.parts


# ---- one line -------------------------------------------------------------------------------------------------------


def _read_line(line: bytes) -> tuple[str, HostMessage | None]:
    """A line's session, and its message; None for a host's summary, which is no source."""
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
        return session, None
    if not _is_role(role):
        raise _Refused(
            f"unknown role {_shown(role)}; use 'user', 'assistant', 'tool' or 'host_summary', "
            "and leave system messages out"
        )
    message = HostMessage(
        role,
        _parts(value),
        key=None if value.get("key") is None else _key(value),
        at=at,
        turn_id=None if value.get("turn") is None else _name(value, "turn", MAX_TURN_CHARACTERS),
        outcome=_outcome(value),
    )
    return session, message


def _time(source: Mapping[str, object]) -> datetime:
    written = _text(source, "at", "the message")
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise _Refused(f"'at' is no time: {_shown(written)}; write ISO 8601, as 2026-01-05T12:17:31+01:00") from None
    offset = at.utcoffset()
    if offset is None:
        raise _Refused(f"'at' is a naive time: {_shown(written)}; write its offset, as 2026-01-05T12:17:31+01:00 or …Z")
    if offset.microseconds:
        raise _Refused(f"'at' has an offset with fractions of a second: {_shown(written)}; write whole seconds")
    try:
        at.astimezone(UTC)
    except OverflowError:
        raise _Refused(f"'at' lies outside the years 1 to 9999 in UTC: {_shown(written)}; correct it") from None
    return at


def _outcome(source: Mapping[str, object]) -> Outcome | None:
    if source.get("end") is None:
        return None
    end = _text(source, "end", "the message")
    for outcome in OUTCOMES:
        if end == outcome:
            return outcome
    raise _Refused(f"unknown 'end' {_shown(end)}; use 'completed', 'interrupted' or 'failed'")


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
                f"{of} is of unknown type {_shown(kind)}; use 'text', 'tool_call', 'tool_result', 'image' or 'report'"
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
        raise _Refused(f"{name!r} is {_shown(value)}; give it a name of 1 to {most} printable characters")
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


def _shown(text: str) -> str:
    """Foreign text in a message: short, and on one line."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
