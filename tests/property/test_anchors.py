"""
What repeating the last request must not change: a memory that repeats and one that never does show the same.

Both live the same schedule; the second has ``since_bytes=0``, so that each turn is rendered in full. Ids are drawn, so
each memory's own are named by their sessions' keys before anything is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, evolve, field
from hypothesis import given, strategies as st

import optchat
from optchat.testing import Step, play, strategies, temporary_memory
from tests.property.worlds import BUDGET, FEW, POLICIES, World, assert_cover, is_shared, span_of

Turn = optchat.Turn[optchat.HostMessage]
Context = optchat.Context[optchat.HostMessage]
Name = tuple[str, str]

LINE = re.compile(r"^((?:pub:|\d+:)?\d+\+\d+) ?(.*)$")


def worlds(*, lifecycle: bool = True) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        strategies.schedules(max_steps=60, lifecycle=lifecycle),
        st.sampled_from(POLICIES),
        st.sampled_from(("extractive", "deterministic", "failing")),
    )


@define(eq=False)
class Life:
    """A memory that lives a schedule, and the turns of it that are open."""

    memory: optchat.Memory
    schedule: tuple[Step, ...]
    turns: dict[Name, Turn] = field(factory=dict)

    def steps(self) -> Iterator[Step]:
        for step, turn in play(self.memory, self.schedule):
            name = (step.scope, step.session)
            if step.action in ("end", "rewind", "delete"):
                self.turns.pop(name, None)
            elif step.action == "reopen":
                self.turns.clear()
            elif turn is not None:
                self.turns[name] = turn
            yield step

    def named(self, text: str) -> str:
        """Text with the ids of sessions replaced by what both memories call them."""
        for number, info in enumerate(
            sorted(self.memory.sessions(archived=True, limit=200), key=lambda info: info.key)
        ):
            text = text.replace(info.id, f"session-{number}".ljust(8, "-"))
        return text

    def lines(self, context: Context) -> tuple[list[str], list[str]]:
        """The lines of the shared view and of the session's own, wherever they stand."""
        shared: list[str] = []
        own: list[str] = []
        for block in context.blocks:
            if block.kind in ("shared", "session", "since"):
                for line in block.text.splitlines()[1:-1]:
                    (shared if line.startswith("pub:") else own).append(self.named(line))
        return shared, own


@contextmanager
def twins(world: World) -> Iterator[tuple[Life, Life]]:
    """
    The same life in a memory that repeats what it said, and in one that does not.

    One worker: several claim in any order, and where a summarizer fails now and then, the order is in what it made.
    """
    summarizer = world.make_summarizer
    repeats = evolve(world.policy, workers=1)
    never = evolve(repeats, since_bytes=0)
    with (
        temporary_memory(policy=repeats, summarizer=summarizer()) as one,
        temporary_memory(policy=never, summarizer=summarizer()) as other,
    ):
        yield Life(one, world.schedule), Life(other, world.schedule)


def context_of(turn: Turn, budget: optchat.Budget = BUDGET) -> Context | None:
    """The turn's context; None while a call waits for its result, or summaries are due: a partial one adds nothing."""
    try:
        return turn.context(budget, wait_seconds=0)
    except (optchat.ToolProtocolError, optchat.MemoryNotReady):
        return None


def contexts(life: Life) -> Iterator[tuple[Step, Name, Turn, Context]]:
    """The first context of each turn that has one."""
    seen: set[str] = set()
    for step in life.steps():
        for name, turn in list(life.turns.items()):
            context = None if turn.id in seen else context_of(turn)
            if context is not None:
                seen.add(turn.id)
                yield step, name, turn, context


def is_added(context: Context) -> bool:
    return any(block.kind == "since" for block in context.blocks)


def stable(context: Context) -> list[str]:
    return [block.text for block in context.blocks if block.cache]


def assert_covers(context: Context) -> None:
    """Each view whole, in order, without gap or overlap, over all blocks together."""
    refs = context.receipt.refs
    assert_cover([ref for ref in refs if is_shared(ref)], context.receipt.shared_through)
    own, at = [], 0
    for ref in refs:  # the previous exchange comes last and repeats some of it
        if not is_shared(ref) and at < context.receipt.session_through:
            own.append(ref)
            at = span_of(ref).end
    assert_cover(own, context.receipt.session_through)


@FEW
@given(worlds())
def test_what_is_added_shows_what_a_full_rendering_shows(world: World) -> None:
    """Also: nothing retired, superseded or removed is repeated, as a full rendering shows none of it."""
    with twins(world) as (life, other):
        for _, _ in zip(life.steps(), other.steps(), strict=True):
            for name, turn in life.turns.items():
                context, full = context_of(turn), context_of(other.turns[name])
                assert (context is None) == (full is None)
                if context is None or full is None:
                    continue
                assert not is_added(full)
                assert life.lines(context) == other.lines(full)
                assert_covers(context)


@FEW
@given(worlds())
def test_what_is_repeated_is_repeated_byte_for_byte(world: World) -> None:
    with temporary_memory(policy=world.policy, summarizer=world.make_summarizer()) as memory:
        before: dict[str, list[list[str]]] = {}
        for _, _, turn, context in contexts(Life(memory, world.schedule)):
            said = before.setdefault(context_session(context), [])
            if is_added(context):
                assert stable(context)[:-1] in said
                assert context.receipt.repeated_bytes == sum(len(text.encode()) for text in stable(context)[:-1])
            said.append(stable(context))
            again = turn.context(BUDGET)
            assert [block.text for block in again.blocks] == [block.text for block in context.blocks]
            assert again.receipt.repeated_bytes == sum(len(block.text.encode()) for block in context.blocks)


def context_session(context: Context) -> str:
    block = next(block for block in context.blocks if block.kind == "session")
    found = re.match(r'<session_memory session="(\w+)"', block.text)
    assert found is not None
    return found[1]


@FEW
@given(worlds(lifecycle=False), st.integers(1, 400), st.integers(1_200, 4_000))
def test_what_is_added_is_bounded(world: World, since_bytes: int, window: int) -> None:
    policy = evolve(world.policy, since_bytes=since_bytes)
    budget = optchat.Budget(window=window, output=100)
    with temporary_memory(policy=policy, summarizer=world.make_summarizer()) as memory:
        life = Life(memory, world.schedule)
        for _ in life.steps():
            for turn in life.turns.values():
                try:
                    context = turn.context(budget, wait_seconds=0)
                except (optchat.ToolProtocolError, optchat.MemoryNotReady, optchat.ContextTooLarge):
                    continue
                assert context.receipt.tokens.left >= 0
                assert_covers(context)
                if is_added(context):
                    assert len(stable(context)[-1].encode()) <= since_bytes


@FEW
@given(worlds())
def test_another_handle_adds_the_same(world: World) -> None:
    with temporary_memory(policy=world.policy, summarizer=world.make_summarizer()) as memory:
        for _, name, turn, context in contexts(Life(memory, world.schedule)):
            with optchat.open(memory.path, scope=name[0], mode="ro") as other:
                written = rows_of(other, turn)
            assert written == rows_of(memory, turn)
            turn.suspend()
            with optchat.open(
                memory.path,
                scope=name[0],
                compact="manual",
                policy=evolve(world.policy, since_bytes=0, cache_lifetime_seconds=0.0),
            ) as other:
                resumed = other.session(name[1]).resume(turn.id)
                again = resumed.context(BUDGET)
                resumed.suspend()
            memory.scoped(name[0]).session(name[1]).resume(turn.id)
            assert [block.text for block in again.blocks] == [block.text for block in context.blocks]


def rows_of(memory: optchat.Memory, turn: Turn) -> object:
    with memory._scope.store.read() as db:
        return list(db.execute("SELECT * FROM rendering WHERE turn_pk = ? ORDER BY step", (turn._pk,)))


@FEW
@given(worlds(lifecycle=False))
def test_what_is_added_does_not_move_while_others_publish(world: World) -> None:
    with temporary_memory(policy=world.policy, summarizer=world.make_summarizer()) as memory:
        held: dict[str, Context] = {}
        life = Life(memory, world.schedule)
        for _ in life.steps():
            for turn in life.turns.values():
                context = context_of(turn)
                if context is None:
                    continue
                first = held.setdefault(turn.id, context)
                assert [block.text for block in context.blocks] == [block.text for block in first.blocks]
                assert context.receipt.refs == first.receipt.refs


def test_schedules_do_reach_additions() -> None:
    """The laws above speak of something: some drawn lives add, some render in full again after they did."""
    added = again = 0

    @FEW
    @given(worlds())
    def live(world: World) -> None:
        nonlocal added, again
        with temporary_memory(policy=world.policy, summarizer=world.make_summarizer()) as memory:
            seen: set[str] = set()
            for _, _, _, context in contexts(Life(memory, world.schedule)):
                added += is_added(context)
                again += not is_added(context) and context_session(context) in seen
                seen.add(context_session(context))

    live()
    assert added
    assert again
