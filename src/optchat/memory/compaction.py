"""
What a command line asks of a scope's summaries besides working them (§ 4, § 10).

Decides: whose summarizer is meant.
Refuses to know: how nodes are made anew.
"""

from __future__ import annotations

from optchat.compactor.extractive import ExtractiveSummarizer
from optchat.core.errors import BadArgument
from optchat.engine import remaking
from optchat.memory.memory import Memory


def take_over(memory: Memory) -> None:
    """
    Make this handle's summarizer the scope's, whichever was before; failed jobs are armed again.

    Raises:
        BadArgument: it is the embedded default, which is no scope's.
    """
    house, scope = memory._house, memory._scope  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    house.writable()
    assert house.worker is not None, "a writable memory has one"
    if house.worker.is_rule:
        raise BadArgument("the embedded default takes no scope over; name another summarizer")
    remaking.take_over(scope, house.worker.summarizer.name)


def upgrade(memory: Memory) -> int:
    """
    Make anew, as jobs, what the embedded default summarised, and all that was made of it; how many nodes.

    ``settle()`` or a worker works them. Idempotent. Until then the old texts stay, and pins keep them for ever.
    """
    memory._house.writable()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
    return remaking.upgrade(memory._scope, ExtractiveSummarizer().name)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def stand_ins(memory: Memory) -> tuple[str, ...]:
    """The refs of what a stand-in stands for; each can be repaired."""
    return tuple(remaking.stand_ins(memory._scope))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - one façade
