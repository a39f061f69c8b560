"""§ 16, edit and rewind: superseded ranges cannot reappear as current-generation evidence."""

from collections.abc import Callable

import pytest

import optchat
from optchat.engine import work
from optchat.engine.lifecycle import rewind_within
from optchat.testing import DeterministicSummarizer
from tests.acceptance.conftest import Open
from tests.acceptance.test_fork import exchange, own_lines, texts
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, Turn, previous_exchange, say, shared_block, words
from tests.engine.working import claim, summary
from tests.peer import Failed, Peer

User = optchat.HostMessage.user
Assistant = optchat.HostMessage.assistant


def spoken(memory: optchat.Memory, key: str = "a", turns: int = 4) -> tuple[Session, list[str]]:
    """A session of some exchanges, each with a word of its own; its turns' ids."""
    session = memory.session(key)
    return session, [exchange(session, f"{key}word{number}") for number in range(turns)]


def everything(reader: optchat.Reader, refs: list[str]) -> list[object]:
    """All that a reader with a pin sees of other sessions."""
    found: list[object] = [reader.view(), reader.sessions(), reader.sessions(archived=True)]
    found += [reader.search(query, order=order) for query in ("aword3", "aword0") for order in ("best", "newest")]
    for ref in refs:
        try:
            found += [reader.zoom(ref), reader.date(ref)]
        except optchat.RefError as error:
            found.append(error.code)
    for info in reader.sessions():
        found.append(reader.view(info.id))
    return found


# ---- what is superseded is gone from all that is current -------------------------------------------------------------


@pytest.mark.parametrize("by", ["after", "before"])
def test_superseded_ranges_are_no_evidence(memory: optchat.Memory, by: str) -> None:
    session, ids = spoken(memory)
    with session.turn("with a report") as turn:
        turn.report("survey", "aword9 of the survey")
        turn.assistant("done")
    if by == "after":
        session.rewind(after=ids[1])
    else:
        session.rewind(before=ids[2])
    assert session.info().generation == 1
    assert (session.info().length, session.info().turns) == (4, 2)
    assert [turn.id for turn in session.turns()] == ids[:2]
    assert texts(memory, session) == ["aword0?", "aword0!", "aword1?", "aword1!"]
    turn = session.turn("what now?")
    with memory.pin() as pinned:
        for reader in (memory, pinned, turn):
            for word in ("aword2", "aword3", "aword9", "survey"):
                for order in ("best", "newest"):
                    assert not [hit for hit in reader.search(word, order=order) if word in hit.excerpt]
            assert reader.search("aword1").hits
            for number in (2, 3, 4):
                with pytest.raises(optchat.UnknownRef):
                    reader.zoom(f"pub:{number}+1")
            with pytest.raises(optchat.UnknownRef):
                reader.work("survey")
            for line in reader.view().lines:
                assert "aword2" not in line.text
                assert "aword3" not in line.text
            assert [info.length for info in reader.sessions() if info.key == "a"] == [5 if reader is not pinned else 4]
    for text in (own_lines(turn), shared_block(turn), previous_exchange(turn)):
        for word in ("aword2", "aword3", "aword9"):
            assert word not in text
    assert "aword1!" in previous_exchange(turn)
    assert memory.status().publications == 2
    turn.assistant("this")
    turn.end("completed")
    assert memory.status().publications == 3
    assert memory.verify().ok


def test_old_records_answer_to_their_old_refs_alone_and_say_so(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    session.rewind(after=ids[1])
    exchange(session, "instead")
    old, new = f"session:{session.id}:0:", f"session:{session.id}:1:"
    turn = session.turn("look")
    for reader in (memory, turn):
        assert (reader.zoom(f"{old}4+1").text, reader.zoom(f"{old}4+1").superseded) == ("aword2?", True)
        assert reader.zoom(f"{old}4+2").superseded
        assert (reader.zoom(f"{new}4+1").text, reader.zoom(f"{new}4+1").superseded) == ("instead?", False)
        assert not reader.zoom(f"{new}4+2").superseded
        for kept in (f"{old}2+1", f"{new}2+1", f"{old}0+4", f"{new}0+4"):
            assert not reader.zoom(kept).superseded, "what was kept is what it was"
        assert reader.date(f"{old}7+1").ref == f"{old}7+1"
        assert reader.source(f"{old}7+1").part == optchat.TextPart("aword3!")
        with pytest.raises(optchat.UnknownRef):
            reader.zoom(f"{old}8+1")
        with pytest.raises(optchat.UnknownRef):
            reader.zoom(f"session:{session.id}:2:0+1")
    with memory.pin() as pinned:
        for gone in (f"{old}4+1", f"{old}4+2", f"{old}0+8"):
            with pytest.raises(optchat.UnknownRef):
                pinned.zoom(gone)
        for there in (f"{old}2+1", f"{new}2+1", f"{new}4+1", f"{old}0+2"):
            assert not pinned.zoom(there).superseded
        assert pinned.view(session.id).lines[0].ref == f"{new}0+1"


def test_short_refs_carry_the_generation_from_the_lowest_boundary_on(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    before = session.turn("before any rewind")
    assert "\n6+1 | " in own_lines(before)
    assert before.zoom("6+1").text == "aword3?"
    session.rewind(after=ids[2])
    exchange(session, "other3")
    session.rewind(after=ids[1])
    exchange(session, "other2")
    turn = session.turn("look")
    lines = own_lines(turn)
    assert "\n3+1 | " in lines
    assert "\n2:4+1 | " in lines
    assert "\n4+1 | " not in lines
    assert 'request="2:4+1" answer="2:5+1"' in previous_exchange(turn)
    for shown in ("2:4+1", "2:5+1", "3+1", "2+2"):
        assert not turn.zoom(shown).superseded
    assert (turn.zoom("0:6+1").text, turn.zoom("1:6+1").text) == ("aword3?", "other3?")
    assert turn.zoom("2:6+1").text == "look"
    with pytest.raises(optchat.StaleRef, match="2:6\\+1") as stale:
        turn.zoom("6+1")
    assert stale.value.candidates == tuple(f"session:{session.id}:{number}:6+1" for number in range(3))
    for ref in ("0+8", "4+2"):
        with pytest.raises(optchat.StaleRef):
            turn.date(ref)
    answered = turn.call("memory_zoom", {"ref": "6+1"})
    assert answered.is_error
    assert "STALE_REF" in answered.text
    assert all(ref.startswith(f"session:{session.id}:2:") for ref in turn.context(BUDGET).receipt.refs if ref[0] == "s")
    view = turn.view(session.id)
    assert "2:4+1 | " in view.text
    fork = session.fork("fork")
    assert "\n4+1 | " in own_lines(fork.turn("a fork has had but one history"))


def test_a_publication_of_a_kept_turn_stays(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    session.rewind(after=ids[1])
    found = memory.zoom("pub:1+1")
    assert found.turn is not None
    assert found.turn.id == ids[1]
    assert not memory.zoom(found.lines[0].ref).superseded
    view = memory.view()
    assert view.through == 4, "numbers are never used again"
    assert [line.kind for line in view.lines][-2:] == ["tombstone", "tombstone"]


# ---- depth -----------------------------------------------------------------------------------------------------------


def test_rewinds_of_rewinds(memory: optchat.Memory) -> None:
    session, ids = spoken(memory, turns=3)
    history = ["aword0", "aword1", "aword2"]
    for number, keep in enumerate((2, 1, 2, 0, 1, 1)):
        if keep:
            session.rewind(after=ids[keep - 1])
        else:
            session.rewind(before=ids[0])
        assert session.info().generation == number + 1
        ids, history = ids[:keep], history[:keep]
        for name in (f"new{number}x", f"new{number}y"):
            ids.append(exchange(session, name))
            history.append(name)
        assert texts(memory, session) == [name + mark for name in history for mark in "?!"]
        assert [turn.id for turn in session.turns()] == ids
        assert memory.status().publications == len(ids)
        assert [hit.excerpt for hit in memory.search("aword2")] == []
        assert memory.verify().ok
    generations = [texts_of(memory, session, number) for number in range(7)]
    assert generations[0] == ["aword0?", "aword0!", "aword1?", "aword1!", "aword2?", "aword2!"]
    assert generations[4] == ["new3x?", "new3x!", "new3y?", "new3y!"]


def texts_of(memory: optchat.Memory, session: Session, generation: int) -> list[str]:
    found = list[str]()
    while True:
        try:
            found.append(memory.zoom(f"session:{session.id}:{generation}:{len(found)}+1").text or "")
        except optchat.UnknownRef:
            return found


def test_a_fork_is_rewound_below_what_it_was_forked_from(memory: optchat.Memory) -> None:
    parent, ids = spoken(memory)
    child = parent.fork("child", after=ids[2])
    exchange(child, "childword")
    child.rewind(after=ids[0])
    assert texts(memory, child) == ["aword0?", "aword0!"]
    exchange(child, "again")
    assert texts(memory, child) == ["aword0?", "aword0!", "again?", "again!"]
    assert texts(memory, parent)[-1] == "aword3!", "the parent is not touched"
    assert memory.status().publications == 5, "its publications stay; the child's own is retired, and it made another"
    assert not memory.search("childword").hits
    assert memory.search("aword2").hits
    assert memory.zoom(f"session:{child.id}:0:4+1").superseded
    assert not memory.zoom(f"session:{parent.id}:0:4+1").superseded
    assert memory.verify().ok


def test_a_fork_keeps_what_its_parent_rewinds(memory: optchat.Memory) -> None:
    parent, ids = spoken(memory)
    child = parent.fork("child", after=ids[2])
    grandchild = child.fork("grandchild", after=ids[1])
    parent.rewind(before=ids[1])
    assert texts(memory, child)[-1] == "aword2!"
    assert [(hit.session_id, hit.ref) for hit in memory.search("aword2", kind="user")] == [
        (child.id, f"session:{child.id}:0:4+1")
    ]
    assert {hit.session_id for hit in memory.search("aword1")} <= {child.id, grandchild.id}
    turn = child.turn("what did we say?")
    assert "aword2" in own_lines(turn)
    assert "aword1" not in shared_block(turn), "what is retired is no foreign memory"
    assert turn.search("aword2").hits
    assert not memory.search("aword3").hits
    child.rewind(before=ids[2])
    assert not memory.search("aword2").hits, "nobody has it any more"
    assert {hit.session_id for hit in memory.search("aword1")} <= {child.id, grandchild.id}
    assert memory.zoom(f"session:{parent.id}:0:4+1").superseded
    assert memory.verify().ok


def test_a_fork_of_a_rewound_session(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    session.rewind(after=ids[0])
    new = exchange(session, "newer")
    child = session.fork("child")
    assert texts(memory, child) == ["aword0?", "aword0!", "newer?", "newer!"]
    with pytest.raises(optchat.UnknownRef):
        session.fork("of the old", after=ids[2])
    session.rewind(before=new)
    assert texts(memory, child)[-1] == "newer!"
    assert memory.verify().ok


# ---- idempotent ------------------------------------------------------------------------------------------------------


def test_rewinding_to_where_it_is_changes_nothing(memory: optchat.Memory, open_memory: Open) -> None:
    session, ids = spoken(memory)
    session.rewind(after=ids[3])
    assert session.info().generation == 0
    session.rewind(before=ids[2])
    version = memory._house.store.data_version()
    again = open_memory().session("a")  # repeated after a crash
    again.rewind(before=ids[2])
    again.rewind(after=ids[1])
    session.rewind(before=ids[2])
    assert session.info().generation == 1
    assert memory._house.store.data_version() == version or memory.session("a").info().generation == 1
    exchange(session, "more")
    with pytest.raises(optchat.UnknownRef, match="turns"):
        session.rewind(before=ids[2])
    with pytest.raises(optchat.UnknownRef):
        session.rewind(after=ids[2])


def test_one_turn_id(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    with pytest.raises(optchat.BadArgument, match="one turn id"):
        session.rewind()
    with pytest.raises(optchat.BadArgument, match="one turn id"):
        session.rewind(after=ids[0], before=ids[1])
    with pytest.raises(optchat.UnknownRef):
        session.rewind(after="nobody's")
    session.turn("open", turn_id="open")
    with pytest.raises(optchat.BadArgument, match="not ended"):
        session.rewind(after="open")
    assert session.info().generation == 0


# ---- handles and open turns ------------------------------------------------------------------------------------------


def test_handles_of_the_old_generation_write_nothing(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    old = memory.session("a")
    turn = old.turn("running")
    session.rewind(after=ids[1])
    writes: list[Callable[[], object]] = [
        lambda: old.turn("more"),
        lambda: old.note("more"),
        lambda: old.report("r", "more"),
        old.resume,
        lambda: old.fork("child"),
        lambda: old.rewind(after=ids[0]),
        lambda: turn.assistant("more"),
        lambda: turn.add(User("more")),
        lambda: turn.observe([User("running"), Assistant("more")]),
    ]
    for write in writes:
        with pytest.raises(optchat.GenerationSuperseded, match="anew"):
            write()
    assert old.info().generation == 1, "and it still can be read by"
    with pytest.raises(optchat.TurnEnded):
        turn.context(BUDGET)
    turn.end("completed")
    assert turn.outcome == "interrupted"
    assert session.info().length == 4
    exchange(memory.session("a"), "taken anew")


def test_an_open_turn_is_cut_off_and_not_published(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    turn = session.turn("aword4?", turn_id="t4")
    turn.assistant("half done")
    session.rewind(before="t4")
    assert session.info().length == 8
    assert memory.status().publications == 4
    session.turn("again", turn_id="t4").suspend()
    session.rewind(after=ids[3])
    assert memory.status().publications == 4
    assert session.info().generation == 2
    with pytest.raises(optchat.UnknownRef):
        session.resume()
    assert memory.verify().ok


def test_a_turn_that_runs_in_another_process_is_not_cut_off(memory: optchat.Memory, peer: Peer) -> None:
    session, ids = spoken(memory)
    peer("turn = memory.session('a').turn('running', turn_id='theirs')")
    with pytest.raises(optchat.SessionBusy) as busy:
        session.rewind(after=ids[1])
    assert busy.value.open_turn_id == "theirs"
    assert session.info().generation == 0
    with pytest.raises(optchat.SessionBusy):
        session.turn(optchat.HostMessage("user", (optchat.TextPart("edited"),), key="theirs", revision=1))
    peer.kill()
    session.rewind(after=ids[1])
    assert texts(memory, session)[-1] == "aword1!"
    assert memory.status().publications == 2


def test_another_processs_handle(memory: optchat.Memory, peer: Peer) -> None:
    session, ids = spoken(memory)
    peer("theirs = memory.session('a')")
    session.rewind(after=ids[1])
    with pytest.raises(Failed, match="GenerationSuperseded"):
        peer("theirs.turn('more')")
    assert peer("memory.session('a').info().length") == 4
    peer("turn = memory.session('a').turn('theirs')")
    assert peer("'1:' not in turn.context(optchat.Budget(50_000, 500)).blocks[2].text")
    peer("turn.end('completed')")
    assert session.turn("ours").context(BUDGET).receipt.session_through == 5


# ---- other sessions' pins --------------------------------------------------------------------------------------------


def test_other_sessions_open_turns_are_not_disturbed(memory: optchat.Memory) -> None:
    session, ids = spoken(memory)
    refs = [f"pub:{number}+1" for number in range(6)] + ["pub:0+4", "pub:0+2", "pub:2+2"]
    refs += [f"session:{session.id}:{number}:{place}+1" for number in range(3) for place in range(9)]
    refs += [f"session:{session.id}:0:{span}" for span in ("0+2", "0+4", "4+4", "4+2", "0+8")]
    memory.settle()
    turn = memory.session("b").turn("reader")
    with memory.pin() as pinned:
        blocks = turn.context(BUDGET).blocks
        asked = turn.call("memory_search", {"query": "aword3"})
        turn.add(Assistant("", [optchat.ToolCallPart("c1", "memory_search", '{"query": "aword3"}')]))
        turn.tool_result("c1", asked)
        before = everything(turn, refs), everything(pinned, refs)
        for change in (
            lambda: session.fork("fork", after=ids[2]),
            lambda: session.rewind(after=ids[1]),
            lambda: session.turn(
                optchat.HostMessage("user", (optchat.TextPart("aword1?? edited"),), key="k", revision=0)
            ),
            lambda: session.turn(optchat.HostMessage("user", (optchat.TextPart("edited again"),), key="k", revision=1)),
            session.archive,
            lambda: session.rewind(before=ids[0]),
            lambda: exchange(session, "something else"),
        ):
            change()
            assert (everything(turn, refs), everything(pinned, refs)) == before
            assert turn.context(BUDGET).blocks == blocks
            assert turn.call("memory_search", {"query": "aword3"}) == asked
        assert turn.messages[-1].parts[0] == optchat.ToolResultPart("c1", (optchat.TextPart(asked.text),))
    turn.end("completed")
    assert "aword3" not in shared_block(memory.session("b").turn("next"))
    with memory.pin(turn.snapshot.id) as again:
        assert everything(again, refs)[3:] == before[1][3:], "an old snapshot reopens as it was"


# ---- work in progress ------------------------------------------------------------------------------------------------


def test_a_publication_that_waits_is_never_made(open_memory: Open) -> None:
    memory = open_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer())
    session = memory.session("a")
    kept = say(session, words(0, 3_000)).id
    for number in range(1, 4):
        say(session, words(number, 3_000))
    assert memory.status().publications == 0
    session.rewind(after=kept)
    memory.settle()
    assert memory.status().publications == 1, "what was kept"
    assert memory.status().ready
    assert memory.view().lines[0].session_id == session.id
    say(session, words(9, 3_000))
    memory.settle()
    assert memory.status().publications == 2
    assert memory.verify().ok


def test_a_stale_publish_commits_nothing(open_memory: Open) -> None:
    """Planned, then a rewind commits, then it would commit (schedule 21)."""
    memory = open_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer())
    session = memory.session("a")
    kept = say(session, "kept").id
    turn = session.turn(words(0, 400))
    turn.assistant(words(1, 400))  # both verbatim, and together too long for one leaf
    turn.end("completed")
    tasks = [task for task in claim(memory, 8) if task.job.kind == "publication"]
    assert len(tasks) == 1
    session.rewind(after=kept)
    assert work.commit(memory._scope, [summary(task) for task in tasks]) == 0
    assert memory.status().publications == 1
    memory.settle()
    assert memory.status().publications == 1
    assert memory.verify().ok


# ---- delivered again -------------------------------------------------------------------------------------------------


def test_delivered_again_after_a_rewind(memory: optchat.Memory) -> None:
    """Keys are looked up along the chain, and what was rewound is not found (schedule 24)."""
    session = memory.session("a")

    def deliver(number: int) -> Turn:
        turn = session.turn(User(f"r{number}", key=f"m{number}"), turn_id=f"t{number}")
        turn.observe(
            [
                User(f"r{number}", key=f"m{number}"),
                Assistant("", [optchat.ToolCallPart("c", "run", "{}")]),
                optchat.HostMessage.result("c", f"a{number}"),
            ]
        )
        if turn.outcome is None:
            turn.end("completed")
        return turn

    for number in range(3):
        deliver(number)
    session.rewind(after="t0")
    for _ in range(2):
        for number in range(3):
            deliver(number)
    assert texts(memory, session) == [text for n in range(3) for text in (f"r{n}", "{}", f"a{n}")]
    assert [turn.id for turn in session.turns()] == ["t0", "t1", "t2"]
    assert memory.status().publications == 3
    turn = session.turn(User("r1", key="m1"), turn_id="t1")
    assert turn.add(optchat.HostMessage.result("c", "a1")) == (f"session:{session.id}:1:5+1",)
    assert memory.zoom(f"session:{session.id}:1:5+1").paired_ref == f"session:{session.id}:1:4+1"


def test_a_key_above_the_boundary_comes_with_other_content(memory: optchat.Memory) -> None:
    session = memory.session("a")
    with session.turn(User("first", key="m0")) as kept:
        kept.add(Assistant("answer", key="m1"))
    with session.turn(User("second", key="m2")) as turn:
        turn.add(Assistant("draft", key="m3"))
    session.rewind(after=kept.id)
    with session.turn(User("another second", key="m2")) as turn:
        turn.add(Assistant("another draft", key="m3"))
    assert texts(memory, session) == ["first", "answer", "another second", "another draft"]
    with pytest.raises(optchat.RevisionConflict):
        session.turn(User("another first", key="m0"))
    again = session.turn(User("first", key="m0"))
    assert again.id == kept.id
    assert again.add(Assistant("answer", key="m1")) == (f"session:{session.id}:1:1+1",)
    with pytest.raises(optchat.TurnEnded):
        again.add(Assistant("draft", key="m9"))


# ---- edits -----------------------------------------------------------------------------------------------------------


def edited(text: str, key: str, revision: int) -> optchat.HostMessage:
    return optchat.HostMessage("user", (optchat.TextPart(text),), key=key, revision=revision)


def test_an_edited_request_supersedes_the_turn_it_began(memory: optchat.Memory) -> None:
    session = memory.session("a")
    for number in range(3):
        with session.turn(User(f"word{number}", key=f"m{number}"), turn_id=f"t{number}") as turn:
            turn.assistant(f"answer{number}")
    old = memory.session("a")
    with session.turn(edited("word1 edited", "m1", 1)) as turn:
        assert "answer1" not in own_lines(turn)
        turn.assistant("another answer")
    assert session.info().generation == 1
    assert texts(memory, session) == ["word0", "answer0", "word1 edited", "another answer"]
    assert [made.id for made in session.turns()] == ["t0", turn.id]
    assert memory.status().publications == 2
    assert not memory.search("answer1").hits
    assert memory.zoom(f"session:{session.id}:0:2+1").superseded
    assert session.turn(edited("word1 edited", "m1", 1)).id == turn.id, "delivered again it is the turn that it began"
    assert session.turn(User("word1", key="m1")).id == turn.id, "an older revision comes late"
    with pytest.raises(optchat.GenerationSuperseded):
        old.turn("more")
    with session.turn(edited("word1 edited twice", "m1", 2), turn_id=turn.id) as again:
        again.assistant("a third answer")
    assert (again.id, session.info().generation) == (turn.id, 2)
    assert texts(memory, session)[2:] == ["word1 edited twice", "a third answer"]
    same = session.turn(edited("word0", "m0", 5))
    assert (same.id, session.info().generation) == ("t0", 2), "a revision that changes nothing is no edit"
    assert memory.verify().ok


def test_an_edit_respects_the_open_turn(memory: optchat.Memory) -> None:
    session = memory.session("a")
    with session.turn(User("word0", key="m0")) as turn:
        turn.assistant("answer0")
    running = session.turn("running", turn_id="running")
    with pytest.raises(optchat.SessionBusy):
        session.turn(edited("word0 edited", "m0", 1), if_open="refuse")
    assert session.info().generation == 0
    session.turn(edited("word0 edited", "m0", 1)).end("completed")
    with pytest.raises(optchat.GenerationSuperseded):
        running.assistant("late")
    assert texts(memory, session) == ["word0 edited"]


def test_any_other_edit_is_the_hosts_list_to_tell(memory: optchat.Memory) -> None:
    session = memory.session("a")
    with session.turn(User("word0", key="m0"), turn_id="t0") as turn:
        turn.add(Assistant("answer0", key="m1"))
        turn.add(User("steering", key="m2"))
    running = session.turn("running")
    answer = optchat.HostMessage("assistant", (optchat.TextPart("another"),), key="m1", revision=1)
    for write in (
        lambda: running.add(answer),
        lambda: running.observe([User("running"), answer]),
        lambda: turn.add(answer),
        lambda: session.turn(edited("other steering", "m2", 1)),
        lambda: running.add(edited("word0 edited", "m0", 1)),
    ):
        with pytest.raises(optchat.ResyncNeeded, match="resync"):
            write()
    assert texts(memory, session) == ["word0", "answer0", "steering", "running"]
    session.rewind(before="t0")
    with session.turn(User("word0", key="m0"), turn_id="t0") as turn:
        turn.add(answer)
    assert texts(memory, session) == ["word0", "another"]


# ---- cuts inside of turns --------------------------------------------------------------------------------------------


def test_a_cut_inside_a_turn_keeps_its_part_sealed_again(memory: optchat.Memory) -> None:
    """The base is a turn's boundary; what is kept of the turn is never published (schedule 7)."""
    session, ids = spoken(memory, turns=1)
    with session.turn(User("look", key="m0"), turn_id="cut") as turn:
        turn.add(Assistant("reading", [optchat.ToolCallPart("c1", "read", "{}")], key="m1"))
        turn.tool_result("c1", "found")
        turn.add(Assistant("wrong answer", key="m2"))
    row = rewind_within(memory._scope, session._row, 5)
    session = memory.session("a")
    assert (row.generation, session.info().length, session.info().turns) == (1, 5, 2)
    assert texts(memory, session) == ["aword0?", "aword0!", "look", "reading", "{}"]
    assert [made.id for made in session.turns()] == [ids[0], "cut"]
    assert [made.outcome for made in session.turns()] == ["completed", "interrupted"]
    assert memory.zoom(f"session:{session.id}:0:3+1").superseded, "its record is another one now"
    assert not memory.zoom(f"session:{session.id}:1:3+1").superseded
    assert memory.status().publications == 1
    again = session.turn(User("look", key="m0"), turn_id="cut")
    assert again.observe([User("look", key="m0")]) == (f"session:{session.id}:1:2+1",)
    with session.turn("go on") as turn:
        assert "look" in previous_exchange(turn)
        turn.assistant("right answer")
    memory.settle()
    assert memory.status().publications == 2
    assert memory.view().lines[-1].text.startswith("user: go on")
    with memory.pin() as pinned, pytest.raises(optchat.UnknownRef):
        pinned.zoom(f"session:{session.id}:1:2+1")
    assert f"session:{session.id}:1:3+1" in [hit.ref for hit in memory.search("reading", order="newest")]
    assert not [hit for hit in memory.search("reading") if ":0:" in hit.ref]
    row = rewind_within(memory._scope, session._row, 2)
    assert (row.generation, memory.session("a").info().length) == (2, 2), "at a boundary nothing is left over"
    assert rewind_within(memory._scope, memory.session("a")._row, 2).generation == 2
    with pytest.raises(optchat.BadArgument, match="2 records"):
        rewind_within(memory._scope, memory.session("a")._row, 3)
    assert memory.verify().ok


def test_large_and_attached_things_are_kept_by_a_cut(memory: optchat.Memory) -> None:
    session = memory.session("a")
    image = optchat.BlobPart("image/png", b"png" * 900_000)
    long = "canary " + "long text " * 150_000
    with session.turn(optchat.HostMessage("user", (optchat.TextPart(long), image))) as turn:
        turn.add(Assistant("", [optchat.ToolCallPart("c1", "read", "{}")]))
        turn.tool_result("c1", [optchat.TextPart("part"), optchat.BlobPart("image/gif", b"gif")])
        turn.assistant("answer")
    parts = [memory.source(f"session:{session.id}:0:{number}+1") for number in range(4)]
    rewind_within(memory._scope, session._row, 4)
    again = [memory.source(f"session:{session.id}:1:{number}+1") for number in range(4)]
    assert [(each.part, each.sha256, each.at) for each in again] == [
        (each.part, each.sha256, each.at) for each in parts
    ]
    assert memory.zoom(f"session:{session.id}:1:3+1").paired_ref == f"session:{session.id}:1:2+1"
    memory.settle()
    assert {hit.ref for hit in memory.search("canary", kind="user")} == {f"session:{session.id}:1:0+1"}
    assert memory.verify().ok
