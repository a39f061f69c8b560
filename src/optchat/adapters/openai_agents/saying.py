"""
What a run says, sealed.

Decides: that records come in the order in which the run's Session keeps them, each once, wherever they were seen.
Refuses to know: the hooks that bring it, and how the run ends.

A response is seen when it is there. What tools answered is seen in the next request, in the Session's order; tools that
ran side by side end in any. Where no request follows, it is in the run's result or error; where those lack it, as after
a cancellation, it is what the tools' hooks told.

A response that hands off to another agent is the exception: a filter may take it out of what follows, and out of the
Session, which, read again, would then lack what is sealed. So it waits for the next request; where that does not have
it as it was said, all waits for the run's result, which has what the Session has.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from optchat.core.messages import HostMessage, ReportPart, ToolCallPart, ToolResultPart

if TYPE_CHECKING:
    from agents import TResponseInputItem

    from optchat.adapters.openai_agents.codec import AgentsItems
    from optchat.aio import AsyncTurn


class Said:
    """What a turn has said so far; made when it is admitted or taken up."""

    def __init__(self, turn: AsyncTurn[TResponseInputItem], codec: AgentsItems, before: Sequence[HostMessage]) -> None:
        """
        Args:
            before: what is sealed of the turn already, its request first.
        """
        self._turn, self._codec = turn, codec
        self._sealed = Counter(_keys(before))
        self._begins_with = Counter(_keys(before[:1]))
        self._open = dict.fromkeys(call.call_id for call in turn.pending)  # unanswered, in the order of the calls
        self._finished: dict[str, TResponseInputItem] = {}
        self._uncertain: list[TResponseInputItem] = []
        self._waiting: list[TResponseInputItem] = []
        self._holds_back = False

    async def seal(self, items: Iterable[TResponseInputItem]) -> None:
        """Seal what comes next, if nothing before it is missing."""
        said = [item for item in items if self._codec.decode(item)]
        if self._holds_back:
            self._waiting += said
        elif said:
            await self._add(said)

    def may_be_dropped(self, items: Iterable[TResponseInputItem]) -> None:
        """What comes next, if the next request still has it."""
        (self._waiting if self._holds_back else self._uncertain).extend(items)

    def tool_ended(self, call_id: str, result: TResponseInputItem) -> None:
        """A tool has answered; it is sealed in its order later."""
        self._finished[call_id] = result

    async def seal_answers(self, request: Sequence[TResponseInputItem]) -> bool:
        """
        Seal the answers that a request brings to the calls before it; False if it is no request of this run.

        A request of a nested run has neither the answer to the call that it is, nor what the turn began with. Where it
        may be one of this run's, it is taken for that: memory in a request too many is better than in one too few.
        """
        uncertain, self._uncertain = self._uncertain, []
        if uncertain and not Counter(self._keys(uncertain)) <= Counter(self._keys(request)):
            self._holds_back = True
            self._waiting += uncertain
        if self._holds_back:
            return True
        await self.seal(uncertain)
        answers = [item for item in request if self._answered(item)]
        found = {call_id for item in answers for call_id in self._answered(item)}
        if self._open and not found and not self._begins_with <= Counter(self._keys(request)):
            return False
        # A filter may have left some out; what their hooks told is as good, and their place is that of their calls.
        answers += [self._finished[call_id] for call_id in self._open if call_id not in found | self._missing()]
        await self.seal(answers)
        return True

    async def finish(self, items: Sequence[TResponseInputItem], *, broken_off: bool = False) -> None:
        """
        Seal what is not sealed yet.

        Args:
            items: all that the run said, by what the host tells of it now.
            broken_off: that may lack the end.
        """
        self._holds_back = False
        new = self._unsealed(items)
        waiting = [*self._waiting, *self._uncertain]
        self._waiting.clear()
        self._uncertain.clear()
        if broken_off:
            told = Counter(self._keys(new))
            for item in waiting:
                keys = Counter(self._keys([item]))
                if keys <= told:
                    told -= keys
                else:
                    new.append(item)
        await self.seal(new)
        await self.seal([self._finished[call_id] for call_id in self._open if call_id in self._finished])

    async def _add(self, said: Sequence[TResponseInputItem]) -> None:
        """
        Seal and note it, whatever is cancelled: a stream is often cancelled by whoever has just been shown a call.

        Half known, it would be sealed a second time by :meth:`finish`.
        """
        adding = asyncio.ensure_future(self._turn.add(*said))
        cancelled: asyncio.CancelledError | None = None
        while not adding.done():
            try:
                await asyncio.wait({adding})
            except asyncio.CancelledError as error:
                cancelled = error
        adding.result()
        self._note(said)
        if cancelled is not None:
            raise cancelled

    def _unsealed(self, items: Sequence[TResponseInputItem]) -> list[TResponseInputItem]:
        sealed = Counter(self._sealed)
        new: list[TResponseInputItem] = []
        for item in items:
            keys = Counter(self._keys([item]))
            if keys <= sealed:
                sealed -= keys
            else:
                new.append(item)
        return new

    def _keys(self, items: Iterable[TResponseInputItem]) -> list[Hashable]:
        return _keys(message for item in items for message in self._codec.decode(item))

    def _answered(self, item: TResponseInputItem) -> list[str]:
        if not self._open or not str(item.get("type")).endswith("_output"):
            return []  # a request's images need not be read to see that they answer nothing
        return [
            part.call_id
            for message in self._codec.decode(item)
            for part in message.parts
            if isinstance(part, ToolResultPart) and part.call_id in self._open
        ]

    def _missing(self) -> set[str]:
        return {call_id for call_id in self._open if call_id not in self._finished}

    def _note(self, items: Iterable[TResponseInputItem]) -> None:
        for item in items:
            messages = self._codec.decode(item)
            self._sealed.update(_keys(messages))
            for message in messages:
                for part in message.parts:
                    if isinstance(part, ToolCallPart):
                        self._open[part.call_id] = None
                    elif isinstance(part, ToolResultPart):
                        self._open.pop(part.call_id, None)


def _keys(messages: Iterable[HostMessage]) -> list[Hashable]:
    """What the parts of messages are known by: calls and results by their id, else by what they say and who says it."""
    keys: list[Hashable] = []
    for message in messages:
        for part in message.parts:
            match part:
                case ToolCallPart(call_id):
                    keys.append(("call", call_id))
                case ToolResultPart(call_id):
                    keys.append(("result", call_id))
                case ReportPart():
                    keys.append(part)
                case _:
                    keys.append((message.role, part))
    return keys
