"""
The arithmetic of § 7: each component of a request charged once, in tokens.

Decides: what is left for memory, and how shared and own memory divide it.
Refuses to know: text. It sees only counts.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.ports import Tokenizer


@frozen
class Budget:
    """
    One call's window (§ 7), in tokens.

    ``instructions``: everything sent besides ``Context.messages``, memory tools included. ``tokenizer``: None is the
    memory's own.
    """

    window: int
    output: int
    instructions: int = 0
    reserve: int = 512
    tokenizer: Tokenizer | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("window", "output", "instructions", "reserve"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise BadArgument(f"Budget.{name} is a number of tokens, 0 or more; got {value!r}")
        if self.window == 0:
            raise BadArgument("Budget.window is 0 tokens; give the model's input-plus-output window")


def available_memory(budget: Budget, active: int) -> int:
    """W - I - A - O - R, not below 0 (§ 7)."""
    return max(0, budget.window - budget.instructions - active - budget.output - budget.reserve)


@frozen
class Allotment:
    """How many tokens each side of memory may use."""

    shared: int
    own: int


def allot(available: int, shared_share: float, shared_wants: int, own_wants: int) -> Allotment:
    """
    Divide what is available between shared memory and the session's own (with the previous exchange).

    The split is ``shared_share`` to the rest (§ 7: 30 to 70). What one side does not want moves to the other.
    """
    shared = int(available * shared_share)
    own = available - shared
    if shared_wants < shared:
        return Allotment(shared_wants, min(own_wants, available - shared_wants))
    if own_wants < own:
        return Allotment(min(shared_wants, available - own_wants), own_wants)
    return Allotment(shared, own)
