"""
Publications (§ 5): finished turns, as leaves of the tree that a scope shares.

Decides: how a turn ends, when it may be published, and what a publication's leaf is made of.
Refuses to know: views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from optchat.core.errors import TurnEnded
from optchat.core.refs import Span, exact_cover
from optchat.core.render import escaped_size
from optchat.core.speakers import marked
from optchat.core.terms import Outcome, RecordKind
from optchat.core.tree import Node

TurnState: TypeAlias = Literal["open", "suspended", "ended"]
TurnEvent: TypeAlias = Literal["suspend", "resume", "end", "seal"]

# Sealing into a suspended turn is allowed: a call that was running when its turn was suspended may still answer.
TURN_TRANSITIONS: Final[dict[tuple[TurnState, TurnEvent], TurnState]] = {
    ("open", "seal"): "open",
    ("suspended", "seal"): "suspended",
    ("open", "suspend"): "suspended",
    ("suspended", "suspend"): "suspended",
    ("open", "resume"): "open",
    ("suspended", "resume"): "open",
    ("open", "end"): "ended",
    ("suspended", "end"): "ended",
}


def turn_after(state: TurnState, event: TurnEvent, outcome: Outcome | None = None) -> TurnState:
    """The state after an event; TurnEnded where the turn has its outcome already."""
    try:
        return TURN_TRANSITIONS[state, event]
    except KeyError:
        raise TurnEnded(
            f"the turn has ended as {outcome}; begin a new turn for what comes after it",
            outcome=outcome or "interrupted",
        ) from None


def natural_outcome(last_kind: RecordKind | None, pending_calls: int) -> Outcome:
    """How a turn that simply stopped ended: completed only on an assistant's answer with no call open (§ 5)."""
    return "completed" if last_kind == "assistant" and not pending_calls else "interrupted"


@frozen
class Turn:
    """A finished turn, as publishing sees it; times are microseconds."""

    start: int
    end: int
    outcome: Outcome
    started_at: int
    ended_at: int

    @property
    def cover(self) -> tuple[Span, ...]:
        """The session nodes that cover it exactly."""
        return exact_cover(self.start, self.end)


def publication_leaf(number: int, turn: Turn, cover: Sequence[Node], node_bytes: int) -> Node | None:
    """
    A publication's leaf without a call: its cover's texts joined by line feeds, if they fit.

    What was not completed is marked in the text too: two leaves may be joined later, and a label on their parent counts
    outcomes without saying whose they are.
    """
    text = marked("\n".join(node.text for node in cover), turn.outcome)
    if len(text.encode()) > node_bytes:
        return None
    kinds = {node.kind for node in cover}
    return leaf_of(
        number,
        turn,
        text,
        escaped_size(text),
        cover[0] if len(kinds) == 1 else None,
    )


def leaf_of(number: int, turn: Turn, text: str, escaped_bytes: int, like: Node | None = None) -> Node:
    """The leaf of a publication: its outcome counted in structure, whatever its text says."""
    return Node(
        span=Span(number, 1),
        revision=0,
        kind="summary" if like is None else like.kind,
        text=text,
        escaped_bytes=escaped_bytes,
        failed=int(turn.outcome == "failed"),
        interrupted=int(turn.outcome == "interrupted"),
        first_at=turn.started_at,
        last_at=turn.ended_at,
    )
