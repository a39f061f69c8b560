"""§ 16, fork: a child contains only the inherited prefix as own history, and that prefix is not published again."""

from collections.abc import Callable

import pytest

import optchat
from optchat.testing import DeterministicSummarizer
from tests.acceptance.conftest import Open
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, previous_exchange, say, shared_block, words
from tests.peer import Failed, Peer


def exchange(session: Session, text: str) -> str:
    """A completed turn of a request and its answer; its id."""
    with session.turn(f"{text}?") as turn:
        turn.assistant(f"{text}!")
    return turn.id


def own_lines(turn: optchat.Turn[optchat.HostMessage]) -> str:
    return next(block.text for block in turn.context(BUDGET).blocks if block.kind == "session")


def texts(memory: optchat.Memory, session: Session) -> list[str]:
    """Every record of a session's present history, as text."""
    info = session.info()
    refs = [f"session:{info.id}:{info.generation}:{number}+1" for number in range(info.length)]
    return [memory.zoom(ref).text or "" for ref in refs]


def test_a_child_has_the_prefix_as_its_own_history_and_nothing_else(memory: optchat.Memory) -> None:
    parent = memory.session("parent", title="Deploy", worktree="/w", commit="c0ffee")
    ids = [exchange(parent, text) for text in ("one", "two", "three")]
    child = parent.fork("child", after=ids[1])
    assert (child.key, child.host) == ("child", "local")
    info = child.info()
    assert (info.length, info.turns, info.generation, info.state) == (4, 2, 0, "active")
    assert (info.title, info.worktree, info.commit, info.isolated) == ("Deploy", "/w", "c0ffee", False)
    assert [turn.id for turn in child.turns()] == ids[:2]
    assert [turn.ref for turn in child.turns()] == [f"session:{child.id}:0:{place}+1" for place in (0, 2)]
    assert texts(memory, child) == ["one?", "one!", "two?", "two!"]
    assert exchange(parent, "four") not in [turn.id for turn in child.turns()]
    with pytest.raises(optchat.UnknownRef):
        memory.zoom(f"session:{child.id}:0:4+1")
    turn = child.turn("go on")
    assert "two?" in own_lines(turn)
    assert "three" not in own_lines(turn)
    assert "two!" in previous_exchange(turn), "what was said last before the fork is what is answered to"
    assert "three?" in shared_block(turn), "the parent's later turns are foreign memory"
    assert turn.zoom("1+1").text == "one!"
    assert {hit.session_id for hit in turn.search("two")} == {child.id}
    assert {hit.session_id for hit in turn.search("three")} == {parent.id}
    turn.assistant("gone on")
    turn.end("completed")
    assert memory.verify().ok


def test_nothing_inherited_is_published_again(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    ids = [exchange(parent, text) for text in ("one", "two")]
    child = parent.fork("child")
    grandchild = child.fork("grandchild", after=ids[0])
    assert memory.status().publications == 2
    exchange(child, "three")
    exchange(grandchild, "four")
    assert memory.status().publications == 4
    with memory.pin() as pinned:
        assert pinned.view().text.count("one?") == 1
        assert [(info.key, info.length, info.turns) for info in pinned.sessions()] == [
            ("parent", 4, 2),
            ("child", 6, 1),
            ("grandchild", 4, 1),
        ]
        for session in (child, grandchild):
            with pytest.raises(optchat.UnknownRef):
                pinned.zoom(f"session:{session.id}:0:0+1")  # what it was forked from is not its own to show
            with pytest.raises(optchat.UnknownRef):
                pinned.zoom(f"session:{session.id}:0:0+2")
        assert pinned.zoom(f"session:{child.id}:0:4+1").text == "three?"
        assert [line.ref for line in pinned.view(child.id).lines] == [f"session:{child.id}:0:4+2"]
        assert not pinned.search("one", session=child.id).hits, "hits of that session only"
        assert {hit.session_id for hit in pinned.search("one", session=parent.id)} == {parent.id}


def test_an_open_turn_of_the_parent_is_not_part_of_a_fork(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    first = exchange(parent, "one")
    running = parent.turn("two?", turn_id="t2")
    child = parent.fork("child")
    assert texts(memory, child) == ["one?", "one!"]
    with pytest.raises(optchat.BadArgument, match="not ended"):
        parent.fork("other", after="t2")
    running.assistant("two!")
    running.end("completed")
    assert running.outcome == "completed", "and it is not disturbed"
    assert texts(memory, child) == ["one?", "one!"]
    assert [turn.id for turn in child.turns()] == [first]


def test_forks_of_forks_to_any_depth(memory: optchat.Memory) -> None:
    session, expected = memory.session("s0"), list[str]()
    for depth in range(8):
        turn = exchange(session, f"depth {depth}")
        expected += [f"depth {depth}?", f"depth {depth}!"]
        exchange(session, "left behind")
        session = session.fork(f"s{depth + 1}", after=turn)
        assert texts(memory, session) == expected
    deepest = session
    again = deepest.fork("at an inherited turn", after=list(deepest.turns())[2].id)
    assert texts(memory, again) == expected[:6]
    chain = memory._scope.chain
    with memory._scope.store.read() as db:
        assert len(chain(db, again._row.segment_pk).links) == 4, "it rests on what holds its last record, no deeper"
    assert [turn.request for turn in deepest.turns(limit=3)] == ["depth 0?", "depth 1?", "depth 2?"]
    page = deepest.turns(limit=3)
    pages = [turn.request for turn in page]
    while page.cursor is not None:
        page = deepest.turns(limit=3, cursor=page.cursor)
        pages += [turn.request for turn in page]
    assert pages == [f"depth {depth}?" for depth in range(8)]
    assert memory.verify().ok


def test_the_same_fork_again_is_the_same_session(memory: optchat.Memory, open_memory: Open) -> None:
    parent = memory.session("parent", host="editor")
    ids = [exchange(parent, text) for text in ("one", "two")]
    child = parent.fork("child", after=ids[0])
    exchange(child, "more")
    again = open_memory().session("parent", host="editor").fork("child", after=ids[0])
    assert (again.id, again.host) == (child.id, "editor")
    assert again.info().length == 4
    with pytest.raises(optchat.ConfigError, match="there already"):
        parent.fork("child", after=ids[1])
    with pytest.raises(optchat.ConfigError, match="there already"):
        parent.fork("parent", after=ids[0])
    memory.session("apart", host="editor")
    with pytest.raises(optchat.ConfigError, match="there already"):
        parent.fork("apart", after=ids[0])
    assert memory.session("child", host="editor").id == child.id
    with pytest.raises(optchat.UnknownRef, match="turns"):
        parent.fork("unknown", after="no such turn")
    with pytest.raises(optchat.BadArgument, match="key"):
        parent.fork("")


def test_a_fork_of_a_session_that_said_nothing(memory: optchat.Memory) -> None:
    parent = memory.session("parent")
    child = parent.fork("child")
    assert parent.fork("child").id == child.id
    exchange(child, "one")
    assert child.info().length == 2
    assert parent.info().length == 0
    other = memory.session("other")
    with pytest.raises(optchat.ConfigError):
        other.fork("child")
    assert memory.verify().ok


def test_a_fork_of_what_is_kept_from_others_is_kept_from_them(memory: optchat.Memory) -> None:
    parent = memory.session("parent", isolated=True)
    exchange(parent, "one")
    child = parent.fork("child")
    assert child.info().isolated
    exchange(child, "two")
    assert memory.status().publications == 0
    assert memory.session("child", isolated=True).id == child.id
    assert memory.search("one").hits


def test_delivered_again_into_a_fork(memory: optchat.Memory) -> None:
    """A host that replays the whole conversation under the fork's key: what is inherited is known (schedule 24)."""
    parent = memory.session("parent")
    for number in range(3):
        with parent.turn(optchat.HostMessage.user(f"r{number}", key=f"m{number}"), turn_id=f"t{number}") as turn:
            turn.assistant(f"a{number}")
    child = parent.fork("child", after="t1")
    for number in range(2):
        turn = child.turn(optchat.HostMessage.user(f"r{number}", key=f"m{number}"), turn_id=f"t{number}")
        assert turn.outcome == "completed"
        refs = turn.observe(
            [optchat.HostMessage.user(f"r{number}", key=f"m{number}"), optchat.HostMessage.assistant(f"a{number}")]
        )
        assert refs == tuple(f"session:{child.id}:0:{2 * number + part}+1" for part in (0, 1))
        with pytest.raises(optchat.TurnEnded):
            turn.assistant("something new")
        assert child.turn(optchat.HostMessage.user(f"r{number}", key=f"m{number}")).id == f"t{number}"
    assert child.info().length == 4
    with child.turn(optchat.HostMessage.user("r2", key="m2"), turn_id="t2") as turn:
        turn.assistant("another a2")
    assert texts(memory, child)[4:] == ["r2", "another a2"], "what the parent said after the fork is not the child's"
    assert texts(memory, parent)[4:] == ["r2", "a2"]
    assert memory.status().publications == 4


def test_a_fork_waits_for_its_parents_summaries(open_memory: Open) -> None:
    """
    The parent's leaf is pending when the child forks; nodes of the child wait for nodes of the parent's tree, and a
    landing there wakes them (schedule 16).
    """
    memory = open_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer())
    parent = memory.session("parent")
    for number in range(3):
        with parent.turn(words(number)) as turn:
            turn.assistant(words(10 + number, 3_000))
    child = parent.fork("child")
    with child.turn(words(20)) as turn:
        turn.assistant(words(21))
        with pytest.raises(optchat.SummariesPending) as missing:
            turn.context(BUDGET)
        assert f"session:{child.id}:0:5+1" in missing.value.missing
    memory.settle()
    assert memory.status().ready
    turn = child.turn("go on")
    refs = [ref for ref in turn.context(BUDGET).receipt.refs if ref.startswith("session:")]
    assert refs[-1].startswith(f"session:{child.id}:0:")
    node = memory.zoom(f"session:{child.id}:0:4+4")
    assert [line.ref for line in node.lines] == [f"session:{child.id}:0:{span}" for span in ("4+2", "6+2")]
    assert memory.zoom(f"session:{child.id}:0:0+4").lines, "the parent's node"
    turn.end("completed")
    memory.settle()
    assert memory.verify().ok


def test_a_forks_first_view_is_as_fine_as_the_budget_allows(open_memory: Open) -> None:
    """Cut from the parent's present frontier it would be a few coarse lines (schedule 15)."""
    memory = open_memory(policy=SMALL_VIEWS, summarizer=DeterministicSummarizer())
    parent = memory.session("parent", isolated=True)  # which leaves the shared tree out of it
    ids = [say(parent, words(number)).id for number in range(48)]
    memory.settle()
    child = parent.fork("child", after=ids[23])
    lines = memory.view(child.id).lines
    cut = [line for line in memory.view(parent.id).lines if int(line.ref.rsplit(":", 1)[1].split("+")[0]) < 24]
    assert len(lines) > 2 * len(cut)
    assert lines[-1].ref == f"session:{child.id}:0:23+1", "what was said last is word for word"
    assert 2_000 < sum(len(line.text) for line in lines) <= 4_000
    assert memory.verify().ok


def test_a_fork_by_another_process(memory: optchat.Memory, peer: Peer) -> None:
    parent = memory.session("parent")
    first = exchange(parent, "one")
    running = parent.turn("two?")
    peer("child = memory.session('parent').fork('child')")
    assert peer("child.info().length") == 2
    running.end("completed")
    assert parent.fork("child", after=first).id == peer("child.id")
    with pytest.raises(Failed, match="not ended"):
        peer("memory.session('child').turn('more', turn_id='open') and child.fork('x', after='open')")


def test_a_read_only_memory_forks_nothing(memory: optchat.Memory, open_memory: Open) -> None:
    exchange(memory.session("parent"), "one")
    reader = open_memory(mode="ro").session("parent")
    writes: list[Callable[[], object]] = [
        lambda: reader.fork("child"),
        lambda: reader.rewind(before="x"),
        reader.archive,
        reader.unarchive,
        reader.share,
    ]
    for write in writes:
        with pytest.raises(optchat.StoreReadOnly):
            write()
