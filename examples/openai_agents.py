"""OpenAI Agents with memory: what one conversation decides, the other is told. No key: a scripted model."""

import asyncio
import os
from tempfile import TemporaryDirectory

from agents import Agent, SQLiteSession, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

import optchat.aio
from optchat.adapters.openai_agents import MemoryRunner, memory_tools

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # its key is OPENAI_API_KEY


SCRIPTED = ScriptedModel(
    [
        [assistant_message("No Redis: the broker that we have persists.")],
        [function_call("memory_search", {"query": "Redis"}, call_id="c1")],
        ModelStep.respond(
            lambda call: [assistant_message("The broker." if "No Redis" in str(call.input) else "I was told nothing.")]
        ),
    ]
)


async def main() -> None:
    set_tracing_disabled(MODEL is None)
    agent = Agent(name="builder", instructions="Be brief.", model=MODEL or SCRIPTED, tools=memory_tools())
    with TemporaryDirectory() as folder:
        async with optchat.aio.open(f"{folder}/memory.db", scope="example") as memory:
            runner = MemoryRunner(memory, optchat.Budget(window=128_000, output=4_000))
            for key, text in (("monday", "Decide, in a sentence: Redis, or our broker?"), ("tuesday", "Which, then?")):
                session = SQLiteSession(key, f"{folder}/agents.db")  # its own transcript stays as it is
                print((await runner.run(agent, text, session=session)).final_output)


asyncio.run(main())
