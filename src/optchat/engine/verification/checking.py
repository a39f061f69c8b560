"""
What a check is handed, and what it collects.

Decides: how a suspicion becomes a fault, and that a step is one read transaction.
Refuses to know: what is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import define, evolve, field, frozen

from optchat.core.errors import IntegrityError
from optchat.core.faults import fault_of
from optchat.core.lineage import ordinal_of, owner_of
from optchat.core.refs import Span, publication_ref, session_ref, span_of_post_order
from optchat.core.status import Fault
from optchat.engine.handle import Caches, Scope
from optchat.engine.origins import TreePlace
from optchat.store import structure
from optchat.store.rows import Connection

STEP: Final = 500  # rows a read transaction
MOST_OF_A_CODE: Final = 1_000  # faults kept; the rest of a code is counted in the last one's message


@frozen
class Found:
    """A fault, and what a repair needs to find the place again: a key of whatever its code is about."""

    fault: Fault
    subject: int


@frozen
class Segment:
    """A segment of the scope as it was when the check began, and has its bases."""

    segment: int
    tree: int
    base_length: int


@define
class Check:
    """One verification of a scope. Nothing that this process has cached is believed."""

    scope: Scope
    segments: list[Segment] = field(factory=list[Segment])
    places: list[TreePlace] = field(factory=list[TreePlace])
    checked: Counter[str] = field(factory=Counter[str])
    _found: dict[tuple[str, str | None, str], Found] = field(factory=dict[tuple[str, str | None, str], Found])
    _of_code: Counter[str] = field(factory=Counter[str])

    def count(self, what: str, number: int = 1) -> None:
        self.checked[what] += number

    def fault(self, code: str, ref: str | None, detail: str, subject: int = 0) -> None:
        """Report a fault, once. Of a code with thousands the first are kept: a repair goes round again."""
        fault = fault_of(code, ref, detail)
        key = code, ref, fault.message
        if key not in self._found:
            self._of_code[code] += 1
            if self._of_code[code] <= MOST_OF_A_CODE:
                self._found[key] = Found(fault, subject)

    @property
    def found(self) -> list[Found]:
        return list(self._found.values())

    @property
    def total(self) -> int:
        """How many faults there are, those that are not kept included."""
        return self._of_code.total()

    @contextmanager
    def reading(self, code: str = "DATABASE") -> Generator[Connection, None, None]:
        """
        One step: a read transaction, whose rows are of one moment. What contradicts itself there is no race.

        Args:
            code: the fault that it is if the rows cannot be read, or contradict themselves so that nobody can go on.
        """
        try:
            with self.scope.store.read() as db:
                yield db
        except IntegrityError as error:
            self.fault(code, None, str(error))


def steps(subjects: Iterable[int], most: int) -> Iterable[Sequence[int]]:
    """What is to be repaired, each once and in order, by so many a transaction."""
    ordered = sorted(set(subjects))
    return (ordered[start : start + most] for start in range(0, len(ordered), most))


def uncached(scope: Scope) -> Scope:
    """A scope that reads everything from the file."""
    return evolve(scope, caches=Caches())


def segment_ref(db: Connection, segment_pk: int, span: Span) -> str:
    """The canonical ref of a span of a segment, also where its session is in disorder."""
    name = structure.segment_name(db, segment_pk)
    return f"segment {segment_pk}: {span}" if name is None else session_ref(*name, span.start, span.count)


def record_ref(db: Connection, record_key: int) -> str:
    """The canonical ref of a record."""
    return segment_ref(db, owner_of(record_key), Span(ordinal_of(record_key), 1))


def ref_of(db: Connection, place: TreePlace, span: Span) -> str:
    """The ref of a node of a tree; a page goes by its record."""
    if place.segment is not None:
        return segment_ref(db, place.segment, span)
    if place.chunks is not None and place.chunks.record_key is not None:
        return record_ref(db, place.chunks.record_key)
    return publication_ref(span.start, span.count)


def span_of(node_key: int) -> Span:
    """The span of a node's position."""
    return span_of_post_order(ordinal_of(node_key))
