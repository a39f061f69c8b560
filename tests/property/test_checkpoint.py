"""
Laws of the execution checkpoint (§ 7).

Of the cut: it depends on its arguments alone, keeps to its limit, moves rarely, and cuts no later in a larger window.
Of requests, over every wire: paired at every cut, charged once, and by identity what was given.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

import optchat
from optchat.core.checkpoint import Outline, Step, Wording, choose_lines, plan_cut, positions, roundest, runs_of
from optchat.core.refs import Span
from tests.adapters.long_turns import PLANS, LongTurn, check_request, told_below
from tests.adapters.wires import WIRES, Wire

DRAWN = settings().max_examples
each_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

# ---- the cut ---------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


def shape_of(tokens: Sequence[int], fixed: int, newest: int) -> Outline:
    return Outline(tuple(Step((n,), each, (n,), 1, None) for n, each in enumerate(tokens)), fixed, newest, "")


def charge(steps: Sequence[Step]) -> int:
    return 12 + 8 * len(steps).bit_count()  # as the lines of an exact cover: sometimes fewer for more


@given(STEPS, st.integers(0, 200), st.integers(0, 300), st.integers(0, 400))
def test_a_larger_window_never_leaves_out_more(tokens: list[int], fixed: int, newest: int, memory: int) -> None:
    shape = shape_of(tokens, fixed, newest)
    left_out: list[int] = []
    fits: list[bool] = []
    for usable in range(0, 2 * shape.tokens + memory + 50, 29):
        most = usable - memory
        cut = plan_cut(shape, min(usable // 2, most), most, charge)
        left_out.append(0 if cut is None else cut.steps)
        fits.append((shape.tokens if cut is None else cut.kept + cut.room) <= most)
        if cut is not None:
            assert cut.room >= charge(shape.steps[: cut.steps])
            assert cut.kept == shape.tokens - sum(tokens[: cut.steps])
    assert left_out == sorted(left_out, reverse=True)
    assert fits == sorted(fits), "what a window holds, a larger one holds too"


@given(STEPS, st.integers(0, 50), st.integers(100, 3_000))
def test_while_a_transcript_grows_the_cut_only_moves_on(tokens: list[int], fixed: int, limit: int) -> None:
    cuts: list[int] = []
    for length in range(1, len(tokens)):
        cut = plan_cut(shape_of(tokens[:length], fixed, tokens[length]), limit, limit * 2, lambda _: 0)
        cuts.append(0 if cut is None else cut.steps)
    assert cuts == sorted(cuts)


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 16), st.integers(0, 1 << 12))
def test_the_roundest_place_moves_on_with_its_interval(low: int, width: int, by: int) -> None:
    place = roundest(low, low + width)
    assert low <= place <= low + width
    assert roundest(low + by, low + by + width) >= place
    assert roundest(low + min(by, width), low + width) >= place or place < low + min(by, width)
    assert place & -place > width // 2


RECORDS = st.sets(st.integers(0, 120), min_size=1, max_size=60)
COSTS = st.integers(1, 150)


@given(RECORDS, st.data(), st.integers(0, 3_000))
def test_lines_name_each_record_once_and_keep_to_their_room(records: set[int], data: st.DataObject, room: int) -> None:
    runs = runs_of(records)
    known = positions(runs)
    told = dict(zip(known, data.draw(st.lists(COSTS, min_size=len(known), max_size=len(known))), strict=True))
    named = dict.fromkeys(known, 8)
    lines, fits = choose_lines(runs, Wording(told.__getitem__, named.__getitem__), room)
    assert [seq for span in lines for seq in range(span.start, span.end)] == sorted(records)
    cost = sum(told[span] if tells else named[span] for span, tells in lines.items())
    assert fits == (cost <= room)


# ---- requests --------------------------------------------------------------------------------------------------------


@each_wire
@settings(max_examples=max(6, DRAWN // 6))
@given(plans=PLANS)
def test_paired_charged_and_identical_at_every_cut(wire: Wire, plans: list[int]) -> None:
    """Invariants 11 and 15, with what must stay and what must not be said."""
    with LongTurn.memory() as memory, (made := LongTurn(memory, wire, plans)).turn as turn:
        whole = turn.context(optchat.Budget(10_000_000, 100)).receipt.tokens
        most = 2 * whole.active + sum(whole.blocks.values()) + 200
        kept: list[int] = []
        told: list[str] = []
        for window in range(most, 0, -max(1, most // 14)):
            budget = optchat.Budget(window, 100, 30, 20)
            try:
                context = turn.context(budget)
            except (optchat.ContextTooLarge, optchat.CoverTooLarge) as error:
                assert "larger window" in str(error)
                told.append(type(error).__name__)
                continue
            told.append("sent")
            kept.append(check_request(made, context, budget))
            passed = turn.context(budget, active=made.natives)
            assert passed.messages == context.messages, "passed or held, the same is sent"
        assert kept == sorted(kept, reverse=True), "a smaller window never shows more of the newest"
        names = [name for number, name in enumerate(told) if not number or told[number - 1] != name]
        assert names in (["sent", "CoverTooLarge", "ContextTooLarge"], ["sent", "ContextTooLarge"]), names


@each_wire
@settings(max_examples=max(3, DRAWN // 12))
@given(plans=PLANS)
def test_zoom_reaches_each_record_that_is_left_out(wire: Wire, plans: list[int]) -> None:
    """Invariant 2, from the refs of the block, to the byte."""
    with LongTurn.memory() as memory, (made := LongTurn(memory, wire, plans)).turn as turn:
        whole = turn.context(optchat.Budget(10_000_000, 100)).receipt.tokens
        for share in (3, 5):
            budget = optchat.Budget(sum(whole.blocks.values()) + 120 + whole.active * share // 6, 100, 0, 20)
            try:
                context = turn.context(budget)
            except (optchat.ContextTooLarge, optchat.CoverTooLarge):
                continue
            assert told_below(turn, context) == made.said_in(made.left_out(context))


@given(st.integers(2, 40), st.integers(1, 39))
def test_exact_covers_of_left_out_runs_hold_nothing_else(length: int, hole: int) -> None:
    runs = runs_of(set(range(length)) - {hole})
    assert Span(hole, 1) not in positions(runs)
    assert all(not span.start <= hole < span.end for span in positions(runs))
    assert all(first[1] < second[0] for first, second in pairwise(runs))
