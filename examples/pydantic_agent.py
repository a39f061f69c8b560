"""A Pydantic AI agent with memory: what one conversation decides, the other is told. No key: a scripted model."""

import asyncio
import os
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import optchat.aio
from optchat.adapters.pydantic_ai import SharedMemory

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # as "openai:gpt-5"; its key as Pydantic AI wants it


@dataclass
class Deps:
    chat: str


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    assert "memory_search" in [tool.name for tool in info.function_tools]
    told = "No Redis" in str(messages)
    return ModelResponse(parts=[TextPart("The broker." if told else "No Redis: the broker that we have persists.")])


async def main() -> None:
    with TemporaryDirectory() as folder:
        async with optchat.aio.open(f"{folder}/memory.db", scope="example") as memory:
            budget = optchat.Budget(window=128_000, output=4_000)
            shared = SharedMemory[Deps](memory, budget, session=lambda run: run.deps.chat)  # one agent, many sessions
            agent = Agent(MODEL or FunctionModel(scripted), deps_type=Deps, capabilities=[shared])
            for chat, text in (("monday", "Decide, in a sentence: Redis, or our broker?"), ("tuesday", "Which, then?")):
                print((await agent.run(text, deps=Deps(chat))).output)


asyncio.run(main())
