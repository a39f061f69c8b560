"""
Sessions, awaited (§ 12).

Decides: what is left of a turn whose opening is cancelled.
Refuses to know: what a session is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from optchat.aio.opening import Opening
from optchat.aio.reader import awaited
from optchat.aio.threads import Threads
from optchat.aio.turn import AsyncTurn, end_if_new, opening_turn
from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.messages import HostMessage
from optchat.core.status import ResyncReport
from optchat.memory import Session

M = TypeVar("M")


class AsyncSession(Generic[M]):
    """:class:`optchat.Session`, awaited: a cheap handle whose attributes never change."""

    def __init__(self, threads: Threads, session: Session[M]) -> None:
        """Made by ``memory.session``."""
        self._threads, self._session = threads, session
        self.id: str = session.id
        self.key: str = session.key
        self.host: str = session.host

    def __repr__(self) -> str:
        return f"<Async{repr(self._session).removeprefix('<')}"

    def _there(self) -> Session[M]:
        return self._session

    def turn(
        self,
        message: str | M | HostMessage,
        *,
        turn_id: str | None = None,
        key: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        if_open: Literal["interrupt", "refuse"] = "interrupt",
    ) -> Opening[AsyncTurn[M]]:
        """
        :meth:`optchat.Session.turn`, awaited or entered: begin a turn.

        Cancelled while it begins, a turn that is new ends as ``interrupted``; one that was there is left as it was.
        """
        begin = partial(self._session.turn, message, turn_id=turn_id, key=key)
        return opening_turn(
            self._threads, partial(begin, worktree=worktree, commit=commit, if_open=if_open), end_if_new
        )

    def resume(self, turn_id: str | None = None) -> Opening[AsyncTurn[M]]:
        """
        :meth:`optchat.Session.resume`, awaited or entered: take up the suspended turn.

        Cancelled meanwhile, it is suspended again.
        """
        return opening_turn(self._threads, lambda: self._session.resume(turn_id), lambda turn, _: turn.suspend())

    async def preview(self, budget: Budget, *, request: str = "") -> Context[M]:
        """:meth:`optchat.Session.preview`, awaited: the context that the next turn would get; nothing is written."""
        return await self._threads.run(lambda: self._session.preview(budget, request=request))

    async def fork(self, key: str, *, after: str | None = None) -> AsyncSession[M]:
        """:meth:`optchat.Session.fork`, awaited: another session whose own past is this one's, up to a turn's end."""
        return AsyncSession(self._threads, await self._threads.run(lambda: self._session.fork(key, after=after)))

    async def reconcile(self, messages: Iterable[M | HostMessage]) -> ResyncReport:
        """:meth:`optchat.Session.reconcile`, awaited; the messages are read here, before it begins."""
        said = list(messages)
        return await self._threads.run(lambda: self._session.reconcile(said))

    async def resync(self, messages: Iterable[M | HostMessage]) -> ResyncReport:
        """:meth:`optchat.Session.resync`, awaited; the messages are read here, before it begins."""
        said = list(messages)
        return await self._threads.run(lambda: self._session.resync(said))

    host_holds = awaited(Session[Any].host_holds)
    rewind = awaited(Session[Any].rewind)
    archive = awaited(Session[Any].archive)
    unarchive = awaited(Session[Any].unarchive)
    revoke = awaited(Session[Any].revoke)
    share = awaited(Session[Any].share)
    delete = awaited(Session[Any].delete)
    note = awaited(Session[Any].note)
    report = awaited(Session[Any].report)
    info = awaited(Session[Any].info)
    turns = awaited(Session[Any].turns)
