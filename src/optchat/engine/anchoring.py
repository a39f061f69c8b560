"""
Anchors as they are stored (§ 7): what a session's last rendering leaves for its next turn.

Decides: which rendering is the session's last, when its last call was, and how an anchor is written down.
Refuses to know: whether it may be repeated (:mod:`optchat.core.anchors`), and text.

A row holds all that its bytes need besides nodes: it names the blocks that it repeats by their heads, and shows every
line under its own turn's clock. So it needs no other row, and no revision that only an earlier clock finds.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import astuple, frozen

from optchat.core.anchors import Anchor, Head
from optchat.core.policy import pinned_setting
from optchat.store import ledger, renderings
from optchat.store.renderings import DescriptorRow, RenderingRow
from optchat.store.rows import Connection

_AMONG_TURNS: Final = 64  # a session that made no call in so many turns made none that a provider's cache remembers


@frozen
class Last:
    """The session's last rendering of an earlier turn, and when its last call was."""

    turn_pk: int
    anchor: Anchor
    called_at: int  # microseconds


def last_request(db: Connection, generation_pk: int, descriptor: DescriptorRow) -> Last | str:
    """What the session's last request showed; or why the next one cannot add to it."""
    if descriptor.pin:
        return "the turn has pinned again, because something was removed"
    row = renderings.last_rendering(db, generation_pk, descriptor.turn_pk, _AMONG_TURNS)
    if row is None:
        return "nothing was rendered for the session before"
    anchor = anchor_of(row)
    if anchor is None:
        return "the last one was partial" if row.missing else "the last one left nothing to add to"
    # The last call was made between the last rendering and the last thing that was sealed of what came of it.
    said = ledger.last_of_turn(db, row.turn_pk)
    return Last(row.turn_pk, anchor, row.at if said is None else max(row.at, said.at))


def anchor_of(row: RenderingRow) -> Anchor | None:
    """What a rendering leaves for the next one; None where it may not be added to."""
    since = row.since
    if since is None or "heads" not in since:
        return None
    return Anchor(
        tuple(Head(*head) for head in since["heads"]),
        row.shared_levels,
        row.own_levels,
        bytes.fromhex(since["shared_view"]) if "shared_view" in since else row.shared_levels,
        bytes.fromhex(since["own_view"]) if "own_view" in since else row.own_levels,
        bytes.fromhex(since["stable"]),
        since["tokenizer"],
        since["room"],
    )


def dump_anchor(anchor: Anchor) -> dict[str, Any]:
    """The inverse of :func:`anchor_of`, for the row's own covers."""
    views = {
        name: view.hex()
        for name, view, shown in (
            ("shared_view", anchor.shared_view, anchor.shared),
            ("own_view", anchor.own_view, anchor.own),
        )
        if view != shown
    }
    return {
        "heads": [astuple(head) for head in anchor.heads],
        "stable": anchor.stable.hex(),
        "tokenizer": anchor.tokenizer,
        "room": anchor.room,
    } | views


def since_bytes(descriptor: DescriptorRow) -> int:
    """The most bytes that a block of what is new may have."""
    return int(pinned_setting(descriptor.settings, "since_bytes"))


def lifetime_seconds(descriptor: DescriptorRow) -> float:
    """How long a provider keeps what it has read."""
    return float(pinned_setting(descriptor.settings, "cache_lifetime_seconds"))
