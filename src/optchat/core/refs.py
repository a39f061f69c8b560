"""
Refs and spans (§ 4).

Decides: what an aligned dyadic range is, how an exact cover is made of them, where a node sits in its tree's order, and
the grammar of refs: parse and format.
Refuses to know: what a span contains.

Canonical refs are ``session:<session>:<generation>:<start>+<count>`` and ``pub:<start>+<count>``. On a turn the short
forms ``<start>+<count>`` and ``<generation>:<start>+<count>`` stand for its own session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NewType

from attrs import frozen

from optchat.core.errors import MalformedRef

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)

KEY_BITS: Final = 40  # integer keys are owner << 40 | ordinal, so that rows of one owner lie together and append
KEY_MASK: Final = (1 << KEY_BITS) - 1
MAX_ORDINAL: Final = 1 << KEY_BITS - 1  # a tree over so many leaves has fewer nodes than keys of one owner
SESSION_ID_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # base32 without i, l, o, u: no two look alike


@frozen(order=True)
class Span:
    """An aligned dyadic range: ``count`` is a power of two and ``start`` a multiple of it."""

    start: int
    count: int

    def __attrs_post_init__(self) -> None:
        if self.count < 1 or self.count & (self.count - 1):
            raise MalformedRef(f"a count must be a power of two, not {self.count}; use a ref as it was shown")
        if self.start < 0 or self.start % self.count:
            raise MalformedRef(
                f"{self.start}+{self.count} is not aligned: a start is a multiple of its count; use a ref as it was"
                f" shown"
            )

    def __hash__(self) -> int:
        return 2 * self.start + self.count  # twice its middle, which no other span shares

    @property
    def end(self) -> int:
        """Exclusive."""
        return self.start + self.count

    @property
    def level(self) -> int:
        return self.count.bit_length() - 1

    @property
    def index(self) -> int:
        return self.start >> self.level

    @property
    def parent(self) -> Span:
        return Span(self.start & -2 * self.count, 2 * self.count)

    @property
    def sibling(self) -> Span:
        return Span(self.start ^ self.count, self.count)

    @property
    def children(self) -> tuple[Span, Span]:
        half = self.count >> 1
        return Span(self.start, half), Span(self.start + half, half)

    @staticmethod
    def at(level: int, index: int) -> Span:
        return Span(index << level, 1 << level)

    def __str__(self) -> str:
        return f"{self.start}+{self.count}"


def exact_cover(start: int, end: int) -> tuple[Span, ...]:
    """
    The fewest aligned spans that cover ``[start, end)`` exactly, in order: at most 2·log2 of the range (§ 5, §
    15).
    """
    spans: list[Span] = []
    while start < end:
        count = start & -start if start else 1 << ((end - start).bit_length() - 1)
        while start + count > end:
            count >>= 1
        spans.append(Span(start, count))
        start += count
    return tuple(spans)


@lru_cache(maxsize=1 << 16)  # a view asks for the same few hundred positions again and again
def post_order(span: Span) -> int:
    """
    The node's place among all nodes of its tree in order of completion: unique and dense.

    A node completes with its last leaf ``e``; before it lie the 2e - popcount(e) nodes of the forest over the leaves
    below e, then its own descendants that end with e. So inserts append, in whatever tree.
    """
    last = span.start + span.count - 1
    return 2 * last - last.bit_count() + span.count.bit_length() - 1


def span_of_post_order(position: int) -> Span:
    """The inverse of :func:`post_order`."""
    # A popcount is at most 40 (KEY_BITS), so the leaf lies within 20 of half the position.
    low, high = position // 2, position // 2 + 21
    while low < high:  # the greatest last leaf whose forest of earlier nodes is not larger than the position
        middle = (low + high + 1) // 2
        if 2 * middle - middle.bit_count() <= position:
            low = middle
        else:
            high = middle - 1
    level = position - (2 * low - low.bit_count())
    return Span(low + 1 - (1 << level), 1 << level)


def completed_by(leaf: int) -> Iterator[Span]:
    """The inner nodes whose last leaf is this one, smallest first: what becomes due when it is sealed."""
    level, end = 1, leaf + 1
    while end % (1 << level) == 0:
        yield Span(end - (1 << level), 1 << level)
        level += 1


@frozen
class SessionRef:
    """A span of a session's generation; None fields are the reader's own session, or its current generation."""

    session: SessionId | None
    generation: int | None
    span: Span

    def __str__(self) -> str:
        if self.session is not None:
            return f"session:{self.session}:{self.generation}:{self.span}"
        return str(self.span) if self.generation is None else f"{self.generation}:{self.span}"


@frozen
class PublicationRef:
    """A span of the scope's publications."""

    span: Span

    def __str__(self) -> str:
        return f"pub:{self.span}"


Ref = SessionRef | PublicationRef

_NUMBER = r"(?:0|[1-9][0-9]{0,11})"  # no leading zeros: one ref, one spelling; twelve digits hold every position
_REF = re.compile(
    rf"(?:(?P<pub>pub):|session:(?P<session>[{SESSION_ID_ALPHABET}]{{8}}):(?P<generation>{_NUMBER}):|(?P<short>{_NUMBER}):)?"
    rf"(?P<start>{_NUMBER})\+(?P<count>{_NUMBER})",
    re.ASCII,
)


def parse_ref(text: str) -> Ref:
    """
    Read a ref.

    Raises:
        MalformedRef: not the grammar, a count that is no power of two, a start that is not aligned, or past the
        format's
            last position. The text is not repeated in full: it may be long, and it may be anything.
    """
    match = _REF.fullmatch(text) if isinstance(text, str) and len(text) <= 80 else None
    if match is None:
        shown = repr(text[:40]) if isinstance(text, str) else type(text).__name__
        raise MalformedRef(f"{shown} is no ref; use one as it was shown, like pub:24+1 or 0+64")
    span = Span(int(match["start"]), int(match["count"]))
    if span.end > MAX_ORDINAL:
        raise MalformedRef(f"{span} lies beyond the last possible position; use a ref as it was shown")
    if match["pub"]:
        return PublicationRef(span)
    if match["session"]:
        return SessionRef(SessionId(match["session"]), int(match["generation"]), span)
    return SessionRef(None, int(match["short"]) if match["short"] else None, span)


def session_ref(session: str, generation: int, start: int, count: int = 1) -> str:
    """The canonical text of a session ref."""
    return f"session:{session}:{generation}:{start}+{count}"


def publication_ref(start: int, count: int = 1) -> str:
    """The canonical text of a publication ref."""
    return f"pub:{start}+{count}"
