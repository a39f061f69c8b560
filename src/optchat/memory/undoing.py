"""
What a command line asks of a scope's sessions besides the façade (§ 12).

Decides: which use cases can be rehearsed.
Refuses to know: how any of it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optchat.core.errors import UnknownRef
from optchat.core.forgetting import DeletionReceipt, Forks
from optchat.core.messages import HostMessage
from optchat.core.retrieval import SessionInfo
from optchat.engine import exporting, forgetting, lifecycle, scrubbing
from optchat.engine.exporting import ExportedTurn
from optchat.engine.handle import Scope
from optchat.engine.neutral import NeutralAdapter
from optchat.engine.rehearsing import rehearsal
from optchat.memory.memory import Memory
from optchat.memory.session import Session
from optchat.store import registry
from optchat.store.registry import SessionRow


def _scope(memory: Memory) -> Scope:
    return memory._scope  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade


def _row(memory: Memory, session_id: str) -> SessionRow:
    scope = _scope(memory)
    with scope.store.read() as db:
        row = registry.session_by_id(db, scope.pk, session_id)
    if row is None or row.state == "deleted":
        raise UnknownRef(f"no session {session_id[:20]!r} is here; sessions() lists those that are")
    return row


def begin_anew(memory: Memory, session_id: str, *, dry_run: bool = False) -> SessionInfo | None:
    """
    Begin another session under the key of this one, which is archived and found by its id from now on.

    Idempotent: a session that has said nothing is new, and stays. None for a dry run, which changes nothing.

    Raises:
        SessionBusy: its open turn is alive in another process.
    """
    memory._house.writable()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    row = _row(memory, session_id)
    made = lifecycle.begin_anew(rehearsal(_scope(memory)) if dry_run else _scope(memory), row)
    return None if dry_run else memory.session_by_id(made.session_id).info()


def export_session(memory: Memory, session_id: str) -> Iterator[ExportedTurn]:
    """The turns of a session's present history as lines of the transcript format."""
    return exporting.export_session(_scope(memory), _row(memory, session_id).session_pk)


def erase(memory: Memory) -> str | None:
    """Erase what was removed from the file now, and say what hinders it; None: nothing of it is left."""
    memory._house.writable()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    return scrubbing.scrub(_scope(memory), lambda: False, whole=True).hindered


def rehearsed(memory: Memory, session_id: str) -> Session[HostMessage]:
    """
    A session whose methods answer as they would, or refuse, and change nothing. One call of one of them.

    Its reads show what is stored, which no rehearsal changes.
    """
    house = memory._house  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    return Session(house, rehearsal(_scope(memory)), _row(memory, session_id), NeutralAdapter())


def rehearsed_deletion(memory: Memory, session_id: str, only: Sequence[str] | None, forks: Forks) -> DeletionReceipt:
    """What deleting a session, or some of its turns, would remove and keep."""
    return forgetting.delete_session(rehearsal(_scope(memory)), _row(memory, session_id), only=only, forks=forks)


def rehearsed_scope_deletion(memory: Memory) -> DeletionReceipt:
    """What deleting a scope would remove."""
    return forgetting.delete_scope(rehearsal(_scope(memory)))
