"""
Snapshots, boundaries, and the one visibility predicate (§ 9, § 11).

Decides: what a reader may see: of its own session by a boundary, of other sessions by publications under marks.
Refuses to know: SQL. A query may narrow down candidates by the same rule; what is shown has passed these functions.

The rule: a publication counts under a pin iff its number is below the mark, it is not removed now, and it was not
retired at or before the pin's clock. A foreign record is visible iff such a publication covers it; a foreign session
node iff it starts at or after the generation's first published record and ends at or before the last published one.
Everything else answers as unknown.
"""

from __future__ import annotations

from datetime import datetime

from attrs import frozen


def snapshot_label(clock: int, pin: int) -> str:
    """How a pin names itself: its clock, and how often it was taken again after a removal (``42.1``), if it was."""
    return f"{clock}.{pin}" if pin else str(clock)


@frozen
class Snapshot:
    """A pinned state of the scope: publications below ``through`` are visible. ``id`` is all it takes to reopen it."""

    id: str
    through: int
    epoch: int
    at: datetime


@frozen
class OwnRange:
    """Records ``[start, end)`` of one segment that a reader sees as its own: one link of its session's chain."""

    segment: int
    start: int
    end: int


@frozen
class Sight:
    """
    What one reader may see, in storage terms.

    ``owner`` is the memory's own reading: every session of the scope to its last sealed record. Otherwise ``own`` holds
    the reader's own chain, oldest link first, and foreign sessions show what the marks allow.
    """

    scope: int
    clock: int
    publications: int
    documents: int
    own: tuple[OwnRange, ...] = ()
    owner: bool = False

    def owns(self, segment: int, start: int, end: int) -> bool:
        """Whether ``[start, end)`` of a segment is the reader's own, whole."""
        return self.owner or any(r.segment == segment and r.start <= start and end <= r.end for r in self.own)


@frozen
class PublicationState:
    """What visibility needs of a publication."""

    number: int
    retired_clock: int | None
    removed: bool


def publication_visible(publication: PublicationState, sight: Sight) -> bool:
    """The predicate on which every other one rests."""
    return (
        publication.number < sight.publications
        and not publication.removed
        and (publication.retired_clock is None or publication.retired_clock > sight.clock)
    )


@frozen
class Published:
    """The records of a generation that publications under a pin cover: none, or from first to end."""

    first: int
    end: int


def foreign_node_visible(start: int, end: int, published: Published | None, base_length: int) -> bool:
    """
    Whether a foreign session's node may be shown.

    Publications of one generation are made in turn order, so ``[first, end)`` has no hole. Visibility by a node's last
    record alone leaked what a waiting earlier turn said.
    """
    return published is not None and published.first <= start and end <= published.end and start >= base_length


@frozen
class Taken:
    """
    What a removal took or wrote anew, as far as pins are concerned: which of them could see some of it.

    ``publications``: the lowest number that a mark must lie above; None: no publication was. ``retired``: the lowest
    number and the highest clock of those that had been retired before; None: none had. ``records``: the first place, in
    each segment, of which something is gone or is said in other words.
    """

    publications: int | None = None
    retired: tuple[int, int] | None = None
    records: tuple[tuple[int, int], ...] = ()

    def seen_by(self, sight: Sight) -> bool:
        """Whether a pinned reader could see any of it. It errs on the side of having seen."""
        if self.publications is not None and self.publications < sight.publications:
            return True
        if self.retired is not None and self.retired[0] < sight.publications and self.retired[1] > sight.clock:
            return True
        return any(own.segment == segment and start < own.end for segment, start in self.records for own in sight.own)
