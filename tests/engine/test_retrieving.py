"""Memory tools for callers who hold no turn: what pins them, what they may see, and what is kept of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import optchat
from optchat.memory.retrieving import Retrieval, retrieve
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory


def publish(memory: optchat.Memory, key: str, text: str) -> optchat.Session[optchat.HostMessage]:
    session = memory.session(key)
    with session.turn(f"What of {key}?") as turn:
        turn.assistant(text)
    return session


def answered(found: Retrieval) -> Any:
    assert not found.output.is_error, found.output.text
    parsed = json.loads(found.output.text)
    assert parsed["snapshot"]["id"] == found.snapshot.id
    return parsed


def found_by(memory: optchat.Memory, words: str, **pin: str | None) -> list[str]:
    return [hit["excerpt"] for hit in answered(retrieve(memory, "memory_search", {"query": words}, **pin))["items"]]


def read_only(memory: optchat.Memory) -> optchat.Memory:
    return optchat.open(memory.path, scope=memory.scope, compact="manual", mode="ro")


# ---- what pins ---------------------------------------------------------------------------------------------------


def test_without_a_pin_each_call_has_the_newest_snapshot(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar, first.")
    before = retrieve(memory, "memory_sessions", {})
    assert len(found_by(memory, "Zanzibar")) == 1
    publish(memory, "b", "Zanzibar, second.")
    assert len(found_by(memory, "Zanzibar")) == 2
    assert retrieve(memory, "memory_sessions", {}).snapshot.id != before.snapshot.id


def test_a_snapshot_stays_what_it_was(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar, first.")
    pinned = retrieve(memory, "memory_search", {"query": "Zanzibar"})
    publish(memory, "b", "Zanzibar, second.")
    again = retrieve(memory, "memory_search", {"query": "Zanzibar"}, snapshot=pinned.snapshot.id)
    assert again == pinned
    listed = answered(retrieve(memory, "memory_sessions", {}, snapshot=pinned.snapshot.id))
    assert [item["key"] for item in listed["items"]] == ["a"]
    assert retrieve(memory, "memory_zoom", {"ref": "pub:1+1"}, snapshot=pinned.snapshot.id).output.is_error
    assert not retrieve(memory, "memory_zoom", {"ref": "pub:1+1"}).output.is_error


def test_nobody_is_the_memory_s_owner(memory: optchat.Memory) -> None:
    with memory.session("a").turn("Zanzibar, not published yet."):
        assert len(memory.search("Zanzibar").hits) == 1, "the owner's"
        assert found_by(memory, "Zanzibar") == []


def test_a_cursor_holds_under_its_snapshot(memory: optchat.Memory) -> None:
    for number in range(3):
        publish(memory, f"s{number}", f"Zanzibar {number}.")
    asked = {"query": "Zanzibar", "limit": 2}
    first = answered(retrieve(memory, "memory_search", asked))
    publish(memory, "later", "Zanzibar, later.")
    more = asked | {"cursor": first["cursor"]}
    second = answered(retrieve(memory, "memory_search", more, snapshot=first["snapshot"]["id"]))
    assert len(first["items"]) + len(second["items"]) == 3
    assert "BAD_CURSOR" in retrieve(memory, "memory_search", more).output.text


@pytest.mark.parametrize("snapshot", ["77", "x", "-1", "1.1", "", "9" * 40])
def test_a_snapshot_that_is_not_there(memory: optchat.Memory, snapshot: str) -> None:
    with pytest.raises(optchat.UnknownRef):
        retrieve(memory, "memory_sessions", {}, snapshot=snapshot)


def test_another_scope_s_snapshots_tell_nothing(memory: optchat.Memory) -> None:
    other = memory.scoped("other")
    publish(memory, "a", "Zanzibar, here.")
    for number in range(3):
        publish(other, f"o{number}", "Zanzibar, there.")
    there = retrieve(other, "memory_sessions", {}).snapshot.id
    with pytest.raises(optchat.UnknownRef):
        retrieve(memory, "memory_search", {"query": "Zanzibar"}, snapshot=there)
    assert found_by(memory, "Zanzibar") == ["Zanzibar, here."]
    with other.session("o9").turn("Running.", turn_id="t") as turn, pytest.raises(optchat.UnknownRef):
        retrieve(memory, "memory_sessions", {}, turn=turn.id)
    (ref,) = [hit.ref for hit in other.search("there", limit=1)]
    for name in ("memory_zoom", "memory_date"):
        assert "UNKNOWN_REF" in retrieve(memory, name, {"ref": ref}).output.text


def test_what_was_removed_invalidates_a_snapshot_that_could_see_it(memory: optchat.Memory) -> None:
    before = retrieve(memory, "memory_sessions", {}).snapshot.id
    session = publish(memory, "a", "Zanzibar.")
    pinned = retrieve(memory, "memory_sessions", {}).snapshot.id
    session.delete()
    with pytest.raises(optchat.SnapshotInvalid):
        retrieve(memory, "memory_search", {"query": "Zanzibar"}, snapshot=pinned)
    assert found_by(memory, "Zanzibar") == []
    assert found_by(memory, "Zanzibar", snapshot=before) == []


def test_a_deleted_scope_answers_nothing(memory: optchat.Memory) -> None:
    other = memory.scoped("other")
    publish(other, "a", "Zanzibar.")
    other.delete_scope()
    with pytest.raises(optchat.ConfigError):
        retrieve(other, "memory_search", {"query": "Zanzibar"})


# ---- turns -------------------------------------------------------------------------------------------------------


def test_a_turn_s_pin_answers_and_its_session_is_its_own(memory: optchat.Memory) -> None:
    publish(memory, "other", "Zanzibar, before.")
    with memory.session("mine").turn("Zanzibar, mine?") as turn:
        turn.assistant("", calls=[optchat.ToolCallPart("c", "look", "{}")])
        publish(memory, "later", "Zanzibar, later.")
        with read_only(memory) as reader:
            found = found_by(reader, "Zanzibar", turn=turn.id)
            assert sorted(found) == ["Zanzibar, before.", "Zanzibar, mine?"]
            own = answered(retrieve(reader, "memory_zoom", {"ref": "0+1"}, turn=turn.id))
            assert own["text"] == "Zanzibar, mine?"
            assert own["snapshot"]["id"] == turn.snapshot.id
        turn.tool_result("c", "nothing")
        turn.assistant("Done.")


def test_no_snapshot_looks_past_a_turn_s_pin(memory: optchat.Memory) -> None:
    with memory.session("mine").turn("Go.") as turn:
        publish(memory, "later", "Zanzibar.")
        newer = retrieve(memory, "memory_sessions", {}).snapshot.id
        with pytest.raises(optchat.BadArgument, match="pinned at"):
            retrieve(memory, "memory_search", {"query": "Zanzibar"}, turn=turn.id, snapshot=newer)
        assert found_by(memory, "Zanzibar", turn=turn.id, snapshot=turn.snapshot.id) == []


def test_turns_of_one_id_are_told_apart_by_their_session(memory: optchat.Memory) -> None:
    one, two = memory.session("one"), memory.session("two")
    with one.turn("Of one.", turn_id="t"), two.turn("Of two.", turn_id="t"):
        with pytest.raises(optchat.BadArgument, match="session"):
            retrieve(memory, "memory_zoom", {"ref": "0+1"}, turn="t")
        for session, said in ((one, "Of one."), (two, "Of two.")):
            zoomed = answered(retrieve(memory, "memory_zoom", {"ref": "0+1"}, turn="t", session=session.id))
            assert zoomed["text"] == said
        with pytest.raises(optchat.UnknownRef):
            retrieve(memory, "memory_zoom", {"ref": "0+1"}, turn="t", session="nowhere1")


def test_a_suspended_turn_answers_and_an_ended_one_does_not(memory: optchat.Memory) -> None:
    turn = memory.session("mine").turn("Zanzibar?", turn_id="t")
    turn.suspend()
    assert found_by(memory, "Zanzibar", turn="t") == ["Zanzibar?"]
    with memory.session("mine").resume():
        pass
    with pytest.raises(optchat.TurnEnded) as ended:
        retrieve(memory, "memory_search", {"query": "Zanzibar"}, turn="t")
    assert ended.value.outcome == "interrupted"


def test_a_rewound_turn_that_begins_again_is_the_one_that_is_meant(memory: optchat.Memory) -> None:
    session = memory.session("mine")
    with session.turn("First.", turn_id="t"):
        pass
    session.rewind(before="t")
    with session.turn("Second.", turn_id="t"):
        assert answered(retrieve(memory, "memory_zoom", {"ref": "0:0+1"}, turn="t"))["superseded"]
        assert answered(retrieve(memory, "memory_zoom", {"ref": "1:0+1"}, turn="t"))["text"] == "Second."


def test_an_isolated_session_s_turn_sees_nothing_shared(memory: optchat.Memory) -> None:
    publish(memory, "other", "Zanzibar, shared.")
    with memory.session("alone", isolated=True).turn("Zanzibar, alone?") as turn:
        assert found_by(memory, "Zanzibar", turn=turn.id) == ["Zanzibar, alone?"]


@pytest.mark.parametrize("pin", [{"turn": "nowhere"}, {"session": "nowhere1"}])
def test_a_pin_that_names_nothing(memory: optchat.Memory, pin: dict[str, str]) -> None:
    with pytest.raises((optchat.UnknownRef, optchat.BadArgument)):
        retrieve(memory, "memory_sessions", {}, **pin)


def test_a_removal_is_answered_by_another_pin_where_the_memory_may_be_written(memory: optchat.Memory) -> None:
    gone = publish(memory, "gone", "Zanzibar, gone.")
    publish(memory, "kept", "Zanzibar, kept.")
    turn = memory.session("mine").turn("Go.", turn_id="t")
    gone.delete()
    with read_only(memory) as reader:
        with pytest.raises(optchat.SnapshotInvalid, match="context"):
            retrieve(reader, "memory_search", {"query": "Zanzibar"}, turn="t")
        again = retrieve(open_beside(memory), "memory_search", {"query": "Zanzibar"}, turn="t")
        assert again.snapshot.id == f"{turn.snapshot.id}.1"
        assert [hit["excerpt"] for hit in answered(again)["items"]] == ["Zanzibar, kept."]
        assert retrieve(reader, "memory_search", {"query": "Zanzibar"}, turn="t") == again


@pytest.mark.parametrize("name", ["memory_search", "mcp__memory__memory_search"])
def test_what_a_running_turn_is_answered_is_its_provenance(memory: optchat.Memory, name: str) -> None:
    """By whatever name the host called the tool: a client of several servers puts its own name for one before it."""
    publish(memory, "other", "Zanzibar: no Redis.")
    session = memory.session("mine")
    with session.turn("Redis?") as turn:
        given = retrieve(open_beside(memory), "memory_search", {"query": "Zanzibar"}, turn=turn.id).output
        turn.assistant("", calls=[optchat.ToolCallPart("c", name, '{"query": "Zanzibar"}')])
        turn.tool_result("c", given)
        turn.tool_result("c", given)
        turn.assistant("No.")
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()
    assert memory.zoom(f"session:{session.id}:0:2+1").text == given.text, "it is rendered again"
    assert any(" answered " in line.text for line in memory.view(session.id).lines)
    assert session.info().length == 4
    assert memory.verify().ok


def test_a_memory_that_is_only_read_keeps_nothing_of_it(memory: optchat.Memory) -> None:
    publish(memory, "other", "Zanzibar: no Redis.")
    with memory.session("mine").turn("Redis?") as turn:
        with read_only(memory) as reader:
            given = retrieve(reader, "memory_search", {"query": "Zanzibar"}, turn=turn.id).output
        turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_search", '{"query": "Zanzibar"}')])
        turn.tool_result("c", given)
        turn.assistant("No.")
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits != ()


# ---- calls -------------------------------------------------------------------------------------------------------


def test_only_memory_s_tools(memory: optchat.Memory) -> None:
    with pytest.raises(optchat.BadArgument, match="memory_zoom"):
        retrieve(memory, "memory_forget", {})


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("memory_zoom", {}, "BAD_ARGUMENT"),
        ("memory_zoom", {"ref": 7}, "BAD_ARGUMENT"),
        ("memory_zoom", {"ref": "pub:0+1", "snap": "1"}, "BAD_ARGUMENT"),
        ("memory_zoom", {"ref": "0+1"}, "UNKNOWN_REF"),
        ("memory_zoom", {"ref": "\ud800"}, "MALFORMED_REF"),
        ("memory_search", {"query": "x" * 600}, "BAD_ARGUMENT"),
        ("memory_work", {"name": "\udfff"}, "BAD_ARGUMENT"),
    ],
)
def test_a_model_s_mistake_is_an_answer(
    memory: optchat.Memory, name: str, arguments: dict[str, object], code: str
) -> None:
    given = retrieve(memory, name, arguments).output
    assert given.is_error
    assert json.loads(given.text)["error"] == code
    given.text.encode()  # a lone surrogate would not go out
