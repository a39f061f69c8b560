"""
What every use case is handed: one scope of one open file.

Decides: what is cached in a process, and how long it may be believed.
Refuses to know: any use case.

Whatever is cached is either immutable (a chain, a recipe's key, a node's tokens) or held under the revision that it was
true for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

import xxhash
from attrs import define, field, frozen

from optchat.core.compactor_view import Part
from optchat.core.lineage import Chain
from optchat.core.policy import Policy
from optchat.core.ports import Clock, Tokenizer
from optchat.core.tree import Node, Recipe
from optchat.core.views import Frontier, ViewPolicy
from optchat.store.connection import Store
from optchat.store.registry import load_chain
from optchat.store.rows import Connection
from optchat.store.scopes import ScopeRow

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Drafts: TypeAlias = Mapping[int, Node]  # by node key: revisions that are thought of and not committed
NO_DRAFTS: Final[Drafts] = MappingProxyType({})


class Recent(Generic[K, V]):
    """The values used last, up to a number of them. Safe for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            return None

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def take(self, key: K) -> V | None:
        """Remove and return: whoever takes a value owns it."""
        with self._lock:
            return self._values.pop(key, None)


@frozen
class HeldFrontier:
    """A frontier in memory and the view revision that it is true for."""

    revision: int
    frontier: Frontier


@define
class Past:
    """
    What was found out about a session's tree for the compactor's views: positions and sizes, never texts.

    A part of a view that was planned stays as it was planned, whatever lands later: requests share it as a prefix.
    """

    durable: int = 0  # so many leaves from the first on are there
    leaves: Recent[int, tuple[int, ...]] = field(factory=lambda: Recent(16))  # by first leaf of a block: line bytes
    parts: Recent[tuple[int, int, int], Part] = field(factory=lambda: Recent(64))  # by start, end and bytes


@frozen
class Call:
    """A call's receipt until it is written down: with the next thing that its turn writes."""

    step: int
    sent: dict[str, Any]


@define
class Caches:
    """One set a file, shared by its scopes."""

    chains: Recent[int, Chain] = field(factory=lambda: Recent(4096))
    frontiers: Recent[int, HeldFrontier] = field(factory=lambda: Recent(256))
    recipes: Recent[tuple[int, Recipe], int] = field(factory=lambda: Recent(256))
    tokens: Recent[tuple[str, int, int], int] = field(factory=lambda: Recent(200_000))
    texts: Recent[tuple[str, int], int] = field(factory=lambda: Recent(4096))
    pasts: Recent[int, Past] = field(factory=lambda: Recent(256))  # by tree
    calls: Recent[int, Call] = field(factory=lambda: Recent(4096))  # by turn: its last one


@frozen
class Scope:
    """One scope of one open file, with the settings of this process."""

    store: Store
    row: ScopeRow
    policy: Policy
    clock: Clock
    caches: Caches
    wake: Callable[[], None]  # tells this process's worker that jobs were added
    drafts: Drafts = field(default=NO_DRAFTS, eq=False)  # what its trees show in place of stored nodes

    @property
    def pk(self) -> int:
        return self.row.scope_pk

    @property
    def view_policy(self) -> ViewPolicy:
        return ViewPolicy(self.row.view_high_bytes, self.row.view_low_bytes)

    def count(self, tokenizer: Tokenizer, text: str) -> int:
        """The tokens of a text, counted once for a tokenizer while it is in use."""
        key = (tokenizer.name, xxhash.xxh3_128_intdigest(text.encode("utf-8", "surrogatepass")))
        found = self.caches.texts.get(key)
        if found is None:
            found = tokenizer.count(text)
            self.caches.texts.put(key, found)
        return found

    def remembering(self, tokenizer: Tokenizer) -> Tokenizer:
        """A tokenizer for adapters: they count the same blocks alone and together, and most of them again next turn."""
        return _Remembering(self, tokenizer)

    def now(self) -> int:
        """Microseconds since 1970."""
        return microseconds(self.clock.now())

    def chain(self, db: Connection, segment_pk: int) -> Chain:
        """A segment's chain: it never changes, so it is read once."""
        found = self.caches.chains.get(segment_pk)
        if found is None:
            found = load_chain(db, segment_pk)
            self.caches.chains.put(segment_pk, found)
        return found


@frozen
class _Remembering:
    """A tokenizer that counts a text once."""

    scope: Scope
    of: Tokenizer

    @property
    def name(self) -> str:
        return self.of.name

    def count(self, text: str, /) -> int:
        return self.scope.count(self.of, text)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """An aware time as stored: exact, where a float of seconds would not be."""
    delta = at - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def utc_offset_seconds(at: datetime) -> int:
    """The offset in which an aware time was given."""
    offset = at.utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
