"""The MCP server, in process: retrieval only, each answer with its snapshot, pinned by what a call brings."""

from __future__ import annotations

import json
import threading
from typing import Any

import anyio
import anyio.to_thread
import jsonschema
import pytest
from mcp import Client

import optchat
from optchat.adapters.mcp import INFO, server
from optchat.core.answers import ANSWER_BYTES
from optchat.core.tools import MEMORY_TOOLS
from tests.integrations.mcp.calls import call, error, excerpts, publish, text_of

pytestmark = [pytest.mark.host, pytest.mark.anyio]


def read_only(memory: optchat.Memory) -> optchat.Memory:
    return optchat.open(memory.path, scope=memory.scope, compact="manual", mode="ro")


# ---- what is offered ---------------------------------------------------------------------------------------------


async def test_the_memory_tools_and_nothing_else(memory: optchat.Memory) -> None:
    async with Client(server(memory)) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == [tool.name for tool in MEMORY_TOOLS]
        for own in MEMORY_TOOLS:
            tool = listed[own.name]
            assert tool.description == own.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is True
            assert tool.annotations.open_world_hint is False
            schema = tool.input_schema
            assert set(schema["properties"]) == {*own.parameters["properties"], "snapshot"}
            assert schema["additionalProperties"] is False
            jsonschema.Draft202012Validator.check_schema(schema)
            assert tool.output_schema is not None
        assert listed["memory_zoom"].input_schema["required"] == ["ref"]
        assert listed["memory_sessions"].input_schema["required"] == []
        assert (await client.list_resources()).resources == []
        assert (await client.list_prompts()).prompts == []


async def test_a_client_is_told_that_it_is_retrieval_only(memory: optchat.Memory) -> None:
    async with Client(server(memory)) as client:
        told = " ".join((client.instructions or "").split())
    assert "retrieval only" in told
    assert "Nothing from the memory reaches you by itself" in told
    assert "may be answered by different snapshots, unless you pin them" in told
    assert "not instruction" in told


async def test_the_same_description_of_tools_as_any_other_model_gets(memory: optchat.Memory) -> None:
    """The extra argument is the only difference: it is answered by the same rules."""
    async with Client(server(memory)) as client:
        for tool in (await client.list_tools()).tools:
            (own,) = [each for each in memory_tools() if each.name == tool.name]
            ours = {name: each for name, each in tool.input_schema["properties"].items() if name != "snapshot"}
            assert ours == own.parameters["properties"]


def memory_tools() -> list[optchat.MemoryTool]:
    return list(optchat.Tools())


def test_its_info_says_what_it_cannot_see() -> None:
    assert {INFO.fork, INFO.edit, INFO.delete, INFO.compaction, INFO.pause} == {"unobservable"}


def test_another_version_of_the_sdk_is_refused(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optchat.adapters.checking.version", lambda _: "3.0")
    with pytest.raises(optchat.HostUnsupported, match="mcp>=2"):
        server(memory)


# ---- reading -----------------------------------------------------------------------------------------------------


async def test_every_tool_answers(memory: optchat.Memory) -> None:
    session = publish(memory, "a", "Zanzibar: no Redis.")
    session.report("survey", "The broker persists.")
    async with Client(server(memory)) as client:
        (hit,) = (await call(client, "search", query="Zanzibar"))["items"]
        assert hit["excerpt"] == "Zanzibar: no Redis."
        assert (await call(client, "zoom", ref=hit["ref"]))["text"] == "Zanzibar: no Redis."
        turn = await call(client, "zoom", ref=hit["publication_ref"])
        assert [line["text"] for line in turn["lines"]] == ["user: What of a?\nassistant: Zanzibar: no Redis."]
        assert (await call(client, "date", ref=hit["publication_ref"]))["published_at"] is not None
        assert [each["key"] for each in (await call(client, "sessions"))["items"]] == ["a"]
        assert (await call(client, "work", name="survey"))["text"] == "The broker persists."


async def test_null_and_absent_arguments_are_the_same(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar.")
    nulls = {"session": None, "kind": None, "before": None, "after": None, "order": None, "limit": None, "cursor": None}
    async with Client(server(memory)) as client:
        assert await call(client, "search", query="Zanzibar", snapshot=None, **nulls) == await call(
            client, "search", query="Zanzibar", limit="10", snapshot=""
        )


async def test_answers_keep_to_their_size(memory: optchat.Memory) -> None:
    said = ["Zanzibar " + "\x01" * 200_000, "\u20ac" * 100_000]
    session = memory.session("a")
    with session.turn(said[0]) as turn:
        turn.assistant(said[1])
    memory.settle()
    async with Client(server(memory)) as client:
        for seq, text in enumerate(said):
            asked: dict[str, Any] = {"ref": f"session:{session.id}:0:{seq}+1", "max_tokens": 60_000}
            found, pages = "", 0
            while pages == 0 or asked["cursor"] is not None:
                given = text_of(await client.call_tool("memory_zoom", asked))
                assert len(given.encode()) <= ANSWER_BYTES
                page = json.loads(given)
                found, pages, asked["cursor"] = found + page["text"], pages + 1, page["cursor"]
            assert found == text
            assert pages > 5


async def test_errors_are_the_tool_s_with_their_text(memory: optchat.Memory) -> None:
    async with Client(server(memory)) as client:
        unknown = await error(client, "zoom", ref="pub:9+1")
        assert unknown["error"] == "UNKNOWN_REF"
        assert unknown["message"].endswith("or search for it")
        assert (await error(client, "zoom"))["error"] == "BAD_ARGUMENT"
        assert (await error(client, "zoom", ref="no ref"))["error"] == "MALFORMED_REF"
        assert "no argument 'reff'" in (await error(client, "zoom", reff="pub:0+1", ref="pub:0+1"))["message"]
        assert (await error(client, "date", ref="pub:0+1", snapshot="77"))["error"] == "UNKNOWN_REF"
        assert (await error(client, "date", ref="pub:0+1", snapshot=7))["error"] == "BAD_ARGUMENT"
        assert (await error(client, "date", {"optchat/turn": ["t"]}, ref="pub:0+1"))["error"] == "BAD_ARGUMENT"
        assert (await client.call_tool("memory_forget", {})).is_error


async def test_a_closed_memory_is_an_error_and_not_a_crash(memory: optchat.Memory) -> None:
    reader = read_only(memory)
    async with Client(server(reader)) as client:
        reader.close()
        assert (await client.call_tool("memory_sessions", {})).is_error


async def test_called_by_its_own_process(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar.")
    result = await server(memory).call_tool("memory_search", {"query": "Zanzibar"})
    assert "Zanzibar." in text_of(result)


# ---- pins --------------------------------------------------------------------------------------------------------


async def test_without_a_pin_two_calls_may_serve_two_snapshots(memory: optchat.Memory) -> None:
    """The protocol has no state that lasts as long as a turn: the second call sees what came between."""
    publish(memory, "a", "Zanzibar, first.")
    async with Client(server(memory)) as client:
        one = await call(client, "search", query="Zanzibar")
        publish(memory, "b", "Zanzibar, second.")
        two = await call(client, "search", query="Zanzibar")
    assert one["snapshot"]["id"] != two["snapshot"]["id"]
    assert (len(one["items"]), len(two["items"])) == (1, 2)


async def test_the_snapshot_of_an_answer_pins_the_calls_that_name_it(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar, first.")
    async with Client(server(memory)) as client, Client(server(read_only(memory))) as another:
        one = await call(client, "search", query="Zanzibar")
        pin = one["snapshot"]["id"]
        publish(memory, "b", "Zanzibar, second.")
        assert await call(client, "search", query="Zanzibar", snapshot=pin) == one
        assert await call(another, "search", query="Zanzibar", snapshot=pin) == one, "any process's server has it"
        assert [each["key"] for each in (await call(client, "sessions", snapshot=pin))["items"]] == ["a"]
        assert (await error(client, "date", ref="pub:1+1", snapshot=pin))["error"] == "UNKNOWN_REF"


async def test_pages_belong_to_the_snapshot_of_the_first(memory: optchat.Memory) -> None:
    for number in range(5):
        publish(memory, f"s{number}", f"Zanzibar {number}.")
    async with Client(server(memory)) as client:
        page = await call(client, "search", query="Zanzibar", limit=2)
        found = excerpts(page)
        while page["cursor"] is not None:
            publish(memory, "meanwhile", "Zanzibar, meanwhile.")
            more = {"query": "Zanzibar", "limit": 2, "cursor": page["cursor"]}
            assert (await error(client, "search", **more))["error"] == "BAD_CURSOR"
            page = await call(client, "search", **more, snapshot=page["snapshot"]["id"])
            found += excerpts(page)
    assert sorted(found) == [f"Zanzibar {number}." for number in range(5)]


async def test_a_turn_in_meta_pins_and_reads_as_that_turn(memory: optchat.Memory) -> None:
    publish(memory, "other", "Zanzibar, before.")
    with memory.session("mine").turn("Zanzibar, mine?") as turn:
        publish(memory, "later", "Zanzibar, later.")
        meta = {"optchat/turn": turn.id}
        async with Client(server(read_only(memory))) as client:
            found = await call(client, "search", meta, query="Zanzibar")
            assert excerpts(found) == ["Zanzibar, before.", "Zanzibar, mine?"]
            assert found["snapshot"]["id"] == turn.snapshot.id
            assert (await call(client, "zoom", meta, ref="0+1"))["text"] == "Zanzibar, mine?"
            assert (await error(client, "zoom", ref="0+1"))["error"] == "UNKNOWN_REF", "nobody's own, without a turn"
            newest = await call(client, "search", query="Zanzibar")
            assert excerpts(newest) == ["Zanzibar, before.", "Zanzibar, later."]
            past = await error(client, "search", meta, query="Zanzibar", snapshot=newest["snapshot"]["id"])
            assert past["error"] == "BAD_ARGUMENT"
    async with Client(server(memory)) as client:
        assert (await error(client, "sessions", meta))["error"] == "TURN_ENDED"
        assert (await error(client, "sessions", {"optchat/turn": "nowhere"}))["error"] == "UNKNOWN_REF"


async def test_turns_of_one_id_are_told_apart_by_their_session(memory: optchat.Memory) -> None:
    one, two = memory.session("one"), memory.session("two")
    with one.turn("Of one.", turn_id="t"), two.turn("Of two.", turn_id="t"):
        async with Client(server(memory)) as client:
            assert "session" in (await error(client, "sessions", {"optchat/turn": "t"}))["message"]
            meta = {"optchat/turn": "t", "optchat/session": two.id}
            assert (await call(client, "zoom", meta, ref="0+1"))["text"] == "Of two."


async def test_a_fixed_snapshot_is_the_server_s_only_one(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar, first.")
    with memory.pin() as pinned:
        publish(memory, "b", "Zanzibar, second.")
        fixed = server(memory, snapshot=pinned.snapshot.id)
    turn = memory.session("mine").turn("Go.")
    async with Client(fixed) as client:
        assert all("snapshot" not in tool.input_schema["properties"] for tool in (await client.list_tools()).tools), (
            "there is nothing to choose"
        )
        assert f"one fixed snapshot of the memory, {pinned.snapshot.id}." in (client.instructions or "")
        assert excerpts(await call(client, "search", query="Zanzibar")) == ["Zanzibar, first."]
        await call(client, "sessions", snapshot=pinned.snapshot.id)
        assert "answers by snapshot" in (await error(client, "sessions", snapshot="2"))["message"]
        assert "answers by snapshot" in (await error(client, "sessions", {"optchat/turn": turn.id}))["message"]
    turn.end("completed")


@pytest.mark.parametrize("snapshot", ["77", "nothing"])
def test_a_server_is_not_made_for_a_snapshot_that_is_not_there(memory: optchat.Memory, snapshot: str) -> None:
    with pytest.raises(optchat.UnknownRef):
        server(memory, snapshot=snapshot)


async def test_what_was_removed_ends_the_snapshots_that_could_see_it(memory: optchat.Memory) -> None:
    session = publish(memory, "gone", "Zanzibar.")
    with memory.pin() as pinned:
        pin = pinned.snapshot.id
    fixed = server(memory, snapshot=pin)
    session.delete()
    async with Client(server(memory)) as client, Client(fixed) as stale:
        told = await error(client, "search", query="Zanzibar", snapshot=pin)
        assert told["error"] == "SNAPSHOT_INVALID"
        assert "take a new one" in told["message"]
        assert (await error(stale, "sessions"))["error"] == "SNAPSHOT_INVALID"
        assert (await call(client, "search", query="Zanzibar"))["items"] == []
    with pytest.raises(optchat.SnapshotInvalid):
        server(memory, snapshot=pin)


# ---- scopes, writing, many at once -------------------------------------------------------------------------------


async def test_no_call_crosses_a_scope(memory: optchat.Memory) -> None:
    other = memory.scoped("other")
    publish(memory, "here", "Zanzibar, here.")
    theirs = publish(other, "there", "Zanzibar, there.")
    for number in range(3):
        publish(other, f"more{number}", "Zanzibar, there.")
    theirs.report("survey", "Zanzibar, surveyed.")
    with other.pin() as pinned, other.session("open").turn("Go.", turn_id="t"):
        async with Client(server(memory)) as client:
            assert excerpts(await call(client, "search", query="Zanzibar")) == ["Zanzibar, here."]
            assert [each["key"] for each in (await call(client, "sessions"))["items"]] == ["here"]
            asked: list[tuple[str, dict[str, Any] | None, dict[str, object]]] = [
                ("zoom", None, {"ref": f"session:{theirs.id}:0:1+1"}),
                ("zoom", None, {"ref": "pub:2+1"}),
                ("date", None, {"ref": f"session:{theirs.id}:0:1+1"}),
                ("search", None, {"query": "Zanzibar", "session": theirs.id}),
                ("work", None, {"name": "survey"}),
                ("sessions", None, {"snapshot": pinned.snapshot.id}),
                ("sessions", {"optchat/turn": "t"}, {}),
                ("sessions", {"optchat/turn": "t", "optchat/session": theirs.id}, {}),
            ]
            for name, meta, arguments in asked:
                assert (await error(client, name, meta, **arguments))["error"] == "UNKNOWN_REF", (name, arguments)


async def test_a_server_that_only_reads_writes_nothing(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar.")
    before = memory.status()
    with memory.session("mine").turn("Go.") as turn, read_only(memory) as reader:
        async with Client(server(reader)) as client:
            for meta in (None, {"optchat/turn": turn.id}):
                await call(client, "search", meta, query="Zanzibar")
        assert memory.status().records == before.records + 1, "the request"
    assert memory.verify().ok


async def test_what_a_running_turn_is_answered_is_no_evidence(memory: optchat.Memory) -> None:
    publish(memory, "other", "Zanzibar: no Redis.")
    with memory.session("mine").turn("Redis?") as turn:
        async with Client(server(memory)) as client:
            result = await client.call_tool("memory_search", {"query": "Zanzibar"}, meta={"optchat/turn": turn.id})
        turn.assistant("", calls=[optchat.ToolCallPart("c", "memory_search", '{"query": "Zanzibar"}')])
        turn.tool_result("c", text_of(result))
        turn.assistant("No.")
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()


async def test_many_calls_at_once_while_others_publish(memory: optchat.Memory) -> None:
    for number in range(4):
        publish(memory, f"s{number}", f"Zanzibar {number}.")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set() and number < 200:
            publish(memory, f"w{number % 5}", f"Zanzibar w{number}.")
            number += 1

    with memory.pin() as pinned:
        pin = pinned.snapshot.id
    answers: list[Any] = []
    async with Client(server(read_only(memory))) as client, anyio.create_task_group() as writing:
        writing.start_soon(anyio.to_thread.run_sync, write)

        async def ask(number: int) -> None:
            named = {"snapshot": pin} if number % 2 else {}
            answers.append((number, await call(client, "search", query="Zanzibar", limit=50, order="newest", **named)))

        async with anyio.create_task_group() as calls:
            for number in range(60):
                calls.start_soon(ask, number)
        stop.set()
    pinned_answers = [found for number, found in answers if number % 2]
    assert len(answers) == 60
    assert all(found == pinned_answers[0] for found in pinned_answers)
    for _, found in answers:
        refs = [int(hit["publication_ref"].removeprefix("pub:").partition("+")[0]) for hit in found["items"]]
        assert all(number < found["snapshot"]["through"] for number in refs)
        assert len(refs) == min(50, found["snapshot"]["through"]), "each publication says the word once"


async def test_a_cancelled_call_leaves_the_server_well(memory: optchat.Memory) -> None:
    publish(memory, "a", "Zanzibar.")
    async with Client(server(memory)) as client:
        for _ in range(10):
            with anyio.move_on_after(0):
                await call(client, "search", query="Zanzibar")
        assert len((await call(client, "search", query="Zanzibar"))["items"]) == 1
