"""
Views: the persistent frontier of a tree (§ 6).

Decides: which lines a tree's view has after a leaf is appended or a node lands, and in which order sibling pairs merge.
Refuses to know: sessions, scopes, text. A line is a span and the bytes of its rendering.

Theory of operation. A frontier is an ordered cover of ``[0, length)`` by aligned spans, so its sequence of levels says
all of it: that is what is stored, one byte a line. Leaves append at the end. Past ``high_bytes`` the frontier enters
shrinking mode: the most due sibling pair merges into its parent until ``low_bytes`` are reached. A batch that runs out
of durable parents stays in shrinking mode and goes on at the next append or landing, whichever comes first: armed on
appends alone, a view would never shrink after the last message.

Why heads suffice. For a fixed span every merge rule here orders pairs by their end alone, so per level one queue
ordered by start has its most due pair in front, and only the heads are compared. A ready pair never goes stale: its two
lines can merge with nobody but each other. A pair whose parent is not durable waits under its parent's key, and a pair
whose parent would not reduce the rendered bytes is dropped, since sizes do not change (a repaired text loads anew).

Invariants: a view covers its prefix exactly, ordered, aligned, without gap or overlap; outside shrinking mode its bytes
are at most ``high_bytes``.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from attrs import evolve, frozen

from optchat.core.errors import BadArgument, IntegrityError
from optchat.core.refs import KEY_BITS, MAX_ORDINAL, Span

_NOTHING: Final[Mapping[Span, int]] = MappingProxyType({})
_LEVEL_BITS: Final = 6  # a span as one integer, start << 6 | level: hashing a Span costs more than a whole merge step
_LEVEL_MASK: Final = (1 << _LEVEL_BITS) - 1


@frozen
class MergeRule:
    """
    How due a sibling pair is: ``(length - end + offset) / count``, with the span ``count`` of one child. Ties go to the
    earlier start.

    The offset is the only freedom on purpose: whatever its value, pairs of one level are due in order of their
    ends, and that is what the queues rest on.
    """

    name: str
    offset: int

    def priority(self, length: int, end: int, count: int) -> float:
        """Exact: a division by a power of two loses nothing below 2**53, and positions end at 2**40."""
        return (length - end + self.offset) / count


PAPER_RULE: Final = MergeRule("paper", 0)
UNIICHAT_RULE: Final = MergeRule("uniichat", 1)  # the original's ``last`` is inclusive; near ties come out otherwise


@frozen
class ViewPolicy:
    """The thresholds H and L in rendered bytes, and the merge rule: part of the scope's format."""

    high_bytes: int
    low_bytes: int
    rule: MergeRule = PAPER_RULE

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.low_bytes <= self.high_bytes:
            raise BadArgument(
                f"low_bytes {self.low_bytes} must lie between 0 and high_bytes {self.high_bytes}; "
                "lower it, or a batch could never end"
            )


@frozen
class FrontierState:
    """The persisted value: one byte a line, its level; the lines cover ``[0, length)`` in order."""

    levels: bytes
    shrinking: bool = False

    @property
    def length(self) -> int:
        return length_of(self.levels)

    @property
    def spans(self) -> tuple[Span, ...]:
        return spans_of(self.levels)


EMPTY_FRONTIER: Final = FrontierState(b"")


@lru_cache(maxsize=256)  # a turn's views are read several times a call, and are the same bytes
def spans_of(levels: bytes) -> tuple[Span, ...]:
    """
    The lines that a levels sequence stands for, in order.

    Raises:
        IntegrityError: a line that is not aligned, or past the last possible position.
    """
    return tuple(Span.at(level, start >> level) for start, level in _starts_of(levels).items())


def levels_of(spans: Iterable[Span]) -> bytes:
    """
    The inverse of :func:`spans_of`.

    Raises:
        IntegrityError: spans that are no gapless cover from 0, or reach past the last possible position.
    """
    levels, end = bytearray(), 0
    for span in spans:
        if span.start != end or span.end > MAX_ORDINAL:
            raise IntegrityError(f"line {span} does not continue a view that covers [0, {end}); rebuild the view")
        levels.append(span.level)
        end = span.end
    return bytes(levels)


def length_of(levels: bytes) -> int:
    """The exclusive end that a levels sequence covers; IntegrityError as :func:`spans_of`."""
    starts = _starts_of(levels)
    if not starts:
        return 0
    last, level = next(reversed(starts.items()))
    return last + (1 << level)


def _starts_of(levels: bytes) -> dict[int, int]:
    """Start and level of every line, in order. Every reading of a levels sequence passes this check."""
    lines: dict[int, int] = {}
    start = 0
    for level in levels:
        if level > KEY_BITS or start & ((1 << level) - 1) or start + (1 << level) > MAX_ORDINAL:
            raise IntegrityError(
                f"the view's line {len(lines)} of level {level} cannot stand at {start}; rebuild the view"
            )
        lines[start] = level
        start += 1 << level
    return lines


@frozen
class FrontierChange:
    """
    A planned step of a frontier, to be stored by one commit: ``state`` is the row's new value.

    ``merges`` are the parents that took their children's place, in order; ``bytes`` and ``length`` are those of the new
    state. ``leaves`` and ``landed`` are what the step was planned for, ``base`` the state it starts from: with them
    :meth:`Frontier.apply` repeats the step without deciding anew.
    """

    state: FrontierState
    merges: tuple[Span, ...]
    bytes: int
    length: int
    base: FrontierState
    leaves: tuple[int, ...] = ()
    landed: Mapping[Span, int] = _NOTHING

    @property
    def changed(self) -> bool:
        """Whether the stored row must move: a landing that nothing waited for leaves it as it is."""
        return self.state is not self.base and self.state != self.base


class Frontier:
    """
    The working structure over one tree's stored frontier: sizes, ready pairs and waiting pairs, in memory.

    Planning only reads it; :meth:`apply` alone changes it. Its owner is whoever holds the tree's write lock: read the
    row, :meth:`restore` unless a frontier true for that row and for the tree's durable nodes is at hand, plan, write
    ``change.state``, commit, and only then apply. A rolled-back transaction never applies, so the structure still
    agrees with the store. A step of several parts is one plan (:func:`plan_appends`); whoever must apply inside a
    transaction throws the frontier away if it rolls back. After another process's commit, restore: the row may be
    equal, while nodes landed. Not safe for several threads at once.
    """

    __slots__ = ("_bytes", "_length", "_lines", "_queues", "_sizes", "_state", "_waiting", "policy")

    def __init__(self, state: FrontierState, sizes: dict[int, int], policy: ViewPolicy) -> None:
        """Use :meth:`restore`; this one takes sizes by packed key, and keeps the mapping."""
        self.policy: Final = policy
        self._sizes = sizes
        self._state = state
        self._lines: dict[int, int] = {}  # start to level, in order
        self._queues: list[list[int]] = []  # by the children's level: starts of the pairs that may merge, ascending
        self._waiting: set[int] = set()  # keys of parents that are not durable while both their children are lines
        self._bytes = self._length = 0
        self._load(state)

    @classmethod
    def restore(cls, state: FrontierState, sizes: Mapping[Span, int], policy: ViewPolicy) -> Frontier:
        """
        Build the working structure of a stored frontier.

        It does not merge: what became possible since the row was written is planned by ``plan_land(frontier, {})``.

        Args:
            sizes: rendered bytes of every line and of every durable ancestor known, also of those that reach past the
                frontier's end. Others are allowed and forgotten.

        Raises:
            IntegrityError: the levels contradict themselves, or a line has no size.
        """
        return cls(state, _packed(sizes), policy)

    @property
    def state(self) -> FrontierState:
        return self._state

    @property
    def bytes(self) -> int:
        """The rendered bytes of all lines."""
        return self._bytes

    @property
    def length(self) -> int:
        return self._length

    def size(self, span: Span) -> int | None:
        """The rendered bytes of a line or of a durable ancestor of lines; None for any other span."""
        return self._sizes.get(_key(span.start, span.level))

    def plan(self, leaves: Sequence[int], landed: Mapping[Span, int]) -> FrontierChange:
        """What :func:`plan_appends` (some leaves) and :func:`plan_land` (none) answer. Reads only."""
        before, policy = self._state, self.policy
        landed = dict(landed) if landed else _NOTHING  # the change is a value: the caller may go on filling its mapping
        length = self._length + len(leaves)
        resized = self._resizes(landed)
        grown = None if resized else plan_growth(before, self._bytes, self._length, leaves, policy)
        if grown is not None:
            return evolve(grown, landed=landed)
        if resized:
            # A repaired text changes a size by which pairs were judged. That is rare: load anew rather than track it.
            fresh = Frontier(before, self._sizes | _packed(landed), policy)
            return evolve(fresh.plan(leaves, _NOTHING), landed=landed)
        draft = self._draft(landed)
        for leaf_bytes in leaves:
            draft.append(leaf_bytes)
            draft.settle(policy)
        if not leaves:
            draft.settle(policy)
        after = FrontierState(draft.levels(before.levels, len(leaves)), draft.shrinking)
        return FrontierChange(after, tuple(draft.merges), draft.bytes, length, before, tuple(leaves), landed)

    def apply(self, change: FrontierChange) -> None:
        """
        Move the working structure to a change that has been committed: repeats its merges, decides nothing.

        Raises:
            IntegrityError: the change was planned from another state, or by another frontier that knew of more nodes.
                This structure is unchanged: restore it from the row.
        """
        known, first = self._sizes, self._length
        if change.base is not self._state and change.base != self._state:
            raise IntegrityError("the change was planned from another state; restore the frontier from its row")
        if any(_key(m.start, m.level) not in known and m not in change.landed for m in change.merges):
            raise IntegrityError("the change was planned with nodes unknown here; restore the frontier from its row")
        if self._resizes(change.landed):
            known.update(_packed(change.landed))
            known.update((_key(first + i, 0), leaf_bytes) for i, leaf_bytes in enumerate(change.leaves))
            self._load(change.state)
            return
        for span, size in change.landed.items():
            self._land(span.start, span.level, size)
        for leaf_bytes in change.leaves:
            self._append(leaf_bytes)
        for parent in change.merges:
            self._merge(parent.start, parent.level - 1)
        self._state = change.state

    # ---- the structure ---------------------------------------------------------------------------------------------

    def _load(self, state: FrontierState) -> None:
        lines, sizes = _starts_of(state.levels), self._sizes
        self._state, self._lines, self._queues, self._waiting = state, lines, [], set()
        self._bytes = self._length = 0
        for start, level in lines.items():
            size = sizes.get(_key(start, level))
            if size is None:
                raise IntegrityError(f"line {start}+{1 << level} of the view has no durable node; rebuild the view")
            self._bytes += size
            self._length = start + (1 << level)
        for key in [key for key in sizes if not self._concerns(key >> _LEVEL_BITS, key & _LEVEL_MASK)]:
            del sizes[key]
        for start, level in lines.items():
            if not start >> level & 1:
                self._pair(start, level)

    def _concerns(self, start: int, level: int) -> bool:
        """Whether a span is a line, an ancestor of lines, or still to come; what lies under a line is of no use."""
        return start >= self._length or self._lines.get(start, _LEVEL_MASK) <= level

    def _resizes(self, landed: Mapping[Span, int]) -> bool:
        sizes = self._sizes
        return any(sizes.get(_key(span.start, span.level), size) != size for span, size in landed.items())

    def _land(self, start: int, level: int, size: int) -> None:
        if not self._concerns(start, level):
            return
        key = _key(start, level)
        self._sizes[key] = size
        if key in self._waiting:
            self._waiting.discard(key)
            self._pair(start, level - 1)

    def _append(self, leaf_bytes: int) -> None:
        start = self._length
        self._lines[start] = 0
        self._sizes[_key(start, 0)] = leaf_bytes
        self._bytes += leaf_bytes
        self._length = start + 1
        self._pair(start, 0)

    def _merge(self, left: int, level: int) -> None:
        queue = self._queues[level]
        at = bisect_left(queue, left)
        del queue[at]
        right, sizes = left | 1 << level, self._sizes
        del self._lines[right]
        self._lines[left] = level + 1  # a parent keeps its left child's start, so the dict stays in order
        self._bytes += sizes[_key(left, level + 1)] - sizes.pop(_key(left, level)) - sizes.pop(_key(right, level))
        self._pair(left, level + 1)

    def _pair(self, start: int, level: int) -> None:
        """Queue the pair of a line and its sibling, if that is a line too: as ready, or as waiting."""
        if self._lines.get(start ^ 1 << level) != level:
            return
        left, sizes = start & ~(1 << level), self._sizes
        parent = sizes.get(_key(left, level + 1))
        if parent is None:
            self._waiting.add(_key(left, level + 1))
        elif parent < sizes[_key(left, level)] + sizes[_key(left | 1 << level, level)]:
            while len(self._queues) <= level:
                self._queues.append([])
            insort(self._queues[level], left)

    def _draft(self, landed: Mapping[Span, int]) -> _Draft:
        draft = _Draft(self._lines, self._sizes, self._queues, self._state.shrinking, self._bytes, self._length)
        for key, size in _packed(landed).items():
            start, level = key >> _LEVEL_BITS, key & _LEVEL_MASK
            draft.landed[key] = size
            if key in self._waiting:
                draft.pair(start, level - 1)
        return draft


class _Draft:
    """
    A plan in the making: it reads the frontier's lines, sizes and queues, and keeps beside them what would change.

    It copies the lines only where one merges: while a compactor is down a view may have very many, and none moves.
    """

    __slots__ = (
        "bytes",
        "fresh",
        "known",
        "landed",
        "length",
        "lines",
        "merges",
        "moved",
        "queues",
        "shrinking",
        "taken",
    )

    def __init__(
        self,
        lines: Mapping[int, int],
        known: Mapping[int, int],
        queues: Sequence[Sequence[int]],
        shrinking: bool,
        total_bytes: int,
        length: int,
    ) -> None:
        self.lines = lines
        self.known = known
        self.queues = queues
        self.shrinking = shrinking
        self.bytes = total_bytes
        self.length = length
        self.moved: dict[int, int | None] = {}  # levels of lines that the frontier has otherwise; None: gone
        self.landed: dict[int, int] = {}  # sizes that the frontier does not know yet
        self.taken = [0] * len(queues)  # how much of each queue this plan has merged: always from its front
        self.fresh: list[tuple[int, int]] = []  # ready pairs (start, level) that are in no queue yet
        self.merges: list[Span] = []

    def append(self, leaf_bytes: int) -> None:
        start = self.length
        self.moved[start] = 0
        self.landed[_key(start, 0)] = leaf_bytes
        self.bytes += leaf_bytes
        self.length = start + 1
        self.pair(start, 0)

    def settle(self, policy: ViewPolicy) -> None:
        if self.bytes > policy.high_bytes:
            self.shrinking = True
        if self.shrinking:
            self._shrink(policy.low_bytes, policy.rule)
            self.shrinking = self.bytes > policy.low_bytes

    def levels(self, before: bytes, leaves: int) -> bytes:
        """The planned levels sequence, from the stored one and the number of new leaves."""
        if not self.merges:
            return before + b"\0" * leaves
        lines = dict(self.lines)
        for start, level in self.moved.items():  # new lines stand in it in order, so they are appended in order
            if level is not None:
                lines[start] = level
            else:
                lines.pop(start, None)
        return bytes(lines.values())

    def pair(self, start: int, level: int) -> None:
        """Note the pair of a line and its sibling as fresh, if both are lines and their merge saves bytes."""
        left = start & ~(1 << level)
        sibling = start ^ 1 << level
        sibling_level = self.moved[sibling] if sibling in self.moved else self.lines.get(sibling)
        if sibling_level == level and self._saved(left, level) > 0:
            self.fresh.append((left, level))

    def _saved(self, left: int, level: int) -> int:
        """What merging a pair of lines takes off the rendered bytes; 0 while their parent is not durable."""
        key = _key(left, level + 1)
        parent = self.landed[key] if key in self.landed else self.known.get(key)
        if parent is None:
            return 0
        return self._line_bytes(left, level) + self._line_bytes(left | 1 << level, level) - parent

    def _line_bytes(self, start: int, level: int) -> int:
        key = _key(start, level)
        return self.landed[key] if key in self.landed else self.known[key]

    def _head(self, level: int) -> int | None:
        """The most due start of a queue that this plan has not merged yet."""
        if level >= len(self.queues) or self.taken[level] >= len(self.queues[level]):
            return None
        return self.queues[level][self.taken[level]]

    def _shrink(self, low_bytes: int, rule: MergeRule) -> None:
        length = self.length  # it stands still during a batch, so a priority computed once holds to the end

        def entry(left: int, level: int) -> tuple[float, int, int]:
            return -rule.priority(length, left + (2 << level), 1 << level), left, level

        heads = ((self._head(level), level) for level in range(len(self.queues)))
        heap = [entry(left, level) for left, level in heads if left is not None]
        heap += [entry(left, level) for left, level in self.fresh]
        self.fresh.clear()
        heapq.heapify(heap)
        while heap and self.bytes > low_bytes:
            _, left, level = heapq.heappop(heap)
            if self._head(level) == left:
                self.taken[level] += 1
                following = self._head(level)
                if following is not None:
                    heapq.heappush(heap, entry(following, level))
            self.bytes -= self._saved(left, level)
            self.moved[left | 1 << level] = None
            self.moved[left] = level + 1
            self.merges.append(Span(left, 2 << level))
            self.pair(left, level + 1)
            while self.fresh:
                heapq.heappush(heap, entry(*self.fresh.pop()))
        self.fresh += [(left, level) for _, left, level in heap if self._head(level) != left]


def plan_append(frontier: Frontier, leaf_bytes: int, landed: Mapping[Span, int] = _NOTHING) -> FrontierChange:
    """
    Append one leaf.

    Args:
        leaf_bytes: the rendered bytes of the new last line.
        landed: rendered bytes of nodes that become durable in the same commit, or did so unseen. They are known before
            the leaf is appended; the view settles once, after it. Another size of a known node replaces the old one.

    Returns:
        The change to store; the frontier itself moves with :meth:`Frontier.apply`.
    """
    return frontier.plan((leaf_bytes,), landed)


def plan_growth(
    state: FrontierState, total_bytes: int, length: int, leaves: Sequence[int], policy: ViewPolicy
) -> FrontierChange | None:
    """
    The common step, planned without a frontier: outside of a batch no line merges, whatever landed.

    Args:
        total_bytes: of the view's lines, rendered. length: what they cover. leaves: bytes of those to be appended.

    Returns:
        None where the view shrinks, or would: which lines merge then, a :class:`Frontier` knows.
    """
    total = total_bytes + sum(leaves)
    if state.shrinking or total > policy.high_bytes:
        return None
    after = FrontierState(state.levels + b"\0" * len(leaves)) if leaves else state
    return FrontierChange(after, (), total, length + len(leaves), state, tuple(leaves))


def plan_appends(
    frontier: Frontier, leaves_bytes: Sequence[int], landed: Mapping[Span, int] = _NOTHING
) -> FrontierChange:
    """Append several leaves: just what one :func:`plan_append` each would give, the nodes landing with the first."""
    return frontier.plan(leaves_bytes, landed)


def plan_land(frontier: Frontier, landed: Mapping[Span, int]) -> FrontierChange:
    """
    Take note of nodes that became durable, in any order, and go on shrinking if that was waiting for them.

    A view outside shrinking mode does not move: it merges in batches, not whenever it could.
    """
    return frontier.plan((), landed)


def _key(start: int, level: int) -> int:
    return start << _LEVEL_BITS | level


def _packed(sizes: Mapping[Span, int]) -> dict[int, int]:
    return {_key(span.start, span.level): size for span, size in sizes.items()}
