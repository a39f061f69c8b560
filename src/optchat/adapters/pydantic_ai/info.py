"""
What Pydantic AI is as a host.

Decides: the versions that were tested, and which of its lifecycle can be seen.
Refuses to know: the framework: it is not imported here.
"""

from typing import Final

from optchat.core.ports import HostInfo

INFO: Final = HostInfo(
    name="pydantic-ai",
    distribution="pydantic-ai-slim",
    version_floor="2.64",  # the first that calls prepare_model_request; an older one never does, and says nothing
    version_below="3",
    edit="observed",  # a history that differs is seen when the next run brings it
    fork="unobservable",
    delete="unobservable",
    compaction="unobservable",
    pause="observed",
)
