"""
Forgetting (§ 12): what a removal says of itself.

Decides: the words of a receipt: what is gone, what is kept and why, and what no deletion can undo.
Refuses to know: how anything is found, hidden or erased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

Forks: TypeAlias = Literal["preserve", "forget"]
FORKS: Final[tuple[Forks, ...]] = ("preserve", "forget")

CANNOT_UNDO: Final = (
    "what a model was already sent, in requests that held it",
    "exports and copies of the file that were made before",
    "backups that were made before",
)


@frozen
class DeletionReceipt:
    """
    What a deletion did (§ 12). It is hidden from every read by the time this is returned.

    ``removed``: how many of each thing are gone. ``kept``: what of it is still there, and why. ``cannot_undo``: where
    copies may be that no deletion reaches. ``scrubbed``: whether no byte of it is left in the database's files.
    """

    removed: Mapping[str, int]
    kept: Mapping[str, str]
    cannot_undo: tuple[str, ...]
    scrubbed: bool


def fork_keeps(records: int) -> str:
    """Why a fork still has records of a deleted session."""
    return f"a fork: the first {records} records are its own history; delete it too, or use forks='forget'"


def own_words(turns: int) -> str:
    """Why another session may still say what was removed."""
    count = "1 turn" if turns == 1 else f"{turns} turns"
    return f"its own words: {count} retrieved what was removed and may have quoted it; delete those too if they did"


LATER_SUMMARIES: Final = (
    "its later turns: their summaries were written beside what is gone, and may tell it in other words; those that"
    " repeat its own words are made anew"
)


def joined_reasons(kept: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What was kept, each with every reason."""
    return {name: "; ".join(reasons) for name, reasons in kept.items()}
