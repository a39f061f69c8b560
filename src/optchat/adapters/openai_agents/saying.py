"""
What a run says, sealed.

Decides: that records come in the order in which the run's Session keeps them, each once, wherever they were seen.
Refuses to know: the hooks that bring it, and how the run ends.

A response is seen when it is there. What tools answered is seen in the next request, in the Session's order; tools that
ran side by side end in any. Where no request follows, it is in the run's result or error; where those lack it, as after
a cancellation, it is what the tools' hooks told. A handoff may rewrite the request so that answers are missing from it:
then what is said from there on waits for the run's result, for it would else stand before them, and the Session, read
again, would look reordered.
"""

from __future__ import annotations

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

    def __init__(
        self, turn: AsyncTurn[TResponseInputItem], codec: AgentsItems, before: Iterable[HostMessage] = ()
    ) -> None:
        """
        Args:
            before: what is sealed of the turn already.
        """
        self._turn, self._codec = turn, codec
        self._sealed = Counter(_keys(before))
        self._open = dict.fromkeys(call.call_id for call in turn.pending)  # unanswered, in the order of the calls
        self._finished: dict[str, TResponseInputItem] = {}
        self._waiting: list[TResponseInputItem] = []
        self._holds_back = False

    async def seal(self, items: Iterable[TResponseInputItem]) -> None:
        """Seal what comes next, if nothing before it is missing."""
        said = [item for item in items if self._codec.decode(item)]
        if self._holds_back:
            self._waiting += said
        elif said:
            await self._turn.add(*said)
            self._note(said)

    def tool_ended(self, call_id: str, result: TResponseInputItem) -> None:
        """A tool has answered; it is sealed in its order later."""
        self._finished[call_id] = result

    async def seal_answers(self, request: Sequence[TResponseInputItem]) -> bool:
        """
        Seal the answers that a request brings to the calls before it; whether all are there.

        Nothing is sealed if none is: then it is perhaps no request of this run.
        """
        answers = [item for item in request if self._answered(item)]
        found = {call_id for item in answers for call_id in self._answered(item)}
        # A filter may have left some out; what their hooks told is as good, and their place is that of their calls.
        answers += [self._finished[call_id] for call_id in self._open if call_id not in found | self._missing()]
        if self._open and not found and len(answers) < len(self._open):
            return False
        await self.seal(answers)
        return not self._open

    def hold_back(self) -> None:
        """Seal nothing more before :meth:`finish`."""
        self._holds_back = True

    async def finish(self, items: Sequence[TResponseInputItem]) -> None:
        """
        Seal what is not sealed yet.

        Args:
            items: all that the run said by what the host tells of it now; the beginning, if it broke off.
        """
        self._holds_back = False
        new = self._unsealed(items)
        told = Counter(_keys(message for item in new for message in self._codec.decode(item)))
        for item in self._waiting:
            keys = Counter(_keys(self._codec.decode(item)))
            if keys <= told:
                told -= keys
            else:
                new.append(item)
        self._waiting.clear()
        await self.seal(new)
        await self.seal([self._finished[call_id] for call_id in self._open if call_id in self._finished])

    def _unsealed(self, items: Sequence[TResponseInputItem]) -> list[TResponseInputItem]:
        sealed = Counter(self._sealed)
        new: list[TResponseInputItem] = []
        for item in items:
            keys = Counter(_keys(self._codec.decode(item)))
            if keys <= sealed:
                sealed -= keys
            else:
                new.append(item)
        return new

    def _answered(self, item: TResponseInputItem) -> list[str]:
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
