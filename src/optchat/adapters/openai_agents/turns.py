"""
A run's turn.

Decides: when it begins, what of the host's list is the turn's, and which model calls get memory.
Refuses to know: in which order what is said is sealed (:mod:`optchat.adapters.openai_agents.saying`).

A run is one turn, or the next part of one that waited for an approval. It is admitted in the callback that is given the
Session's history, behind the application's own: what that makes of the input is what the Session keeps and the model
gets, and so it is what is sealed. The history is compared with memory first, since nobody tells when a Session is
changed; then it is left out of the request, where memory stands instead.

A nested run (``Agent.as_tool``) inherits the ``run_config`` of the run round it. It is given the application's own:
it gets no memory, and nothing that it says is sealed but its report, which is its call's result. Where it goes on after
an approval no hook comes before it; then it is known by its request, which lacks the answer to the call that it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import anyio
from agents import (
    Agent,
    Handoff,
    ModelResponse,
    RunResultStreaming,
    RunState,
    Session as AgentsSession,
    TResponseInputItem,
)
from agents.items import RunItem, ToolApprovalItem
from agents.run_config import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from optchat.adapters.driving import AsyncDriver, admit_async, take_up_async
from optchat.adapters.openai_agents.codec import HOST, AgentsItems
from optchat.adapters.openai_agents.composing import (
    Items,
    OwnConfig,
    noting,
    own_hooks,
    refuse_what_cannot_carry_memory,
)
from optchat.adapters.openai_agents.hooks import Hooks
from optchat.adapters.openai_agents.saying import Said
from optchat.adapters.openai_agents.tools import RUNNING
from optchat.aio import AsyncMemory, AsyncSession
from optchat.core.budget import Budget
from optchat.core.errors import BadArgument, HostUnsupported, UnknownRef
from optchat.core.messages import HostMessage
from optchat.core.terms import Outcome
from optchat.core.tools import ToolOutput

AgentsInput: TypeAlias = str | list[TResponseInputItem] | RunState[Any]

_CODEC: Final = AgentsItems()
_ALL: Final = 2**31 - 1  # items: a Session with a limit of its own gives its newest ones, unless it is asked for more


class Run:
    """One run of ``MemoryRunner``: an ``async with`` block, in which its turn begins and after which it has ended."""

    def __init__(
        self,
        memory: AsyncMemory,
        budget: Budget,
        session: AgentsSession,
        turn_id: str | None,
        runner: dict[str, Any],
    ) -> None:
        """
        Raises:
            HostUnsupported, ConfigError: what is asked of the runner cannot carry memory.
        """
        refuse_what_cannot_carry_memory(runner, session)
        self._memory, self._budget, self._native, self._turn_id = memory, budget, session, turn_id
        self._config = OwnConfig(runner.get("run_config"))
        self.arguments: dict[str, Any] = {
            **runner,
            "run_config": self._config.with_memory(self._on_input, self._before_model),
            "hooks": Hooks(self, own_hooks(runner.get("hooks"))),
        }
        if "error_handlers" in runner:
            self.arguments["error_handlers"] = noting(runner["error_handlers"], self._handled)
        self.has_answered = False
        self.stream: RunResultStreaming | None = None
        self._given: AgentsInput = ""
        self._stack = AsyncExitStack()
        self._driver: AsyncDriver[TResponseInputItem] | None = None
        self._said: Said
        self._admitted = asyncio.Event()
        self._steering: Items = []
        self._asked = self._was_asked = False
        self._handled_error: str | None = None

    # ---- begin -------------------------------------------------------------------------------------------------------

    def of(self, given: AgentsInput) -> Self:
        """The run of an input."""
        self._given = given
        return self

    async def __aenter__(self) -> Self:
        """
        Raises:
            UnknownRef: the input is the state of a run whose turn is not suspended.
        """
        if isinstance(self._given, RunState):
            await self._take_up(self._given)
        return self

    @contextmanager
    def running(self) -> Generator[None]:
        """Memory's tools answer for this run in what is called, and in the tasks that are made there."""
        token = RUNNING.set(self)
        try:
            yield
        finally:
            RUNNING.reset(token)

    async def begun(self, result: RunResultStreaming) -> None:
        """Wait until the turn has begun; what hindered it is raised."""
        task = result.run_loop_task
        if self._driver is None and task is not None:
            admitted = asyncio.ensure_future(self._admitted.wait())
            try:
                await asyncio.wait({task, admitted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                admitted.cancel()
            if self._driver is None and result.run_loop_exception is not None:
                raise result.run_loop_exception

    async def _session(self) -> AsyncSession[TResponseInputItem]:
        return await self._memory.session(self._native.session_id, adapter=_CODEC, host=HOST.name)

    async def _take_up(self, state: RunState[Any]) -> None:
        session = await self._session()
        try:
            opening = take_up_async(session, _CODEC, self._budget, turn_id=self._turn_id)
            driver = await self._stack.enter_async_context(opening)
        except UnknownRef as error:
            raise UnknownRef(
                f"no turn of the session {self._native.session_id!r} waits for this state: its run has ended, or"
                " another began since; run the next input as text instead"
            ) from error
        turn = driver.turn
        made = _calls_of(state)
        if made is not None and not made.issuperset(call.call_id for call in turn.pending):
            await driver.suspend()
            raise UnknownRef(
                f"the turn of the session {self._native.session_id!r} that waits is not this state's: that run has"
                " ended, and another one waits now; resume the newer state"
            )
        self._steering = list(getattr(state, "pending_input", ()))  # not in every version: then there is no steering
        self._be(driver, await anyio.to_thread.run_sync(lambda: turn.messages))

    async def _on_input(self, history: Items, new: Items) -> Items:
        """Runner's ``session_input_callback``."""
        if self._driver is not None:  # a nested run that has a Session
            return await self._config.combined(history, new)
        before = list(history)
        kept = await self._config.new_items(history, new)
        limited = getattr(getattr(self._native, "session_settings", None), "limit", None) is not None
        if limited or self._config.limits_history:
            before = await self._native.get_items(_ALL)
        await self._admit(before, list(kept))
        # The SDK takes what says the same as an item of the history for that item, and would not save it: in a list
        # without the history nothing is of the history.
        history.clear()
        return kept

    async def _admit(self, history: Items, new: Items) -> None:
        spoken = [item for item in new if _CODEC.decode(item)]
        first = next((place for place, item in enumerate(spoken) if _is_users(_CODEC.decode(item))), None)
        if first is None:
            raise BadArgument("a run begins a turn with a user's message, and its input has none; pass text, or items")
        session = await self._session()
        await self._give_up_suspended(session)
        opening = admit_async(
            session,
            spoken[first],
            _CODEC,
            self._budget,
            turn_id=self._turn_id,
            history=[*history, *spoken[:first]],  # what stands before the request is no part of its turn
        )
        driver = await self._stack.enter_async_context(opening)
        turn = driver.turn
        sealed = _CODEC.decode(spoken[first])
        if self._turn_id is not None:  # it may have begun before
            sealed = await anyio.to_thread.run_sync(lambda: turn.messages)
        self._be(driver, sealed)
        await self._said.finish(spoken[first:])
        self._admitted.set()

    async def _give_up_suspended(self, session: AsyncSession[TResponseInputItem]) -> None:
        """A turn that waits for an approval is over when another begins; its Session may lack what it said last."""
        try:
            turn = await session.resume()
        except UnknownRef:
            return
        if turn.id == self._turn_id:
            await turn.suspend()
        else:
            await turn.end("interrupted", "another run began")

    def _be(self, driver: AsyncDriver[TResponseInputItem], sealed: Sequence[HostMessage]) -> None:
        self._driver, self._said = driver, Said(driver.turn, _CODEC, sealed)

    # ---- model calls -------------------------------------------------------------------------------------------------

    async def _before_model(self, data: CallModelData[Any]) -> ModelInputData:
        """Runner's ``call_model_input_filter``."""
        request = list(data.model_data.input)
        made = await self._config.filtered(data)
        if self._driver is None:
            raise HostUnsupported(
                "openai-agents did not ask which history a request gets, so that memory could not stand for it; check"
                " that session_input_callback is called by this version"
            )
        if not await self._said.seal_answers(request):
            return made  # a nested run's
        await self._seal_steering(request)
        messages = await self._driver.before_model(made.input)
        self._asked = self._was_asked = True
        return replace(made, input=messages)

    async def _seal_steering(self, request: Items) -> None:
        steering, self._steering = self._steering, []
        if steering and request[-len(steering) :] == steering:  # else it is in the result, in its place
            await self._said.seal(steering)

    async def responded(self, agent: Agent[Any], response: ModelResponse, /) -> None:
        """
        Raises:
            HostUnsupported: the request was made without memory. Nothing of the response is sealed.
        """
        if not self._asked:
            raise _without_memory()
        self._asked = False
        items = response.to_input_items()
        if any(item.get("type") == "function_call" and item.get("name") in _handoffs(agent) for item in items):
            self._said.may_be_dropped(items)
        else:
            await self._said.seal(items)

    # ---- tools and hooks ---------------------------------------------------------------------------------------------

    async def call(self, name: str, arguments: str, /) -> ToolOutput | None:
        """What a memory tool answers under the turn's snapshot; None before the turn has begun."""
        return None if self._driver is None else await self._driver.turn.call(name, arguments)

    def tool_begins(self, context: ToolContext[Any], /) -> None:
        """A tool that is an agent passes its context's config on to the nested run."""
        if context.run_config is not None:
            context.run_config = self._config.without_memory(context.run_config)

    def tool_ended(self, call_id: str, result: TResponseInputItem, /) -> None:
        """A function tool has answered."""
        self._said.tool_ended(call_id, result)

    def answered(self) -> None:
        """An agent has its final output."""
        self.has_answered = True

    def _handled(self, kind: str) -> None:
        self._handled_error = kind

    # ---- end ---------------------------------------------------------------------------------------------------------

    async def told(self, responses: Sequence[ModelResponse], items: Sequence[RunItem], *, whole: bool = True) -> None:
        """
        The run is over, and this is what was said in it; not whole, it may lack the end.

        Raises:
            HostUnsupported: the model was asked, and no hook of ours ran.
        """
        if self._driver is None or (responses and not self._was_asked and not isinstance(self._given, RunState)):
            raise _without_memory()
        await self._said.finish(_input_items(items), broken_off=not whole)

    async def end(self, outcome: Outcome | None, detail: str | None = None) -> None:
        """End the turn; None: it waits for an approval."""
        assert self._driver is not None, "the run was told"
        if outcome is None:
            await self._driver.suspend()
        elif self._handled_error is not None:  # the application's handler has answered for the model
            await self._driver.end("failed", self._handled_error)
        else:
            await self._driver.end(outcome, detail)

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        if self._driver is not None and e is not None:
            with anyio.CancelScope(shield=True):
                try:
                    await self._said.finish(_input_items(self._items_of(e)), broken_off=True)
                except Exception as problem:  # noqa: BLE001 - the run's own error must not be hidden by it
                    e.add_note(f"optchat could not seal all that the run said: {problem}")
        await self._stack.__aexit__(et, e, tb)

    def _items_of(self, error: BaseException) -> Sequence[RunItem]:
        """What a run that broke off had said by then, as far as the SDK tells."""
        if self.stream is not None:
            return self.stream.new_items
        data = getattr(error, "run_data", None)
        return [] if data is None else list(data.new_items)


def _is_users(messages: Sequence[HostMessage]) -> bool:
    return any(message.role == "user" for message in messages)


def _calls_of(state: RunState[Any]) -> set[str] | None:
    """The ids of the calls that a state's model made; None where this version does not tell."""
    responses: Sequence[ModelResponse] | None = getattr(state, "_model_responses", None)
    if responses is None:
        return None
    found = (getattr(item, "call_id", None) for response in responses for item in response.output)
    return {call_id for call_id in found if isinstance(call_id, str)}


def _handoffs(agent: Agent[Any]) -> set[str]:
    """The names of the tools by which an agent hands off."""
    return {each.tool_name if isinstance(each, Handoff) else Handoff.default_tool_name(each) for each in agent.handoffs}


def _input_items(items: Sequence[RunItem]) -> Items:
    return [item.to_input_item() for item in items if not isinstance(item, ToolApprovalItem)]


def _without_memory() -> HostUnsupported:
    return HostUnsupported(
        "openai-agents asked the model without memory: memory's call_model_input_filter did not run before it; check"
        " that the run_config passes callbacks on, and that this version of the SDK calls them"
    )
