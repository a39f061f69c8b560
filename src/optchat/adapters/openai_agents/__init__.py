"""
OpenAI Agents (extra ``openai-agents``): ``agents.Runner`` with memory.

::

    runner = MemoryRunner(memory, optchat.Budget(window=400_000, output=16_000))
    agent = Agent(name="builder", tools=[*memory_tools(), deploy])
    result = await runner.run(agent, "add a persistent queue", session=SQLiteSession("chat-42", "agents.db"))

Decides: nothing; it names what is public.
Refuses to know: how a run is driven.
"""

from optchat.core.errors import ConfigError

try:
    import agents as _agents
except ImportError as error:
    raise ConfigError(
        "optchat.adapters.openai_agents drives openai-agents, which is not installed; install optchat[openai-agents]"
    ) from error

from optchat.adapters.openai_agents.codec import AgentsItems
from optchat.adapters.openai_agents.runner import MemoryRunner
from optchat.adapters.openai_agents.tools import memory_tools
from optchat.adapters.openai_agents.turns import AgentsInput

__all__ = ["AgentsInput", "AgentsItems", "MemoryRunner", "memory_tools"]

del _agents
