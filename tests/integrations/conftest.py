"""Tests that need a host's framework: what is not installed here is not collected, and its session fails for it."""

from importlib.util import find_spec

NEEDS = {
    "openai_agents": ("agents",),
    "pydantic_ai": ("pydantic_ai",),
    "langchain": ("langchain", "langgraph"),
    "mcp": ("mcp", "click"),
    "two_hosts": ("agents", "pydantic_ai"),
}
collect_ignore = [folder for folder, names in NEEDS.items() if any(find_spec(name) is None for name in names)]
