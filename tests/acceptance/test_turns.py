"""Turns as a host drives them: how they end, who may end them, and what a second delivery, process or thread finds."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE, call, says
from tests.peer import Peer

BUDGET = optchat.Budget(32_000, 1_000)


def last(session: optchat.Session[Any]) -> optchat.TurnInfo:
    return session.turns(limit=200).items[-1]


# ---- how a turn ends -------------------------------------------------------------------------------------------------
def test_with_completes_an_answered_turn(memory: optchat.Memory) -> None:
    with memory.session("s").turn("go") as turn:
        assert turn.outcome is None
        turn.assistant("done")
    assert turn.outcome == "completed"
    assert memory.zoom("pub:0+1").outcome == "completed"


@pytest.mark.parametrize("ending", ["nothing said", "call pending", "result last", "user last", "report last"])
def test_with_interrupts_what_was_not_answered(memory: optchat.Memory, ending: str) -> None:
    with memory.session("s").turn("go") as turn:
        if ending != "nothing said":
            turn.assistant("let me see")
            turn.tool_call("c1", "f", "{}")
        if ending == "result last":
            turn.tool_result("c1", "x")
        elif ending == "user last":
            turn.tool_result("c1", "x")
            turn.user("wait")
        elif ending == "report last":
            turn.tool_result("c1", "x")
            turn.report("scout", "found")
        elif ending == "call pending":
            turn.assistant("and so on")
    assert turn.outcome == "interrupted"


@pytest.mark.parametrize(
    ("raised", "outcome"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted"), (SystemExit, "interrupted")]
)
def test_with_tells_a_failure_from_an_interruption(
    memory: optchat.Memory, raised: type[BaseException], outcome: str
) -> None:
    with pytest.raises(raised), memory.session("s").turn("go") as turn:
        turn.assistant("all done, all well")
        raise raised
    assert turn.outcome == outcome
    assert memory.zoom("pub:0+1").outcome == outcome


def test_an_explicit_end_is_taken_as_given(memory: optchat.Memory) -> None:
    with memory.session("s").turn("go") as turn:
        turn.end("completed")
    assert turn.outcome == "completed"
    with memory.session("s").turn("go") as turn:
        turn.assistant("done")
        turn.end("failed", "the tests were red")
    assert turn.outcome == "failed"
    with pytest.raises(optchat.BadArgument, match="completed"):
        memory.session("s").turn("go").end("done")  # type: ignore[arg-type]  # the point


def test_with_does_not_hide_the_callers_error(open_memory: Open) -> None:
    """The end could not be written, since the handle is closed: that is told beside the caller's error, not for it."""
    memory = open_memory()
    with pytest.raises(ValueError, match="mine") as caught, memory.session("s").turn("go"):
        memory.close()
        raise ValueError("mine")
    assert caught.value.__notes__
    assert last(open_memory().session("s")).outcome == "interrupted"


def test_into_an_ended_turn_nothing_goes(memory: optchat.Memory) -> None:
    with memory.session("s").turn("go") as turn:
        turn.assistant("done", key="m1")
    writes: list[Callable[[], object]] = [
        lambda: turn.user("more"),
        lambda: turn.assistant("more"),
        lambda: turn.tool_call("c1", "f", "{}"),
        lambda: turn.tool_result("c1", "x"),
        lambda: turn.report("scout", "x"),
        lambda: turn.stage(optchat.HostMessage.assistant("mo", key="m2")),
        lambda: turn.add(optchat.HostMessage.assistant("more")),
        lambda: turn.context(BUDGET),
        lambda: turn.call("memory_sessions", "{}"),
        turn.suspend,
    ]
    for write in writes:
        with pytest.raises(optchat.TurnEnded) as caught:
            write()
        assert caught.value.outcome == "completed"
    assert turn.assistant("done", key="m1"), "what is sealed already is answered"
    assert len(turn.messages) == 2
    assert turn.search("done").hits, "and reading goes on"


def test_staged_text_is_never_shown(memory: optchat.Memory) -> None:
    turn = memory.session("s").turn("go")
    for text in ("the zeb", "the zebra is"):
        turn.stage(optchat.HostMessage.assistant(text, key="m1"))
    assert len(turn.messages) == 1
    assert turn.search("zebra").hits == ()
    assert "zebra" not in str(turn.context(BUDGET).messages)
    with pytest.raises(optchat.BadArgument, match="key"):
        turn.stage(optchat.HostMessage.assistant("without"))
    turn.add(optchat.HostMessage.assistant("the zebra is striped", key="m1"))
    turn.end("completed")
    assert memory.verify().ok
    assert [hit.excerpt for hit in memory.search("zebra")] == ["the zebra is striped"]


# ---- one open turn ---------------------------------------------------------------------------------------------------
def test_the_next_turn_ends_this_processs_own(memory: optchat.Memory) -> None:
    session = memory.session("s")
    first = session.turn("one")
    first.assistant("half an ans")
    second = session.turn("two")
    assert [turn.outcome for turn in session.turns()] == ["interrupted", None]
    assert second.view().through == 0, "it ended in the transaction that pinned: it lies after the pin"
    assert memory.status().publications == 1
    with pytest.raises(optchat.TurnEnded):
        first.assistant("wer")
    second.assistant("done")


def test_refuse_leaves_it_alone(memory: optchat.Memory) -> None:
    session = memory.session("s")
    first = session.turn("one")
    with pytest.raises(optchat.SessionBusy) as caught:
        session.turn("two", if_open="refuse")
    assert caught.value.open_turn_id == first.id
    first.suspend()
    with pytest.raises(optchat.SessionBusy):
        session.turn("two", if_open="refuse")
    first.end("completed")
    session.turn("two", if_open="refuse").end("completed")
    assert [turn.request for turn in session.turns()] == ["one", "two"]


def test_a_live_process_keeps_its_turn(memory: optchat.Memory, peer: Peer) -> None:
    peer("turn = memory.session('s').turn('theirs')")
    session = memory.session("s")
    for attempt in (lambda: session.turn("mine"), session.resume):
        with pytest.raises(optchat.SessionBusy) as caught:
            attempt()
        assert caught.value.open_turn_id == peer("turn.id")
        assert caught.value.retryable
    assert peer("len(turn.assistant('done'))") == 1
    peer("turn.end('completed')")
    session.turn("mine").end("completed")
    assert [turn.outcome for turn in session.turns()] == ["completed", "completed"]


def test_a_suspended_turn_is_the_next_ones_to_end(memory: optchat.Memory, peer: Peer) -> None:
    peer("turn = memory.session('s').turn('theirs'); turn.suspend()")
    session = memory.session("s")
    session.turn("mine").end("completed")
    assert [turn.outcome for turn in session.turns()] == ["interrupted", "completed"]


def test_a_dead_processs_turn_is_ended_by_the_next(memory: optchat.Memory, peer: Peer) -> None:
    peer("turn = memory.session('s').turn('theirs'); turn.tool_call('c1', 'f', '{}')")
    session = memory.session("s")
    peer.kill()
    session.turn("mine").end("completed")
    ended = [(turn.request, turn.outcome) for turn in session.turns()]
    assert ended == [("theirs", "interrupted"), ("mine", "completed")]
    assert memory.status().publications == 2


def test_a_dead_processs_turn_is_ended_by_upkeep(open_memory: Open, peer: Peer) -> None:
    """Opening is upkeep: what was left is published, and no longer pins anything."""
    peer("turn = memory.session('s').turn('theirs'); turn.assistant('half'); memory.session('t').turn('x').suspend()")
    peer.kill()
    memory = open_memory()
    assert last(memory.session("s")).outcome == "interrupted"
    assert last(memory.session("t")).state == "suspended", "nobody's turn is not a dead one's"
    assert memory.status().publications == 1


def test_a_live_workers_upkeep_ends_it_too(open_memory: Open, peer: Peer) -> None:
    memory = open_memory(compact="background")
    peer("turn = memory.session('s').turn('theirs'); turn.assistant('half')")
    peer.kill()
    done = threading.Event()
    for _ in range(200):
        if memory.status().publications:
            break
        done.wait(0.05)
    assert last(memory.session("s")).outcome == "interrupted"


def test_a_dead_processs_turn_can_be_resumed(memory: optchat.Memory, peer: Peer) -> None:
    peer("turn = memory.session('s').turn('theirs'); turn.tool_call('c1', 'f', '{}')")
    peer.kill()
    turn = memory.session("s").resume()
    assert [one.call_id for one in turn.pending] == ["c1"]
    turn.tool_result("c1", "x")
    turn.assistant("done")
    turn.end("completed")


def test_closing_ends_this_handles_turns_but_not_suspended_ones(open_memory: Open) -> None:
    memory = open_memory()
    memory.session("left open").turn("go").assistant("half")
    memory.session("suspended").turn("go").suspend()
    other = memory.scoped("other").session("in another scope").turn("go")
    memory.close()
    again = open_memory()
    assert last(again.session("left open")).outcome == "interrupted"
    assert last(again.session("suspended")).state == "suspended"
    assert last(again.scoped("other").session("in another scope")).outcome == "interrupted"
    assert other.outcome is None, "as this handle last knew"


# ---- suspend and resume ----------------------------------------------------------------------------------------------
def test_with_leaves_a_suspended_turn_suspended(memory: optchat.Memory) -> None:
    session = memory.session("s")
    with session.turn("go") as turn:
        turn.tool_call("c1", "deploy", "{}")
        turn.suspend()
        turn.suspend()
    assert last(session).state == "suspended"
    turn.tool_result("c1", "a call that was running when its turn was suspended may still answer")
    with session.resume(turn.id) as again:
        assert again.id == turn.id
        assert again.snapshot == turn.snapshot
        assert again.pending == ()
        again.assistant("deployed")
    assert last(session).outcome == "completed"


def test_what_cannot_be_resumed(memory: optchat.Memory) -> None:
    session = memory.session("s")
    with pytest.raises(optchat.UnknownRef):
        session.resume()
    turn = session.turn("go")
    with pytest.raises(optchat.SessionBusy):
        session.resume()
    with pytest.raises(optchat.UnknownRef):
        session.resume("another")
    turn.end("completed")
    with pytest.raises(optchat.UnknownRef):
        session.resume(turn.id)


# ---- the same turn again ---------------------------------------------------------------------------------------------
def test_the_same_id_is_the_same_turn(memory: optchat.Memory) -> None:
    session = memory.session("s")
    turn = session.turn("go", turn_id="t1")
    turn.assistant("thinking")
    again = session.turn("go", turn_id="t1")
    assert again.messages == turn.messages
    assert again.snapshot == turn.snapshot
    again.assistant("done")
    again.end("completed")
    ended = session.turn("go", turn_id="t1")
    assert ended.outcome == "completed"
    assert len(ended.messages) == 3
    for use in (lambda: ended.context(BUDGET), lambda: ended.assistant("more")):
        with pytest.raises(optchat.TurnEnded):
            use()
    assert session.info().turns == 1
    assert memory.status().records == 3


def test_the_same_id_of_another_session_is_another_turn(memory: optchat.Memory) -> None:
    for key in ("a", "b"):
        with memory.session(key).turn(f"go {key}", turn_id="t1") as turn:
            turn.assistant("done")
    assert memory.status().publications == 2


# ---- what arrives late or unasked ------------------------------------------------------------------------------------
def test_notes_and_reports_go_into_the_open_turn(memory: optchat.Memory) -> None:
    session = memory.session("s")
    turn = session.turn("go")
    note = session.note("the build is green")
    report = session.report("scout", "found it")
    turn.assistant("done")
    turn.end("completed")
    assert [memory.source(ref).turn_id for ref in (note, report)] == [turn.id] * 2
    assert [memory.source(ref).kind for ref in (note, report)] == ["note", "report"]
    assert memory.status().publications == 1


def test_without_one_they_are_turns_of_their_own(memory: optchat.Memory) -> None:
    session = memory.session("s")
    session.note("the build is green")
    session.report("scout", "found it")
    session.report("scout", "found half of it", complete=False)
    infos = list(session.turns())
    assert [(info.request, info.outcome) for info in infos] == [
        ("", "completed"),
        ("", "completed"),
        ("", "interrupted"),
    ]
    assert memory.status().publications == 3
    assert memory.work("scout").text == "found half of it", "the newest"
    with memory.session("other").turn("what did the scout find?") as turn:
        assert json.loads(turn.call("memory_work", {"name": "scout"}).text)["text"] == "found half of it"
        shown = next(block.text for block in turn.context(BUDGET).blocks if block.kind == "shared")
        assert "the build is green" in shown


def test_a_late_result_goes_into_the_turn_that_is_open(memory: optchat.Memory) -> None:
    """Linked to its call in the turn before."""
    session = memory.session("s")
    with session.turn("start it") as turn:
        (made,) = turn.tool_call("c1", "build", "{}")
    assert turn.outcome == "interrupted"
    with session.turn("and now?") as later:
        (result,) = later.tool_result("c1", "built")
        later.assistant("It is built.")
    assert memory.zoom(result).paired_ref == made
    assert memory.zoom(made).paired_ref == result
    assert memory.source(result).turn_id == later.id


# ---- threads ---------------------------------------------------------------------------------------------------------
def test_threads_share_a_turn(memory: optchat.Memory) -> None:
    turn = memory.session("s", adapter=WIRE).turn("go")
    turn.add(says("Many.", *(call(f"c{number}", "f", n=number) for number in range(16))))
    barrier, failures = threading.Barrier(16), list[BaseException]()

    def answer(made: optchat.ToolCallPart) -> None:
        try:
            barrier.wait()
            told = turn.call("memory_sessions", "{}")
            turn.tool_result(made.call_id, told.text + made.arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the test must see it
            failures.append(error)

    threads = [threading.Thread(target=answer, args=(made,)) for made in turn.pending]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert turn.pending == ()
    assert len(turn.messages) == 18
    turn.context(BUDGET)
    turn.add(says("Done."))
    turn.end("completed")
    assert memory.verify().ok


def test_threads_begin_turns_of_one_session(memory: optchat.Memory) -> None:
    """One of them wins each time; nothing is lost, nothing is there twice."""
    session, barrier = memory.session("s"), threading.Barrier(6)

    def go(number: int) -> None:
        barrier.wait()
        for count in range(5):
            turn = session.turn(f"{number}/{count}")
            try:
                turn.assistant("done")
            except optchat.TurnEnded:
                continue
            turn.end("completed")

    threads = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    infos = list(session.turns(limit=200))
    assert len(infos) == 30
    assert len({info.request for info in infos}) == 30
    assert all(info.state == "ended" for info in infos)
    assert memory.status().publications == 30
    assert memory.verify().ok


def test_in_a_forked_child_the_handle_refuses(peer: Peer) -> None:
    code = (
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        memory.status()\n"
        "    except optchat.OptchatError:\n"
        "        os._exit(7)\n"
        "    os._exit(0)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
    )
    peer("turn = memory.session('s').turn('go')")
    peer(code)
    assert peer("code") == 7
    peer("turn.assistant('done'); turn.end('completed')")
    assert peer("memory.status().publications") == 1


# ---- what is given and found -----------------------------------------------------------------------------------------
def test_a_turn_keeps_where_it_happened(memory: optchat.Memory) -> None:
    session = memory.session("s", project="p", worktree="/w", commit="abc")
    with session.turn("go", commit="def") as turn:
        (ref,) = turn.assistant("done")
    info = memory.zoom("pub:0+1").turn
    assert info is not None
    assert (info.worktree, info.commit) == ("/w", "def")
    assert (memory.source(ref).worktree, memory.source(ref).commit) == ("/w", "def")
    assert memory.source(ref).project is not None


def test_a_preview_writes_nothing_and_is_what_the_turn_gets(memory: optchat.Memory, open_memory: Open) -> None:
    with memory.session("a").turn("first") as turn:
        turn.assistant("done")
    version = memory._house.store.data_version()
    session = memory.session("a")
    previews = [session.preview(BUDGET, request="go on") for _ in range(3)]
    assert memory._house.store.data_version() == version
    assert open_memory(mode="ro").session("a").preview(BUDGET, request="go on").blocks == previews[0].blocks
    with session.turn("go on") as turn:
        context = turn.context(BUDGET)
        assert context.blocks == previews[0].blocks == previews[2].blocks
        assert context.messages == previews[0].messages
        assert session.preview(BUDGET).blocks[2] == context.blocks[2], "an open turn counts as not ended"
        turn.assistant("went on")
    assert "went on" in str(session.preview(BUDGET).blocks)


def test_a_context_records_nothing_as_said(memory: optchat.Memory) -> None:
    with memory.session("a").turn("go") as turn:
        contexts = [turn.context(BUDGET) for _ in range(3)]
        assert [context.messages for context in contexts] == [contexts[0].messages] * 3
        assert contexts[0].messages is not contexts[1].messages
        assert contexts[1].receipt.repeated_bytes == sum(len(block.text.encode()) for block in contexts[0].blocks)
        assert memory.status().records == 1
        turn.assistant("done")


def test_what_is_observed_again_as_other_objects_is_sent_as_those(memory: optchat.Memory) -> None:
    wire = WIRE
    with memory.session("again", adapter=wire).turn("hello", turn_id="t") as turn:
        first = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "one moment"}]
        turn.observe(first)
        turn.context(optchat.Budget(8_000, 100))
        again = [dict(message) for message in first]
        turn.observe(again)
        sent = turn.context(optchat.Budget(8_000, 100)).messages[-2:]
        assert all(one is other for one, other in zip(sent, again, strict=True))


def test_what_is_sealed_beside_the_hosts_list_takes_no_place_in_it(memory: optchat.Memory) -> None:
    user, assistant = optchat.HostMessage.user, optchat.HostMessage.assistant
    session = memory.session("a")
    turn = session.turn("survey")
    log = [user("survey"), assistant("on my way")]
    turn.observe(log)
    (report,) = turn.report("surveyor", "the bridge is sound")
    note = session.note("weather: rain")
    log += [assistant("half of it"), user("hurry"), assistant("done")]
    refs = turn.observe(log)
    assert turn.observe(log) == refs, "delivered again, nothing is new"
    assert {report, note}.isdisjoint(refs)
    assert session.info().length == 7
    turn.observe(
        [*log[:2], optchat.HostMessage("tool", (optchat.ReportPart("surveyor", "the bridge is sound"),)), *log[2:]]
    )
    assert session.info().length == 7, "a list that has the report has it where it is sealed"
    turn.end("completed")
    assert memory.verify().faults == ()
