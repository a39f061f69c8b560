"""
Workers and summarizers: the only place that waits for a model.

The summarizers of providers need an extra each, and are imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optchat.compactor.anthropic_summarizer import AnthropicSummarizer
    from optchat.compactor.openai_summarizer import OpenAISummarizer
    from optchat.compactor.pricing import Price

__all__ = ["AnthropicSummarizer", "OpenAISummarizer", "Price"]

_HOMES = {
    "AnthropicSummarizer": "optchat.compactor.anthropic_summarizer",
    "OpenAISummarizer": "optchat.compactor.openai_summarizer",
    "Price": "optchat.compactor.pricing",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
