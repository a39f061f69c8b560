"""What the tests of the use cases write: turns of one record, short or long."""

import optchat

BUDGET = optchat.Budget(window=100_000, output=1_000)
SMALL_VIEWS = optchat.Policy(view_high_bytes=4_000, view_low_bytes=2_000)

Session = optchat.Session[optchat.HostMessage]
Turn = optchat.Turn[optchat.HostMessage]


def say(session: Session, text: str) -> Turn:
    """A completed turn that is only its request."""
    turn = session.turn(text)
    turn.end("completed")
    return turn


def words(number: int, size: int = 400) -> str:
    """Distinct text of a size: at 400 bytes a leaf is verbatim, and two do not fit into one node."""
    return (f"turn {number} speaks of thing{number} and its cause{number}. " * (size // 40 + 1))[:size]


def shared_block(turn: Turn) -> str:
    return next(block.text for block in turn.context(BUDGET).blocks if block.kind == "shared")


def previous_exchange(turn: Turn) -> str:
    return next(block.text for block in turn.context(BUDGET).blocks if block.kind == "previous_exchange")
