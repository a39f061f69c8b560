"""
§ 16, deletion and revocation: new reads reject invalid snapshots and derived summaries containing removed sources.

What is here is the first stage, hidden at once; tests of the second say that no byte is left.
"""

import json
from collections.abc import Callable

import pytest

import optchat
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.acceptance.conftest import Open
from tests.canaries import Parrot, assert_forgotten, canaries, seen_by, seen_in
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, previous_exchange, say, shared_block, words


def exchange(session: Session, canary: str, size: int = 40) -> str:
    """A completed turn with a canary in everything that can be said; its id."""
    with session.turn(f"note {canary}user " + "x" * size) as turn:
        turn.assistant(f"says {canary}answer", calls=[optchat.ToolCallPart(f"c-{canary}", "run", "{}")])
        turn.tool_result(f"c-{canary}", f"says {canary}result " + "y" * size)
        turn.report("build", f"says {canary}report")
        turn.assistant(f"says {canary}end")
    return turn.id


def every(canary: str) -> list[str]:
    return [f"{canary}{part}" for part in ("user", "answer", "result", "report", "end")]


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def memory(open_memory: Open, parrot: Parrot) -> optchat.Memory:
    return open_memory(summarizer=parrot, policy=SMALL_VIEWS)


def test_a_deleted_session_is_in_no_read_from_then_on(memory: optchat.Memory) -> None:
    gone, other = memory.session("gone", title="canarytitle", worktree="canarytree"), memory.session("other")
    for number in range(4):
        exchange(gone, f"canary{number}", 700 * (number % 2))
        exchange(other, f"canaryother{number}", 700 * (number % 2))
    memory.settle()
    open_turn = other.turn("note of another")
    assert "canary0user" in seen_in(open_turn)
    receipt = gone.delete()
    told = [*(word for number in range(4) for word in every(f"canary{number}")), "canarytitle", "canarytree"]
    assert_forgotten(memory, told, [open_turn])
    assert receipt.removed["sessions"] == 1
    assert receipt.removed["turns"] == receipt.removed["publications"] == 4
    assert receipt.removed["records"] == 24
    assert memory.status().records == 25
    assert not receipt.scrubbed
    assert any("model" in reason for reason in receipt.cannot_undo)
    assert "canaryother0user" in seen_by(memory), "what others said is not concerned"
    assert gone.id not in [info.id for info in memory.sessions(archived=True)]
    assert memory.verify().ok
    memory.settle()
    assert_forgotten(memory, told, [open_turn, memory.session("new").turn("note of what is left")])
    assert memory.verify().ok


def test_hidden_answers_exactly_as_unknown(memory: optchat.Memory) -> None:
    gone = memory.session("gone")
    exchange(gone, "canary")
    memory.settle()
    reader = memory.session("other").turn("note")
    refs = [f"session:{gone.id}:0:0+1", f"session:{gone.id}:0:0+4", "pub:0+1"]
    for ref in refs:
        reader.zoom(ref)
    gone.delete()
    unknown = {
        refs[0]: "session:00000000:0:0+1",
        refs[1]: "session:00000000:0:0+4",
        refs[2]: "pub:7+1",
    }
    for eyes in (memory, reader):
        for ref, absent in unknown.items():
            for read in (eyes.zoom, eyes.date, eyes.source):
                with pytest.raises(optchat.UnknownRef) as hidden:
                    read(ref)
                with pytest.raises(optchat.UnknownRef) as never:
                    read(absent)
                assert str(hidden.value).replace(ref, absent) == str(never.value)
        with pytest.raises(optchat.UnknownRef):
            eyes.view(gone.id)
        with pytest.raises(optchat.UnknownRef):
            eyes.search("note", session=gone.id)
        with pytest.raises(optchat.UnknownRef):
            eyes.work("build")
    with pytest.raises(optchat.UnknownRef):
        memory.session_by_id(gone.id)


def test_some_turns_are_deleted_and_their_places_stay(memory: optchat.Memory) -> None:
    session = memory.session("s")
    ids = [exchange(session, f"canary{number}", 700 * (number % 2)) for number in range(4)]
    memory.settle()
    receipt = session.delete(only=[ids[1], "pub:2+1"])
    assert receipt.removed["turns"] == 2
    assert receipt.removed["records"] == 12
    assert "sessions" not in receipt.removed
    told = every("canary1") + every("canary2")
    assert_forgotten(memory, told)
    assert [turn.id for turn in session.turns()] == [ids[0], ids[3]]
    line = memory.zoom(f"session:{session.id}:0:6+2").lines[0]
    assert (line.kind, line.text) == ("tombstone", "[removed]")
    assert memory.zoom(f"session:{session.id}:0:18+1").text == "note canary3user " + "x" * 700
    turn = session.turn("note: go on")
    assert canaries(seen_in(turn)).isdisjoint(told)
    assert "canary3user" in previous_exchange(turn)
    turn.end("completed")
    assert memory.verify().ok
    memory.settle()
    assert_forgotten(memory, told)
    assert memory.verify().ok


def test_the_last_exchange_is_deleted_under_an_open_turn(memory: optchat.Memory) -> None:
    session = memory.session("s")
    exchange(session, "canary0")
    last = exchange(session, "canary1")
    memory.settle()
    turn = session.turn("note: go on")
    assert "canary1user" in previous_exchange(turn)
    session.delete(only=[last])
    assert_forgotten(memory, every("canary1"), [turn])
    assert turn.context(BUDGET).receipt.snapshot.id.endswith(".1")


def test_deleting_again_gives_the_same_receipt(memory: optchat.Memory) -> None:
    session, other = memory.session("s"), memory.session("other")
    first = exchange(session, "canary")
    exchange(session, "canarytwo")
    exchange(other, "canaryother")
    memory.settle()
    some = session.delete(only=[first])
    assert session.delete(only=[first]).removed == some.removed
    assert session.delete(only=["pub:0+1"]).removed == some.removed
    whole = session.delete()
    again = session.delete()
    assert (again.removed, again.kept) == (whole.removed, whole.kept)
    memory.settle()
    assert session.delete().scrubbed
    with pytest.raises(optchat.UnknownRef):
        session.delete(only=[first])


def test_an_unknown_turn_deletes_nothing(memory: optchat.Memory) -> None:
    session, other = memory.session("s"), memory.session("other")
    mine, theirs = exchange(session, "canary"), exchange(other, "canaryother")
    memory.settle()
    for wrong in ("no such turn", "pub:1+1", "pub:77+1", theirs, f"session:{session.id}:0:0+1"):
        with pytest.raises((optchat.UnknownRef, optchat.MalformedRef)):
            session.delete(only=[mine, wrong])
    with pytest.raises(optchat.BadArgument):
        session.delete(only=[])
    with pytest.raises(optchat.BadArgument):
        session.delete(forks="both")  # type: ignore[arg-type]
    assert "canaryuser" in seen_by(memory)


def test_what_others_say_in_their_own_words_is_named_and_counted(memory: optchat.Memory) -> None:
    gone, other = memory.session("gone"), memory.session("other")
    exchange(gone, "canary")
    memory.settle()
    for _ in range(2):
        with other.turn("note: what did they say?") as turn:
            turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_zoom", '{"ref": "pub:0+1"}')])
            turn.tool_result("c", turn.call("memory_zoom", '{"ref": "pub:0+1"}'))
            turn.assistant("says they quoted nothing")
    memory.settle()
    receipt = gone.delete()
    assert "2 turns retrieved" in receipt.kept[f"session:{other.id}"]
    assert_forgotten(memory, every("canary"))


# ---- schedule 12 and pitfall 37: what was retrieved ------------------------------------------------------------------


def test_what_another_session_zoomed_is_forgotten_with_its_source(memory: optchat.Memory) -> None:
    """The tool's answer was never stored; what a model summarised beside it is replaced, and what was made of that."""
    gone, other = memory.session("gone"), memory.session("other")
    exchange(gone, "canary", 700)
    memory.settle()
    with other.turn("note: what did they say?") as turn:
        turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_zoom", '{"ref": "pub:0+1"}')])
        turn.tool_result("c", turn.call("memory_zoom", '{"ref": "pub:0+1"}'))
        turn.assistant("says " + "z" * 700)
    memory.settle()
    third = memory.session("third")
    with third.turn("note: and what of that?") as turn:
        turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_zoom", '{"ref": "pub:1+1"}')])
        turn.tool_result("c", turn.call("memory_zoom", '{"ref": "pub:1+1"}'))
        turn.assistant("says " + "w" * 700)
    memory.settle()
    assert any("canary" in line.text for line in memory.zoom("pub:2+1").lines), "the parrot has passed it on"
    gone.delete()
    assert_forgotten(memory, every("canary"))
    memory.settle()
    assert_forgotten(memory, every("canary"))
    assert memory.verify().ok


def test_a_call_under_way_brings_nothing_back(memory: optchat.Memory, parrot: Parrot) -> None:
    """Invariant 10: the epoch fences what a summarizer was asked before the removal."""
    gone, other = memory.session("gone"), memory.session("other")
    exchange(gone, "canary", 700)
    memory.settle()
    say(other, words(1, 3_000))
    deleted: list[str] = []

    class Slow(Parrot):
        def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
            reply = super().summarize(request)
            if not deleted:
                deleted.append(gone.id)
                gone.delete()
            return optchat.SummaryReply(reply.text + " canaryuser")

    parrot.summarize = Slow().summarize  # type: ignore[method-assign]
    memory.settle()
    assert deleted
    parrot.summarize = Parrot().summarize  # type: ignore[method-assign]
    memory.settle()
    assert memory.verify().ok


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_a_fork_keeps_its_prefix_as_its_own_history(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    early = parent.turn("note canaryearly")
    early.end("completed")
    ids = [early.id, *(exchange(parent, f"canary{number}", 700 * (number % 2)) for number in range(3))][1:]
    memory.settle()
    child = parent.fork("child", after=ids[1])
    exchange(child, "canarychild")
    memory.settle()
    receipt = parent.delete()
    for read in (lambda: early.messages, lambda: early.zoom("0+1"), lambda: early.search("canaryearly"), early.view):
        with pytest.raises(optchat.SessionDeleted):
            read()
    assert "13 records" in receipt.kept[f"session:{child.id}"]
    assert receipt.removed["records"] == 6
    assert_forgotten(memory, every("canary2"))
    turn = child.turn("note: go on")
    shown = seen_in(turn)
    assert {"canary0user", "canary1result", "canarychilduser"} <= canaries(shown)
    assert [each.id for each in child.turns()][1:3] == ids[:2]
    assert turn.zoom("1+1").text == "note canary0user "
    assert turn.work("build").text == "says canarychildreport"
    turn.end("completed")
    with memory.session("stranger").turn("note") as stranger:
        foreign = canaries(seen_in(stranger))
        assert "canarychilduser" in foreign
        assert not foreign & {*every("canary0"), *every("canary1"), *every("canary2")}, "it is shared by nobody"
    assert memory.verify().ok
    memory.settle()
    assert "canary0user" in seen_by(memory)
    child.delete()
    assert_forgotten(memory, every("canary0") + every("canary1") + every("canarychild"))
    assert memory.verify().ok


def test_a_fork_forgets_its_prefix_if_asked_to(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    ids = [exchange(parent, f"canary{number}", 700 * (number % 2)) for number in range(3)]
    memory.settle()
    child = parent.fork("child", after=ids[1])
    grandchild = child.fork("grandchild", after=ids[0])
    exchange(child, "canarychild", 700)
    exchange(grandchild, "canarygrand", 700)
    memory.settle()
    open_turn = child.turn("note: go on")
    parent.delete(forks="forget")
    told = [word for number in range(3) for word in every(f"canary{number}")]
    assert_forgotten(memory, told, [open_turn])
    assert {"canarychilduser", "canarygranduser"} <= canaries(seen_by(memory))
    assert open_turn.zoom("0+2").lines[0].kind == "tombstone"
    assert len(child.turns().items) == 2
    assert memory.verify().ok
    memory.settle()
    assert_forgotten(memory, told, [open_turn])
    assert memory.verify().ok


def test_a_preserved_fork_can_be_forgotten_later(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    exchange(parent, "canary")
    child = parent.fork("child")
    parent.delete()
    assert "canaryuser" in seen_by(memory)
    parent.delete(forks="forget")
    assert_forgotten(memory, every("canary"))
    assert child.info().id == child.id


def test_a_turn_that_a_fork_has_is_deleted_only_with_it(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    ids = [exchange(parent, f"canary{number}") for number in range(3)]
    memory.settle()
    parent.fork("child", after=ids[1])
    with pytest.raises(optchat.BadArgument, match="forget"):
        parent.delete(only=[ids[0]])
    assert "canary0user" in seen_by(memory)
    parent.delete(only=[ids[2]])
    parent.delete(only=[ids[0]], forks="forget")
    assert_forgotten(memory, every("canary0") + every("canary2"))
    assert "canary1user" in seen_by(memory)
    assert memory.verify().ok


def test_what_was_rewound_is_deleted_in_its_own_generation(memory: optchat.Memory) -> None:
    session = memory.session("s")
    ids = [exchange(session, f"canary{number}") for number in range(3)]
    memory.settle()
    session.rewind(after=ids[0])
    exchange(session, "canarynew")
    memory.settle()
    old = f"session:{session.id}:0:6+1"
    assert memory.zoom(old).superseded
    session.delete(only=[ids[1]])
    with pytest.raises(optchat.UnknownRef):
        memory.zoom(old)
    session.delete(only=["pub:2+1"])
    assert_forgotten(memory, every("canary1") + every("canary2"))
    assert {"canary0user", "canarynewuser"} <= canaries(seen_by(memory))
    session.delete(only=[ids[0]])
    assert_forgotten(memory, every("canary0"))
    assert memory.verify().ok


# ---- pins (schedules 11, 14, 26) -------------------------------------------------------------------------------------


def test_an_open_turn_pins_again_once_at_the_same_marks(memory: optchat.Memory) -> None:
    gone, other, third = memory.session("gone"), memory.session("other"), memory.session("third")
    exchange(gone, "canary", 700)
    exchange(other, "canaryother")
    memory.settle()
    turn = third.turn("note: what is known?")
    before, snapshot = turn.context(BUDGET), turn.snapshot
    exchange(other, "canarylater")
    gone.delete()
    after = turn.context(BUDGET)
    assert turn.snapshot.id == f"{snapshot.id}.1"
    assert after.receipt.snapshot == turn.snapshot
    assert (turn.snapshot.through, turn.snapshot.epoch) == (snapshot.through, snapshot.epoch + 1)
    assert f'snapshot="{snapshot.id}.1"' in shared_block(turn)
    assert "pub:1+1 | [removed]" in shared_block(turn), "the longer turn is published last"
    assert "canarylater" not in seen_in(turn), "the marks are the same"
    assert [block.text for block in turn.context(BUDGET).blocks] == [block.text for block in after.blocks]
    assert before.blocks != after.blocks
    with memory._scope.store.read() as db:
        assert db.execute("SELECT pin, epoch FROM repin").fetchall() == [(1, 1)]
        assert db.execute("SELECT step, pin FROM rendering ORDER BY step").fetchall()[-1] == (1, 1)
    other.delete()
    assert "canary" not in shared_block(turn)
    assert turn.snapshot.id == f"{snapshot.id}.2"
    turn.assistant("says done")
    turn.end("completed")


def test_a_memory_tool_pins_again_too(memory: optchat.Memory) -> None:
    gone, third = memory.session("gone"), memory.session("third")
    exchange(gone, "canary")
    memory.settle()
    turn = third.turn("note: what is known?")
    gone.delete()
    answer = json.loads(turn.call("memory_search", '{"query": "canaryuser"}').text)
    assert answer["items"] == []
    assert answer["snapshot"]["id"] == turn.snapshot.id
    assert turn.snapshot.id.endswith(".1")


def test_a_pin_that_could_not_see_it_goes_on(memory: optchat.Memory) -> None:
    """Schedule 11: one session's removal does not disturb every running turn."""
    early, gone = memory.session("early"), memory.session("gone")
    exchange(early, "canaryearly")
    turn = memory.session("third").turn("note: what is known?")
    with memory.pin() as pin:
        shown, viewed = turn.context(BUDGET).blocks, pin.view()
        exchange(gone, "canary")
        memory.settle()
        gone.delete()
        assert turn.context(BUDGET).blocks == shown
        assert "." not in turn.snapshot.id
        assert pin.view() == viewed
        with memory.pin(pin.snapshot.id) as again:
            assert again.view().lines == viewed.lines


@pytest.mark.parametrize("undo", ["rewind", "archive", "fork"])
def test_what_removes_nothing_disturbs_no_open_turn(memory: optchat.Memory, undo: str) -> None:
    other = memory.session("other")
    first = exchange(other, "canaryone")
    exchange(other, "canarytwo")
    memory.settle()
    turn = memory.session("third").turn("note: what is known?")
    shown = seen_in(turn)
    {
        "rewind": lambda: other.rewind(after=first),
        "archive": other.archive,
        "fork": lambda: other.fork("child"),
    }[undo]()
    assert seen_in(turn) == shown
    assert "." not in turn.snapshot.id


def test_a_policy_may_have_the_turn_fail_instead(open_memory: Open) -> None:
    memory = open_memory(policy=optchat.Policy(on_invalid="fail"))
    gone = memory.session("gone")
    exchange(gone, "canary")
    turn = memory.session("third").turn("note: what is known?")
    turn.context(BUDGET)
    gone.delete()
    reads: list[Callable[[], object]] = [
        lambda: turn.context(BUDGET),
        lambda: turn.search("canary"),
        lambda: turn.call("memory_sessions", "{}"),
        turn.view,
    ]
    for read in reads:
        with pytest.raises(optchat.SnapshotInvalid):
            read()
    turn.assistant("says it goes on")
    turn.end("completed")
    assert memory.verify().ok
    with pytest.raises(optchat.BadArgument):
        optchat.Policy(on_invalid="ignore")  # type: ignore[arg-type]


def test_a_pin_of_something_that_was_removed_is_refused(memory: optchat.Memory) -> None:
    gone = memory.session("gone")
    exchange(gone, "canary")
    memory.settle()
    with memory.pin() as pin:
        gone.delete()
        for read in (pin.view, pin.sessions, lambda: pin.search("canary"), lambda: pin.zoom("pub:0+1")):
            with pytest.raises(optchat.SnapshotInvalid):
                read()
        with pytest.raises(optchat.SnapshotInvalid), memory.pin(pin.snapshot.id):
            pass


def test_a_label_of_a_pin_taken_again_reopens_it(memory: optchat.Memory) -> None:
    gone, other = memory.session("gone"), memory.session("other")
    exchange(gone, "canary")
    exchange(other, "canaryother")
    memory.settle()
    turn = memory.session("third").turn("note")
    gone.delete()
    turn.context(BUDGET)
    exchange(other, "canarylater")
    with memory.pin(turn.snapshot.id) as pin:
        assert pin.snapshot == turn.snapshot
        assert canaries(seen_by(pin)) >= {*every("canaryother")}
        assert not canaries(seen_by(pin)) & {*every("canary"), *every("canarylater")}
    for wrong in (f"{turn.snapshot.id}.1", f"{turn.snapshot.through}.9", "1.x"):
        with pytest.raises(optchat.UnknownRef), memory.pin(wrong):
            pass


def test_it_is_the_same_in_another_process_and_after_a_restart(open_memory: Open) -> None:
    first = open_memory(summarizer=Parrot())
    gone, third = first.session("gone"), first.session("third")
    exchange(gone, "canary")
    first.settle()
    turn = third.turn("note: what is known?")
    turn.context(BUDGET)
    turn.suspend()
    second = open_memory(summarizer=Parrot())
    second.session_by_id(gone.id).delete()
    resumed = second.session("third").resume()
    shown = [block.text for block in resumed.context(BUDGET).blocks]
    resumed.suspend()
    back = first.session("third").resume()
    assert [block.text for block in back.context(BUDGET).blocks] == shown
    assert back.snapshot.id.endswith(".1")
    assert_forgotten(first, every("canary"), [back])


# ---- hosts that go on delivering (schedule 25) -----------------------------------------------------------------------


def test_a_deleted_sessions_host_is_told_so(memory: optchat.Memory) -> None:
    gone = memory.session("gone", host="opencode")
    turn = gone.turn("note canaryuser")
    turn.assistant("says canaryanswer")
    gone.delete()
    attempts: list[Callable[[], object]] = [
        lambda: turn.assistant("says more"),
        lambda: turn.context(BUDGET),
        lambda: turn.search("note"),
        lambda: turn.call("memory_sessions", "{}"),
        lambda: turn.messages,
        lambda: turn.pending,
        lambda: gone.turn("note again"),
        lambda: gone.note("note again"),
        lambda: gone.report("build", "note again"),
        lambda: gone.preview(BUDGET),
        gone.resume,
        gone.info,
        gone.turns,
        lambda: gone.fork("child"),
        lambda: gone.rewind(before=turn.id),
        gone.archive,
        gone.revoke,
        gone.share,
        lambda: gone.reconcile([optchat.HostMessage.user("note canaryuser", key="m1")]),
        lambda: memory.session("gone", host="opencode"),
        lambda: memory.session("gone", host="opencode", create=False),
        lambda: memory.session("gone", host="opencode", title="anew"),
    ]
    for attempt in attempts:
        with pytest.raises(optchat.SessionDeleted):
            attempt()
    turn.end("completed")
    memory.settle()
    with pytest.raises(optchat.SessionDeleted):
        memory.session("gone", host="opencode")
    assert memory.session("gone", host="other").id != gone.id
    anew = memory.session("gone", host="opencode", recreate=True)
    assert anew.id != gone.id
    assert memory.session("gone", host="opencode").id == anew.id
    exchange(anew, "canarynew")
    assert_forgotten(memory, ["canaryuser", "canaryanswer"])
    assert memory.verify().ok


@pytest.mark.parametrize("scrub", [False, True])
def test_redelivery_of_a_removed_turn_seals_nothing(memory: optchat.Memory, scrub: bool) -> None:
    session = memory.session("s")
    request = optchat.HostMessage.user("note canaryuser", key="m1")
    with session.turn(request, turn_id="t1") as turn:
        answered = turn.assistant("says canaryanswer", key="m2")
    exchange(session, "canaryother")
    memory.settle()
    session.delete(only=["t1"])
    if scrub:
        memory.settle()
    records = memory.status().records
    again = session.turn(request, turn_id="t1")
    assert again.outcome is not None
    assert session.turn(request).outcome is not None
    with session.turn("note: a later one", turn_id="t2") as later:
        assert later.add(optchat.HostMessage.assistant("says canaryanswer", key="m2")) == answered
        with pytest.raises(optchat.UnknownRef):
            memory.zoom(answered[0])
        later.assistant("says it")
    assert memory.status().records == records + 2
    assert_forgotten(memory, ["canaryuser", "canaryanswer"])
    assert memory.verify().ok


# ---- revoke ----------------------------------------------------------------------------------------------------------


def test_a_revoked_session_goes_on_in_private(memory: optchat.Memory) -> None:
    mine, other = memory.session("mine"), memory.session("other")
    ids = [exchange(mine, f"canary{number}", 700 * (number % 2)) for number in range(2)]
    memory.settle()
    child = mine.fork("child", after=ids[0])
    turn = other.turn("note: what is known?")
    assert "canary0user" in seen_in(turn)
    mine.revoke()
    told = every("canary0") + every("canary1")
    assert canaries(seen_in(turn)).isdisjoint(told)
    exchange(mine, "canaryprivate")
    memory.settle()
    with memory.pin() as pin:
        assert canaries(seen_by(pin)).isdisjoint([*told, *every("canaryprivate")])
    own = mine.turn("note: go on")
    assert {"canary0user", "canaryprivateuser"} <= canaries(seen_in(own))
    own.end("completed")
    assert mine.info().state == "revoked"
    assert mine.info().length == 19
    assert "canary0user" in canaries(seen_in(child.turn("note: go on")))
    assert "canary1user" in seen_by(memory), "the owner sees it"
    mine.revoke()
    assert memory.verify().ok
    mine.share(history=True)
    memory.settle()
    with memory.pin() as pin:
        assert {"canary0user", "canaryprivateuser"} <= canaries(seen_by(pin))
        assert "pub:0+1 | [removed]" in pin.view().text
    assert memory.verify().ok


def test_a_publication_on_its_way_is_not_made_after_a_revocation(memory: optchat.Memory) -> None:
    """Schedule 21: planned, then revoked, then committed."""
    mine = memory.session("mine")
    exchange(mine, "canary", 700)
    assert memory.status().publications == 0
    mine.revoke()
    memory.settle()
    assert memory.status().publications == 0
    mine.share()
    memory.settle()
    assert memory.status().publications == 0, "from now on, not what was said before"
    exchange(mine, "canarynow")
    memory.settle()
    assert memory.status().publications == 1
    assert memory.verify().ok


# ---- a whole scope (schedule 30) -------------------------------------------------------------------------------------


def test_a_deleted_scope_is_gone_and_no_other_is_concerned(memory: optchat.Memory, open_memory: Open) -> None:
    other = memory.scoped("other")
    image = optchat.BlobPart("image/png", data=b"\x89PNG canarypicture" * 9_000)
    for each in (memory, other):
        exchange(each.session("s"), "canary", 700)
        with each.session("s").turn(optchat.HostMessage.user([optchat.TextPart("note: look"), image])) as turn:
            turn.assistant("says seen")
        each.settle()
    reader = memory.session("reader").turn("note: what is known?")
    receipt = memory.delete_scope()
    assert receipt.removed["sessions"] == 2
    assert receipt.removed["publications"] == 2
    reads: list[Callable[[], object]] = [
        memory.view,
        memory.sessions,
        lambda: memory.search("note"),
        lambda: memory.zoom("pub:0+1"),
        lambda: memory.session("new"),
        lambda: memory.session("s"),
    ]
    for read in reads:
        with pytest.raises(optchat.ConfigError):
            read()
    with pytest.raises(optchat.SessionDeleted):
        reader.assistant("says more")
    with pytest.raises(optchat.SessionDeleted):
        reader.context(BUDGET)
    assert memory.delete_scope().removed == receipt.removed
    with pytest.raises(optchat.ConfigError):
        open_memory(mode="ro")
    assert "canaryuser" in seen_by(other)
    memory.settle()
    assert memory.delete_scope().scrubbed
    assert "canaryuser" in seen_by(other)
    source = other.source(f"session:{other.session('s').id}:0:6+2".replace("6+2", "7+1"))
    assert isinstance(source.part, optchat.BlobPart)
    assert source.part.data == image.data
    anew = open_memory()
    assert anew.status().sessions == 0
    exchange(anew.session("s"), "canarynew")
    assert anew.view().through == 1


def test_deleted_is_gone_after_everything_is_made_anew(memory: optchat.Memory, open_memory: Open) -> None:
    """Pitfalls 37 and 38: delete, rebuild all, restart; old refs, every read path, no summary recalls it."""
    gone, other = memory.session("gone"), memory.session("other")
    for number in range(3):
        exchange(gone, f"canary{number}", 700)
        exchange(other, f"canaryother{number}", 700)
    memory.settle()
    gone.delete()
    told = [word for number in range(3) for word in every(f"canary{number}")]
    memory.settle()
    for line in memory.view().lines:
        if line.kind == "summary":
            memory.repair(line.ref)
    assert memory.verify(repair=True).ok
    memory.close()
    again = open_memory(summarizer=Parrot())
    assert_forgotten(again, told, [again.session("new").turn("note")])
    with pytest.raises(optchat.UnknownRef):
        again.zoom("pub:0+1")
    assert again.zoom("pub:0+2").lines[0].kind == "tombstone"


def test_one_bad_memory_is_corrected_and_its_neighbours_are_untouched(memory: optchat.Memory) -> None:
    """Pitfall 17: one leaf goes; its parents are made again from what is left, its siblings stay as they are."""
    session = memory.session("s")
    ids = [exchange(session, f"canary{number}") for number in range(8)]
    memory.settle()
    before = {ref: memory.zoom(ref) for ref in ("pub:4+1", "pub:4+2", "pub:6+2")}
    session.delete(only=[ids[2]])
    memory.settle()
    for ref, zoomed in before.items():
        assert memory.zoom(ref).lines == zoomed.lines
    shown = seen_by(memory)
    assert {"canary1user", "canary3user"} <= canaries(shown)
    assert not canaries(shown) & set(every("canary2"))
    assert [line.kind for line in memory.zoom("pub:2+2").lines] == ["tombstone", memory.zoom("pub:2+2").lines[1].kind]


def test_nothing_is_left_for_a_default_summarizer_either() -> None:
    with temporary_memory() as memory:
        gone = memory.session("gone")
        for number in range(3):
            exchange(gone, f"canary{number}", 900)
        memory.settle()
        gone.delete()
        assert_forgotten(memory, [word for number in range(3) for word in every(f"canary{number}")])
        assert memory.verify().ok
    assert DeterministicSummarizer().name
