"""
The faults that verification names.

Decides: what each code means, whether it can be repaired from what is there, and what to do about it.
Refuses to know: how a fault is found, and how one is repaired.

Repairable is what is derived: views, nodes, the index, pointers, counters, jobs. A source (a record, its bytes, a turn,
a publication's range) is never touched: what is wrong with one stays, and a backup has it right. The order of the table
is the order of repair: each rests on what stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.status import Fault

_RESTORE: Final = "restore a backup: a source cannot be made anew"
_REPAIR: Final = "repair it: verify(repair=True)"
_REPORT: Final = "report it as a defect of optchat, with this message"


@frozen
class FaultKind:
    """What a code stands for; ``advice`` is how its messages end."""

    code: str
    meaning: str
    repairable: bool
    advice: str


def _derived(code: str, meaning: str) -> FaultKind:
    return FaultKind(code, meaning, repairable=True, advice=_REPAIR)


def _source(code: str, meaning: str, advice: str = _RESTORE) -> FaultKind:
    return FaultKind(code, meaning, repairable=False, advice=advice)


_KINDS: Final = (
    # the file
    _source("DATABASE", "SQLite finds the file damaged", "restore a backup"),
    _source("SCHEMA", "the file has not the tables, columns and indexes of its version", "restore a backup"),
    _source("DANGLING", "a row names another that is missing"),
    # lifecycle
    _source("SEGMENT", "a segment does not rest on a turn boundary of a segment that is there"),
    _source("GENERATION", "a session's generations contradict each other"),
    _source("TURN_RANGE", "the turns of a segment leave a gap, overlap, or lie in another segment"),
    # records
    _source("RECORD_GAP", "a record's number is missing"),
    _source("RECORD_TURN", "a record lies outside of its turn"),
    _source("PAYLOAD_MISSING", "bytes of a record are missing"),
    _source("PAYLOAD_CHANGED", "a record does not hash to what was sealed"),
    _source("ATTACHMENT_CHANGED", "an image or a file does not hash to its manifest"),
    _source("BLOB_CHANGED", "kept bytes do not hash to the name that they are kept under"),
    _source("LEAF_CHANGED", "a verbatim leaf has not the recorded size"),
    _source("EVENT_LOST", "a delivery is on record under an event key, and its record is missing"),
    # publications
    _source("PUBLICATION_GAP", "a publication's number is missing"),
    _source("PUBLICATION_TURN", "a publication and its turn disagree about what was published"),
    _source("PUBLICATION_TWICE", "a turn has two live publications"),
    _source("PUBLICATION_ORDER", "publications of one session are not in turn order"),
    # removals
    _source("HIDDEN", "a part of what was removed is not hidden", "delete it again: what is hidden already stays so"),
    _source("HIDDEN_PUBLISHED", "what was removed or revoked is published", "delete or revoke it again"),
    _source("SCRUB_LEFT", "scrubbed content is still in its rows", "settle() scrubs; else " + _REPORT),
    # pins
    _source("PIN", "an open turn's pinned views contradict themselves", "end that turn: the next one pins anew"),
    # from here on everything is derived; repaired in this order
    _derived("COUNTER", "the scope's next number or clock lies below what is in use"),
    _derived("MOMENT", "the scope's marks at its clock are missing, or beyond what there is"),
    _derived("ENDED_LENGTH", "a segment's count of records in ended turns is wrong"),
    _derived("PUBLICATION_POINTER", "a turn does not name its live publication, or names one that is not live"),
    _derived("VIEW_MISSING", "a tree has no view"),
    _derived("NODE_SIZE", "a node is over its limit, or not of the recorded size"),
    _derived("PUBLICATION_LEAF", "a publication has no leaf"),
    _derived("PAGE_LOST", "a page of a large record has neither a summary nor a job that will make one"),
    _derived("LEAF_LOST", "a long record has neither a summary nor a job that will make one"),
    _derived("MERGE_LOST", "a due inner node is neither there nor has a job that will make it"),
    _derived("COVER_MISSING", "a node that a publication was made of is missing"),
    _derived("CHILD_MISSING", "what a node was made of is missing"),
    _derived("NODE_TEXT", "a joined node does not say what it joins"),
    _derived("NODE_COUNTS", "a node's outcomes or times are not those of what is under it"),
    _derived("NODE_HEAVY", "a node is heavier than its children: a view could not shrink past it"),
    _derived("INPUTS_CHANGED", "what a node was made of does not hash to what was recorded"),
    _derived("JOB_DONE", "a job is for something that is there already, or that never will be"),
    _derived("PUBLICATION_LOST", "an ended turn is not published, and no job will publish it"),
    _derived("WAITER", "a job waits for what is there, or counts what it waits for wrongly"),
    _derived("JOB_STUCK", "a job waits, and nothing will make it ready"),
    _derived("VIEW", "a view does not cover its prefix exactly, by nodes that are there"),
    _derived("INDEX", "the search index is damaged"),
    _derived("DOCUMENT_CHANGED", "a search document does not describe its source"),
    _derived("DOCUMENT_STATE", "a search document is found that should not be, or is not that should"),
    _derived("DOCUMENT_VISIBLE", "a search document is visible by another publication than its source"),
    _derived("ENTRY_MISSING", "a search document has no words in the index"),
    _derived("ENTRY_CHANGED", "a search document has other words in the index than its text"),
    _derived("ENTRY_ORPHAN", "the index has words of a document that is not there"),
    _derived("UNINDEXED", "a record, or a piece of one, is not in the search index, and no job will index it"),
    _derived("NODE_UNINDEXED", "a summary is not in the search index"),
    _derived("RECIPE_COUNT", "a recipe's count of its nodes is wrong"),
)

FAULTS: Final[Mapping[str, FaultKind]] = MappingProxyType({kind.code: kind for kind in _KINDS})
REPAIR_ORDER: Final = tuple(kind.code for kind in _KINDS if kind.repairable)


def fault_of(code: str, ref: str | None, detail: str) -> Fault:
    """
    A fault as it is reported: its message says what is wrong and ends in what to do.

    Raises:
        BadArgument: no such code; every one stands in the table.
    """
    kind = FAULTS.get(code)
    if kind is None:
        raise BadArgument(f"{code} is no code of a fault; add it to the table")
    return Fault(code, ref, f"{detail}; {kind.advice}", kind.repairable)
