"""A call's receipt is kept with the next thing that its turn writes, and read off what was rendered."""

from pathlib import Path

import pytest
from attrs import evolve

import optchat
from optchat.memory import KeptReceipt, kept_receipt
from optchat.testing import DeterministicSummarizer, ManualClock, temporary_memory
from tests.engine.helpers import BUDGET, SMALL_VIEWS, say, words


def kept(memory: optchat.Memory, turn: str = "t", session: str | None = None) -> KeptReceipt:
    return kept_receipt(memory, turn, session=session)


def test_the_last_call_of_a_turn_is_kept() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        session = memory.session("one")
        say(memory.session("two"), "elsewhere")
        with session.turn("before") as turn:
            turn.context(BUDGET)
            turn.assistant("done")
        turn = session.turn("go on", turn_id="t")
        turn.context(BUDGET)
        turn.assistant("", calls=[optchat.ToolCallPart("c", "run", "{}")])
        turn.tool_result("c", "it ran")
        clock.advance(5)
        last = turn.context(optchat.Budget(window=90_000, output=2_000, instructions=3))
        at = clock.now()
        clock.advance(5)
        turn.assistant("done")
        assert kept(memory).receipt == last.receipt
        turn.end("completed")
        found = kept(memory)
        assert found.receipt == last.receipt
        assert (found.turn_id, found.session_id, found.at) == ("t", session.id, at)
        assert found.receipt.refs
        assert found.receipt.tokens.instructions == 3


def test_every_kind_of_rendering_reads_as_it_was() -> None:
    with temporary_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer()) as memory:
        session, other = memory.session("one"), memory.session("two")
        ways = set()
        for number in range(14):
            if number != 8:  # the request before this one is too long for a line of its own
                memory.settle()
            say(other, words(number))
            turn = session.turn(words(number, 3_000 if number == 7 else 400), turn_id=f"t{number}")
            budget = BUDGET if number % 5 else optchat.Budget(window=3_000, output=100)
            context = turn.context(budget, readiness="partial")
            turn.end("completed")
            assert kept(memory, f"t{number}").receipt == context.receipt
            ways.add((bool(context.receipt.missing), any(block.kind == "since" for block in context.blocks)))
        assert ways == {(False, False), (False, True), (True, False)}


def test_the_lines_of_a_checkpoint_are_kept_too() -> None:
    with temporary_memory() as memory:
        turn = memory.session("one").turn("port it", turn_id="t")
        for number in range(20):
            turn.tool_call(f"c{number}", "read", "{}")
            turn.tool_result(f"c{number}", f"finding {number} " + "in a long file " * 60)
        sent = turn.context(optchat.Budget(window=6_000, output=200)).receipt
        turn.assistant("done")
        assert sent.checkpointed
        assert kept(memory).receipt == sent


def test_it_is_read_from_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="s", compact="manual") as memory:
        turn = memory.session("one").turn("go on", turn_id="t")
        context = turn.context(BUDGET)
        turn.suspend()
    with optchat.open(path, scope="s", mode="ro") as memory:
        assert kept(memory).receipt == context.receipt


def test_nothing_is_written_for_a_call() -> None:
    with temporary_memory() as memory:
        turn = memory.session("one").turn("go on", turn_id="t")
        turn.context(BUDGET)  # writes its rendering, once
        with memory._scope.store.write() as db:
            before = db.total_changes()
        turn.context(BUDGET)
        with memory._scope.store.write() as db:
            assert db.total_changes() == before
        with pytest.raises(optchat.UnknownRef, match="no call that anything was sealed after"):
            kept(memory)


def test_an_older_call_does_not_take_a_later_ones_place() -> None:
    clock = ManualClock()
    with temporary_memory(clock=clock) as memory:
        turn = memory.session("one").turn("go on", turn_id="t")
        turn.context(BUDGET)
        held = memory._scope.caches.calls.get(turn._pk)
        assert held is not None
        clock.advance(1)
        later = turn.context(optchat.Budget(window=90_000, output=1))
        turn.user("steered")
        assert kept(memory).receipt == later.receipt
        memory._scope.caches.calls.put(turn._pk, held)  # as another process would still have it
        turn.user("again")
        assert kept(memory).receipt == later.receipt


def test_what_was_deleted_is_no_longer_named() -> None:
    with temporary_memory() as memory:
        one, two = memory.session("one"), memory.session("two")
        say(two, "they chose walrus")
        say(memory.session("three"), "and something else")
        turn = one.turn("go on", turn_id="t")
        before = turn.context(BUDGET).receipt
        turn.end("completed")
        assert "pub:0+1" in before.refs
        two.delete()
        after = kept(memory).receipt
        assert after == evolve(before, refs=tuple(ref for ref in before.refs if ref != "pub:0+1"))
        memory.settle()
        assert kept(memory).receipt == after


def test_the_previous_exchange_that_was_deleted_is_no_longer_named() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        with session.turn("begin", turn_id="first") as turn:
            turn.assistant("done")
        with session.turn("go on", turn_id="t") as turn:
            before = turn.context(BUDGET).receipt
            turn.assistant("done")
        session.delete(only=["first"])
        after = kept(memory).receipt
        assert before.refs.count(f"session:{session.id}:0:0+1") == 2, "in the view, and as the previous exchange"
        assert f"session:{session.id}:0:0+1" not in after.refs
        assert after.tokens == before.tokens


def test_a_deleted_turn_has_no_receipt() -> None:
    with temporary_memory() as memory:
        session = memory.session("one")
        turn = session.turn("go on", turn_id="t")
        turn.context(BUDGET)
        turn.end("completed")
        assert kept(memory)
        session.delete(only=["t"])
        with pytest.raises(optchat.UnknownRef, match="not known here"):
            kept(memory)
        memory.settle()
        with memory._scope.store.read() as db:
            assert db.execute("SELECT count(*) FROM rendering").fetchall() == [(0,)]


def test_a_turn_that_was_pinned_again_says_so() -> None:
    with temporary_memory() as memory:
        two = memory.session("two")
        say(two, "they chose walrus")
        turn = memory.session("one").turn("go on", turn_id="t")
        turn.context(BUDGET)
        turn.user("more")
        two.delete()
        again = turn.context(BUDGET)
        turn.end("completed")
        assert kept(memory).receipt.snapshot == again.receipt.snapshot
        assert again.receipt.snapshot.id.endswith(".1")


def test_turns_of_one_id_are_told_apart() -> None:
    with temporary_memory() as memory:
        for key in ("one", "two"):
            turn = memory.session(key).turn("go on", turn_id="t")
            turn.context(BUDGET)
            turn.end("completed")
        with pytest.raises(optchat.BadArgument, match="name the session"):
            kept(memory)
        assert kept(memory, session=memory.session("two").id).session_id == memory.session("two").id
        with pytest.raises(optchat.UnknownRef, match="not known"):
            kept(memory.scoped("elsewhere"))
        session = memory.session("one")
        session.rewind(before="t")
        session = memory.session("one")
        turn = session.turn("go elsewhere", turn_id="t")
        context = turn.context(BUDGET)
        turn.end("completed")
        assert kept(memory, session=session.id).receipt == context.receipt, "the present generation's"
