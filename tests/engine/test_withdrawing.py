"""Publications that are withdrawn: what stands in for them, what pins keep, and that no view grows or gets a gap."""

from math import log2

import pytest
from hypothesis import given, strategies as st

import optchat
from optchat.core.refs import KEY_BITS, Span
from optchat.core.retrieval import LineKind
from optchat.core.tree import Node, joined, rebuilt, tombstone
from optchat.engine.landing import Landing
from optchat.engine.trees import shared_tree
from optchat.engine.withdrawing import Withdrawn, withdraw
from optchat.store import forest, publications, scopes, turns
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.engine.helpers import SMALL_VIEWS, say, shared_block, words
from tests.engine.remaking_steps import counted, counters


def withdrawn(memory: optchat.Memory, numbers: list[int], *, removed: bool) -> Withdrawn:
    """One transaction that withdraws, as a rewind (or a removal, without its epoch) does."""
    scope = memory._scope
    with scope.store.write(wait_seconds=5) as db:
        landing = Landing(scope, db, scope.now())
        done = withdraw(landing, numbers, removed=removed)
        landing.finish()
    landing.after_commit()
    return done


def assert_sound(memory: optchat.Memory) -> None:
    """All that verification checks. These turns are not undone, as a rewind's are, nor their records: it says so."""
    assert {fault.code for fault in memory.verify().faults} <= {"PUBLICATION_LOST", "DOCUMENT_VISIBLE"}
    assert counted(memory) == counters(memory)


def spoken(memory: optchat.Memory, turns: int, size: int = 400) -> None:
    session = memory.session("s")
    for number in range(turns):
        say(session, words(number, size))
    memory.settle()


def stored(memory: optchat.Memory) -> dict[str, Node]:
    """Every present node of the shared tree."""
    scope = memory._scope
    with scope.store.read() as db:
        end = scopes.next_publication(db, scope.pk)
        spans = [Span(at, 1 << level) for level in range(12) for at in range(0, end, 1 << level)]
        return {str(span): node for span, node in shared_tree(scope).nodes(db, spans).items()}


def view_bytes(memory: optchat.Memory) -> tuple[int, list[str]]:
    scope = memory._scope
    with scope.store.read() as db:
        view = forest.load_view(db, scope.row.shared_tree)
    seen = memory.view()
    assert view.length == seen.through
    return len(seen.text.encode()), [line.ref for line in seen.lines]


@pytest.mark.parametrize("removed", [False, True])
def test_the_leaf_becomes_a_tombstone_and_nothing_above_it_says_what_it_said(removed: bool) -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 16)
        before = stored(memory)
        assert withdrawn(memory, [5], removed=removed) == Withdrawn(1, 5)
        after = stored(memory)
        assert after.keys() == before.keys()
        assert after["5+1"].kind == "tombstone"
        assert after["5+1"].text == ("[removed]" if removed else "[superseded]")
        for ref in ("4+2", "4+4", "0+8", "0+16"):
            assert after[ref].kind in ("stand_in", "summary"), ref
            assert "thing5" not in after[ref].text
            assert after[ref].escaped_bytes <= before[ref].escaped_bytes
        assert {ref: after[ref] for ref in after.keys() - {"5+1", "4+2", "4+4", "0+8", "0+16"}} == {
            ref: before[ref] for ref in before.keys() - {"5+1", "4+2", "4+4", "0+8", "0+16"}
        }
        assert_sound(memory)


def test_a_stand_in_shows_what_is_left_under_it() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 4)
        withdrawn(memory, [1], removed=True)
        left = stored(memory)["0+4"]
        assert left.text.startswith("[not summarised: 4 publications")
        assert "thing0" in left.text


@pytest.mark.parametrize("removed", [False, True])
def test_what_is_withdrawn_is_written_again_once_there_is_time(removed: bool) -> None:
    summarizer = DeterministicSummarizer()
    with temporary_memory(summarizer=summarizer) as memory:
        spoken(memory, 16)
        asked = len(summarizer.requests)
        withdrawn(memory, [5], removed=removed)
        memory.settle()
        assert all("thing5" not in source.text for request in summarizer.requests[asked:] for source in request.sources)
        assert 3 <= len(summarizer.requests) - asked <= 4
        after = stored(memory)
        assert [after[ref].kind for ref in ("4+4", "0+8", "0+16")] == ["summary"] * 3
        assert memory.status().pending == 0
        assert_sound(memory)


def test_pins_from_before_a_retirement_keep_text_size_and_hits() -> None:
    with temporary_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 16, 300)
        turn = memory.session("other").turn("what is known?")
        shown, hits = shared_block(turn), turn.search("thing7", order="newest").hits
        zoomed = turn.zoom("pub:7+1"), turn.zoom("pub:0+8")
        with memory.pin() as pin:
            viewed, pinned = pin.view(), pin.search("thing7", order="newest").hits
            withdrawn(memory, [7], removed=False)
            assert pin.view() == viewed
            assert pin.search("thing7", order="newest").hits == pinned
            assert shared_block(turn) == shown
            assert turn.search("thing7", order="newest").hits == hits
            assert (turn.zoom("pub:7+1"), turn.zoom("pub:0+8")) == zoomed
        turn.end("completed")
        later = memory.session("third").turn("and now?")
        assert "thing7 " not in shared_block(later)
        assert not later.search("thing7", order="newest").hits
        with pytest.raises(optchat.UnknownRef):
            later.zoom("pub:7+1")
        assert later.zoom("pub:6+2").lines[1].kind == "tombstone"


def test_withdrawing_twice_changes_nothing() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 8)
        withdrawn(memory, [2, 3], removed=False)
        once = stored(memory)
        assert withdrawn(memory, [2, 3, 99], removed=False) == Withdrawn(0, 0)
        assert stored(memory) == once


def test_removing_what_was_retired_disturbs_nothing_present() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 8)
        with memory.pin() as before:
            withdrawn(memory, [2], removed=False)
            memory.settle()
            present = stored(memory)
            assert "thing2" in before.zoom("pub:2+1").lines[0].text
            assert withdrawn(memory, [2], removed=True).publications == 1
            assert stored(memory) == present
            with pytest.raises(optchat.UnknownRef):
                before.zoom("pub:2+1")
            assert all("thing2 " not in line.text for ref in ("pub:0+8", "pub:2+2") for line in before.zoom(ref).lines)
            assert not before.search("thing2", order="newest", kind="user").hits


def test_tombstones_say_once_what_they_all_say() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 32)
        withdrawn(memory, list(range(16)), removed=True)
        after = stored(memory)
        assert after["0+16"].text == "[removed]"
        assert after["0+16"].kind == "tombstone"
        asked = memory.status().pending
        assert asked == 1, "0+32 alone is to be written again"


@pytest.mark.parametrize("removed", [False, True])
def test_scattered_turns_rebuild_a_path_each_and_no_view_grows(removed: bool) -> None:
    """Schedule 3, small; benchmarks/forgetting.py has its size."""
    summarizer = DeterministicSummarizer()
    with temporary_memory(policy=SMALL_VIEWS, summarizer=summarizer) as memory:
        spoken(memory, 96, 60)
        size, lines = view_bytes(memory)
        asked = len(summarizer.requests)
        done = withdrawn(memory, list(range(0, 96, 6)), removed=removed)
        assert done.publications == 16
        assert done.nodes <= 16 * log2(96)
        after, same = view_bytes(memory)
        assert same == lines
        assert after <= size
        assert len(summarizer.requests) == asked
        turn = memory.session("other").turn("what is known?")
        turn.context(optchat.Budget(window=32_000, output=1_000))
        assert_sound(memory)


def test_turns_are_unpublished_and_their_numbers_never_used_again() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        spoken(memory, 3)
        withdrawn(memory, [2], removed=False)
        scope = memory._scope
        with scope.store.read() as db:
            row = publications.load_publication(db, scope.pk << KEY_BITS | 2)
            assert row is not None
            turn = turns.load_turn(db, row.turn_pk)
        assert turn is not None
        assert turn.publication_key is None
        say(memory.session("other"), words(9))
        assert "thing9" in memory.zoom("pub:3+1").lines[0].text


# ---- the pure rules --------------------------------------------------------------------------------------------------


def made(text: str, start: int = 0, kind: LineKind = "summary") -> Node:
    return Node(Span(start, 1), 0, kind, text, len(text.encode()), 0, 0, 5, 6)


@given(size=st.integers(0, 40), label=st.sampled_from(["[removed]", "[superseded]"]))
def test_a_tombstone_is_no_heavier_than_what_was_there(size: int, label: str) -> None:
    left = tombstone(made("x" * size), label, 9)
    assert left.escaped_bytes == len(left.text) <= size
    assert left.text in {label, "[-]", "-", ""}
    assert (left.failed, left.interrupted, left.first_at, left.last_at) == (0, 0, 9, 9)


@given(
    size=st.integers(0, 600),
    inputs=st.lists(st.text(max_size=600), max_size=3),
    mark=st.sampled_from(["", "[3 failed] ", "interrupted: "]),
)
def test_what_stands_in_is_labelled_and_never_heavier(size: int, inputs: list[str], mark: str) -> None:
    left = rebuilt(made("x" * size), None, inputs, "4 publications", mark, 512)
    assert left.escaped_bytes <= min(size, 512)
    assert len(left.text.encode()) <= 512
    assert left.kind == "stand_in"
    if size > 40:
        assert left.text.startswith(f"{mark}[not summarised")


def test_joined_tombstones_keep_one_label_of_each() -> None:
    one, two = made("[removed]", 0, "tombstone"), made("[superseded]", 1, "tombstone")
    both = joined(one, two, 512)
    assert both is not None
    assert both.text == "[removed]\n[superseded]"
    again = joined(both, both, 512)
    assert again is not None
    assert again.text == both.text
