"""
The words and figures that every room shares: the ground floor.

Decides: which outcomes, kinds and roles there are; the shape of the figures that errors carry.
Refuses to know: anything else. It imports no other room, so that errors may speak in these words.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from attrs import field, frozen

Outcome: TypeAlias = Literal["completed", "failed", "interrupted"]
RecordKind: TypeAlias = Literal["user", "assistant", "tool_call", "tool_result", "report", "note"]
HitKind: TypeAlias = Literal["user", "assistant", "tool_call", "tool_result", "report", "note", "summary"]
Role: TypeAlias = Literal["user", "assistant", "tool"]
BlockKind: TypeAlias = Literal["guidance", "shared", "session", "since", "previous_exchange", "checkpoint"]

OUTCOMES: tuple[Outcome, ...] = ("completed", "failed", "interrupted")
ROLES: tuple[Role, ...] = ("user", "assistant", "tool")


@frozen
class JobFailure:
    """A job that used up its attempts; ``error`` is the last one's text, never content."""

    ref: str
    kind: str
    attempts: int
    error: str
    at: datetime


@frozen
class TokenUse:
    """A request's parts in tokens; they add up to at most ``window``, each counted once (§ 7)."""

    window: int
    instructions: int
    output: int
    reserve: int
    active: int
    blocks: Mapping[BlockKind, int] = field(factory=dict[BlockKind, int])
    left: int = 0
