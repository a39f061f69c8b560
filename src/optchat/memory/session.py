"""
Sessions (§ 12): one conversation's handle.

Decides: how a session looks to a caller.
Refuses to know: how a turn is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.messages import HostMessage, ReportPart, TextPart
from optchat.core.ports import HostAdapter
from optchat.core.retrieval import Page, SessionInfo, TurnInfo
from optchat.engine import listing, turns
from optchat.engine.handle import Scope
from optchat.engine.preview import preview
from optchat.engine.sights import owner_reading
from optchat.memory.house import House
from optchat.memory.turn import Turn, can_rebuild, take
from optchat.store import registry
from optchat.store.registry import SessionRow

if TYPE_CHECKING:
    from datetime import datetime

M = TypeVar("M")


class Session(Generic[M]):
    """A cheap handle whose attributes never change; what changes is in :meth:`info`."""

    def __init__(self, house: House, scope: Scope, row: SessionRow, adapter: HostAdapter[M]) -> None:
        """Made by ``memory.session``."""
        self._house, self._scope, self._row, self._adapter = house, scope, row, adapter
        self.id: str = row.session_id
        self.key: str = row.key
        self.host: str = row.host

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.host}:{self.key}>"

    def turn(
        self,
        message: str | M | HostMessage,
        *,
        turn_id: str | None = None,
        key: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        if_open: Literal["interrupt", "refuse"] = "interrupt",
    ) -> Turn[M]:
        """
        Begin a turn: the request is sealed and the snapshot pinned when this returns (§ 5, § 9).

        Args:
            message: the user's request, as text, native, or neutral.
            turn_id: the host's id of the turn: the same id again is the same turn, ended or not.
            key: the request's event key, if the host has one: without a turn_id, the same request again is the turn it
                began.
            worktree, commit: where the turn happens; None as the session has it.
            if_open: what to do with an earlier open turn of this process, one that is suspended, or whose process died:
                end it as interrupted, or refuse.

        Raises:
            SessionBusy: the open turn is alive in another process; or any is open, and ``if_open`` is "refuse".
            BadArgument: the message holds no user's request.
            RevisionConflict: another request under a turn_id or a key that is sealed.

        Atomic: all of it or nothing. Idempotent by ``turn_id``, else by the request's key.
        """
        if if_open not in ("interrupt", "refuse"):
            raise BadArgument(f"if_open is 'interrupt' or 'refuse', not {if_open!r}")
        if turn_id is not None and not 0 < len(turn_id) <= 200:
            raise BadArgument("a turn_id has 1 to 200 characters; leave it out for one of ours")
        self._house.writable()
        request = take(self._adapter, HostMessage.user(message) if isinstance(message, str) else message, key)
        if not any(said.role == "user" and said.parts for said in request.neutral):
            raise BadArgument("a turn begins with a user's message; use note() or report() for what nobody asked")
        admitted = turns.admit(
            self._scope, self._row, request.neutral, turn_id=turn_id, worktree=worktree, commit=commit, if_open=if_open
        )
        turn = Turn(self._house, self._scope, self._row, self._adapter, admitted.turn)
        if admitted.created:
            turn.hold_request(request)
        return turn

    def resume(self, turn_id: str | None = None) -> Turn[M]:
        """
        Take up the suspended turn, with its snapshot, in whatever process.

        Raises:
            UnknownRef: no turn is suspended, or not the one of that id.
            SessionBusy: it is running in a live process.
        """
        self._house.writable()
        return Turn(self._house, self._scope, self._row, self._adapter, turns.resume(self._scope, self._row, turn_id))

    def note(self, text: str, *, at: datetime | None = None) -> str:
        """Seal a note, into the open turn or as a turn of its own; its canonical ref."""
        self._house.writable()
        return turns.say(self._scope, self._row, HostMessage("user", (TextPart(text),), at=at), "note", "completed")

    def report(self, name: str, text: str, *, complete: bool = True) -> str:
        """
        Seal a subagent's or background report, into the open turn or as a turn of its own; its canonical ref.

        Such a turn is completed if the report is, else interrupted.
        """
        self._house.writable()
        message = HostMessage("tool", (ReportPart(name, text, complete),))
        return turns.say(self._scope, self._row, message, None, "completed" if complete else "interrupted")

    def preview(self, budget: Budget, *, request: str = "") -> Context[M]:
        """
        The context that the next turn would get, its request included if one is given; nothing is written.

        An open turn counts as not ended: its records are not in it.

        Raises:
            SummariesPending: as a turn's first context would, at once.
            CoverTooLarge, ContextTooLarge: the budget is too small.
        """
        message = [HostMessage.user(request)] if request else []
        native: list[M] = []
        if message:
            if not can_rebuild(self._adapter):
                raise ConfigError("this adapter cannot make a native request from text; preview without one")
            native = list(self._adapter.rebuild(message))
        return preview(
            self._scope,
            self._row,
            self._adapter,
            native,
            budget,
            budget.tokenizer or self._house.tokenizer,
        )

    def info(self) -> SessionInfo:
        """The session as it is now."""
        with self._scope.store.read() as db:
            eyes = owner_reading(self._scope, db)
            info = listing.session_info(eyes, db, registry.session_by_pk(db, self._row.session_pk))
            return cast("SessionInfo", info)  # the owner sees every session

    def turns(self, *, limit: int = 50, cursor: str | None = None) -> Page[TurnInfo]:
        """The session's turns, oldest first; ``limit`` up to 200."""
        with self._scope.store.read() as db:
            row = registry.session_by_pk(db, self._row.session_pk)
            return listing.turn_list(owner_reading(self._scope, db), db, row, limit=limit, cursor=cursor)
