"""
Pins and removals (§ 9, § 12): which pins still hold, and how a turn pins again.

Decides: nothing that core does not: it holds the removals since a pin was taken against what that pin could see.
Refuses to know: what was removed.

Only a removal ends a pin, and only one that the pin could see some of; a rewind, an archive, a fork or another
session's turn never does. An open turn then pins again, once for whatever was removed meanwhile, at the same marks: its
views keep their lines, of which some are tombstones now or say less. It is labelled (``snapshot="42.1"``) and written
down. Under the policy ``on_invalid="fail"`` it stays as it is, and every read that would need the pin says so; sealing
goes on either way.

Whoever reads under a pin checks it in the transaction that reads: a check before it would let a removal in between.
"""

from __future__ import annotations

from attrs import evolve

from optchat.core.errors import SessionDeleted, SnapshotInvalid, TurnEnded, UnknownRef
from optchat.core.refs import KEY_BITS
from optchat.core.snapshots import Sight, Snapshot
from optchat.engine.handle import Scope
from optchat.engine.sights import snapshot_of
from optchat.store import registry, removals, renderings, scopes, turns
from optchat.store.rows import Connection
from optchat.store.scopes import Moment
from optchat.store.turns import TurnRow


def holds(scope: Scope, db: Connection, epoch: int, sight: Sight) -> bool:
    """Whether nothing was removed since an epoch that a pinned reader could see some of."""
    if scopes.scope_counters(db, scope.pk)[0] == epoch:
        return True
    return not any(
        removal.kind == "scope" or removal.taken.seen_by(sight)
        for removal in removals.removals_since(db, scope.pk, epoch)
    )


def check_pin(scope: Scope, db: Connection, epoch: int, sight: Sight) -> None:
    """
    Hold a pin against what was removed since.

    Raises:
        SnapshotInvalid: it could see some of it.
    """
    if not holds(scope, db, epoch, sight):
        raise SnapshotInvalid("something that this snapshot could see was removed; take a new one")


def check_turn(db: Connection, turn: TurnRow) -> None:
    """
    Whether there is a turn any more.

    Raises:
        SessionDeleted: its session was deleted.
        TurnEnded: it was removed itself.
    """
    if not turn.removed:
        return
    session, _number = registry.session_of_generation(db, turn.generation_pk)
    if session.state == "deleted":
        raise SessionDeleted(f"session {session.session_id} was deleted; session(..., recreate=True) begins a new one")
    raise TurnEnded("the turn was deleted; begin a new one for what comes after it", outcome="interrupted")


def check_present(db: Connection, turn: TurnRow) -> None:
    """
    Whether a handle's turn may still be read by it. Of a deleted session none may: what forks kept of it is theirs.

    Raises:
        SessionDeleted: its session was deleted.
        TurnEnded: it was removed itself.
    """
    check_turn(db, turn)
    session, _number = registry.session_of_generation(db, turn.generation_pk)
    if session.state == "deleted":
        raise SessionDeleted(f"session {session.session_id} was deleted; session(..., recreate=True) begins a new one")


def pin_again(scope: Scope, turn_pk: int) -> Snapshot:
    """
    Pin an open turn again, at the same marks, because something that it could see was removed.

    Atomic. Idempotent: where another thread or process has done it, its pin is the turn's.

    Raises:
        SnapshotInvalid: the policy wants no other pin; or the marks themselves are kept no longer.
        SessionDeleted, TurnEnded: the turn is no more, or pinned nothing.
    """
    if scope.policy.on_invalid == "fail":
        raise SnapshotInvalid("something that this turn could see was removed; end it and begin a new one")
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        turn = turns.load_turn(db, turn_pk)
        descriptor = renderings.load_descriptor(db, turn_pk)
        if turn is not None:
            check_turn(db, turn)
        if turn is None or descriptor is None:
            raise TurnEnded("the turn pinned nothing; begin a new one", outcome="completed")
        moment = scopes.find_moment(db, scope.pk, descriptor.clock)
        if moment is None:
            raise SnapshotInvalid("the snapshot of this turn is kept no longer; end it and begin a new one")
        epoch = scopes.scope_counters(db, scope.pk)[0]
        if descriptor.epoch != epoch:
            # The lines stay as they were cut: each still has a node under this clock, which is no heavier.
            descriptor = evolve(descriptor, pin=descriptor.pin + 1, epoch=epoch)
            renderings.insert_repin(
                db,
                renderings.RepinRow(
                    turn_pk=turn_pk,
                    pin=descriptor.pin,
                    epoch=epoch,
                    at=scope.now(),
                    shared_levels=descriptor.shared_levels,
                    shared_shrinking=descriptor.shared_shrinking,
                    own_levels=descriptor.own_levels,
                    own_shrinking=descriptor.own_shrinking,
                    moment_key=scope.pk << KEY_BITS | descriptor.clock,
                ),
            )
    marks = evolve(moment, publications=descriptor.publications, epoch=descriptor.epoch)
    return snapshot_of(marks, descriptor.pin)


def kept_moment(scope: Scope, db: Connection, snapshot_id: str) -> tuple[Moment, int]:
    """
    The moment that a snapshot id names, and which pin of it: "42.1" is one that was taken again after a removal.

    Raises:
        UnknownRef: no such snapshot, or one of another scope.
        SnapshotInvalid: something that it could see was removed since.
    """
    number, _, again = snapshot_id.partition(".")
    plain = all(part.isdecimal() and len(part) < 13 for part in (number, again or "0"))
    moment = scopes.find_moment(db, scope.pk, int(number)) if plain else None
    pin = int(again) if plain and again else 0
    epoch = None if moment is None or not pin else renderings.repin_epoch(db, scope.pk << KEY_BITS | moment.clock, pin)
    if moment is None or (pin and epoch is None):
        raise UnknownRef(f"no snapshot {snapshot_id[:20]!r} is kept here; pin() takes a new one")
    if epoch is not None:
        moment = evolve(moment, epoch=epoch)
    check_pin(scope, db, moment.epoch, Sight(scope.pk, moment.clock, moment.publications, moment.documents))
    return moment, pin
