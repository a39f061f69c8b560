"""
The items of openai-agents.

Decides: what the host is, and what of its lifecycle can be seen.
Refuses to know: what an item says: they are those of OpenAI's responses.

Item ids are no keys: the SDK gives ``__fake_id__`` to all that a provider without responses says.
"""

from __future__ import annotations

from typing import Final

from optchat.adapters.openai.responses import OpenAIResponses
from optchat.core.ports import HostInfo

HOST: Final = HostInfo(
    name="openai-agents",
    distribution="openai-agents",
    version_floor="0.22",
    # A Session can be popped, cleared and switched to another branch, and nobody is told: it is compared at admission.
    fork="unobservable",
    edit="unobservable",
    delete="unobservable",
    compaction="absent",  # a Session that compacts itself is refused
    pause="observed",
    words_between=True,
    drops_unfinished=True,  # what the last step of a run that failed said is not saved
)


class AgentsItems(OpenAIResponses):
    """The codec of ``TResponseInputItem``: OpenAI's responses, as openai-agents has them for every provider."""

    @property
    def info(self) -> HostInfo:
        return HOST
