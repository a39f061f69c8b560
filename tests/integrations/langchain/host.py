"""The host as tests run it: an agent whose model follows a script and records what it was given, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from attrs import Factory, define
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

import optchat
from optchat.adapters.langchain import LangChainMessages, MemoryMiddleware
from optchat.aio import AsyncMemory
from optchat.testing.contract import INTERRUPTED_TOOL

RUNNING: ContextVar[asyncio.Task[Any]] = ContextVar("running")  # the task of the awaited run
CODEC = LangChainMessages()
BUDGET = optchat.Budget(window=64_000, output=1_000)
SYSTEM = "Be brief."
Said = str | BaseMessage | BaseException


@define
class Script:
    """What the model says: the next step each time that it is asked, and not before; and what it was given."""

    steps: Iterator[Any]
    requests: list[list[AnyMessage]] = Factory(list)
    settings: list[object] = Factory(list)
    bound: list[str] = Factory(list)

    @staticmethod
    def of(*steps: Said) -> Script:
        return Script(iter(steps))

    @property
    def texts(self) -> list[str]:
        """All that each request says."""
        return ["\n".join(str(message.content) for message in request) for request in self.requests]

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        system = [str(message.content) for message in messages if isinstance(message, SystemMessage)]
        own = [name for name in self.bound if not name.startswith("memory_")]
        self.settings.append(("fake", system, sorted(own)))
        self.requests.append([message for message in messages if not isinstance(message, SystemMessage)])
        step = next(self.steps)
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, optchat.HostMessage):
            (step,) = native(step)
        if isinstance(step, str):
            step = AIMessage(step)
        assert isinstance(step, AIMessage)
        return step


class Fake(BaseChatModel):
    """The model; ``bind_tools`` notes what it is given."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        del kwargs
        self.script.bound[:] = [made.name for made in tools]
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del stop, run_manager, kwargs
        return ChatResult(generations=[ChatGeneration(message=self.script.answer(messages))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        del run_manager, kwargs
        try:
            return self._generate(messages, stop)
        except asyncio.CancelledError:
            await be_cancelled()
            raise


def native(message: optchat.HostMessage) -> list[AnyMessage]:
    """What LangChain says for a neutral message, without ids."""
    texts = [part.text for part in message.parts if isinstance(part, optchat.TextPart)]
    if message.role == "assistant":
        calls = [call(part.call_id, part.name, part.arguments) for part in message.parts
                 if isinstance(part, optchat.ToolCallPart)]  # fmt: skip
        return [AIMessage("\n".join(texts), tool_calls=calls)]
    if message.role == "user":
        images = [{"type": "image", "mime_type": part.media_type, "base64": data(part)} for part in message.parts
                  if isinstance(part, optchat.BlobPart)]  # fmt: skip
        words: list[Any] = [{"type": "text", "text": text} for text in texts]
        return [HumanMessage([*words, *images] if images else "\n".join(texts))]
    return [
        ToolMessage(
            "\n".join(item.text for item in part.content if isinstance(item, optchat.TextPart)),
            tool_call_id=part.call_id,
            status="error" if part.is_error else "success",
        )
        for part in message.parts
        if isinstance(part, optchat.ToolResultPart)
    ]


def call(call_id: str, name: str, arguments: str = "{}") -> Any:
    import json

    return {"name": name, "args": json.loads(arguments), "id": call_id, "type": "tool_call"}


def calling(call_id: str, name: str, arguments: str = "{}") -> AIMessage:
    return AIMessage("", tool_calls=[call(call_id, name, arguments)])


def data(blob: optchat.BlobPart) -> str:
    import base64

    return base64.b64encode(blob.data or b"").decode()


# ---- tools -----------------------------------------------------------------------------------------------------------


@tool
def build(x: int = 0) -> str:
    """Build."""
    return f"built {x}"


@tool
def explode() -> str:
    """Fail."""
    raise RuntimeError("the tool broke")


@tool
def approve(what: str = "it") -> str:
    """Ask a human."""
    return f"approved: {interrupt(what)}"


def _interrupted(x: int = 0) -> str:
    """Be cancelled."""
    del x
    raise asyncio.CancelledError


async def _interrupted_async(x: int = 0) -> str:
    """Be cancelled."""
    del x
    await be_cancelled()
    return "never"


interrupted = StructuredTool.from_function(_interrupted, _interrupted_async, INTERRUPTED_TOOL)
TOOLS: list[BaseTool] = [build, explode, approve, interrupted]


# ---- agents ----------------------------------------------------------------------------------------------------------


def agent(
    script: Script,
    memory: optchat.Memory | AsyncMemory,
    saver: Any = None,
    *,
    tools: Sequence[BaseTool] = TOOLS,
    after: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    middleware: MemoryMiddleware | None = None,
    **options: Any,
) -> Any:
    """An agent with memory; ``after``: other middleware, behind memory's."""
    return create_agent(
        Fake(script=script),
        list(tools),
        system_prompt=SYSTEM,
        middleware=[middleware or MemoryMiddleware(memory, BUDGET), *after],
        checkpointer=saver,
        **options,
    )


def thread(key: str) -> RunnableConfig:
    return {"configurable": {"thread_id": key}}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, **fields)]}


def stored(host: Any, config: RunnableConfig) -> list[AnyMessage]:
    """The thread as the host keeps it."""
    return list(host.get_state(config).values.get("messages", []))


def outcomes(memory: optchat.Memory, key: str) -> list[str | None]:
    return [turn.outcome for turn in session(memory, key).turns()]


def session(memory: optchat.Memory, key: str) -> optchat.Session[Any]:
    return memory.session(key, adapter=CODEC, host="langchain", create=False)


def parts(memory: optchat.Memory, key: str) -> list[Any]:
    """What is sealed of a thread, in order."""
    info = session(memory, key).info()
    return [memory.source(f"session:{info.id}:{info.generation}:{seq}+1").part for seq in range(info.length)]


def publish(memory: optchat.Memory, request: str = "Should we use Redis?", answer: str = "Zanzibar: no Redis.") -> None:
    with memory.session("other").turn(request) as turn:
        turn.assistant(answer)


class Savers:
    """One saver a memory, as one database a service."""

    def __init__(self) -> None:
        self._made: dict[str, InMemorySaver] = {}

    def of(self, memory: optchat.Memory) -> InMemorySaver:
        return self._made.setdefault(str(memory.path), InMemorySaver())


Drive = Callable[[Any, Any, RunnableConfig], Any]


def invoke(host: Any, given: Any, config: RunnableConfig) -> Any:
    return host.invoke(given, config)


def ainvoke(host: Any, given: Any, config: RunnableConfig) -> Any:
    async def run() -> Any:
        _note_task()
        return await host.ainvoke(given, config)

    return asyncio.run(run())


def stream(host: Any, given: Any, config: RunnableConfig) -> Any:
    return list(host.stream(given, config, stream_mode="updates"))


def astream(host: Any, given: Any, config: RunnableConfig) -> Any:
    async def run() -> Any:
        _note_task()
        return [chunk async for chunk in host.astream(given, config, stream_mode="values")]

    return asyncio.run(run())


def _note_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    RUNNING.set(task)


async def be_cancelled() -> None:
    """Have the run cancelled from outside, as somebody who waits for it no longer does, and wait for that."""
    RUNNING.get().cancel()
    await asyncio.Event().wait()


DRIVES: list[Drive] = [invoke, ainvoke, stream, astream]
