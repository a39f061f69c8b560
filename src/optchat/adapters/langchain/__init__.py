"""
LangChain's agents and LangGraph's graphs (extra ``langchain``).

Decides: nothing; it names what an application uses.
Refuses to know: what it imports, until it is there.
"""

from optchat.core.errors import ConfigError

try:
    from optchat.adapters.langchain.codec import LangChainMessages
    from optchat.adapters.langchain.middleware import MemoryMiddleware
except ImportError as error:
    raise ConfigError("optchat.adapters.langchain needs langchain and langgraph; install optchat[langchain]") from error

__all__ = ["LangChainMessages", "MemoryMiddleware"]
