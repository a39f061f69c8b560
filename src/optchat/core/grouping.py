"""
Turns out of a list of messages (§ 3): where one begins, where it ends, and what it is called.

Decides: what makes a turn, how a turn ended, and that a message which comes again counts once; so that a list that has
grown names what it held before just as it did.
Refuses to know: where messages come from, and what is stored already.

``turn_id`` names a message's turn. Without it a user's message with text begins one, and anything else joins the turn
before it; what comes before the first request is a turn without one, and so is what follows an ``outcome``. A turn's
outcome is taken as given. Otherwise it is ``completed`` under the rule of a live turn: its last message is an
assistant's text, and no call waits for its result. Else it was cut off: ``interrupted``.

There is nothing in a list that passes here which the ledger would refuse later, half of it in: a key, or a call id
within a turn, that comes again with other content is found here.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.messages import BlobPart, HostMessage, Part, TextPart, ToolCallPart, ToolResultPart
from optchat.core.terms import Outcome


@frozen
class TranscriptTurn:
    """A turn as a list tells it: its messages in order, whether the first is its request, and how it ended."""

    turn_id: str
    messages: tuple[HostMessage, ...]
    has_request: bool
    outcome: Outcome
    named: bool = False  # by the host
    told: bool = False  # the host said how it ended
    notes: frozenset[int] = frozenset()  # which of its messages are notes: nobody's request, whatever their role


def group_turns(messages: Iterable[HostMessage]) -> tuple[TranscriptTurn, ...]:
    """
    One session's messages as turns, by the rules of the transcript format.

    ``turn_id`` and ``outcome`` of a message stand for ``turn`` and ``end``. A message that comes again is dropped.

    Raises:
        BadArgument: a turn that goes on after another began or after its end, or a key or call id with other content.
    """
    turns = Turns()
    for message in messages:
        turns.add(message)
    return turns.finished()


class _Turn:
    """A turn that still grows."""

    def __init__(self, turn_id: str, has_request: bool, named: bool) -> None:
        self.turn_id = turn_id
        self.has_request = has_request
        self.named = named
        self.messages: list[HostMessage] = []
        self.notes: set[int] = set()
        self.end: Outcome | None = None
        # What event keys are made of where the host has no key: (kind, call id) is unique in its turn.
        self.calls: dict[tuple[type[Part], str], HostMessage] = {}

    def finished(self) -> TranscriptTurn:
        outcome = self.end or self._outcome()
        return TranscriptTurn(
            self.turn_id,
            tuple(self.messages),
            self.has_request,
            outcome,
            self.named,
            self.end is not None,
            frozenset(self.notes),
        )

    def _outcome(self) -> Outcome:
        said = [message for place, message in enumerate(self.messages) if place not in self.notes]
        if not said:
            return "completed"  # notes and nothing else
        last = said[-1]
        answered = last.role == "assistant" and any(isinstance(part, TextPart) for part in last.parts)
        pending: set[str] = set()
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    pending.add(part.call_id)
                elif isinstance(part, ToolResultPart):
                    pending.discard(part.call_id)
        return "completed" if answered and not pending else "interrupted"


class Turns:
    """One session while it is read, message by message."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._ids: set[str] = set()
        self._count = 0
        self._keys: dict[str, tuple[HostMessage, _Turn]] = {}

    def __len__(self) -> int:
        """How many turns there are so far; the last of them is the one that a message was put into."""
        return len(self._turns)

    def finished(self) -> tuple[TranscriptTurn, ...]:
        return tuple(turn.finished() for turn in self._turns)

    def add(self, message: HostMessage, *, note: bool = False) -> bool:
        """Put a message, or a note, into its turn; False if it was there already."""
        if message.key is not None and message.key in self._keys:
            known, turn = self._keys[message.key]
            if not _same(known, message):
                raise BadArgument(
                    f"key {shown(message.key)} was used before with other content; give each message its own key"
                )
            self._end(turn, message.outcome)
            return False
        turn = self._turn_of(message, asks=message.role == "user" and not note)
        if self._repeats_calls(turn, message):
            self._end(turn, message.outcome)
            return False
        if turn is not self._current:
            self._turns.append(turn)
            self._ids.add(turn.turn_id)
        if note:
            turn.notes.add(len(turn.messages))
        turn.messages.append(message)
        if message.key is None:
            turn.calls.update((call, message) for call in _calls(message))
        else:
            self._keys[message.key] = (message, turn)
        self._count += 1
        self._end(turn, message.outcome)
        return True

    @property
    def _current(self) -> _Turn | None:
        return self._turns[-1] if self._turns else None

    def _turn_of(self, message: HostMessage, *, asks: bool) -> _Turn:
        """The turn that a message belongs to: the current one, or a new one that is not in the list yet."""
        current, named = self._current, message.turn_id
        if named is None:
            request = asks and any(isinstance(part, TextPart) and part.text for part in message.parts)
            if current is not None and current.end is None and not request:
                return current
            # The ordinal of its first message: what is appended to the file later cannot change it.
            named = f"import-{self._count}"
        else:
            if current is not None and current.turn_id == named:
                if current.end is not None:
                    raise BadArgument(
                        f"turn {shown(named)} has ended as {current.end}; put 'end' on the turn's last message only"
                    )
                return current
            # Named, so no text is needed to tell that it begins: an image alone can be a request.
            request = asks and any(isinstance(part, (TextPart, BlobPart)) for part in message.parts)
        if named in self._ids:
            raise BadArgument(
                f"turn {shown(named)} goes on after another turn began; keep a turn's messages together, "
                "or leave 'turn' out of what came late"
            )
        return _Turn(named, request, message.turn_id is not None)

    @staticmethod
    def _repeats_calls(turn: _Turn, message: HostMessage) -> bool:
        if message.key is not None:
            return False
        calls = _calls(message)
        if len(set(calls)) < len(calls):
            raise BadArgument("one message uses a call id twice; give each call its own id")
        for call in calls:
            known = turn.calls.get(call)
            if known is None:
                continue
            if not _same(known, message):
                raise BadArgument(
                    f"call id {shown(call[1])} was used before in this turn with other content; "
                    "give each call its own id, or each message a key"
                )
            return True
        return False

    def _end(self, turn: _Turn, outcome: Outcome | None) -> None:
        if outcome is None or turn.end == outcome:
            return
        if turn.end is not None or turn is not self._current:
            raise BadArgument(
                f"turn {shown(turn.turn_id)} ended before this line; put 'end' on the turn's last message only"
            )
        turn.end = outcome


def _calls(message: HostMessage) -> list[tuple[type[Part], str]]:
    return [(type(part), part.call_id) for part in message.parts if isinstance(part, (ToolCallPart, ToolResultPart))]


def _same(one: HostMessage, other: HostMessage) -> bool:
    # Not the time: a host that delivers again may stamp it anew, and what was said is still the same.
    return one.role == other.role and one.parts == other.parts


def shown(text: str) -> str:
    """Foreign text in a message: short, and on one line."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
