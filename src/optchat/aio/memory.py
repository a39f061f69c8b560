"""
Memory, awaited (§ 11).

Decides: what opening and closing mean in a loop.
Refuses to know: what a memory does.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

from optchat.aio.opening import LazyOpening, Opening
from optchat.aio.reader import AsyncReader, awaited
from optchat.aio.session import AsyncSession
from optchat.aio.threads import Threads
from optchat.core.messages import HostMessage
from optchat.core.policy import Policy
from optchat.core.ports import HostAdapter, Summarizer, Tokenizer
from optchat.core.status import Status
from optchat.engine.neutral import NeutralAdapter
from optchat.memory import Memory, Reader, Session, open as open_here
from optchat.memory.waiting import Steps, Stopped

M = TypeVar("M")
StrPath: TypeAlias = str | PathLike[str]


class AsyncMemory(AsyncReader):
    """
    :class:`optchat.Memory`, awaited: one scope of one file.

    Args:
        memory: any memory, as one of ``optchat.open`` or ``optchat.testing.temporary_memory``; :attr:`sync` gives it
            back, and both may be used side by side.
        threads: how many operations of this file may run at once; more of them wait for their turn. They are this
            memory's own, so that its waits for the writer lock take no thread from anybody else.
    """

    def __init__(self, memory: Memory, *, threads: int = 16) -> None:
        """
        Raises:
            BadArgument: ``threads`` is no whole number from 1 on.
        """
        self._be(Threads(threads), memory, memory, memory.scope)

    def _be(self, threads: Threads, root: Memory, own: Memory | None, name: str) -> None:
        self._threads, self._root, self._own, self._name = threads, root, own, name
        self._looking = threading.Lock()

    def __repr__(self) -> str:
        return f"<AsyncMemory {self._root.path} scope={self._name!r}>"

    @property
    def sync(self) -> Memory:
        """
        The memory itself, for synchronous code.

        That of :meth:`scoped` is looked up when it is first needed: until something was awaited of it, here and now.
        """
        with self._looking:
            if self._own is None:
                self._own = self._root.scoped(self._name)
            return self._own

    def _there(self) -> Memory:
        return self.sync

    # ---- sessions ----------------------------------------------------------------------------------------------------

    @overload
    async def session(
        self,
        key: str,
        *,
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> AsyncSession[HostMessage]: ...
    @overload
    async def session(
        self,
        key: str,
        *,
        adapter: HostAdapter[M],
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> AsyncSession[M]: ...
    async def session(
        self,
        key: str,
        *,
        adapter: HostAdapter[Any] | None = None,
        host: str = "local",
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
        create: bool = True,
        recreate: bool = False,
    ) -> AsyncSession[Any]:
        """:meth:`optchat.Memory.session`, awaited: the session of a host's key, made if it is not there."""

        def session() -> Session[Any]:
            return self.sync.session(
                key,
                adapter=NeutralAdapter() if adapter is None else adapter,
                host=host,
                project=project,
                worktree=worktree,
                commit=commit,
                title=title,
                isolated=isolated,
                create=create,
                recreate=recreate,
            )

        return AsyncSession(self._threads, await self._threads.run(session))

    async def session_by_id(self, session_id: str) -> AsyncSession[HostMessage]:
        """:meth:`optchat.Memory.session_by_id`, awaited: the session of one of our ids."""
        return AsyncSession(self._threads, await self._threads.run(lambda: self.sync.session_by_id(session_id)))

    link_project = awaited(Memory.link_project)

    # ---- other handles -----------------------------------------------------------------------------------------------

    def scoped(self, scope: str) -> AsyncMemory:
        """
        Another scope of the same file, with the same connections, worker and threads; close only what was opened.

        It is looked up, and made, with the first thing that is awaited of it, which raises what
        :meth:`optchat.Memory.scoped` would.
        """
        return _Sharing(self._threads, self._root, None, scope)

    def pin(self, snapshot_id: str | None = None) -> Opening[AsyncReader]:
        """:meth:`optchat.Memory.pin`, awaited or entered: a reader that is fixed at a moment."""
        held: list[AbstractContextManager[Reader]] = []

        def begin() -> AsyncReader:
            held.append(self.sync.pin(snapshot_id))
            return AsyncReader(self._threads, held[0].__enter__())

        async def end(et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
            await self._threads.finish(lambda: held[0].__exit__(et, e, tb))

        return LazyOpening(
            self._threads.open(begin, lambda _, error: held[0].__exit__(type(error), error, error.__traceback__)), end
        )

    def count_tokens(self, *things: object, tokenizer: Tokenizer | None = None) -> int:
        """:meth:`optchat.Memory.count_tokens`: it reads nothing, and is not awaited."""
        return self._root.count_tokens(*things, tokenizer=tokenizer)

    # ---- upkeep ------------------------------------------------------------------------------------------------------

    async def settle(self, timeout_seconds: float | None = None) -> Status:
        """:meth:`optchat.Memory.settle`, awaited; cancelled, it stops working jobs, and gives back those it claimed."""

        def steps(stopped: Stopped) -> Steps[Status]:  # a scope is looked up by its first step, in a thread
            return (yield from self.sync._settling(timeout_seconds, stopped))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade

        return await self._threads.wait_out(steps)

    async def repair(self, ref: str) -> int:
        """:meth:`optchat.Memory.repair`, awaited; cancelled before all texts are there, nothing was changed."""
        return await self._threads.stoppable(
            lambda stopped: self.sync._repair(ref, stopped)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
        )

    retry_failed = awaited(Memory.retry_failed)
    status = awaited(Memory.status)
    verify = awaited(Memory.verify)
    import_file = awaited(Memory.import_file)
    backup = awaited(Memory.backup)
    delete_scope = awaited(Memory.delete_scope)

    async def aclose(self) -> None:
        """
        :meth:`optchat.Memory.close`, awaited, after the operations that are under way.

        What waits for summaries stops waiting. Cancelled, it closes all the same. Idempotent.
        """
        self._root._house.closing.set()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
        await self._threads.close(self._root.close)


class _Sharing(AsyncMemory):
    """A memory whose threads are made already."""

    def __init__(self, threads: Threads, root: Memory, own: Memory | None, name: str) -> None:
        self._be(threads, root, own, name)


def open(
    path: StrPath,
    *,
    scope: str,
    summarizer: Summarizer | None = None,
    fallback: Summarizer | None = None,
    tokenizer: Tokenizer | None = None,
    policy: Policy | None = None,
    compact: Literal["background", "manual"] = "background",
    mode: Literal["rwc", "rw", "ro"] = "rwc",
    threads: int = 16,
) -> Opening[AsyncMemory]:
    """
    :func:`optchat.open`, awaited or entered; ``async with`` closes it. Cancelled while it opens, it is closed again.

    Args:
        threads: how many operations may run at once; those of a ``with`` block's end count, too.

    Raises:
        BadArgument: at once, for ``threads`` that is no whole number from 1 on; else as :func:`optchat.open`.
    """
    own = Threads(threads)

    def begin() -> Memory:
        return open_here(
            path,
            scope=scope,
            summarizer=summarizer,
            fallback=fallback,
            tokenizer=tokenizer,
            policy=policy,
            compact=compact,
            mode=mode,
        )

    held: list[AsyncMemory] = []

    async def opened() -> AsyncMemory:
        memory = await own.open(begin, lambda memory, _cancelled: memory.close())
        held.append(_Sharing(own, memory, memory, scope))
        return held[0]

    return LazyOpening(opened(), lambda _et, _e, _tb: held[0].aclose())
