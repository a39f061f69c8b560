"""
Rehearsing: what a use case would do, without doing it.

Decides: that its transactions are undone at their end, and that nothing is believed of what they did.
Refuses to know: which use case it is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from attrs import evolve, frozen

from optchat.engine.handle import Caches, Scope
from optchat.store.connection import Store
from optchat.store.rows import Connection


class _Undone(Exception):
    """Ends a transaction without a commit; never leaves this module."""


@frozen
class _Rehearsed:
    """A store whose writes are rolled back."""

    store: Store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    @contextmanager
    def write(self, *, wait_seconds: float | None = None) -> Generator[Connection]:
        with suppress(_Undone), self.store.write(wait_seconds=wait_seconds) as db:
            yield db
            raise _Undone


def rehearsal(scope: Scope) -> Scope:
    """A scope on which a use case answers as it would, and has changed nothing when it returns: for one, and once."""
    return evolve(scope, store=cast("Store", _Rehearsed(scope.store)), caches=Caches(), wake=lambda: None)
