"""Finalized messages: checked when they are made."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from attrs.exceptions import FrozenInstanceError

from optchat.core.errors import BadArgument
from optchat.core.messages import (
    BlobPart,
    HostMessage,
    ReportPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    content_parts,
)

TEXT = TextPart("hello")
IMAGE = BlobPart("image/png", data=b"\x89PNG")
CALL = ToolCallPart("c", "run", "{}")
RESULT = ToolResultPart("c", (TEXT,))
REPORT = ReportPart("survey", "done")


@pytest.mark.parametrize("part", [TEXT, IMAGE, CALL, RESULT, REPORT], ids=lambda part: type(part).__name__)
@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("user", {TextPart, BlobPart, ReportPart}),
        ("assistant", {TextPart, BlobPart, ToolCallPart, ReportPart}),
        ("tool", {ToolResultPart, ReportPart}),
    ],
)
def test_who_may_say_what(role: str, may: set[type], part: object) -> None:
    if type(part) in may:
        assert HostMessage(role, (part,)).parts == (part,)  # type: ignore[arg-type] # every combination
    else:
        with pytest.raises(BadArgument, match="calls in assistant messages and results in tool messages"):
            HostMessage(role, (part,))  # type: ignore[arg-type] # every combination


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HostMessage("system", (TEXT,)), "leave system messages out"),
        (lambda: HostMessage("user", ("hello",)), "str is no message part"),
        (lambda: HostMessage("user", "hello"), "str is no message part"),
        (lambda: HostMessage("user", (TEXT,), revision=-1), "counts from 0"),
        (lambda: HostMessage("user", (TEXT,), outcome="done"), "'completed', 'failed' or 'interrupted'"),
        (lambda: HostMessage("user", (TEXT,), at=datetime(2026, 1, 5)), "naive time; give it an offset"),  # noqa: DTZ001
        (lambda: HostMessage.user("x", at=datetime(2026, 1, 5)), "naive time; give it an offset"),  # noqa: DTZ001
        (lambda: HostMessage.user([TEXT, CALL]), "not ToolCallPart; convert it first"),
        (lambda: HostMessage.result("c", ["hello"]), "not str; convert it first"),
        (lambda: TextPart(b"hello"), "TextPart.text must be text, not bytes; decode it first"),
        (lambda: ToolCallPart("c", "run", {}), "ToolCallPart.arguments must be text, not dict"),
        (lambda: ToolCallPart(1, "run", "{}"), "ToolCallPart.call_id must be text, not int"),
        (lambda: ToolResultPart(None, (TEXT,)), "ToolResultPart.call_id must be text, not NoneType"),
        (lambda: ToolResultPart("c", "hello"), "not str; convert it first"),
        (lambda: ToolResultPart("c", (TEXT, CALL)), "not ToolCallPart; convert it first"),
        (lambda: ReportPart("survey", None), "ReportPart.text must be text, not NoneType"),
        (lambda: BlobPart("image/png"), "exactly one of data and uri"),
        (lambda: BlobPart("image/png", b"x", "https://example.org"), "exactly one of data and uri"),
        (lambda: BlobPart(None, b"x"), "BlobPart.media_type must be text"),
        (lambda: BlobPart("image/png", "iVBORw0KGgo="), "BlobPart.data is bytes, not str; decode it first"),
        (lambda: BlobPart("image/png", uri=b"https://example.org"), "BlobPart.uri is text, not bytes; decode it first"),
    ],
)
def test_what_cannot_be_sealed_is_refused_where_it_is_made(make: Callable[[], object], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        make()


def test_what_a_user_says() -> None:
    at = datetime(2026, 1, 5, tzinfo=timezone(timedelta(hours=-7)))

    assert HostMessage.user("hello", key="k", at=at) == HostMessage("user", (TEXT,), key="k", at=at)
    assert HostMessage.user([TEXT, IMAGE]).parts == (TEXT, IMAGE)


def test_what_an_assistant_says_and_calls() -> None:
    assert HostMessage.assistant("hello", [CALL]).parts == (TEXT, CALL)
    assert HostMessage.assistant(calls=[CALL]).parts == (CALL,)
    assert HostMessage.assistant().parts == (TextPart(""),), "an empty answer is an answer too"


def test_what_a_tool_answers() -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)

    message = HostMessage.result("c", "hello", is_error=True, truncated=True, at=at)

    assert message == HostMessage("tool", (ToolResultPart("c", (TEXT,), is_error=True, truncated=True),), at=at)


def test_content_is_text_or_parts() -> None:
    assert content_parts("") == (TextPart(""),)
    assert content_parts([IMAGE, TEXT]) == (IMAGE, TEXT)
    assert content_parts([]) == ()


def test_a_message_is_a_value() -> None:
    parts = [TEXT]
    message = HostMessage("user", parts)
    parts.append(TextPart("later"))

    assert message == HostMessage.user("hello")
    assert hash(message) == hash(HostMessage.user("hello"))
    with pytest.raises(FrozenInstanceError):
        message.key = "k"  # type: ignore[misc] # the point


def test_flags_keys_and_revisions_of_another_type_are_refused_at_birth() -> None:
    for make in (
        lambda: ToolResultPart("c", (), is_error="no"),  # type: ignore[arg-type]
        lambda: ReportPart("n", "t", complete=1),  # type: ignore[arg-type]
        lambda: HostMessage("user", (), key=5),  # type: ignore[arg-type]
        lambda: HostMessage("user", (), revision="1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(BadArgument):
            make()
