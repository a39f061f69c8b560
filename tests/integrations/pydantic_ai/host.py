"""The host as tests run it: an agent of the framework whose model follows a script, and what that model was given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from attrs import Factory, define
from pydantic_ai import Agent, models
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import optchat
from optchat import BlobPart, HostMessage, Memory
from optchat.adapters.pydantic_ai import PydanticAIMessages, SharedMemory
from optchat.aio import AsyncMemory
from optchat.core.messages import Part

models.ALLOW_MODEL_REQUESTS = False

CODEC = PydanticAIMessages()
BUDGET = optchat.Budget(window=64_000, output=1_000)
Step: TypeAlias = HostMessage | BaseException | list[ModelResponsePart] | Callable[[], Awaitable[None]]


@define
class Captured:
    """One request as the model got it."""

    messages: list[ModelMessage]
    info: AgentInfo

    @property
    def text(self) -> str:
        """All that it says, system prompts included."""
        return "\n".join(str(getattr(part, "content", "")) for message in self.messages for part in message.parts)

    @property
    def tools(self) -> list[str]:
        return [tool.name for tool in self.info.function_tools]


@define
class Script:
    """A model that takes the next step each time that it is asked, and not before."""

    steps: Iterator[Step]
    seen: list[Captured] = Factory(list[Captured])

    @classmethod
    def of(cls, *steps: Step) -> Script:
        return cls(iter(steps))

    def more(self, *steps: Step) -> None:
        self.steps = iter(steps)

    async def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Sequence[ModelResponsePart]:
        self.seen.append(Captured(list(messages), info))
        step = next(self.steps)
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, HostMessage):
            (response,) = native(step)
            return cast("ModelResponse", response).parts
        if callable(step):
            await step()
            return [TextPart("after")]
        return step

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=list(await self._next(messages, info)))

    async def stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for part in await self._next(messages, info):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield word + " "
            elif isinstance(part, ToolCallPart):
                yield {0: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self.answer, stream_function=self.stream)


def agent(
    script: Script, memory: Memory | AsyncMemory, session: Any = None, budget: optchat.Budget = BUDGET, **more: Any
) -> Agent[Any, Any]:
    """An agent with shared memory."""
    return Agent(script.model, capabilities=[SharedMemory(memory, budget, session=session)], **more)


def call(call_id: str, name: str, /, **arguments: object) -> list[ModelResponsePart]:
    """A response of one call."""
    return [ToolCallPart(name, json.dumps(arguments), call_id)]


def native(message: HostMessage) -> list[ModelMessage]:
    """A neutral message in the framework's words."""
    if message.role == "assistant":
        return [ModelResponse(parts=[_response_part(part) for part in message.parts])]
    if message.role == "tool":
        return [
            ModelRequest(parts=[_return(part) for part in message.parts if isinstance(part, optchat.ToolResultPart)])
        ]
    content = [_content(part) for part in message.parts]
    one = content[0] if len(content) == 1 and isinstance(content[0], str) else None
    return [ModelRequest(parts=[UserPromptPart(one if one is not None else content)])]


def _response_part(part: Part) -> ModelResponsePart:
    if isinstance(part, optchat.ToolCallPart):
        return ToolCallPart(part.name, part.arguments, part.call_id)
    assert isinstance(part, optchat.TextPart)
    return TextPart(part.text)


def _return(part: optchat.ToolResultPart) -> ToolReturnPart:
    text = "".join(item.text for item in part.content if isinstance(item, optchat.TextPart))
    return ToolReturnPart("build", text, part.call_id, outcome="failed" if part.is_error else "success")


def _content(part: Part) -> UserContent:
    if isinstance(part, BlobPart):
        return BinaryContent(part.data or b"", media_type=part.media_type)
    assert isinstance(part, optchat.TextPart)
    return part.text


def apart(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """A request's messages a part each: the framework makes one of adjacent requests before the model gets them."""
    found: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            found += [replace(message, parts=[part]) for part in message.parts]
        else:
            found.append(message)
    return found


def publish(memory: Memory, key: str, request: str, answer: str) -> None:
    """Another session's finished turn."""
    with memory.session(key).turn(request) as turn:
        turn.assistant(answer)


def turns(memory: Memory, key: str, host: str = "pydantic-ai") -> list[optchat.TurnInfo]:
    """The turns of a session."""
    return list(memory.session(key, host=host, create=False).turns())


def records(memory: Memory, key: str, host: str = "pydantic-ai") -> list[tuple[str, Part]]:
    """What is sealed of a session: kind and part."""
    info = memory.session(key, host=host, create=False).info()
    found = [memory.source(f"session:{info.id}:{info.generation}:{seq}+1") for seq in range(info.length)]
    return [(record.kind, record.part) for record in found]


def kinds(memory: Memory, key: str) -> list[str]:
    return [kind for kind, _ in records(memory, key)]


def do(host: Agent[Any, Any], prompt: Any = None, **more: Any) -> Any:
    """A run in a loop of its own: the framework's run_sync leaves the one that it makes open."""

    async def run() -> Any:
        return await host.run(prompt, **more)

    return asyncio.run(run())


def returns_of(messages: Sequence[ModelMessage]) -> list[ToolReturnPart[Any]]:
    """The tools' answers in messages."""
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
