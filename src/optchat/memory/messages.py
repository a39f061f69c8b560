"""
Messages as they are handed over: native or neutral.

Decides: how a message is had in both forms.
Refuses to know: turns.
"""

from __future__ import annotations

from typing import Generic, TypeGuard, TypeVar, cast

from attrs import evolve, frozen

from optchat.core.messages import HostMessage
from optchat.core.ports import HostAdapter, WireAdapter
from optchat.engine.neutral import NeutralAdapter

M = TypeVar("M")


def can_rebuild(adapter: HostAdapter[M]) -> TypeGuard[WireAdapter[M]]:
    """Whether an adapter makes natives of sealed messages."""
    return callable(getattr(adapter, "rebuild", None))


@frozen
class Taken(Generic[M]):
    """A message as it was handed over: neutral, and the native that it came as, if it did."""

    neutral: tuple[HostMessage, ...]
    natives: tuple[M, ...] = ()


def take(adapter: HostAdapter[M], message: M | HostMessage, key: str | None = None) -> Taken[M]:
    """A message in both forms; ``key`` is the event key of its first part."""
    if isinstance(message, HostMessage):
        neutral: tuple[HostMessage, ...] = (message,)
        natives = cast("tuple[M, ...]", neutral) if isinstance(adapter, NeutralAdapter) else ()
    else:
        neutral, natives = tuple(adapter.decode(message)), (message,)
    if key is not None and neutral:
        neutral = (evolve(neutral[0], key=key), *neutral[1:])
    return Taken(neutral, natives)
