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
from optchat.core.errors import BadArgument, ConfigError, StoreReadOnly
from optchat.core.policy import (
    DEFAULT_NODE_BYTES,
    DEFAULT_VIEW_HIGH_BYTES,
    DEFAULT_VIEW_LOW_BYTES,
    Policy,
)
from optchat.core.ports import Clock, Tokenizer
from optchat.core.records import LEAF_FORMAT
from optchat.core.words import VERSION as PRETOKENIZER
from optchat.engine import turns
from optchat.engine.handle import Caches, Scope, microseconds
from optchat.store import scopes
from optchat.store.connection import Store
from optchat.store.scopes import ScopeRow

NAME_CHARACTERS = 500  # of a scope, a session's key, a host, an alias


class SystemClock:
    """The machine's own time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        import time

        return time.monotonic()


def check_name(what: str, value: str) -> None:
    """
    Raises:
        BadArgument: what a session's key or host cannot be.
    """
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS or not value.isprintable():
        raise BadArgument(f"a session's {what} is 1 to {NAME_CHARACTERS} printable characters; use the host's id")


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
    closing: threading.Event = field(factory=threading.Event)  # ends whatever waits

    def __attrs_post_init__(self) -> None:
        # A segment that was never committed may have been looked at, and its number is given to another one.
        self.store.when_undone.append(self.caches.chains.clear)

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
            self.closing.set()
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


def find_scope(store: Store, name: str, policy: Policy, clock: Clock, *, create: bool) -> ScopeRow:
    """The scope of a name, made if it may be; its format must be what the policy asks for."""
    with store.read() as db:
        row = scopes.find_scope(db, name)
    if row is None:
        if not create:
            raise ConfigError(f"no scope {name!r} in {store.path}; check the name, or open with mode='rwc' to make it")
        with store.write(wait_seconds=policy.lock_wait_seconds) as db:
            row = scopes.find_scope(db, name) or scopes.create_scope(
                db,
                name=name,
                node_bytes=policy.node_bytes or DEFAULT_NODE_BYTES,
                view_high_bytes=policy.view_high_bytes or DEFAULT_VIEW_HIGH_BYTES,
                view_low_bytes=policy.view_low_bytes or DEFAULT_VIEW_LOW_BYTES,
                pretokenizer=PRETOKENIZER,
                leaf_format=LEAF_FORMAT,
                at=microseconds(clock.now()),
            )
    for setting in ("node_bytes", "view_high_bytes", "view_low_bytes"):
        asked, kept = getattr(policy, setting), getattr(row, setting)
        if asked is not None and asked != kept:
            raise ConfigError(
                f"scope {name!r} has {setting}={kept}, not {asked}: it is the scope's format; leave it out of the"
                f" policy"
            )
    return row
