"""Agents with memory: what becomes of a turn when the run pauses, fails, is cancelled, retried, nested or set back."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    after_agent,
    after_model,
    before_model,
)
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import RunControl, Runtime
from langgraph.types import Command, RetryPolicy, interrupt

import optchat
from optchat.adapters.langchain import MemoryMiddleware
from optchat.adapters.langchain.runs import WATCH
from optchat.adapters.langchain.turns import DrivenTurn
from optchat.aio import AsyncMemory
from optchat.testing import temporary_memory
from optchat.testing.memories import open_beside
from tests.integrations.langchain.host import (
    BUDGET,
    DRIVES,
    TOOLS,
    Drive,
    Fake,
    Script,
    agent,
    ainvoke,
    build,
    call,
    calling,
    invoke,
    outcomes,
    parts,
    publish,
    said,
    session,
    stored,
    thread,
)

pytestmark = pytest.mark.host
T = thread("T")


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory() as memory:
        yield memory
    assert not WATCH._entries, "a run that is over is still watched"  # pyright: ignore[reportPrivateUsage] - nothing else can tell


@pytest.fixture
def saver() -> InMemorySaver:
    return InMemorySaver()


each_way = pytest.mark.parametrize("drive", DRIVES, ids=lambda drive: drive.__name__)
both_ways = pytest.mark.parametrize("drive", [invoke, ainvoke], ids=lambda drive: drive.__name__)


def texts(memory: optchat.Memory, key: str = "T") -> list[str]:
    """What is sealed of a thread, one word a record."""
    found: list[str] = []
    for part in parts(memory, key):
        match part:
            case optchat.TextPart(text) | optchat.ReportPart(_, text):
                found.append(text)
            case optchat.ToolCallPart(call_id, name):
                found.append(f"{call_id}:{name}")
            case optchat.ToolResultPart(call_id, content, failed):
                answer = "".join(item.text for item in content if isinstance(item, optchat.TextPart))
                found.append(f"{call_id}{'!' if failed else '='}{answer}")
    return found


def asked(script: Script, number: int) -> list[str]:
    """The active part of a request: what follows memory."""
    shown = [str(message.content) or "call" for message in script.requests[number]]
    last = max(at for at, text in enumerate(shown) if text.startswith("<"))
    return shown[last + 1 :]


# ---- pauses ----------------------------------------------------------------------------------------------------------


@each_way
def test_an_approval_keeps_one_turn_and_one_snapshot_in_another_process_too(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    publish(memory)
    gate = HumanInTheLoopMiddleware(interrupt_on={"build": True})
    drive(agent(Script.of(calling("c1", "build")), memory, saver, after=[gate]), said("Build."), T)
    assert outcomes(memory, "T") == [None], "it waits"
    publish(memory, "Meanwhile?", "Known only later.")

    beside = open_beside(memory)  # nothing is left of the first but the checkpoint and the file
    script = Script.of("Built.")
    resumed = agent(script, beside, saver, after=[gate])
    drive(resumed, Command(resume={"decisions": [{"type": "approve"}]}), T)
    assert outcomes(memory, "T") == ["completed"]
    assert texts(memory) == ["Build.", "c1:build", "c1=built 0", "Built."]
    (text,) = script.texts
    assert "Zanzibar" in text
    assert "Known only later." not in text, "the snapshot is the one that the turn began with"
    assert asked(script, 0) == ["Build.", "call", "built 0"]


@both_ways
def test_a_call_that_a_human_edits_is_sealed_as_the_state_has_it(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    gate = HumanInTheLoopMiddleware(interrupt_on={"build": True})
    host = agent(Script.of(calling("c1", "build", '{"x": 1}'), "Built."), memory, saver, after=[gate])
    drive(host, said("Build."), T)
    edited = {"type": "edit", "edited_action": {"name": "build", "args": {"x": 7}}}
    drive(host, Command(resume={"decisions": [edited]}), T)
    (made,) = [part for part in parts(memory, "T") if isinstance(part, optchat.ToolCallPart)]
    (kept,) = [message.tool_calls[0] for message in stored(host, T) if getattr(message, "tool_calls", None)]
    assert json.loads(made.arguments) == kept["args"]  # as edited in older versions, as the model made it in newer ones
    assert "built 7" in next(text for text in texts(memory) if text.startswith("c1=")), "what the human chose was done"
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_a_middleware_before_memory_that_changes_what_is_sealed_is_told(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @after_model
    def correct(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del runtime
        (*_, last) = state["messages"]
        return {"messages": [AIMessage("No.", id=last.id)]} if last.content == "Yes." else None

    script = Script.of("Yes.")
    ordered: list[Any] = [correct, MemoryMiddleware(memory, BUDGET)]
    with pytest.raises(optchat.ConfigError, match="put MemoryMiddleware first"):
        drive(agent_of(script, saver, ordered), said("Redis?"), T)
    assert outcomes(memory, "T") == ["failed"]


@both_ways
def test_memory_first_seals_what_the_others_have_made_of_it(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @after_model
    def correct(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del runtime
        (*_, last) = state["messages"]
        return {"messages": [AIMessage("No.", id=last.id)]} if last.content == "Yes." else None

    drive(agent(Script.of("Yes."), memory, saver, after=[correct]), said("Redis?"), T)
    assert texts(memory) == ["Redis?", "No."]
    assert outcomes(memory, "T") == ["completed"]


def agent_of(script: Script, saver: Any, middleware: list[Any]) -> Any:
    from langchain.agents import create_agent

    return create_agent(Fake(script=script), TOOLS, middleware=middleware, checkpointer=saver)


@both_ways
def test_a_tool_may_ask_and_its_neighbour_has_answered(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    both = AIMessage("", tool_calls=[call("c1", "build"), call("c2", "approve")])
    host = agent(Script.of(both, "Shipped."), memory, saver)
    drive(host, said("Ship."), T)
    assert outcomes(memory, "T") == [None]
    again = agent(Script.of("Shipped."), open_beside(memory), saver)
    drive(again, Command(resume="yes"), T)
    assert texts(memory) == ["Ship.", "c1:build", "c2:approve", "c1=built 0", "c2=approved: yes", "Shipped."]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_a_tool_that_fails_after_the_answer_fails_the_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @tool
    def deploy() -> str:
        """Ask, and fail."""
        raise RuntimeError(str(interrupt("sure?")))

    drive(agent(Script.of(calling("c1", "deploy")), memory, saver, tools=[deploy]), said("Deploy."), T)
    assert outcomes(memory, "T") == [None]
    with pytest.raises(RuntimeError, match="yes"):
        drive(agent(Script.of(), open_beside(memory), saver, tools=[deploy]), Command(resume="yes"), T)
    assert outcomes(memory, "T") == ["failed"]


@both_ways
def test_a_breakpoint_is_a_pause(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of(calling("c1", "build"), "Built.")
    host = agent(script, memory, saver, interrupt_before=["tools"])
    drive(host, said("Build."), T)
    assert outcomes(memory, "T") == [None]
    publish(memory, "Meanwhile?", "Known only later.")
    drive(host, None, T)
    assert outcomes(memory, "T") == ["completed"]
    assert "Known only later." not in "".join(script.texts)


@both_ways
def test_a_new_message_instead_of_an_answer_ends_the_paused_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    gate = HumanInTheLoopMiddleware(interrupt_on={"build": True})
    script = Script.of(calling("c1", "build"), "Never mind.")
    host = agent(script, memory, saver, after=[gate])
    drive(host, said("Build."), T)
    drive(host, said("Stop."), T)
    assert outcomes(memory, "T") == ["interrupted", "completed"]
    assert asked(script, 1) == ["Stop."], "the call that nobody answered is not sent again"
    assert "c1:build" in texts(memory), "but it was made"


@both_ways
def test_a_call_that_was_edited_in_the_state_begins_the_turn_anew(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    host = agent(Script.of(calling("c1", "build", '{"x": 1}'), "Built."), memory, saver, interrupt_before=["tools"])
    drive(host, said("Build."), T)
    (made,) = [message for message in stored(host, T) if isinstance(message, AIMessage)]
    host.update_state(T, {"messages": [AIMessage("", id=made.id, tool_calls=[call("c1", "build", '{"x": 7}')])]})
    drive(host, None, T)
    assert texts(memory) == ["Build.", "c1:build", "c1=built 7", "Built."]
    assert parts(memory, "T")[1].arguments == '{"x": 7}'
    assert outcomes(memory, "T") == ["completed"]


# ---- failures, cancellations, retries --------------------------------------------------------------------------------


@each_way
def test_a_failed_turn_leaves_its_request_behind_and_the_next_does_not_send_it(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    script = Script.of(RuntimeError("out"), "Fine.")
    host = agent(script, memory, saver)
    with pytest.raises(RuntimeError, match="out"):
        drive(host, said("First."), T)
    drive(host, said("Second."), T)
    assert [message.content for message in stored(host, T)] == ["First.", "Second.", "Fine."], "the host's own list"
    assert asked(script, 1) == ["Second."]
    assert outcomes(memory, "T") == ["failed", "completed"]
    assert texts(memory) == ["First.", "Second.", "Fine."]


@each_way
def test_going_on_after_a_failure_is_the_turn_anew(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of(calling("c1", "build"), RuntimeError("out"), "Built.")
    host = agent(script, memory, saver)
    with pytest.raises(RuntimeError, match="out"):
        drive(host, said("Build."), T)
    assert outcomes(memory, "T") == ["failed"]
    drive(host, None, T)  # from the last checkpoint on
    assert outcomes(memory, "T") == ["completed"]
    assert texts(memory) == ["Build.", "c1:build", "c1=built 0", "Built."]
    drive(agent(Script.of("Yes."), memory, saver), said("Done?"), T)
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_a_result_whose_neighbour_failed_is_kept(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    done = threading.Event()

    @tool
    def first() -> str:
        """Answer."""
        done.set()
        return "answered"

    @tool
    def second() -> str:
        """Fail, after the other."""
        assert done.wait(20)
        raise RuntimeError("broke")

    both = AIMessage("", tool_calls=[call("c1", "first"), call("c2", "second")])
    script = Script.of(both, "Fine.")
    host = agent(script, memory, saver, tools=[first, second])
    with pytest.raises(RuntimeError, match="broke"):
        drive(host, said("Both."), T)
    assert outcomes(memory, "T") == ["failed"]
    assert texts(memory) == ["Both.", "c1:first", "c2:second", "c1=answered"]
    drive(host, said("And now?"), T)
    assert asked(script, 1) == ["And now?"]
    assert outcomes(memory, "T") == ["failed", "completed"]


@both_ways
def test_parallel_calls_keep_apart_an_error_that_the_model_is_told(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    both = AIMessage("", tool_calls=[call("c1", "build"), call("c2", "build", '{"x": "seven"}')])
    drive(agent(Script.of(both, "Half."), memory, saver), said("Build."), T)
    results = [part for part in parts(memory, "T") if isinstance(part, optchat.ToolResultPart)]
    assert [(part.call_id, part.is_error) for part in results] == [("c1", False), ("c2", True)]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_retries_are_one_turn(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of(RuntimeError("once"), RuntimeError("twice"), "Third time.")
    retry = ModelRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    drive(agent(script, memory, saver, after=[retry]), said("Try."), T)
    assert outcomes(memory, "T") == ["completed"]
    assert texts(memory) == ["Try.", "Third time."]
    assert len(set(script.texts)) == 1, "each attempt is the same request"


def test_a_keyboard_interrupt_interrupts(memory: optchat.Memory, saver: InMemorySaver) -> None:
    with pytest.raises(KeyboardInterrupt):
        agent(Script.of(KeyboardInterrupt()), memory, saver).invoke(said("Go."), T)
    assert outcomes(memory, "T") == ["interrupted"]


def test_a_stream_that_is_left_is_interrupted(memory: optchat.Memory, saver: InMemorySaver) -> None:
    host = agent(Script.of(calling("c1", "build"), "Built."), memory, saver)
    chunks = host.stream(said("Build."), T, stream_mode="updates")
    for chunk in chunks:
        if "model" in chunk:
            break
    chunks.close()
    assert outcomes(memory, "T") == ["interrupted"]


def test_an_awaited_stream_that_is_left_is_interrupted(memory: optchat.Memory, saver: InMemorySaver) -> None:
    host = agent(Script.of(calling("c1", "build"), "Built."), memory, saver)

    async def run() -> None:
        async with aclosing(host.astream(said("Build."), T, stream_mode="updates")) as chunks:
            async for chunk in chunks:
                if "model" in chunk:
                    break

    asyncio.run(run())
    assert outcomes(memory, "T") == ["interrupted"]


@both_ways
def test_another_middleware_that_ends_the_run_makes_no_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @before_model(can_jump_to=["end"])
    def guard(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del runtime
        if "secret" in str(state["messages"][-1].content):
            return {"messages": [AIMessage("I must not.")], "jump_to": "end"}
        return None

    script = Script.of("Fine.")
    host = agent(script, memory, saver, after=[guard])
    drive(host, said("Tell a secret."), T)
    assert not memory.sessions().items
    drive(host, said("Hello."), T)
    assert asked(script, 0) == ["Hello."]
    assert texts(memory) == ["Tell a secret.", "I must not.", "Hello.", "Fine."], "it was said, and is caught up with"


# ---- the transcript --------------------------------------------------------------------------------------------------


@both_ways
def test_the_state_keeps_its_messages_and_shows_no_mark(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    publish(memory)
    host = agent(Script.of(calling("c1", "build"), "Built."), memory, saver)
    shown = drive(host, said("Build."), T)
    assert set(shown) == {"messages"}
    assert [type(message).__name__ for message in stored(host, T)] == [
        "HumanMessage",
        "AIMessage",
        "ToolMessage",
        "AIMessage",
    ]
    assert "Zanzibar" not in str(host.get_state(T).values)


@both_ways
def test_reasoning_goes_back_as_the_same_object_and_is_not_kept(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    thought = AIMessage(
        [{"type": "thinking", "thinking": "Zanzibar!", "signature": "c2ln"}, {"type": "text", "text": "I build."}],
        tool_calls=[call("c1", "build")],
        additional_kwargs={"reasoning_content": "Zanzibar?"},
        response_metadata={"model_provider": "anthropic"},
    )
    before = thought.model_dump_json(exclude={"id"})
    script = Script.of(thought, "Built.")
    drive(agent(script, memory, saver), said("Build."), T)
    sent = script.requests[1][-2]
    assert sent.model_dump_json(exclude={"id"}) == before
    assert "I build." in texts(memory)
    assert "Zanzibar" not in str(texts(memory))
    assert memory.search("Zanzibar", order="newest").hits == ()


@both_ways
def test_steering_is_the_turn_s_and_stands_where_it_came(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @before_model
    def steer(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del runtime
        return {"messages": [HumanMessage("Faster.")]} if isinstance(state["messages"][-1], ToolMessage) else None

    script = Script.of(calling("c1", "build"), "Built.", "Next.")
    host = agent(script, memory, saver, after=[steer])
    drive(host, said("Build."), T)
    drive(host, said("More."), T)
    assert asked(script, 1) == ["Build.", "call", "built 0", "Faster."]
    assert asked(script, 2) == ["More."]
    assert texts(memory) == ["Build.", "c1:build", "c1=built 0", "Faster.", "Built.", "More.", "Next."]
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_call_ids_come_again_in_each_turn(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    for number in range(3):
        script = Script.of(calling("c1", "build", f'{{"x": {number}}}'), "Built.")
        drive(agent(script, memory, saver), said("Build."), T)
        assert asked(script, 1) == ["Build.", "call", f"built {number}"]
    assert [text for text in texts(memory) if "=" in text] == ["c1=built 0", "c1=built 1", "c1=built 2"]


@both_ways
def test_what_another_middleware_redacts_is_never_sealed(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    redact = PIIMiddleware("email", strategy="redact")
    drive(agent(Script.of("Noted."), memory, saver, after=[redact]), said("I am jo@example.com, hello."), T)
    assert texts(memory) == ["I am [REDACTED_EMAIL], hello.", "Noted."]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_memory_tools_are_called_by_the_model(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    publish(memory)
    search = calling("c1", "memory_search", '{"query": "Zanzibar"}')
    wrong = calling("c2", "memory_zoom", '{"ref": "pub:77+1"}')
    script = Script.of(search, wrong, "No Redis.")
    host = agent(script, memory, saver)
    drive(host, said("Redis?"), T)
    found, refused = [message for message in stored(host, T) if isinstance(message, ToolMessage)]
    assert "Zanzibar" in str(found.content)
    assert (found.status, refused.status) == ("success", "error")
    assert {f"memory_{verb}" for verb in ("search", "zoom", "date", "sessions", "work")} <= set(script.bound)
    assert memory.search("Zanzibar", kind="tool_result", order="newest").hits == ()
    drive(agent(Script.of("Still not."), memory, saver), said("Sure?"), T)  # the answers are what was sealed of them
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_a_tool_that_gives_the_answer_completes_the_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    @tool(return_direct=True)
    def answer() -> str:
        """The answer."""
        return "42"

    drive(agent(Script.of(calling("c1", "answer")), memory, saver, tools=[answer]), said("What?"), T)
    assert texts(memory) == ["What?", "c1:answer", "c1=42"]
    assert outcomes(memory, "T") == ["completed"]


# ---- history ---------------------------------------------------------------------------------------------------------


@both_ways
def test_a_summary_in_place_of_messages_is_no_source(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    inner = Script.of(*["A summary of what was said." for _ in range(9)])
    compact = SummarizationMiddleware(Fake(script=inner), trigger=("messages", 4), keep=("messages", 2))
    for number in range(4):
        script = Script.of(f"Answer {number}.")
        host = agent(script, memory, saver, after=[compact])
        drive(host, said(f"Question {number}."), T)
        assert asked(script, 0) == [f"Question {number}."]
    assert inner.requests, "the host did summarise"
    assert any("A summary of what was said." in str(message.content) for message in stored(host, T))
    assert texts(memory) == [f"{word} {n}." for n in range(4) for word in ("Question", "Answer")]
    assert outcomes(memory, "T") == ["completed"] * 4


@both_ways
def test_a_summary_within_a_turn_keeps_what_follows(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    inner = Script.of(*["A summary of the turn." for _ in range(9)])
    compact = SummarizationMiddleware(Fake(script=inner), trigger=("messages", 5), keep=("messages", 2))
    steps = [calling(f"c{number}", "build", f'{{"x": {number}}}') for number in range(4)]
    script = Script.of(*steps, "Built.", "Yes.")
    host = agent(script, memory, saver, after=[compact])
    drive(host, said("Build four."), T)
    assert inner.requests, "the host did summarise"
    assert "A summary of the turn." in asked(script, 4)[0]
    results = [f"c{number}={word}" for number in range(4) for word in [f"built {number}"]]
    assert [text for text in texts(memory) if "=" in text] == results, "all of it was sealed, and once"
    assert outcomes(memory, "T") == ["completed"]
    drive(host, said("Done?"), T)
    assert asked(script, 5) == ["Done?"]
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_a_message_that_was_deleted_is_noticed(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of("One.", "Two.", "Three.")
    host = agent(script, memory, saver)
    drive(host, said("First."), T)
    drive(host, said("Second."), T)
    middle = stored(host, T)[1]
    host.update_state(T, {"messages": [RemoveMessage(id=str(middle.id))]})
    with pytest.raises(optchat.ResyncNeeded, match="resync"):
        drive(host, said("Third."), T)
    assert len(script.requests) == 2, "the model was not asked"
    kept = [message for message in stored(host, T) if message.content != "Third."]
    session(memory, "T").resync(kept)
    drive(host, said("Third, again."), T)
    assert outcomes(memory, "T")[-1] == "completed"


@both_ways
def test_going_back_to_an_older_checkpoint_is_followed(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    script = Script.of("One.", "Two.", "Two, otherwise.")
    host = agent(script, memory, saver)
    drive(host, said("First."), T)
    older = host.get_state(T).config
    drive(host, said("Second."), T)
    drive(host, said("Second, otherwise."), older)
    assert texts(memory) == ["First.", "One.", "Second, otherwise.", "Two, otherwise."]
    assert asked(script, 2) == ["Second, otherwise."]
    assert "Two." not in script.texts[2], "what was gone back on is no memory"
    assert session(memory, "T").info().generation == 1


@both_ways
def test_going_back_into_a_turn_begins_it_anew(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of("One.", calling("c1", "build"), "Built.", "After.", "Built otherwise.")
    host = agent(script, memory, saver)
    drive(host, said("First."), T)
    drive(host, said("Build."), T)
    drive(host, said("And after?"), T)
    within = next(
        state.config
        for state in host.get_state_history(T)
        if state.next == ("model",) and isinstance(state.values["messages"][-1], ToolMessage)
    )
    drive(host, None, within)
    assert texts(memory) == ["First.", "One.", "Build.", "c1:build", "c1=built 0", "Built otherwise."]
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_a_note_between_turns_stays(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    script = Script.of("One.", "Two.")
    host = agent(script, memory, saver)
    drive(host, said("First."), T)
    session(memory, "T").note("The broker moves on Friday.")
    drive(host, said("Second."), T)
    assert "The broker moves on Friday." in texts(memory)
    assert "The broker moves on Friday." in script.texts[1]


@both_ways
def test_a_thread_that_was_there_before_memory_is_taken_over(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    plain: Any = create_agent(Fake(script=Script.of("One.")), [build], checkpointer=saver)
    drive(plain, said("First."), T)
    script = Script.of("Two.")
    drive(agent(script, memory, saver), said("Second."), T)
    assert texts(memory) == ["First.", "One.", "Second.", "Two."]
    assert asked(script, 0) == ["Second."]
    assert "One." in script.texts[0], "as memory"


@both_ways
def test_without_a_checkpointer_the_last_message_is_the_turn(memory: optchat.Memory, drive: Drive) -> None:
    script = Script.of("One.", "Two.")
    host = agent(script, memory)
    drive(host, said("First."), T)
    whole = {
        "messages": [("user", "First."), ("ai", "One."), ("user", "Second.")]
    }  # as a program keeps it, without ids
    drive(host, whole, T)
    assert asked(script, 1) == ["Second."]
    assert texts(memory) == ["First.", "One.", "Second.", "Two."]


# ---- graphs ----------------------------------------------------------------------------------------------------------


def graph_of(*hosts: Any, saver: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    before = START
    for number, host in enumerate(hosts):
        builder.add_node(f"agent-{number}", host)
        builder.add_edge(before, f"agent-{number}")
        before = f"agent-{number}"
    return builder.compile(checkpointer=saver)


@both_ways
def test_an_agent_may_be_a_node_of_a_graph(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    publish(memory)
    script = Script.of(calling("c1", "build"), "Built.", "Again.")
    graph = graph_of(agent(script, memory), saver=saver)
    drive(graph, said("Build."), T)
    drive(graph, said("More."), T)
    assert texts(memory) == ["Build.", "c1:build", "c1=built 0", "Built.", "More.", "Again."]
    assert outcomes(memory, "T") == ["completed", "completed"]
    assert asked(script, 2) == ["More."]


@both_ways
def test_agents_one_after_another_are_one_turn(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    first, second = Script.of("A plan."), Script.of(calling("c1", "build"), "Built by plan.")
    graph = graph_of(agent(first, memory), agent(second, memory), saver=saver)
    drive(graph, said("Build."), T)
    assert texts(memory) == ["Build.", "A plan.", "c1:build", "c1=built 0", "Built by plan."]
    assert asked(second, 0) == ["Build.", "A plan."]
    assert outcomes(memory, "T") == ["completed"]


def asking(sync: Callable[[Any], Any], awaited: Callable[[Any], Any]) -> RunnableLambda[Any, Any]:
    """A node's function that asks agents itself, in either kind of run."""
    return RunnableLambda(sync, awaited)


@both_ways
def test_agents_that_one_node_asks_one_after_another_are_one_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    first, second = Script.of("A plan.", "Another."), Script.of("Built by plan.", "Built again.")
    one, other = agent(first, memory), agent(second, memory)

    def node(state: MessagesState) -> Any:
        return other.invoke({"messages": one.invoke({"messages": state["messages"]})["messages"]})

    async def node_async(state: MessagesState) -> Any:
        planned = await one.ainvoke({"messages": state["messages"]})
        return await other.ainvoke({"messages": planned["messages"]})

    graph = graph_of(asking(node, node_async), saver=saver)
    drive(graph, said("Build."), T)
    drive(graph, said("Again."), T)
    assert texts(memory) == ["Build.", "A plan.", "Built by plan.", "Again.", "Another.", "Built again."]
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
def test_a_node_that_is_retried_is_one_turn(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    host = agent(Script.of(ConnectionError("down"), "Built.", "Next."), memory)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("n", host, retry_policy=RetryPolicy(initial_interval=0.01, max_attempts=2))
    graph.add_edge(START, "n")
    graph = graph.compile(checkpointer=saver)
    drive(graph, said("Build."), T)
    assert texts(memory) == ["Build.", "Built."]
    assert outcomes(memory, "T") == ["completed"]
    drive(graph, said("More."), T)
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_that_one_run_asks_twice_has_two_turns(memory: optchat.Memory, drive: Drive, *, kept: bool) -> None:
    script = Script.of("One.", "Two.", "Three.")
    worker = agent(script, memory, InMemorySaver() if kept else None)

    def node(state: MessagesState) -> Any:
        del state
        worker.invoke(said("First?"), thread("W"))
        return {"messages": worker.invoke(said("Second?"), thread("W"))["messages"][-1:]}

    async def node_async(state: MessagesState) -> Any:
        del state
        await worker.ainvoke(said("First?"), thread("W"))
        answer = await worker.ainvoke(said("Second?"), thread("W"))
        return {"messages": answer["messages"][-1:]}

    drive(graph_of(asking(node, node_async), saver=None), said("Ask."), T)
    assert texts(memory, "W") == ["First?", "One.", "Second?", "Two."]
    assert outcomes(memory, "W") == ["completed", "completed"]
    assert "One." in script.texts[1], "as memory"
    drive(worker, said("Third?"), thread("W"))
    assert texts(memory, "W")[-2:] == ["Third?", "Three."]
    assert outcomes(memory, "W") == ["completed"] * 3


def worker_by_tool(worker: Any) -> Any:
    """A tool that asks an agent in a session of its own."""

    def ask(question: str) -> str:
        """Ask."""
        return str(worker.invoke(said(question), thread("W"))["messages"][-1].content)

    async def ask_async(question: str) -> str:
        """Ask."""
        return str((await worker.ainvoke(said(question), thread("W")))["messages"][-1].content)

    return StructuredTool.from_function(ask, ask_async, "ask")


@both_ways
def test_a_worker_behind_a_tool_has_a_turn_for_each_call(memory: optchat.Memory, drive: Drive) -> None:
    ask = worker_by_tool(agent(Script.of("One.", "Two."), memory))
    steps = [calling("c1", "ask", '{"question": "First?"}'), calling("c2", "ask", '{"question": "Second?"}'), "Done."]
    drive(agent(Script.of(*steps), memory, tools=[ask]), said("Ask."), T)
    assert texts(memory, "W") == ["First?", "One.", "Second?", "Two."]
    assert outcomes(memory, "W") == ["completed", "completed"]
    assert texts(memory) == ["Ask.", "c1:ask", "c1=One.", "c2:ask", "c2=Two.", "Done."]


@both_ways
def test_calls_of_one_session_side_by_side_are_refused(memory: optchat.Memory, drive: Drive) -> None:
    barrier = threading.Barrier(2, timeout=20)
    entered, arrived = list[str](), asyncio.Event()

    class Both(MemoryMiddleware):
        """Both agents begin before either asks its model."""

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            barrier.wait()
            return super().wrap_model_call(request, handler)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            entered.append("")
            if len(entered) == 2:
                arrived.set()
            await arrived.wait()
            return await super().awrap_model_call(request, handler)

    ask = worker_by_tool(agent(Script.of("One.", "Two."), memory, middleware=Both(memory, BUDGET)))
    both = AIMessage(
        "", tool_calls=[call("c1", "ask", '{"question": "First?"}'), call("c2", "ask", '{"question": "Second?"}')]
    )
    with pytest.raises(optchat.ConfigError, match="side by side"):
        drive(agent(Script.of(both, "Never."), memory, tools=[ask]), said("Ask."), T)


@both_ways
def test_a_failure_that_a_tool_catches_fails_the_worker_s_turn(memory: optchat.Memory, drive: Drive) -> None:
    worker = agent(Script.of(RuntimeError("down"), "Two."), memory)

    def ask(question: str) -> str:
        """Ask."""
        try:
            return str(worker.invoke(said(question), thread("W"))["messages"][-1].content)
        except RuntimeError:
            return "unavailable"

    async def ask_async(question: str) -> str:
        """Ask."""
        try:
            return str((await worker.ainvoke(said(question), thread("W")))["messages"][-1].content)
        except RuntimeError:
            return "unavailable"

    tools = [StructuredTool.from_function(ask, ask_async, "ask")]
    steps = [calling("c1", "ask", '{"question": "First?"}'), "Done."]
    drive(agent(Script.of(*steps), memory, tools=tools), said("Ask."), T)
    assert outcomes(memory, "W") == ["failed"]
    steps = [calling("c1", "ask", '{"question": "Second?"}'), "Done."]
    drive(agent(Script.of(*steps), memory, tools=tools), said("Ask."), T)
    assert texts(memory, "W") == ["First?", "Second?", "Two."]
    assert outcomes(memory, "W") == ["failed", "completed"]
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
@pytest.mark.parametrize("again", [True, False])
def test_a_failure_that_a_node_catches(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive, *, again: bool
) -> None:
    worker = agent(Script.of(RuntimeError("down"), "One."), memory)

    def node(state: MessagesState) -> Any:
        try:
            return worker.invoke({"messages": state["messages"]})
        except RuntimeError:
            return worker.invoke({"messages": state["messages"]}) if again else {"messages": [AIMessage("Sorry.")]}

    async def node_async(state: MessagesState) -> Any:
        try:
            return await worker.ainvoke({"messages": state["messages"]})
        except RuntimeError:
            if not again:
                return {"messages": [AIMessage("Sorry.")]}
            return await worker.ainvoke({"messages": state["messages"]})

    drive(graph_of(asking(node, node_async), saver=saver), said("Ask."), T)
    assert texts(memory) == (["Ask.", "One."] if again else ["Ask."])
    assert outcomes(memory, "T") == ["completed" if again else "failed"]


@both_ways
def test_a_retry_after_a_tool_failed_begins_the_turn_anew(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    failing = [ConnectionError("flaky")]

    @tool
    def flaky() -> str:
        """Fail at first."""
        if failing:
            raise failing.pop()
        return "fine"

    script = Script.of(calling("c1", "flaky"), calling("c2", "flaky"), "Done.")
    graph: Any = StateGraph(MessagesState)
    retry = RetryPolicy(initial_interval=0.01, max_attempts=2)
    graph.add_node("n", agent(script, memory, tools=[flaky]), retry_policy=retry)
    graph.add_edge(START, "n")
    drive(graph.compile(checkpointer=saver), said("Try."), T)
    assert texts(memory) == ["Try.", "c2:flaky", "c2=fine", "Done."], "what the host has of it"
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_a_pause_of_the_second_agent_pauses_the_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    first, second = Script.of("A plan."), Script.of(calling("c1", "approve"), "Approved.")
    graph = graph_of(agent(first, memory), agent(second, memory), saver=saver)
    drive(graph, said("Ship."), T)
    assert outcomes(memory, "T") == [None]
    drive(graph, Command(resume="yes"), T)
    assert texts(memory) == ["Ship.", "A plan.", "c1:approve", "c1=approved: yes", "Approved."]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_an_agent_within_a_tool_that_pauses_goes_on_within_the_same_turn(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    within = Script.of(calling("n1", "approve"), "The survey is done.")
    surveyor = agent(within, memory)

    @tool
    def survey(config: RunnableConfig) -> str:
        """Send somebody."""
        return str(surveyor.invoke(said("Look round."), config)["messages"][-1].content)

    outer = Script.of(calling("c1", "survey"), "Surveyed.")
    host = agent(outer, memory, saver, tools=[survey])
    drive(host, said("Survey."), T)
    assert outcomes(memory, "T") == [None]
    drive(host, Command(resume="yes"), T)
    assert texts(memory) == ["Survey.", "c1:survey", "c1=The survey is done.", "Surveyed."]
    assert outcomes(memory, "T") == ["completed"]
    assert len(memory.sessions().items) == 1


@both_ways
def test_an_agent_in_a_chain_is_its_own_run(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    host = agent(Script.of("One.", "Two."), memory, saver)
    chain = RunnableLambda(said) | host | RunnableLambda(lambda state: state["messages"][-1].content)
    assert drive(chain, "First.", T) in ("One.", ["One."])
    assert drive(chain, "Second.", T) in ("Two.", ["Two."])
    assert outcomes(memory, "T") == ["completed", "completed"]


# ---- settings --------------------------------------------------------------------------------------------------------


@both_ways
def test_a_run_without_a_thread_is_refused(memory: optchat.Memory, drive: Drive) -> None:
    script = Script.of("Never.")
    with pytest.raises(optchat.ConfigError, match="thread_id"):
        drive(agent(script, memory), said("Hello."), {})
    assert script.requests == []


@both_ways
def test_the_session_s_key_may_be_another(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    def key(config: RunnableConfig) -> str:
        return f"user-{config['configurable']['user']}"

    middleware = MemoryMiddleware(memory, BUDGET, session_key=key, project="shop")
    config: RunnableConfig = {"configurable": {"thread_id": "T", "user": "7"}}
    drive(agent(Script.of("Hello."), memory, saver, middleware=middleware), said("Hi."), config)
    (info,) = memory.sessions()
    assert (info.key, info.host, info.project is None) == ("user-7", "langchain", False)


@both_ways
def test_either_memory_serves_either_run(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    drive(agent(Script.of("Hello."), AsyncMemory(memory), saver), said("Hi."), T)
    assert outcomes(memory, "T") == ["completed"]


def test_threads_run_side_by_side(memory: optchat.Memory, saver: InMemorySaver) -> None:
    script = Script(iter(["Hello."] * 8))
    host = agent(script, memory, saver)

    async def run() -> None:
        await asyncio.gather(*(host.ainvoke(said(f"Hi {n}."), thread(f"T{n}")) for n in range(8)))

    asyncio.run(run())
    assert sorted(info.key for info in memory.sessions()) == [f"T{n}" for n in range(8)]
    assert all(outcomes(memory, f"T{n}") == ["completed"] for n in range(8))


def test_the_loop_is_never_kept_waiting(
    memory: optchat.Memory, saver: InMemorySaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever writes to the file, and whatever reads a turn, is done in another thread than the loop's."""
    here = threading.get_ident()
    done: list[str] = []

    def watched(owner: type[Any], name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            assert threading.get_ident() != here, f"{name} was called in the loop's thread"
            done.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, method)

    for name in ("add", "call", "end", "suspend", "_dispatchable"):
        watched(optchat.Turn, name)
    for name in ("turn", "resume", "reconcile", "info"):
        watched(optchat.Session, name)

    async def run() -> None:
        steps = [calling("c1", "memory_search", '{"query": "x"}'), calling("c2", "approve"), "Done.", "Two."]
        host = agent(Script.of(*steps), memory, saver)
        await host.ainvoke(said("Go."), T)
        await host.ainvoke(Command(resume="yes"), T)
        await host.ainvoke(said("Go on."), T)

    asyncio.run(run())
    assert {"add", "call", "end", "suspend", "_dispatchable", "turn", "resume", "reconcile"} <= set(done)


def test_a_version_that_was_not_tested_is_refused(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    from optchat.adapters import checking

    for old in ("langchain", "langgraph"):
        monkeypatch.setattr(checking, "version", lambda name, old=old: "1.0.8" if name == old else "9.0")
        with pytest.raises(optchat.HostUnsupported, match=f"{old} 1.0.8 was not tested"):
            MemoryMiddleware(memory, BUDGET)


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(optchat.BadArgument, match="no memory"):
        MemoryMiddleware("memory.db", BUDGET)  # type: ignore[arg-type] # the mistake


def test_a_subclass_without_the_hook_before_the_model_is_told(memory: optchat.Memory, saver: InMemorySaver) -> None:
    class Deaf(MemoryMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request)

    script = Script.of("From nowhere.")
    with pytest.raises(optchat.HostUnsupported, match="without memory"):
        agent(script, memory, saver, middleware=Deaf(memory, BUDGET)).invoke(said("Hello."), T)
    assert texts(memory) == ["Hello."]


def test_a_run_that_langchain_did_not_tell_of_is_refused(
    memory: optchat.Memory, saver: InMemorySaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WATCH, "_began", lambda *_: None)
    with pytest.raises(optchat.HostUnsupported, match="did not tell that this run began"):
        agent(Script.of("Never."), memory, saver).invoke(said("Hello."), T)


@both_ways
def test_a_handoff_goes_on_in_the_same_turn(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    first, second = Script.of(calling("c1", "transfer")), Script.of("Done by the second.", "Still the second.")
    graph: Any = StateGraph(MessagesState)
    graph.add_node("first", agent(first, memory, tools=[transfer]), destinations=("second",))
    graph.add_node("second", agent(second, memory))
    graph.add_edge(START, "first")
    drive(graph.compile(checkpointer=saver), said("Do it."), T)
    assert texts(memory) == ["Do it.", "c1:transfer", "c1=handed over", "Done by the second."]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_a_handoff_to_a_node_without_memory_leaves_no_turn_open(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("first", agent(Script.of(calling("c1", "transfer")), memory, tools=[transfer]))
    graph.add_node("second", lambda state: {"messages": [AIMessage(f"Seen {len(state['messages'])}.")]})
    graph.add_edge(START, "first")
    drive(graph.compile(checkpointer=saver), said("Do it."), T)
    assert outcomes(memory, "T") == ["interrupted"], "what became of the call is not known here"


@tool
def transfer(runtime: ToolRuntime) -> Command[Any]:
    """Hand over."""
    answer = ToolMessage("handed over", tool_call_id=str(runtime.tool_call_id))
    messages = [*runtime.state["messages"], answer]
    return Command(goto="second", graph=Command.PARENT, update={"messages": messages})


@both_ways
def test_a_copied_thread_is_a_fork(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    host = agent(Script.of("One.", "Two.", "Two, otherwise.", "Three."), memory, saver)
    drive(host, said("First."), T)
    kept = saver.get_tuple(T)
    assert kept is not None
    place: RunnableConfig = {"configurable": {"thread_id": "U", "checkpoint_ns": ""}}
    saver.put(place, kept.checkpoint, kept.metadata, kept.checkpoint["channel_versions"])
    drive(host, said("Second."), T)
    drive(host, said("Second, otherwise."), thread("U"))
    drive(host, said("Third."), thread("U"))
    assert texts(memory, "T") == ["First.", "One.", "Second.", "Two."]
    assert texts(memory, "U") == ["First.", "One.", "Second, otherwise.", "Two, otherwise.", "Third.", "Three."]
    published = [line.text for line in memory.view().lines]
    assert sum("First." in text for text in published) == 1, "what both have was published once"


@both_ways
def test_a_copy_of_a_thread_that_was_deleted_has_what_it_holds(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    host = agent(Script.of("One.", "Two."), memory, saver)
    drive(host, said("First."), T)
    kept = saver.get_tuple(T)
    assert kept is not None
    place: RunnableConfig = {"configurable": {"thread_id": "U", "checkpoint_ns": ""}}
    saver.put(place, kept.checkpoint, kept.metadata, kept.checkpoint["channel_versions"])
    session(memory, "T").delete()
    drive(host, said("Second."), thread("U"))
    assert texts(memory, "U")[-2:] == ["Second.", "Two."]
    assert outcomes(memory, "U")[-1] == "completed"


@both_ways
def test_going_on_after_a_hook_failed_behind_the_model(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    failing = [RuntimeError("the hook broke")]

    @after_model
    def broken(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del state, runtime
        if failing:
            raise failing.pop()
        return None

    host = agent(Script.of("Said once."), memory, saver, after=[broken])
    with pytest.raises(RuntimeError, match="the hook broke"):
        drive(host, said("Say it."), T)
    assert outcomes(memory, "T") == ["failed"]
    drive(host, None, T)
    assert texts(memory) == ["Say it.", "Said once."]
    assert outcomes(memory, "T") == ["completed"]


def test_each_thread_may_have_a_loop_of_its_own(memory: optchat.Memory) -> None:
    shared = MemoryMiddleware(memory, BUDGET)
    barrier = threading.Barrier(4, timeout=20)
    failed: list[BaseException] = []

    class Together(Fake):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            del kwargs
            await asyncio.to_thread(barrier.wait)  # every loop is in the midst of a run
            return self._generate(*args[:2])

    def serve(number: int) -> None:
        host: Any = create_agent(Together(script=Script.of("One.", "Two.")), [build], middleware=[shared])
        try:
            for _ in range(2):
                asyncio.run(host.ainvoke(said("Hello."), thread(f"T{number}")))
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    serving = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for each in serving:
        each.start()
    for each in serving:
        each.join()
    assert not failed
    assert [outcomes(memory, f"T{number}") for number in range(4)] == [["completed"] * 2] * 4


def test_a_plain_call_in_a_loop_ends_its_turn_while_another_is_awaited(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, told = threading.Event(), threading.Event()
    original = DrivenTurn.observe

    def observe(self: DrivenTurn, messages: Any) -> None:
        if not told.is_set() and not sealing.is_set() and awaiting:
            sealing.set()
            assert told.wait(20)
        original(self, messages)

    monkeypatch.setattr(DrivenTurn, "observe", observe)
    awaiting: list[bool] = []
    shared = MemoryMiddleware(memory, BUDGET)
    host = agent(Script.of("One.", "Two."), memory, middleware=shared)

    async def run() -> None:
        awaiting.append(True)
        task = asyncio.create_task(host.ainvoke(said("Awaited."), thread("A")))
        await asyncio.to_thread(sealing.wait, 20)  # an operation of this loop is under way
        host.invoke(said("Plain."), thread("P"))
        told.set()
        await task

    asyncio.run(run())
    assert outcomes(memory, "P") == ["completed"]
    assert outcomes(memory, "A") == ["completed"]


def test_a_plain_call_from_within_a_loop(memory: optchat.Memory, saver: InMemorySaver) -> None:
    host = agent(Script.of("One.", "Two."), memory, saver)

    async def run() -> None:
        host.invoke(said("First."), T)
        await host.ainvoke(said("Second."), T)

    asyncio.run(run())
    assert outcomes(memory, "T") == ["completed", "completed"]


@both_ways
@pytest.mark.parametrize("allowed", [True, False])
def test_a_pause_before_the_model_is_asked(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive, *, allowed: bool
) -> None:
    @before_model(can_jump_to=["end"])
    def gate(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del state, runtime
        return None if interrupt("may it?") else {"messages": [AIMessage("It may not.")], "jump_to": "end"}

    script = Script.of("Done.", "And more.")
    drive(agent(script, memory, saver, after=[gate]), said("Do it."), T)
    assert not memory.sessions().items, "nothing was asked yet"
    drive(agent(script, open_beside(memory), saver, after=[gate]), Command(resume=allowed), T)
    if allowed:
        assert texts(memory) == ["Do it.", "Done."]
        assert outcomes(memory, "T") == ["completed"]
    else:
        assert script.requests == []
        drive(agent(script, memory, saver), said("Then more."), T)
        assert texts(memory) == ["Do it.", "It may not.", "Then more.", "Done."]


@both_ways
def test_going_on_after_a_hook_failed_at_the_end(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    failing = [RuntimeError("the hook broke")]

    @after_agent
    def broken(state: AgentState[Any], runtime: Any) -> dict[str, Any] | None:
        del state, runtime
        if failing:
            raise failing.pop()
        return None

    host = agent(Script.of("Said once."), memory, saver, after=[broken])
    with pytest.raises(RuntimeError, match="the hook broke"):
        drive(host, said("Say it."), T)
    assert outcomes(memory, "T") == ["failed"]
    drive(host, None, T)
    assert texts(memory) == ["Say it.", "Said once."]
    assert outcomes(memory, "T") == ["completed"]


def test_messages_without_ids_are_refused(memory: optchat.Memory) -> None:
    middleware = MemoryMiddleware(memory, BUDGET)

    def node(state: dict[str, Any], runtime: Runtime[Any]) -> dict[str, Any]:
        return middleware.before_agent({"messages": [HumanMessage("Hi.")]}, runtime) or state

    graph: Any = StateGraph(dict)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    with pytest.raises(optchat.ConfigError, match="no ids"):
        graph.compile().invoke({}, T)


def test_a_thread_that_nobody_asked_anything_is_refused(memory: optchat.Memory, saver: InMemorySaver) -> None:
    with pytest.raises(optchat.BadArgument, match="a user's message"):
        agent(Script.of("Never."), memory, saver).invoke({"messages": [("ai", "Hello.")]}, T)


@both_ways
def test_going_back_to_before_the_first_turn_is_followed(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    script = Script.of("One.", "Two.", "One, otherwise.")
    host = agent(script, memory, saver)
    drive(host, said("First."), T)
    drive(host, said("Second."), T)
    (*_, empty) = host.get_state_history(T)
    drive(host, said("First, otherwise."), empty.config)
    assert texts(memory) == ["First, otherwise.", "One, otherwise."]
    assert "Two." not in script.texts[2]


@both_ways
def test_a_thread_whose_checkpoints_are_gone_goes_on(memory: optchat.Memory, drive: Drive) -> None:
    script = Script.of("One.", "Two.")
    drive(agent(script, memory, InMemorySaver()), said("First."), T)
    drive(agent(script, memory, InMemorySaver()), said("Second."), T)
    assert texts(memory) == ["First.", "One.", "Second.", "Two."]
    assert "One." in script.texts[1]


@both_ways
def test_a_request_that_was_edited_after_a_failure_is_the_turn_s(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive
) -> None:
    script = Script.of(RuntimeError("out"), "Otherwise.")
    host = agent(script, memory, saver)
    with pytest.raises(RuntimeError, match="out"):
        drive(host, said("As it was."), T)
    (request,) = stored(host, T)
    host.update_state(
        T, {"messages": [HumanMessage("As it is.", id=request.id)]}, as_node="MemoryMiddleware.before_agent"
    )
    drive(host, None, T)
    assert texts(memory) == ["As it is.", "Otherwise."]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_graph_that_pauses_after_its_agent_has_a_turn_that_is_done(
    memory: optchat.Memory, saver: InMemorySaver, drive: Drive, *, goes_on: bool
) -> None:
    def gate(state: MessagesState) -> dict[str, Any]:
        del state
        interrupt("go on?")
        return {}

    hosts: list[Any] = [agent(Script.of("A plan."), memory), gate]
    if goes_on:
        hosts.append(agent(Script.of("Built by plan."), memory))
    graph = graph_of(*hosts, saver=saver)
    drive(graph, said("Build."), T)
    assert outcomes(memory, "T") == ["completed"]
    drive(graph, Command(resume="yes"), T)
    assert texts(memory) == ["Build.", "A plan.", *(["Built by plan."] if goes_on else [])]
    assert outcomes(memory, "T") == ["completed"]


@both_ways
def test_a_run_that_is_drained_is_taken_up(memory: optchat.Memory, saver: InMemorySaver, drive: Drive) -> None:
    control = RunControl()

    @tool
    def shutdown() -> str:
        """The process is told to end."""
        control.request_drain("shutdown")
        return "draining"

    class Draining:
        def __init__(self, host: Any) -> None:
            self.host = host

        def invoke(self, given: Any, config: RunnableConfig) -> Any:
            return self.host.invoke(given, config, control=control)

        async def ainvoke(self, given: Any, config: RunnableConfig) -> Any:
            return await self.host.ainvoke(given, config, control=control)

    host = agent(Script.of(calling("c1", "shutdown")), memory, saver, tools=[shutdown])
    with pytest.raises(GraphDrained):
        drive(Draining(host), said("Work."), T)
    assert outcomes(memory, "T") == [None], "it is to be gone on with"
    drive(agent(Script.of("Worked."), open_beside(memory), saver, tools=[shutdown]), None, T)
    assert texts(memory) == ["Work.", "c1:shutdown", "c1=draining", "Worked."]
    assert outcomes(memory, "T") == ["completed"]
