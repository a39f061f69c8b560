"""
``agents.Runner`` with memory.

Decides: what the end of a run, or of a stream, means for its turn.
Refuses to know: how a turn begins and what is said in it (:mod:`optchat.adapters.openai_agents.turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import anyio
from agents import Agent, Runner, RunResult, RunResultStreaming, Session as AgentsSession

from optchat.adapters.checking import check_host
from optchat.adapters.driving import awaited
from optchat.adapters.openai_agents.codec import HOST
from optchat.adapters.openai_agents.turns import AgentsInput, Run
from optchat.aio import AsyncMemory
from optchat.core.budget import Budget
from optchat.memory import Memory


class MemoryRunner:
    """
    ``agents.Runner`` with memory: each run is a turn of the session that its ``session_id`` names.

    Args:
        memory: of either façade; its loop is never blocked. A plain one serves any number of loops, each run in its
            own.
        budget: of each model call; ``instructions`` are the agent's own, its tools and memory's.
    """

    def __init__(self, memory: Memory | AsyncMemory, budget: Budget) -> None:
        """
        Raises:
            HostUnsupported: the version of openai-agents was not tested.
        """
        check_host(HOST)
        self._memory = memory
        self._budget = budget

    async def run(
        self,
        agent: Agent[Any],
        input: AgentsInput,
        *,
        session: AgentsSession,
        turn_id: str | None = None,
        **runner: Any,
    ) -> RunResult:
        """
        ``Runner.run`` as a turn: each of its model calls gets memory instead of the Session's history.

        The turn is ``completed`` with a final output, ``failed`` if the run raises or an ``error_handlers`` answers for
        it, ``interrupted`` if it is cancelled, and suspended while approvals are waited for. The Session keeps what it
        would keep without memory.

        Args:
            input: text, items, or the state of a run that waited for approvals: then the same turn goes on, under the
                same snapshot, in whatever process.
            session: the host's own transcript; its ``session_id`` is the key of memory's session.
            turn_id: the application's own name of the turn; the same again is the same turn. None: one of ours.
            runner: whatever ``Runner.run`` takes; callbacks of ``run_config``, and hooks, still run.

        Raises:
            HostUnsupported: history that the provider keeps (``conversation_id``, ``previous_response_id``), a Session
                that compacts itself, or a request of this run that went out without memory.
            ResyncNeeded: the Session's history is not the one that is sealed. Nothing is sent; memory is off for the
                session until ``resync``.
            UnknownRef: the state of a run whose turn is not suspended.
            BadArgument: no user's message in the input.
            MemoryNotReady, ContextTooLarge, ToolProtocolError: as ``Turn.context``.
            Exception: whatever ``Runner.run`` raises.
        """
        run = Run(awaited(self._memory), self._budget, session, turn_id, runner)
        async with run.of(input):
            with run.running():
                result = await Runner.run(agent, input, session=session, **run.arguments)
            await run.told(result.raw_responses, result.new_items)
            await run.end(None if result.interruptions else "completed")
        return result

    def stream(
        self,
        agent: Agent[Any],
        input: AgentsInput,
        *,
        session: AgentsSession,
        turn_id: str | None = None,
        **runner: Any,
    ) -> AbstractAsyncContextManager[RunResultStreaming, None]:
        """
        ``Runner.run_streamed`` as a turn, which begins when the block is entered.

        Left early, by ``break`` or an error, the run is cancelled: there is no other moment to end its turn. So is the
        turn ``interrupted`` by ``result.cancel()``, unless the final output was there. For arguments and errors see
        :meth:`run`; errors of the run come out of ``stream_events()``, as they do without memory.
        """
        # A generator's manager is typed as one that may swallow errors; this one does not.
        streamed = self._streamed(agent, input, session, turn_id, runner)
        return cast("AbstractAsyncContextManager[RunResultStreaming, None]", streamed)

    @asynccontextmanager
    async def _streamed(
        self,
        agent: Agent[Any],
        given: AgentsInput,
        session: AgentsSession,
        turn_id: str | None,
        runner: dict[str, Any],
    ) -> AsyncGenerator[RunResultStreaming, None]:
        run = Run(awaited(self._memory), self._budget, session, turn_id, runner)
        async with run.of(given):
            with run.running():
                result = Runner.run_streamed(agent, given, session=session, **run.arguments)
            run.stream = result
            try:
                await run.begun(result)
                yield result
            finally:
                with anyio.CancelScope(shield=True):
                    await _stopped(result)
            error = result.run_loop_exception
            answered = error is None and _is_answered(run, result)
            await run.told(result.raw_responses, result.new_items, whole=answered)
            if error is not None:  # the block has handled it, or not looked
                await run.end("failed", type(error).__name__)
            elif result.interruptions:
                await run.end(None)
            else:
                await run.end("completed" if answered else "interrupted")


async def _stopped(result: RunResultStreaming) -> None:
    """Nothing of a run is under way any more: what was left early is cancelled."""
    task = result.run_loop_task
    if task is not None:
        if not task.done() and not result.is_complete:
            result.cancel()
        await asyncio.wait({task})


def _is_answered(run: Run, result: RunResultStreaming) -> bool:
    """A final output may be None; cancelled after the agent ended, its guardrails may not have run."""
    ended_by_itself = result.run_loop_task is None or not result.run_loop_task.cancelled()
    return run.has_answered and (ended_by_itself or result.final_output is not None)
