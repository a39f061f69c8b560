"""
Protocols that callers hand in.

Decides: the shape of a tokenizer, a summarizer, a host's codec, and the library's own clock.
Refuses to know: every implementation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, TypeVar

from attrs import frozen

from optchat.core.messages import HostMessage
from optchat.core.summarizing import SummaryReply, SummaryRequest
from optchat.core.terms import BlockKind

M = TypeVar("M")  # the host's own message type

Support: TypeAlias = Literal["observed", "absent", "unobservable"]
Reply: TypeAlias = str | SummaryReply | Awaitable[str | SummaryReply]


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is waited for."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Tokenizer(Protocol):
    """Counts tokens of text. Thread-safe, and deterministic under its name."""

    @property
    def name(self) -> str:
        """Stable and versioned: the key of cached counts."""
        ...

    def count(self, text: str, /) -> int:
        """The tokens of a text, at least as many as the model would count. It raises nothing, whatever the text."""
        ...


class Summarizer(Protocol):
    """Sync: called in worker threads, several at once. Async: awaited in the worker's own loop, never the caller's."""

    @property
    def name(self) -> str:
        """Stored with each node it makes."""
        ...

    @property
    def window_tokens(self) -> int:
        """The most input tokens of a request; larger sources are handed over in pages."""
        ...

    def summarize(self, request: SummaryRequest, /) -> Reply:
        """Answer, or raise to be retried."""
        ...


@frozen
class _FunctionSummarizer:
    name: str
    window_tokens: int
    function: Callable[[SummaryRequest], Reply]

    def summarize(self, request: SummaryRequest, /) -> Reply:
        return self.function(request)


def summarizer(name: str, *, window_tokens: int) -> Callable[[Callable[[SummaryRequest], Reply]], Summarizer]:
    """
    Make a summarizer of a function.

    Args:
        name: stored with each node it makes; change it when the function changes.
        window_tokens: the most input tokens that the function can take.
    """

    def wrap(function: Callable[[SummaryRequest], Reply]) -> Summarizer:
        return _FunctionSummarizer(name, window_tokens, function)

    return wrap


@frozen
class MemoryBlock:
    """One rendered block; ``cache``: stable until the next anchor, a provider's mark may follow."""

    kind: BlockKind
    text: str
    cache: bool


@frozen(kw_only=True)
class HostInfo:
    """
    What a host is, the versions that were tested, and which of its lifecycle operations can be seen.

    ``words_between``: the wire takes the assistant's words between a call and its result, as OpenAI's responses do.
    ``drops_unfinished``: of a turn that failed or was interrupted its own list may lack some, or all: no edit, then.
    """

    name: str
    distribution: str | None = None
    version_floor: str | None = None
    version_below: str | None = None
    fork: Support = "absent"
    edit: Support = "absent"
    delete: Support = "absent"
    compaction: Support = "absent"
    pause: Support = "absent"
    words_between: bool = False
    drops_unfinished: bool = False


class HostAdapter(Protocol[M]):
    """A pure codec, one native message at a time: prefix-stable by construction, and aligned for checkpoints."""

    @property
    def info(self) -> HostInfo:
        """What the host is, and what of its lifecycle can be seen."""
        ...

    def decode(self, message: M, /) -> Sequence[HostMessage]:
        """The neutral messages in a native one; () for system, reasoning and host summaries."""
        ...

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[M]:
        """The native messages that carry memory blocks."""
        ...

    def count(self, message: M, tokenizer: Tokenizer, /) -> int:
        """The tokens of a native message, framing and images included."""
        ...


class WireAdapter(HostAdapter[M], Protocol[M]):
    """Also native from sealed: for loops that leave the active list to the turn."""

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[M]:
        """Native messages from neutral ones; ToolProtocolError if the result would be invalid."""
        ...
