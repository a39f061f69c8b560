"""
The neutral message model (§ 3).

Decides: what a finalized message is: a role and parts, checked when they are made.
Refuses to know: any host's format, and where messages are kept.

There is no reasoning part and no system role, on purpose: what cannot be written down cannot be retained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeAlias

from attrs import Attribute, field, frozen

from optchat.core.errors import BadArgument
from optchat.core.terms import OUTCOMES, Outcome, Role


def _text(instance: object, attribute: Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise BadArgument(
            f"{type(instance).__name__}.{attribute.name} must be text, not {type(value).__name__}; decode it first"
        )


def _flag(instance: object, attribute: Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise BadArgument(
            f"{type(instance).__name__}.{attribute.name} is True or False, not {type(value).__name__};"
            f" leave it out for {attribute.default}"
        )


def _aware(instance: object, _attribute: Attribute[datetime | None], value: datetime | None) -> None:
    if value is not None and value.utcoffset() is None:
        raise BadArgument(f"{type(instance).__name__}.at is a naive time; give it an offset, as datetime.now(UTC) has")


@frozen
class TextPart:
    """Text as it was said."""

    text: str = field(validator=_text)


@frozen
class BlobPart:
    """Image, audio, file; exactly one of data and uri."""

    media_type: str = field(validator=_text)
    data: bytes | None = None
    uri: str | None = None

    def __attrs_post_init__(self) -> None:
        if (self.data is None) == (self.uri is None):
            raise BadArgument("a BlobPart has exactly one of data and uri; give the bytes, or where they are")
        if not isinstance(self.data, (bytes, type(None))):
            raise BadArgument(f"BlobPart.data is bytes, not {type(self.data).__name__}; decode it first")
        if not isinstance(self.uri, (str, type(None))):
            raise BadArgument(f"BlobPart.uri is text, not {type(self.uri).__name__}; decode it first")


@frozen
class ToolCallPart:
    """A call as the model made it; ``arguments`` is JSON text as produced, valid or not."""

    call_id: str = field(validator=_text)
    name: str = field(validator=_text)
    arguments: str = field(validator=_text)


# Named functions, as type checkers cannot see through the class tuple used as a converter.
def _content_tuple(content: Iterable[TextPart | BlobPart]) -> tuple[TextPart | BlobPart, ...]:
    return _checked(tuple(content))


def _checked(parts: tuple[TextPart | BlobPart, ...]) -> tuple[TextPart | BlobPart, ...]:
    for part in parts:
        if not isinstance(part, (TextPart, BlobPart)):
            raise BadArgument(f"content is text, TextPart or BlobPart, not {type(part).__name__}; convert it first")
    return parts


def _part_tuple(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(parts)


@frozen
class ToolResultPart:
    """What a tool answered; ``truncated`` says that the host had already cut it."""

    call_id: str = field(validator=_text)
    content: tuple[TextPart | BlobPart, ...] = field(converter=_content_tuple)
    is_error: bool = field(default=False, validator=_flag)
    truncated: bool = field(default=False, validator=_flag)


@frozen
class ReportPart:
    """A subagent's or a background job's report; ``complete=False`` if only a preview of it is known."""

    name: str = field(validator=_text)
    text: str = field(validator=_text)
    complete: bool = field(default=True, validator=_flag)


Content: TypeAlias = str | Sequence[TextPart | BlobPart]
Part: TypeAlias = TextPart | BlobPart | ToolCallPart | ToolResultPart | ReportPart

_PARTS = (TextPart, BlobPart, ToolCallPart, ToolResultPart, ReportPart)
# A tool answers, and answers only; a user never calls. A report may come in any voice that carries it.
_ALLOWED: dict[str, tuple[type[object], ...]] = {
    "user": (TextPart, BlobPart, ReportPart),
    "assistant": (TextPart, BlobPart, ToolCallPart, ReportPart),
    "tool": (ToolResultPart, ReportPart),
}


def content_parts(content: Content) -> tuple[TextPart | BlobPart, ...]:
    """Text, or a sequence of text and blobs, as parts."""
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, Iterable):
        raise BadArgument(f"content is text, TextPart or BlobPart, not {type(content).__name__}; convert it first")
    return _checked(tuple(content))


@frozen
class HostMessage:
    """
    One finalized message. No reasoning part and no system role, on purpose.

    ``key`` is the host's id, only if it is unique in the session and stable under replay. ``at`` is aware; None means
    the time of sealing. ``turn_id`` and ``outcome`` serve imports and resync: the message's turn, and on a turn's
    last message its end.
    """

    role: Role
    parts: tuple[Part, ...] = field(converter=_part_tuple)
    key: str | None = None
    revision: int = 0
    at: datetime | None = field(default=None, validator=_aware)
    turn_id: str | None = None
    outcome: Outcome | None = None

    def __attrs_post_init__(self) -> None:
        if self.role not in _ALLOWED:
            raise BadArgument(
                f"unknown role {self.role!r}; use 'user', 'assistant' or 'tool' and leave system messages out"
            )
        for part in self.parts:
            if not isinstance(part, _PARTS):
                raise BadArgument(f"{type(part).__name__} is no message part; use the part classes of optchat")
            if not isinstance(part, _ALLOWED[self.role]):
                raise BadArgument(
                    f"a message of role {self.role!r} cannot hold a {type(part).__name__}; "
                    "put calls in assistant messages and results in tool messages"
                )
        if self.outcome is not None and self.outcome not in OUTCOMES:
            raise BadArgument(f"unknown outcome {self.outcome!r}; use 'completed', 'failed' or 'interrupted'")
        if self.key is not None and not isinstance(self.key, str):
            raise BadArgument(
                f"a message's key is text, not {type(self.key).__name__}; leave it out if the host has none"
            )
        if not isinstance(self.revision, int) or self.revision < 0:
            raise BadArgument("a revision counts from 0; leave it out if the host has none")

    @staticmethod
    def user(content: Content, *, key: str | None = None, at: datetime | None = None) -> HostMessage:
        """What the user said, as one message."""
        return HostMessage("user", content_parts(content), key=key, at=at)

    @staticmethod
    def assistant(
        text: str = "", calls: Sequence[ToolCallPart] = (), *, key: str | None = None, at: datetime | None = None
    ) -> HostMessage:
        """What the assistant said and called. An empty answer without calls is still an answer: one empty part."""
        said = (TextPart(text),) if text or not calls else ()
        return HostMessage("assistant", (*said, *calls), key=key, at=at)

    @staticmethod
    def result(
        call_id: str, content: Content, *, is_error: bool = False, truncated: bool = False, at: datetime | None = None
    ) -> HostMessage:
        """What a tool answered to the call of that id."""
        part = ToolResultPart(call_id, content_parts(content), is_error, truncated)
        return HostMessage("tool", (part,), at=at)
