"""
Receipts of what was sent (§ 7), for whoever asks later.

Decides: which turn an id names where several have it.
Refuses to know: what of a receipt is stored.
"""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from optchat.core.context import ContextReceipt
from optchat.core.errors import BadArgument, UnknownRef
from optchat.engine import receipts
from optchat.memory.memory import Memory
from optchat.store import turns
from optchat.store.rows import moment_of


@frozen
class KeptReceipt:
    """The receipt of a turn's last call, and when it was made."""

    turn_id: str
    session_id: str
    at: datetime
    receipt: ContextReceipt


def kept_receipt(memory: Memory, turn_id: str, *, session: str | None = None) -> KeptReceipt:
    """
    What the last call of a turn was given: its refs in order, what each part cost, and why it was rendered so.

    It is kept with the next thing that the turn wrote: an answer, or its end. Lines that were deleted since are left
    out of it. The owner's reading: whichever session of the scope.

    Args:
        session: the id of its session, where several have a turn of that id.

    Raises:
        UnknownRef: no such turn, or it made no call that anything was sealed after.
        BadArgument: turns of several sessions have that id.
    """
    house, scope = memory._house, memory._scope  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    with scope.store.read() as db:
        found = receipts.kept(scope, db, turn_id, session, house.tokenizer)
        known = bool(found) or bool(turns.find_in_scope(db, scope.pk, turn_id, session))
    if not found:
        said = "made no call that anything was sealed after" if known else "is not known here"
        raise UnknownRef(f"turn {turn_id[:80]!r} {said}; `optchat turns SESSION` lists a session's turns")
    sessions = sorted({each.session_id for each in found})
    if len(sessions) > 1:
        raise BadArgument(f"sessions {', '.join(sessions)} have a turn {turn_id[:80]!r} each; name the session")
    last = found[-1]
    return KeptReceipt(last.turn.turn_id, last.session_id, moment_of(last.at), last.receipt)
