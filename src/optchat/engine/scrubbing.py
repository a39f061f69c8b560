"""
Scrubbing (§ 12): what was hidden leaves the file, byte for byte, in steps that hold no writer up.

Decides: in which order things are erased, how much of it a transaction does, and when bytes are gone for good.
Refuses to know: what was removed and why (the hiding transaction wrote that down), and what a row loses.

- A step is one short transaction: it erases for ``STEP_SECONDS`` and leaves the rest of its 50 ms to the commit. What
  it needs is read before it begins. It takes what it erases off the list in the same transaction, so a crash leaves it
  done or not begun, and two processes that scrub at once do nothing twice.
- Index entries go by their exact words, made from their source by their own pre-tokenizer's version. Words of anything
  else would be deleted with success and stay findable (tried). So an entry goes in the transaction in which its source
  goes, or in one before.
- Rows that are gone leave copies behind: in segments of the full-text index, in gaps of pages, in the log. Hence the
  further stages: every segment merged, the file rewritten, the log emptied. They come once for all removals, when no
  row is left to erase.
- Rewriting the file is the one step that is not short: it holds the writer lock for as long as writing all of it takes.
  A large file is therefore rewritten only for somebody who waits for it, never in the background. There is no way to do
  it in pieces: SQLite's incremental vacuum moves whole pages and leaves their gaps as they are, and what would write
  pages past it is not built in.
- Nobody waits under the lock for another process's reader: the log cannot be emptied while one is open, which is
  written down as what hinders, and tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import define, field, frozen

from optchat.core.errors import ConfigError, IntegrityError, StoreFull
from optchat.core.records import spoken_text, to_bytes
from optchat.core.refs import KEY_BITS
from optchat.core.words import words_of
from optchat.engine.handle import Scope
from optchat.engine.inputs import clean
from optchat.store import erasing, ledger, payloads, scrubs
from optchat.store.erasing import Entry
from optchat.store.rows import Connection
from optchat.store.scrubs import Erasure, RemovalRow
from optchat.store.who_reads import describe_readers

STEP_SECONDS: Final = 0.02  # of erasing, in a transaction; its commit takes about as long (measured)
SLICE_SECONDS: Final = 0.25  # of steps, before whatever else a worker has to do
REWRITTEN_UNASKED_BYTES: Final = 256 * 1024 * 1024  # a larger file holds the writer lock for seconds
_ROWS: Final = 200  # looked at for a step
_ENTRIES: Final = 64
_REVISIONS: Final = 1 << 20  # of a node: all there may be
_WORDS: Final = 20_000  # of a step's index entries: so many are deleted in about 15 ms (measured)
_NODES: Final = 16  # erased before the clock is looked at
_PIECES: Final = 8  # of a blob, before the clock is looked at
_HASH_BITS: Final = 16  # of an event's hash, in the keys of "events"
_ALL_HASHES: Final = 1 << _HASH_BITS
_HASHES: Final = 1 << 10  # the share of them of a segment's events that is looked through at a time
_PATIENCE_SECONDS: Final = 0.5  # with readers, none of it under the lock
_PAUSE_SECONDS: Final = 0.02
_PAGES: Final = 16  # of the index, before the clock is looked at


# Erases until it is told that the time is over, and says below which key nothing is left.
_Work: TypeAlias = Callable[[Connection, Callable[[], bool]], int]


@frozen
class Scrubbed:
    """How far scrubbing came. ``hindered``: what it waits for; None: nothing, it is done or was broken off."""

    done: bool
    hindered: str | None = None


def scrub(scope: Scope, until: Callable[[], bool], *, whole: bool) -> Scrubbed:
    """
    Erase what was removed from the file, of whatever scope, until nothing is left, it cannot go on, or ``until``.

    Resumable: whatever ends it, another call of any process goes on there. Idempotent.

    Args:
        until: asked between steps.
        whole: somebody waits, so that a large file is rewritten too.

    Raises:
        StoreBusy: the writer lock was not had in time.
    """
    scrubber = _Scrubber(scope, whole)
    while not until():
        if not scrubber.step():
            return Scrubbed(scrubber.hindered is None, scrubber.hindered)
    return Scrubbed(False)


def scrub_slice(scope: Scope) -> bool:
    """Scrub for a moment, beside other work; whether there was anything to do. Raises: as :func:`scrub`."""
    with scope.store.read() as db:
        if not scrubs.unfinished(db):
            return False
    end = time.monotonic() + SLICE_SECONDS
    return scrub(scope, lambda: time.monotonic() >= end, whole=False).hindered is None


@frozen
class _Deleted:
    """An entry and the words that delete it."""

    entry: Entry
    words: str


@frozen
class _Nodes:
    """Nodes that are to go, and the first of their entries with their words; ``entries``: so many were looked at."""

    keys: Sequence[int]
    deleted: Sequence[_Deleted]
    entries: int

    def erase(self, db: Connection, is_over: Callable[[], bool]) -> int | None:
        """Erase entries, then nodes that have none left; from which key on nodes are left, None: none of these."""
        if not self.keys:
            return None
        if not _delete(db, self.deleted, is_over):
            return self.keys[0]
        waiting = None
        if not len(self.deleted) == self.entries < _ENTRIES:
            waiting = self.deleted[-1].entry.subject
        ready = [key for key in self.keys if waiting is None or key < waiting]
        for first in range(0, len(ready), _NODES):
            if is_over():
                return ready[first]
            erasing.erase_nodes(db, ready[first : first + _NODES])
        return waiting


@define
class _Scrubber:
    """One run of steps. ``hindered``: why there was no further one."""

    scope: Scope
    whole: bool
    hindered: str | None = None
    _stuck: set[int] = field(factory=set[int])  # removals that cannot go on, in this run
    _last_text: tuple[int, bytes] | None = None  # of a record: its pieces are deleted in several steps

    def step(self) -> bool:
        """Do one thing. False: there is nothing more to do, or something hinders it."""
        with self.scope.store.read() as db:
            removals = [removal for removal in scrubs.unfinished(db) if removal.removal_pk not in self._stuck]
            erasing_rows = [removal for removal in removals if removal.stage == "rows"]
            erasure = scrubs.next_erasure(db, erasing_rows[0]) if erasing_rows else None
        if erasure is not None:
            try:
                self._erase(erasure)
            except (IntegrityError, ConfigError) as error:  # an entry's words cannot be made: others can go on
                self._hinder([erasure.removal], str(error))
                self._stuck.add(erasure.removal.removal_pk)
            return True
        if erasing_rows:
            self._end_of_rows(erasing_rows[0])
            return True
        for stage, act in (("index", self._merge), ("pages", self._rewrite), ("log", self._empty_log)):
            there = [removal for removal in removals if removal.stage == stage]
            if there:
                return act(there)
        return False

    # ---- rows --------------------------------------------------------------------------------------------------------

    def _erase(self, erasure: Erasure) -> None:
        match erasure.kind:
            case "documents":
                self._documents(erasure)
            case "trees":
                self._tree(erasure)
            case "history":
                self._history(erasure)
            case "nodes":
                self._nodes(erasure)
            case "records":
                self._records(erasure)
            case _:
                self._plain(erasure)

    def _write(self, erasure: Erasure, work: _Work) -> None:
        """One step: ``work`` erases until told that the time is over, and says below which key nothing is left."""
        with self.scope.store.write(wait_seconds=self.scope.policy.lock_wait_seconds) as db:
            if not scrubs.still_to_do(db, erasure):
                return  # another process has got further
            end = time.monotonic() + STEP_SECONDS
            scrubs.move_on(db, erasure, work(db, lambda: time.monotonic() >= end))

    def _records(self, erasure: Erasure) -> None:
        with self.scope.store.read() as db:
            records = erasing.hidden_records(db, erasure.low, erasure.high, _ROWS)
            entries = erasing.entries_of_records(db, records, _ENTRIES)
            deleted = self._with_words(db, entries)
        # The record of the first entry that is not deleted in this step, and those after it, have to wait.
        whole = len(deleted) == len(entries) < _ENTRIES
        waiting = None if whole else deleted[-1].entry.subject
        ready = [key for key in records if waiting is None or key < waiting]

        def work(db: Connection, is_over: Callable[[], bool]) -> int:
            if not _delete(db, deleted, is_over):
                return erasure.low
            segments: set[int] = set()
            for key in ready:
                if is_over():
                    return key
                left = erasing.erase_record(db, key)
                follows: list[tuple[scrubs.Kind, int, int]] = [("blobs", blob, blob + 1) for blob in left.blobs]
                if left.tree_pk is not None:
                    follows.append(("trees", left.tree_pk, left.tree_pk + 1))
                if key >> KEY_BITS not in segments:
                    segments.add(key >> KEY_BITS)
                    follows.append(("events", key >> KEY_BITS << _HASH_BITS, (key >> KEY_BITS) + 1 << _HASH_BITS))
                for kind, low, high in follows:
                    scrubs.add_erasure(db, erasure.removal.removal_pk, kind, low, high)
            if waiting is None and len(records) < _ROWS:
                return erasure.high
            return ready[-1] + 1 if ready else erasure.low

        self._write(erasure, work)

    def _documents(self, erasure: Erasure) -> None:
        with self.scope.store.read() as db:
            entries = erasing.hidden_entries(db, erasure.low, erasure.high, _ENTRIES)
            deleted = self._with_words(db, entries)

        def work(db: Connection, is_over: Callable[[], bool]) -> int:
            for each in deleted:
                if is_over():
                    return each.entry.document_key
                erasing.erase_entry(db, each.entry.document_key, each.words)
            if len(deleted) == len(entries) < _ENTRIES:
                return erasure.high
            return deleted[-1].entry.document_key + 1

        self._write(erasure, work)

    def _nodes(self, erasure: Erasure) -> None:
        with self.scope.store.read() as db:
            nodes = erasing.hidden_nodes(db, erasure.low, erasure.high, _ROWS)
            batch = self._batch(db, nodes)

        def work(db: Connection, is_over: Callable[[], bool]) -> int:
            left = batch.erase(db, is_over)
            if left is not None:
                return left
            return erasure.high if len(nodes) < _ROWS else nodes[-1] + 1

        self._write(erasure, work)

    def _tree(self, erasure: Erasure) -> None:
        with self.scope.store.read() as db:
            nodes = erasing.nodes_of_tree(db, erasure.low, _ROWS)
            batch = self._batch(db, nodes)

        def work(db: Connection, is_over: Callable[[], bool]) -> int:
            # A tree's key has none of its nodes' within it: what is erased is gone from the beginning of the tree.
            if batch.erase(db, is_over) is not None or len(nodes) == _ROWS:
                return erasure.low
            erasing.clear_tree(db, erasure.low)
            return erasure.low + 1

        self._write(erasure, work)

    def _batch(self, db: Connection, nodes: Sequence[int]) -> _Nodes:
        entries = erasing.entries_of_nodes(db, nodes, _ENTRIES)
        return _Nodes(nodes, self._with_words(db, entries), len(entries))

    def _history(self, erasure: Erasure) -> None:
        with self.scope.store.read() as db:
            revisions = erasing.hidden_revisions(db, erasure.low, erasure.high, _ROWS)
            wanted = set(revisions)
            # A node's other revisions may live on, with entries of their own.
            entries = [
                entry
                for node in dict.fromkeys(node for node, _ in revisions)
                for entry in erasing.entries_of_nodes(db, [node], _REVISIONS)
                if (entry.subject, entry.revision) in wanted
            ]
            deleted = self._with_words(db, entries[:_ENTRIES])
        left = {(entry.subject, entry.revision) for entry in entries[len(deleted) :]}
        ready = [each for each in revisions if each not in left]

        def work(db: Connection, is_over: Callable[[], bool]) -> int:
            if not _delete(db, deleted, is_over):
                return erasure.low
            for node, revision in ready:
                if is_over():
                    return node
                erasing.erase_revision(db, node, revision)
            if not left and len(revisions) < _ROWS:
                return erasure.high
            return min(node for node, _ in left) if left else revisions[-1][0]

        self._write(erasure, work)

    def _plain(self, erasure: Erasure) -> None:
        """What has no words in the index, and needs no reading before: as many ranges as there is time for."""
        with self.scope.store.write(wait_seconds=self.scope.policy.lock_wait_seconds) as db:
            if not scrubs.still_to_do(db, erasure):
                return
            end = time.monotonic() + STEP_SECONDS
            there: Erasure | None = erasure
            while there is not None and (work := _plain_work(there)) is not None:
                scrubs.move_on(db, there, work(db, lambda: time.monotonic() >= end))
                if time.monotonic() >= end:
                    return
                there = scrubs.next_erasure(db, erasure.removal)

    def _end_of_rows(self, removal: RemovalRow) -> None:
        """No row is left: what the index holds of deleted entries goes with the segments that there are now."""
        with self.scope.store.write(wait_seconds=self.scope.policy.lock_wait_seconds) as db:
            if scrubs.next_erasure(db, removal) is None and scrubs.enter_index(db, removal):
                scrubs.await_merge(db, removal.removal_pk)

    # ---- words -------------------------------------------------------------------------------------------------------

    def _with_words(self, db: Connection, entries: Sequence[Entry]) -> list[_Deleted]:
        """The first entries with their words: as many as a step may delete, and at least one."""
        texts = erasing.node_texts(db, (entry.subject for entry in entries if entry.of_node))
        found: list[_Deleted] = []
        count = 0
        for entry in entries:
            count += entry.word_count
            if found and count > _WORDS:
                break
            found.append(_Deleted(entry, self._words(db, entry, texts.get((entry.subject, entry.revision)))))
        return found

    def _words(self, db: Connection, entry: Entry, node_text: str | None) -> str:
        if entry.of_node:
            text = node_text
        elif entry.end_byte is None:
            text = self._spoken(db, entry.subject).decode("utf-8", "surrogatepass")
        else:
            text = clean(self._spoken(db, entry.subject)[entry.start_byte : entry.end_byte])
        if text is None:
            raise IntegrityError(
                f"what index entry {entry.document_key} was made of is missing; run verify(repair=True), which makes"
                " the index anew"
            )
        return words_of(text, entry.pretokenizer)

    def _spoken(self, db: Connection, record_key: int) -> bytes:
        if self._last_text is None or self._last_text[0] != record_key:
            record = ledger.load_record(db, record_key)
            if record is None or record.state == 2:
                raise IntegrityError(f"record {record_key} is gone before its index entry; run verify(repair=True)")
            payload = payloads.load_payload(db, record)
            self._last_text = record_key, to_bytes(spoken_text(record.kind, payload, record.structure))
        return self._last_text[1]

    # ---- what rows leave behind --------------------------------------------------------------------------------------

    def _merge(self, removals: Sequence[RemovalRow]) -> bool:
        with self.scope.store.write(wait_seconds=self.scope.policy.lock_wait_seconds) as db:
            end = time.monotonic() + STEP_SECONDS
            while scrubs.merge_some(db, removals, _PAGES) and time.monotonic() < end:
                pass
            scrubs.advance(db, [removal for removal in removals if not scrubs.awaits_merge(db, removal)], "pages")
        return True

    def _rewrite(self, removals: Sequence[RemovalRow]) -> bool:
        store, wait = self.scope.store, self.scope.policy.lock_wait_seconds
        with store.read() as db:
            size = scrubs.file_bytes(db)
        if size > REWRITTEN_UNASKED_BYTES and not self.whole:
            return self._hinder(
                removals,
                f"the file has {size // 1_000_000} MB, and to rewrite it holds all writers up for seconds; call"
                " settle() when that may be",
            )
        try:
            with store.exclusive(wait_seconds=wait) as db:
                # As it is now: another process may have rewritten it meanwhile, or got another removal this far.
                removals = [removal for removal in scrubs.unfinished(db) if removal.stage == "pages"]
                if not removals:
                    return True
                scrubs.rewrite_file(db)
        except StoreFull as error:
            return self._hinder(removals, str(error))
        with store.write(wait_seconds=wait) as db:
            scrubs.advance(db, removals, "log")
        return True

    def _empty_log(self, removals: Sequence[RemovalRow]) -> bool:
        store, wait = self.scope.store, self.scope.policy.lock_wait_seconds
        # Whoever reads for a moment only, or moves the log just now, is not named as in the way; nor waited for again.
        known = all(removal.hindered is not None for removal in removals)
        end = time.monotonic() + (0 if known and not self.whole else _PATIENCE_SECONDS)
        while True:
            store.checkpoint()  # the bulk of it, without the lock
            if store.truncate_log(wait_seconds=wait):
                break
            if time.monotonic() >= end:
                return self._hinder(
                    removals, f"{describe_readers(store.path)}; the log is emptied when nobody reads what it holds"
                )
            time.sleep(_PAUSE_SECONDS)
        with store.write(wait_seconds=wait) as db:
            scrubs.advance(db, removals, "scrubbed")
        return True

    def _hinder(self, removals: Sequence[RemovalRow], reason: str) -> bool:
        self.hindered = reason
        if any(removal.hindered != reason for removal in removals):
            with self.scope.store.write(wait_seconds=self.scope.policy.lock_wait_seconds) as db:
                scrubs.hinder(db, removals, reason)
        return False


def _delete(db: Connection, deleted: Sequence[_Deleted], is_over: Callable[[], bool]) -> bool:
    """Delete entries from the index; whether all of them were."""
    for each in deleted:
        if is_over():
            return False
        erasing.erase_entry(db, each.entry.document_key, each.words)
    return True


def _plain_work(erasure: Erasure) -> _Work | None:
    """How a range of rows is erased that has no words in the index; None: it has."""
    low, high = erasure.low, erasure.high

    def events(db: Connection, is_over: Callable[[], bool]) -> int:
        at = low
        while at < high and not is_over():
            segment, first = at >> _HASH_BITS, at & _ALL_HASHES - 1
            following = min(first + _HASHES, _ALL_HASHES)
            end = b"\xff" * 33 if following == _ALL_HASHES else following.to_bytes(2, "big")
            erasing.erase_events(db, segment, first.to_bytes(2, "big"), end)
            at = (segment << _HASH_BITS) + following
        return at

    def orphans(db: Connection, _: Callable[[], bool]) -> int:
        removal = erasure.removal
        gone, at = erasing.disown_orphans(db, removal.scope_pk, low, high, _ROWS)
        for blob in gone:
            scrubs.add_erasure(db, removal.removal_pk, "blobs", blob, blob + 1)
        return at

    def pieces(db: Connection, is_over: Callable[[], bool]) -> int:
        while erasing.erase_blob_pieces(db, low, _PIECES):
            if is_over():
                return low
        return low + 1

    def turns(db: Connection, is_over: Callable[[], bool]) -> int:
        found = erasing.removed_turns(db, low, high, _ROWS)
        for turn in found:
            if is_over():
                return turn
            erasing.erase_turn(db, turn)
        return high if len(found) < _ROWS else found[-1] + 1

    def retrievals(db: Connection, _: Callable[[], bool]) -> int:
        return erasing.erase_retrievals(db, low, high, _ROWS)

    def renderings(db: Connection, _: Callable[[], bool]) -> int:
        removal = erasure.removal
        return erasing.erase_rendering_hashes(db, removal.scope_pk, removal.clock, low, high, _ROWS)

    def publications(db: Connection, _: Callable[[], bool]) -> int:
        return erasing.erase_publications(db, low, high, _ROWS)

    def sessions(db: Connection, _: Callable[[], bool]) -> int:
        return erasing.erase_sessions(db, low, high, _ROWS)

    def scopes(db: Connection, _: Callable[[], bool]) -> int:
        return low if erasing.erase_scope(db, low, _ROWS) else low + 1

    works: dict[str, _Work] = {
        "events": events,
        "orphans": orphans,
        "blobs": pieces,
        "turns": turns,
        "retrievals": retrievals,
        "renderings": renderings,
        "publications": publications,
        "sessions": sessions,
        "scopes": scopes,
    }
    return works.get(erasure.kind)
