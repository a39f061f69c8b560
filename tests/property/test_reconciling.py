"""
Laws of reconciliation.

Of the comparison, on contents that often repeat:

1. Kept, skipped and new parts are the whole list, in order.
2. What was sealed as it was told has nothing new; what it has grown by is new, and nothing else.
3. A list is another history exactly if what is sealed is not where it begins; with keys, also if they say so.
4. Sealed from where both agree on, a list is what is stored: again, nothing differs.
5. What was removed is neither missing nor new, wherever the list has it.
6. Where a host may drop some, or all, of turns that did not complete, a list is another history exactly if no choice
   of what was dropped makes what is left its beginning.

Of a session, with turns and notes of its own, now and then a fork, and lists that were edited in every way:

7. After ``resync(messages)`` its transcript is the list; what is kept keeps its record; again, nothing changes.
"""

from __future__ import annotations

from itertools import combinations, count, product
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given, strategies as st

import optchat
from optchat.core.reconciling import (
    Comparison,
    Known,
    Listed,
    Stored,
    candidate_runs,
    compare,
    run_digest,
    run_lengths,
    turn_digests,
)
from optchat.testing import temporary_memory
from tests.property.worlds import FEW


@frozen
class Item:
    """A part: its content, and its key if it has one."""

    content: int
    key: str | None = None


def sha(content: int) -> bytes:
    return bytes([content]) * 32


def listed(items: list[Item], keys: dict[str, int]) -> list[Listed]:
    return [
        Listed(
            number,
            number // 2,
            "assistant",
            (sha(item.content),),
            Known(keys[item.key]) if item.key in keys and item.key is not None else None,
        )
        for number, item in enumerate(items)
    ]


def stored(items: list[Item]) -> list[Stored]:
    return [Stored(seq, seq // 2, "assistant", sha(item.content)) for seq, item in enumerate(items)]


def keys_of(items: list[Item]) -> dict[str, int]:
    return {item.key: seq for seq, item in enumerate(items) if item.key is not None}


def against(held: list[Item], items: list[Item]) -> Comparison:
    return compare(stored(held), listed(items, keys_of(held)))


contents = st.integers(0, 2)


@st.composite
def histories(draw: st.DrawFn, keyed: bool | None = None) -> list[Item]:
    """Items with all, some or no keys, each key once."""
    names = count()
    with_keys = draw(st.sampled_from(("all", "some", "none"))) if keyed is None else ("all" if keyed else "none")
    return [
        Item(
            content, f"k{next(names)}" if with_keys == "all" or (with_keys == "some" and draw(st.booleans())) else None
        )
        for content in draw(st.lists(contents, max_size=8))
    ]


@st.composite
def edits(draw: st.DrawFn, items: list[Item]) -> list[Item]:
    """A history as a host may have it now: messages changed, dropped, put in, moved, or added."""
    edited = list(items)
    fresh = count()
    for _ in range(draw(st.integers(0, 3))):
        what = draw(st.sampled_from(("add", "change", "drop", "insert", "move")))
        place = draw(st.integers(0, max(0, len(edited) - 1)))
        new = Item(draw(contents), f"new{next(fresh)}" if draw(st.booleans()) else None)
        if what == "add" or not edited:
            edited.append(new)
        elif what == "change":
            edited[place] = new if draw(st.booleans()) else Item(draw(contents), edited[place].key)
        elif what == "drop":
            del edited[place]
        elif what == "insert":
            edited.insert(place, new)
        else:
            edited.append(edited.pop(place))
    return edited


pairs = histories().flatmap(lambda items: st.tuples(st.just(items), edits(items)))


@given(pairs)
def test_kept_and_new_parts_are_the_whole_list(pair: tuple[list[Item], list[Item]]) -> None:
    held, items = pair
    found = against(held, items)
    assert sorted([*found.matched, *found.rest]) == list(range(len(items)))
    assert list(found.rest) == sorted(found.rest)
    assert list(found.matched.values()) == sorted(found.matched.values())
    assert not found.matched or max(found.matched) < min(found.rest, default=len(items))
    assert all(seq < found.cut for seq in found.matched.values())


@given(histories(), histories())
def test_a_list_that_has_grown_has_only_that_new(held: list[Item], more: list[Item]) -> None:
    grown = held + [Item(item.content, None if item.key is None else f"more-{item.key}") for item in more]
    found = against(held, grown)
    assert found.divergence is None
    assert list(found.rest) == list(range(len(held), len(grown)))


@given(st.tuples(histories(keyed=False), histories(keyed=False)))
def test_without_keys_a_list_is_another_history_unless_it_begins_with_what_is_sealed(
    pair: tuple[list[Item], list[Item]],
) -> None:
    held, items = pair
    assert (against(held, items).divergence is None) == (items[: len(held)] == held)


@given(pairs)
def test_a_list_without_divergence_names_what_is_sealed_in_order(pair: tuple[list[Item], list[Item]]) -> None:
    held, items = pair
    found = against(held, items)
    if found.divergence is None:
        tail = held[found.beginning :]
        assert [item.content for item in items[: len(tail)]] == [item.content for item in tail]
        assert not keys_of(held).keys() & {item.key for item in items[len(tail) :]}


@given(pairs)
def test_sealed_from_where_both_agree_the_list_is_what_is_stored(pair: tuple[list[Item], list[Item]]) -> None:
    held, items = pair
    found = against(held, items)
    # As the ledger would have it: what is kept keeps the keys that it was sealed under.
    now = held[: found.cut] + [items[part] for part in found.rest]
    again = against(now, items)
    assert again.divergence is None
    assert not again.rest
    assert [item.content for item in now[found.beginning :]] == [item.content for item in items]


@given(st.lists(st.lists(contents, min_size=1, max_size=3), max_size=5), st.data())
def test_a_removed_turn_is_neither_missing_nor_new(turns: list[list[int]], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(turns) - 1)) if turns else st.just(set[int]()))
    still_listed = data.draw(st.booleans())
    forgotten = {digest for turn in gone for digest in turn_digests([("assistant", sha(each)) for each in turns[turn]])}
    held: list[Stored] = []
    for turn, said in enumerate(turns):
        for content in said:
            held.append(Stored(len(held), turn, "assistant", bytes(32) if turn in gone else sha(content), turn in gone))
    told = [content for turn, said in enumerate(turns) for content in said if still_listed or turn not in gone]
    items = listed([Item(content) for content in told], {})
    lengths = {count for turn in gone for count in run_lengths(["assistant"] * len(turns[turn]))}
    runs = frozenset(place for place, digest in candidate_runs(items, lengths).items() if digest in forgotten)
    # A turn that says what a removed one said is told apart by where it stands, as far as it can be.
    if len({tuple(said) for said in turns}) == len(turns) and not _overlap(turns, gone):
        found = compare(held, items, runs)
        assert found.divergence is None
        assert not found.rest


def _overlap(turns: list[list[int]], gone: set[int]) -> bool:
    """Whether a removed turn's contents also stand elsewhere, across the bounds of turns."""
    flat = [content for said in turns for content in said]
    return any(
        sum(flat[first : first + len(turns[turn])] == turns[turn] for first in range(len(flat))) > 1 for turn in gone
    )


def subsets(said: list[int]) -> list[list[int]]:
    """All that may be left of a turn, in order."""
    return [list(left) for count in range(len(said) + 1) for left in combinations(said, count)]


@given(
    st.lists(st.tuples(st.booleans(), st.lists(contents, min_size=1, max_size=3)), max_size=4),
    st.lists(contents, max_size=3),
    st.data(),
)
def test_what_a_host_dropped_of_a_turn_that_did_not_complete_is_no_difference(
    turns: list[tuple[bool, list[int]]], more: list[int], data: st.DataObject
) -> None:
    held: list[Stored] = []
    for turn, (completed, said) in enumerate(turns):
        held += [Stored(len(held) + n, turn, "assistant", sha(c), droppable=not completed) for n, c in enumerate(said)]
    kept = [said if done else [each for each in said if data.draw(st.booleans())] for done, said in turns]
    told = [content for said in kept for content in said]
    if told and data.draw(st.booleans()):  # or it was edited: then this or that choice may still explain it
        told[data.draw(st.integers(0, len(told) - 1))] = data.draw(contents)
    told += more
    ways = product(*(subsets(said) if not done else [said] for done, said in turns))
    left = ([content for said in way for content in said] for way in ways)
    explained = any(each == told[: len(each)] for each in left)

    found = compare(held, listed([Item(content) for content in told], {}))
    assert (found.divergence is None) == explained
    parts = sorted((*found.matched, *found.rest))
    assert parts == list(range(len(told)))
    assert [told[part] for part in sorted(found.matched)] == [held[found.matched[p]].sha256[0] for p in found.matched]
    assert list(found.matched.values()) == sorted(found.matched.values())


def test_a_digest_is_of_the_whole_run() -> None:
    assert turn_digests([("user", sha(1)), ("note", sha(2)), ("assistant", sha(3))]) == (run_digest([sha(1), sha(3)]),)
    assert len(turn_digests([("user", sha(1)), ("report", sha(2))])) == 2
    assert turn_digests([("note", sha(1))]) == ()


# ---- of a session ----------------------------------------------------------------------------------------------------

HostMessage = optchat.HostMessage
Session = optchat.Session[HostMessage]


def said(session: Session, memory: optchat.Memory) -> list[tuple[str, Any]]:
    """A session's present history without what is memory's own: kind and part."""
    info = session.info()
    records = [memory.source(f"session:{info.id}:{info.generation}:{seq}+1") for seq in range(info.length)]
    return [(record.kind, record.part) for record in records if record.kind != "note"]


def told(log: list[HostMessage]) -> list[tuple[str, Any]]:
    kinds = {optchat.ToolCallPart: "tool_call", optchat.ToolResultPart: "tool_result"}
    return [(kinds.get(type(part), message.role), part) for message in log for part in message.parts]


texts = st.sampled_from(("yes", "no", "go on", "long " * 200))


@st.composite
def messages(draw: st.DrawFn, names: Any) -> HostMessage:
    """Any message that may follow any other; some with keys. Call ids are their session's own."""
    name = next(names)
    key = f"key-{name}" if draw(st.integers(0, 3)) == 0 else None
    what = draw(st.sampled_from(("ask", "ask", "answer", "answer", "both", "call", "result")))
    match what:
        case "ask":
            return HostMessage.user(draw(texts), key=key)
        case "answer":
            return HostMessage.assistant(draw(texts), key=key)
        case "both":
            return HostMessage.assistant(draw(texts), [optchat.ToolCallPart(f"call-{name}", "run", "{}")], key=key)
        case "call":
            return HostMessage.assistant("", [optchat.ToolCallPart(f"call-{name}", "run", "{}")], key=key)
        case _:
            return HostMessage.result(f"call-{name}", draw(texts))


@st.composite
def changed(draw: st.DrawFn, log: list[HostMessage], names: Any) -> list[HostMessage]:
    """What the host holds later: more, less, others, or in another order."""
    new = list(log)
    for _ in range(draw(st.integers(0, 2))):
        what = draw(st.sampled_from(("add", "add", "change", "drop", "cut", "move", "insert")))
        place = draw(st.integers(0, max(0, len(new) - 1)))
        if what == "add" or not new:
            new += [draw(messages(names)) for _ in range(draw(st.integers(1, 3)))]
        elif what == "change":
            new[place] = draw(messages(names))
        elif what == "drop":
            del new[place]
        elif what == "cut":
            del new[place:]
        elif what == "move":
            new.append(new.pop(place))
        else:
            new.insert(place, draw(messages(names)))
    return new


@FEW
@given(st.data())
def test_after_a_resync_the_transcript_is_the_list_and_again_nothing_changes(data: st.DataObject) -> None:
    names = count()
    with temporary_memory() as memory:
        session = memory.session("a")
        log: list[HostMessage] = []
        for _ in range(data.draw(st.integers(1, 4))):
            if data.draw(st.booleans()):  # the host's own turn, delivered as it happens
                with session.turn("ask") as turn:
                    log.append(HostMessage.user("ask"))
                    for message in data.draw(st.lists(messages(names), max_size=3)):
                        turn.add(message)
                        log.append(message)
                        if data.draw(st.integers(0, 5)) == 0:
                            session.note("an aside")
            if data.draw(st.integers(0, 3)) == 0:
                session = session.fork(f"fork-{next(names)}")
            before, length = said(session, memory), session.info().length
            log = data.draw(changed(log, names))
            refs = {seq: memory.source(ref).part for seq, ref in _refs(session, length)}
            generation = session.info().generation
            try:
                report = session.reconcile(log)
            except optchat.ResyncNeeded:
                with pytest.raises(optchat.ResyncNeeded):
                    session.turn("now?")
                report = session.resync(log)
            else:
                assert told(log)[: len(before)] == before or any(message.key for message in log)
                assert session.info().generation == generation
            after = said(session, memory)
            assert after[len(after) - len(told(log)) :] == told(log)
            assert report.kept + report.sealed == len(told(log))
            if session.info().generation == generation:
                assert report.retired == 0
            _check_refs(session, memory, generation, refs, report)
            again = session.resync(log)
            assert (again.kept, again.retired, again.sealed, again.turns) == (len(told(log)), 0, 0, 0)
            assert session.reconcile(log) == again
            assert said(session, memory) == after
        assert memory.settle().failures == ()
        assert memory.verify().faults == ()


def _refs(session: Session, length: int) -> list[tuple[int, str]]:
    info = session.info()
    return [(seq, f"session:{info.id}:{info.generation}:{seq}+1") for seq in range(length)]


def _check_refs(
    session: Session, memory: optchat.Memory, generation: int, refs: dict[int, Any], report: optchat.ResyncReport
) -> None:
    """Every ref from before opens the same part; one below the first retired record is of the present history still."""
    gone = [seq for seq in refs if memory.zoom(f"session:{session.id}:{generation}:{seq}+1").superseded]
    for seq, part in refs.items():
        assert memory.source(f"session:{session.id}:{generation}:{seq}+1").part == part
    assert gone == [seq for seq in refs if seq >= min(gone, default=len(refs))]
    assert bool(gone) == (report.retired > 0)
