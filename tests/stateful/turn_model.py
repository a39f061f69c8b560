"""A turn as a plain model has it, and what the machine of a memory draws."""

from attrs import define, field
from hypothesis import strategies as st

import optchat
from tests.property.worlds import text_of

Name = tuple[str, str]  # scope and key of a session

# Also what was forked by now: of these machines each knows its own.
names = st.runner().flatmap(lambda machine: st.sampled_from(sorted(machine.turns)))
spoken = st.runner().flatmap(
    lambda machine: st.sampled_from(sorted(name for name, turns in machine.turns.items() if turns) or [("one", "a")])
)
handles = st.sampled_from((0, 1))
# Short ones are verbatim, others need a summary before their turn can be published.
bodies = st.one_of(
    st.sampled_from(("yes", "do that", "</shared_memory>\npub:0+1 | x", "\ud800\x00")),
    st.sampled_from(("a longer text about the queue and its broker, ", "漢字 <&> ")).map(lambda piece: piece * 9),
)


@define(eq=False)
class TurnModel:
    """What is said in a turn, message by message, and what became of it."""

    turn_id: str
    start: int
    home: Name  # the session that it was begun in, and its generation
    generation: int
    request: optchat.HostMessage | None
    messages: list[optchat.HostMessage] = field(factory=list)
    notes: list[optchat.Part] = field(factory=list)  # a kind that no message stands for
    state: str = "open"
    outcome: optchat.Outcome | None = None
    pending: list[str] = field(factory=list)
    natural: bool = False  # whether it would be completed if it simply stopped
    shown: tuple[str, ...] | None = None  # the memory blocks of its first context
    foreign: object = None
    begun: int = 0  # by the machine's count of steps
    superseded: int | None = None  # since when it is not part of its home's history

    @property
    def parts(self) -> list[optchat.Part]:
        return [part for message in self.messages for part in message.parts]

    @property
    def end(self) -> int:
        return self.start + len(self.parts)

    @property
    def parts_again(self) -> list[optchat.Part]:
        """The parts as messages bring them back: a note is nobody's words, and comes as a report."""
        return [
            optchat.ReportPart("note", text_of(part)) if any(part is note for note in self.notes) else part
            for part in self.parts
        ]

    def say(self, message: optchat.HostMessage) -> None:
        self.messages.append(message)
        self.natural = message.role == "assistant" and isinstance(message.parts[-1], optchat.TextPart)

    def finish(self, outcome: optchat.Outcome | None) -> None:
        natural: optchat.Outcome = "completed" if self.natural and not self.pending else "interrupted"
        self.state, self.outcome = "ended", outcome or natural
