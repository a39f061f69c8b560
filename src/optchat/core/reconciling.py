"""
Reconciliation (§ 3, § 12): a host's list of messages against what is sealed.

Decides: up to where both say the same, what the list adds, and how it differs; what a list that begins in mid-history
means; which of its messages were removed and are not to come back.
Refuses to know: hosts, storage, and what is done about a difference.

A list is the session's history, in order, from its first message. It is compared part by part with the records, by
content: kind, structure, payload. Where a message has a key, the key says which record it is, and content elsewhere
does not count. A list whose first known key is sealed further on is the history's tail, unless it names something from
before its own beginning.

Notes and reports are memory's own as well as a host's: a list may lack them. What was removed on purpose is neither
missing where a list lacks it nor new where a list still has it: its key is known by a keyed hash, or a whole turn is by
the digest of its contents. Of a turn that failed or was interrupted some hosts keep nothing, or only a part.

Laws: what is kept, skipped and new is the whole list, in order; a list that was sealed as it was told has nothing new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from attrs import evolve, field, frozen

from optchat.core.grouping import TranscriptTurn, Turns
from optchat.core.messages import HostMessage, Part
from optchat.core.records import record_kind
from optchat.core.terms import RecordKind

Difference: TypeAlias = Literal["changed", "missing", "reordered"]
OWN_KINDS: Final[frozenset[RecordKind]] = frozenset({"note", "report"})  # sealed by a program too, not only by its host


# ---- a list ----------------------------------------------------------------------------------------------------------


@frozen
class HostPart:
    """A part of a host's list: of which native message, its number in it, and the turn that the list puts it into."""

    native: int
    number: int
    turn: int
    message: HostMessage
    part: Part

    @property
    def kind(self) -> RecordKind:
        return record_kind(self.message, self.part)


@frozen
class HostList:
    """
    A host's list, read: what each native message says, its parts in order, and its turns.

    ``skipped`` counts messages by reason: ``no_source`` (the host's summaries, system messages, reasoning) and
    ``redelivered`` (what stands in the list already). ``drops_unfinished``: of a turn that did not complete its host
    keeps as much as it likes.
    """

    natives: tuple[tuple[HostMessage, ...], ...]
    parts: tuple[HostPart, ...]
    turns: tuple[TranscriptTurn, ...]
    skipped: Mapping[str, int]
    drops_unfinished: bool = False

    @property
    def messages(self) -> int:
        """How many of its messages are sources."""
        return len({part.native for part in self.parts if part.kind != "report"})


def read_list(natives: Iterable[Sequence[HostMessage]], *, drops_unfinished: bool = False) -> HostList:
    """
    Read a list of native messages, each given as what it decodes to.

    Raises:
        BadArgument: a turn that goes on after another began or after its end, or a key or call id with other content.
    """
    read = tuple(tuple(messages) for messages in natives)
    turns = Turns()
    parts: list[HostPart] = []
    skipped = {"no_source": 0, "redelivered": 0}
    for native, messages in enumerate(read):
        number = taken = 0
        for place, message in enumerate(messages):
            # The messages of one native may share its key: their parts' numbers tell them apart.
            own = message if message.key is None or not place else evolve(message, key=f"{message.key}\0{place}")
            if message.parts and turns.add(own):
                taken += 1
                parts += [
                    HostPart(native, number + offset, len(turns) - 1, message, part)
                    for offset, part in enumerate(message.parts)
                ]
            number += len(message.parts)
        if not number:
            skipped["no_source"] += 1
        elif not taken:
            skipped["redelivered"] += 1
    counted = {reason: count for reason, count in skipped.items() if count}
    return HostList(read, tuple(parts), turns.finished(), counted, drops_unfinished)


# ---- what is sealed --------------------------------------------------------------------------------------------------


@frozen
class Stored:
    """
    A record, as far as comparing needs it. ``turn`` tells the turns apart, and no more.

    ``droppable``: its turn did not complete, and its host need not have kept all of it.
    """

    seq: int
    turn: int
    kind: RecordKind
    sha256: bytes
    removed: bool = False
    droppable: bool = False


@frozen
class Known:
    """What is sealed under a message's key: the record, and whether a later revision stands there."""

    seq: int
    newer: bool = False


@frozen
class Listed:
    """
    A part of a listed message.

    ``hashes``: the one that it would be sealed under, then others that it may be sealed under already (a memory tool's
    answer, by whoever did not know it for one). ``turn`` is the turn that the list puts it into, counted from 0.
    """

    message: int
    turn: int
    kind: RecordKind
    hashes: tuple[bytes, ...]
    known: Known | None = None
    removed: bool = False  # its key is one of something that was removed

    @property
    def sha256(self) -> bytes:
        return self.hashes[0]


# ---- both ------------------------------------------------------------------------------------------------------------


@frozen
class Divergence:
    """Where a list departs from what is sealed: at this record, by this message (None: it ended before)."""

    what: Difference
    seq: int
    message: int | None

    def __str__(self) -> str:
        where = "the list ends before it" if self.message is None else f"message {self.message} of the list"
        return f"record {self.seq} is {self.what} ({where})"


@frozen
class Comparison:
    """
    What a list and a session have in common.

    The list begins with record ``beginning``, and records below ``cut`` stay; ``matched`` says which record a part is.
    ``rest`` are the parts that are not sealed, in order, without those that were removed.
    """

    beginning: int
    cut: int
    rest: tuple[int, ...]
    divergence: Divergence | None
    matched: dict[int, int] = field(factory=dict[int, int])  # by part: the record's number
    skipped: frozenset[int] = frozenset()  # messages that were removed

    @property
    def kept(self) -> int:
        return len(self.matched)

    @property
    def last_matched(self) -> int | None:
        """The last part that is sealed."""
        return max(self.matched, default=None)

    def goes_on(self, listed: Sequence[Listed]) -> bool:
        """Whether the rest begins in the midst of a turn of which the list's earlier part is sealed."""
        last = self.last_matched
        return bool(self.rest) and last is not None and listed[last].turn == listed[self.rest[0]].turn


def compare(
    stored: Sequence[Stored], listed: Sequence[Listed], removed: frozenset[tuple[int, int]] = frozenset()
) -> Comparison:
    """
    Follow a list along what is sealed.

    Args:
        removed: (first part, how many): runs of the list whose contents are those of a turn that was removed.
    """
    claimed = {part.known.seq for part in listed if part.known is not None}
    runs: dict[int, set[int]] = {}
    for first, count in removed:
        runs.setdefault(first, set()).add(count)
    at = _beginning(stored, listed, claimed)
    beginning = stored[at].seq if at else 0
    way = _Way(stored, listed, claimed, runs).follow(at)
    rest, late = _without_removed(listed, way.here, runs)
    end = stored[-1].seq + 1 if stored else 0
    cut = stored[way.at].seq if way.at < len(stored) else end
    return Comparison(
        beginning,
        cut,
        rest,
        _divergence(stored, listed, way.at, way.here),
        {part: seq for part, seq in way.trail if seq is not None},
        frozenset(late | {listed[part].message for part, seq in way.trail if seq is None}),
    )


@frozen
class _End:
    """How far both go together: the record and the part that follow, and each part with its record (None: removed)."""

    at: int
    here: int
    trail: tuple[tuple[int, int | None], ...]


@frozen
class _Way:
    """
    The walk along a list and what is sealed.

    Only a record that its host may have dropped leaves a choice: what is sent again after a failure often says the very
    same, so that it may be the first of both that is in the list, or the second. The first way that does not end in a
    difference is taken; if each does, the one that takes every part for the first that it may be. No place is looked at
    twice.
    """

    stored: Sequence[Stored]
    listed: Sequence[Listed]
    claimed: set[int]
    runs: Mapping[int, set[int]]

    def follow(self, at: int) -> _End:
        choices: list[tuple[int, int, int]] = [(at, 0, 0)]  # the record, the part, and how long the trail was there
        last = {record.sha256: number for number, record in enumerate(self.stored)}
        seen: set[tuple[int, int]] = set()
        trail: list[tuple[int, int | None]] = []  # of the way that is walked; the last choice's is a beginning of it
        first: _End | None = None
        while choices:
            at, here, length = choices.pop()
            del trail[length:]
            end = self._from(at, here, trail, choices, seen, last)
            if end is None:
                continue
            if end[0] == len(self.stored):
                return _End(*end, tuple(trail))
            first = first or _End(*end, tuple(trail))
        assert first is not None, "the first way was gone"
        return first

    def _from(
        self,
        at: int,
        here: int,
        trail: list[tuple[int, int | None]],
        choices: list[tuple[int, int, int]],
        seen: set[tuple[int, int]],
        last: Mapping[bytes, int],
    ) -> tuple[int, int] | None:
        """To the end of both, or to a difference; None where another way was before, which ended in one."""
        stored, listed = self.stored, self.listed
        while here < len(listed):
            if (at, here) in seen:
                return None
            seen.add((at, here))
            record = stored[at] if at < len(stored) else None
            if record is not None and not record.removed and _same(listed[here], record, self.claimed):
                # To leave it out helps only where the part is sealed again further on: nearly never.
                part = listed[here]
                again = part.known is None and any(last.get(each, at) > at for each in part.hashes)
                if again and self._may_be_dropped(record):
                    choices.append((at + 1, here, len(trail)))
                trail.append((here, record.seq))
                at, here = at + 1, here + 1
                continue
            removed_here = stored[at:] if record is not None and record.removed else ()
            run = _removed_run(listed, here, self.runs, removed_here)
            if run:
                trail += [(part, None) for part in range(here, here + run)]
                here += run
            elif record is not None and self._may_be_absent(record):
                at += 1
            else:
                break
        while at < len(stored) and here == len(listed) and self._may_be_absent(stored[at]):
            at += 1
        return at, here

    def _may_be_absent(self, record: Stored) -> bool:
        return _may_be_absent(record, self.claimed) or self._may_be_dropped(record)

    def _may_be_dropped(self, record: Stored) -> bool:
        return record.droppable and record.seq not in self.claimed


def _beginning(stored: Sequence[Stored], listed: Sequence[Listed], claimed: set[int]) -> int:
    """
    The record that a list begins with: the first, unless its first known key is sealed further on.

    What stands before that message in the list is counted back from there. A list that also names something from before
    such a beginning is no tail but an order of its own.
    """
    first = next((number for number, part in enumerate(listed) if part.known is not None), None)
    if first is None:
        return 0
    anchor = listed[first].known
    assert anchor is not None, "it was looked for"
    at = next((number for number, record in enumerate(stored) if record.seq == anchor.seq), None)
    if at is None:
        return 0
    before = first
    while at and before:
        at -= 1
        before -= not _may_be_absent(stored[at], claimed)
    beginning = stored[at].seq
    return 0 if before or any(seq < beginning for seq in claimed) else at


def _same(part: Listed, record: Stored, claimed: set[int]) -> bool:
    if part.known is None:
        return record.seq not in claimed and record.sha256 in part.hashes
    return part.known.seq == record.seq and (part.known.newer or record.sha256 in part.hashes)


def _may_be_absent(record: Stored, claimed: set[int]) -> bool:
    return record.removed or (record.kind in OWN_KINDS and record.seq not in claimed)


def _removed_run(
    listed: Sequence[Listed], here: int, runs: Mapping[int, set[int]], removed_here: Sequence[Stored]
) -> int:
    """
    How many parts from here on were removed; 0: none.

    Args:
        removed_here: the records from a removed one on that stands here: the length of its turn decides.
    """
    if listed[here].removed:
        return 1
    counts = runs.get(here, set())
    if counts and removed_here:
        turn = takewhile(lambda each: each.turn == removed_here[0].turn, removed_here)
        for count in run_lengths(each.kind for each in turn):
            if count in counts:
                return count
    return max(counts, default=0)


def _without_removed(
    listed: Sequence[Listed], here: int, runs: Mapping[int, set[int]]
) -> tuple[tuple[int, ...], set[int]]:
    rest: list[int] = []
    skipped: set[int] = set()
    while here < len(listed):
        run = _removed_run(listed, here, runs, ())
        if run:
            skipped.update(listed[part].message for part in range(here, here + run))
        else:
            rest.append(here)
        here += run or 1
    return tuple(rest), skipped


def _divergence(stored: Sequence[Stored], listed: Sequence[Listed], at: int, here: int) -> Divergence | None:
    """What makes the list another history; past the end of what is sealed nothing can."""
    if at == len(stored):
        return None
    record = stored[at]
    if here == len(listed):
        return Divergence("missing", record.seq, None)
    part = listed[here]
    later = any(part.sha256 == other.sha256 for other in stored[at + 1 :])
    comes = any(record.sha256 in other.hashes for other in listed[here + 1 :])
    what: Difference = ("reordered" if comes else "missing") if later else "changed"
    return Divergence(what, record.seq, part.message)


# ---- what was removed ------------------------------------------------------------------------------------------------


def run_lengths(kinds: Iterable[RecordKind]) -> tuple[int, ...]:
    """How many parts of a list a turn of these records may be: with the reports that its host knows, or without."""
    said = [kind for kind in kinds if kind != "note"]
    without = sum(kind != "report" for kind in said)
    return tuple(dict.fromkeys(count for count in (len(said), without) if count))


def turn_digests(records: Sequence[tuple[RecordKind, bytes]]) -> tuple[bytes, ...]:
    """
    What a removed turn's contents are known by: one digest for each length that :func:`run_lengths` names.

    To be kept only as a keyed hash: a short turn could be guessed.

    Args:
        records: the turn's, in order: kind and hash.
    """
    said = [(kind, sha256) for kind, sha256 in records if kind != "note"]
    runs = (tuple(sha256 for _, sha256 in said), tuple(sha256 for kind, sha256 in said if kind != "report"))
    return tuple(run_digest(run) for run in dict.fromkeys(runs) if run)


def run_digest(hashes: Sequence[bytes]) -> bytes:
    """The digest of a run of contents."""
    return hashlib.sha256(b"turn\0" + b"".join(hashes)).digest()


def candidate_runs(listed: Sequence[Listed], lengths: Iterable[int]) -> dict[tuple[int, int], bytes]:
    """Every run of a list that has one of these lengths, and its digest: what removed turns are looked for in."""
    return {
        (first, count): run_digest([part.sha256 for part in listed[first : first + count]])
        for count in sorted(set(lengths))
        for first in range(len(listed) - count + 1)
    }
