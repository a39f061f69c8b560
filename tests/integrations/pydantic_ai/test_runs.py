"""Runs of every kind as turns: run, run_sync, run_stream, iter; sessions; memory's tools; outcomes; nested agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, capture_run_messages
from pydantic_ai.capabilities import Toolset
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponsePart,
    RetryFeedbackPart,
    SystemPromptPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

import optchat
from optchat import HostMessage, Memory
from optchat.adapters.pydantic_ai import SharedMemory
from optchat.aio import AsyncMemory
from optchat.testing import temporary_memory
from tests.integrations.pydantic_ai.host import (
    BUDGET,
    Script,
    agent,
    call,
    do,
    kinds,
    publish,
    records,
    returns_of,
    turns,
)

pytestmark = [pytest.mark.host]
answer = HostMessage.assistant


@pytest.fixture
def memory() -> Iterator[Memory]:
    with temporary_memory() as memory:
        yield memory


def test_run_gives_the_model_what_another_session_decided(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "We decided against Redis.")
    script = Script.of(answer("ok"))
    do(agent(script, memory, "chat-42"), "Add a queue.")
    (request,) = script.seen
    assert "We decided against Redis." in request.text
    assert request.text.index("We decided against Redis.") < request.text.index("Add a queue.")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_plain_and_awaited_memory_are_taken(memory: Memory, *, is_awaited: bool) -> None:
    publish(memory, "other", "Redis?", "No Redis.")
    script = Script.of(answer("one"), answer("two"))
    host = agent(script, AsyncMemory(memory) if is_awaited else memory, "chat-42")
    do(host, "first")
    do(host, "second")
    assert all("No Redis." in request.text for request in script.seen)
    assert kinds(memory, "chat-42") == ["user", "assistant"] * 2


def test_run_sync(memory: Memory) -> None:
    script = Script.of(answer("one"))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # or the framework makes one, and leaves it open
    try:
        agent(script, memory, "chat-42").run_sync("first")
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


def test_a_later_run_needs_no_history(memory: Memory) -> None:
    script = Script.of(answer("The colour is teal."), answer("Teal."))
    host = agent(script, memory, "chat-42")
    do(host, "Which colour?")
    do(host, "Again?")
    assert "The colour is teal." in script.seen[1].text
    assert script.seen[1].text.count("Again?") == 1


def test_what_is_stored_has_no_word_of_memory_and_keeps_its_prefix(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "No Redis.")
    script = Script.of(call("c1", "memory_search", query="Redis"), answer("one"), answer("two"))
    host = agent(script, memory, "chat-42", system_prompt="Be kind.")
    first = do(host, "first")
    before = first.all_messages_json()
    second = do(host, "second", message_history=first.all_messages())
    assert second.all_messages_json().startswith(before[:-1]), "the stored history's prefix changed"
    assert b"<shared_memory" not in second.all_messages_json()
    assert len(script.seen[2].messages) == 1, "one request goes out: the history is in memory"
    assert "one" in script.seen[2].text


def test_system_prompts_are_kept_and_lead(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "No Redis.")
    script = Script.of(answer("one"), answer("two"))
    host = agent(script, memory, "chat-42", system_prompt="Be kind.", instructions="Be brief.")
    first = do(host, "first")
    do(host, "second", message_history=first.all_messages())
    for request in script.seen:
        (only,) = request.messages
        assert isinstance(only.parts[0], SystemPromptPart)
        assert [part.content for part in only.parts if isinstance(part, SystemPromptPart)] == ["Be kind."]
        assert request.info.instructions == "Be brief."


def test_run_stream_seals_the_whole_answer(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "No Redis.")
    script = Script.of(answer("one two three"))

    async def stream() -> str:
        async with agent(script, memory, "chat-42").run_stream("first") as result:
            return await result.get_output()

    said = asyncio.run(stream())
    assert "No Redis." in script.seen[0].text
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]
    assert records(memory, "chat-42")[-1] == ("assistant", optchat.TextPart(said))


def test_a_streamed_loop_seals_calls_and_results(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "Zanzibar: no Redis.")
    script = Script.of(call("c1", "memory_search", query="Zanzibar"), answer("one two"))

    async def stream() -> str:
        async with agent(script, memory, "chat-42").run_stream("first") as result:
            return await result.get_output()

    asyncio.run(stream())
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]
    assert all("Zanzibar" in request.text for request in script.seen)


def test_events_of_a_stream_are_the_framework_s_own(memory: Memory) -> None:
    script = Script.of(call("c1", "build"), answer("one two"))
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)

    async def events() -> list[str]:
        async with host.run_stream_events("first") as stream:
            return [event.event_kind async for event in stream]

    seen = asyncio.run(events())
    assert {"function_tool_call", "function_tool_result", "agent_run_result"} <= set(seen)
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


def test_a_stream_that_is_left_early_is_interrupted(memory: Memory) -> None:
    script = Script.of(answer("one two three four"), answer("again"))
    host = agent(script, memory, "chat-42")

    async def stream() -> None:
        async with host.run_stream("first") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                break

    asyncio.run(stream())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted"]
    do(host, "second")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted", "completed"]


def test_iter_left_early_is_interrupted_and_to_its_end_completed(memory: Memory) -> None:
    script = Script.of(call("c1", "build"), answer("one"))
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)

    async def leave() -> None:
        async with host.iter("first") as run:
            async for node in run:
                if Agent.is_call_tools_node(node):
                    break

    async def follow() -> None:
        async with host.iter("second") as run:
            async for _ in run:
                pass

    asyncio.run(leave())
    assert kinds(memory, "chat-42") == ["user", "tool_call"]
    asyncio.run(follow())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted", "completed"]


def _build() -> str:
    """Build it."""
    return "built"


_build.__name__ = "build"


def test_the_snapshot_stays_through_the_loop(memory: Memory) -> None:
    async def meanwhile() -> None:
        publish(memory, "other", "Meanwhile?", "Published meanwhile.")

    script = Script.of(call("c1", "build"), answer("one"), answer("two"))
    host = agent(script, memory, "chat-42")

    @host.tool_plain
    async def build() -> str:
        await meanwhile()
        return "built"

    del build
    do(host, "first")
    assert "Published meanwhile." not in script.seen[1].text
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]
    do(host, "second")
    assert "Published meanwhile." in script.seen[2].text


# ---- sessions --------------------------------------------------------------------------------------------------------


@dataclass
class Deps:
    chat: str


def test_one_agent_serves_many_sessions_at_once(memory: Memory) -> None:
    script = Script.of(*[answer(f"answer {number}") for number in range(8)])
    host: Agent[Deps, str] = Agent(
        script.model,
        deps_type=Deps,
        capabilities=[SharedMemory[Deps](memory, BUDGET, session=lambda ctx: ctx.deps.chat)],
    )

    async def both() -> None:
        for round_ in range(2):
            await asyncio.gather(*[host.run(f"round {round_}", deps=Deps(f"chat-{n}")) for n in range(4)])

    asyncio.run(both())
    for number in range(4):
        assert kinds(memory, f"chat-{number}") == ["user", "assistant"] * 2


def test_without_a_session_the_conversation_is_one(memory: Memory) -> None:
    script = Script.of(answer("one"), answer("two"), answer("three"))
    host = agent(script, memory)
    first = do(host, "first", conversation_id="talk-1")
    do(host, "second", message_history=first.all_messages())
    do(host, "else", conversation_id="talk-2")
    assert kinds(memory, "talk-1") == ["user", "assistant"] * 2
    assert kinds(memory, "talk-2") == ["user", "assistant"]


def test_a_run_may_bring_its_own(memory: Memory) -> None:
    script = Script.of(answer("one"))
    host = agent(script, memory, "chat-42")
    do(host, "first", capabilities=[SharedMemory(memory, BUDGET, session="chat-43")])
    assert [info.key for info in memory.sessions()] == ["chat-43"]


def test_an_agent_has_one_shared_memory(memory: Memory) -> None:
    one, other = SharedMemory(memory, BUDGET), SharedMemory(memory, BUDGET)
    with pytest.raises(optchat.BadArgument, match="one SharedMemory"):
        Agent(Script.of().model, capabilities=[one, other])


@pytest.mark.parametrize("session", [7, ""])
def test_a_key_that_is_none_is_refused(memory: Memory, session: Any) -> None:
    with pytest.raises(optchat.BadArgument):
        do(agent(Script.of(answer("one")), memory, session), "first")


def test_a_run_without_a_request_is_refused_before_the_model_is_asked(memory: Memory) -> None:
    script = Script.of(answer("one"))
    with pytest.raises(optchat.BadArgument, match="user's request"):
        do(agent(script, memory, "chat-42", instructions="Speak."), None)
    assert script.seen == []


# ---- memory's tools --------------------------------------------------------------------------------------------------


def test_the_model_calls_memory_s_tools(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "Zanzibar: no Redis.")
    script = Script.of(
        call("c1", "memory_search", query="Zanzibar"), call("c2", "memory_zoom", ref="nonsense"), answer("ok")
    )
    result = do(agent(script, memory, "chat-42"), "Redis?")
    assert {"memory_zoom", "memory_search", "memory_date", "memory_sessions", "memory_work"} <= set(
        script.seen[0].tools
    )
    returns = returns_of(result.all_messages())
    assert [part.outcome for part in returns] == ["success", "failed"], "a model's mistake is said to it, not raised"
    assert "Zanzibar" in str(returns[0].content)
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "tool_call", "tool_result", "assistant"]


def test_a_test_model_may_call_every_tool(memory: Memory) -> None:
    model = TestModel()
    host = Agent(model, capabilities=[SharedMemory(memory, BUDGET, session="chat-42")])
    do(host, "Look round.")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]
    assert kinds(memory, "chat-42").count("tool_call") == 5


# ---- outcomes --------------------------------------------------------------------------------------------------------


def test_a_failed_model_fails_the_turn_and_is_raised(memory: Memory) -> None:
    script = Script.of(call("c1", "build"), RuntimeError("boom"))
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)
    with pytest.raises(RuntimeError, match="boom"):
        do(host, "first")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed"]
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result"]


def test_a_cancelled_run_is_interrupted_and_keeps_the_call(memory: Memory) -> None:
    script = Script.of(call("c1", "slow"), answer("later"))
    host = agent(script, memory, "chat-42")
    started = asyncio.Event()

    @host.tool_plain
    async def slow() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    del slow

    async def cancel() -> None:
        task = asyncio.create_task(host.run("first"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted"]
    assert kinds(memory, "chat-42") == ["user", "tool_call"]
    do(host, "second")
    assert not any(isinstance(part, ToolCallPart) for message in script.seen[1].messages for part in message.parts)


def test_parallel_calls_keep_apart_what_failed(memory: Memory) -> None:
    both: list[ModelResponsePart] = [
        ToolCallPart("build", "{}", "c1"),
        ToolCallPart("broken", "{}", "c2"),
        ToolCallPart("build", "{}", "c3"),
    ]
    script = Script.of(both, answer("one"))
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)

    @host.tool_plain
    def broken() -> str:
        raise ModelRetry("it broke")

    del broken
    do(host, "first")
    found = [part for _, part in records(memory, "chat-42") if isinstance(part, optchat.ToolResultPart)]
    assert [(part.call_id, part.is_error) for part in found] == [("c1", False), ("c2", True), ("c3", False)]


def test_a_retried_call_is_an_error_and_the_next_one_its_own(memory: Memory) -> None:
    script = Script.of(call("c1", "build", x="no number"), call("c2", "build", x=2), answer("built"))
    host = agent(script, memory, "chat-42")

    @host.tool_plain
    def build(x: int) -> str:
        return f"built {x}"

    del build
    result = do(host, "first")
    retried = returns_of(result.all_messages())
    assert [part.outcome for part in retried] == ["retried", "success"]
    found = [part for _, part in records(memory, "chat-42") if isinstance(part, optchat.ToolResultPart)]
    assert [(part.call_id, part.is_error) for part in found] == [("c1", True), ("c2", False)]


def test_an_output_that_is_rejected_is_the_framework_s_word_and_not_the_user_s(memory: Memory) -> None:
    script = Script.of(answer("no"), answer("yes"))
    host = agent(script, memory, "chat-42")

    @host.output_validator
    def check(output: str) -> str:
        if output == "no":
            raise ModelRetry("say yes")
        return output

    del check
    result = do(host, "first")
    assert any(isinstance(part, RetryFeedbackPart) for m in result.all_messages() for part in m.parts)
    assert kinds(memory, "chat-42") == ["user", "assistant", "report", "assistant"]
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]


class City(BaseModel):
    name: str


def test_structured_output_completes_the_turn(memory: Memory) -> None:
    script = Script.of(call("c1", "final_result", name="Basel"), call("c2", "final_result", name="Bern"))
    host = agent(script, memory, "chat-42", output_type=City)
    first = do(host, "Where?")
    assert first.output == City(name="Basel")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]
    do(host, "And now?", message_history=first.all_messages())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"] * 2


def test_retries_that_run_out_fail_the_turn(memory: Memory) -> None:
    script = Script.of(call("c1", "build", x="a"), call("c2", "build", x="b"))
    host = agent(script, memory, "chat-42")

    @host.tool_plain
    def build(x: int) -> str:
        return f"built {x}"

    del build
    with pytest.raises(UnexpectedModelBehavior):
        do(host, "first")
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["failed"]


def test_thinking_passes_through_and_is_never_kept(memory: Memory) -> None:
    thought = ThinkingPart("Zanzibar is what I think of.", id="rs_1", signature="c2lnbmVk", provider_name="openai")
    script = Script.of([thought, ToolCallPart("build", "{}", "c1")], answer("done"))
    host = agent(script, memory, "chat-42")
    host.tool_plain(_build)
    do(host, "first")
    sent = [part for message in script.seen[1].messages for part in message.parts if isinstance(part, ThinkingPart)]
    assert sent == [thought]
    assert "Zanzibar" not in repr(records(memory, "chat-42"))
    assert memory.search("Zanzibar", order="newest").hits == ()


# ---- agents within ---------------------------------------------------------------------------------------------------


def test_an_agent_within_another_leaves_only_its_report(memory: Memory) -> None:
    publish(memory, "other", "Redis?", "No Redis.")
    within = Script.of(answer("musing within"))
    inner = agent(within, memory, "chat-42")
    outer = Script.of(call("c1", "survey"), answer("done"))
    host = agent(outer, memory, "chat-42")

    @host.tool_plain
    async def survey() -> str:
        return "report: " + str((await inner.run("Look.")).output.upper())

    del survey
    do(host, "first")
    assert "No Redis." in within.seen[0].text, "it has its caller's memory"
    assert [str(part) for kind, part in records(memory, "chat-42") if kind == "assistant"] == [
        str(optchat.TextPart("done"))
    ]
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]
    assert "musing within" not in repr(records(memory, "chat-42"))
    assert len(turns(memory, "chat-42")) == 1


def test_an_agent_within_that_has_its_own_session_is_a_turn_of_that(memory: Memory) -> None:
    inner = agent(Script.of(answer("surveyed")), memory, "surveyor")
    host = agent(Script.of(call("c1", "survey"), answer("done")), memory, "chat-42")

    @host.tool_plain
    async def survey() -> str:
        return str((await inner.run("Look.")).output)

    del survey
    do(host, "first")
    assert kinds(memory, "surveyor") == ["user", "assistant"]
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]


def test_a_run_after_one_that_was_left_early_is_a_turn_of_its_own(memory: Memory) -> None:
    script = Script.of(answer("one two"), answer("three"))
    host = agent(script, memory, "chat-42")

    async def both() -> None:
        async with host.iter("first"):
            pass
        await host.run("second")

    asyncio.run(both())
    assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted", "completed"]


# ---- what the run's own list says ------------------------------------------------------------------------------------


def test_messages_captured_of_a_failed_run_are_the_application_s_alone(memory: Memory) -> None:
    script = Script.of(RuntimeError("boom"))
    with capture_run_messages() as captured, pytest.raises(RuntimeError):
        do(agent(script, memory, "chat-42"), "first")
    (only,) = captured
    assert isinstance(only, ModelRequest)
    assert [type(part) for part in only.parts] == [UserPromptPart]


def test_deps_reach_the_application_s_own_hooks(memory: Memory) -> None:
    """Memory is one capability beside others: the application's instructions still see the run's deps."""
    script = Script.of(answer("one"))
    host: Agent[Deps, str] = Agent(
        script.model,
        deps_type=Deps,
        capabilities=[SharedMemory[Deps](memory, BUDGET, session=lambda ctx: ctx.deps.chat)],
    )

    @host.instructions
    def who(ctx: RunContext[Deps]) -> str:
        return f"You are in {ctx.deps.chat}."

    del who
    do(host, "first", deps=Deps("chat-42"))
    assert script.seen[0].info.instructions == "You are in chat-42."


# ---- the application's tools, and what it says meanwhile -------------------------------------------------------------


def test_what_is_enqueued_meanwhile_is_steering_of_the_same_turn(memory: Memory) -> None:
    script = Script.of(call("c1", "build"), answer("one"))
    host = agent(script, memory, "chat-42")

    @host.tool
    def build(ctx: RunContext[Any]) -> str:
        ctx.enqueue("And paint it.")
        return "built"

    del build
    result = do(host, "Build it.")
    assert "And paint it." in script.seen[1].text
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "user", "assistant"]
    do(agent(Script.of(answer("two")), memory, "chat-42"), "Next.", message_history=result.all_messages())
    assert len(turns(memory, "chat-42")) == 2


def test_a_deferred_capability_that_was_opened_stays_open_in_later_runs(memory: Memory) -> None:
    """The framework reads from the messages that are sent what a model has opened."""
    maps = Toolset(FunctionToolset([route]), id="maps", description="Routes.", defer_loading=True)

    def offered(*shared: SharedMemory[Any]) -> list[list[str]]:
        script = Script.of(call("l1", "load_capability", id="maps"), answer("one"), answer("two"))
        host = Agent(script.model, capabilities=[*shared, maps])
        do(host, "second", message_history=do(host, "first").all_messages())
        visible = [
            [tool.name for tool in request.info.function_tools if not tool.name.startswith("memory_")]
            for request in script.seen
        ]
        return [
            *visible,
            sorted(str(request.info.model_request_parameters.revealed_tool_names) for request in script.seen),
        ]

    assert offered(SharedMemory(memory, BUDGET, session="chat-42")) == offered()


def route(to: str) -> str:
    """Find a route."""
    return f"to {to}"


def test_an_agent_of_the_session_within_one_of_another_is_still_within(memory: Memory) -> None:
    inner = agent(Script.of(answer("inner")), memory, "chat-42")
    middle = agent(Script.of(call("m1", "deeper"), answer("middle")), memory, "chat-7")
    outer = agent(Script.of(call("o1", "delegate"), answer("outer")), memory, "chat-42")

    @middle.tool_plain
    async def deeper() -> str:
        return str((await inner.run("go within")).output)

    @outer.tool_plain
    async def delegate() -> str:
        return str((await middle.run("go between")).output)

    del deeper, delegate
    assert do(outer, "go").output == "outer"
    assert kinds(memory, "chat-42") == ["user", "tool_call", "tool_result", "assistant"]
    assert kinds(memory, "chat-7") == ["user", "tool_call", "tool_result", "assistant"]
    assert [turn.outcome for key in ("chat-42", "chat-7") for turn in turns(memory, key)] == ["completed"] * 2
