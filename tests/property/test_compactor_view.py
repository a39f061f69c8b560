"""
Laws of the compactor's view (§ 4, § 10).

1. Bounded: at most the bytes given, whatever lines there are.
2. Durable, gapless, and ending where it was told to.
3. A shared prefix: between two steps a later view is an earlier one with lines added at its end, cut into the same
   blocks, and what the earlier one asked to keep is found by the later one within a provider's look-back.
4. Steps are those of the leaves before the end: what is said later moves none.
5. A provider takes its marks.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from attrs import frozen
from hypothesis import given, strategies as st

from optchat.core.compactor_view import CompactorView, Part, block_start, plan_part, plan_view, shares, steps
from optchat.core.refs import Span
from tests.property.strategies import inner_nodes

pytestmark = pytest.mark.property

LOOK_BACK_BLOCKS = 20
BLOCK_LINES = 2


@frozen
class Past:
    """A session's leaves, and the inner nodes that have landed, by the bytes of their lines."""

    leaves: list[int]
    nodes: dict[Span, int]

    def size(self, span: Span) -> int | None:
        return self.leaves[span.start] if span.count == 1 else self.nodes.get(span)

    def line(self, span: Span) -> int:
        found = self.size(span)
        assert found is not None, f"{span} is not durable"
        return found

    def view(self, end: int, view_bytes: int) -> CompactorView:
        def part(start: int, stop: int, most: int) -> Part:
            return plan_part(start, stop, self.size, most)

        leaves = self.leaves[block_start(end) : end]
        return plan_view(end, leaves, view_bytes, part).within(self.line, view_bytes)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    """Lines as a session has them, or of any size; all merges landed, none, or some."""
    most = draw(st.sampled_from([60, 300, 600, 2_500]))
    leaves = draw(st.lists(st.integers(12, most), min_size=1, max_size=160))
    sizes = {Span(start, 1): size for start, size in enumerate(leaves)}
    share = draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    chance = draw(st.randoms(use_true_random=False))
    for node in inner_nodes(len(leaves)):
        left, right = node.children
        sizes[node] = min(most, sizes[left] + sizes[right] - 1)
    nodes = {span: size for span, size in sizes.items() if span.count > 1 and chance.random() < share}
    return Past(leaves, nodes)


sizes = st.sampled_from([0, 40, 700, 3_000, 8_191, 8_192, 10_000, 20_000])


@given(pasts(), sizes)
def test_bounded_durable_gapless(past: Past, view_bytes: int) -> None:
    for end in range(0, len(past.leaves) + 1, 7):
        view = past.view(end, view_bytes)
        assert sum(past.line(span) for span in view.spans) <= view_bytes
        assert all(before.end == after.start for before, after in pairwise(view.spans))
        assert not view.spans or view.spans[-1].end == end
        assert view.spans or not end or past.leaves[end - 1] > view_bytes


@given(pasts(), sizes)
def test_between_steps_lines_are_only_added(past: Past, view_bytes: int) -> None:
    planned = [
        plan_view(
            end,
            past.leaves[block_start(end) : end],
            view_bytes,
            lambda start, stop, most: plan_part(start, stop, past.size, most),
        )
        for end in range(len(past.leaves) + 1)
    ]
    for end, before in enumerate(planned[1:], 1):
        for after in planned[end + 1 : end + 1 + LOOK_BACK_BLOCKS * BLOCK_LINES - 3]:
            if (before.old, before.recent, before.tail[:1]) != (after.old, after.recent, after.tail[:1]):
                break
            earlier, later = before.blocks(), after.blocks()
            last = len(earlier) - 1
            assert [block.spans for block in earlier[:last]] == [block.spans for block in later[:last]]
            assert later[last].spans[: len(earlier[last].spans)] == earlier[last].spans
            marks = [at for at, block in enumerate(later) if block.cache]
            found = {
                at
                for at, block in enumerate(earlier)
                if block.cache and block.spans == later[at].spans
                if any(at <= mark < at + LOOK_BACK_BLOCKS for mark in marks)
            }
            parts = sum(1 for part in (before.old, before.recent) if part)
            assert set(range(parts)) <= found
            if end % BLOCK_LINES == 0:
                assert last in found, "all of it"
            elif parts < 2 and last > parts:
                assert last - 1 in found, "all but the block that grew"


@given(pasts(), st.integers(0, 160), sizes)
def test_what_is_said_later_moves_no_step(past: Past, end: int, view_bytes: int) -> None:
    end = min(end, len(past.leaves))
    share = shares(view_bytes)
    assert steps(end, past.leaves, share) == steps(end, past.leaves[:end], share)


@given(pasts(), sizes)
def test_three_marks_at_most(past: Past, view_bytes: int) -> None:
    for end in range(0, len(past.leaves) + 1, 5):
        blocks = past.view(end, view_bytes).blocks()
        assert sum(block.cache for block in blocks) <= 3
        assert not blocks or blocks[-1].cache
        assert all(block.spans for block in blocks)
