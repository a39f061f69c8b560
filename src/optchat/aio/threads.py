"""
Worker threads.

Decides: when an operation gets a thread, and what a cancellation does to it.
Refuses to know: what an operation is.

A thread cannot be stopped. So an operation that has begun is waited for, whatever is cancelled: its caller goes on when
it is done, and never beside it. The rules are the same for both kinds of cancellation: a scope's (trio, anyio), and
asyncio's own ``task.cancel()``, which is delivered once, and goes through shields.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, Generic, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from attrs import frozen

from optchat.core.errors import BadArgument, ConfigError
from optchat.memory.waiting import Steps, Stopped

T = TypeVar("T")

_LOG: Final = logging.getLogger("optchat")
_POLL_SECONDS: Final = 0.005  # for the end of an operation whose caller was cancelled
_MOST_PAUSE_SECONDS: Final = 0.1  # between looks for summaries: each takes a thread, and hundreds of turns may wait
_PAUSE_GROWTH: Final = 1.5


class _Job(Generic[T]):
    """One operation: done once, in a thread, or withdrawn before that."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._taken = False
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None

    @property
    def begun(self) -> bool:
        return self._taken

    @property
    def over(self) -> bool:
        return self._done.is_set()

    @property
    def succeeded(self) -> bool:
        return bool(self._value)

    def take(self) -> bool:
        """Whether it is the caller's: the thread's, to do it, or the loop's, so that nobody does."""
        with self._lock:
            mine, self._taken = not self._taken, True
        return mine

    def do(self) -> None:
        """For a thread; whatever it raises is kept."""
        if not self.take():
            return
        try:
            self._value.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error
        finally:
            self._done.set()

    def result(self) -> T:
        try:
            if self._error is not None:
                raise self._error
            return self._value[0]
        finally:
            self._error = None  # its traceback holds this frame


@frozen
class _Step(Generic[T]):
    """A step of something that waits: how long to pause, or its end."""

    pause_seconds: float = 0.0
    value: tuple[T, ...] = ()


class Threads:
    """The threads of one opened file, shared by all its handles."""

    def __init__(self, most: int) -> None:
        """
        Raises:
            BadArgument: ``most`` is no number of threads.
        """
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise BadArgument(f"threads is a whole number from 1 on, not {most!r}; leave it out for 16")
        self._most = most
        self._loop: object = None
        self._limiter: anyio.CapacityLimiter
        self._unlimited: anyio.CapacityLimiter
        self._under_way: set[object] = set()
        self._changed: anyio.Event | None = None  # somebody waits for what is under way
        self._closing: anyio.Event | None = None

    # ---- operations --------------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[], T]) -> T:
        """Do an operation. Cancelled, it has not begun, or its effect is whole."""
        with self._counted():
            return await self._run(work)

    async def stoppable(self, work: Callable[[Stopped], T]) -> T:
        """:meth:`run`, for an operation that may take long and asks now and then whether anybody still waits."""
        stop = threading.Event()
        with self._counted():
            return await self._run(partial(work, stop.is_set), stop.set)

    async def open(self, work: Callable[[], T], leave: Callable[[T, BaseException], object]) -> T:
        """
        :meth:`run`, for what has to be left again: cancelled, the caller gets nothing, so it is left here.

        Args:
            leave: called in a thread with what was opened, and the cancellation.
        """
        with self._counted():
            async with self._thread():
                job = _Job(work)
                cancelled = await self._complete(job)
                if cancelled is None:
                    try:
                        # What is handed out now would be lost at the caller's next await.
                        await anyio.lowlevel.checkpoint_if_cancelled()
                    except anyio.get_cancelled_exc_class() as error:
                        cancelled = error
                if cancelled is None:
                    return job.result()
                if job.succeeded:
                    leaving = _Job(partial(leave, job.result(), cancelled))
                    await self._complete(leaving, must=True)
                    if not leaving.succeeded:
                        _LOG.warning("what was opened for a task that was cancelled could not be left")
                raise cancelled

    async def finish(self, work: Callable[[], T]) -> T:
        """:meth:`run`, for what has to be done whatever is cancelled, before or meanwhile: that is raised then."""
        with self._counted():
            async with self._thread(must=True) as cancelled:
                job = _Job(work)
                later = await self._complete(job, must=True)
                value = job.result()
                for error in (*cancelled, later):
                    if error is not None:
                        raise error
                return value

    async def wait_out(self, steps: Callable[[Stopped], Steps[T]]) -> T:
        """Take each step as :meth:`run` would, and no thread for the pauses; cancelled in one, it ends at once."""
        stop = threading.Event()
        pause = 0.0
        with self._counted():
            taking = steps(stop.is_set)
            try:
                while True:
                    step = await self._run(partial(_next_step, taking), stop.set)
                    if step.value:
                        return step.value[0]
                    pause = max(step.pause_seconds, min(pause * _PAUSE_GROWTH, _MOST_PAUSE_SECONDS))
                    await anyio.sleep(pause)
            finally:
                taking.close()

    async def close(self, work: Callable[[], None]) -> None:
        """
        Wait for the operations that are under way, then close: by whoever comes first, while others wait for it.

        Cancelled, it closes all the same.
        """
        while self._closing is not None:
            await self._closing.wait()
        mine = frozenset(self._under_way)
        self._closing = anyio.Event()
        cancelled: BaseException | None = None
        try:
            with anyio.CancelScope(shield=True):
                while mine & self._under_way:
                    self._changed = self._changed or anyio.Event()
                    try:
                        await self._changed.wait()
                    except anyio.get_cancelled_exc_class() as error:
                        cancelled = error
            await self.finish(work)
        finally:
            self._closing.set()
            self._closing = None
        if cancelled is not None:
            raise cancelled

    # ---- threads -----------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
        async with self._thread():
            job = _Job(work)
            cancelled = await self._complete(job, stop=stop)
            if cancelled is not None:
                raise cancelled
            return job.result()

    async def _complete(
        self, job: _Job[T], *, must: bool = False, stop: Callable[[], None] | None = None
    ) -> BaseException | None:
        """
        Have a job done in a thread, unless it can be withdrawn; a cancellation that came meanwhile, if one did.

        Args:
            must: never withdraw it.
            stop: tells the job that it was cancelled.
        """
        cancelled: BaseException | None = None
        while not job.over:
            try:
                if job.begun:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(_POLL_SECONDS)
                else:
                    with anyio.CancelScope(shield=must):
                        await anyio.to_thread.run_sync(job.do, abandon_on_cancel=True, limiter=self._unlimited)
            except anyio.get_cancelled_exc_class() as error:
                cancelled = error
                if not must and job.take():
                    break
                if stop is not None:
                    stop()
        return cancelled

    @asynccontextmanager
    async def _thread(self, *, must: bool = False) -> AsyncGenerator[list[BaseException]]:
        """
        The right to a thread, for a block.

        Args:
            must: a cancellation does not end the wait for it.

        Yields:
            The cancellations that came while it was waited for.
        """
        token, cancelled = object(), list[BaseException]()
        while True:
            try:
                with anyio.CancelScope(shield=must):
                    await anyio.lowlevel.checkpoint_if_cancelled()
                    try:
                        self._limiter.acquire_on_behalf_of_nowait(token)
                    except anyio.WouldBlock:
                        await self._limiter.acquire_on_behalf_of(token)
                break
            except anyio.get_cancelled_exc_class() as error:
                if not must:
                    raise
                cancelled.append(error)
        try:
            yield cancelled
        finally:
            self._limiter.release_on_behalf_of(token)

    # ---- what is under way -------------------------------------------------------------------------------------------

    @contextmanager
    def _counted(self) -> Generator[None]:
        """An operation, which closing waits for."""
        self._be_in_this_loop()
        token = object()
        self._under_way.add(token)
        try:
            yield
        finally:
            self._under_way.discard(token)
            if self._changed is not None:
                self._changed.set()
                self._changed = None

    def _be_in_this_loop(self) -> None:
        here = anyio.lowlevel.current_token()
        if here == self._loop:
            return
        if self._under_way:
            raise ConfigError("another event loop is using this memory; open it in each loop, or wrap it there anew")
        self._loop = here
        self._limiter = anyio.CapacityLimiter(self._most)
        self._unlimited = anyio.CapacityLimiter(math.inf)  # for anyio's threads: the right to one is given out here


def _next_step(steps: Steps[T]) -> _Step[T]:
    try:
        return _Step(next(steps))
    except StopIteration as done:
        return _Step(value=(done.value,))
