"""
What the handles of one opened file share.

Decides: who owns the store, the worker and the open turns, and in which order they close.
Refuses to know: scopes' contents.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

from attrs import define, field

from optchat.compactor.worker import Worker
from optchat.core.errors import StoreReadOnly
from optchat.core.policy import Policy
from optchat.core.ports import Clock, Tokenizer
from optchat.engine import turns
from optchat.engine.handle import Caches, Scope
from optchat.store.connection import Store
from optchat.store.scopes import ScopeRow


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        import time

        return time.monotonic()


@define(eq=False)
class House:
    """One opened file: its store, its worker, the caches and the turns that this handle began."""

    store: Store
    policy: Policy
    clock: Clock
    tokenizer: Tokenizer
    worker: Worker | None
    create: bool
    caches: Caches = field(factory=Caches)
    _open_turns: dict[int, Scope] = field(factory=dict[int, Scope])
    _lock: threading.Lock = field(factory=threading.Lock)
    closed: bool = False

    def scope(self, row: ScopeRow) -> Scope:
        """A scope of this file, whose jobs this process's worker works from now on."""
        wake = self.worker.wake if self.worker is not None else _nobody
        scope = Scope(self.store, row, self.policy, self.clock, self.caches, wake)
        if self.worker is not None:
            self.worker.add(scope)
        return scope

    def writable(self) -> None:
        if self.store.read_only:
            raise StoreReadOnly(f"{self.store.path} was opened with mode='ro'; open it with 'rw' to write")

    def began(self, turn_pk: int, scope: Scope) -> None:
        with self._lock:
            self._open_turns[turn_pk] = scope

    def done(self, turn_pk: int) -> None:
        """The turn ended or was suspended: closing leaves it alone."""
        with self._lock:
            self._open_turns.pop(turn_pk, None)

    def close(self) -> None:
        """End this handle's open turns as interrupted, stop the worker, and close the file. Idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            left = list(self._open_turns.items())
            self._open_turns.clear()
        try:
            for turn_pk, scope in left:
                turns.end_own(scope, turn_pk, "interrupted", "the memory was closed")
        finally:
            try:
                if self.worker is not None:
                    self.worker.close()
            finally:
                self.store.close()


def _nobody() -> None:
    return None
