"""
A turn as a LangGraph run drives it (§ 13).

Decides: how a turn is taken up, or begun, of a thread's state; that the thread's history is compared first, and which
difference is time travel; which of the state's messages are the turn's, and what is sealed of them.
Refuses to know: hooks and callbacks.

A turn is known by the id of the message that began it, which the thread's state keeps: so that whoever goes on with the
thread, in whatever process, goes on with the same turn, and a graph that was set back to an older checkpoint names an
older one.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from attrs import define, field, frozen
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from optchat.adapters.driving import Driver, admit, take_up
from optchat.adapters.langchain.codec import INFO, LangChainMessages, is_summary
from optchat.adapters.langchain.runs import End
from optchat.aio.threads import Threads
from optchat.aio.turn import AsyncTurn
from optchat.core.budget import Budget
from optchat.core.errors import (
    BadArgument,
    ConfigError,
    HostUnsupported,
    ResyncNeeded,
    RevisionConflict,
    SessionDeleted,
    TurnEnded,
    UnknownRef,
)
from optchat.core.messages import HostMessage, Part, ReportPart, ToolResultPart
from optchat.core.retrieval import TurnInfo
from optchat.core.terms import Outcome
from optchat.memory import Memory, Session, Turn

CODEC: Final = LangChainMessages()
_LONGEST_ID: Final = 200

ThreadSession: TypeAlias = Session[AnyMessage]


class LoopThreads:
    """
    Threads for each event loop that a memory is used in.

    A service has one middleware, and perhaps a loop in each of its threads; and where an agent is run in a loop without
    being awaited, LangChain tells the run's end in a loop of its own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._of_loop = WeakKeyDictionary[asyncio.AbstractEventLoop, Threads]()

    def here(self) -> Threads:
        """Those of the loop that runs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            threads = self._of_loop.get(loop)
            if threads is None:
                threads = self._of_loop[loop] = Threads(self._most)
            return threads


@frozen
class Marks:
    """
    What a thread's state keeps of memory, checkpoint by checkpoint.

    ``request``: the id of the message that began the turn. ``before``: that of the turn before. ``last``: the newest
    message that the turn has sealed. ``within``: the agent runs within another one's turn. ``origin``: the key of the
    session that the turn before was of, which is another one in a thread that was copied.
    """

    request: str | None = None
    before: str | None = None
    last: str | None = None
    within: bool = False
    origin: str | None = None

    @staticmethod
    def of(state: object) -> Marks:
        kept = cast("Mapping[str, object]", state)
        request, before, last, origin = (
            value if isinstance(value, str) else None
            for value in (kept.get(f"optchat_{name}") for name in ("request", "before", "last", "origin"))
        )
        return Marks(request, before, last, kept.get("optchat_within") is True, origin)


# ---- which messages --------------------------------------------------------------------------------------------------


def beginning(messages: Sequence[AnyMessage], marks: Marks) -> int:
    """
    Where the turn begins that a thread is about to have: at the first thing that the user said since the last one.

    Not at the user's messages at the end: one that a failed turn left behind stands there as well. Where the thread's
    messages were cut, and nothing of the last turn is there, those at the end are all there is to go by. Where the user
    said nothing new, the last request is what is asked again.

    Raises:
        BadArgument: nobody asked anything.
    """
    known = [number for number, message in enumerate(messages) if message.id in (marks.request, marks.last)]
    if known and marks.request is not None:
        start = known[-1] + 1
    else:
        said = [number for number, message in enumerate(messages) if not _is_request(message)]
        start = said[-1] + 1 if said else 0
    requests = [number for number, message in enumerate(messages) if _is_request(message)]
    if not requests:
        raise BadArgument("a turn begins with a user's message, and the state has none; invoke the agent with one")
    return next((number for number in requests if number >= start), requests[-1])


def position(messages: Sequence[AnyMessage], message_id: str | None) -> int | None:
    """Where a message stands; None if the thread has it no more."""
    return next((number for number, message in enumerate(messages) if message.id == message_id), None)


def _is_request(message: AnyMessage) -> bool:
    return isinstance(message, HumanMessage) and not is_summary(message)


def own_messages(messages: Sequence[AnyMessage], request: str, known: Mapping[str, object]) -> list[AnyMessage]:
    """
    A turn's messages: from its request on. Where the host has put a summary in the request's place, that summary, and
    what follows of the turn.
    """
    start = position(messages, request)
    if start is None:
        start = next((number for number, message in enumerate(messages) if message.id in known), len(messages))
        while start and is_summary(messages[start - 1]):
            start -= 1
    return list(messages[start:])


# ---- beginning -------------------------------------------------------------------------------------------------------


def open_session(memory: Memory, key: str, marks: Marks, project: str | None) -> ThreadSession:
    """The thread's session. That of a copied thread is made as a fork, so that nothing is published a second time."""
    if marks.origin is not None and marks.origin != key and marks.before is not None:
        try:
            return memory.session(key, adapter=CODEC, host=INFO.name, create=False)
        except UnknownRef:
            forked = _fork(memory, marks.origin, key, turn_id_of(marks.before))
            if forked is not None:
                return forked
    return memory.session(key, adapter=CODEC, host=INFO.name, project=project)


def _fork(memory: Memory, origin: str, key: str, after: str) -> ThreadSession | None:
    """None where the origin, or its turn, is no more: then the copy's messages are all that there is to go by."""
    try:
        parent = memory.session(origin, adapter=CODEC, host=INFO.name, create=False)
        try:
            return parent.fork(key, after=after)
        except BadArgument:  # it has not ended, and what it said so far is caught up with
            return parent.fork(key)
    except (SessionDeleted, UnknownRef):
        return None


def begin(
    session: ThreadSession,
    messages: Sequence[AnyMessage],
    marks: Marks,
    budget: Budget,
    threads: LoopThreads,
    *,
    set_back: bool = False,
) -> DrivenTurn:
    """
    The turn that a thread's state names: taken up if it is suspended, else begun.

    One that has ended already is begun anew, in the place of what was said of it and after it: the host goes on from
    within it, after a failure, or after being set back. So is one whose request was changed.

    Args:
        set_back: the run was told which checkpoint to go on from.

    Raises:
        ResyncNeeded: the thread's earlier messages are not what was sealed of them, and the host was not set back.
        SessionBusy: the session's open turn runs elsewhere.
        BadArgument: the state has lost the turn's request, and nothing of it is sealed.
    """
    if marks.request is None:
        raise ConfigError(
            "the agent's state names no turn: MemoryMiddleware.before_agent did not run; let the agent begin at its"
            " first node"
        )
    turn_id = turn_id_of(marks.request)
    start = position(messages, marks.request)
    driver = _taken_up(session, turn_id, budget, None if start is None else messages[start:])
    if driver is not None:
        return DrivenTurn(driver, threads, marks.request, asked=True)
    if start is None:
        raise BadArgument("the state has lost the message that began this turn; begin another with a new message")
    _compare(session, messages[:start], marks.before, set_back=set_back)
    try:
        driver = admit(session, messages[start], CODEC, budget, turn_id=turn_id)
    except RevisionConflict:
        driver = None
    if driver is not None and driver.turn.outcome is None:
        return DrivenTurn(driver, threads, marks.request)
    session.rewind(before=turn_id)
    driver = admit(session, messages[start], CODEC, budget, turn_id=turn_id)
    return DrivenTurn(driver, threads, marks.request, asked=True)


def turn_id_of(request: str) -> str:
    """The id of the turn that a message began."""
    if len(request) <= _LONGEST_ID:
        return request
    return hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest()


def _taken_up(
    session: ThreadSession, turn_id: str, budget: Budget, host: Sequence[AnyMessage] | None
) -> Driver[AnyMessage] | None:
    """The suspended turn, if the host goes on with it where it was left. One that was changed meanwhile begins anew."""
    try:
        driver = take_up(session, CODEC, budget, turn_id=turn_id)
    except UnknownRef:
        return None
    if host is not None and not _goes_on(driver.turn, host):
        session.rewind(before=turn_id)
        return None
    return driver


def _goes_on(turn: Turn[AnyMessage], host: Sequence[AnyMessage]) -> bool:
    """Whether the host has all that is sealed of a turn, as it was said; reports and notes may be memory's alone."""
    sealed = list(_comparable(turn.messages))
    held = list(_comparable(said for native in host for said in CODEC.decode(native)))
    return held[: len(sealed)] == sealed


def _comparable(messages: Sequence[HostMessage] | Iterator[HostMessage]) -> Iterator[tuple[str, object]]:
    for message in messages:
        for part in message.parts:
            if not isinstance(part, ReportPart):
                yield message.role, _identity(part)


def _identity(part: Part) -> object:
    return part.call_id if isinstance(part, ToolResultPart) else part  # a memory tool's answer is not kept as text


def _compare(session: ThreadSession, history: Sequence[AnyMessage], before: str | None, *, set_back: bool) -> None:
    """
    Compare a thread's earlier messages with what is sealed of them.

    Where they differ because the thread was set back to an older checkpoint, or goes on from another branch, the
    session follows: the state names its last turn, which is then not the session's last. Any other difference stands.

    Without a mark of a turn before, the messages are what a program keeps by itself, perhaps only the newest of them,
    perhaps under new ids: they are taken over by an empty session, and else not looked at. But where the run was told
    its checkpoint, the thread was set back to before its first turn.
    """
    if before is None:
        if set_back:
            session.resync(history)
        elif any(CODEC.decode(message) for message in history) and session.info().length == 0:
            session.reconcile(history)
        return
    if not any(CODEC.decode(message) for message in history):
        return
    try:
        session.reconcile(history)
    except ResyncNeeded:
        if _is_last(session, turn_id_of(before)):
            raise
        session.resync(history)


def was_begun(session: ThreadSession, turn_id: str) -> bool:
    """Whether a turn is in the session's present history, ended or not."""
    return any(turn.id == turn_id for turn in _turns(session))


def _is_last(session: ThreadSession, turn_id: str) -> bool:
    """Whether a turn is the session's last; of those that somebody asked for, notes and reports aside."""
    last: str | None = None
    for turn in _turns(session):
        if turn.request:
            last = turn.id
    return last == turn_id


def _turns(session: ThreadSession) -> Iterator[TurnInfo]:
    cursor: str | None = None
    while True:
        page = session.turns(limit=200, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


def _failure(error: BaseException) -> Outcome:
    """Whether a run was stopped, or failed. LangGraph wraps a node's own cancellation into an exception."""
    stopped = not isinstance(error, Exception) or isinstance(error.__cause__, asyncio.CancelledError)
    return "interrupted" if stopped else "failed"


# ---- the turn --------------------------------------------------------------------------------------------------------


@define(eq=False)
class DrivenTurn:
    """A turn under way in a run. Its methods may be called from several threads, as tools run side by side."""

    driver: Driver[AnyMessage]
    threads: LoopThreads
    request: str
    asked: bool = False  # an answer may have come: the hook before the model ran, here or in an earlier run
    finished: bool = False  # the agent reached its end
    agents: set[UUID] = field(factory=set[UUID])  # the runs of its agents' graphs that are under way
    broken: tuple[Outcome, str] | None = None  # an agent failed, and somebody caught the error
    results: dict[str, ToolMessage] = field(factory=dict[str, ToolMessage])  # the state may never get them
    _seen: dict[str, AnyMessage] = field(factory=dict[str, AnyMessage])  # by id, as it was sealed

    @property
    def turn(self) -> Turn[AnyMessage]:
        return self.driver.turn

    @property
    def over(self) -> bool:
        """Whether no agent of it is under way: they reached their ends, paused, failed, or handed over."""
        return not self.agents

    def goes_on(self, agent: UUID | None) -> None:
        """With an agent of the same run: the first, or one after or beside another."""
        if agent is not None:
            self.agents.add(agent)
        self.finished = False

    def asks_anew(self, messages: Sequence[AnyMessage], marks: Marks) -> bool:
        """
        Whether the state of an agent that begins asks something else. Where a graph passes messages on to its next
        agent, whatever is among them is the turn's; a thread of its own, which has marks, tells what is new of it.

        Raises:
            BadArgument: as :func:`beginning`.
        """
        if marks.request is None and any(
            message.id == self.request or message.id in self._seen for message in messages
        ):
            return False
        request = messages[beginning(messages, marks)].id
        return request != self.request and request not in self._seen

    def own(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Of a thread's messages, the turn's."""
        return own_messages(messages, self.request, self._seen)

    def send(self, active: Sequence[AnyMessage]) -> list[AnyMessage]:
        """What the model is sent: memory, then the turn's own messages by identity."""
        return self.driver.before_model(active)

    async def send_async(self, active: Sequence[AnyMessage], budget: Budget) -> list[AnyMessage]:
        """:meth:`send`, without keeping the loop waiting, or a thread while summaries are waited for."""
        threads = self.threads.here()
        turn = await threads.run(lambda: AsyncTurn(threads, self.turn))
        return (await turn.context(budget, active=active)).messages

    def observe(self, messages: Sequence[AnyMessage]) -> None:
        """
        Seal what is new of the turn; what has no id yet is not in the state, and comes again.

        One by one as it comes, and not the whole turn each time: ids are keys, so that nothing is sealed twice,
        whatever the host has cut out meanwhile, and a long loop costs what its messages do.

        Raises:
            HostUnsupported: the model answered, and was asked without memory.
            ConfigError: a message changed after it was sealed.
        """
        new = [message for message in messages if message.id is not None and self._seen.get(message.id) is not message]
        if not new:
            return
        if not self.asked and any(isinstance(message, AIMessage) for message in new):
            raise HostUnsupported(
                "the agent's model was asked without memory: MemoryMiddleware.wrap_model_call never ran; leave it as"
                " it is in a subclass"
            )
        try:
            self.turn.add(*new)
        except RevisionConflict as error:
            raise ConfigError(
                "a message was changed after memory had sealed it, by another middleware perhaps; put MemoryMiddleware"
                " first in middleware=[…], so that it sees what the others have made of it"
            ) from error
        self._seen |= {message.id: message for message in new if message.id is not None}

    def left(self, graph: UUID, error: BaseException | None, /) -> None:
        """A graph within the run is over, perhaps an agent's own."""
        if graph in self.agents:
            self.agents.discard(graph)
            if error is not None:
                self.broken = (_failure(error), type(error).__name__)

    # ---- end ---------------------------------------------------------------------------------------------------------

    def end(self, end: End, /) -> None:
        """
        End the turn as its run ended, or leave it suspended.

        Where the run has an error of its own, that is the one to see: what goes wrong here is told beside it.
        """
        if end.error is None:
            self._end(end)
            return
        try:
            self._end(end)
        except Exception as ending:  # noqa: BLE001 - whatever it is, the run's own error must not be hidden by it
            end.error.add_note(f"optchat could not end the turn: {ending}")

    async def end_async(self, end: End, /) -> None:
        """:meth:`end`, in a thread, whatever is cancelled."""
        await self.threads.here().finish(lambda: self.end(end))

    def _end(self, end: End) -> None:
        failure = self.broken
        if end.error is not None and not end.drained:
            failure = (_failure(end.error), type(end.error).__name__)
        if failure is None and not self.finished and not end.left:
            # The agent did not come to its end, and nothing failed: it waits, for a human or at a breakpoint.
            with suppress(TurnEnded):  # by whoever began another one
                self.driver.suspend()
            return
        if failure is not None:
            self._seal_results()
        self.driver.end(*(failure or ("interrupted" if self.turn.pending else "completed", None)))

    def _seal_results(self) -> None:
        """What tools gave whose neighbour failed: they did answer, though the state will never say so."""
        for call in self.turn.pending:
            result = self.results.get(call.call_id)
            if result is not None:
                self.turn.add(result)
