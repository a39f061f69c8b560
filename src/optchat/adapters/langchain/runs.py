"""
Which run of a graph a hook is called in, and how that run ends.

Decides: what is one run: the outermost graph, with all that runs within it; and that its end is heard, whoever begins
it.
Refuses to know: memory, and what a turn is.

A middleware's own hooks see neither errors, nor cancellations, nor pauses: only a callback of the whole run does. One
that has to be passed with each call would be forgotten, and turns would silently stay open. So the one watch below
joins every run of this process, by LangChain's own hook for that; of runs without memory it keeps a table entry while
they last, and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from attrs import define, field, frozen
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp, ParentCommand

Name: TypeAlias = tuple[str, str, str]  # a session: its file, its scope, its key


@frozen
class End:
    """
    How a run ended: without an error, or with one. ``drained``: that asks for it to be taken up again. ``left``: an
    agent of it was left for another node of the graph.
    """

    error: BaseException | None = None
    drained: bool = False
    left: bool = False


class Ending(Protocol):
    """What is told the end of the run that it belongs to."""

    def end(self, end: End, /) -> None:
        """Here and now."""
        ...

    async def end_async(self, end: End, /) -> None:
        """Without keeping the loop waiting."""
        ...

    def left(self, graph: UUID, error: BaseException | None, /) -> None:
        """A graph that runs within is over, perhaps by an error that is caught further out. Nothing is waited for."""
        ...


@define(eq=False)
class Run:
    """
    A run of an outermost graph. ``set_back``: it was told which checkpoint to go on from. ``held``: what middlewares
    keep for as long as it lasts.
    """

    run_id: UUID
    set_back: bool = False
    held: dict[Name, Ending] = field(factory=dict[Name, Ending])
    begun: set[Name] = field(factory=set[Name])  # sessions whose agent began in this run
    ended: set[Name] = field(factory=set[Name])  # sessions of which a turn has ended in this run
    left: bool = False
    lock: threading.RLock = field(factory=threading.RLock)  # tools run side by side, and one turn is begun once


@frozen
class _Entry:
    run: Run
    within: bool  # in a node of the run's graph
    above: UUID | None = None  # what runs it: a node's, its graph


class Watch(BaseCallbackHandler):
    """
    The callback that every run of the process has.

    Inline: what it does at a beginning is one entry of a table, and a hop to a thread would cost more. Its errors are
    raised: a turn whose end could not be written is no success.
    """

    run_inline = True
    raise_error = True

    def __init__(self) -> None:
        self._entries: dict[UUID, _Entry] = {}

    # A token of a model, a document found: nothing is done for them, and there are many.

    @property
    def ignore_llm(self) -> bool:
        """Models are not listened to."""
        return True

    @property
    def ignore_chat_model(self) -> bool:
        """Models are not listened to."""
        return True

    @property
    def ignore_retriever(self) -> bool:
        """Retrievers are not listened to."""
        return True

    @property
    def ignore_custom_event(self) -> bool:
        """An application's own events are its own."""
        return True

    def run_of(self, config: RunnableConfig) -> Run | None:
        """The run that a node or a tool with this configuration belongs to; None if its beginning was not heard."""
        parent: object = getattr(config.get("callbacks"), "parent_run_id", None)
        entry = self._entries.get(parent) if isinstance(parent, UUID) else None
        return None if entry is None else entry.run

    def graph_of(self, config: RunnableConfig) -> UUID | None:
        """The run of the graph that a node with this configuration belongs to."""
        node: object = getattr(config.get("callbacks"), "parent_run_id", None)
        entry = self._entries.get(node) if isinstance(node, UUID) else None
        return None if entry is None else entry.above

    def runs_within(self, config: RunnableConfig, graphs: Iterable[UUID]) -> bool:
        """Whether a node's graph runs within one of some others: in a node of theirs, a tool, or deeper down."""
        others = frozenset(graphs)
        above = self.graph_of(config)
        while above is not None:
            entry = self._entries.get(above)
            above = None if entry is None else entry.above
            if above in others:
                return True
        return False

    # ---- beginnings --------------------------------------------------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A graph, a node of one, or anything else that runs."""
        del serialized, inputs, kwargs
        self._began(run_id, parent_run_id, metadata)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool, which may run an agent."""
        del serialized, input_str, kwargs
        self._began(run_id, parent_run_id, metadata)

    def _began(self, run_id: UUID, parent_run_id: UUID | None, metadata: Mapping[str, object] | None) -> None:
        # Nodes are marked in their metadata, and what runs within a node inherits that; a graph that merely runs in a
        # sequence, or in a function, is an outermost one itself.
        above = None if parent_run_id is None else self._entries.get(parent_run_id)
        told = metadata or {}
        if above is not None and (above.within or "langgraph_node" in told):
            self._entries[run_id] = _Entry(above.run, within=True, above=parent_run_id)
        else:
            self._entries[run_id] = _Entry(Run(run_id, "checkpoint_id" in told), within=False)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool is done."""
        del output, kwargs
        self._entries.pop(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool failed, or asks for a pause."""
        del error, kwargs
        self._entries.pop(run_id, None)

    # A manager of a loop awaits a coroutine function, and any other would keep the loop waiting for the database; one
    # without a loop would have to make a loop for a coroutine, at each end of any run. So each gets its own.

    @property
    def on_chain_end(self) -> Callable[..., Awaitable[None] | None]:  # pyright: ignore[reportIncompatibleMethodOverride] - the manager looks it up and calls it
        """A run is over."""
        return self._ended_async if _in_a_loop() else self._ended

    @property
    def on_chain_error(self) -> Callable[..., Awaitable[None] | None]:  # pyright: ignore[reportIncompatibleMethodOverride] - the manager looks it up and calls it
        """A run failed, was cancelled, or pauses."""
        return self._failed_async if _in_a_loop() else self._failed

    def _ended(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del outputs, kwargs
        run = self._over(run_id)
        if run is not None:
            for held in run.held.values():
                held.end(End(left=run.left))

    async def _ended_async(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        del outputs, kwargs
        run = self._over(run_id)
        if run is not None:
            for held in run.held.values():
                await held.end_async(End(left=run.left))

    def _failed(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        run = self._over(run_id, error)
        if run is not None:
            for held in run.held.values():
                held.end(End(error, isinstance(error, GraphBubbleUp)))

    async def _failed_async(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        del kwargs
        run = self._over(run_id, error)
        if run is not None:
            for held in run.held.values():
                await held.end_async(End(error, isinstance(error, GraphBubbleUp)))

    def _over(self, run_id: UUID, error: BaseException | None = None) -> Run | None:
        """Forget a run; it, if it was an outermost one."""
        entry = self._entries.pop(run_id, None)
        if entry is None:
            return None
        if entry.run.run_id == run_id:
            return entry.run
        if isinstance(error, ParentCommand):  # a handoff, which leaves an agent's graph without its end
            entry.run.left = True
        for held in list(entry.run.held.values()):
            held.left(run_id, None if isinstance(error, GraphBubbleUp) else error)
        return None


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


WATCH: Final = Watch()
register_configure_hook(ContextVar("optchat_watch", default=WATCH), inheritable=True)
