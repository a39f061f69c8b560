"""
Covers computed from what is durable (§ 6): projections, the minimal cover, a view as of a length.

Decides: which existing nodes stand for a prefix when the stored frontier is too large for a budget, absent, or broken.
Refuses to know: what a cost is (bytes or tokens), and the stored frontier: nothing here changes it.

Each function is one of its arguments alone: the same nodes, costs and target give the same cover in every process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from attrs import frozen

from optchat.core.errors import IntegrityError
from optchat.core.refs import Span, exact_cover
from optchat.core.views import PAPER_RULE, FrontierState, MergeRule, ViewPolicy, levels_of


@frozen
class Projection:
    """A temporary cover and its cost. ``fits`` is False where not even the cheapest cover there is meets the target."""

    spans: tuple[Span, ...]
    cost: int
    fits: bool


def project(
    spans: Sequence[Span], cost: Callable[[Span], int | None], target: int, rule: MergeRule = PAPER_RULE
) -> Projection:
    """
    Coarsen a cover to a target, by existing ancestors only.

    The most due pair whose parent exists and costs less merges first, as in a batch, until the target is met. Costs may
    be tokens, in which a parent can cost more than its children and so bar the way to a cheap grandparent; therefore,
    where merging pairs ends above the target, the cheapest of all covers is taken instead.

    Args:
        spans: a gapless cover in order; it is left as it is.
        cost: what a line of this node costs, None if it is not durable. It must not change between calls.
        target: the most that the lines may cost together.

    Raises:
        IntegrityError: a given line is not durable.
    """
    lines = {span.start: span for span in spans}
    costs = {span.start: _durable(span, cost) for span in spans}
    total = sum(costs.values())
    if total <= target or not spans:
        return Projection(tuple(spans), total, total <= target)

    length = spans[-1].end
    heap: list[tuple[float, int, Span, int]] = []

    def offer(line: Span) -> None:
        sibling = lines.get(line.start ^ line.count)
        if sibling is None or sibling.count != line.count:
            return
        parent = line.parent
        parent_cost = cost(parent)
        if parent_cost is not None and parent_cost < costs[line.start] + costs[sibling.start]:
            due = rule.priority(length, parent.end, line.count)
            heapq.heappush(heap, (-due, parent.start, parent, parent_cost))

    for span in spans:
        if not span.start & span.count:
            offer(span)
    while heap and total > target:
        _, start, parent, parent_cost = heapq.heappop(heap)
        right = start + (parent.count >> 1)
        total += parent_cost - costs[start] - costs.pop(right)
        costs[start], lines[start] = parent_cost, parent
        del lines[right]
        offer(parent)
    if total <= target:
        return Projection(tuple(lines.values()), total, True)
    least = cheapest(spans, cost)
    return Projection(least.spans, least.cost, least.cost <= target)


def cheapest(spans: Sequence[Span], cost: Callable[[Span], int | None]) -> Projection:
    """
    The cheapest cover of lines and their durable ancestors; of equals the finer one.

    What :func:`project` answers for a target that nothing meets, without trying.

    Raises:
        IntegrityError: a given line is not durable.
    """
    stack: list[tuple[Span, int, list[Span]]] = []  # whole subtrees: root, least cost, and the cover that costs it
    for span in spans:
        stack.append((span, _durable(span, cost), [span]))
        while len(stack) > 1 and stack[-1][0].sibling == stack[-2][0]:
            (_, right_cost, right), (left_root, left_cost, left) = stack.pop(), stack.pop()
            left.extend(right)
            root, total, cover = left_root.parent, left_cost + right_cost, left
            whole = cost(root)
            stack.append((root, total, cover) if whole is None or whole >= total else (root, whole, [root]))
    return Projection(tuple(span for _, _, cover in stack for span in cover), sum(total for _, total, _ in stack), True)


def _durable(span: Span, size: Callable[[Span], int | None]) -> int:
    found = size(span)
    if found is None:
        raise IntegrityError(f"line {span} of the view has no durable node; rebuild the view")
    return found


def minimal_cover(length: int, durable: Callable[[Span], bool]) -> tuple[Span, ...]:
    """
    The coarsest durable cover of ``[0, length)``.

    Raises:
        IntegrityError: a leaf below the length is not durable; the prefix that can be covered ends there.
    """
    cover: list[Span] = []
    pending = list(reversed(exact_cover(0, length)))
    while pending:
        span = pending.pop()
        if durable(span):
            cover.append(span)
        elif span.count == 1:
            raise IntegrityError(f"leaf {span} is not durable; cover [0, {span.start}), or settle its summary first")
        else:
            pending.extend(reversed(span.children))
    return tuple(cover)


def plan_view_at(
    length: int, size: Callable[[Span], int | None], target_bytes: int, rule: MergeRule = PAPER_RULE
) -> FrontierState:
    """
    A frontier at a length from durable nodes alone: for a fork, a rewind, a repair, a re-pin.

    Cutting a later frontier at that length would not do: what was recent then is coarse in it. So the coarsest cover is
    split, the line of lowest merge priority first (of equals the later one: the reverse of merging), until the next
    split would pass the target. A line whose children are not both durable stays.

    Args:
        size: the rendered bytes of a durable node, None of any other.
        target_bytes: the most that the lines may have together.

    Returns:
        A state in shrinking mode where even the coarsest cover is larger than the target: the bound is not met.

    Raises:
        IntegrityError: a leaf below the length is not durable.
    """
    found = refine(minimal_cover(length, lambda span: size(span) is not None), length, size, target_bytes, rule)
    return FrontierState(levels_of(found.spans), not found.fits)


def refine(
    cover: Sequence[Span],
    length: int,
    size: Callable[[Span], int | None],
    target_bytes: int,
    rule: MergeRule = PAPER_RULE,
) -> Projection:
    """
    A cover with its lines split, that of lowest merge priority first, until the next split would pass the target.

    Args:
        cover: gapless, in order, from wherever it starts; it is left as it is.
        length: the length of the view that it belongs to, from which priorities are reckoned.

    Raises:
        IntegrityError: a given line is not durable.
    """
    lines = {span.start: span for span in cover}
    sizes = {span.start: _durable(span, size) for span in cover}
    total = sum(sizes.values())
    heap: list[tuple[float, int]] = []

    def offer(line: Span) -> None:
        if line.count > 1:
            heapq.heappush(heap, (rule.priority(length, line.end, line.count >> 1), -line.start))

    for span in cover:
        offer(span)
    while heap:
        line = lines[-heapq.heappop(heap)[1]]
        left, right = line.children
        left_bytes, right_bytes = size(left), size(right)
        if left_bytes is None or right_bytes is None:
            continue
        grown = total - sizes[line.start] + left_bytes + right_bytes
        if grown > target_bytes:
            break
        total = grown
        for child, child_bytes in ((left, left_bytes), (right, right_bytes)):
            lines[child.start], sizes[child.start] = child, child_bytes
            offer(child)
    return Projection(tuple(lines[start] for start in sorted(lines)), total, total <= target_bytes)


def plan_repair(
    state: FrontierState, length: int, size: Callable[[Span], int | None], policy: ViewPolicy
) -> FrontierState:
    """
    A good stored frontier as it is; instead of any other one built anew, as detailed as ``high_bytes`` allow.

    Good is one whose levels cover ``[0, length)`` exactly and whose every line is durable. The caller stores another
    state under a new revision (§ 6).

    Raises:
        IntegrityError: a leaf below the length is not durable, so there is nothing to build from.
    """
    try:
        good = state.length == length and all(size(span) is not None for span in state.spans)
    except IntegrityError:
        good = False
    return state if good else plan_view_at(length, size, policy.high_bytes, policy.rule)
