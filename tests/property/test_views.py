"""
Laws of views (§ 6), against the naive scan that the paper describes.

1. Cover: a view covers its prefix exactly: ordered, aligned, no gap, no overlap.
2. Bounded: outside shrinking mode a view is at most H; in it, no pair is left that could merge.
3. The queues give what the naive scan gives, with late parents, repairs and reloads.
4. Planning changes nothing: a change that is dropped, as by a rollback, leaves the frontier as it was.
5. A batch is its steps one by one.
6. The acceptance rule of summaries lets every view settle.
7. A projection leaves the canonical view alone, and fits or says that nothing does.
8. The minimal cover is the coarsest one there is.
9. The view at a length is durable, within its target unless nothing is, and as fine as the next split allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, given, strategies as st

from optchat.core.errors import IntegrityError
from optchat.core.projection import minimal_cover, plan_repair, plan_view_at, project
from optchat.core.refs import Span, exact_cover
from optchat.core.render import line_size, outcome_label, publication_label
from optchat.core.views import (
    EMPTY_FRONTIER,
    PAPER_RULE,
    UNIICHAT_RULE,
    Frontier,
    FrontierChange,
    FrontierState,
    MergeRule,
    ViewPolicy,
    length_of,
    levels_of,
    plan_append,
    plan_appends,
    plan_land,
    spans_of,
)
from tests.property.strategies import (
    Schedule,
    Step,
    covers,
    inner_nodes,
    levels,
    node_sizes,
    schedules,
    view_policies,
)

pytestmark = pytest.mark.property
rules = st.sampled_from([PAPER_RULE, UNIICHAT_RULE])


def naive_pairs(
    lines: list[Span], durable: Mapping[Span, int], rule: MergeRule
) -> Iterator[tuple[Fraction, int, Span]]:
    """Every eligible pair's parent by § 6's words, most due first when sorted."""
    for left, right in pairwise(lines):
        if left.sibling == right and left.parent in durable and durable[left.parent] < durable[left] + durable[right]:
            yield -Fraction(lines[-1].end - right.end + rule.offset, left.count), left.start, left.parent


def merge(lines: list[Span], parent: Span) -> list[Span]:
    left, right = parent.children
    return [parent if line == left else line for line in lines if line != right]


class NaiveView:
    """The model: one list, scanned anew for every merge."""

    def __init__(self, policy: ViewPolicy) -> None:
        self.policy = policy
        self.lines: list[Span] = []
        self.durable: dict[Span, int] = {}
        self.shrinking = False
        self.merges: list[Span] = []

    @property
    def bytes(self) -> int:
        return sum(self.durable[line] for line in self.lines)

    @property
    def state(self) -> FrontierState:
        return FrontierState(bytes(line.level for line in self.lines), self.shrinking)

    def step(self, leaf_bytes: int | None, landed: Mapping[Span, int]) -> None:
        self.durable |= landed
        if leaf_bytes is not None:
            leaf = Span(self.lines[-1].end if self.lines else 0, 1)
            self.lines.append(leaf)
            self.durable[leaf] = leaf_bytes
        self.merges = []
        self.shrinking |= self.bytes > self.policy.high_bytes
        while self.shrinking and self.bytes > self.policy.low_bytes:
            pairs = list(naive_pairs(self.lines, self.durable, self.policy.rule))
            if not pairs:
                return
            parent = min(pairs)[2]
            self.lines = merge(self.lines, parent)
            self.merges.append(parent)
        self.shrinking = False


def plan(frontier: Frontier, step: Step) -> FrontierChange:
    if step.leaf_bytes is None:
        return plan_land(frontier, step.landed)
    return plan_append(frontier, step.leaf_bytes, step.landed)


def insides(frontier: Frontier) -> object:
    queues = {level: queue for level, queue in enumerate(frontier._queues) if queue}
    return frontier._lines, frontier._sizes, queues, frontier._waiting, frontier.bytes, frontier.length, frontier.state


def walk(schedule: Schedule) -> Iterator[tuple[Frontier, NaiveView, FrontierChange]]:
    """Drive both through a schedule; yields after every step."""
    model = NaiveView(schedule.policy)
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, schedule.policy)
    for step in schedule.steps:
        if step.reload:
            frontier = Frontier.restore(frontier.state, model.durable, schedule.policy)
        change = plan(frontier, step)
        frontier.apply(change)
        model.step(step.leaf_bytes, step.landed)
        yield frontier, model, change


@given(levels())
def test_levels_and_spans_are_the_same_thing(stored):
    lines = spans_of(stored)
    assert levels_of(lines) == stored
    assert length_of(stored) == (lines[-1].end if lines else 0)


@given(st.binary(max_size=12))
def test_whatever_is_stored_is_a_cover_or_refused(stored):
    try:
        lines = spans_of(stored)
    except IntegrityError:
        starts = [sum(1 << level for level in stored[:n]) for n in range(len(stored))]
        assert any(start % (1 << level) or level >= 40 for start, level in zip(starts, stored, strict=True))
    else:
        assert levels_of(lines) == stored


@given(schedules())
def test_cover(schedule):
    length = 0
    for (frontier, _, change), step in zip(walk(schedule), schedule.steps, strict=True):
        length += step.leaf_bytes is not None
        lines = frontier.state.spans
        assert [line.start for line in lines] == [0, *(line.end for line in lines)][: len(lines)]
        assert (lines[-1].end if lines else 0) == length == change.length == frontier.length == frontier.state.length


@given(schedules())
def test_bounded(schedule):
    for frontier, model, change in walk(schedule):
        assert change.bytes == frontier.bytes == sum(model.durable[line] for line in frontier.state.spans)
        if not change.state.shrinking:
            assert change.bytes <= schedule.policy.high_bytes
        else:
            assert change.bytes > schedule.policy.low_bytes
            assert not list(naive_pairs(list(frontier.state.spans), model.durable, schedule.policy.rule))


@given(schedules())
def test_equals_the_naive_scan_with_late_parents_repairs_and_reloads(schedule):
    for frontier, model, change in walk(schedule):
        assert change.state == frontier.state == model.state
        assert list(change.merges) == model.merges
        assert change.bytes == model.bytes
        assert insides(frontier) == insides(Frontier.restore(frontier.state, model.durable, schedule.policy))


@given(schedules(), schedules(max_leaves=8))
def test_a_change_that_is_dropped_leaves_the_frontier_as_it_was(schedule, dropped):
    for frontier, model, _ in walk(schedule):
        before = insides(Frontier.restore(frontier.state, model.durable, schedule.policy))
        for step in dropped.steps:
            plan(frontier, step)
        assert insides(frontier) == before


@given(schedules(repairs=False), st.integers(0, 12), st.lists(st.integers(1, 24), max_size=24))
def test_a_batch_is_its_steps_one_by_one(schedule, before, leaves):
    *_, (frontier, model, _) = walk(schedule)
    later = {
        node: before + node.level
        for node in inner_nodes(model.lines[-1].end + len(leaves) if model.lines else len(leaves))
        if node not in model.durable
    }
    single = Frontier.restore(frontier.state, model.durable, schedule.policy)
    batch = plan_appends(frontier, leaves, later)
    merges: list[Span] = []
    for landed, leaf in zip([later, *[{}] * len(leaves)], leaves, strict=False):
        change = plan_append(single, leaf, landed)
        merges += change.merges
        single.apply(change)
    if not leaves:
        change = plan_land(single, later)
        merges += change.merges
        single.apply(change)
    assert (batch.state, batch.bytes, list(batch.merges)) == (single.state, single.bytes, merges)
    frontier.apply(batch)
    assert insides(frontier) == insides(single)


@st.composite
def accepted_lines(draw):
    """Line sizes of a shared tree, as rendered, whose texts obey escaped(parent) ≤ left + right + 1."""
    length = draw(st.integers(1, 70))
    first = draw(st.sampled_from([0, 0, 64, 960, 9984]))  # where the tree's refs gain a digit
    outcomes = draw(st.lists(st.sampled_from(["completed", "failed", "interrupted"]), min_size=length, max_size=length))
    texts = {
        Span(i, 1): size for i, size in enumerate(draw(st.lists(st.integers(0, 60), min_size=length, max_size=length)))
    }
    counts = {Span(i, 1): (o == "failed", o == "interrupted") for i, o in enumerate(outcomes)}
    labels = {Span(i, 1): publication_label("k3f9a2bq", o) for i, o in enumerate(outcomes)}
    for node in inner_nodes(length):
        left, right = node.children
        most = texts[left] + texts[right] + 1
        texts[node] = min(60, most - draw(st.sampled_from([0, 0, 0, 1, 40])))
        texts[node] = max(0, texts[node])
        counts[node] = (counts[left][0] + counts[right][0], counts[left][1] + counts[right][1])
        labels[node] = outcome_label(*counts[node])
    return length, {
        node: line_size(len(f"pub:{node.start + first}+{node.count}"), size, len(labels[node]))
        for node, size in texts.items()
    }


@given(accepted_lines(), rules)
def test_the_acceptance_rule_lets_every_view_settle(tree, rule):
    length, sizes = tree
    for node in inner_nodes(length):
        assert sizes[node] < sum(sizes[child] for child in node.children)
    low = max(sum(sizes[line] for line in exact_cover(0, end)) for end in range(1, length + 1))
    policy = ViewPolicy(low + 40, low, rule)
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, policy)
    for leaf in range(length):
        landed = {node: size for node, size in sizes.items() if node.end == leaf + 1 and node.count > 1}
        change = plan_append(frontier, sizes[Span(leaf, 1)], landed)
        frontier.apply(change)
        assert not change.state.shrinking
        assert change.bytes <= (policy.low_bytes if change.merges else policy.high_bytes)


@st.composite
def views_with_ancestors(draw):
    """A cover, and costs of its lines and of some ancestors: cheaper, dearer, missing."""
    lines = draw(covers(max_lines=16, max_level=4).filter(bool))
    costs = draw(node_sizes(lines[-1].end))
    above = {node for node in costs if any(node.start <= line.start and line.end <= node.end for line in lines)}
    missing = draw(st.sets(st.sampled_from(sorted(above)), max_size=6)) - set(lines)
    return lines, {node: costs[node] for node in above - missing}


def cheapest(root: Span, lines: tuple[Span, ...], costs: Mapping[Span, int]) -> int:
    """The least cost of a subtree by its definition."""
    whole = [costs[root]] if root in costs else []
    if root not in lines:
        whole.append(sum(cheapest(child, lines, costs) for child in root.children))
    return min(whole)


@given(views_with_ancestors(), st.integers(0, 160), rules)
def test_projection_leaves_the_canonical_view_alone_and_fits_or_says_not(view, target, rule):
    lines, costs = view
    given_lines = list(lines)
    projection = project(given_lines, costs.get, target, rule)
    assert given_lines == list(lines)
    assert projection.cost == sum(costs[line] for line in projection.spans)
    assert [line.start for line in projection.spans] == [0, *(line.end for line in projection.spans)][:-1]
    assert projection.spans[-1].end == lines[-1].end
    assert not any(
        line.count < shown.count and line.start <= shown.start < line.end
        for line in projection.spans
        for shown in lines
    )
    assert projection.fits == (projection.cost <= target)
    if not projection.fits:
        assert projection.cost == sum(cheapest(root, lines, costs) for root in exact_cover(0, lines[-1].end))


@given(views_with_ancestors(), st.integers(0, 160), rules)
def test_projection_merges_as_a_batch_does(view, target, rule):
    lines, costs = view
    expected = list(lines)
    while sum(costs[line] for line in expected) > target and (pairs := list(naive_pairs(expected, costs, rule))):
        expected = merge(expected, min(pairs)[2])
    assume(sum(costs[line] for line in expected) <= target)
    assert project(lines, costs.get, target, rule).spans == tuple(expected)


@given(st.integers(0, 70), st.data())
def test_the_minimal_cover_is_the_coarsest(length, data):
    nodes = inner_nodes(length)
    missing = data.draw(st.sets(st.sampled_from(nodes), max_size=20)) if nodes else set()
    durable = {Span(leaf, 1) for leaf in range(length)} | {node for node in nodes if node not in missing}
    cover = minimal_cover(length, durable.__contains__)
    assert length_of(levels_of(cover)) == length
    assert durable.issuperset(cover)
    for line in cover:
        assert not any(node != line and node.start <= line.start and line.end <= node.end for node in durable)


@given(st.integers(0, 40), st.data(), st.integers(0, 200), rules)
def test_a_view_at_a_length_splits_the_least_due_line_while_that_fits(length, data, target, rule):
    sizes = data.draw(node_sizes(length))
    nodes = inner_nodes(length)
    for node in data.draw(st.sets(st.sampled_from(nodes), max_size=6)) if nodes else ():
        del sizes[node]
    state = plan_view_at(length, sizes.get, target, rule)

    expected = list(minimal_cover(length, sizes.__contains__))
    while True:
        splits = [
            (Fraction(length - line.end + rule.offset, line.count >> 1), -line.start, line)
            for line in expected
            if line.count > 1 and all(child in sizes for child in line.children)
        ]
        if not splits:
            break
        line = min(splits)[2]
        split = [part for other in expected for part in (line.children if other == line else (other,))]
        if sum(sizes[part] for part in split) > target:
            break
        expected = split
    total = sum(sizes[line] for line in expected)
    assert state == FrontierState(levels_of(expected), total > target)


@given(schedules(repairs=False), view_policies(), st.data())
def test_repair_keeps_a_good_view_and_replaces_a_broken_one(schedule, policy, data):
    *_, (frontier, model, _) = walk(schedule)
    state, length = frontier.state, frontier.length
    assert plan_repair(state, length, model.durable.get, policy) is state
    lines = [line for line in state.spans if line.count > 1]
    lost = data.draw(st.sets(st.sampled_from(lines), min_size=1)) if lines else set()
    left = {node: size for node, size in model.durable.items() if node not in lost}
    for broken in (FrontierState(state.levels + b"\x07\x00"), FrontierState(b"\x29"), *[state] * bool(lost)):
        repaired = plan_repair(broken, length, left.get, policy)
        assert repaired == plan_view_at(length, left.get, policy.high_bytes, policy.rule)
        assert left.keys() >= set(repaired.spans)
        assert repaired.length == length
        Frontier.restore(repaired, left, policy)
