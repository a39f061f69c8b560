"""
What a fake provider can be told to do: the words of a script, for each of them the same.

Decides: which replies there are. Refuses to know: how a provider words them, and how they go out.

A plain answer, or one that breaks a rule (``overshoot``, ``prose``, ``empty``, ``refuse``, ``cut_off``, ``tool_call``,
``tool_calls``, ``broken_utf8``); an error of the provider's (``rate_limit``, ``server_error``, ``unauthorized``,
``out_of_credit``, ``fail``); silence (``stall``); a connection that ends (``drop``); an answer of somebody else
(``web_page``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from optchat.testing.loopback import RecordedRequest

__all__ = [
    "Reply",
    "Usage",
    "answer",
    "broken_utf8",
    "cut_off",
    "drop",
    "empty",
    "fail",
    "out_of_credit",
    "overshoot",
    "prose",
    "rate_limit",
    "refuse",
    "server_error",
    "stall",
    "tool_call",
    "tool_calls",
    "unauthorized",
    "web_page",
]


@frozen
class Usage:
    """
    Tokens of one answer, or of many. ``input_tokens`` is the whole input, what was read from a cache or written to it
    included; each server reports it in its provider's own way.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@frozen
class Say:
    """An answer of the model's."""

    text: str | Callable[[RecordedRequest], str] | None  # None: a short line made from the request
    ending: Literal["stop", "length", "refusal", "tool"] = "stop"
    usage: Usage | None = None  # None: an estimate from the bytes
    broken: bool = False  # bytes that are no UTF-8 follow the text
    tool: str = ""
    arguments: Mapping[str, Any] = field(factory=dict[str, Any])
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # several at once: name and arguments of each
    thinking: str = ""  # what the model thought first, where the format has a place for it

    def made_calls(self, number: int) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call in the answer to that request; an id is unique in its server."""
        if self.ending != "tool":
            return []
        calls = self.calls or ((self.tool, self.arguments),)
        return [(f"call_{number}_{n}", name, json.dumps(dict(given))) for n, (name, given) in enumerate(calls)]


@frozen
class Fail:
    """An error of the provider's; ``within``: in an answer that has begun, where the format can say so."""

    status: int
    code: str = ""  # OpenAI's code, Anthropic's type; "": as the provider names this status
    message: str = ""
    retry_after: float | str | None = None
    within: bool = False


@frozen
class Stall:
    """Nothing for a while, or until an event is set; then another reply. ``within``: after the answer has begun."""

    until: float | threading.Event
    then: Reply
    within: bool = False


@frozen
class Drop:
    """The connection is closed; ``within``: in the middle of an answer."""

    within: bool = False


@frozen
class Page:
    """A 200 that is no answer of a provider: what a wrong address or a captive network sends."""

    body: str
    content_type: str = "text/html"


Reply: TypeAlias = Say | Fail | Stall | Drop | Page


def answer(
    text: str | Callable[[RecordedRequest], str] | None = None, *, usage: Usage | None = None, thinking: str = ""
) -> Say:
    """
    The model says this, or what a function makes of the request; None is a short line made from the request.

    ``thinking``: what it thought before, as reasoning of the provider's kind.
    """
    return Say(text, usage=usage, thinking=thinking)


def overshoot(size_bytes: int = 2_000, *, usage: Usage | None = None) -> Say:
    """The model says far too much: a text of that many bytes."""
    words = " ".join(f"detail {number}," for number in range(size_bytes // 8 + 1))
    return Say(words[: size_bytes - 1] + ".", usage=usage)


def prose(usage: Usage | None = None) -> Say:
    """The model chats about the task over several paragraphs instead of doing it in one line."""
    return Say(
        "Certainly! Here is a summary of what you sent me:\n\n"
        "It covers quite a few different things, which I have tried to put together as clearly as possible.\n\n"
        "Let me know if you would like more detail on any of these points, and I will gladly expand on them!",
        usage=usage,
    )


def empty(usage: Usage | None = None) -> Say:
    """The model says nothing."""
    return Say("", usage=usage)


def refuse(usage: Usage | None = None) -> Say:
    """The model declines, and the format says so."""
    return Say("I'm sorry, but I can't help with that.", ending="refusal", usage=usage)


def cut_off(text: str = "the beginning of a line that was", *, usage: Usage | None = None) -> Say:
    """The output limit stops the model in mid-sentence."""
    return Say(text, ending="length", usage=usage)


def tool_call(name: str = "search", arguments: Mapping[str, Any] | None = None, *, usage: Usage | None = None) -> Say:
    """The model calls a tool, whether it was offered one or not."""
    return Say("", ending="tool", tool=name, arguments=arguments or {}, usage=usage)


def tool_calls(
    *calls: tuple[str, Mapping[str, Any]], text: str = "", usage: Usage | None = None, thinking: str = ""
) -> Say:
    """The model makes several calls at once, each a name and arguments, and may say something before."""
    return Say(text, ending="tool", calls=calls, usage=usage, thinking=thinking)


def broken_utf8(text: str = "half a line", *, usage: Usage | None = None) -> Say:
    """The answer holds bytes that are no UTF-8."""
    return Say(text, broken=True, usage=usage)


def stall(until: float | threading.Event, then: Reply | None = None, *, within: bool = False) -> Stall:
    """
    Let the client wait, then reply.

    Args:
        until: so many seconds, or an event that the test sets.
        then: None is an answer.
        within: the answer begins at once, and the wait is in the middle of it.
    """
    return Stall(until, then or answer(), within)


def rate_limit(retry_after: float | str | None = None) -> Fail:
    """Too many requests; ``retry_after`` is seconds or an HTTP date, None is without the header."""
    return Fail(429, retry_after=retry_after)


def server_error(status: int = 500, *, retry_after: float | None = None, within: bool = False) -> Fail:
    """The provider is out of order; 529 is Anthropic's for overloaded."""
    return Fail(status, retry_after=retry_after, within=within)


def unauthorized(status: int = 401) -> Fail:
    """The key is wrong, or (403) may not."""
    return Fail(status)


def out_of_credit() -> Fail:
    """The account is empty: OpenAI says so in a 429 and Anthropic in a 400."""
    return Fail(429, code="insufficient_quota")


def fail(status: int, *, code: str = "", message: str = "", retry_after: float | str | None = None) -> Fail:
    """Any other error."""
    return Fail(status, code, message, retry_after)


def drop(*, within: bool = False) -> Drop:
    """Close the connection instead of answering, or in the middle of an answer."""
    return Drop(within)


def web_page(body: str = "<html><body>It works!</body></html>") -> Page:
    """A 200 with a page for people."""
    return Page(body)
