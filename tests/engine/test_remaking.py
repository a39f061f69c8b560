"""Nodes made anew: repairs in one transaction, upgrades by jobs, and that pins see neither."""

from typing import Any

import apsw
import pytest

import optchat
from optchat.core.compactor_view import rooms
from optchat.core.jobs import FAILED
from optchat.core.refs import Span
from optchat.core.summarizing import SummaryRequest
from optchat.core.views import spans_of
from optchat.engine import remaking, work
from optchat.engine.origins import origin_of
from optchat.engine.trees import session_tree, shared_tree
from optchat.store import forest, queue, registry, remakes, scopes
from optchat.testing import DeterministicSummarizer, temporary_memory
from optchat.testing.memories import open_beside
from tests.engine.helpers import BUDGET, SMALL_VIEWS, Session, Turn, say, shared_block, words
from tests.engine.remaking_steps import (
    DEFAULT,
    Author,
    assert_sound,
    claim,
    commit,
    counted,
    give_up,
    nodes_and_views,
    repair,
    work_off,
)
from tests.store.plans import Statement, scans

ONE, TWO, BRIEF = Author("alpha"), Author("beta"), Author("brief", 100)


def spoken(memory: optchat.Memory, turns: int, author: Author = ONE, key: str = "s") -> Session:
    """A session of turns of one long record each, all summarised: no two texts fit together."""
    session = memory.session(key)
    for number in range(turns):
        say(session, words(number, 3_000))
    work_off(memory, author)
    return session


def node(memory: optchat.Memory, session: Session | None, ref: str) -> forest.MadeRow:
    """A current node, of a session or of the shared tree."""
    start, _, count = ref.partition("+")
    scope = memory._scope
    with scope.store.read() as db:
        tree = shared_tree(scope) if session is None else session_tree(scope, db, session._row.segment_pk)
        key = tree.key(Span(int(start), int(count)))
        return forest.load_made(db, [key])[key]


def jobs(memory: optchat.Memory) -> dict[int, remakes.RemakeRow]:
    with memory._scope.store.read() as db:
        return remakes.remakes(db, [row[0] for row in db.execute("SELECT node_key FROM node").fetchall()])


def names(memory: optchat.Memory, session: Session, keys: set[int]) -> set[str]:
    """Node keys as refs, the session's own short."""
    found: set[str] = set()
    for start, count in [(at, size) for size in (1, 2, 4, 8, 16) for at in range(0, 32, size)]:
        scope, span = memory._scope, Span(start, count)
        with scope.store.read() as db:
            if session_tree(scope, db, session._row.segment_pk).key(span) in keys:
                found.add(str(span))
        if shared_tree(scope).key(span) in keys:
            found.add(f"pub:{span}")
    assert len(found) == len(keys), "of other trees, too"
    return found


def canonical(session: Session, ref: str) -> str:
    return ref if ref.startswith("pub:") else f"session:{session.id}:0:{ref}"


# ---- repair ----------------------------------------------------------------------------------------------------------

PATH = {"2+1", "2+2", "0+4", "0+8", "pub:2+1", "pub:2+2", "pub:0+4", "pub:0+8"}


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        ("2+1", PATH),
        ("2+2", {"2+2", "0+4", "0+8"}),
        ("pub:2+1", PATH),  # a join of what the session's leaf says: that is repaired
        ("pub:2+2", {"pub:2+2", "pub:0+4", "pub:0+8"}),
        ("pub:0+8", {"pub:0+8"}),
    ],
)
def test_a_repair_makes_anew_the_path_above_a_node_and_nothing_else(ref: str, path: set[str]) -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 8)
        before, views = nodes_and_views(memory)
        texts = {key: node(memory, session, key).node.text for key in ("0+1", "3+1", "0+2", "4+4")}
        assert repair(memory, canonical(session, ref), TWO) == len(path)
        after, views_after = nodes_and_views(memory)
        assert names(memory, session, {key for key in after if after[key] != before[key]}) == path
        assert set(after.values()) == {0, 1}
        assert {key: node(memory, session, key).node.text for key in texts} == texts
        concerned = {view for view in views if views_after[view] == views[view] + 1}
        assert len(concerned) == len({name.startswith("pub:") for name in path}), "one new revision a tree"
        assert all(views_after[view] == views[view] for view in views.keys() - concerned)
        assert_sound(memory)
        assert memory.status().pending == 0


def test_a_repair_is_summarised_with_the_new_texts_below() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        asked: list[SummaryRequest] = []

        class Listening(Author):
            def summarize(self, request: SummaryRequest, /) -> optchat.SummaryReply:
                asked.append(request)
                return super().summarize(request)

        repair(memory, canonical(session, "2+1"), Listening("beta"))
        assert [request.purpose for request in asked] == ["leaf", "merge", "merge", "merge", "merge"]
        for request in asked[1:]:
            said = [source.text.split()[0] for source in request.sources]
            assert sorted(said) == ["alpha", "beta"], "a merge with an old text where there is a new one"


def test_what_was_pinned_before_a_repair_stays_as_it_is() -> None:
    with temporary_memory(policy=SMALL_VIEWS) as memory:
        session = spoken(memory, 12)
        turn, unseen = session.turn("and now?"), memory.session("other").turn("what is known?")
        refs = [canonical(session, ref) for ref in ("0+8", "2+2", "8+4", "2+1", "pub:0+8", "pub:2+2", "pub:2+1")]

        def seen(eyes: optchat.Reader) -> list[Any]:
            views = [
                eyes.view(),
                eyes.view(session.id),
                eyes.view(max_tokens=300),
                eyes.view(session.id, max_tokens=200),
            ]
            zooms = [eyes.zoom(ref) for ref in refs]
            searches = [
                eyes.search(query, kind=kind, order=order, limit=50)
                for query in ("alpha has", "beta has", "brief has")
                for kind in ("summary", None)
                for order in ("best", "newest")
            ]
            return [*views, *zooms, *searches]

        context = turn.context(BUDGET)
        for name, arguments in (("memory_zoom", '{"ref": "2+2"}'), ("memory_search", '{"query": "alpha has"}')):
            turn.tool_call(name, name, arguments)
            turn.tool_result(name, turn.call(name, arguments))
        told = turn.messages
        assert "alpha merge" in str(told) or "alpha leaf" in str(told)
        with memory.pin() as pinned:
            before = seen(pinned), seen(turn)
            for author, ref in ((TWO, "2+1"), (BRIEF, "9+1"), (Author("gamma", 500), "0+4"), (TWO, "pub:4+4")):
                repair(memory, canonical(session, ref), author)
                work_off(memory, TWO)
            assert (seen(pinned), seen(turn)) == before
            assert turn.messages == told, "an answer is rendered again as it was given"
        for handle in (memory, open_beside(memory)):
            again = handle.session("s").turn("and now?", turn_id=turn.id).context(BUDGET)
            assert [block.text for block in again.blocks] == [block.text for block in context.blocks]
        assert "beta has" not in shared_block(unseen), "its first context came after the repair, its pin before"
        later = memory.session("other").turn("and now?")
        assert "beta has" in shared_block(later)
        assert later.search("beta has", kind="summary").hits
        assert later.zoom(canonical(session, "2+2")).lines[0].text.startswith("beta")
        assert_sound(memory)


def test_a_leaf_that_landed_and_was_repaired_after_the_pin_reads_as_it_landed() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        for number in range(4):
            say(session, words(number, 3_000))
        turn = session.turn("and now?")
        work_off(memory, ONE)
        context = turn.context(BUDGET)
        repair(memory, canonical(session, "1+1"), TWO)
        own = next(block.text for block in context.blocks if block.kind == "session")
        assert "beta has" not in own
        assert turn.zoom("0+2").lines[1].text.startswith("alpha")
        assert turn.view(session.id).lines[1].text.startswith("alpha")
        assert not turn.search("beta has", kind="summary").hits


@pytest.mark.parametrize("high_bytes", [2_700, 3_200, 3_700])
def test_a_view_grows_under_a_pin_by_the_sizes_of_its_time(high_bytes: int) -> None:
    """Else what was repaired since would merge other lines, and the first context after it would show another cover."""
    with temporary_memory(policy=optchat.Policy(view_high_bytes=high_bytes, view_low_bytes=high_bytes - 400)) as memory:
        session = spoken(memory, 8)
        for number in range(8, 12):
            say(session, words(number, 3_000))
        turn = session.turn("and now?")
        work_off(memory, ONE)
        before = [line.ref for line in turn.view(session.id).lines]
        for number in range(0, 12, 2):
            repair(memory, canonical(session, f"{number}+1"), Author("wide", 500))
        assert [line.ref for line in turn.view(session.id).lines] == before
        shown = [ref for ref in turn.context(BUDGET).receipt.refs if ref.startswith("session:")]
        assert shown[: len(before) - 1] == before[:-1], "the view is the one that the context shows"


def test_appending_during_a_repair_keeps_both() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 7)

        def append() -> None:
            say(session, words(7, 3_000))
            work_off(memory, ONE)

        assert repair(memory, canonical(session, "2+1"), TWO, append) == 6
        assert names(memory, session, set(jobs(memory))) == {"0+8", "pub:0+8"}, "made meanwhile of the old texts"
        assert_sound(memory)
        work_off(memory, ONE)
        assert not jobs(memory)
        assert node(memory, session, "0+8").node.revision == 1
        assert_sound(memory)


@pytest.mark.parametrize("other", ["2+1", "3+1", "0+2", "2+2"])
def test_a_repair_whose_inputs_changed_changes_nothing(other: str) -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        states: list[object] = []

        def between() -> None:
            repair(memory, canonical(session, other), TWO)
            states.append(nodes_and_views(memory))

        with pytest.raises(optchat.InputsChanged, match="repair it again"):
            repair(memory, canonical(session, "2+1"), Author("late"), between)
        assert nodes_and_views(memory) == states[0]
        assert_sound(memory)


def test_a_repair_beside_which_a_sibling_is_made_anew_changes_nothing() -> None:
    """The sibling's job leaves the path as it is: only its inputs tell."""
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        sibling = node(memory, session, "3+1").node_key
        states: list[object] = []

        def between() -> None:
            remake(memory, sibling, ONE)
            states.append(nodes_and_views(memory))

        with pytest.raises(optchat.InputsChanged, match="repair it again"):
            repair(memory, canonical(session, "2+1"), TWO, between)
        assert nodes_and_views(memory) == states[0]
        assert_sound(memory)


def test_a_repair_that_is_not_finished_is_not_committed() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 2)
        scope = memory._scope
        plan = remaking.begin_repair(scope, canonical(session, "0+2"), rooms(65_536, 32_000))
        with pytest.raises(optchat.BadArgument, match="next"):
            remaking.commit_repair(scope, plan)


def test_a_stand_in_is_repaired() -> None:
    def fail(request: SummaryRequest) -> BaseException | None:
        return RuntimeError("no") if request.purpose == "leaf" and "thing2" in request.sources[0].text else None

    policy = optchat.Policy(job_attempts=1)
    with temporary_memory(policy=policy, summarizer=DeterministicSummarizer(fail=fail)) as memory:
        session = memory.session("s")
        for number in range(4):
            say(session, words(number, 3_000))
        assert memory.settle().stand_ins == 1
        assert remaking.stand_ins(memory._scope) == [canonical(session, "2+1")]
        assert memory.zoom("pub:2+1").lines[0].kind == "stand_in"
        repair(memory, remaking.stand_ins(memory._scope)[0], TWO)
        assert memory.status().stand_ins == 0
        assert remaking.stand_ins(memory._scope) == []
        assert memory.zoom("pub:2+1").lines[0].kind == "summary"
        assert_sound(memory)


def test_what_fits_together_is_joined_and_what_no_longer_does_is_summarised() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        repair(memory, canonical(session, "2+1"), BRIEF)
        assert (node(memory, session, "2+2").recipe_kind, node(memory, None, "2+2").recipe_kind) == ("join", "join")
        assert node(memory, session, "2+2").node.text.count("\n") == 1
        assert not memory.view().missing
        assert_sound(memory)
        repair(memory, canonical(session, "2+2"), TWO)  # a join: both of its parts
        assert {node(memory, session, ref).model for ref in ("2+1", "3+1", "2+2", "0+4")} == {"beta"}
        assert node(memory, session, "2+2").recipe_kind == "summary"
        assert node(memory, session, "2+1").node.revision == 2
        assert_sound(memory)


def test_what_waits_to_be_summarised_is_joined_where_a_repair_makes_it_fit() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "short")
        turn = session.turn(words(0, 3_000))
        turn.assistant(words(1, 3_000))
        turn.assistant(words(2, 3_000))
        turn.end("completed")
        for task in claim(memory, ONE, 3).tasks:
            commit(memory, task, ONE)
        leased = claim(memory, ONE, 64).tasks
        assert {task.summary.purpose for task in leased} == {"merge"}
        assert [len(task.summary.sources) for task in leased] == [2]
        repair(memory, canonical(session, "2+1"), BRIEF)
        repair(memory, canonical(session, "3+1"), BRIEF)
        assert node(memory, session, "2+2").recipe_kind == "join"
        assert node(memory, None, "1+1").recipe_kind == "join", "published at once"
        assert not commit(memory, leased[0], ONE)
        work_off(memory, ONE)
        assert_sound(memory)


def test_a_publication_that_a_summarizer_wrote_keeps_its_outcome() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "short")
        turn = session.turn(words(0, 3_000))
        turn.assistant(words(1, 3_000))
        turn.end("failed", "no luck")
        work_off(memory, ONE)
        before = node(memory, None, "1+1")
        assert before.recipe_kind == "summary"
        assert repair(memory, "pub:1+1", TWO) == 2
        after = node(memory, None, "1+1")
        assert after.node.text.startswith("failed: beta")
        assert (after.node.failed, after.node.first_at, after.node.last_at) == (
            1,
            before.node.first_at,
            before.node.last_at,
        )
        assert memory.view().lines[1].outcome == "failed"
        assert repair(memory, canonical(session, "2+1"), BRIEF) == 3
        assert node(memory, None, "1+1").recipe_kind == "join"
        assert memory.view().lines[1].text.startswith("failed: alpha")
        assert_sound(memory)


def test_only_what_was_summarised_can_be_repaired() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "short")
        say(session, "short too")
        say(session, words(1, 3_000))
        for ref in ("0+1", "0+2", "pub:0+1", "pub:0+2"):
            with pytest.raises(optchat.BadArgument, match="word for word"):
                repair(memory, canonical(session, ref), TWO)
        with pytest.raises(optchat.BadArgument, match="settle"):
            repair(memory, canonical(session, "2+1"), TWO)
        for ref in ("session:00000000:0:0+1", canonical(session, "3+1"), "pub:7+1", "0+1"):
            with pytest.raises(optchat.UnknownRef):
                repair(memory, ref, TWO)
        with pytest.raises(optchat.MalformedRef):
            repair(memory, "everything", TWO)
        other = memory.scoped("elsewhere")
        with pytest.raises(optchat.UnknownRef):
            repair(other, canonical(session, "0+1"), TWO)


def test_a_record_of_an_open_turn_is_repaired_and_no_view_moves() -> None:
    with temporary_memory() as memory:
        turn = memory.session("s", isolated=True).turn(words(0, 3_000))
        work_off(memory, ONE)
        _nodes, views = nodes_and_views(memory)
        assert repair(memory, turn.zoom("0+1").ref, TWO) == 1
        assert nodes_and_views(memory)[1] == views
        turn.end("completed")
        assert memory.view(memory.session("s", isolated=True).id).lines[0].text.startswith("beta")
        assert_sound(memory)


def test_a_view_that_a_repair_makes_too_large_shrinks_with_it() -> None:
    policy = optchat.Policy(view_high_bytes=2_000, view_low_bytes=1_600)
    with temporary_memory(policy=policy) as memory:
        session = memory.session("s")
        for number in range(6):
            say(session, words(number, 3_000))
        work_off(memory, ONE)
        other = open_beside(memory)
        say(other.session("s"), "other holds the frontier of the view as it is")
        count = len(memory.view(session.id).lines)
        for number in range(6):
            repair(memory, canonical(session, f"{number}+1"), Author("wide", 500))
        assert len(memory.view(session.id).lines) < count
        assert len(memory.view(session.id).text.encode()) <= 2_000
        for number in range(7, 12):
            say(other.session("s"), words(number))
        assert_sound(memory)
        assert_sound(other)


def test_the_view_of_a_single_record_has_a_new_revision_too() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 1)
        other = open_beside(memory)
        say(other.session("t"), "other holds the shared frontier")
        _nodes, views = nodes_and_views(memory)
        repair(memory, canonical(session, "0+1"), Author("wide", 500))
        moved = {tree for tree, revision in nodes_and_views(memory)[1].items() if revision == views[tree] + 1}
        assert moved == {memory._scope.row.shared_tree, own_tree(memory, session)}
        say(other.session("t"), "and goes on with it")
        with other._scope.store.read() as db:
            assert other._scope.caches.frontiers.get(other._scope.row.shared_tree) is None  # it was true no more
            tree, view = shared_tree(other._scope), forest.load_view(db, other._scope.row.shared_tree)
            sizes = tree.sizes(db, spans_of(view.levels))
        assert view.length == len(sizes) == 3
        assert view.bytes == sum(tree.line_bytes(span, size) for span, size in sizes.items())


def test_a_view_that_is_planned_under_a_pin_has_the_sizes_of_its_time() -> None:
    policy = optchat.Policy(view_high_bytes=3_000, view_low_bytes=1_000)
    with temporary_memory(policy=policy) as memory:
        session = spoken(memory, 12)
        with memory.pin() as pinned:
            say(session, "later")
            with memory.pin(pinned.snapshot.id) as again:
                before = pinned.view(session.id), again.view()
            for number in range(0, 12, 2):
                repair(memory, canonical(session, f"{number}+1"), Author("wide", 500))
            with memory.pin(pinned.snapshot.id) as again:
                assert (pinned.view(session.id), again.view()) == before
        with memory.pin() as now:
            assert [line.ref for line in now.view(session.id).lines] != [line.ref for line in before[0].lines]


def test_a_search_under_a_pin_finds_each_revision_in_its_time() -> None:
    """The own pass has no mark of documents: what a later revision says is left out by its clock, first one or not."""

    def found(turn: Turn) -> list[bool]:
        return [bool(turn.search(f"{name} has", kind="summary").hits) for name in ("alpha", "beta", "gamma")]

    policy = optchat.Policy(job_attempts=1)
    failing = DeterministicSummarizer(fail=lambda _: RuntimeError("no"))
    with temporary_memory(policy=policy, summarizer=failing) as memory:
        session = memory.session("s")
        say(session, words(0, 3_000))
        memory.settle()
        turns = [session.turn("first?")]
        for author in (ONE, TWO, Author("gamma")):
            repair(memory, canonical(session, "0+1"), author)
            turns.append(session.turn(f"after {author.name}?"))
        assert [found(turn) for turn in turns] == [
            [False, False, False],
            [True, False, False],
            [False, True, False],
            [False, False, True],
        ]
        assert_sound(memory)


# ---- large records ---------------------------------------------------------------------------------------------------


def test_a_record_of_pages_is_repaired_with_its_pages_that_are_stand_ins() -> None:
    def fail(request: SummaryRequest) -> BaseException | None:
        source = request.sources[0]
        return RuntimeError("no") if source.kind == "user" and source.text.startswith("turn 0") else None

    policy = optchat.Policy(job_attempts=1)
    with temporary_memory(policy=policy, summarizer=DeterministicSummarizer(fail=fail)) as memory:
        session = memory.session("s")
        say(session, "".join(words(number, 32_000) for number in range(6)))
        assert memory.settle().stand_ins == 1
        ref = canonical(session, "0+1")
        assert remaking.stand_ins(memory._scope) == [ref]
        before = nodes_and_views(memory)[0]
        repair(memory, ref, TWO)
        after = nodes_and_views(memory)[0]
        assert memory.status().stand_ins == 0
        assert node(memory, session, "0+1").node.revision == 1
        assert 3 < sum(after[key] != before[key] for key in after) < len(after), "every page was made anew"
        assert_sound(memory)


def test_a_source_that_no_window_holds_is_refused_before_anything_is_asked() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, words(1, 20_000))
        work_off(memory, ONE)
        with pytest.raises(optchat.BadArgument, match="larger window"):
            repair(memory, canonical(session, "0+1"), Author("small", window_tokens=8_192))


# ---- segments that rest on others -----------------------------------------------------------------------------------


def fork(memory: optchat.Memory, base: Session, key: str, length: int) -> Session:
    """A session on a new segment over the first records of another, with its view as a fork would have it."""
    session = memory.session(key)
    scope, row = memory._scope, session._row
    with scope.store.write() as db:
        db.execute(
            "UPDATE segment SET base_segment = ?, base_length = ?, ended_length = ? WHERE segment_pk = ?",
            (base._row.segment_pk, length, length, row.segment_pk),
        )
        chain = registry.load_chain(db, row.segment_pk)
        levels = bytes([0]) * length
        forest.save_view(db, forest.ViewRow(chain.own.tree, 1, length, levels, shrinking=False))
    scope.caches.chains.take(row.segment_pk)
    return memory.session(key)


def test_a_repair_reaches_the_trees_and_views_that_rest_on_a_node() -> None:
    with temporary_memory() as memory:
        base = spoken(memory, 6)
        child = fork(memory, base, "child", 6)
        grandchild = fork(memory, child, "grandchild", 6)
        apart, young = fork(memory, base, "apart", 2), fork(memory, base, "young", 5)
        for session, first, end in ((base, 6, 8), (child, 6, 8), (grandchild, 6, 8), (apart, 2, 8), (young, 5, 6)):
            for number in range(first, end):
                say(session, words(number, 3_000) + session.key)
        work_off(memory, ONE)
        before, views = nodes_and_views(memory)
        trees = [own_tree(memory, session) for session in (base, child, grandchild, young, apart)]
        assert_sound(memory)
        made = repair(memory, canonical(base, "3+1"), TWO)
        after, views_after = nodes_and_views(memory)
        changed = {key for key in after if after[key] != before[key]}
        assert made == len(changed)
        for session, spans in ((base, ("3+1", "2+2", "0+4", "0+8")), (child, ("0+8",)), (grandchild, ("0+8",))):
            for span in spans:
                assert node(memory, session, span).node.revision == 1
                assert node(memory, session, span).model == "beta"
        assert node(memory, apart, "0+8").node.revision == 0
        moved = {tree for tree in trees if views_after[tree] == views[tree] + 1}
        assert moved == set(trees[:4]), "views show base nodes, too"
        assert views_after[trees[4]] == views[trees[4]]
        assert not jobs(memory)
        assert_sound(memory)


def own_tree(memory: optchat.Memory, session: Session) -> int:
    with memory._scope.store.read() as db:
        return memory._scope.chain(db, session._row.segment_pk).own.tree


# ---- upgrades --------------------------------------------------------------------------------------------------------


def by_the_default(memory: optchat.Memory, turns: int = 9) -> Session:
    session = memory.session("s")
    for number in range(turns):
        turn = session.turn(words(number, 3_000))
        if number % 3 == 0:
            turn.assistant(words(number + 100, 2_000))
        turn.end("failed" if number % 4 == 3 else "completed")
    memory.settle()
    return session


def test_an_upgrade_makes_every_node_of_the_default_anew_once_and_inputs_first() -> None:
    with temporary_memory() as memory:
        by_the_default(memory)
        scope = memory._scope
        before = memory.status()
        assert before.by_default_summarizer > 20
        assert remaking.take_over(scope, "beta") == 0
        added = remaking.upgrade(scope, DEFAULT)
        assert added >= before.by_default_summarizer
        assert remaking.upgrade(scope, DEFAULT) == 0
        assert_sound(memory)
        assert claim(memory, Author(DEFAULT)).other_summarizer == "beta"
        calls = 0
        while claimed := claim(memory, TWO, 3).tasks:
            for task in claimed:
                assert task.job.kind == "remake"
                with scope.store.read() as db:
                    below = forest.load_made(db, origin_of(scope, db, task.job.subject).input_keys)
                assert all(made.model != DEFAULT for made in below.values()), "made anew before its inputs"
                calls += commit(memory, task, TWO)
            assert_sound(memory)
        after, _views = nodes_and_views(memory)
        assert calls == counted(memory)["summary", "beta"], "a call more, or less, than there are summaries"
        assert set(after.values()) <= {0, 1}
        status = memory.status()
        assert (status.by_default_summarizer, status.pending, status.summarizer) == (0, 0, "beta")
        assert set(counted(memory)) == {("summary", "beta")}


def test_an_upgrade_of_pages_reaches_their_record() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, "".join(words(number, 32_000) for number in range(6)))
        say(session, words(7, 3_000))
        memory.settle()
        remaking.take_over(memory._scope, "beta")
        assert remaking.upgrade(memory._scope, DEFAULT) > 8
        ready = claim(memory, TWO, 64).tasks
        assert {task.summary.purpose for task in ready} == {"chunk", "leaf"}
        assert {task.summary.sources[0].text[:8] for task in ready if task.summary.purpose == "leaf"} == {"turn 7 s"}
        for task in ready:
            assert commit(memory, task, TWO)
        work_off(memory, TWO)
        assert node(memory, session, "0+1").model == "beta"
        assert set(counted(memory)) == {("summary", "beta")}
        assert_sound(memory)


def test_a_leaf_that_the_next_window_does_not_hold_is_made_anew_of_pages() -> None:
    small = Author("beta", window_tokens=8_192)
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, words(1, 20_000))
        say(session, words(2, 3_000))
        work_off(memory, ONE)
        before = node(memory, session, "0+1").node.text
        remaking.take_over(memory._scope, small.name)
        remaking.upgrade(memory._scope, ONE.name)
        while tasks := claim(memory, small, 2).tasks:
            assert all(task.source_bytes < 8_192 or task.summary.purpose == "leaf" for task in tasks)
            for task in tasks:
                assert commit(memory, task, small)
            assert_sound(memory)
        assert node(memory, session, "0+1").node.text != before
        assert set(counted(memory)) == {("summary", "beta")}
        with memory._scope.store.read() as db:
            (pages,) = forest.chunk_trees(db, session._row.segment_pk)
        assert (pages.pages or 0) > 2
        assert not jobs(memory)


def test_a_steps_size_does_not_change_what_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_memory() as memory:
        by_the_default(memory, 5)
        monkeypatch.setattr(remaking, "_STEP", 1)
        one_by_one = remaking.upgrade(memory._scope, DEFAULT)
        states = {key: (job.missing, job.in_any_case) for key, job in jobs(memory).items()}
        with memory._scope.store.write() as db:
            db.execute("DELETE FROM job")
        monkeypatch.setattr(remaking, "_STEP", 1_000)
        assert remaking.upgrade(memory._scope, DEFAULT) == one_by_one
        assert {key: (job.missing, job.in_any_case) for key, job in jobs(memory).items()} == states


def test_a_memory_in_use_is_upgraded_beside_it() -> None:
    with temporary_memory(policy=SMALL_VIEWS) as memory:
        session = by_the_default(memory, 6)
        remaking.take_over(memory._scope, "beta")
        remaking.upgrade(memory._scope, DEFAULT)
        turn = session.turn("and now?")
        before = turn.view(), turn.view(session.id), turn.context(BUDGET).blocks
        for number in range(40, 46):
            for task in claim(memory, TWO, 2).tasks:
                commit(memory, task, TWO)
            say(memory.session("t"), words(number, 3_000))
            assert_sound(memory)
        work_off(memory, TWO)
        assert (turn.view(), turn.view(session.id), turn.context(BUDGET).blocks) == before
        assert memory.status().by_default_summarizer == 0
        assert memory.status().ready
        assert_sound(memory)


def test_a_repair_during_an_upgrade_is_what_the_upgrade_would_have_done() -> None:
    with temporary_memory() as memory:
        session = by_the_default(memory, 4)
        remaking.take_over(memory._scope, "beta")
        remaking.upgrade(memory._scope, DEFAULT)
        late = claim(memory, TWO).tasks
        repair(memory, canonical(session, "0+1"), TWO)
        assert_sound(memory)
        assert [commit(memory, task, TWO) for task in late].count(False) == 1, "its node was made anew meanwhile"
        work_off(memory, TWO)
        assert memory.status().by_default_summarizer == 0
        assert not jobs(memory)
        assert_sound(memory)


def test_a_job_that_failed_for_good_leaves_the_text_and_holds_up_nobody() -> None:
    with temporary_memory() as memory:
        session = by_the_default(memory, 4)
        scope = memory._scope
        remaking.take_over(scope, "beta")
        remaking.upgrade(scope, DEFAULT)
        refused = key_of(memory, session, "2+1")
        text = node(memory, session, "2+1").node.text
        while claimed := claim(memory, TWO).tasks:
            for task in claimed:
                if task.job.subject == refused:
                    give_up(memory, task)
                else:
                    commit(memory, task, TWO)
        assert {key: job.state for key, job in jobs(memory).items()} == {refused: FAILED}
        assert node(memory, session, "2+1").node.text == text
        assert memory.status().by_default_summarizer == 1
        assert memory.status().failures[0].ref == canonical(session, "2+1")
        assert_sound(memory)
        assert remaking.take_over(scope, "beta") == 1
        work_off(memory, TWO)
        assert memory.status().by_default_summarizer == 0
        assert not jobs(memory)
        assert_sound(memory)


def key_of(memory: optchat.Memory, session: Session, ref: str) -> int:
    return node(memory, session, ref).node_key


def test_what_was_to_follow_a_job_that_failed_falls_away() -> None:
    """Joins wait for what they join; where nothing of it is made anew, there is nothing to join, and nothing to ask."""
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, words(1, 3_000))
        say(session, "short")
        work_off(memory, BRIEF)
        remaking.upgrade(memory._scope, BRIEF.name)
        joined = [job for job in jobs(memory).values() if not job.in_any_case]
        assert joined, "no join over the summary"
        before, views = nodes_and_views(memory)
        (task,) = claim(memory, BRIEF).tasks
        give_up(memory, task)
        assert set(jobs(memory)) == {task.job.subject}
        assert nodes_and_views(memory) == (before, views)
        assert_sound(memory)


def test_a_failed_job_whose_inputs_change_is_tried_again() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        add_remake(memory, key_of(memory, session, "0+2"))
        (task,) = claim(memory, ONE).tasks
        give_up(memory, task)
        add_remake(memory, key_of(memory, session, "1+1"))
        assert work_off(memory, ONE) > 3
        assert not jobs(memory)
        assert node(memory, session, "0+2").node.revision == 1
        assert_sound(memory)


def add_remake(memory: optchat.Memory, key: int, *, needs: tuple[int, ...] = (), in_any_case: bool = True) -> None:
    scope = memory._scope
    with scope.store.write() as db:
        queue.add_job(db, scope_pk=scope.pk, kind="remake", subject=key, needs=needs, at=0, position=int(in_any_case))


def test_a_job_waits_again_where_another_input_is_still_to_come() -> None:
    """Its result would be dropped in any case; and what it would be made of next may fit together by itself."""
    with temporary_memory() as memory:
        session = spoken(memory, 4)
        left, right, above = (key_of(memory, session, ref) for ref in ("0+2", "2+2", "0+4"))
        add_remake(memory, above)
        (late,) = claim(memory, ONE).tasks
        add_remake(memory, right)
        remake(memory, left, BRIEF)
        assert (jobs(memory)[above].waits, jobs(memory)[above].in_any_case) == (True, True)
        assert not commit(memory, late, ONE)
        assert_sound(memory)
        assert work_off(memory, Author(ONE.name, 100)) == 1, "what was to be merged is joined"
        assert node(memory, session, "0+4").recipe_kind == "join"
        assert not jobs(memory)
        assert_sound(memory)


def test_an_upgrade_wants_what_was_only_to_follow_its_inputs() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 2)
        below, above = key_of(memory, session, "1+1"), key_of(memory, session, "0+2")
        add_remake(memory, below)
        add_remake(memory, above, needs=(below,), in_any_case=False)
        assert remaking.upgrade(memory._scope, ONE.name) > 0
        assert jobs(memory)[above].in_any_case
        (task,) = claim(memory, ONE, 1).tasks
        assert task.job.subject == below
        give_up(memory, task)
        assert work_off(memory, ONE) > 0
        assert node(memory, session, "0+2").node.revision == 1


def test_a_batch_may_hold_a_node_and_what_is_made_of_it() -> None:
    with temporary_memory() as memory:
        session = spoken(memory, 2)
        for order in (("0+2", "0+1"), ("0+1", "0+2")):
            for ref in order:
                add_remake(memory, key_of(memory, session, ref))
            tasks = claim(memory, ONE).tasks
            assert len(tasks) == 2
            for task in tasks:
                commit(memory, task, ONE)
                assert_sound(memory)
            work_off(memory, ONE)
            assert_sound(memory)
            assert not jobs(memory)


def test_the_first_to_take_over_names_the_scopes_summarizer() -> None:
    with temporary_memory() as memory:
        spoken(memory, 1)
        scope = memory._scope
        with scope.store.read() as db:
            assert scopes.scope_summarizer(db, scope.pk) == "alpha"
        remaking.take_over(scope, "beta")
        say(memory.session("s"), words(9, 3_000))
        assert claim(memory, ONE).other_summarizer == "beta"
        assert work_off(memory, TWO) > 0


def test_what_is_made_anew_is_found_without_scans() -> None:
    ran: dict[str, Statement] = {}

    def note(_cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if sql.split(maxsplit=1)[0] in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            ran.setdefault(sql, Statement(sql, bindings))
        return True

    def watch(db: apsw.Connection) -> None:
        db.exec_trace = note

    apsw.connection_hooks.append(watch)
    try:
        with temporary_memory() as memory:
            session = by_the_default(memory, 5)
            say(session, words(1, 90_000))
            memory.settle()
            ran.clear()
            turn = session.turn("and now?")
            remaking.upgrade(memory._scope, DEFAULT)
            work_off(memory, Author(DEFAULT))
            repair(memory, canonical(session, "0+2"), TWO)
            remaking.stand_ins(memory._scope)
            remaking.take_over(memory._scope, "beta")
            turn.view(session.id)
            turn.search("beta has")
            assert any("node_history" in sql for sql in ran)
            with memory._scope.store.write() as db:
                bad = [f"{line}: {each}" for each in ran.values() for line in scans(db, each.sql, each.bindings)]
        assert not bad, "\n".join(bad)
    finally:
        apsw.connection_hooks.remove(watch)


# ---- verification ----------------------------------------------------------------------------------------------------


def drop_jobs(memory: optchat.Memory) -> None:
    with memory._scope.store.write() as db:
        db.execute("DELETE FROM job WHERE kind = 5")


def remake(memory: optchat.Memory, key: int, author: Author) -> None:
    add_remake(memory, key)
    leased = claim(memory, ONE).tasks
    (task,) = (task for task in leased if task.job.subject == key)
    others = {other.job.job_pk: other.job.fence for other in leased if other is not task}
    work.give_back(memory._scope, others, wait_seconds=5)
    assert commit(memory, task, author)


def faults(memory: optchat.Memory) -> set[tuple[str, str | None]]:
    return {(fault.code, fault.ref) for fault in memory.verify().faults}


def test_a_node_that_does_not_fit_its_inputs_is_a_fault_unless_it_is_to_be_made_anew() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        turn = session.turn(words(0, 3_000))
        turn.assistant(words(1, 3_000))
        turn.end("completed")
        say(session, words(2, 3_000))
        work_off(memory, ONE)
        for number in range(2):  # the first revision, and a later one
            for below, above in (("0+1", "0+2"), ("0+2", "pub:0+2")):
                remake(memory, node(memory, session, below).node_key, Author(f"other{number}"))
                assert names(memory, session, set(jobs(memory))) == {above}
                assert_sound(memory)
                drop_jobs(memory)
                assert faults(memory) == {("INPUTS_CHANGED", canonical(session, above))}
                repair(memory, canonical(session, above), ONE)
                assert_sound(memory)


def test_what_each_node_was_made_of_is_checked() -> None:
    with temporary_memory() as memory:
        session = memory.session("s")
        say(session, words(0, 90_000))
        say(session, words(1, 3_000))
        memory.settle()
        with memory._scope.store.read() as db:
            (pages,) = forest.chunk_trees(db, session._row.segment_pk)
            page = forest.recipes_of_tree(db, pages.tree_pk, after=-1, limit=1)[0][0]
        checked = {
            page: "0+1",
            node(memory, session, "0+1").node_key: "0+1",
            node(memory, session, "1+1").node_key: "1+1",
            node(memory, session, "0+2").node_key: "0+2",
            node(memory, None, "0+1").node_key: "pub:0+1",
            node(memory, None, "0+2").node_key: "pub:0+2",
        }
        for key, ref in checked.items():
            with memory._scope.store.write() as db:
                kept = db.execute("SELECT inputs_sha256 FROM node WHERE node_key = ?", (key,)).get
                db.execute("UPDATE node SET inputs_sha256 = x'00' WHERE node_key = ?", (key,))
            assert faults(memory) == {("INPUTS_CHANGED", canonical(session, ref))}
            with memory._scope.store.write() as db:
                db.execute("UPDATE node SET inputs_sha256 = ? WHERE node_key = ?", (kept, key))
        assert_sound(memory)
