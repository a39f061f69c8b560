"""
Every column that can hold text or bytes is accounted for: erased with what it holds, or holding nothing that was said.

A new column of the schema fails here until somebody has decided which of both it is. Numbers are not looked at: what
is left of a thing that was removed may say where it stood, and how large it was.
"""

import apsw
import pytest

from optchat.store.migrate import FORMAT
from optchat.store.scrubs import KINDS

ERASED = {
    "blob.sha256": "blobs, orphans",
    "blob_piece.data": "blobs",
    "event.event_hash": "events",
    "node.inputs_sha256": "nodes, trees",
    "node.text": "nodes, trees",
    "node_history.inputs_sha256": "history, nodes, trees",
    "node_history.text": "history, nodes, trees",
    "project.project_id": "sessions",
    "project_alias.alias": "sessions",
    "recipe.model": "scopes",
    "recipe.parameters": "scopes",
    "pause.reason": "scopes",
    "record.call_hash": "records",
    "record.payload": "records",
    "record.sha256": "records",
    "record.structure": "records",
    "rendering.memory_sha256": "turns, renderings",
    "rendering.missing": "turns",
    "rendering.own_levels": "turns",
    "rendering.previous": "turns",
    "rendering.shared_levels": "turns",
    "rendering.since": "turns, renderings",
    "repin.own_levels": "turns",
    "repin.shared_levels": "turns",
    "retrieval.arguments": "turns, retrievals",
    "retrieval.refs": "turns, retrievals",
    "retrieval.sha256": "turns, retrievals",
    "retrieval.tool": "turns, retrievals",
    "scope.name": "scopes",
    "scope.secret": "scopes",
    "scope.summarizer": "scopes",
    "session.commit_id": "sessions",
    "session.host": "sessions",
    "session.key": "sessions",
    "session.title": "sessions",
    "session.worktree": "sessions",
    "staged.message": "turns",
    "staged.stage_key": "turns",
    "job.last_error": "nodes, trees, turns, records, scopes",  # never content; and the job goes with its subject
    "tombstone.hash": "scopes",
    "turn.commit_id": "turns",
    "turn.detail": "turns",
    "turn.turn_id": "turns",
    "turn.worktree": "turns",
    "turn_descriptor.own_levels": "turns",
    "turn_descriptor.settings": "turns",
    "turn_descriptor.shared_levels": "turns",
    "view.levels": "trees",
    "words.place": "with their document",
    "words.text": "with their document",
}
HOLDS_NOTHING_SAID = {
    "call.model": "a summarizer's name",
    "call.outcome": "one of a few words",
    "call.why": "never content",
    "erasure.kind": "one of a few words",
    "owner.token": "a process's random name",
    "pause.cause": "one of a few words",
    "recipe.kind": "one of a few words",
    "publication.outcome": "one of three words, which turns are counted by",
    "removal.hindered": "sizes, processes, keys",
    "removal.kept": "counts and session ids",
    "removal.kind": "one of a few words",
    "removal.removed": "counts",
    "removal.seen": "keys",
    "removal.stage": "one of a few words",
    "scope.state": "one of a few words",
    "session.session_id": "random",
    "session.state": "one of a few words",
    "tree.kind": "one of a few words",
    "turn.outcome": "one of a few words",
    "turn.state": "one of a few words",
}
# FTS5's own: blocks of segments, their first words, and settings. The index stage makes every segment anew.
OF_THE_INDEX = {
    "words_data.block",
    "words_idx.segid",
    "words_idx.pgno",
    "words_idx.term",
    "words_config.k",
    "words_config.v",
}


@pytest.fixture(scope="module")
def columns() -> set[str]:
    db = apsw.Connection(":memory:")
    db.execute(FORMAT.schema_sql)
    found: set[str] = set()
    for (table,) in db.execute("SELECT name FROM pragma_table_list WHERE schema = 'main'").fetchall():
        if table.startswith("sqlite_"):
            continue
        rows = db.execute("SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden = 0", (table,)).fetchall()
        found |= {f"{table}.{name}" for name, kind in rows if kind not in ("INTEGER", "REAL")}
    db.close()
    return found


def test_every_column_that_may_hold_text_is_accounted_for(columns: set[str]) -> None:
    accounted = ERASED.keys() | HOLDS_NOTHING_SAID.keys() | OF_THE_INDEX
    assert not columns - accounted, "a column that nobody has thought of: does scrubbing erase it?"
    assert not {name for name in accounted - columns if "." in name and name not in OF_THE_INDEX}, "no such column"


def test_what_is_accounted_for_is_accounted_for_once() -> None:
    assert not ERASED.keys() & HOLDS_NOTHING_SAID.keys()
    named = {kind for kinds in ERASED.values() for kind in kinds.split(", ")} - {"with their document"}
    assert named | {"documents", "publications"} == set(KINDS)  # these hold keys and times alone
