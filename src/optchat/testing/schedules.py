"""
Schedules: what several sessions do, step by step, as values that a test can draw, shrink and play.

Decides: what each step does to a memory.
Refuses to know: how schedules are drawn (:mod:`optchat.testing.strategies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from attrs import define, field, frozen

from optchat.core.errors import BadArgument
from optchat.core.messages import HostMessage
from optchat.core.terms import Outcome
from optchat.memory import Memory, Session, Turn
from optchat.testing.memories import close_beside, is_open_beside, open_beside


@frozen
class Step:
    """
    One valid action of a schedule; :func:`play` does it, or match on it yourself.

    - ``begin``: a turn of the session begins with ``message``; an earlier one that is open is interrupted.
    - ``add``: ``message`` is sealed into the session's open turn.
    - ``suspend``, ``resume``: of the session's turn.
    - ``end``: the open turn ends with ``outcome``.
    - ``settle``: the scope's summaries are made, and what waits for them is published.
    - ``reopen``: another handle on the file takes the first one's place, with the turns that are open; what it knows,
      it has from the file.
    - ``fork``: another session begins over the ended turns of this one. The first fork of ``session-0`` has the key
      ``session-0+1``, the second ``session-0+2``.
    - ``rewind``: the session goes back to before the last turn of its history, an open one included.
    - ``delete``: the session is deleted, with the turn that is open; its forks keep what they rest on. The next step of
      its key begins another session.
    """

    action: Literal["begin", "add", "suspend", "resume", "end", "settle", "fork", "rewind", "delete", "reopen"]
    scope: str
    session: str
    message: HostMessage | None = None
    outcome: Outcome | None = None


def play(memory: Memory, schedule: Sequence[Step]) -> Iterator[tuple[Step, Turn[HostMessage] | None]]:
    """
    Do a schedule's steps, one after the other, and yield after each.

    Args:
        memory: any scope's handle; steps of other scopes go to those of the same file.

    Yields:
        The step and the turn that it concerned; None for ``settle``, ``reopen``, ``fork``, ``rewind`` and ``delete``. A
        suspended turn can be read; after ``reopen`` and ``resume`` a session's turn is another object with the same id.

    Raises:
        BadArgument: a step that is not valid where it stands.
    """
    return _Player(memory).play(schedule)


@define
class _Player:
    """The handle in use, and the turn in progress of each session."""

    first: Memory
    now: Memory = field(init=False)
    turns: dict[tuple[str, str], Turn[HostMessage]] = field(factory=dict[tuple[str, str], Turn[HostMessage]])
    suspended: set[tuple[str, str]] = field(factory=set[tuple[str, str]])
    forks: dict[tuple[str, str], int] = field(factory=dict[tuple[str, str], int])

    def __attrs_post_init__(self) -> None:
        self.now = self.first

    def play(self, schedule: Sequence[Step]) -> Iterator[tuple[Step, Turn[HostMessage] | None]]:
        try:
            for step in schedule:
                yield step, self.do(step)
        finally:
            self._leave()

    def do(self, step: Step) -> Turn[HostMessage] | None:
        name = (step.scope, step.session)
        if step.action == "settle":
            self._scope(step.scope).settle()
            return None
        if step.action == "reopen":
            self._reopen()
            return None
        if step.action == "fork":
            self.forks[name] = self.forks.get(name, 0) + 1
            self._session(step).fork(fork_key(step.session, self.forks[name]))
            return None
        if step.action == "rewind":
            self._rewind(step)
            return None
        if step.action == "delete":
            self._session(step).delete()
            self.turns.pop(name, None)
            self.suspended.discard(name)
            return None
        if step.action == "begin":
            self.turns[name] = self._session(step).turn(_message(step))
            self.suspended.discard(name)
            return self.turns[name]
        turn = self.turns.get(name)
        if turn is None:
            raise BadArgument(
                f"step {step.action!r} of session {step.session!r} needs a turn in progress; begin it first"
            )
        if step.action == "add":
            turn.add(_message(step))
        elif step.action == "suspend":
            turn.suspend()
            self.suspended.add(name)
        elif step.action == "resume":
            turn = self.turns[name] = self._session(step).resume(turn.id)
            self.suspended.discard(name)
        else:
            if step.outcome is None:
                raise BadArgument("step 'end' needs an outcome; give one")
            turn.end(step.outcome)
            del self.turns[name]
            self.suspended.discard(name)
        return turn

    def _rewind(self, step: Step) -> None:
        session = self._session(step)
        page = session.turns(limit=200)
        while page.cursor is not None:
            page = session.turns(limit=200, cursor=page.cursor)
        if not page.items:
            raise BadArgument(
                f"step 'rewind' of session {step.session!r} needs a turn to go back before; begin one first"
            )
        session.rewind(before=page.items[-1].id)
        self.turns.pop((step.scope, step.session), None)
        self.suspended.discard((step.scope, step.session))

    def _scope(self, scope: str) -> Memory:
        return self.now if scope == self.now.scope else self.now.scoped(scope)

    def _session(self, step: Step) -> Session[HostMessage]:
        return self._scope(step.scope).session(step.session, recreate=True)

    def _reopen(self) -> None:
        for turn in self.turns.values():
            turn.suspend()
        before, self.now = self.now, open_beside(self.first)
        if is_open_beside(self.first, before):
            close_beside(self.first, before)
        for (scope, session), turn in list(self.turns.items()):
            resumed = self._scope(scope).session(session).resume(turn.id)
            if (scope, session) in self.suspended:
                resumed.suspend()
            self.turns[scope, session] = resumed

    def _leave(self) -> None:
        """The caller's handle stays the caller's. Another is closed, and its turns in progress are left suspended."""
        if is_open_beside(self.first, self.now):
            for turn in self.turns.values():
                turn.suspend()
            close_beside(self.first, self.now)


def fork_key(session: str, number: int) -> str:
    """The key of a session's fork, counted from 1."""
    return f"{session}+{number}"


def _message(step: Step) -> HostMessage:
    if step.message is None:
        raise BadArgument(f"step {step.action!r} needs a message; give one")
    return step.message
