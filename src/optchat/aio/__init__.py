"""
The façade for asynchronous code: the same names, for asyncio and trio.

``open``, ``turn``, ``resume`` and ``pin`` give an :class:`Opening`: ``x = await f()``, or ``async with f() as x``. All
other methods are awaited; each is one hop to a worker thread, and what it does there is :mod:`optchat`'s.

An operation is whole or not at all. Cancelled before it has a thread, nothing has happened; later, the cancellation is
raised when it is done. What was being opened is left again: a new turn ends as ``interrupted``, a resumed one is
suspended, a file is closed. A wait for summaries takes no thread and ends at once; ``settle`` and ``repair`` break off.
An operation that waits for the writer lock is cancelled when it has it, or after ``Policy.lock_wait_seconds``.

A memory belongs to one event loop at a time. Tasks may share it, its sessions and its turns.

Decides: nothing; it names what is public.
Refuses to know: what an operation does.
"""

from optchat.aio.memory import AsyncMemory, open  # noqa: A004 - `optchat.aio.open` is the contract's name
from optchat.aio.opening import Opening
from optchat.aio.reader import AsyncReader
from optchat.aio.session import AsyncSession
from optchat.aio.turn import AsyncTurn

__all__ = ["AsyncMemory", "AsyncReader", "AsyncSession", "AsyncTurn", "Opening", "open"]
