"""
The request path of § 13, as an integration's hooks walk it.

Decides: the order (admit, context before each model call, observe what is final, end with the outcome), and that a hook
which never ran stops the turn.
Refuses to know: any host: where its hooks are, and what its messages look like beyond the adapter's codec.

A host calls the hooks that it has. One that it does not call is the usual way in which memory is silently missing: the
model answers, and nothing was in its request. So what a driver observes first from an assistant has to come after a
context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from optchat.core.budget import Budget
from optchat.core.errors import HostUnsupported
from optchat.core.messages import HostMessage
from optchat.core.ports import HostAdapter
from optchat.core.terms import Outcome
from optchat.memory.session import Session
from optchat.memory.turn import Turn

M = TypeVar("M")


class Driver(Generic[M]):
    """
    One turn as a host's hooks drive it, made by :func:`admit` or :func:`take_up`; a ``with`` block ends it as a
    turn's own does.
    """

    def __init__(self, turn: Turn[M], adapter: HostAdapter[M], budget: Budget) -> None:
        self.turn = turn
        self._adapter, self._budget = adapter, budget
        # What an earlier process asked for counts: its answers are sealed already.
        self._asked = any(message.role == "assistant" for message in turn.messages)

    def before_model(self, active: Sequence[M]) -> list[M]:
        """
        What the host has to send instead of its list: memory, then the turn's own messages by identity, in a new list.

        Args:
            active: the turn's native messages so far, request first; nothing of earlier turns.

        Raises:
            MemoryNotReady, ContextTooLarge, ToolProtocolError, TurnEnded: as ``Turn.context``.
        """
        messages = self.turn.context(self._budget, active=active).messages
        self._asked = True
        return messages

    def observe(self, messages: Sequence[M]) -> tuple[str, ...]:
        """
        Seal what is new of the turn so far, request first, each message final. Idempotent.

        Raises:
            HostUnsupported: the model answered, and :meth:`before_model` never ran: its request had no memory. Nothing
                is sealed.
            TurnEnded, RevisionConflict, ResyncNeeded: as ``Turn.observe``.
        """
        if not self._asked and any(
            said.role == "assistant" for message in messages for said in self._adapter.decode(message)
        ):
            raise HostUnsupported(
                f"the host {self._adapter.info.name!r} asked its model without memory: the hook before the model call"
                " never ran; check that it is registered, and that this version of the host calls it"
            )
        return self.turn.observe(messages)

    def suspend(self) -> None:
        """Leave the turn open, with its snapshot, for :func:`take_up` in any process: an approval, a long wait."""
        self.turn.suspend()

    def end(self, outcome: Outcome, detail: str | None = None) -> None:
        """End the turn as the host tells it; the first terminal report wins."""
        self.turn.end(outcome, detail)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        self.turn.__exit__(et, e, tb)


def admit(
    session: Session[M],
    request: M | HostMessage,
    adapter: HostAdapter[M],
    budget: Budget,
    *,
    turn_id: str | None = None,
    prior: Callable[[Session[M]], object] | None = None,
) -> Driver[M]:
    """
    Begin the turn of an admitted request: its snapshot is pinned, and the request is sealed.

    Args:
        turn_id: the host's own name of the run, if it has one that is the same in a retry.
        prior: what has to be settled with the session first, before anything is pinned: a host whose history may have
            changed unseen reconciles here. What it raises is raised, and no turn begins.

    Raises:
        SessionBusy: another process's turn of this session is open.
    """
    if prior is not None:
        prior(session)
    return Driver(session.turn(request, turn_id=turn_id), adapter, budget)


def take_up(session: Session[M], adapter: HostAdapter[M], budget: Budget, *, turn_id: str | None = None) -> Driver[M]:
    """
    Go on with a suspended turn: the same turn, and the same snapshot.

    Raises:
        UnknownRef: no turn of the session is suspended.
    """
    return Driver(session.resume(turn_id), adapter, budget)
