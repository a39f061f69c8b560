"""
The middleware of an agent (§ 13).

Decides: what each of LangChain's hooks does for memory, and how a session's key comes from the run.
Refuses to know: how a turn is begun and ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired, cast

from attrs import define
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr, ToolCallRequest
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.config import get_config
from langgraph.runtime import Runtime
from langgraph.types import Command

from optchat.adapters.checking import check_host
from optchat.adapters.driving import plain
from optchat.adapters.langchain.codec import INFO
from optchat.adapters.langchain.runs import WATCH, End, Name, Run
from optchat.adapters.langchain.turns import (
    DrivenTurn,
    LoopThreads,
    Marks,
    begin,
    beginning,
    open_session,
    position,
    turn_id_of,
    was_begun,
)
from optchat.aio import AsyncMemory
from optchat.core.budget import Budget
from optchat.core.errors import BadArgument, ConfigError, HostUnsupported
from optchat.core.ports import HostInfo
from optchat.core.tools import MemoryTool, Tools
from optchat.memory import Memory

LANGGRAPH: HostInfo = HostInfo(name="langgraph", distribution="langgraph", version_floor="1.2.0")
_THREADS = 16  # of each event loop


class MemoryState(AgentState[Any]):
    """What a thread's state keeps for memory: of no input, and of no output."""

    optchat_request: NotRequired[Annotated[str, PrivateStateAttr]]
    optchat_before: NotRequired[Annotated[str | None, PrivateStateAttr]]
    optchat_last: NotRequired[Annotated[str, PrivateStateAttr]]
    optchat_within: NotRequired[Annotated[bool, PrivateStateAttr]]
    optchat_session: NotRequired[Annotated[str, PrivateStateAttr]]
    optchat_origin: NotRequired[Annotated[str | None, PrivateStateAttr]]


@define(eq=False)
class _Here:
    """Where a hook was called."""

    run: Run
    name: Name
    config: RunnableConfig

    @property
    def turn(self) -> DrivenTurn | None:
        held = self.run.held.get(self.name)
        return held if isinstance(held, DrivenTurn) else None


class MemoryMiddleware(AgentMiddleware[MemoryState, Any, Any]):
    """
    Memory for an agent of ``langchain.agents.create_agent``, synchronous or not.

    ::

        agent = create_agent(model, tools, middleware=[MemoryMiddleware(memory, budget), …], checkpointer=…)
        agent.invoke({"messages": [("user", "…")]}, {"configurable": {"thread_id": "chat-42"}})

    Each user's message begins a turn: its snapshot is pinned at the first model call and kept through the loop, over
    pauses too, in whatever process. Each model call gets what others decided, what this thread did, and the turn's own
    messages, instead of the thread's whole history. The thread's state is not changed, but for private fields that name
    the turn. The model has the memory tools beside its own.

    The outcome is the run's: ``completed`` where the agent came to its end, ``failed`` by an exception, ``interrupted``
    by a cancellation or a stream that was left; an interrupt for a human, or a breakpoint, suspends the turn, and
    ``Command(resume=…)`` takes it up. All of that is heard without further wiring.

    Put it first: then it sees what the other middlewares have made of a message, before it seals it.

    Args:
        memory: a memory, or one of ``optchat.aio``; both serve both kinds of run.
        budget: a model call's window.
        session_key: the session's key, of a run's configuration. None: its ``thread_id``.
        project: provenance of the sessions.

    Raises:
        HostUnsupported: langchain or langgraph is of a version that was not tested.
        BadArgument: ``memory`` is no memory.

    While an agent runs:

    Raises:
        ConfigError: the run has no ``thread_id``; or a message was changed after it was sealed.
        ResyncNeeded: the thread's earlier messages were changed in place: memory is off for it until
            ``session.resync(messages)``.
        MemoryNotReady, ContextTooLarge, ToolProtocolError, SessionBusy: as ``Turn.context`` and ``Session.turn``.
    """

    state_schema = MemoryState

    def __init__(
        self,
        memory: Memory | AsyncMemory,
        budget: Budget,
        *,
        session_key: Callable[[RunnableConfig], str] | None = None,
        project: str | None = None,
    ) -> None:
        super().__init__()
        check_host(INFO)
        check_host(LANGGRAPH)
        given: object = memory
        if not isinstance(given, (Memory, AsyncMemory)):
            raise BadArgument(f"a {type(given).__name__} is no memory; pass what optchat.open() gave")
        self._memory = plain(given)
        self._budget = budget
        self._session_key = session_key
        self._project = project
        self._threads = LoopThreads(_THREADS)
        self.tools: Sequence[BaseTool] = [self._tool(tool) for tool in Tools()]

    # ---- hooks -------------------------------------------------------------------------------------------------------

    def before_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Mark where the turn begins; once a turn, and not again when it is resumed. Nothing is sealed yet."""
        del runtime
        here = self._here()
        done = self._done(here, state)
        if done is not None:
            done.end(End(left=here.run.left))
        return self._mark(here, state)

    async def abefore_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """:meth:`before_agent`, awaited."""
        del runtime
        here = self._here()
        done = self._done(here, state)
        if done is not None:
            await done.end_async(End(left=here.run.left))
        return self._mark(here, state)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Send memory and the turn's own messages in place of the thread's; what came since is sealed."""
        marks = Marks.of(request.state)
        turn = self._turn(request.messages, marks)
        active = self._active(turn, request.messages, marks)
        if not marks.within:
            turn.asked = True
            turn.observe(active)
        return handler(request.override(messages=turn.send(active)))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """:meth:`wrap_model_call`, awaited."""
        marks = Marks.of(request.state)
        turn = await self._turn_async(request.messages, marks)
        active = self._active(turn, request.messages, marks)
        if not marks.within:
            turn.asked = True
            await self._threads.here().run(partial(turn.observe, active))
        return await handler(request.override(messages=await turn.send_async(active, self._budget)))

    def after_model(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Seal what the model said."""
        del runtime
        return self._observe(state)

    async def aafter_model(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """:meth:`after_model`, awaited."""
        del runtime
        here = self._here()
        return await self._threads.here().run(partial(self._observe, state, here))

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Take the turn up, where a resumed run begins with a tool; keep what the tool gave."""
        turn = self._turn_of_tool(request, self._here())
        result = handler(request)
        if turn is not None and isinstance(result, ToolMessage):
            turn.results[result.tool_call_id] = result
        return result

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """:meth:`wrap_tool_call`, awaited."""
        here = self._here()
        turn = await self._threads.here().run(partial(self._turn_of_tool, request, here))
        result = await handler(request)
        if turn is not None and isinstance(result, ToolMessage):
            turn.results[result.tool_call_id] = result
        return result

    def after_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The agent came to its end, by an answer or by a tool that gives it: seal the rest."""
        del runtime
        return self._finish(state, self._here())

    async def aafter_agent(self, state: MemoryState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """:meth:`after_agent`, awaited."""
        del runtime
        here = self._here()
        return await self._threads.here().run(partial(self._finish, state, here))

    # ---- what they share ---------------------------------------------------------------------------------------------

    def _here(self) -> _Here:
        config = get_config()
        run = WATCH.run_of(config)
        if run is None:
            raise HostUnsupported(
                "LangChain did not tell that this run began, so that its end would not be told either; pass callbacks="
                " as a list, or leave them out"
            )
        key = _thread(config) if self._session_key is None else self._session_key(config)
        given: object = key
        if not isinstance(given, str) or not given:
            raise ConfigError(
                "the run names no session; invoke the agent with {'configurable': {'thread_id': '…'}}, or give"
                " MemoryMiddleware a session_key="
            )
        return _Here(run, (str(self._memory.path), self._memory.scope, given), config)

    def _done(self, here: _Here, state: MemoryState) -> DrivenTurn | None:
        """
        The turn of an agent that is over, where another of the same run is asked something else: no longer held. One
        that failed is done in any case: the host goes on as after any failure.
        """
        with here.run.lock:
            turn = here.turn
            if turn is None or not turn.over:
                return None
            if turn.broken is None and not turn.asks_anew(state["messages"], Marks.of(state)):
                return None
            del here.run.held[here.name]
            here.run.ended.add(here.name)
            return turn

    def _mark(self, here: _Here, state: MemoryState) -> dict[str, Any]:
        messages, marks = state["messages"], Marks.of(state)
        turn = here.turn
        if turn is not None and self._encloses(turn, here):
            return {"optchat_within": True}  # an agent within the turn of another: what it says is its own
        if turn is not None and not turn.over and position(messages, turn.request) is None:
            raise _side_by_side(here)
        if turn is not None:  # an agent beside it, in the same run: the turn goes on with this one
            turn.goes_on(WATCH.graph_of(here.config))
            return {"optchat_request": turn.request, "optchat_within": False}
        request = messages[beginning(messages, marks)].id
        if request is None:
            raise ConfigError(
                "the state's messages have no ids, by which a turn is known; let add_messages reduce them, or give them"
                " ids"
            )
        here.run.begun.add(here.name)
        before = marks.before if request == marks.request else marks.request
        return {
            "optchat_request": request,
            "optchat_before": before,
            "optchat_within": False,
            "optchat_session": here.name[2],
            "optchat_origin": state.get("optchat_session"),
        }

    def _encloses(self, turn: DrivenTurn, here: _Here) -> bool:
        """Whether an agent runs within one whose turn it is: as its tool, or deeper down."""
        # Not by their namespaces: a run that names its thread has none of what is around it, and LangGraph numbers what
        # one task runs after its first graph as if it were within that.
        return WATCH.runs_within(here.config, list(turn.agents))

    def _begin(self, here: _Here, messages: Sequence[AnyMessage], marks: Marks) -> DrivenTurn:
        with here.run.lock:
            held = self._held(here, marks)
            if held is not None:  # begun by a tool beside this one
                return held
            if marks.within:
                raise HostUnsupported(
                    "an agent within another one's turn went on without it; let the outer agent go on first"
                )
            session = open_session(self._memory, here.name[2], marks, self._project)
            back = here.run.set_back and here.name not in here.run.ended
            turn = begin(session, messages, marks, self._budget, self._threads, set_back=back)
            turn.goes_on(WATCH.graph_of(here.config))
            here.run.held[here.name] = turn
            return turn

    def _held(self, here: _Here, marks: Marks) -> DrivenTurn | None:
        """The turn under way, which is this agent's, or encloses it."""
        turn = here.turn
        if turn is not None and not marks.within and marks.request not in (None, turn.request):
            raise _side_by_side(here)
        return turn

    def _turn(self, messages: Sequence[AnyMessage], marks: Marks) -> DrivenTurn:
        here = self._here()
        return self._held(here, marks) or self._begin(here, messages, marks)

    async def _turn_async(self, messages: Sequence[AnyMessage], marks: Marks) -> DrivenTurn:
        here = self._here()
        held = self._held(here, marks)
        return await self._threads.here().run(partial(self._begin, here, messages, marks)) if held is None else held

    def _active(self, turn: DrivenTurn, messages: Sequence[AnyMessage], marks: Marks) -> list[AnyMessage]:
        return list(messages) if marks.within else turn.own(messages)

    def _observe(self, state: MemoryState, here: _Here | None = None) -> dict[str, Any] | None:
        marks = Marks.of(state)
        if marks.within:
            return None
        there = here or self._here()
        messages = state["messages"]
        turn = self._held(there, marks) or self._begin(there, messages, marks)
        turn.observe(turn.own(messages))
        return {"optchat_last": messages[-1].id}

    def _finish(self, state: MemoryState, here: _Here) -> dict[str, Any] | None:
        if here.turn is None and not self._was_begun(here, Marks.of(state)):
            return None  # another middleware ended the run before a model was asked: there is no turn
        marked = self._observe(state, here)
        if marked is not None and here.turn is not None:
            here.turn.finished = True
        return marked

    def _was_begun(self, here: _Here, marks: Marks) -> bool:
        """Whether there is a turn at the end of a run that never asked for it: one that an earlier run began."""
        if here.name in here.run.begun or marks.request is None:
            return False
        return was_begun(open_session(self._memory, here.name[2], marks, self._project), turn_id_of(marks.request))

    def _turn_of_tool(self, request: ToolCallRequest, here: _Here) -> DrivenTurn | None:
        """The turn that a tool answers in; None within another one's turn, where its answer is nobody else's."""
        state: object = request.state
        kept = cast("Mapping[str, Any]", state if isinstance(state, Mapping) else {})
        marks = Marks.of(kept)
        if marks.within or marks.request is None:
            return None
        turn = self._held(here, marks) or self._begin(here, kept["messages"], marks)
        turn.asked = True  # the model did, for this very tool
        return turn

    # ---- memory tools ------------------------------------------------------------------------------------------------

    def _tool(self, tool: MemoryTool) -> BaseTool:
        """A memory tool as LangChain runs it; a model's mistake is an answer of status "error"."""

        def turn() -> DrivenTurn:
            found = self._here().turn
            if found is None:
                raise ToolException(f"{tool.name} was called outside of a turn")
            return found

        def run(**arguments: Any) -> str:
            output = turn().turn.call(tool.name, arguments)
            if output.is_error:
                raise ToolException(output.text)
            return output.text

        async def run_async(**arguments: Any) -> str:
            call = partial(turn().turn.call, tool.name, arguments)
            output = await self._threads.here().run(call)
            if output.is_error:
                raise ToolException(output.text)
            return output.text

        return StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=dict(tool.parameters),
            func=run,
            coroutine=run_async,
            handle_tool_error=True,
        )


def _side_by_side(here: _Here) -> ConfigError:
    return ConfigError(
        f"agents of the session {here.name[2]!r} run side by side, and were asked different things; give each a"
        " thread_id of its own, or MemoryMiddleware a session_key= that tells them apart"
    )


def _thread(config: RunnableConfig) -> str:
    value: object = config.get("configurable", {}).get("thread_id")
    return "" if value is None else str(value)
