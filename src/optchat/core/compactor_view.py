"""
The compactor's view (§ 4, § 10): what a summarizer is shown of a session beside the text that it summarises.

Decides: which lines explain a text, where they are cut into blocks, where a provider may keep a prefix of them, and how
a summarizer's window is divided between them and the text itself.
Refuses to know: texts, trees, and what is stored. The view is computed for each job and never kept.

It has three parts, oldest first: what is *old*, what is *recent*, and the *tail*, a line a leaf. The tail grows
with the session. When it has used up its share, the boundary between recent and tail steps forward, so far that the
tail is nearly empty again; when that has made the recent part too coarse, the boundary between old and recent steps
up to it. So between two steps a later view is an earlier one with lines added, a small step makes an eighth of it anew,
and only a large one makes all of it. With one part in place of two, either the large steps came more often or the view
was half empty half of the time: that was measured (benchmarks/stable_prefix.py).

Where the boundaries stand is a function of the leaves' sizes alone, found by replaying one aligned block of leaves, so
that it is the same in every process and after a restart, at any length of a session. Which nodes cover a part also
depends on what had landed when the step was taken; whoever computes views keeps the answer as long as it can.

Invariants: at most the bytes given, line heads and ends included; no gap; ends where it is told to. It promises no
beginning: it explains, it does not cover. Where nodes that would make the past small are missing, the oldest lines
are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

from attrs import frozen

from optchat.core.policy import DEFAULT_NODE_BYTES
from optchat.core.projection import refine
from optchat.core.prompts import system
from optchat.core.refs import Span, exact_cover
from optchat.core.tokens import UpperBoundTokenizer

# ---- a summarizer's window -------------------------------------------------------------------------------------------

_RETRIES: Final = 4  # replies that were none, sent back with what was wrong: five tries are the default
_FEEDBACK_BYTES: Final = 400  # what is said of one, and the frame around it
_SHOWN_LIMITS: Final = 4  # a reply is sent back up to four times the limit
_FRAME_TOKENS: Final = 256  # boundaries and labels around sources, headings, roles
_LABEL_BYTES: Final = 96  # around one source of several
_LEAST_PAGE_BYTES: Final = 1024
_PAGE_FIRST_BYTES: Final = 4096  # a page has it before there is any context: more pages mean more calls
_LEAST_CONTEXT_BYTES: Final = 512  # less is a line or two, which explain nothing


@frozen
class Rooms:
    """
    The most bytes of one request that are not the rules: earlier lines of the conversation, and the text itself.

    Lines of other conversations may take half as much again as those of the same one.
    """

    context_bytes: int
    page_bytes: int

    def beside(self, sources: Sequence[int]) -> int:
        """
        The bytes of context in a request with sources of these sizes.

        They can be larger than a page: pages were cut for a window that was larger then, or a long turn is summarised
        from many nodes. Then the context gives way, by halves, so that such requests share their prefixes too; and
        where there is none left, the request goes out as it is. Bytes are more than tokens, so it will mostly
        fit; if it does not, the call fails, and nothing was left out unseen.
        """
        over = sum(sources) + _LABEL_BYTES * (len(sources) - 1) - self.page_bytes
        room = self.context_bytes
        while room and over > _with_foreign(self.context_bytes) - _with_foreign(room):
            room >>= 1
            if room < _LEAST_CONTEXT_BYTES:
                return 0
        return room


def _with_foreign(context_bytes: int) -> int:
    return context_bytes + foreign_bytes(context_bytes)


def foreign_bytes(context_bytes: int) -> int:
    """The most bytes of lines of other conversations beside a context of so many bytes."""
    return context_bytes // 2


def rooms(window_tokens: int, compactor_view_bytes: int, node_bytes: int = DEFAULT_NODE_BYTES) -> Rooms:
    """
    Divide a summarizer's window so that no request passes it, its answer included.

    A token of the sources may be as little as a byte; the rules' tokens are counted. Replies that are sent back get an
    eighth of the window at most: of one below 80,000 tokens, several that are far too long could still pass it. Below
    3,500 not even the first try is sure to fit, for a page has at least a kilobyte.
    """
    answer = min(2 * node_bytes, window_tokens // 4)
    retries = min(_RETRIES * (_SHOWN_LIMITS * node_bytes + _FEEDBACK_BYTES), window_tokens // 8)
    room = max(window_tokens - _rules_tokens(node_bytes) - _FRAME_TOKENS - answer - retries, _LEAST_PAGE_BYTES)
    context = min(compactor_view_bytes, max(0, room - _PAGE_FIRST_BYTES) * 2 // 5)
    if context < _LEAST_CONTEXT_BYTES:
        context = 0
    page = min(window_tokens // 2, room - _with_foreign(context))
    return Rooms(context, max(page, _LEAST_PAGE_BYTES))


@lru_cache(maxsize=16)
def _rules_tokens(node_bytes: int) -> int:
    return UpperBoundTokenizer().count(system(node_bytes))


# ---- where the parts meet --------------------------------------------------------------------------------------------

BLOCK_LEAVES: Final = 1024  # replayed for one view, and read for the first one
_REF_BYTES: Final = 16  # of a line, beside its node's text
_RECENT_LINES: Final = 8  # what covers a few hundred leaves at its coarsest; with less, each step would be a large one
_RECENT_RATIO: Final = 16  # how many times larger the leaves under the recent part may be than that part
_SMALL_STEP: Final = 8  # leaves: boundaries stand where larger nodes end
_LARGE_STEP: Final = 32


@frozen
class Shares:
    """The most bytes of each part."""

    old: int
    recent: int
    tail: int


def shares(view_bytes: int, node_bytes: int = DEFAULT_NODE_BYTES) -> Shares:
    """Divide the view's bytes: most to what changes least. A part that would be a line or two is none."""
    recent = max(view_bytes // 8, _RECENT_LINES * (node_bytes + _REF_BYTES))
    if view_bytes < 2 * recent:
        return tail_only(view_bytes)
    if view_bytes < 4 * recent:
        return Shares(view_bytes - view_bytes * 3 // 8, 0, view_bytes * 3 // 8)
    tail = view_bytes * 7 // 32
    return Shares(view_bytes - recent - tail, recent, tail)


def tail_only(view_bytes: int) -> Shares:
    """A view of leaves alone, for where there is no room for more, or the nodes that it would need are missing."""
    return Shares(0, 0, view_bytes)


@frozen
class Steps:
    """Where the parts meet: old is ``[0, old_end)``, recent ``[old_end, recent_end)``, the tail begins there."""

    old_end: int
    recent_end: int


def block_start(end: int) -> int:
    """The first leaf whose size is needed for the steps of a view with this end."""
    return (end - 1) // BLOCK_LEAVES * BLOCK_LEAVES if end else 0


def steps(end: int, leaves: Sequence[int], share: Shares) -> Steps:
    """
    Where the boundaries of a view with this end stand.

    Args:
        leaves: the bytes of the lines of leaves ``[block_start(end), end)``, or of more.
    """
    start = block_start(end)
    sums = [0, *accumulate(leaves[: end - start])]

    def under(first: int, last: int) -> int:
        return sums[last - start] - sums[first - start]

    old = recent = leaf = start
    while True:
        room = share.tail + (share.recent if recent == old else 0) + (0 if old else share.old)
        # the next leaf that the tail has no room for
        leaf = start - 1 + bisect_right(sums, sums[recent - start] + room, leaf - start + 1)
        if leaf >= end:
            return Steps(old, recent)
        large = old == 0 or under(old, leaf) > _RECENT_RATIO * share.recent
        recent = _boundary(recent, leaf, _LARGE_STEP if large else _SMALL_STEP, share.tail // 2, under)
        old = recent if large else old
        leaf += 1


def _boundary(before: int, leaf: int, step: int, most: int, under: Callable[[int, int], int]) -> int:
    """The present end rounded down to what many nodes end at, unless the tail would be half full again at once."""
    while step > 1:
        at = leaf - leaf % step
        if at > before and under(at, leaf) <= most:
            return at
        step >>= 1
    return leaf


# ---- which nodes stand for a part ------------------------------------------------------------------------------------


@frozen
class Part:
    """The lines of a part, gapless to its end; ``whole``: from its beginning on, else the oldest are left out."""

    spans: tuple[Span, ...]
    whole: bool


def plan_part(start: int, end: int, size: Callable[[Span], int | None], most_bytes: int) -> Part:
    """
    Cover ``[start, end)`` by durable nodes, finer towards its end, as a view would (``plan_view_at``).

    Looks no further back than its bytes reach: a history whose merges are still to come has a hundred thousand leaves.

    Args:
        size: the bytes of a durable node's line, None of any other. It must not change between calls.
    """
    cover: list[Span] = []
    total = 0
    waiting = list(exact_cover(start, end))
    while waiting:
        span = waiting.pop()
        found = size(span)
        if found is None and span.count > 1:
            waiting.extend(span.children)
        elif found is None or total + found > most_bytes:
            return Part(tuple(reversed(cover)), whole=False)
        else:
            cover.append(span)
            total += found
    return Part(refine(cover[::-1], end, size, most_bytes).spans, whole=True)


# ---- the view --------------------------------------------------------------------------------------------------------

_BLOCK_LINES: Final = 2  # a provider looks back twenty blocks from a mark: forty lines, and a growing end costs one


@frozen
class Block:
    """Lines that stand in one block of a request; ``cache``: a prefix that later requests share may end after it."""

    spans: tuple[Span, ...]
    cache: bool


@frozen
class CompactorView:
    """The lines of a view by their parts, oldest first."""

    old: tuple[Span, ...]
    recent: tuple[Span, ...]
    tail: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        return (*self.old, *self.recent, *self.tail)

    def within(self, size: Callable[[Span], int], most_bytes: int) -> CompactorView:
        """
        The view without the oldest lines that make it too large.

        That happens where one line is larger than the tail's share, or has grown since the view was planned.
        """
        spans, total = self.spans, 0
        for at in range(len(spans) - 1, -1, -1):
            total += size(spans[at])
            if total > most_bytes:
                kept = frozenset(spans[at + 1 :])
                return CompactorView(*(tuple(filter(kept.__contains__, part)) for part in self._parts))
        return self

    @property
    def _parts(self) -> tuple[tuple[Span, ...], ...]:
        return self.old, self.recent, self.tail

    def blocks(self) -> tuple[Block, ...]:
        """
        The view cut into blocks, the same for every view between the same steps, and marked at most three times.

        The old and the recent part are one block each: they come and go as a whole. The tail is cut at even leaves.
        Marks stand after either part and at the end; where a part is empty, also after the last block that will not
        grow. A provider allows four marks a request, and the first belongs to the rules.
        """
        parts = [part for part in (self.old, self.recent) if part]
        cuts: list[list[Span]] = []
        for span in self.tail:
            if not cuts or span.start % _BLOCK_LINES == 0:
                cuts.append([])
            cuts[-1].append(span)
        last = len(parts) + len(cuts) - 1
        marked = {*range(len(parts)), last}
        if len(parts) < 2 and len(cuts) > 1 and self.tail[-1].end % _BLOCK_LINES:
            marked.add(last - 1)
        return tuple(Block(tuple(spans), at in marked) for at, spans in enumerate([*parts, *cuts]))


def plan_view(
    end: int,
    leaves: Sequence[int],
    view_bytes: int,
    part: Callable[[int, int, int], Part],
    node_bytes: int = DEFAULT_NODE_BYTES,
) -> CompactorView:
    """
    The view with an end, all leaves below which are durable.

    Args:
        leaves: the bytes of the lines of leaves ``[block_start(end), end)``, or of more.
        part: start, end and bytes to :func:`plan_part`'s answer, a new or an earlier one.
        node_bytes: the most bytes of a node's text.
    """
    share = shares(view_bytes, node_bytes)
    at = steps(end, leaves, share)
    old, recent = part(0, at.old_end, share.old), part(at.old_end, at.recent_end, share.recent)
    if not (old.whole and recent.whole):
        # Nodes that would make the past small are still to come, as in history that was imported a moment ago. Parts
        # that hold what there is would change with each node that lands; leaves alone change by steps.
        at = steps(end, leaves, tail_only(view_bytes))
        old = recent = Part((), whole=True)
    return CompactorView(old.spans, recent.spans, tuple(Span(leaf, 1) for leaf in range(at.recent_end, end)))
