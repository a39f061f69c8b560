"""LangChain agents with memory: what one thread decides, the other is told. No key: a scripted model."""

import os
from tempfile import TemporaryDirectory
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - as LangChain types it
from langchain.chat_models import init_chat_model
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable
from langgraph.checkpoint.memory import InMemorySaver

import optchat
from optchat.adapters.langchain import MemoryMiddleware

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # as "openai:gpt-5"; its key as LangChain's package for it wants it


class Scripted(SimpleChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        told = any("No Redis" in str(message.content) for message in messages)
        return "The broker." if told else "No Redis: the broker that we have persists."

    def bind_tools(self, *_: Any, **__: Any) -> Runnable[Any, Any]:
        return self


with TemporaryDirectory() as folder, optchat.open(f"{folder}/memory.db", scope="example") as memory:
    middleware = [MemoryMiddleware(memory, optchat.Budget(window=128_000, output=4_000))]
    model = init_chat_model(MODEL) if MODEL else Scripted()
    agent: Any = create_agent(model, middleware=middleware, checkpointer=InMemorySaver())
    for thread, text in (("monday", "Redis for the queue, or the broker that we have?"), ("tuesday", "Where is it?")):
        said = {"messages": [HumanMessage(text)]}
        print(agent.invoke(said, {"configurable": {"thread_id": thread}})["messages"][-1].text)
