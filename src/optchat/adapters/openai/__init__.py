"""
OpenAI's two wires (extra ``openai``): chat completions and responses.

Decides: nothing; it names what is public.
Refuses to know: the SDK, until a codec is handed one of its objects.
"""

from optchat.adapters.openai.chat import OpenAIChat
from optchat.adapters.openai.responses import OpenAIResponses

__all__ = ["OpenAIChat", "OpenAIResponses"]
