"""Views and projections: the original's vectors, thresholds, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from attrs import evolve

from optchat.core.errors import BadArgument, IntegrityError
from optchat.core.projection import Projection, minimal_cover, plan_repair, plan_view_at, project
from optchat.core.refs import Span, exact_cover
from optchat.core.views import (
    EMPTY_FRONTIER,
    PAPER_RULE,
    UNIICHAT_RULE,
    Frontier,
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

UNIT = ViewPolicy(4, 2)


def unit(span: Span) -> int:
    """Every line of one byte, every node durable."""
    assert span.count
    return 1


def original_push() -> Iterator[list[int]]:
    """
    The original's list, message by message, in its own terms: starts, oldest first.

    Each place holds a start and whether it has swallowed one since. A new start takes the first place and pushes that
    one's on to the next, unless the place has not swallowed yet: then it does, and the start is gone.
    """
    places: list[tuple[int, bool]] = []
    message = 0
    while True:
        carried: int | None = message
        for at, (start, swallowed) in enumerate(places):
            assert carried is not None
            if not swallowed:
                places[at], carried = (start, True), None
                break
            places[at], carried = (carried, False), start
        if carried is not None:
            places.append((carried, False))
        yield [start for start, _ in reversed(places)]
        message += 1


VECTORS = {
    3: [0, 2],
    9: [0, 4, 8],
    10: [0, 8, 10],
    63: [0, 32, 48, 56, 60, 62],
    64: [0, 32, 48, 56, 60, 64],
    100: [0, 64, 80, 88, 96, 100],
    1000: [0, 512, 768, 896, 960, 976, 992, 996, 1000],
}
PUSH_SHA256 = "5578093bd7c7b46068b14a543926c9ce729c888a4fff3867f961e410d951c2ae"


def test_the_original_rule_reproduces_its_push_at_every_step():
    digest = hashlib.sha256()
    lines: tuple[Span, ...] = ()
    for message, wanted in zip(range(20_001), original_push(), strict=False):
        lines = project((*lines, Span(message, 1)), unit, len(wanted), UNIICHAT_RULE).spans
        starts = [line.start for line in lines]
        assert starts == wanted
        assert starts == VECTORS.get(message, starts)
        digest.update((",".join(map(str, starts)) + "\n").encode())
    assert digest.hexdigest() == PUSH_SHA256


def test_the_frontier_under_the_original_rule_reproduces_its_push():
    state = EMPTY_FRONTIER
    for message, wanted in zip(range(1001), original_push(), strict=False):
        known = {span: 1 for line in state.spans for span in (line, line.parent, line.parent.parent)}
        for level in range(1, 12):
            known[Span.at(level, message >> level)] = 1
        frontier = Frontier.restore(state, known, ViewPolicy(len(wanted), len(wanted), UNIICHAT_RULE))
        change = plan_append(frontier, 1)
        frontier.apply(change)
        state = frontier.state
        assert [line.start for line in state.spans] == wanted
        assert not state.shrinking
        if message in VECTORS:
            assert wanted == VECTORS[message]


def test_the_rules_differ_first_at_a_length_of_ten():
    lines = (Span(0, 4), Span(4, 4), Span(8, 1), Span(9, 1))
    assert project(lines, unit, 3, UNIICHAT_RULE).spans == (Span(0, 4), Span(4, 4), Span(8, 2))
    assert project(lines, unit, 3, PAPER_RULE).spans == (Span(0, 8), Span(8, 1), Span(9, 1))


def test_merges_only_what_is_built():
    lines = (Span(0, 4), Span(4, 4), Span(8, 1), Span(9, 1))
    built = dict.fromkeys((*lines, Span(0, 8)), 1)
    for rule in (PAPER_RULE, UNIICHAT_RULE):
        assert project(lines, built.get, 3, rule) == Projection((Span(0, 8), Span(8, 1), Span(9, 1)), 3, fits=True)
        assert project(lines, built.get, 2, rule) == Projection((Span(0, 8), Span(8, 1), Span(9, 1)), 3, fits=False)


def test_sawtooth():
    sizes = {Span(start, count): 1 for count in (2, 4, 8, 16) for start in range(0, 16, count)}
    frontier = Frontier.restore(EMPTY_FRONTIER, sizes, ViewPolicy(10, 5))
    counts = []
    for _ in range(12):
        change = plan_append(frontier, 1)
        frontier.apply(change)
        counts.append(len(frontier.state.levels))
        assert not frontier.state.shrinking
    assert counts == [*range(1, 11), 5, 6]


def test_sawtooth_in_one_batch():
    sizes = {Span(start, count): 1 for count in (2, 4, 8, 16) for start in range(0, 16, count)}
    frontier = Frontier.restore(EMPTY_FRONTIER, sizes, ViewPolicy(10, 5))
    assert [len(plan_appends(frontier, [1] * n).state.levels) for n in (9, 10, 11, 12, 17)] == [9, 10, 5, 6, 5]
    assert frontier.length == 0


def test_lagging_parents():
    frontier = Frontier.restore(EMPTY_FRONTIER, {Span.at(1, 0): 1}, UNIT)
    frontier.apply(plan_appends(frontier, [1] * 5))
    assert frontier.state == FrontierState(b"\x01\x00\x00\x00", shrinking=True)
    frontier.apply(plan_append(frontier, 1, {Span.at(1, 1): 1, Span.at(2, 0): 1}))
    assert frontier.state == FrontierState(b"\x02\x00\x00", shrinking=True)
    frontier.apply(plan_append(frontier, 1, {Span.at(1, 2): 1}))
    assert frontier.state == FrontierState(b"\x02\x01\x00", shrinking=True)


def test_a_landing_goes_on_with_an_unfinished_batch():
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, UNIT)
    frontier.apply(plan_appends(frontier, [1] * 8))
    assert (len(frontier.state.levels), frontier.state.shrinking) == (8, True)
    # The grandparent first: it must wait for its children to be lines.
    nodes = [Span(0, 8), Span(0, 4), Span(4, 2), Span(0, 2), Span(2, 2), Span(6, 2), Span(4, 4)]
    seen = []
    for node in nodes:
        frontier.apply(plan_land(frontier, {node: 1}))
        seen.append((len(frontier.state.levels), frontier.state.shrinking))
    assert seen == [(8, True), (8, True), (7, True), (6, True), (4, True), (3, True), (2, False)]


def test_a_landing_outside_a_batch_moves_nothing():
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, ViewPolicy(10, 1))
    frontier.apply(plan_appends(frontier, [1] * 4))
    change = plan_land(frontier, {Span(0, 2): 1, Span(2, 2): 1, Span(0, 4): 1})
    assert not change.changed
    assert change.state is frontier.state
    assert change.merges == ()


def test_a_parent_that_saves_nothing_is_never_merged():
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, ViewPolicy(1, 1))
    change = plan_appends(frontier, [1, 1], {Span(0, 2): 2})
    assert change.state == FrontierState(b"\x00\x00", shrinking=True)
    frontier.apply(change)
    repaired = plan_land(frontier, {Span(0, 2): 1})  # another text, at last a shorter one
    assert repaired.state == FrontierState(b"\x01")
    frontier.apply(repaired)
    assert (frontier.bytes, frontier.length, frontier.size(Span(0, 2)), frontier.size(Span(0, 1))) == (1, 2, 1, None)


def test_a_repaired_line_can_start_a_batch():
    frontier = Frontier.restore(FrontierState(b"\x00\x00"), {Span(0, 1): 1, Span(1, 1): 1, Span(0, 2): 1}, UNIT)
    change = plan_land(frontier, {Span(0, 1): 9})
    assert (change.state, change.bytes, change.merges) == (FrontierState(b"\x01"), 1, (Span(0, 2),))


def test_ties_go_to_the_earlier_start():
    tied = MergeRule("tied", 2)  # at length 6: (6 - 4 + 2) / 2 = (6 - 6 + 2) / 1
    sizes = dict.fromkeys([Span(0, 2), Span(2, 2), Span(4, 1), Span(5, 1), Span(0, 4), Span(4, 2)], 1)
    frontier = Frontier.restore(FrontierState(b"\x01\x01\x00\x00"), sizes, ViewPolicy(3, 3, tied))
    assert plan_land(frontier, {}).merges == (Span(0, 4),)
    assert project(frontier.state.spans, sizes.get, 3, tied).spans == (Span(0, 4), Span(4, 1), Span(5, 1))


def test_priorities_are_exact_at_the_format_s_end():
    end = 1 << 40
    assert PAPER_RULE.priority(end, end - 1, 1 << 20) * (1 << 20) == 1
    assert UNIICHAT_RULE.priority(end, 0, 1) == end + 1


@pytest.mark.parametrize("levels", [b"\x00\x01", b"\x01\x00\x01", b"\x02\x03", b"\x28", b"\x29", b"\xff"])
def test_levels_that_are_no_cover_are_refused(levels):
    for read in (spans_of, length_of):
        with pytest.raises(IntegrityError, match="rebuild the view"):
            read(levels)
    with pytest.raises(IntegrityError, match="rebuild the view"):
        Frontier.restore(FrontierState(levels), {}, UNIT)


@pytest.mark.parametrize(
    "lines", [(Span(1, 1),), (Span(0, 1), Span(2, 1)), (Span(0, 2), Span(1, 1)), (Span(0, 1 << 40),)]
)
def test_spans_that_are_no_cover_are_refused(lines):
    with pytest.raises(IntegrityError, match="rebuild the view"):
        levels_of(lines)


def test_a_line_without_a_node_is_refused():
    for read in (
        lambda: Frontier.restore(FrontierState(b"\x01"), {Span(0, 1): 1}, UNIT),
        lambda: project((Span(0, 2),), {}.get, 1),
        lambda: minimal_cover(3, lambda span: span.start < 2),
        lambda: plan_view_at(1, {}.get, 10),
    ):
        with pytest.raises(IntegrityError):
            read()


def test_a_change_applies_only_to_what_it_was_planned_from():
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, ViewPolicy(1, 1))
    first, other = plan_append(frontier, 1), plan_append(frontier, 5)
    frontier.apply(first)
    with pytest.raises(IntegrityError, match="restore the frontier"):
        frontier.apply(other)
    merging = plan_append(frontier, 1, {Span(0, 2): 1})
    with pytest.raises(IntegrityError, match="restore the frontier"):
        frontier.apply(evolve(merging, landed={}))  # as if planned where 0+2 was known
    assert (frontier.state, frontier.bytes) == (FrontierState(b"\x00"), 1)
    frontier.apply(merging)
    assert frontier.state == FrontierState(b"\x01")


@pytest.mark.parametrize(("high", "low"), [(1, 2), (5, -1)])
def test_thresholds_that_could_never_be_met_are_refused(high, low):
    with pytest.raises(BadArgument):
        ViewPolicy(high, low)


def test_an_empty_view():
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, UNIT)
    assert not plan_land(frontier, {}).changed
    assert not plan_appends(frontier, []).changed
    assert (frontier.bytes, frontier.length, EMPTY_FRONTIER.spans) == (0, 0, ())
    assert project((), unit, 0) == Projection((), 0, fits=True)
    assert minimal_cover(0, lambda _: False) == ()
    assert plan_view_at(0, unit, 10) == EMPTY_FRONTIER


def test_a_cheap_grandparent_behind_a_dear_parent_is_found():
    costs = {Span(0, 1): 3, Span(1, 1): 3, Span(2, 2): 4, Span(0, 2): 7, Span(0, 4): 5}
    lines = (Span(0, 1), Span(1, 1), Span(2, 2))
    assert project(lines, costs.get, 9) == Projection((Span(0, 4),), 5, fits=True)
    assert project(lines, costs.get, 4) == Projection((Span(0, 4),), 5, fits=False)


def test_what_does_not_fit_is_shown_as_fine_as_its_cost_allows():
    costs = {Span(0, 1): 3, Span(1, 1): 3, Span(0, 2): 6}
    assert project((Span(0, 1), Span(1, 1)), costs.get, 5) == Projection((Span(0, 1), Span(1, 1)), 6, fits=False)


def test_the_cover_of_a_range():
    assert exact_cover(3, 8) == (Span(3, 1), Span(4, 4))


def test_a_view_at_a_length_is_fine_where_it_is_recent():
    assert plan_view_at(16, unit, 6).spans == (
        Span(0, 8), Span(8, 4), Span(12, 1), Span(13, 1), Span(14, 1), Span(15, 1),
    )  # fmt: skip
    assert plan_view_at(16, unit, 100).levels == bytes(16)
    assert plan_view_at(7, unit, 2) == FrontierState(b"\x02\x01\x00", shrinking=True)  # three lines at least


def test_a_view_at_a_length_is_finer_than_the_later_one_cut_there():
    sizes = {Span.at(level, index): 300 for level in range(14) for index in range(12_000 >> level)}
    frontier = Frontier.restore(EMPTY_FRONTIER, {}, ViewPolicy(128_000, 64_000))
    frontier.apply(plan_appends(frontier, [300] * 12_000, {span: 300 for span in sizes if span.count > 1}))
    cut = [line for line in frontier.state.spans if line.end <= 6000]
    rebuilt = plan_view_at(6000, sizes.get, 64_000)
    assert len(cut) < 30
    assert len(rebuilt.levels) == 64_000 // 300
    assert rebuilt.levels[-16:] == bytes(16)


def test_repair_rebuilds_from_what_is_left():
    durable = {Span.at(level, index): 10 for level in range(4) for index in range(8 >> level)}
    good = FrontierState(b"\x02\x02")
    policy = ViewPolicy(40, 20)
    assert plan_repair(good, 8, durable.get, policy) is good
    del durable[Span(0, 4)], durable[Span(0, 8)]
    assert plan_repair(good, 8, durable.get, policy).spans == (Span(0, 2), Span(2, 2), Span(4, 2), Span(6, 2))
