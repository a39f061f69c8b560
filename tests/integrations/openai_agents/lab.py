"""A scripted model, a Session on disk, and what a run of both with memory leaves, for the tests of this host."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeAlias

from agents import (
    Agent,
    AgentOutputSchemaBase,
    Handoff,
    Model,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    RunConfig,
    SQLiteSession,
    Tool,
    TResponseInputItem,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.items import TResponseOutputItem
from attrs import define, frozen
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Summary

import optchat
from optchat.adapters.openai_agents import AgentsItems, MemoryRunner, memory_tools

Item: TypeAlias = TResponseInputItem
Step: TypeAlias = Sequence[TResponseOutputItem] | BaseException | Callable[["Asked"], object]

set_tracing_disabled(True)  # its exporter would look for a key

BUDGET = optchat.Budget(window=64_000, output=1_000)
QUIET = RunConfig(tracing_disabled=True)
CODEC = AgentsItems()


@frozen
class Asked:
    """One call of the model: the very list that it got, and the rest of what it was given."""

    input: list[Item]
    instructions: str | None
    tools: tuple[str, ...]
    handoffs: tuple[str, ...]


class Scripted(Model):
    """A model that takes one step of its script each time it is asked."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.calls: list[Asked] = []

    async def _next(
        self, instructions: str | None, given: str | list[Item], tools: Sequence[Tool], handoffs: Sequence[Handoff]
    ) -> ModelResponse:
        assert isinstance(given, list)
        names = tuple(tool.name for tool in tools)
        asked = Asked(given, instructions, names, tuple(handoff.tool_name for handoff in handoffs))
        self.calls.append(asked)
        step = self.steps.pop(0)
        made: Any = step(asked) if callable(step) else step
        if isawaitable(made):
            made = await made
        if isinstance(made, BaseException):
            raise made
        return ModelResponse(output=copy.deepcopy(list(made)), usage=Usage(), response_id="r")

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,  # noqa: ARG002
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,  # noqa: ARG002
        handoffs: list[Handoff],
        tracing: ModelTracing,  # noqa: ARG002
        **_more: Any,
    ) -> ModelResponse:
        return await self._next(system_instructions, input, tools, handoffs)

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],
        model_settings: ModelSettings,  # noqa: ARG002
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,  # noqa: ARG002
        handoffs: list[Handoff],
        tracing: ModelTracing,  # noqa: ARG002
        **_more: Any,
    ) -> AsyncIterator[Any]:
        made = await self._next(system_instructions, input, tools, handoffs)
        response = Response(
            id="r", created_at=0.0, model="scripted", object="response", output=made.output,
            parallel_tool_calls=True, tool_choice="auto", tools=[],
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)

    def asked(self, number: int) -> str:
        """All that a call's request says."""
        return said(self.calls[number].input)


def answer(text: str) -> TResponseOutputItem:
    """The assistant's words; the id is the one that the SDK gives to all that a provider without responses says."""
    return ResponseOutputMessage(
        id="__fake_id__",
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(text=text, type="output_text", annotations=[])],
    )


def calls(name: str, arguments: str = "{}", call_id: str = "c1") -> TResponseOutputItem:
    """A call of a function tool."""
    return ResponseFunctionToolCall(
        id="__fake_id__", call_id=call_id, type="function_call", name=name, arguments=arguments
    )


def thinks(text: str) -> TResponseOutputItem:
    """Reasoning, with what only the provider can read."""
    return ResponseReasoningItem(
        id="rs_1", type="reasoning", summary=[Summary(text=text, type="summary_text")], encrypted_content="c2VjcmV0"
    )


def said(items: Sequence[Item]) -> str:
    """All that items say."""
    lines: list[str] = []
    for item in items:
        for message in CODEC.decode(item):
            for part in message.parts:
                match part:
                    case optchat.TextPart(text):
                        lines.append(f"{message.role}: {text}")
                    case optchat.ToolCallPart(call_id, name, arguments):
                        lines.append(f"call {call_id}: {name} {arguments}")
                    case optchat.ToolResultPart(call_id, content):
                        text = "".join(each.text for each in content if isinstance(each, optchat.TextPart))
                        lines.append(f"result {call_id}: {text}")
                    case _:
                        lines.append(repr(part))
    return "\n".join(lines)


@function_tool
def build(x: int = 0) -> str:
    """Build it."""
    return f"built {x}"


@function_tool(needs_approval=True)
def deploy(env: str = "") -> str:
    """Deploy it."""
    return f"deployed {env}"


@function_tool
def broken() -> str:
    """Fails."""
    raise ValueError("it broke")


def agent_of(model: Model, *tools: Tool, **more: Any) -> Agent[Any]:
    """An agent with memory's tools and some of its own."""
    given: dict[str, Any] = {"name": "builder", "instructions": "Be careful.", "model": model}
    given["tools"] = [*memory_tools(), *(tools or (build, deploy, broken))]
    return Agent(**given | more)


@define
class Lab:
    """One memory, and one host beside it whose Sessions are in a file."""

    memory: optchat.Memory
    folder: Path

    @property
    def runner(self) -> MemoryRunner:
        return MemoryRunner(self.memory, BUDGET)

    def session(self, key: str = "mine") -> SQLiteSession:
        """The host's own transcript."""
        return SQLiteSession(key, self.folder / "agents.db")

    async def stored(self, key: str = "mine") -> list[Item]:
        """What the host has kept."""
        session = self.session(key)
        try:
            return await session.get_items()
        finally:
            session.close()

    async def run(self, agent: Agent[Any], given: Any, key: str = "mine", **runner: Any) -> Any:
        """A run with memory."""
        session = self.session(key)
        try:
            runner.setdefault("run_config", QUIET)
            return await self.runner.run(agent, given, session=session, **runner)
        finally:
            session.close()

    def publish(self, text: str, key: str = "other") -> None:
        """Another session's finished turn."""
        with self.memory.session(key).turn("What about it?") as turn:
            turn.assistant(text)

    def sealed(self, key: str = "mine") -> list[str]:
        """What memory has sealed of a session, record by record."""
        (info,) = [info for info in self.memory.sessions() if info.key == key]
        lines: list[str] = []
        for seq in range(info.length):
            record = self.memory.source(f"session:{info.id}:{info.generation}:{seq}+1")
            match record.part:
                case optchat.TextPart(text):
                    lines.append(f"{record.kind}: {text}")
                case optchat.ToolCallPart(call_id, name):
                    lines.append(f"call {call_id}: {name}")
                case optchat.ToolResultPart(call_id, content):
                    text = "".join(each.text for each in content if isinstance(each, optchat.TextPart))
                    lines.append(f"result {call_id}: {text}")
                case _:
                    lines.append(repr(record.part))
        return lines

    def outcomes(self, key: str = "mine") -> list[str | None]:
        """How a session's turns ended; None: one is open or suspended."""
        (info,) = [info for info in self.memory.sessions() if info.key == key]
        return [turn.outcome for turn in self.memory.session_by_id(info.id).turns()]


def cancel_me(task: "asyncio.Task[Any]") -> Tool:
    """A tool in the midst of which a task is cancelled."""

    @function_tool(name_override="optchat_interrupted")
    async def interrupted(x: int = 0) -> str:
        """Never answers."""
        task.cancel()
        await asyncio.sleep(60)
        return f"never {x}"

    return interrupted
