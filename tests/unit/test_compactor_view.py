"""The compactor's view: how a window is divided, where the parts meet, which nodes stand for them, and the blocks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from optchat.core.compactor_view import (
    BLOCK_LEAVES,
    CompactorView,
    Part,
    Rooms,
    Shares,
    Steps,
    block_start,
    foreign_bytes,
    plan_part,
    plan_view,
    rooms,
    shares,
    steps,
    tail_only,
)
from optchat.core.errors import SummaryRejected
from optchat.core.refs import Span, exact_cover
from optchat.core.summarizing import (
    ContextBlock,
    SourceLine,
    SummaryJob,
    SummaryReply,
    SummaryRequest,
    first_request,
    request_bytes,
    run_flow,
    summary_flow,
)
from optchat.core.tokens import UpperBoundTokenizer

AT = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
VIEW = 32_000
WINDOWS = (3_500, 4_000, 6_000, 10_000, 16_000, 40_000, 65_536, 100_000, 128_000, 200_000, 1_000_000)


# ---- a window's rooms ------------------------------------------------------------------------------------------------


def full(room: Rooms) -> SummaryRequest:
    """A request that uses up all its rooms."""
    half = room.context_bytes // 2
    job = SummaryJob(
        purpose="leaf",
        sources=(SourceLine("tool_result", "x" * room.page_bytes, AT),),
        limit_bytes=512,
        context=(ContextBlock("c" * half), ContextBlock("d" * half)) if half else (),
        foreign=("f" * foreign_bytes(room.context_bytes),) if half else (),
    )
    return first_request(job)


def tokens(request: SummaryRequest) -> int:
    """The most tokens of a request, at one a byte of what is not the rules, and of its answer."""
    rules = UpperBoundTokenizer().count(request.system)
    return rules + request_bytes(request) - len(request.system.encode()) + request.max_output_tokens


@pytest.mark.parametrize("window", WINDOWS)
def test_a_request_that_uses_all_its_room_is_within_the_window(window: int) -> None:
    spare = 2 * 512 - min(2 * 512, window // 4)  # the answer of a small window is not promised more than a quarter
    assert tokens(full(rooms(window, VIEW))) - spare <= window


@pytest.mark.parametrize("window", [1, 1_000, 2_000])
def test_a_page_has_a_kilobyte_whatever_the_window(window: int) -> None:
    assert rooms(window, VIEW) == Rooms(0, 1024)


def test_usual_windows_have_the_whole_view() -> None:
    assert rooms(100_000, VIEW).context_bytes == VIEW
    assert rooms(128_000, VIEW) == Rooms(VIEW, 64_000)
    assert rooms(128_000, 0) == Rooms(0, 64_000)


def test_a_larger_window_has_no_less_room() -> None:
    found = [rooms(window, VIEW) for window in range(1_000, 200_000, 1_000)]
    assert found == sorted(found, key=lambda room: (room.context_bytes, room.page_bytes))


@pytest.mark.parametrize(("node_bytes", "window"), [(64, 80_000), (512, 80_000), (4_096, 600_000)])
def test_five_tries_are_within_the_window(node_bytes: int, window: int) -> None:
    room = rooms(window, VIEW, node_bytes)
    seen: list[SummaryRequest] = []

    def too_long(request: SummaryRequest) -> SummaryReply:
        seen.append(request)
        return SummaryReply("endless " * 10_000)

    job = SummaryJob(
        purpose="leaf",
        sources=(SourceLine("assistant", "x" * room.page_bytes, AT),),
        limit_bytes=node_bytes,
        context=(ContextBlock("c" * room.context_bytes),),
        foreign=("f" * foreign_bytes(room.context_bytes),),
    )
    with pytest.raises(SummaryRejected):
        run_flow(summary_flow(job, attempts=5), too_long)
    assert len(seen) == 5
    assert tokens(seen[-1]) <= window


def test_the_context_gives_way_to_sources_that_are_larger_than_a_page() -> None:
    room = Rooms(32_000, 10_000)
    assert room.beside([10_000]) == 32_000
    assert room.beside([10_001]) == 16_000
    assert room.beside([34_000]) == 16_000
    assert room.beside([34_001]) == 8_000
    assert room.beside([10_000, 0]) == 16_000, "labels count"
    assert room.beside([58_000]) == 0
    assert Rooms(0, 1024).beside([70_000]) == 0


def test_what_gives_way_is_enough() -> None:
    room = Rooms(20_000, 24_000)
    most = 24_000 + 20_000 + foreign_bytes(20_000)
    for source in range(0, 70_000, 777):
        left = room.beside([source])
        assert left + foreign_bytes(left) + source <= max(most, source)


# ---- where the parts meet --------------------------------------------------------------------------------------------


def test_shares_are_the_whole() -> None:
    for size in (17_000, 20_271, 32_000, 64_001):
        share = shares(size)
        assert share.old + share.recent + share.tail == size
        assert share.old > share.recent > 0
        assert share.recent >= 8 * 528, "what covers a few hundred leaves"
    assert shares(32_000) == Shares(20_776, 4_224, 7_000)


def test_a_small_view_has_fewer_parts() -> None:
    assert shares(16_000) == Shares(10_000, 0, 6_000)
    assert shares(8_447) == tail_only(8_447) == Shares(0, 0, 8_447)
    assert shares(32_000, 2_048) == tail_only(32_000) == shares(32_000, 2_048)
    assert shares(40_000, 2_048).recent == 0


def test_blocks_of_leaves() -> None:
    assert [block_start(end) for end in (0, 1, 1024, 1025, 2048, 2049)] == [0, 0, 0, 1024, 1024, 2048]


def at(end: int, line: int = 100, size: int = VIEW) -> Steps:
    return steps(end, [line] * (end - block_start(end)), shares(size))


def test_a_young_session_is_all_leaves() -> None:
    assert at(0) == at(1) == at(320) == Steps(0, 0)


def test_steps_of_an_even_session() -> None:
    # Old 20,776, recent 4,224, tail 7,000 bytes: the first step comes when all of them are used up, by 320 lines.
    assert at(321) == Steps(320, 320)
    assert at(320 + 112) == Steps(320, 320), "the recent part is empty: its share is the tail's"
    assert at(320 + 113) == Steps(320, 432)
    assert at(432 + 70) == Steps(320, 432)
    assert at(432 + 71) == Steps(320, 496), "rounded down to where nodes of eight leaves end"


def test_the_old_part_moves_when_the_recent_one_is_too_coarse() -> None:
    moved = sorted({at(end, 200).old_end for end in range(1, BLOCK_LEAVES)})
    assert moved == [0, 160, 496, 832]
    assert all((after - before) * 200 <= 16 * 4_224 for before, after in pairwise(moved))
    assert (496 + 8 - 160) * 200 > 16 * 4_224, "a small step further it would have been more"


def test_a_block_starts_anew() -> None:
    assert at(BLOCK_LEAVES).old_end < BLOCK_LEAVES
    assert at(BLOCK_LEAVES + 1) == Steps(BLOCK_LEAVES, BLOCK_LEAVES)


def test_the_tail_always_has_the_last_leaf() -> None:
    for line in (20, 100, 600, 6_000, 40_000):
        for end in range(1, 400):
            found = at(end, line)
            assert found.old_end <= found.recent_end < end


def test_a_leaf_larger_than_the_tail_does_not_hold_it_up() -> None:
    leaves = [100] * 30 + [50_000] + [100] * 30
    assert steps(31, leaves, shares(VIEW)) == Steps(16, 16)
    assert steps(32, leaves, shares(VIEW)) == Steps(16, 31)
    assert steps(60, leaves, shares(VIEW)) == Steps(16, 31)


def test_a_later_end_has_no_earlier_step() -> None:
    leaves = [37 * (leaf % 17) + 12 for leaf in range(1_000)]
    found = [steps(end, leaves, shares(12_000)) for end in range(1, 1_000)]
    for before, after in pairwise(found):
        assert before.old_end <= after.old_end
        assert before.recent_end <= after.recent_end


# ---- the nodes of a part ---------------------------------------------------------------------------------------------


def even(span: Span) -> int:
    """Every node of 100 bytes, durable."""
    assert span.count
    return 100


def test_a_part_is_gapless_and_finer_towards_its_end() -> None:
    found = plan_part(32, 256, even, 1_000)
    assert found.whole
    assert found.spans[0].start == 32
    assert found.spans[-1].end == 256
    assert all(left.end == right.start for left, right in pairwise(found.spans))
    assert len(found.spans) <= 10
    assert found.spans[-1].count == 1
    assert found.spans[0].count == 32


def test_an_empty_part() -> None:
    assert plan_part(7, 7, even, 0) == Part((), whole=True)


def test_the_coarsest_cover_is_tried_first() -> None:
    assert plan_part(0, 1024, even, 100) == Part((Span(0, 1024),), whole=True)
    assert plan_part(0, 1023, even, 999) == Part(exact_cover(0, 1023)[1:], whole=False)


def test_where_nodes_are_missing_the_oldest_lines_are_left_out() -> None:
    def leaves_only(span: Span) -> int | None:
        return 100 if span.count == 1 else None

    found = plan_part(0, 1_000, leaves_only, 450)
    assert found == Part(tuple(Span(leaf, 1) for leaf in range(996, 1_000)), whole=False)


def test_it_looks_no_further_back_than_its_bytes_reach() -> None:
    asked: set[Span] = set()

    def leaves_only(span: Span) -> int | None:
        asked.add(span)
        return 100 if span.count == 1 else None

    plan_part(0, 1 << 20, leaves_only, 2_000)
    assert len(asked) < 100


def test_a_part_ends_before_a_leaf_that_is_gone() -> None:
    def size(span: Span) -> int | None:
        return None if span.start <= 3 < span.end else 100

    assert plan_part(0, 8, size, 10_000) == Part((Span(4, 4),), whole=False)


# ---- the view and its blocks -----------------------------------------------------------------------------------------


def planned(end: int, size: int = VIEW, line: int = 100) -> CompactorView:
    leaves = [line] * (end - block_start(end))
    return plan_view(end, leaves, size, lambda start, stop, most: plan_part(start, stop, lambda _: line, most))


def test_nothing_before_the_beginning() -> None:
    assert planned(0) == CompactorView((), (), ())
    assert planned(0).blocks() == ()


def test_the_parts_in_order() -> None:
    view = planned(450)
    assert view.old[0].start == 0
    assert view.old[-1].end == view.recent[0].start == 320
    assert view.recent[-1].end == view.tail[0].start == 432
    assert view.tail == tuple(Span(leaf, 1) for leaf in range(432, 450))


def test_without_the_nodes_that_it_needs_it_is_all_leaves() -> None:
    def part(start: int, stop: int, most: int) -> Part:
        return plan_part(start, stop, lambda span: 100 if span.count == 1 else None, most)

    view = plan_view(1_000, [100] * 1_000, VIEW, part)
    assert view.old == view.recent == ()
    assert view.tail[-1].end == 1_000
    assert len(view.tail) * 100 <= VIEW


def test_marks_follow_the_parts_and_the_end() -> None:
    blocks = planned(450).blocks()
    assert [block.cache for block in blocks] == [True, True, *[False] * 8, True]
    assert [len(block.spans) for block in blocks[2:]] == [2] * 9
    assert sum(len(block.spans) for block in blocks) == len(planned(450).spans)


def test_a_block_that_will_grow_is_marked_besides_the_one_before_it() -> None:
    odd = planned(21).blocks()
    assert [len(block.spans) for block in odd] == [*[2] * 10, 1]
    assert [block.cache for block in odd] == [*[False] * 9, True, True]
    even_end = planned(22).blocks()
    assert [block.cache for block in even_end] == [*[False] * 10, True]
    assert [block.cache for block in planned(1).blocks()] == [True]
    assert sum(block.cache for block in planned(451).blocks()) == 3, "never more than the rules leave"


def test_a_tail_that_begins_at_an_odd_leaf_is_cut_at_even_ones() -> None:
    view = CompactorView((), (Span(0, 1),), tuple(Span(leaf, 1) for leaf in range(1, 6)))
    assert [len(block.spans) for block in view.blocks()] == [1, 1, 2, 2]


def test_what_is_too_large_loses_its_beginning() -> None:
    view = CompactorView((Span(0, 4), Span(4, 2)), (Span(6, 2),), (Span(8, 1), Span(9, 1)))
    assert view.within(even, 500) is view
    assert view.within(even, 499) == CompactorView((Span(4, 2),), view.recent, view.tail)
    assert view.within(even, 250) == CompactorView((), (), view.tail)
    assert view.within(even, 99) == CompactorView((), (), ())
