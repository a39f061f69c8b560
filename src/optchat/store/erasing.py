"""
What a row loses when what it holds is erased.

Decides: per table, which columns hold what was said or made of it, and what stays so that no number is used again.
Refuses to know: in which order and how much at a time (:mod:`optchat.engine.scrubbing`), and why something was removed.

Invariant: nothing is erased that is not hidden, whatever keys a caller names: a record, node, revision or document of
state 1, a turn that is removed, a session or scope that is deleted; but of a tree all is erased. What stays of a
record, a turn, a session or a scope is a tombstone: its key, and numbers that tell where it stood. A publication is no
more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import frozen

from optchat.core.jobs import KIND_NUMBER
from optchat.core.records import SUMMARY_KIND
from optchat.core.refs import KEY_BITS
from optchat.store import removals
from optchat.store.rows import Connection, all_rows, keys, one_row, one_value, run
from optchat.store.search import delete_entry

_NODE_JOBS: Final = tuple(KIND_NUMBER[kind] for kind in ("leaf", "merge", "chunk", "remake"))


# ---- index entries ---------------------------------------------------------------------------------------------------


@frozen
class Entry:
    """An index entry that is to go. Its words are those of a node's ``revision``, or of a record's piece."""

    document_key: int
    pretokenizer: int
    kind: int
    subject: int
    start_byte: int
    end_byte: int | None
    word_count: int
    revision: int

    @property
    def of_node(self) -> bool:
        return self.kind == SUMMARY_KIND


_ENTRY: Final = (
    "SELECT document_key, pretokenizer, kind, subject, start_byte, end_byte, word_count, revision FROM document "
)


def hidden_entries(db: Connection, low: int, high: int, limit: int) -> list[Entry]:
    """Hidden entries whose document key lies in ``[low, high)``, in order."""
    return [
        Entry(*row)
        for row in all_rows(
            db,
            _ENTRY + "WHERE document_key >= :low AND document_key < :high AND state = 1"
            " ORDER BY document_key LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


def entries_of_records(db: Connection, record_keys: Iterable[int], limit: int) -> list[Entry]:
    """Entries of records, in the records' order, whatever their state: they go with what they were made of."""
    return [
        Entry(*row)
        for row in all_rows(
            db,
            _ENTRY + f"WHERE subject IN (SELECT value FROM carray(:keys)) AND kind <> {SUMMARY_KIND}"
            " ORDER BY subject, document_key LIMIT :limit",
            {"keys": keys(record_keys), "limit": limit},
        )
    ]


def entries_of_nodes(db: Connection, node_keys: Iterable[int], limit: int) -> list[Entry]:
    """Entries of all revisions of nodes, in the nodes' order."""
    return [
        Entry(*row)
        for row in all_rows(
            db,
            _ENTRY + f"WHERE subject IN (SELECT value FROM carray(:keys)) AND kind = {SUMMARY_KIND}"
            " ORDER BY subject, document_key LIMIT :limit",
            {"keys": keys(node_keys), "limit": limit},
        )
    ]


def node_texts(db: Connection, node_keys: Iterable[int]) -> dict[tuple[int, int], str]:
    """The texts of nodes by (node key, revision), superseded ones and hidden ones included."""
    wanted = keys(node_keys)
    return {
        (row[0], row[1]): row[2]
        for row in all_rows(
            db,
            "SELECT node_key, revision, text FROM node WHERE node_key IN (SELECT value FROM carray(:keys))"
            " UNION ALL SELECT node_key, revision, text FROM node_history"
            " WHERE node_key IN (SELECT value FROM carray(:older))",
            {"keys": wanted, "older": wanted},
        )
    }


def erase_entry(db: Connection, document_key: int, words: str) -> None:
    """
    Take an entry out of the index, and its row with it: documents are numbered by a counter. Idempotent.

    Args:
        words: exactly those that it was indexed by: see ``search.delete_entry``.
    """
    delete_entry(db, document_key, words)
    run(db, "DELETE FROM document WHERE document_key = :key", {"key": document_key})


# ---- records ---------------------------------------------------------------------------------------------------------


def hidden_records(db: Connection, low: int, high: int, limit: int) -> list[int]:
    """The keys in ``[low, high)`` of hidden records, in order."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT record_key FROM record WHERE record_key >= :low AND record_key < :high AND state = 1"
            " ORDER BY record_key LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


@frozen
class LeftBehind:
    """What an erased record leaves to be erased by itself: the tree of its pages, and blobs that nobody else needs."""

    tree_pk: int | None
    blobs: tuple[int, ...]


def erase_record(db: Connection, record_key: int) -> LeftBehind:
    """
    Leave nothing of a hidden record but its key, kind and place in its turn: no number is used again.

    Blobs that no other record needs are named so that nobody can take them up by their digest any more.
    """
    named = {"key": record_key}
    owned = {
        row[0]
        for row in all_rows(
            db,
            "SELECT blob_pk FROM record WHERE record_key = :key AND blob_pk IS NOT NULL AND state = 1"
            " UNION SELECT blob_pk FROM record_blob WHERE record_key = :key",
            named,
        )
    }
    if not run(
        db,
        "UPDATE record SET payload = NULL, blob_pk = NULL, structure = NULL, sha256 = x'', call_hash = NULL,"
        " paired_key = NULL, payload_bytes = 0, at = 0, utc_offset = 0, leaf_bytes = NULL, leaf_escaped = NULL,"
        " state = 2 WHERE record_key = :key AND state = 1",
        named,
    ):
        return LeftBehind(None, ())
    run(db, "DELETE FROM record_blob WHERE record_key = :key", named)
    run(
        db,
        "DELETE FROM job WHERE kind = :kind AND subject = :key",
        named | {"kind": KIND_NUMBER["index"]},
    )
    tree = one_value(db, "SELECT tree_pk FROM tree WHERE record_key = :key", named)
    return LeftBehind(
        None if tree is None else int(tree), tuple(blob for blob in sorted(owned) if _disown_blob(db, blob))
    )


def erase_events(db: Connection, segment_pk: int, low: bytes, high: bytes) -> None:
    """Forget under which keys a segment's removed records were delivered; keys of hash ``[low, high)``."""
    run(
        db,
        "DELETE FROM event WHERE segment_pk = :segment AND event_hash >= :low AND event_hash < :high"
        " AND EXISTS (SELECT 1 FROM record WHERE record.record_key = event.record_key AND record.state > 0)",
        {"segment": segment_pk, "low": low, "high": high},
    )


# ---- blobs -----------------------------------------------------------------------------------------------------------

# A digest is 32 bytes. Another length says that nobody owns the blob any more, whatever number it has: a blob that is
# being staged has no owner either, and its number may have been another's.
_DISOWNED: Final = "length(sha256) <> 32"


def _disown_blob(db: Connection, blob_pk: int) -> bool:
    """Give a blob that no record needs up; whether it was. From now on its digest finds nothing."""
    return (
        run(
            db,
            "UPDATE blob SET sha256 = CAST('gone ' || blob_pk AS BLOB), bytes = 0, complete = 0 WHERE blob_pk = :blob"
            " AND NOT EXISTS (SELECT 1 FROM record WHERE record.blob_pk = :blob)"
            " AND NOT EXISTS (SELECT 1 FROM record_blob WHERE record_blob.blob_pk = :blob)",
            {"blob": blob_pk},
        )
        > 0
    )


def disown_orphans(db: Connection, scope_pk: int, low: int, high: int, limit: int) -> tuple[tuple[int, ...], int]:
    """
    Give blobs of a scope up that no record needs, whose key lies in ``[low, high)``; which, and where it got to.

    They were staged for what was never sealed. What is only not sealed yet is staged anew by its seal.
    """
    rows = all_rows(
        db,
        "SELECT blob_pk, scope_pk FROM blob WHERE blob_pk >= :low AND blob_pk < :high ORDER BY blob_pk LIMIT :limit",
        {"low": low, "high": high, "limit": limit},
    )
    gone = tuple(blob for blob, scope in rows if scope == scope_pk and _disown_blob(db, blob))
    return gone, high if len(rows) < limit else rows[-1][0] + 1


def erase_blob_pieces(db: Connection, blob_pk: int, limit: int) -> bool:
    """Erase some pieces of a blob that nobody owns, the last of them with its row; whether more are left."""
    disowned = one_value(
        db, f"SELECT EXISTS (SELECT 1 FROM blob WHERE blob_pk = :blob AND {_DISOWNED})", {"blob": blob_pk}
    )
    if not disowned:
        return False
    pieces = all_rows(
        db,
        "SELECT piece FROM blob_piece WHERE blob_pk = :blob ORDER BY piece LIMIT :limit",
        {"blob": blob_pk, "limit": limit},
    )
    if pieces:
        run(
            db,
            "DELETE FROM blob_piece WHERE blob_pk = :blob AND piece >= :first AND piece <= :last",
            {"blob": blob_pk, "first": pieces[0][0], "last": pieces[-1][0]},
        )
    if len(pieces) == limit:
        return True
    run(db, "DELETE FROM blob WHERE blob_pk = :blob", {"blob": blob_pk})
    return False


# ---- nodes -----------------------------------------------------------------------------------------------------------


def hidden_nodes(db: Connection, low: int, high: int, limit: int) -> list[int]:
    """The keys in ``[low, high)`` of hidden nodes, in order."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT node_key FROM node WHERE node_key >= :low AND node_key < :high AND state = 1"
            " ORDER BY node_key LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


def nodes_of_tree(db: Connection, tree_pk: int, limit: int) -> list[int]:
    """The keys of a tree's first nodes, those of which only the history or the context is left included."""
    bounds = {"low": tree_pk << KEY_BITS, "high": (tree_pk + 1) << KEY_BITS, "limit": limit}
    found = {
        row[0]
        for table in ("node", "node_history", "node_foreign")
        for row in all_rows(
            db,
            f"SELECT node_key FROM {table} WHERE node_key >= :low AND node_key < :high ORDER BY node_key LIMIT :limit",
            bounds,
        )
    }
    return sorted(found)[:limit]


def erase_nodes(db: Connection, node_keys: Sequence[int]) -> None:
    """Erase positions with all their revisions; their entries are gone by now."""
    for recipe, count in all_rows(  # of a tree that goes as a whole: what was hidden is not counted any more
        db,
        "SELECT recipe_pk, count(*) FROM node WHERE node_key IN (SELECT value FROM carray(:keys)) AND state = 0"
        " GROUP BY recipe_pk",
        {"keys": keys(node_keys)},
    ):
        run(
            db,
            "UPDATE recipe SET nodes = nodes - :count WHERE recipe_pk = :recipe AND kind <> 'join'",
            {"count": count, "recipe": recipe},
        )
    for table in ("node_foreign", "node_history", "node"):
        run(db, f"DELETE FROM {table} WHERE node_key IN (SELECT value FROM carray(:keys))", {"keys": keys(node_keys)})
    for kind in _NODE_JOBS:
        run(
            db,
            "DELETE FROM job WHERE kind = :kind AND subject IN (SELECT value FROM carray(:keys))",
            {"kind": kind, "keys": keys(node_keys)},
        )


def clear_tree(db: Connection, tree_pk: int) -> None:
    """Forget a tree's view and jobs. Its row stays: its number, and those of its nodes, are not used again."""
    run(
        db,
        "UPDATE view SET revision = revision + 1, length = 0, levels = x'', shrinking = 0, bytes = 0"
        " WHERE tree_pk = :tree",
        {"tree": tree_pk},
    )
    for kind in _NODE_JOBS:
        run(
            db,
            "DELETE FROM job WHERE kind = :kind AND subject >= :low AND subject < :high",
            {"kind": kind, "low": tree_pk << KEY_BITS, "high": (tree_pk + 1) << KEY_BITS},
        )


def hidden_revisions(db: Connection, low: int, high: int, limit: int) -> list[tuple[int, int]]:
    """(node key, revision) of hidden superseded texts whose node key lies in ``[low, high)``, in order."""
    return [
        (row[0], row[1])
        for row in all_rows(
            db,
            "SELECT node_key, revision FROM node_history WHERE node_key >= :low AND node_key < :high AND state = 1"
            " ORDER BY node_key, revision LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


def erase_revision(db: Connection, node_key: int, revision: int) -> None:
    """Erase a hidden revision; its entry is gone by now."""
    named = {"key": node_key, "revision": revision}
    if run(db, "DELETE FROM node_history WHERE node_key = :key AND revision = :revision AND state = 1", named):
        run(db, "DELETE FROM node_foreign WHERE node_key = :key AND revision = :revision", named)


# ---- turns and what they saw -----------------------------------------------------------------------------------------


def removed_turns(db: Connection, low: int, high: int, limit: int) -> list[int]:
    """The keys in ``[low, high)`` of removed turns that are not erased yet, in order."""
    return [
        row[0]
        for row in all_rows(
            db,
            "SELECT turn_pk FROM turn WHERE turn_pk >= :low AND turn_pk < :high AND removed = 1"
            " ORDER BY turn_pk LIMIT :limit",
            {"low": low, "high": high, "limit": limit},
        )
    ]


def erase_turn(db: Connection, turn_pk: int) -> None:
    """Leave nothing of a removed turn but its place, its outcome, its records' range and a keyed hash of its id."""
    named = {"turn": turn_pk}
    row = one_row(db, "SELECT scope_pk, turn_id FROM turn WHERE turn_pk = :turn AND removed = 1", named)
    if row is None:
        return
    for table in ("staged", "retrieval", "foreign_context", "rendering", "repin", "turn_descriptor"):
        run(db, f"DELETE FROM {table} WHERE turn_pk = :turn", named)
    run(
        db,
        "DELETE FROM job WHERE kind = :kind AND subject = :turn",
        named | {"kind": KIND_NUMBER["publication"]},
    )
    run(
        db,
        "UPDATE turn SET turn_id = :hashed, detail = NULL, worktree = NULL, commit_id = NULL, started_at = 0,"
        " ended_at = CASE WHEN ended_at IS NULL THEN NULL ELSE 0 END, utc_offset = 0, removed = 2"
        " WHERE turn_pk = :turn",
        named | {"hashed": removals.hashed_turn_id(db, row[0], row[1])},
    )


def erase_retrievals(db: Connection, low: int, high: int, limit: int) -> int:
    """
    Erase retrievals of removed turns, and what of others' tells of the bytes that they showed; where it got to.

    What others searched for is their own words, and stays. A hash that an open turn's result will be known by stays
    too: without it the answer would be sealed as evidence.
    """
    rows = all_rows(
        db,
        "SELECT retrieval_pk, turn.removed, turn.state FROM retrieval JOIN turn ON turn.turn_pk = retrieval.turn_pk"
        " WHERE retrieval_pk >= :low AND retrieval_pk < :high ORDER BY retrieval_pk LIMIT :limit",
        {"low": low, "high": high, "limit": limit},
    )
    for key, removed, state in rows:
        if removed:
            run(db, "DELETE FROM retrieval WHERE retrieval_pk = :key", {"key": key})
        elif state == "ended":
            run(db, "UPDATE retrieval SET sha256 = x'', bytes = 0 WHERE retrieval_pk = :key", {"key": key})
    return high if len(rows) < limit else rows[-1][0] + 1


def erase_rendering_hashes(db: Connection, scope_pk: int, clock: int, low: int, high: int, limit: int) -> int:
    """
    Erase the hashes of memory that a scope's turns were shown before a clock; where it got to.

    Of open turns too: one that could see what was removed pins again, and its next request is rendered anew; another
    one's bytes are made without a hash, and the turn after it is rendered in full.
    """
    rows = all_rows(
        db,
        "SELECT turn.turn_pk, turn.scope_pk = :scope AND turn_descriptor.clock < :clock"
        " FROM turn JOIN turn_descriptor ON turn_descriptor.turn_pk = turn.turn_pk"
        " WHERE turn.turn_pk >= :low AND turn.turn_pk < :high ORDER BY turn.turn_pk LIMIT :limit",
        {"scope": scope_pk, "clock": clock, "low": low, "high": high, "limit": limit},
    )
    for key, concerned in rows:
        if concerned:
            run(
                db,
                "UPDATE rendering SET memory_sha256 = x'', since = json_set(since, '$.stable', '')"
                " WHERE turn_pk = :turn",
                {"turn": key},
            )
    return high if len(rows) < limit else rows[-1][0] + 1


def erase_publications(db: Connection, low: int, high: int, limit: int) -> int:
    """Forget when removed publications were made; where it got to."""
    rows = all_rows(
        db,
        "SELECT publication_key FROM publication WHERE publication_key >= :low AND publication_key < :high"
        " AND state = 1 ORDER BY publication_key LIMIT :limit",
        {"low": low, "high": high, "limit": limit},
    )
    run(
        db,
        "UPDATE publication SET completed_at = 0, published_at = 0"
        " WHERE publication_key IN (SELECT value FROM carray(:keys)) AND state = 1",
        {"keys": keys(row[0] for row in rows)},
    )
    return high if len(rows) < limit else rows[-1][0] + 1


# ---- sessions and scopes ---------------------------------------------------------------------------------------------


def erase_sessions(db: Connection, low: int, high: int, limit: int) -> int:
    """Leave nothing of deleted sessions but their ids, and no project that nobody else names; where it got to."""
    rows = all_rows(
        db,
        "SELECT session_pk, project_pk FROM session WHERE session_pk >= :low AND session_pk < :high"
        " AND state = 'deleted' ORDER BY session_pk LIMIT :limit",
        {"low": low, "high": high, "limit": limit},
    )
    for session, project in rows:
        run(
            db,
            "UPDATE session SET host = '', key = '', current = 0, title = NULL, project_pk = NULL, worktree = NULL,"
            " commit_id = NULL, host_messages = NULL, behind_since = NULL WHERE session_pk = :session",
            {"session": session},
        )
        if project is not None and not one_value(
            db, "SELECT EXISTS (SELECT 1 FROM session WHERE project_pk = :project)", {"project": project}
        ):
            run(db, "DELETE FROM project_alias WHERE project_pk = :project", {"project": project})
            run(db, "DELETE FROM project WHERE project_pk = :project", {"project": project})
    return high if len(rows) < limit else rows[-1][0] + 1


def erase_scope(db: Connection, scope_pk: int, limit: int) -> bool:
    """Leave nothing of a removed scope but its number; whether more is left."""
    named = {"scope": scope_pk, "limit": limit}
    if not one_value(db, "SELECT EXISTS (SELECT 1 FROM scope WHERE scope_pk = :scope AND state = 'removed')", named):
        return False
    run(
        db,
        "UPDATE scope SET name = char(127) || scope_pk, summarizer = NULL, secret = x'' WHERE scope_pk = :scope",
        named,
    )
    run(
        db,
        "UPDATE recipe SET model = '', parameters = 'removed ' || recipe_pk WHERE scope_pk = :scope",
        named,
    )
    run(db, "DELETE FROM pause WHERE scope_pk = :scope", named)
    hashes = all_rows(db, "SELECT hash FROM tombstone WHERE scope_pk = :scope ORDER BY hash LIMIT :limit", named)
    if hashes:
        run(
            db,
            "DELETE FROM tombstone WHERE scope_pk = :scope AND hash <= :last",
            {"scope": scope_pk, "last": hashes[-1][0]},
        )
    jobs = all_rows(db, "SELECT job_pk FROM job WHERE scope_pk = :scope LIMIT :limit", named)
    run(
        db,
        "DELETE FROM job WHERE job_pk IN (SELECT value FROM carray(:keys))",
        {"keys": keys(row[0] for row in jobs)},
    )
    return limit in (len(hashes), len(jobs))
