"""
Pydantic AI as a host (extra ``pydantic-ai``): one capability.

Decides: nothing; it names what is public, and says what is missing where the framework is not there, or too old.
Refuses to know: the framework's hooks.
"""

from importlib.util import find_spec

from optchat.core.errors import ConfigError

if find_spec("pydantic_ai") is None:
    raise ConfigError("optchat.adapters.pydantic_ai needs Pydantic AI; install optchat[pydantic-ai]")

from optchat.adapters.checking import check_host
from optchat.adapters.pydantic_ai.info import INFO

check_host(INFO)  # before anything of the framework is imported: an older one lacks the names, too

from optchat.adapters.pydantic_ai.capability import SharedMemory  # noqa: E402 - after the check
from optchat.adapters.pydantic_ai.codec import PydanticAIMessages  # noqa: E402

__all__ = ["PydanticAIMessages", "SharedMemory"]
