"""
Anchors (§ 7): whether a session's next turn repeats what its last request said, and what it then adds.

Decides: when the bytes of the last request may stand, what has to be added to them to show a turn's views, and when
everything is rendered in full again. Refuses to know: text, and what a line costs.

Between batches each view grows at its end only, yet two growing blocks in one prompt break each other's cached prefix.
So a session's *anchor* is its last full rendering, and each turn after it repeats all that the turn before it said,
byte for byte, and adds one block of what both views have gained since. No block is ever rewritten: one that grew would
be sent anew each turn, with all that it had said before.

A rendering is repeated only where both views are the ones that it was made of and lines at their end. That its lines
still say the same is not decided here: whoever renders compares the bytes, by their hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve, frozen

from optchat.core.errors import IntegrityError

MOST_ADDED: Final = 64  # blocks: then a full rendering costs less than what frames them
_MORE_ROOM: Final = 8  # a coarse anchor gives way where there is an eighth more room than it was made for


@frozen
class Head:
    """
    What a pair of views, or a block of what was added, says of itself.

    ``shared`` and ``own`` are the exclusive ends of what is shown up to and with it.
    """

    snapshot: str
    shared: int
    own: int
    pending: int


@frozen
class Anchor:
    """
    What a rendering leaves for the session's next turn.

    Args:
        heads: of the anchor, then of each block that was added to it.
        shared, own: the covers shown, one byte a line.
        shared_view, own_view: the views that they are covers of; others only where a budget made them coarser.
        stable: SHA-256 of the blocks that may be repeated; empty where it was erased.
        tokenizer: by which it was counted.
        room: the tokens that there were for memory.
    """

    heads: tuple[Head, ...]
    shared: bytes
    own: bytes
    shared_view: bytes
    own_view: bytes
    stable: bytes
    tokenizer: str
    room: int

    @property
    def is_coarse(self) -> bool:
        """Whether the views say more than it shows of them."""
        return self.shared != self.shared_view or self.own != self.own_view


@frozen
class Wanted:
    """What the next turn is to show, and under which circumstances."""

    head: Head
    shared_view: bytes
    own_view: bytes
    tokenizer: str
    room: int
    idle_seconds: float  # since the session's last call
    lifetime_seconds: float  # of the provider's cache


def plan_addition(last: Anchor, wanted: Wanted) -> Anchor | str:
    """
    The last rendering with one block added, its hash still that of the last; or why it cannot be repeated.

    Pure: the same answer for the same values, in every process.
    """
    if not last.stable:
        return "what the last request said was erased"
    if wanted.idle_seconds >= wanted.lifetime_seconds:
        return "the session's last call is older than the provider's cache"
    if wanted.tokenizer != last.tokenizer:
        return "another tokenizer counts"
    if not wanted.shared_view.startswith(last.shared_view):
        return "the shared view has changed otherwise than at its end"
    if not wanted.own_view.startswith(last.own_view):
        return "the session's view has changed otherwise than at its end"
    if last.is_coarse and wanted.room > last.room + last.room // _MORE_ROOM:
        return "there is room for more detail"
    if len(last.heads) > MOST_ADDED:
        return f"{MOST_ADDED} blocks were added to the last full rendering"
    return evolve(
        last,
        heads=(*last.heads, wanted.head),
        shared=last.shared + wanted.shared_view[len(last.shared_view) :],
        own=last.own + wanted.own_view[len(last.own_view) :],
        shared_view=wanted.shared_view,
        own_view=wanted.own_view,
    )


def full(wanted: Wanted, shared: bytes, own: bytes) -> Anchor:
    """A full rendering, before its bytes are hashed."""
    return Anchor((wanted.head,), shared, own, wanted.shared_view, wanted.own_view, b"", wanted.tokenizer, wanted.room)


def parts(ends: Sequence[int], heads: Sequence[int]) -> list[slice]:
    """
    Which lines stand in the anchor's block, and in each block that was added.

    Args:
        ends: of the lines, in order.
        heads: the ends that the blocks show, in order.

    Raises:
        IntegrityError: a line is in none of them, or crosses an end: it would be shown nowhere, or under a wrong head.
    """
    found: list[slice] = []
    at = 0
    for end in heads:
        start = at
        while at < len(ends) and ends[at] <= end:
            at += 1
        found.append(slice(start, at))
        if end != (ends[at - 1] if at else 0):
            raise IntegrityError("the blocks of a rendering and its lines contradict each other; end the turn")
    if at < len(ends):
        raise IntegrityError("the blocks of a rendering leave lines out; end the turn: the next one renders anew")
    return found
