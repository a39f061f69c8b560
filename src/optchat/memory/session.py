"""
Sessions (§ 12): one conversation's handle.

Decides: how a session looks to a caller.
Refuses to know: how a turn is rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.errors import BadArgument, ConfigError
from optchat.core.forgetting import DeletionReceipt
from optchat.core.messages import HostMessage, ReportPart, TextPart
from optchat.core.ports import HostAdapter
from optchat.core.reconciling import HostList, read_list
from optchat.core.retrieval import Page, SessionInfo, TurnInfo
from optchat.core.status import ResyncReport
from optchat.engine import forgetting, freshness, lifecycle, listing, reconciling, turns
from optchat.engine.handle import Scope
from optchat.engine.preview import preview
from optchat.engine.sights import owner_reading
from optchat.engine.turns import check_not_deleted
from optchat.memory.house import House, check_name
from optchat.memory.messages import can_rebuild, take
from optchat.memory.turn import Turn
from optchat.store import registry
from optchat.store.registry import SessionRow
from optchat.store.rows import Connection

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
            GenerationSuperseded: the session was rewound by another handle; take it anew.

        Atomic: all of it or nothing. Idempotent by ``turn_id``, else by the request's key.

        A request with the key of an earlier one and a higher revision is an edit (§ 12): the session is rewound to
        before the turn that the earlier one began, and this turn is in its place, in the same transaction.
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
        self._row = admitted.session  # an edited request began the next generation, and this handle goes on in it
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

    # ---- the host's own history --------------------------------------------------------------------------------------

    def reconcile(self, messages: Iterable[M | HostMessage]) -> ResyncReport:
        """
        Compare the host's messages with what is sealed, by content, and seal what is new (§ 3, § 12).

        What is new goes into the open turn where the list goes on with that, else into turns of its own, which end as
        the list says, or by their last record. A message's ``turn_id`` names its turn; without, a user's message begins
        one.

        Args:
            messages: the session's whole history, in order; one whose first known key is sealed further on is its tail.

        Returns:
            In records: ``kept`` were sealed as they are, ``sealed`` are new, in so many ``turns``. ``skipped`` counts
            messages by reason: ``no_source`` (the host's summaries, system messages), ``redelivered``, ``removed`` (its
            turn was deleted here).

        Raises:
            ResyncNeeded: the list changes, lacks or reorders what is sealed. Memory is off for the session, for every
                process, until :meth:`resync`.
            SessionBusy: a turn runs in another process, and the list has less, or more, than it has sealed.
            BadArgument: a turn that goes on after another began, or a key or call id with other content.
            SessionDeleted: the session is no more.

        Atomic: all that is new or nothing. Idempotent: again, nothing is new.
        """
        self._house.writable()
        return reconciling.reconcile(self._scope, self._row.session_pk, self._listed(messages))

    def resync(self, messages: Iterable[M | HostMessage]) -> ResyncReport:
        """
        Make the session's history that of the host: go back to where both agree, and seal the rest (§ 12).

        Where they differ, the session is rewound to the end of the last turn that both have whole: what is kept keeps
        its refs, what is not answers only to its old ones. The part of a cut turn that both have is sealed again, in
        the turn that goes on. On an empty session this is an import.

        Args:
            messages: as for :meth:`reconcile`.

        Returns:
            As :meth:`reconcile`; ``retired`` are the records that the host's history has no longer.

        Raises:
            SessionBusy: a turn of the session runs in another process.
            BadArgument, SessionDeleted: as for :meth:`reconcile`.

        Atomic: the history before or the one after. Idempotent: again, everything is kept.
        """
        self._house.writable()
        report = reconciling.resync(self._scope, self._row.session_pk, self._listed(messages))
        with self._scope.store.read() as db:
            self._row = registry.session_by_pk(db, self._row.session_pk)  # the generation that this handle goes on in
        return report

    def host_holds(self, messages: int) -> int:
        """
        Say how many messages the host holds of this session; how many of them memory does not (§ 3).

        Where it lacks some, ``memory.status()`` is not ready from now on, and says since when, until they are there: so
        a host whose messages no longer arrive is seen. :meth:`reconcile` and :meth:`resync` say it by themselves.

        Args:
            messages: the user's, the assistant's and the tools'; system messages and the host's summaries do not count.

        Raises:
            BadArgument: less than none.
            SessionDeleted: the session is no more.
        """
        if isinstance(messages, bool) or not isinstance(messages, int) or messages < 0:
            raise BadArgument(f"a host holds 0 messages or more, not {messages!r}")
        self._house.writable()
        return freshness.host_holds(self._scope, self._row.session_pk, messages)

    def _listed(self, messages: Iterable[M | HostMessage]) -> HostList:
        natives = [take(self._adapter, message).neutral for message in messages]
        for said in chain.from_iterable(natives):
            if said.turn_id is not None and not 0 < len(said.turn_id) <= 200:
                raise BadArgument("a turn_id has 1 to 200 characters; leave it out for one of ours")
        return read_list(natives, drops_unfinished=self._adapter.info.drops_unfinished)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def info(self) -> SessionInfo:
        """The session as it is now; SessionDeleted if it is no more."""
        with self._scope.store.read() as db:
            eyes = owner_reading(self._scope, db)
            info = listing.session_info(eyes, db, self._present(db))
            return cast("SessionInfo", info)  # the owner sees every session

    def turns(self, *, limit: int = 50, cursor: str | None = None) -> Page[TurnInfo]:
        """The session's turns, oldest first; ``limit`` up to 200. SessionDeleted if it is no more."""
        with self._scope.store.read() as db:
            row = self._present(db)
            return listing.turn_list(owner_reading(self._scope, db), db, row, limit=limit, cursor=cursor)

    def _present(self, db: Connection) -> SessionRow:
        row = registry.session_by_pk(db, self._row.session_pk)
        check_not_deleted(row)
        return row

    # ---- lifecycle ---------------------------------------------------------------------------------------------------

    def fork(self, key: str, *, after: str | None = None) -> Session[M]:
        """
        Begin another session whose own past is this one's, up to the end of a turn (§ 12).

        Of the same host. Nothing is copied; what is inherited is not published again, and later turns of this session
        are visible to the fork as any other session's. A fork of an isolated or revoked session is one, too.

        Args:
            key: the host's own id of the new conversation.
            after: the id of the last turn that is kept, of this session or of one that it was forked from; None: the
                last that has ended. An open turn is not part of a fork.

        Raises:
            UnknownRef: no such turn here.
            BadArgument: the turn has not ended; or a key that cannot be.
            ConfigError: another session has the key.
            GenerationSuperseded: this session was rewound by another handle; take it anew.
            ResyncNeeded, SessionDeleted: this session's history is not to be gone on from.

        Atomic. Idempotent: the same fork again, after a crash too, is the same session.
        """
        check_name("key", key)
        self._house.writable()
        row = lifecycle.fork(self._scope, self._row, key, after)
        return Session(self._house, self._scope, row, self._adapter)

    def rewind(self, *, after: str | None = None, before: str | None = None) -> None:
        """
        Go back to the end of a turn, or to before one, as the session's next generation (§ 12).

        What lay above is superseded: its publications are retired, and its records answer to refs that name their
        generation, and nowhere else. Forks keep what they rest on; other sessions' open turns see what they saw. The
        session's own open turn ends as interrupted. This handle goes on in the new generation; others must be taken
        anew.

        Args:
            after: the id of the last turn that is kept. before: of the first that is not. Exactly one of them.

        Raises:
            BadArgument: none or both; or ``after`` a turn that has not ended.
            UnknownRef: no such turn in the present history.
            SessionBusy: the open turn is alive in another process.
            GenerationSuperseded: the session was rewound by another handle already; take it anew.
            ResyncNeeded, SessionDeleted: the session's history is not to be gone on from.

        Atomic. Idempotent: where the session stands there already, nothing changes.
        """
        if (after is None) == (before is None):
            raise BadArgument(
                "rewind takes one turn id; give the last that is kept as after=, or the first that is not as before="
            )
        self._house.writable()
        self._row = lifecycle.rewind(self._scope, self._row, after=after, before=before)

    def archive(self) -> None:
        """
        Hide the session from ``sessions()``, unless archived ones are asked for; nothing is forgotten (§ 12).

        What it published stays visible, and it can go on. Idempotent. SessionDeleted if it is no more.
        """
        self._house.writable()
        lifecycle.archive(self._scope, self._row, archived=True)

    def unarchive(self) -> None:
        """Show the session in ``sessions()`` again. Idempotent. SessionDeleted if it is no more."""
        self._house.writable()
        lifecycle.archive(self._scope, self._row, archived=False)

    def share(self, *, history: bool = False) -> None:
        """
        Share a session that was revoked: the turns that begin from now on are published (§ 11, § 12).

        To move a session to another scope, revoke it here and say it there: a scope is never left by what it holds.

        Args:
            history: also what it said before, published again at new numbers, in the order of its turns.

        Raises:
            ConfigError: it is isolated; or, with ``history``, a later part of it is shared already: revoke it first.
            SessionDeleted: it is no more.

        Atomic. Idempotent: where it is shared already, nothing changes.
        """
        self._house.writable()
        lifecycle.share(self._scope, self._row, history=history)

    def revoke(self) -> None:
        """
        Share nothing of this session any more (§ 12): what it published is gone for everybody, and none is made.

        The session goes on, in private, with all that it said; a fork keeps what it rests on. Open turns of others that
        could see some of it pin anew at their next context. :meth:`share` shares again, at new numbers.

        Raises:
            SessionDeleted: the session is no more.

        Atomic. Idempotent.
        """
        self._house.writable()
        forgetting.revoke(self._scope, self._row)

    def delete(
        self, *, only: Sequence[str] | None = None, forks: Literal["preserve", "forget"] = "preserve"
    ) -> DeletionReceipt:
        """
        Delete this session, or some of its turns (§ 12).

        By the time this returns no read of any kind finds any of it, and nothing under way can bring it back; open
        turns that could see some of it pin anew at their next context. Its bytes leave the file after that, in the
        background or by ``memory.settle()``: deleting again says whether they have.

        Args:
            only: turn ids, or refs of publications, of whatever generation; None: all of it. What was kept of a turn
                when it was cut goes with it.
            forks: "preserve": a fork keeps what it rests on as its own history. "forget": it is gone there, too.

        Returns:
            What was removed, what was kept and why, and what cannot be undone.

        Raises:
            UnknownRef: one of ``only`` is no turn of this session; nothing was deleted.
            BadArgument: ``only`` is empty, or holds a turn that a fork has as its own history and is to keep.

        Atomic. Idempotent: again, the same receipt. Its host is told SessionDeleted from now on.
        """
        self._house.writable()
        return forgetting.delete_session(self._scope, self._row, only=only, forks=forks)
