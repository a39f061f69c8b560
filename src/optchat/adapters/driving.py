"""
The request path of § 13, as an integration's hooks walk it.

Decides: the order (reconcile and admit, context before each model call, observe what is final, end with the outcome),
and that a hook which never ran stops the turn.
Refuses to know: any host: where its hooks are, and what its messages look like beyond the adapter's codec.

A host calls the hooks that it has. One that it does not call is the usual way in which memory is silently missing: the
model answers, and nothing was in its request. So what a driver observes first from an assistant has to come after a
context.

There are two of them, for hosts whose hooks are plain functions and for those whose hooks are awaited; they say the
same. An asynchronous host's last words often come while its task is being cancelled: :meth:`AsyncDriver.close` and
:meth:`AsyncDriver.pause` are done all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from optchat.aio import AsyncMemory, AsyncSession, AsyncTurn, Opening
from optchat.aio.opening import LazyOpening
from optchat.core.budget import Budget
from optchat.core.errors import HostUnsupported
from optchat.core.messages import HostMessage
from optchat.core.ports import HostAdapter
from optchat.core.terms import Outcome
from optchat.memory.memory import Memory
from optchat.memory.session import Session
from optchat.memory.turn import Turn

M = TypeVar("M")


class _Watch(Generic[M]):
    """Whether the model was asked with memory, before anything that it said is sealed."""

    def __init__(self, adapter: HostAdapter[M]) -> None:
        self._adapter = adapter
        self.asked = False

    def check(self, messages: Sequence[M], sealed: Callable[[], Iterable[HostMessage]]) -> None:
        """
        Args:
            sealed: the turn's messages: what an earlier process asked for counts, and its answers are sealed already.

        Raises:
            HostUnsupported: an assistant's message, and no context before it.
        """
        if self.asked or not _speaks(said for message in messages for said in self._adapter.decode(message)):
            return
        self.asked = _speaks(sealed())
        if not self.asked:
            raise HostUnsupported(
                f"the host {self._adapter.info.name!r} asked its model without memory: the hook before the model call"
                " never ran; check that it is registered, and that this version of the host calls it"
            )


def _speaks(messages: Iterable[HostMessage]) -> bool:
    return any(message.role == "assistant" for message in messages)


class Driver(Generic[M]):
    """
    One turn as a host's hooks drive it, made by :func:`admit` or :func:`take_up`; a ``with`` block ends it as a
    turn's own does.
    """

    def __init__(self, turn: Turn[M], adapter: HostAdapter[M], budget: Budget, watch: _Watch[M] | None = None) -> None:
        self.turn = turn
        self._budget = budget
        self._watch = watch or _Watch(adapter)

    def before_model(self, active: Sequence[M], *, budget: Budget | None = None) -> list[M]:
        """
        What the host has to send instead of its list: memory, then the turn's own messages by identity, in a new list.

        Args:
            active: the turn's native messages so far, request first; nothing of earlier turns.
            budget: of this call, where calls differ in what is sent beside the messages; None: the turn's.

        Raises:
            MemoryNotReady, ContextTooLarge, ToolProtocolError, TurnEnded: as ``Turn.context``.
        """
        messages = self.turn.context(budget or self._budget, active=active).messages
        self._watch.asked = True
        return messages

    def observe(self, messages: Sequence[M]) -> tuple[str, ...]:
        """
        Seal what is new of the turn so far, request first, each message final. Idempotent.

        Raises:
            HostUnsupported: the model answered, and :meth:`before_model` never ran: its request had no memory. Nothing
                is sealed.
            TurnEnded, RevisionConflict, ResyncNeeded: as ``Turn.observe``.
        """
        self._watch.check(messages, lambda: self.turn.messages)
        return self.turn.observe(messages)

    def suspend(self) -> None:
        """Leave the turn open, with its snapshot, for :func:`take_up` in any process: an approval, a long wait."""
        self.turn.suspend()

    def end(self, outcome: Outcome, detail: str | None = None) -> None:
        """End the turn as the host tells it; the first terminal report wins."""
        self.turn.end(outcome, detail)

    def close(self, messages: Sequence[M], outcome: Outcome, detail: str | None = None) -> None:
        """
        :meth:`observe` what the host has of the turn, then :meth:`end` it; ended it is whatever observing raises.

        A completed turn of which not all could be sealed is failed.
        """
        try:
            self.observe(messages)
        except BaseException:
            self.end("failed" if outcome == "completed" else outcome, detail)
            raise
        self.end(outcome, detail)

    def pause(self, messages: Sequence[M]) -> None:
        """:meth:`observe` what the host has of the turn, then :meth:`suspend` it, whatever observing raises."""
        try:
            self.observe(messages)
        finally:
            self.suspend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        self.turn.__exit__(et, e, tb)


class AsyncDriver(Generic[M]):
    """:class:`Driver`, awaited, made by :func:`admit_async` or :func:`take_up_async`. The loop is never blocked."""

    def __init__(self, turn: AsyncTurn[M], adapter: HostAdapter[M], budget: Budget) -> None:
        self.turn = turn
        self._budget = budget
        self._watch = _Watch(adapter)
        # The same turn in a thread. What ends a turn must not be lost to a cancellation, which AsyncTurn.end may be.
        self._threads = turn._threads  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        inner = turn._turn  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        self._plain = Driver(inner, adapter, budget, self._watch)

    async def before_model(self, active: Sequence[M], *, budget: Budget | None = None) -> list[M]:
        """:meth:`Driver.before_model`, awaited; the wait for summaries takes no thread."""
        context = await self.turn.context(budget or self._budget, active=active)
        self._watch.asked = True
        return context.messages

    async def observe(self, messages: Sequence[M]) -> tuple[str, ...]:
        """:meth:`Driver.observe`, awaited: of the list as it is now."""
        given = list(messages)
        return await self._threads.run(lambda: self._plain.observe(given))

    async def suspend(self) -> None:
        """:meth:`Driver.suspend`, whatever is cancelled."""
        await self._threads.finish(self._plain.suspend)

    async def end(self, outcome: Outcome, detail: str | None = None) -> None:
        """:meth:`Driver.end`, whatever is cancelled."""
        await self._threads.finish(lambda: self._plain.end(outcome, detail))

    async def close(self, messages: Sequence[M], outcome: Outcome, detail: str | None = None) -> None:
        """:meth:`Driver.close`, whatever is cancelled."""
        given = list(messages)
        await self._threads.finish(lambda: self._plain.close(given, outcome, detail))

    async def pause(self, messages: Sequence[M]) -> None:
        """:meth:`Driver.pause`, whatever is cancelled."""
        given = list(messages)
        await self._threads.finish(lambda: self._plain.pause(given))


# ---- making them -----------------------------------------------------------------------------------------------------


def admit(
    session: Session[M],
    request: M | HostMessage,
    adapter: HostAdapter[M],
    budget: Budget,
    *,
    turn_id: str | None = None,
    history: Iterable[M | HostMessage] | None = None,
) -> Driver[M]:
    """
    Begin the turn of an admitted request: its snapshot is pinned, and the request is sealed.

    Args:
        turn_id: the host's own name of the run, if it has one that is the same in a retry.
        history: the host's own list of all earlier turns. A host whose user can change it unseen hands it over: before
            anything is pinned the session is reconciled with it, so that what memory lacks of it is sealed. None: such
            changes cannot be, or are told as they are made.

    Raises:
        ResyncNeeded: the history is not the one that is sealed. Memory is off for the session until ``resync``; no turn
            begins.
        SessionBusy: another process's turn of this session is open.
    """
    if history is not None:
        session.reconcile(history)
    return Driver(session.turn(request, turn_id=turn_id), adapter, budget)


def take_up(session: Session[M], adapter: HostAdapter[M], budget: Budget, *, turn_id: str | None = None) -> Driver[M]:
    """
    Go on with a suspended turn: the same turn, and the same snapshot.

    Raises:
        UnknownRef: no turn of the session is suspended.
    """
    return Driver(session.resume(turn_id), adapter, budget)


def admit_async(
    session: AsyncSession[M],
    request: M | HostMessage,
    adapter: HostAdapter[M],
    budget: Budget,
    *,
    turn_id: str | None = None,
    history: Iterable[M | HostMessage] | None = None,
) -> Opening[AsyncDriver[M]]:
    """:func:`admit`, to be awaited, or entered by ``async with``, which ends the turn as a turn's own does."""

    def turn() -> Opening[AsyncTurn[M]]:
        return session.turn(request, turn_id=turn_id)

    return _opening(turn, adapter, budget, lambda: _reconcile(session, history))


def take_up_async(
    session: AsyncSession[M], adapter: HostAdapter[M], budget: Budget, *, turn_id: str | None = None
) -> Opening[AsyncDriver[M]]:
    """:func:`take_up`, to be awaited or entered."""
    return _opening(lambda: session.resume(turn_id), adapter, budget, lambda: _reconcile(session, None))


async def _reconcile(session: AsyncSession[M], history: Iterable[M | HostMessage] | None) -> None:
    if history is not None:
        await session.reconcile(history)


def _opening(
    turn: Callable[[], Opening[AsyncTurn[M]]],
    adapter: HostAdapter[M],
    budget: Budget,
    before: Callable[[], Awaitable[None]],
) -> Opening[AsyncDriver[M]]:
    opened: list[Opening[AsyncTurn[M]]] = []

    async def begin() -> AsyncDriver[M]:
        await before()
        opened.append(turn())
        return AsyncDriver(await opened[0], adapter, budget)

    async def end(et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        await opened[0].__aexit__(et, e, tb)

    return LazyOpening(begin(), end)


# ---- either memory ---------------------------------------------------------------------------------------------------


def awaited(memory: Memory | AsyncMemory) -> AsyncMemory:
    """The memory for hooks that are awaited. One that is plain gets threads of its own."""
    return memory if isinstance(memory, AsyncMemory) else AsyncMemory(memory)


def plain(memory: Memory | AsyncMemory) -> Memory:
    """The memory for hooks that are plain functions."""
    return memory.sync if isinstance(memory, AsyncMemory) else memory
