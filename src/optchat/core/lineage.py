"""
Segments: where a session's records and nodes are stored (§ 12).

Decides: which segment of a chain holds a record, and which tree a node; how a span of it is named in short.
Refuses to know: sessions, and how a chain came to be.

A session's generation points to a segment; a segment may rest on the first ``base_length`` records of another. Records
keep their numbers along the chain, so that a node wholly below a base length is the base's node, and nothing is copied.

A position at or above the lowest boundary that a session was ever rewound to has held other things before: a bare short
ref to it could be read as either, so that from there on short refs carry the generation.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.refs import KEY_BITS, KEY_MASK, Span, post_order
from optchat.core.snapshots import OwnRange


@frozen
class Link:
    """A segment of a chain: its own records start at ``base_length``."""

    segment: int
    tree: int
    base_length: int


@frozen
class Chain:
    """
    Links from a session's own segment down to the oldest base.

    ``generation`` is the number of the generation that has the own segment, ``boundary`` the lowest length that its
    session was rewound to on the way to it; None: it never was.
    """

    links: tuple[Link, ...]
    generation: int = 0
    boundary: int | None = None

    @property
    def own(self) -> Link:
        return self.links[0]

    def of_record(self, seq: int) -> Link:
        """The link that holds a record: the first whose own part begins at or before it."""
        return next(link for link in self.links if seq >= link.base_length)

    def of_node(self, span: Span) -> Link:
        """The link whose tree holds a node: the first whose base does not contain it whole."""
        own = self.links[0]  # nearly always, and asked several times a record
        if span.end > own.base_length:
            return own
        return next(link for link in self.links if span.end > link.base_length)

    def record_key(self, seq: int) -> int:
        return self.of_record(seq).segment << KEY_BITS | seq

    def node_key(self, span: Span) -> int:
        return node_key(self.of_node(span).tree, span)

    def short(self, span: Span) -> str:
        """The short ref of a span: with its generation where a bare one could mean what was said there before."""
        if self.boundary is None or span.end <= self.boundary:
            return str(span)
        return f"{self.generation}:{span}"

    def has_record_of(self, other: Chain, seq: int) -> bool:
        """Whether a record is the very same one on another chain, and so is every record before it."""
        return self.of_record(seq).segment == other.of_record(seq).segment

    def ranges(self, end: int, start: int = 0) -> tuple[OwnRange, ...]:
        """The stored ranges of records ``[start, end)``, oldest first."""
        found: list[OwnRange] = []
        for link in self.links:
            if max(start, link.base_length) < end:
                found.append(OwnRange(link.segment, max(start, link.base_length), end))
            end = min(end, link.base_length)
        return tuple(reversed(found))


@frozen
class Base:
    """What a segment rests on: the first ``length`` records of another one's chain. None: on nothing."""

    segment: int | None
    length: int


def base_at(chain: Chain, length: int) -> Base:
    """
    What a new segment over the first ``length`` records of a chain rests on: the link that holds the last of them.

    Not the chain's own segment in any case: chains would grow with every fork of a fork, and a segment would seem to be
    needed by what holds nothing of it.
    """
    return Base(chain.of_record(length - 1).segment if length else None, length)


def node_key(tree: int, span: Span) -> int:
    """A node's integer key: its tree, and its place in order of completion."""
    return tree << KEY_BITS | post_order(span)


def owner_of(key: int) -> int:
    """The segment, tree or scope of a key."""
    return key >> KEY_BITS


def ordinal_of(key: int) -> int:
    """The number within its owner."""
    return key & KEY_MASK
