"""Removals from the inside: what one transaction writes, what it leaves alone, and what it costs."""

import json
from math import log2
from typing import Any

import apsw
import pytest

import optchat
from optchat.core.snapshots import OwnRange, Sight, Taken
from optchat.core.summarizing import SummaryRequest
from optchat.engine import checkpointing, dispatch, history, pins, work
from optchat.engine.handle import Scope
from optchat.store import removals
from optchat.store.rows import Connection
from optchat.testing import DeterministicSummarizer, temporary_memory
from optchat.testing.memories import open_beside
from tests.canaries import Parrot, assert_forgotten, canaries, seen_by, seen_in
from tests.engine.helpers import BUDGET, SMALL_VIEWS, say, shared_block, words
from tests.store.plans import Statement, scans


def rows(memory: optchat.Memory, sql: str) -> list[tuple[object, ...]]:
    with memory._scope.store.read() as db:
        return db.execute(sql).fetchall()


# ---- what pins are judged by -----------------------------------------------------------------------------------------


def sight(publications: int = 10, clock: int = 10, own: tuple[OwnRange, ...] = ()) -> Sight:
    return Sight(1, clock, publications, 0, own)


@pytest.mark.parametrize(
    ("taken", "eyes", "seen"),
    [
        (Taken(), sight(), False),
        (Taken(publications=9), sight(), True),
        (Taken(publications=10), sight(), False),
        (Taken(retired=(3, 11)), sight(), True),
        (Taken(retired=(3, 10)), sight(), False),  # retired at the pin's clock: it never saw it
        (Taken(retired=(10, 11)), sight(), False),
        (Taken(records=((7, 4),)), sight(own=(OwnRange(7, 0, 5),)), True),
        (Taken(records=((7, 5),)), sight(own=(OwnRange(7, 0, 5),)), False),
        (Taken(records=((8, 0),)), sight(own=(OwnRange(7, 0, 5),)), False),
    ],
)
def test_a_pin_has_seen_what_lies_under_its_marks(taken: Taken, eyes: Sight, seen: bool) -> None:
    assert taken.seen_by(eyes) is seen


# ---- the law of schedule 3 -------------------------------------------------------------------------------------------


def test_the_same_law_among_fewer() -> None:
    """8 of 256 scattered turns: a path each, no call, no view grows, every session has its context at once."""
    summarizer = DeterministicSummarizer()
    with temporary_memory(summarizer=summarizer) as memory:
        sessions = []
        for number in range(8):
            session = memory.session(f"s{number}")
            turns = tuple(
                history.TranscriptTurn(
                    f"t{turn}",
                    (optchat.HostMessage.user(f"session {number} speaks of thing {turn} and its cause"),),
                    has_request=True,
                    outcome="completed",
                )
                for turn in range(32)
            )
            history.import_turns(memory._scope, session._row, turns)
            sessions.append(session)
        memory.settle()
        asked, before = len(summarizer.requests), memory.view()
        receipts = [session.delete(only=[f"t{(7 * place) % 32}"]) for place, session in enumerate(sessions)]
        assert sum(receipt.removed["turns"] for receipt in receipts) == 8
        after = memory.view()
        assert [line.ref for line in after.lines] == [line.ref for line in before.lines]
        assert len(after.text.encode()) <= len(before.text.encode())
        for session in sessions:
            session.preview(optchat.Budget(window=32_000, output=1_000), request="what is known?")
        assert len(summarizer.requests) == asked
        due = memory.status().pending
        assert due <= 8 * log2(256)
        memory.settle()
        assert len(summarizer.requests) - asked <= due
        assert memory.verify().ok


# ---- echoes ----------------------------------------------------------------------------------------------------------


class Echo(Parrot):
    """Says again every canary that stands anywhere in what it is sent: also of the conversation's earlier lines."""

    def summarize(self, request: SummaryRequest, /) -> optchat.SummaryReply:
        shown = "\n".join([request.system, *(message.text for message in request.messages)])
        return optchat.SummaryReply(f"tells {' '.join(sorted(canaries(shown))[:12])}")


def test_a_later_summary_that_repeats_what_is_removed_is_made_anew() -> None:
    """Also one of a fork, one that pages of a long record were made of, and that of a later publication."""
    with temporary_memory(summarizer=Echo()) as memory:
        session = memory.session("s")
        first = say(session, "note canarygone canaryshared")
        say(session, "note canaryshared again")
        memory.settle()
        child = session.fork("child")
        for each, name in ((session, "mine"), (child, "forked")):
            say(each, f"note canary{name} " + "x" * 900)
            say(each, f"note canary{name}long " + "word " * 60_000)
        memory.settle()
        assert seen_by(memory).count("canarygone") > 6
        session.delete(only=[first.id], forks="forget")
        assert_forgotten(memory, ["canarygone"])
        assert {"canaryshared", "canarymine", "canaryforked"} <= canaries(seen_by(memory))
        assert memory.verify().ok
        memory.settle()
        assert_forgotten(memory, ["canarygone"])
        assert memory.verify().ok


# ---- one transaction -------------------------------------------------------------------------------------------------


def test_every_statement_of_a_removal_is_a_search() -> None:
    found: dict[str, Statement] = {}

    def watch(db: apsw.Connection) -> None:
        db.exec_trace = lambda _cursor, sql, bindings: found.setdefault(sql, Statement(sql, bindings)) is not None

    apsw.connection_hooks.append(watch)
    try:
        with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
            gone, other = memory.session("gone"), memory.session("other")
            for number in range(6):
                say(gone, words(number, 900 * (number % 2) + 100))
            memory.settle()
            with other.turn("what do they say?") as turn:
                turn.call("memory_zoom", json.dumps({"ref": "pub:0+1"}))
            child = gone.fork("child", after=next(iter(gone.turns())).id)
            running = other.turn("and now?")
            found.clear()
            gone.delete(only=["pub:3+1"])
            gone.revoke()
            gone.delete()
            running.context(BUDGET)
            child.delete(forks="forget")
            memory.delete_scope()
            with memory._scope.store.read() as db:
                # What grows with removals, of which there are few; the small table of runs of the index.
                allowed = {"removal_unfinished", "turn_live", "job_leased"}
                scanned = {
                    (sql, scan)
                    for sql, statement in found.items()
                    if sql.lstrip().split()[0] in ("SELECT", "UPDATE", "DELETE", "INSERT")
                    for scan in scans(db, sql, statement.bindings)
                    if not any(name in scan for name in allowed)
                }
    finally:
        apsw.connection_hooks.remove(watch)
    assert not scanned


def test_nothing_of_a_removal_is_there_after_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        gone = memory.session("gone")
        for number in range(4):
            say(gone, words(number, 900))
        memory.settle()
        before, view = seen_by(memory, ("turn",)), memory.view()

        def fails(*_: object, **__: object) -> int:
            raise RuntimeError("in the midst of it")

        with monkeypatch.context() as patched:
            patched.setattr(removals, "insert_removal", fails)
            for act in (gone.delete, gone.revoke, memory.delete_scope):
                with pytest.raises(RuntimeError):
                    act()
        assert seen_by(memory, ("turn",)) == before
        assert memory.view() == view
        assert memory.verify().ok
        gone.delete()
        assert memory.verify().ok


def test_a_frontier_that_another_handle_holds_learns_of_it() -> None:
    with temporary_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer()) as memory:
        other = open_beside(memory)
        gone = memory.session("gone")
        for number in range(12):
            say(gone, words(number, 300))
            say(other.session("other"), words(100 + number, 300))
        memory.settle()
        other.session_by_id(gone.id).delete()
        for number in range(12):
            say(memory.session("third"), words(200 + number, 300))
            say(other.session("other"), words(300 + number, 300))
        memory.settle()
        assert memory.verify().ok
        assert "thing3 " not in memory.view().text


def test_event_keys_are_kept_as_hashes_that_nobody_can_guess() -> None:
    with temporary_memory() as memory:
        session = memory.session("key-of-the-host", host="opencode")
        with session.turn(optchat.HostMessage.user("note", key="m1"), turn_id="t1") as turn:
            turn.assistant("said", key="m2")
        session.delete(only=["t1"])
        session.delete()
        hashes = {bytes(row[0]) for row in rows(memory, "SELECT hash FROM tombstone")}  # type: ignore[arg-type]
        assert all(len(each) == 32 for each in hashes)
        (secret,) = [bytes(row[0]) for row in rows(memory, "SELECT secret FROM scope")]  # type: ignore[arg-type]
        assert len(secret) == 32
        events = {bytes(row[0]) for row in rows(memory, "SELECT event_hash FROM event")}  # type: ignore[arg-type]
        assert not hashes & events
        with memory._scope.store.read() as db:
            assert removals.is_forgotten(db, memory._scope.pk, "opencode", "key-of-the-host")
            assert not removals.is_forgotten(db, memory._scope.pk, "opencode", "another")
            assert not removals.is_forgotten(db, memory._scope.pk, "opencodekey-of", "-the-host")


def test_what_waits_to_be_indexed_or_cut_into_pages_is_dropped() -> None:
    summarizer = DeterministicSummarizer()
    with temporary_memory(summarizer=summarizer) as memory:
        session = memory.session("s")
        large = "note canarylarge " + "word " * 60_000
        with session.turn("note canaryask") as turn:
            turn.assistant(large)
        memory.settle()
        with session.turn("note canarylater") as turn:
            turn.assistant(large.replace("canarylarge", "canarywaiting"))
        assert memory.status().pending
        session.delete(only=[each.id for each in session.turns()])
        assert memory.status().pending == 0
        asked = len(summarizer.requests)
        memory.settle()
        assert len(summarizer.requests) == asked
        assert_forgotten(memory, ["canarylarge", "canaryask", "canarylater", "canarywaiting"])
        assert memory.verify().ok


def test_a_turn_behind_a_removed_one_is_published_all_the_same() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        session = memory.session("s")
        first = say(session, words(1, 3_000))
        say(session, "note of the second")
        assert memory.view().through == 0, "publications of one session are made in turn order"
        session.delete(only=[first.id])
        assert memory.view().through == 1
        assert "note of the second" in memory.view().text
        assert memory.verify().ok


def test_a_turn_behind_a_removed_one_still_waits_for_those_before_both() -> None:
    with temporary_memory() as memory:
        session = memory.session("mine")
        say(session, words(1, 3_000))  # to be published when it is summarised
        for number in (2, 3, 4):
            say(session, f"short {number}")
        turns = session.turns().items
        session.delete(only=[turns[2].id, turns[1].id])
        assert [turn.publication_ref for turn in session.turns()] == [None, None], "the last one waits for the first"
        assert memory.settle().ready
        refs = [turn.publication_ref for turn in session.turns()]
        assert refs == ["pub:0+1", "pub:1+1"]
        assert memory.verify().faults == ()


def test_no_hash_of_what_an_open_turn_was_shown_stays() -> None:
    with temporary_memory() as memory:
        say(memory.session("other"), "the canary sings")
        running = memory.session("mine").turn("go on")
        running.context(BUDGET)
        memory.session("other").delete()
        running.context(BUDGET)  # under a pin of its own by now
        assert memory.settle().ready
        running.end("interrupted")
        memory.settle()
        with memory._scope.store.read() as db:
            hashes = [
                (pin, bytes(sha256), stable)
                for pin, sha256, stable in db.execute(
                    "SELECT pin, memory_sha256, json_extract(since, '$.stable') FROM rendering ORDER BY pin"
                )
            ]
        assert hashes[0] == (0, b"", "")
        assert [pin for pin, _, _ in hashes] == [0, 1]


def test_a_turn_that_runs_is_deleted_like_any_other() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "note canaryfirst")
        running = session.turn("note canaryrunning")
        running.stage(optchat.HostMessage.assistant("canarystaged", key="k"))
        session.delete(only=[running.id])
        for act in (lambda: running.assistant("more"), lambda: running.context(BUDGET), lambda: running.messages):
            with pytest.raises(optchat.TurnEnded):
                act()
        assert rows(memory, "SELECT count(*) FROM staged") == [(0,)]
        later = session.turn("note: go on")
        assert canaries(seen_in(later)) == {"canaryfirst"}
        later.end("completed")
        assert_forgotten(memory, ["canaryrunning", "canarystaged"])
        assert memory.verify().ok


def test_what_was_retired_before_disturbs_only_pins_from_before_that() -> None:
    with temporary_memory(summarizer=Parrot()) as memory:
        session = memory.session("s")
        first = say(session, "note canaryone")
        second = say(session, "note canarytwo")
        early = memory.session("early").turn("note")
        session.rewind(after=first.id)
        late = memory.session("late").turn("note")
        shown = shared_block(late)
        assert "canarytwo" in shared_block(early)
        session.delete(only=[second.id])
        assert shared_block(late) == shown
        assert "." not in late.snapshot.id
        assert "canarytwo" not in seen_in(early)
        assert early.snapshot.id.endswith(".1")
        assert_forgotten(memory, ["canarytwo"], [early, late])
        assert memory.verify().ok


def test_reads_and_removals_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule 26: the epoch is checked in the transaction that reads, so that no read is half of each."""
    with temporary_memory(summarizer=Parrot()) as memory:
        gone = memory.session("gone")
        say(gone, "note canarygone")
        memory.settle()
        other = open_beside(memory)
        reader = memory.session("reader").turn("note")
        checked = pins.check_pin

        def overtaken(scope: Scope, db: Connection, epoch: int, sight: Sight) -> None:
            checked(scope, db, epoch, sight)
            if "." not in reader.snapshot.id:  # between the check and what is read after it
                other.session_by_id(gone.id).delete()

        with monkeypatch.context() as patched:
            patched.setattr(pins, "check_pin", overtaken)
            whole = reader.zoom("pub:0+1")
        assert "canarygone" in whole.lines[0].text, "a read that began before it is whole"
        with pytest.raises(optchat.UnknownRef):
            reader.zoom("pub:0+1")
        assert canaries(seen_in(reader)) == set()


def test_what_is_removed_while_a_request_is_rendered_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that returned before the rendering was written down comes before it."""
    with temporary_memory() as memory:
        say(memory.session("gone"), "note canarygone")
        other = open_beside(memory)
        turn = memory.session("mine").turn("go on")
        rendered, removed = dispatch.render, list[bool]()

        def overtaken(*arguments: Any, **more: Any) -> Any:
            made = rendered(*arguments, **more)
            if not removed:
                removed.append(True)
                other.session("gone").delete()
            return made

        monkeypatch.setattr(dispatch, "render", overtaken)
        context = turn.context(BUDGET)
        assert removed
        assert "canarygone" not in "".join(block.text for block in context.blocks)
        assert context.receipt.snapshot.id.endswith(".1")


def test_what_another_handle_pinned_again_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut of a long turn takes long: what this handle held before may be gone by then."""
    with temporary_memory() as memory:
        say(memory.session("gone"), "note canarygone")
        turn = memory.session("mine").turn("go on", turn_id="t")
        for number in range(24):
            turn.tool_call(f"c{number}", "read", "{}")
            turn.tool_result(f"c{number}", f"finding {number} " + "in a long file " * 60)
        small = optchat.Budget(window=6_000, output=200)
        assert "canarygone" in "".join(block.text for block in turn.context(small).blocks)
        there = memory.session("mine").turn("go on", turn_id="t")
        other, cut, removed = open_beside(memory), checkpointing._cut, list[bool]()

        def overtaken(*arguments: Any) -> Any:
            if not removed:
                removed.append(True)
                other.session("gone").delete()
                there.context(small)
            return cut(*arguments)

        monkeypatch.setattr(checkpointing, "_cut", overtaken)
        context = turn.context(small)
        assert removed
        assert "canarygone" not in "".join(block.text for block in context.blocks)


def test_what_was_claimed_before_a_removal_is_not_read_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker leases first and reads then: in between, what it leased may be gone."""
    summarizer = DeterministicSummarizer()
    with temporary_memory(summarizer=summarizer) as memory:
        gone, other = memory.session("gone"), open_beside(memory)
        with gone.turn("note canaryask " + "x" * 900) as turn:
            turn.assistant("note canarylong " + "word " * 60_000)
        loads, removed = work._load_all, list[str]()

        def overtaken(*arguments: Any) -> list[Any]:
            if not removed:
                removed.append(gone.id)
                other.session_by_id(gone.id).delete()
            return loads(*arguments)

        monkeypatch.setattr(work, "_load_all", overtaken)
        memory.settle()
        assert removed
        assert not summarizer.requests
        assert memory.status().failures == ()
        assert memory.verify().ok


def test_a_tombstone_cannot_be_repaired() -> None:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        session = memory.session("s")
        for number in range(4):
            say(session, words(number, 900))
        memory.settle()
        session.delete(only=["pub:0+1", "pub:1+1"])
        for ref in ("pub:0+2", f"session:{session.id}:0:0+2"):
            with pytest.raises(optchat.BadArgument):
                memory.repair(ref)
        with pytest.raises(optchat.UnknownRef):
            memory.repair("pub:0+1")
        assert memory.repair("pub:0+4") > 0
        assert memory.verify().ok
