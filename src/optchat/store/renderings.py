"""
What turns pinned, what they pinned again after a removal, and how they were rendered.

Decides: how descriptors and renderings are stored, and which of a turn's pins is its present one.
Refuses to know: what a rendering means, and when a pin is taken again.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve, frozen

from optchat.core.refs import KEY_BITS
from optchat.core.terms import Outcome
from optchat.store.rows import Connection, Row, all_rows, one_row, one_value, run, with_flags


@frozen
class DescriptorRow:
    """What a turn pinned."""

    turn_pk: int
    pin: int
    clock: int
    publications: int
    documents: int
    policy_revision: int
    epoch: int
    own_end: int
    pending: int
    previous_start: int | None
    previous_end: int | None
    shared_levels: bytes
    shared_shrinking: bool
    own_levels: bytes
    own_shrinking: bool
    leaf_format: int
    settings: dict[str, Any]


def insert_descriptor(db: Connection, descriptor: DescriptorRow) -> None:
    run(
        db,
        "INSERT INTO turn_descriptor (turn_pk, pin, clock, publications, documents, policy_revision, epoch, own_end,"
        " pending, previous_start, previous_end, shared_levels, shared_shrinking, own_levels, own_shrinking,"
        " leaf_format, settings) VALUES (:turn, :pin, :clock, :publications, :documents, :policy_revision, :epoch,"
        " :own_end, :pending, :previous_start, :previous_end, :shared_levels, :shared_shrinking, :own_levels,"
        " :own_shrinking, :leaf_format, :settings)",
        {
            "turn": descriptor.turn_pk,
            "pin": descriptor.pin,
            "clock": descriptor.clock,
            "publications": descriptor.publications,
            "documents": descriptor.documents,
            "policy_revision": descriptor.policy_revision,
            "epoch": descriptor.epoch,
            "own_end": descriptor.own_end,
            "pending": descriptor.pending,
            "previous_start": descriptor.previous_start,
            "previous_end": descriptor.previous_end,
            "shared_levels": descriptor.shared_levels,
            "shared_shrinking": int(descriptor.shared_shrinking),
            "own_levels": descriptor.own_levels,
            "own_shrinking": int(descriptor.own_shrinking),
            "leaf_format": descriptor.leaf_format,
            "settings": json.dumps(descriptor.settings, sort_keys=True),
        },
    )


def load_descriptor(db: Connection, turn_pk: int) -> DescriptorRow | None:
    """What a turn pinned, and pinned again since, if it did."""
    row = one_row(
        db,
        "SELECT turn_pk, pin, clock, publications, documents, policy_revision, epoch, own_end, pending, previous_start,"
        " previous_end, shared_levels, shared_shrinking, own_levels, own_shrinking, leaf_format, settings"
        " FROM turn_descriptor WHERE turn_pk = :turn",
        {"turn": turn_pk},
    )
    if row is None:
        return None
    fields: Row = (*with_flags(row, 12, 14)[:16], json.loads(row[16]))
    descriptor = DescriptorRow(*fields)
    again = one_row(
        db,
        "SELECT pin, epoch, shared_levels, shared_shrinking, own_levels, own_shrinking FROM repin"
        " WHERE turn_pk = :turn ORDER BY pin DESC LIMIT 1",
        {"turn": turn_pk},
    )
    if again is None:  # nearly always
        return descriptor
    pin, epoch, shared, shared_shrinking, own, own_shrinking = with_flags(again, 3, 5)
    return evolve(
        descriptor,
        pin=pin,
        epoch=epoch,
        shared_levels=shared,
        shared_shrinking=shared_shrinking,
        own_levels=own,
        own_shrinking=own_shrinking,
    )


def pinned_epoch(db: Connection, turn_pk: int, pin: int) -> int | None:
    """The epoch of one of a turn's pins."""
    value = one_value(
        db,
        "SELECT epoch FROM turn_descriptor WHERE turn_pk = :turn AND :pin = 0"
        " UNION ALL SELECT epoch FROM repin WHERE turn_pk = :turn AND pin = :pin",
        {"turn": turn_pk, "pin": pin},
    )
    return None if value is None else int(value)


@frozen
class RenderingRow:
    """One step of a turn's rendering: enough to make the very bytes again, in any process."""

    turn_pk: int
    step: int
    shared_levels: bytes
    own_levels: bytes
    own_through: int
    missing: tuple[str, ...]
    previous: tuple[str, ...]  # one word a record of the previous exchange: "full", "node", "none"
    memory_sha256: bytes
    at: int
    pin: int = 0
    anchor_turn: int | None = None  # whose rendering this one repeats and adds to; None: it is in full
    since: dict[str, Any] | None = None  # what is repeated and added (engine.anchoring); None: nothing adds to it


def insert_rendering(db: Connection, rendering: RenderingRow) -> None:
    """Write a step, unless another process has written it: then that one holds."""
    run(
        db,
        "INSERT OR IGNORE INTO rendering (turn_pk, step, shared_levels, own_levels, own_through, missing, previous,"
        " anchor_turn, since, memory_sha256, at, pin)"
        " VALUES (:turn, :step, :shared, :own, :through, :missing, :previous, :anchor, :since, :sha256, :at, :pin)",
        {
            "turn": rendering.turn_pk,
            "step": rendering.step,
            "shared": rendering.shared_levels,
            "own": rendering.own_levels,
            "through": rendering.own_through,
            "missing": json.dumps(rendering.missing),
            "previous": json.dumps(rendering.previous),
            "anchor": rendering.anchor_turn,
            "since": None if rendering.since is None else json.dumps(rendering.since, sort_keys=True),
            "sha256": rendering.memory_sha256,
            "at": rendering.at,
            "pin": rendering.pin,
        },
    )


_PRESENT_PIN = "(SELECT coalesce(max(repin.pin), 0) FROM repin WHERE repin.turn_pk = rendering.turn_pk)"


def next_step(db: Connection, turn_pk: int) -> int:
    """The number of a turn's next rendering step, under whatever pin the earlier ones were made."""
    last = one_value(db, "SELECT max(step) FROM rendering WHERE turn_pk = :turn", {"turn": turn_pk})
    return 0 if last is None else int(last) + 1


_RENDERING = (
    "SELECT rendering.turn_pk, step, shared_levels, own_levels, own_through, missing, previous, memory_sha256, at, pin,"
    " anchor_turn, since FROM rendering "
)


def _rendering(row: Row | None) -> RenderingRow | None:
    if row is None:
        return None
    since = None if row[11] is None else json.loads(row[11])
    fields: Row = (*row[:5], tuple(json.loads(row[5])), tuple(json.loads(row[6])), *row[7:11], since)
    return RenderingRow(*fields)


def load_rendering(db: Connection, turn_pk: int) -> RenderingRow | None:
    """The newest step of a turn's rendering under its present pin."""
    return _rendering(
        one_row(
            db,
            _RENDERING + f"WHERE turn_pk = :turn AND pin = {_PRESENT_PIN} ORDER BY step DESC LIMIT 1",
            {"turn": turn_pk},
        )
    )


def keep_sent(db: Connection, turn_pk: int, step: int, sent: dict[str, Any]) -> None:
    """
    Keep what a call by a rendering cost, unless a later one's is kept. Idempotent: the same again writes nothing.

    Args:
        sent: ``at``, in microseconds, says which is later.
    """
    run(
        db,
        "UPDATE rendering SET since = json_set(coalesce(since, '{}'), '$.sent', json(:sent))"
        " WHERE turn_pk = :turn AND step = :step AND coalesce(since ->> '$.sent.at', 0) < :at",
        {"turn": turn_pk, "step": step, "sent": json.dumps(sent, sort_keys=True), "at": sent["at"]},
    )


def last_sent(db: Connection, turn_pk: int) -> RenderingRow | None:
    """The newest step of a turn's rendering, under whatever pin, of which a call is kept."""
    return _rendering(
        one_row(
            db,
            _RENDERING + "WHERE turn_pk = :turn AND since ->> '$.sent.at' IS NOT NULL ORDER BY step DESC LIMIT 1",
            {"turn": turn_pk},
        )
    )


def last_rendering(db: Connection, generation_pk: int, before_turn: int, among: int) -> RenderingRow | None:
    """
    The last step of the last of a generation's turns that was rendered.

    Args:
        before_turn: only turns before this one; 0: all.
        among: so many turns are looked at, the newest ones: history that was imported has none to find.
    """
    before = before_turn or 1 << 62
    turns = all_rows(
        db,
        "SELECT turn_pk FROM turn WHERE generation_pk = :generation AND turn_pk < :before AND removed = 0"
        " ORDER BY ordinal DESC LIMIT :among",
        {"generation": generation_pk, "before": before, "among": among},
    )
    for (turn_pk,) in turns:
        row = one_row(db, _RENDERING + "WHERE turn_pk = :turn ORDER BY step DESC LIMIT 1", {"turn": turn_pk})
        if row is not None:
            return _rendering(row)
    return None


@frozen
class DispatchState:
    """What is checked before each model call; ``step`` is of the present pin."""

    outcome: Outcome | None
    epoch: int
    pinned_epoch: int | None
    step: int | None
    last_record: int | None
    removed: bool
    pin: int


def dispatch_state(db: Connection, turn_pk: int) -> DispatchState | None:
    """
    In one statement: whether a turn still runs, whether its pin holds, its newest rendering step, and the last record
    of its segment, which moves with everything that is sealed while it is open.
    """
    row = one_row(
        db,
        "SELECT outcome, scope.epoch,"
        " coalesce((SELECT max(repin.epoch) FROM repin WHERE repin.turn_pk = turn.turn_pk), turn_descriptor.epoch),"
        f" (SELECT max(step) FROM rendering WHERE rendering.turn_pk = turn.turn_pk AND pin = {_PRESENT_PIN}),"
        " (SELECT max(record_key) FROM record WHERE record_key >= segment_pk << :bits"
        " AND record_key < (segment_pk + 1) << :bits), turn.removed,"
        " coalesce((SELECT max(repin.pin) FROM repin WHERE repin.turn_pk = turn.turn_pk), 0)"
        " FROM turn JOIN scope ON scope.scope_pk = turn.scope_pk"
        " LEFT JOIN turn_descriptor ON turn_descriptor.turn_pk = turn.turn_pk WHERE turn.turn_pk = :turn",
        {"turn": turn_pk, "bits": KEY_BITS},
    )
    return None if row is None else DispatchState(*with_flags(row, 5))


# ---- pins taken again ------------------------------------------------------------------------------------------------


@frozen
class RepinRow:
    """A pin that was taken again: the audit of it, and the turn's present one if it is the last."""

    turn_pk: int
    pin: int
    epoch: int
    at: int
    shared_levels: bytes
    shared_shrinking: bool
    own_levels: bytes
    own_shrinking: bool
    moment_key: int


def insert_repin(db: Connection, repin: RepinRow) -> None:
    run(
        db,
        "INSERT INTO repin (turn_pk, pin, epoch, at, shared_levels, shared_shrinking, own_levels, own_shrinking,"
        " moment_key) VALUES (:turn, :pin, :epoch, :at, :shared, :shared_shrinking, :own, :own_shrinking, :moment)",
        {
            "turn": repin.turn_pk,
            "pin": repin.pin,
            "epoch": repin.epoch,
            "at": repin.at,
            "shared": repin.shared_levels,
            "shared_shrinking": int(repin.shared_shrinking),
            "own": repin.own_levels,
            "own_shrinking": int(repin.own_shrinking),
            "moment": repin.moment_key,
        },
    )


def repin_epoch(db: Connection, moment_key: int, pin: int) -> int | None:
    """The epoch of a snapshot like "42.1": a moment's marks, pinned again."""
    value = one_value(
        db,
        "SELECT max(epoch) FROM repin WHERE moment_key = :moment AND pin = :pin",
        {"moment": moment_key, "pin": pin},
    )
    return None if value is None else int(value)
