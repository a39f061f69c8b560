"""
Repair (§ 4, § 6): a node and all that was made of it summarised anew, while somebody waits.

Decides: who is asked, and that nothing changes unless every text is there.
Refuses to know: which nodes those are (``engine.remaking``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from optchat.compactor.asking import Asker, Failed, Told
from optchat.core.errors import JobError, SummaryRejected
from optchat.core.ports import Summarizer
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import Accepted
from optchat.core.tree import Recipe
from optchat.core.trouble import CallFailed, Trouble
from optchat.engine import calls, remaking
from optchat.engine.handle import Scope
from optchat.engine.inputs import Task

T = TypeVar("T")


def repair_by_rule(scope: Scope, plan: remaking.Repair, by_rule: Callable[[Task], tuple[str, Recipe]]) -> int:
    """Repair with a rule, in the caller's thread; how many revisions were made."""
    while (task := plan.next()) is not None:
        plan.take(task, *by_rule(task))
    return remaking.commit_repair(scope, plan)


class RepairRun:
    """One repair in a loop of its own. ``revisions``: how many were made, once it has run."""

    def __init__(
        self, scope: Scope, plan: remaking.Repair, summarizer: Summarizer, fallback: Summarizer | None
    ) -> None:
        self.revisions = 0
        self._scope, self._plan = scope, plan
        self._summarizer, self._fallback = summarizer, fallback
        self._portal: BlockingPortal | None = None
        self._cancel: anyio.CancelScope | None = None

    def wake(self) -> None:
        """Nothing that lands elsewhere matters to a repair."""

    def end(self) -> None:
        """Break off what is being asked; nothing was changed."""
        if self._portal is not None and self._cancel is not None:
            self._portal.start_task_soon(self._cancel.cancel)

    async def run(self) -> None:
        """
        Ask for every text, then commit them all.

        Raises:
            SummaryRejected, JobError: a text was not to be had; nothing was changed.
        """
        failed: Exception | None = None
        async with BlockingPortal() as portal:
            asker = Asker(self._summarizer, self._fallback, _beside)
            with anyio.CancelScope() as self._cancel:
                self._portal = portal
                try:
                    await self._ask_all(asker)
                except Exception as error:  # noqa: BLE001 - raised below: a portal's end would wrap it in a group
                    failed = error
            await asker.let_go()
        if failed is not None:
            raise failed

    async def _ask_all(self, asker: Asker) -> None:
        while (task := await _beside(self._plan.next)) is not None:
            told = Told(task, self._summarizer.name)
            try:
                await asker.ask(self._scope, told)
            finally:
                with anyio.CancelScope(shield=True):
                    await _beside(calls.write_down, self._scope, tuple(told.finished))
            text = _text(told)
            await _beside(partial(self._plan.take, task, text, Recipe("summary", told.summarizer, PROMPT_VERSION)))
        self.revisions = await _beside(remaking.commit_repair, self._scope, self._plan)


def _text(told: Told) -> str:
    answer = told.answer
    if isinstance(answer, Accepted):
        return answer.text
    if isinstance(answer, Trouble):
        raise CallFailed(f"the repair was broken off: {answer.message}", trouble=answer)
    if isinstance(answer, Failed):
        raise SummaryRejected(f"the repair was broken off: {answer.error}")
    raise JobError("the repair was broken off: summaries are paused; status() says why and until when")


async def _beside(function: Callable[..., T], /, *arguments: object) -> T:
    return await anyio.to_thread.run_sync(function, *arguments)
