"""
Shared memory as a capability of an agent.

Decides: which session a run is of, and which of a run's moments is which step of the request path (§ 13).
Refuses to know: what a message says (:mod:`.codec`), which messages are the turn's (:mod:`.chain`), and what a history
may lack (:mod:`.history`).

``prepare_model_request`` is the hook that changes what is sent and nothing else: a history processor's list, and what
``before_model_request`` leaves behind, is what the application stores. Its turn begins in ``wrap_run`` and not in
``for_run``, which the framework also calls for runs that never start, and where nothing would end it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Generic, cast

import anyio.to_thread
from attrs import evolve, frozen
from pydantic_ai import DeferredToolRequests, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, WrapRunHandler
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AgentToolset, FunctionToolset

from optchat.adapters.checking import check_host
from optchat.adapters.driving import AsyncDriver, admit_async, awaited, take_up_async
from optchat.adapters.pydantic_ai.chain import goes_on, is_open, is_waiting, request_of, run_ids, split_head, turn_start
from optchat.adapters.pydantic_ai.codec import CODEC
from optchat.adapters.pydantic_ai.history import whole_history
from optchat.adapters.pydantic_ai.info import INFO
from optchat.aio import AsyncMemory, AsyncSession
from optchat.core.budget import Budget
from optchat.core.errors import BadArgument, HostUnsupported, UnknownRef
from optchat.core.messages import HostMessage
from optchat.core.ports import Tokenizer
from optchat.core.terms import Outcome
from optchat.core.tools import MemoryTool, Tools
from optchat.memory.memory import Memory

_ID: Final = "optchat"
_HOOKS: Final = ("for_run", "get_toolset", "prepare_model_request", "after_node_run", "wrap_run")
# History that the provider holds: it would be there beside memory, and every turn's memory would stay in it.
_HELD_BY_PROVIDER: Final = {"openai_conversation_id": (None,), "openai_previous_response_id": (None, "auto")}

_RUNNING: ContextVar[_Run[Any] | None] = ContextVar("optchat_pydantic_ai_run", default=None)


@frozen
class Place:
    """Where a capability's sessions are: as of ``memory.session``."""

    host: str
    project: str | None
    worktree: str | None
    commit: str | None
    title: str | None
    isolated: bool


class SharedMemory(AbstractCapability[AgentDepsT]):
    """
    ``Agent(…, capabilities=[SharedMemory(memory, budget)])``: each run is a turn of a session of this memory (§ 13).

    Each model request gets memory, then the run's own messages; what the application stores has no word of it, and
    instructions, system prompts, tools, settings and the model stay its own. Memory's tools come beside. A run that
    ends in ``DeferredToolRequests`` suspends its turn; the run that brings the results goes on with it, in whatever
    process. A history handed to a run is reconciled with what is sealed before anything else; without one, memory
    alone has the earlier turns. An agent that runs within a turn of the same session is part of it: it is given its
    memory, and leaves only what its caller makes of its answer.

    Args:
        memory: plain or awaited. Its waits take no thread of the event loop.
        budget: the model's window. With ``instructions=0`` what is sent beside the messages (instructions, system
            prompts, the schemas of all tools) is measured for each request; else it is taken as given.
        session: the session's key, or how to tell it from a run: by its deps, say. None: the run's
            ``conversation_id``, which the framework takes from the argument or from the history, and else makes anew.
            One agent serves any number of sessions; of one session, one run at a time.
        host: with the key, what makes a session unique in its scope.
        project, worktree, commit, title, isolated: as for ``memory.session``.

    Raises:
        HostUnsupported: a version of Pydantic AI that was not tested, or one that lacks a hook.

    A run raises besides:
        ResyncNeeded: its history is not what is sealed. Memory is off for the session until ``session.resync``.
        MemoryNotReady, ContextTooLarge: before the model is asked.
        HostUnsupported: the model was not asked by this hook, but answered; or the provider holds the history; or it
            is a realtime session.
        BadArgument: it has no user's request to begin a turn with.
    """

    id = _ID

    def __init__(
        self,
        memory: Memory | AsyncMemory,
        budget: Budget,
        *,
        session: str | Callable[[RunContext[AgentDepsT]], str] | None = None,
        host: str = INFO.name,
        project: str | None = None,
        worktree: str | None = None,
        commit: str | None = None,
        title: str | None = None,
        isolated: bool = False,
    ) -> None:
        check_host(INFO)
        missing = [hook for hook in _HOOKS if not hasattr(AbstractCapability, hook)]
        if missing:
            raise HostUnsupported(
                f"Pydantic AI calls no {missing[0]}; install {INFO.distribution}>={INFO.version_floor}"
            )
        if session is not None and not isinstance(session, str) and not callable(session):
            raise BadArgument(
                f"session is a key, or a function of a run, not {type(session).__name__}; or leave it out"
            )
        self._memory, self._budget, self._session = memory, budget, session
        self._place = Place(host, project, worktree, commit, title, isolated)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: a memory is no part of a specification in a file."""
        return None

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[AgentDepsT]]) -> AbstractCapability[AgentDepsT]:
        """
        Raises:
            BadArgument: an agent has one shared memory: a run is a turn of one session.
        """
        del capabilities
        raise BadArgument("an agent has one SharedMemory; pass another to a single run as run(capabilities=[…])")

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> AbstractCapability[AgentDepsT]:
        """The run's own capability: an agent may run many times at once."""
        if ctx.realtime:
            raise HostUnsupported("a realtime session asks its model by no hook that memory could use; run it without")
        key = self._session
        if callable(key):
            key = key(ctx)
        if key is None:
            key = ctx.conversation_id
        if not key:
            raise BadArgument("the run's session has no key; give SharedMemory a session, or the run a conversation_id")
        return _Run(awaited(self._memory), self._budget, key, self._place)


class _Run(AbstractCapability[AgentDepsT], Generic[AgentDepsT]):
    """One run: a turn, or a part of one that was suspended, or of one that runs around it."""

    id = _ID

    def __init__(self, memory: AsyncMemory, budget: Budget, key: str, place: Place) -> None:
        self._memory, self._budget, self._key, self._place = memory, budget, key, place
        self._driver: AsyncDriver[ModelMessage] | None = None
        self._nested = False
        self._around: _Run[Any] | None = None  # the run that this one began in
        self._is_running = False
        self._session: AsyncSession[ModelMessage] | None = None
        self._before: ModelMessage | None = None  # the first message of an earlier run of the turn
        self._taken_up = False  # it was suspended, and nothing has come of it yet
        self._asked = False
        self._observed = 0  # how many messages of the turn
        self._live: list[ModelMessage] = []  # the run's own list; the one of wrap_run's context is of before it began

    # ---- the run -----------------------------------------------------------------------------------------------------

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Begin the turn, or take it up; after the run end it by what happened, or suspend it."""
        self._around = around = _RUNNING.get()
        while around is not None and not around.holds(self):
            around = around._around  # an agent of another session may run between  # noqa: SLF001
        if around is not None:
            self._driver, self._nested = around.driver, True
            return await handler()
        self._live = ctx.messages
        await self._begin(ctx)
        self._is_running = True
        _RUNNING.set(self)  # of this task, and of those that it starts
        try:
            result = await handler()
        except BaseException as error:
            self._is_running = False
            await self._break_off(ctx, error)
            raise
        self._is_running = False
        said = self._turn(result.all_messages(), ctx.run_id)
        if isinstance(result.output, DeferredToolRequests):
            await self.driver.pause(said)
        else:
            await self.driver.close(said, "completed")
        return result

    async def _begin(self, ctx: RunContext[AgentDepsT]) -> None:
        place = self._place
        self._session = await self._memory.session(
            self._key,
            adapter=CODEC,
            host=place.host,
            project=place.project,
            worktree=place.worktree,
            commit=place.commit,
            title=place.title,
            isolated=place.isolated,
        )
        history = list(ctx.messages)
        if ctx.prompt is not None and not is_waiting(history):
            await self._admit(ctx, ModelRequest(parts=[UserPromptPart(ctx.prompt)]), history)
            return
        start = turn_start(history, None) if is_open(history) else len(history)
        request = request_of(history[start:])
        if request is None:
            raise BadArgument(
                "a turn begins with a user's request; give the run a user_prompt, or run it without memory"
            )
        self._before = history[start]
        whole = await self._whole(history[:start])
        if whole is not None:
            await self._session.reconcile(whole)
        if not await self._take_up(run_ids(history[start:])):
            await self._admit(ctx, request, ())

    async def _admit(self, ctx: RunContext[AgentDepsT], request: ModelRequest, history: Sequence[ModelMessage]) -> None:
        assert self._session is not None, "wrap_run began with it"
        whole = await self._whole(history)
        self._driver = await admit_async(self._session, request, CODEC, self._budget, turn_id=ctx.run_id, history=whole)

    async def _take_up(self, runs: Sequence[str]) -> bool:
        """Go on with the suspended turn of a chain of runs, if there is one."""
        assert self._session is not None, "wrap_run began with it"
        for turn_id in reversed(runs):  # of a turn that was begun anew over an earlier one, the last is it
            try:
                driver = await take_up_async(self._session, CODEC, self._budget, turn_id=turn_id)
            except UnknownRef:
                continue
            self._driver, self._taken_up = driver, True
            return True
        return False

    async def _whole(self, history: Sequence[ModelMessage]) -> Sequence[ModelMessage | HostMessage] | None:
        """What to reconcile with; None without a history: then the application leaves it to memory."""
        if not history:
            return None
        memory, place, key = self._memory.sync, self._place, self._key
        return await anyio.to_thread.run_sync(
            lambda: whole_history(
                memory, memory.session(key, adapter=CODEC, host=place.host, isolated=place.isolated), history
            )
        )

    async def _break_off(self, ctx: RunContext[AgentDepsT], error: BaseException) -> None:
        """End the turn of a run that raised. Whatever that raises must not hide why."""
        outcome: Outcome = "failed" if isinstance(error, Exception) else "interrupted"
        try:
            if self._taken_up:  # nothing was asked yet: a mistake in the call must not cost the turn
                await self.driver.suspend()
            else:
                said = self._turn(self._live, ctx.run_id) if self._asked else []
                await self.driver.close(said, outcome, type(error).__name__)
        except Exception as ending:  # noqa: BLE001 - the application's own error is the one to see
            error.add_note(f"optchat could not end the turn: {ending}")

    # ---- the model's requests ----------------------------------------------------------------------------------------

    async def prepare_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Send memory and the turn's messages instead of the list, which is left as it is."""
        self._refuse_held_by_provider(request_context)
        head, turn = split_head(request_context.messages, turn_start(request_context.messages, ctx.run_id))
        self._unmerge(turn)
        budget = await anyio.to_thread.run_sync(lambda: self._measured(request_context, head))
        if self._nested:
            context = await self.driver.turn.context(budget, active=turn)
            return replace(request_context, messages=[*head, *context.messages])
        if self._taken_up and ctx.prompt is not None and not self._goes_on(ctx):
            await self._begin_anew(ctx)
        messages = await self.driver.before_model(turn, budget=budget)
        self._live, self._asked, self._taken_up = ctx.messages, True, False
        await self._observe(turn)
        return replace(request_context, messages=[*head, *messages])

    async def after_node_run(self, ctx: RunContext[AgentDepsT], *, node: Any, result: Any) -> Any:
        """Seal what is said before what it called is run: that may take long, and end badly."""
        del node
        if self._asked and self._is_running:
            self._live = ctx.messages
            await self._observe(self._turn(ctx.messages, ctx.run_id))
        return result

    async def _observe(self, turn: Sequence[ModelMessage]) -> None:
        """Seal what is new; a node that said nothing need not wait for the lock."""
        final = [
            m for m in turn if not (isinstance(m, ModelResponse) and m.state == "suspended")
        ]  # the provider's pause
        if len(final) > self._observed:
            await self.driver.observe(final)
            self._observed = len(final)

    def _goes_on(self, ctx: RunContext[AgentDepsT]) -> bool:
        """Whether the run brought results for the calls that waited, and not a new request over them."""
        return not any(
            message.run_id == ctx.run_id and request_of([message]) is not None and not goes_on([message], 0)
            for message in ctx.messages
        )

    async def _begin_anew(self, ctx: RunContext[AgentDepsT]) -> None:
        assert ctx.prompt is not None, "there is a new request"
        await self.driver.end("interrupted")
        self._before, self._taken_up = None, False
        await self._admit(ctx, ModelRequest(parts=[UserPromptPart(ctx.prompt)]), ())

    def _turn(self, messages: Sequence[ModelMessage], run_id: str | None) -> list[ModelMessage]:
        turn = list(messages[turn_start(messages, run_id) :])
        self._unmerge(turn)
        return turn

    def _unmerge(self, turn: list[ModelMessage]) -> None:
        """The first message as it was: the framework makes one of adjacent requests, and one of another turn's too."""
        if turn and self._before is not None and turn[0].run_id is None and self._before.run_id is not None:
            turn[0] = self._before

    def _measured(self, request_context: ModelRequestContext, head: Sequence[ModelMessage]) -> Budget:
        if self._budget.instructions:
            return self._budget
        counted = _Counted(self._memory.sync, self._budget.tokenizer)
        parameters = request_context.model_request_parameters
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        said = [part.content for part in parameters.instruction_parts or ()]
        total = sum(map(counted.count, said)) + (counted.of(tools) if tools else 0)
        return evolve(self._budget, instructions=total + sum(CODEC.count(message, counted) for message in head))

    def _refuse_held_by_provider(self, request_context: ModelRequestContext) -> None:
        settings: dict[str, object] = dict(request_context.model_settings or {})
        for name, allowed in _HELD_BY_PROVIDER.items():
            if settings.get(name) not in allowed:
                raise HostUnsupported(
                    f"with {name} the provider holds the history, and memory would stay in it; leave the setting out"
                )

    # ---- memory's tools ----------------------------------------------------------------------------------------------

    def get_toolset(self) -> AgentToolset[AgentDepsT] | None:
        """Memory's tools, answered under the turn's snapshot."""
        return FunctionToolset([self._tool(tool) for tool in Tools()])

    def _tool(self, tool: MemoryTool) -> Tool[AgentDepsT]:
        async def answer(**arguments: object) -> str:
            output = await self.driver.turn.call(tool.name, arguments)
            if output.is_error:
                raise ToolFailed(output.text)
            return output.text

        return Tool[AgentDepsT].from_schema(answer, tool.name, tool.description, _spelt_out(tool.parameters))

    # ---- what runs within --------------------------------------------------------------------------------------------

    @property
    def driver(self) -> AsyncDriver[ModelMessage]:
        """The turn's."""
        if self._driver is None:
            raise HostUnsupported("the run has no turn: wrap_run was never called; check the version of Pydantic AI")
        return self._driver

    def holds(self, other: _Run[Any]) -> bool:
        """Whether another run would be of the session whose turn this one is."""
        return (
            self._is_running
            and self._key == other._key
            and self._place.host == other._place.host
            and self._memory.sync.path == other._memory.sync.path
            and self._memory.sync.scope == other._memory.sync.scope
        )


class _Counted(Tokenizer):
    """The memory's own tokenizer, or the budget's."""

    def __init__(self, memory: Memory, tokenizer: Tokenizer | None) -> None:
        self._memory, self._tokenizer = memory, tokenizer

    @property
    def name(self) -> str:
        return "memory's" if self._tokenizer is None else self._tokenizer.name

    def count(self, text: str, /) -> int:
        return self.of(text)

    def of(self, *things: object) -> int:
        """The tokens of text, or of JSON."""
        return self._memory.count_tokens(*things, tokenizer=self._tokenizer)


def _spelt_out(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema whose alternatives of type stand apart: the framework's TestModel knows no list of types."""
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, list):
            plain["anyOf"] = [{"type": each} for each in cast("list[str]", value)]
        else:
            plain[key] = _spelt_out(cast("Mapping[str, Any]", value)) if isinstance(value, dict) else value
    return plain
