"""What holds an operation up in its thread, until the test says so."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import anyio
from attrs import frozen

import optchat

PATIENCE_SECONDS = 60.0  # no test waits so long, unless it has failed


class Attempt:
    """
    An operation in a task of its own, which can be cancelled in two ways.

    ``ended``: "returned", "cancelled", or the error; None as long as it runs.
    """

    def __init__(self, how: str) -> None:
        self._native = how.endswith("task")
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self.ended: str | Exception | None = None
        self.value: Any = None

    def cancel(self) -> None:
        if self._native:
            assert self._task is not None
            self._task.cancel()
        else:
            self._scope.cancel()

    async def run(self, operation: Callable[[], Awaitable[Any]]) -> None:
        if self._native:
            self._task = asyncio.current_task()
        with self._scope:
            try:
                self.value = await operation()
                self.ended = "returned"
            except anyio.get_cancelled_exc_class():
                self.ended = "cancelled"
                if not self._native:
                    raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
                self.ended = error


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - it is a thread's doing
            await anyio.sleep(0.001)


@frozen
class Said:
    """A message of the host. ``slow``: reading it takes until the gate is opened."""

    text: str
    by_user: bool = False
    slow: bool = False


class Gate:
    """``inside``: how many threads stand before it; ``most``: how many did at once."""

    info = optchat.HostInfo(name="gate")

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._lock = threading.Lock()
        self.inside = self.most = 0

    def open(self) -> None:
        self._opened.set()

    def decode(self, message: Said, /) -> Sequence[optchat.HostMessage]:
        if message.slow:
            with self._lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            assert self._opened.wait(PATIENCE_SECONDS)
            with self._lock:
                self.inside -= 1
        said = optchat.HostMessage.user if message.by_user else optchat.HostMessage.assistant
        return [said(message.text)]

    def encode(self, blocks: Sequence[optchat.MemoryBlock], /) -> Sequence[Said]:
        return [Said(block.text, by_user=True) for block in blocks]

    def count(self, message: Said, tokenizer: optchat.Tokenizer, /) -> int:
        return tokenizer.count(message.text)


class Stuck:
    """A summarizer that answers when it is told to, and not before."""

    name, window_tokens = "stuck-1", 100_000

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._told = threading.Event()

    def answer(self) -> None:
        self._told.set()

    def begin_again(self) -> None:
        self.asked.clear()
        self._told.clear()

    async def summarize(self, request: optchat.SummaryRequest, /) -> str:
        self.asked.set()
        while not self._told.is_set():  # noqa: ASYNC110 - told from another thread
            await anyio.sleep(0.001)
        return request.sources[0].text[:40]


class Writing:
    """A block in which another thread holds the writer lock, until it is told to end."""

    def __init__(self, memory: optchat.Memory) -> None:
        self._store = memory._scope.store
        self._holds, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        with self._store.write():
            self._holds.set()
            assert self._end.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._holds.wait(PATIENCE_SECONDS)
        return self

    def waited_for(self) -> bool:
        """Whether somebody waits for the lock."""
        assert self._store._lock is not None
        return bool(self._store._lock._mutex._waiters)

    def end(self) -> None:
        self._end.set()

    def __exit__(self, *_exception: object) -> None:
        self.end()
        self._thread.join()
