"""
Which processes have the file open for writing, and whether they live.

Decides: what a row of ``owner`` means.
Refuses to know: what a process owns.

Rows are never removed: a turn that ended long ago still names its owner, and to know that none does every turn would
have to be read.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime, timedelta

import apsw

from optchat.store.writer_lock import LockFile

_EPOCH = datetime.fromtimestamp(0, UTC)


def enter(db: apsw.Connection, lock: LockFile, now: datetime) -> int:
    """
    Give this process a row, unless an earlier handle of it did. The caller holds the writer lock and a transaction.

    Returns:
        Its ``owner_pk``; ``lock.owner_pk`` is for the caller to set once the transaction is committed.
    """
    mine = {"owner_pk": lock.owner_pk, "pid": os.getpid()}
    # The row is looked for since the file may have been replaced under an earlier handle.
    known = db.execute("SELECT owner_pk FROM owner WHERE owner_pk = :owner_pk AND pid = :pid", mine).get
    if known is not None:
        return lock.owner_pk
    db.execute(
        "INSERT INTO owner (slot, token, pid, started_at) VALUES (:slot, :token, :pid, :started_at)",
        {
            "slot": lock.claim_slot(),
            "token": secrets.token_hex(16),
            "pid": os.getpid(),
            "started_at": (now - _EPOCH) // timedelta(microseconds=1),
        },
    )
    return db.last_insert_rowid()


def alive(db: apsw.Connection, lock: LockFile | None, owner_pk: int) -> bool:
    """
    Tell whether an owner's process still has the file open. False is proof; True may come late.

    Args:
        lock: this process's; None where no process can hold one, since there is no lock file.
    """
    slot = db.execute("SELECT slot FROM owner WHERE owner_pk = :owner_pk", {"owner_pk": owner_pk}).get
    if slot is None or lock is None:
        return False
    assert isinstance(slot, int)
    if slot == lock.slot:  # our own byte cannot be tried; the row is ours, or of a process that had the slot before us
        return owner_pk == lock.owner_pk
    taken_over = db.execute(
        "SELECT owner_pk FROM owner WHERE slot = :slot AND owner_pk > :owner_pk LIMIT 1",
        {"slot": slot, "owner_pk": owner_pk},
    ).get
    return taken_over is None and lock.slot_taken(slot)
