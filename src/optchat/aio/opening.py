"""
Openings: what can be awaited, or entered.

Decides: the two ways to write it.
Refuses to know: what is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Opening(AbstractAsyncContextManager[T_co, None], Protocol[T_co]):
    """
    ``x = await f()``, or ``async with f() as x``, as of ``aiosqlite.connect``; once.

    Nothing happens before that. Cancelled while it opens, what was opened is left again.
    """

    def __await__(self) -> Generator[Any, None, T_co]:
        """Open; to be ended by hand."""
        ...


class LazyOpening(Generic[T]):
    """An opening made of a coroutine, so that one that is forgotten is told by Python: "was never awaited"."""

    def __init__(
        self,
        begin: Coroutine[Any, Any, T],
        end: Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[object]],
    ) -> None:
        self._begin, self._end = begin, end

    def __await__(self) -> Generator[Any, None, T]:
        return self._begin.__await__()

    async def __aenter__(self) -> T:
        return await self._begin

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        await self._end(et, e, tb)
