"""
Every read, in a thread (§ 8).

Decides: how a method of the synchronous façade is awaited.
Refuses to know: what it does.

A method that takes and gives nothing of the façade's own is made of the synchronous one, so that the two cannot differ:
name, parameters, defaults, types and documentation are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from optchat.aio.threads import Threads
from optchat.memory import Reader

P = ParamSpec("P")
T = TypeVar("T")


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A synchronous handle's method, for the asynchronous handle of it."""

    @wraps(method)
    async def hop(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        threads: Threads = self._threads
        return await threads.run(lambda: method(self._there(), *args, **kwargs))

    return as_of(method, hop)


F = TypeVar("F", bound=Callable[..., object])


def as_of(method: Callable[..., object], hop: F) -> F:
    """Name a method of an asynchronous class by what it was made of."""
    hop.__module__ = method.__module__.replace("optchat.memory", "optchat.aio")
    hop.__qualname__ = f"Async{method.__qualname__}"
    return hop


class AsyncReader:
    """:class:`optchat.Reader`, awaited: every read, under one snapshot."""

    def __init__(self, threads: Threads, reader: Reader) -> None:
        """Made by ``memory.pin``."""
        self._threads, self._reader = threads, reader

    def _there(self) -> Reader:
        """The synchronous one, for a thread."""
        return self._reader

    zoom = awaited(Reader.zoom)
    search = awaited(Reader.search)
    date = awaited(Reader.date)
    sessions = awaited(Reader.sessions)
    work = awaited(Reader.work)
    view = awaited(Reader.view)
    source = awaited(Reader.source)
