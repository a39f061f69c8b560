"""
Two processes, two frameworks, one database: what an agent of OpenAI Agents decides, one of Pydantic AI knows.

Run it without arguments: it runs itself twice, once a host, and prints what each model was sent and said. Both models
are scripted, so that each request can be shown as it was captured.
"""

import asyncio
import subprocess
import sys
from tempfile import TemporaryDirectory

import optchat

BUDGET = optchat.Budget(window=128_000, output=4_000)
DECISION = "Decided: no Redis for the queue; the broker that we have persists."


async def decide(database: str) -> None:
    """The first process: OpenAI Agents."""
    from agents import Agent, SQLiteSession, set_tracing_disabled
    from agents.testing import ScriptedModel, assistant_message

    from optchat.adapters.openai_agents import MemoryRunner, memory_tools

    set_tracing_disabled(True)
    model = ScriptedModel([[assistant_message(DECISION)]])
    agent = Agent(name="architect", model=model, tools=memory_tools())
    with optchat.open(database, scope="project-17") as memory:
        session = SQLiteSession("monday", f"{database}.agents")
        result = await MemoryRunner(memory, BUDGET).run(agent, "Redis for the queue, or our broker?", session=session)
        memory.settle()
    sent = [item for call in model.calls for item in call.input]
    print("captured by openai-agents:", *[item.get("content", item) for item in sent], sep="\n")
    print("it said:", result.final_output)


async def know(database: str) -> None:
    """The second process: Pydantic AI."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from optchat.adapters.pydantic_ai import SharedMemory

    captured: list[str] = []

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        captured.append("\n".join(str(getattr(part, "content", "")) for part in parts))
        return ModelResponse(parts=[TextPart("The broker." if DECISION in captured[-1] else "I was told of nothing.")])

    with optchat.open(database, scope="project-17") as memory:
        agent = Agent(FunctionModel(answer), capabilities=[SharedMemory(memory, BUDGET, session="tuesday")])
        result = await agent.run("Where does the queue live?")
    print("captured by pydantic-ai:", *captured, sep="\n")
    print("it said:", result.output)


if len(sys.argv) == 3:
    asyncio.run({"decide": decide, "know": know}[sys.argv[1]](sys.argv[2]))
else:
    with TemporaryDirectory() as folder:
        for part in ("decide", "know"):
            subprocess.run([sys.executable, __file__, part, f"{folder}/memory.db"], check=True)  # noqa: S603 - itself
