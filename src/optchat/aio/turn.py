"""
Turns, awaited (§ 5, § 7).

Decides: what is known of a turn without asking for it.
Refuses to know: what a turn is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from threading import Lock
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from optchat.aio.opening import LazyOpening, Opening
from optchat.aio.reader import AsyncReader, as_of, awaited
from optchat.aio.threads import Threads
from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.errors import OptchatError
from optchat.core.messages import HostMessage, ToolCallPart
from optchat.core.policy import Readiness
from optchat.core.snapshots import Snapshot
from optchat.core.terms import Outcome
from optchat.core.tools import Tools
from optchat.memory import Turn

M = TypeVar("M")
P = ParamSpec("P")
T = TypeVar("T")


def sealing(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """:func:`awaited`, for a method after which other calls may be pending."""

    @wraps(method)
    async def hop(self: AsyncTurn[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._sealing(lambda: method(self._turn, *args, **kwargs))  # pyright: ignore[reportPrivateUsage] - its method

    return as_of(method, hop)


class AsyncTurn(AsyncReader, Generic[M]):
    """
    :class:`optchat.Turn`, awaited. Begun when the opening is; ``async with`` ends it, with the same outcomes.

    A cancellation ends it as ``interrupted``, an ``Exception`` as ``failed``; the end is written down whatever else is
    cancelled. Tasks may share a turn.
    """

    def __init__(self, threads: Threads, turn: Turn[M]) -> None:
        """Made by ``session.turn`` and ``session.resume``, in a thread."""
        super().__init__(threads, turn)
        self._turn = turn
        self._asking = Lock()
        self._pending = _pending(turn)
        self.id: str = turn.id
        self.tools: Tools = turn.tools

    def __repr__(self) -> str:
        return f"<Async{repr(self._turn).removeprefix('<')}"

    @property
    def snapshot(self) -> Snapshot:
        """What the turn has pinned."""
        return self._turn.snapshot

    @property
    def outcome(self) -> Outcome | None:
        """How the turn ended; None while it is open, as this process last knew."""
        return self._turn.outcome

    @property
    def pending(self) -> tuple[ToolCallPart, ...]:
        """The calls that no result answers yet, as of this handle's last message; read in the thread that sealed it."""
        return self._turn.pending if self._pending is None else self._pending

    @property
    def messages(self) -> tuple[HostMessage, ...]:
        """What is sealed so far. An attribute cannot be awaited: it is read here, which waits for nobody's lock."""
        return self._turn.messages

    async def context(
        self,
        budget: Budget,
        *,
        active: Sequence[M] | None = None,
        readiness: Readiness | None = None,
        wait_seconds: float | None = None,
    ) -> Context[M]:
        """
        :meth:`optchat.Turn.context`, awaited: what to send to the model now.

        The wait for summaries takes no thread, and a cancellation ends it at once.
        """
        given = None if active is None else list(active)  # as it is now: the caller goes on with his list
        return await self._threads.wait_out(
            lambda _stopped: self._turn._contexts(  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
                budget, given, readiness, wait_seconds
            )
        )

    async def add(self, *messages: M | HostMessage) -> tuple[str, ...]:
        """:meth:`optchat.Turn.add`, awaited: seal the turn's next messages, in one transaction."""
        return await self._sealing(lambda: self._turn.add(*messages))

    async def observe(self, messages: Sequence[M]) -> tuple[str, ...]:
        """:meth:`optchat.Turn.observe`, awaited: seal what is new of the whole turn so far, request first."""
        given = list(messages)
        return await self._sealing(lambda: self._turn.observe(given))

    async def stage(self, message: M | HostMessage) -> None:
        """:meth:`optchat.Turn.stage`, awaited: keep a message that is not final."""
        await self._threads.run(lambda: self._turn.stage(message))

    user = sealing(Turn[Any].user)
    assistant = sealing(Turn[Any].assistant)
    tool_call = sealing(Turn[Any].tool_call)
    tool_result = sealing(Turn[Any].tool_result)
    report = sealing(Turn[Any].report)
    call = awaited(Turn[Any].call)
    suspend = awaited(Turn[Any].suspend)
    end = awaited(Turn[Any].end)

    async def _sealing(self, work: Callable[[], T]) -> T:
        def sealed() -> T:
            done = work()
            with self._asking:  # of tasks that seal at once the last one to ask must be the last one to write it down
                self._pending = _pending(self._turn)
            return done

        return await self._threads.run(sealed)


def opening_turn(
    threads: Threads, begin: Callable[[], Turn[M]], leave: Callable[[Turn[M], BaseException], object]
) -> Opening[AsyncTurn[M]]:
    """
    The opening of a turn.

    Args:
        begin: gives the turn.
        leave: where the task is cancelled meanwhile; gets the turn and the cancellation.
    """
    held: list[Turn[M]] = []

    def opened() -> AsyncTurn[M]:
        held.append(begin())
        return AsyncTurn(threads, held[0])

    async def end(et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        await threads.finish(lambda: held[0].__exit__(et, e, tb))

    return LazyOpening(threads.open(opened, lambda _, cancelled: leave(held[0], cancelled)), end)


def end_if_new(turn: Turn[Any], cancelled: BaseException) -> None:
    """End a turn that its caller never gets; one that was there before is somebody else's."""
    if turn._is_new:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
        turn.__exit__(type(cancelled), cancelled, cancelled.__traceback__)


def _pending(turn: Turn[Any]) -> tuple[ToolCallPart, ...] | None:
    """None where it is not to be had now: what was sealed is sealed, and whoever asks for it is told."""
    try:
        return turn.pending
    except OptchatError:
        return None
