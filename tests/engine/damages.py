"""
A file with everything in it, damaged by hand: for every code of a fault, at least one statement that brings it about.

Statements run on a connection of their own, without foreign keys: what a defect, a bad disk or a stranger's tool would
leave behind.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from attrs import frozen

import optchat
from optchat.core.refs import KEY_BITS, Span, post_order
from optchat.testing import DeterministicSummarizer
from tests.engine.helpers import words

POLICY = optchat.Policy(view_high_bytes=6_000, view_low_bytes=3_000)
QUERIES = ("thing2", "turn speaks cause", "broker", "gigantic", "needle")
PICTURE = bytes(range(256)) * 20


class SmallWindow(DeterministicSummarizer):
    """One whose window a text of 80 KB does not fit."""

    @property
    def window_tokens(self) -> int:
        return 24_576


@frozen
class Damage:
    """``views``: whether views have the very same lines after the repair."""

    code: str
    what: str
    do: str | Callable[[apsw.Connection], None]
    views: bool = True

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


def open_file(path: Path, mode: Any = "rw") -> optchat.Memory:
    """The file, with a summarizer that says the same of the same sources, and no worker of its own."""
    return optchat.open(path, scope="test", policy=POLICY, summarizer=SmallWindow(), compact="manual", mode=mode)


def make_file(path: Path) -> None:
    """Turns of every kind; summaries, pages, pieces, a picture; jobs that wait, and a turn that is open."""
    with open_file(path, "rwc") as memory:
        first, second = memory.session("first"), memory.session("second")
        for number in range(6):
            with first.turn(words(number, 3_000 if number % 2 else 300)) as turn:
                turn.tool_call(f"c{number}", "build", {"number": number})
                turn.tool_result(f"c{number}", f"built broker {number} " + "log " * (number * 60))
                turn.assistant(f"answer {number}: the broker persists")
        for number in range(20, 25):
            second.turn(words(number, 700)).end(("failed", "completed", "interrupted")[number % 3])
        picture = optchat.HostMessage.user(
            [optchat.TextPart("a needle in a picture"), optchat.BlobPart("image/png", PICTURE)]
        )
        with second.turn(picture) as turn:
            turn.assistant("seen")
        large = " ".join(f"gigantic {number} {'long' * 15}" for number in range(1_100))
        second.turn(large).end("completed")
        alone = memory.session("alone", isolated=True)
        for number in range(30, 33):
            alone.turn(words(number, 1_500)).end("completed")
        memory.settle()
        with alone.turn("before") as turn:
            turn.context(optchat.Budget(100_000, 1_000))
            turn.assistant("done")
        turn = alone.turn("what is new to one that is alone?")
        turn.context(optchat.Budget(100_000, 1_000))
        turn.suspend()
        for number in range(40, 43):
            with first.turn(words(number, 2_000)) as turn:
                turn.assistant(words(number + 50, 1_600))
        second.turn(words(60, 900)).end("completed")
        first.turn("and what is still open?").suspend()


def damaged(prepared: Path, path: Path, damage: Damage) -> Path:
    """A copy of the file with a damage done to it."""
    shutil.copy(prepared, path)
    assert do(path, damage), f"{damage} did nothing"
    return path


def do(path: Path, damage: Damage) -> bool:
    """Damage a file that nobody has open; whether that changed anything."""
    db = apsw.Connection(str(path))
    try:
        if isinstance(damage.do, str):
            db.execute("BEGIN; " + damage.do.format(**places(db)) + "; COMMIT")
            return db.total_changes() > 0
        damage.do(db)
        return True
    finally:
        db.close()


def places(db: apsw.Connection) -> dict[str, int]:
    """What statements name: trees, segments, and nodes of them."""
    found: dict[str, int] = {"scope": 1, "mask": (1 << KEY_BITS) - 1}
    for key, segment, tree in db.execute(
        "SELECT key, segment.segment_pk, segment.tree_pk FROM session JOIN generation USING (session_pk)"
        " JOIN segment USING (segment_pk)"
    ).fetchall():
        found |= {key: segment, f"{key}_tree": tree, f"{key}_low": segment << KEY_BITS}
        found[f"{key}_high"] = (segment + 1) << KEY_BITS
    found["shared"] = db.execute("SELECT shared_tree FROM scope WHERE scope_pk = 1").get
    found["pages"] = db.execute("SELECT tree_pk FROM tree WHERE kind = 'chunk'").get
    for name, start, count in (("pair", 0, 2), ("four", 0, 4), ("eight", 8, 8)):
        place = post_order(Span(start, count))
        found[f"first_{name}"] = found["first_tree"] << KEY_BITS | place
        found[f"shared_{name}"] = found["shared"] << KEY_BITS | place
    found["shared_leaf"] = found["shared"] << KEY_BITS | post_order(Span(3, 1))
    # a summary that other nodes were made of, and that no view need show
    found["summary"] = db.execute(
        "SELECT max(node_key) FROM node JOIN recipe USING (recipe_pk) WHERE recipe.kind = 'summary'"
        " AND node_key >> 40 = ?",
        (found["shared"],),
    ).get
    found["join"] = db.execute(
        "SELECT min(node_key) FROM node JOIN recipe USING (recipe_pk) WHERE recipe.kind = 'join'"
        " AND node_key >> 40 = ?",
        (found["first_tree"],),
    ).get
    found["leaf"] = db.execute(
        "SELECT min(node_key) FROM node WHERE node_key >> 40 = ? AND kind = 1", (found["first_tree"],)
    ).get
    found["merge_job"] = db.execute("SELECT max(job_pk) FROM job WHERE kind = 1").get
    found["document"] = db.execute("SELECT min(document_key) FROM document WHERE kind = 0 AND end_byte IS NULL").get
    return found


# ---- what takes more than a statement --------------------------------------------------------------------------------


def forged_blob(db: apsw.Connection) -> None:
    db.execute(
        "UPDATE blob_piece SET data = zeroblob(length(data)) WHERE blob_pk = (SELECT min(blob_pk) FROM record_blob)"
    )


def dead_index(db: apsw.Connection) -> None:
    db.execute("UPDATE words_data SET block = x'0102' WHERE id > 1000")


def dangling(db: apsw.Connection) -> None:
    db.execute("INSERT INTO staged (turn_pk, stage_key, message, at) VALUES (999, x'00', x'00', 0)")


def unfinished_removal(db: apsw.Connection) -> None:
    """A removal that says it is done, with something left to erase."""
    values: dict[str, Any] = {"removal_pk": 1, "scope_pk": 1, "kind": "turns", "stage": "scrubbed"}
    for _cid, name, kind, not_null, default, _key in db.execute("PRAGMA table_info(removal)").fetchall():
        if not_null and default is None:
            values.setdefault(name, "{}" if kind == "TEXT" else 0)
    names = ", ".join(values)
    db.execute(f"INSERT INTO removal ({names}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))
    db.execute("INSERT INTO erasure (removal_pk, kind, low, high) VALUES (1, 'records', 0, 1)")


def broken_page(db: apsw.Connection) -> None:
    """A page of an index, lost by the disk."""
    page = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'record_pair'").get
    with Path(db.filename).open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(bytes(4096))


def another_column(db: apsw.Connection) -> None:
    db.execute("ALTER TABLE removal ADD COLUMN more INTEGER")


def drops_an_index(db: apsw.Connection) -> None:
    db.execute("DROP INDEX record_turn")


def index_without_a_row(db: apsw.Connection) -> None:
    """An index that lacks what its table has: made while it was another's, and given back."""
    db.execute("PRAGMA writable_schema = 1")
    sql = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'record_pair'").get
    db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'record_pair'", (sql + " AND record_key < 0",))
    db.execute("PRAGMA writable_schema = RESET")
    db.execute("REINDEX record_pair")
    db.execute("PRAGMA writable_schema = 1")
    db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'record_pair'", (sql,))


def stands_there(db: apsw.Connection, key: int) -> tuple[str, str]:
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.instances USING fts5vocab('main', 'words', 'instance')")
    found: dict[str, dict[int, str]] = {"text": {}, "place": {}}
    for term, column, offset in db.execute(
        "SELECT term, col, offset FROM temp.instances WHERE doc = ?", (key,)
    ).fetchall():
        found[column][offset] = term
    text, place = (" ".join(places[at] for at in sorted(places)) for places in found.values())
    return text, place


def take_entry(db: apsw.Connection, key: int) -> str:
    text, place = stands_there(db, key)
    db.execute("INSERT INTO words (words, rowid, text, place) VALUES ('delete', ?, ?, ?)", (key, text, place))
    return place


def no_entry(db: apsw.Connection) -> None:
    take_entry(db, places(db)["document"])


def other_words(db: apsw.Connection) -> None:
    key = places(db)["document"]
    place = take_entry(db, key)
    db.execute("INSERT INTO words (rowid, text, place) VALUES (?, 'forged words', ?)", (key, place))


def nobodys_entry(db: apsw.Connection) -> None:
    key = 1 << KEY_BITS | 5_000
    db.execute("INSERT INTO words (rowid, text, place) VALUES (?, 'nobody said', 's1 k0')", (key,))


def deleted_entry_that_stayed(db: apsw.Connection) -> None:
    """As a delete by other words leaves it."""
    db.execute("UPDATE document SET state = 2 WHERE document_key = ?", (places(db)["document"],))


def no_documents(db: apsw.Connection) -> None:
    rows = db.execute(
        "SELECT document_key FROM document WHERE kind < 6 AND end_byte IS NULL ORDER BY document_key LIMIT 3"
    ).fetchall()
    for (key,) in rows:
        take_entry(db, key)
        db.execute("DELETE FROM document WHERE document_key = ?", (key,))


def no_piece(db: apsw.Connection) -> None:
    key = db.execute("SELECT max(document_key) FROM document WHERE end_byte IS NOT NULL").get
    take_entry(db, key)
    db.execute("DELETE FROM document WHERE document_key = ?", (key,))


def no_document_of_a_node(db: apsw.Connection) -> None:
    key = db.execute("SELECT max(document_key) FROM document WHERE kind = 6").get
    take_entry(db, key)
    db.execute("DELETE FROM document WHERE document_key = ?", (key,))


def two_publications(db: apsw.Connection) -> None:
    db.execute("DROP INDEX publication_once")
    db.execute(
        "UPDATE publication SET turn_pk = (SELECT turn_pk FROM publication ORDER BY publication_key LIMIT 1)"
        " WHERE publication_key = (SELECT publication_key FROM publication ORDER BY publication_key LIMIT 1 OFFSET 1)"
    )


def lost_history(db: apsw.Connection) -> None:
    """A node whose present revision is gone, and whose last one is there."""
    key = places(db)["shared_leaf"]
    db.execute(
        "INSERT INTO node_history SELECT node_key, revision, kind, text, escaped_bytes, recipe_pk, inputs_sha256, born,"
        " failed, interrupted, first_at, last_at, 0 FROM node WHERE node_key = :key",
        {"key": key},
    )
    db.execute("DELETE FROM node WHERE node_key = ?", (key,))


_FIRST_RECORD = "(SELECT min(record_key) FROM record WHERE payload IS NOT NULL AND leaf_escaped IS NOT NULL)"
_LONG = "(SELECT min(record_key) FROM record WHERE record_key > {first_low} AND leaf_escaped IS NULL)"
_WAITING = "(SELECT min(job_pk) FROM job WHERE state = 0 AND missing > 0 AND kind = 1)"

DAMAGES: tuple[Damage, ...] = (
    Damage("DATABASE", "a page of zeros", broken_page),
    Damage("DATABASE", "an index that lacks what its table has", index_without_a_row),
    Damage("SCHEMA", "an index that was dropped", drops_an_index),
    Damage("SCHEMA", "a column that nobody knows", another_column),
    Damage("DANGLING", "a staged message of no turn", dangling),
    Damage("SEGMENT", "a base that is not there", "UPDATE segment SET base_segment = 77 WHERE segment_pk = {second}"),
    Damage(
        "SEGMENT",
        "a base that it is itself",
        "UPDATE segment SET base_segment = segment_pk WHERE segment_pk = {second}",
    ),
    Damage(
        "SEGMENT",
        "a base that ends within a turn",
        "UPDATE segment SET base_segment = {first}, base_length = 3 WHERE segment_pk = {second}",
    ),
    Damage("SEGMENT", "a tree of another kind", "UPDATE segment SET tree_pk = {pages} WHERE segment_pk = {second}"),
    Damage("GENERATION", "a generation that is not there", "UPDATE session SET generation = 2 WHERE key = 'second'"),
    Damage(
        "GENERATION",
        "a current one that is superseded",
        "UPDATE generation SET superseded_clock = 1 WHERE generation_pk = 2",
    ),
    Damage("TURN_RANGE", "a gap", "UPDATE turn SET start_seq = start_seq + 1 WHERE turn_pk = 4"),
    Damage("RECORD_GAP", "a record that is gone", "DELETE FROM record WHERE record_key = {first_low} + 2"),
    Damage("RECORD_TURN", "a record of another turn", "UPDATE record SET turn_pk = 3 WHERE record_key = {first_low}"),
    Damage("PAYLOAD_MISSING", "no payload", f"UPDATE record SET payload = NULL WHERE record_key = {_FIRST_RECORD}"),
    Damage(
        "PAYLOAD_MISSING",
        "a piece of a blob",
        "DELETE FROM blob_piece WHERE rowid = (SELECT max(rowid) FROM blob_piece)",
    ),
    Damage("PAYLOAD_CHANGED", "other bytes", f"UPDATE record SET payload = x'41' WHERE record_key = {_FIRST_RECORD}"),
    Damage("PAYLOAD_CHANGED", "another kind", f"UPDATE record SET kind = 5 WHERE record_key = {_FIRST_RECORD}"),
    Damage("ATTACHMENT_CHANGED", "other bytes", forged_blob),
    Damage("ATTACHMENT_CHANGED", "none any more", "DELETE FROM record_blob"),
    Damage("BLOB_CHANGED", "other bytes", forged_blob),
    Damage("LEAF_CHANGED", "another size", f"UPDATE record SET leaf_escaped = 7 WHERE record_key = {_FIRST_RECORD}"),
    Damage(
        "EVENT_LOST",
        "an event of no record",
        "UPDATE event SET record_key = {first_low} + 9999 WHERE segment_pk = {first}",
    ),
    Damage("PUBLICATION_GAP", "a number that is gone", "DELETE FROM publication WHERE publication_key & {mask} = 4"),
    Damage(
        "PUBLICATION_GAP",
        "the last number is gone",
        "DELETE FROM publication WHERE publication_key = (SELECT max(publication_key) FROM publication)",
    ),
    Damage(
        "PUBLICATION_TURN",
        "another range",
        "UPDATE publication SET end_seq = end_seq + 1 WHERE publication_key & {mask} = 4",
    ),
    Damage("PUBLICATION_TWICE", "a turn is published twice", two_publications),
    Damage(
        "PUBLICATION_ORDER",
        "a later turn before an earlier",
        "UPDATE publication SET start_seq = 900, end_seq = 901 WHERE publication_key & {mask} = 2",
    ),
    Damage("HIDDEN", "a record of a removed turn", "UPDATE turn SET removed = 1 WHERE turn_pk = 2"),
    Damage("HIDDEN", "a hidden record of a live turn", "UPDATE record SET state = 1 WHERE record_key = {first_low}"),
    Damage("HIDDEN_PUBLISHED", "a removed turn is published", "UPDATE turn SET removed = 1 WHERE turn_pk = 2"),
    Damage("HIDDEN_PUBLISHED", "a revoked session is", "UPDATE session SET revoked = 1 WHERE key = 'second'"),
    Damage("SCRUB_LEFT", "a scrubbed record has bytes", "UPDATE record SET state = 2 WHERE record_key = {first_low}"),
    Damage("SCRUB_LEFT", "a removal has more to erase", unfinished_removal),
    Damage(
        "PIN",
        "a view that is none",
        "UPDATE turn_descriptor SET own_levels = x'0003' WHERE turn_pk = (SELECT max(turn_pk) FROM turn)",
    ),
    Damage(
        "PIN",
        "a view past its mark",
        "UPDATE turn_descriptor SET publications = 1 WHERE turn_pk = (SELECT max(turn_pk) FROM turn)",
    ),
    Damage(
        "PIN",
        "a rendering that ends before its pin",
        "UPDATE rendering SET own_levels = substr(own_levels, 1, 1)"
        " WHERE turn_pk = (SELECT max(turn_pk) FROM rendering)",
    ),
    Damage(
        "PIN",
        "a block that leaves lines out",
        "UPDATE rendering SET since = json_set(since, '$.heads[#-1][2]', 1)"
        " WHERE turn_pk = (SELECT max(turn_pk) FROM rendering)",
    ),
    Damage("COUNTER", "a number that is in use", "UPDATE scope SET next_document = 3"),
    Damage("COUNTER", "a clock from before", "UPDATE scope SET clock = 2"),
    Damage("COUNTER", "a number of a publication", "UPDATE scope SET next_publication = 3"),
    Damage(
        "MOMENT", "no marks at the clock", "DELETE FROM moment WHERE moment_key = (SELECT max(moment_key) FROM moment)"
    ),
    Damage("MOMENT", "marks past what there is", "UPDATE moment SET publications = 5000 WHERE moment_key & {mask} = 3"),
    Damage(
        "MOMENT",
        "newest marks past what there is",
        "UPDATE moment SET documents = 5000 WHERE moment_key = (SELECT max(moment_key) FROM moment)",
    ),
    Damage("ENDED_LENGTH", "too few", "UPDATE segment SET ended_length = 2 WHERE segment_pk = {first}"),
    Damage("PUBLICATION_POINTER", "another", "UPDATE turn SET publication_key = publication_key + 1 WHERE turn_pk = 3"),
    Damage("PUBLICATION_POINTER", "none", "UPDATE turn SET publication_key = NULL WHERE turn_pk IN (2, 3)"),
    Damage("VIEW_MISSING", "a session's", "DELETE FROM view WHERE tree_pk = {first_tree}", views=False),
    Damage("VIEW_MISSING", "the shared one", "DELETE FROM view WHERE tree_pk = {shared}", views=False),
    Damage("NODE_SIZE", "another size", "UPDATE node SET escaped_bytes = 3 WHERE node_key = {summary}"),
    Damage(
        "NODE_SIZE", "too long", "UPDATE node SET text = text || printf('%.*c', 600, 'x') WHERE node_key = {summary}"
    ),
    Damage("PUBLICATION_LEAF", "a joined leaf", "DELETE FROM node WHERE node_key = {shared_leaf}"),
    Damage(
        "PUBLICATION_LEAF",
        "every leaf",
        "DELETE FROM node WHERE node_key IN (SELECT node_key FROM node JOIN publication"
        " ON node_key >> 40 = {shared} WHERE first_at = last_at OR node_key = {shared_leaf})",
    ),
    Damage("PUBLICATION_LEAF", "a revision that is in the history", lost_history),
    Damage("PAGE_LOST", "a page", "DELETE FROM node WHERE node_key = {pages} << 40"),
    Damage("PAGE_LOST", "every page", "DELETE FROM node WHERE node_key >> 40 = {pages}"),
    Damage(
        "LEAF_LOST",
        "a summary",
        "DELETE FROM node WHERE node_key = {leaf}",
    ),
    Damage("LEAF_LOST", "a job", "DELETE FROM job WHERE job_pk = (SELECT max(job_pk) FROM job WHERE kind = 0)"),
    Damage("MERGE_LOST", "a joined node", "DELETE FROM node WHERE node_key = {join}"),
    Damage("MERGE_LOST", "an inner node", "DELETE FROM node WHERE node_key = {first_four}"),
    Damage("MERGE_LOST", "a shared one", "DELETE FROM node WHERE node_key = {shared_four}"),
    Damage(
        "MERGE_LOST",
        "a job",
        "DELETE FROM waiter WHERE job_pk = {merge_job}; DELETE FROM job WHERE job_pk = {merge_job}",
    ),
    Damage("MERGE_LOST", "every inner node of a session", "DELETE FROM node WHERE node_key >> 40 = {first_tree}"),
    Damage("MERGE_LOST", "every shared node", "DELETE FROM node WHERE node_key >> 40 = {shared}"),
    Damage("COVER_MISSING", "a node of a cover", "DELETE FROM node WHERE node_key = {first_four}"),
    Damage("CHILD_MISSING", "a child", "DELETE FROM node WHERE node_key = {first_pair}"),
    Damage("NODE_TEXT", "another text", "UPDATE node SET text = replace(text, 'a', 'o') WHERE node_key = {join}"),
    Damage("NODE_COUNTS", "outcomes", "UPDATE node SET failed = failed + 1 WHERE node_key = {shared_four}"),
    Damage("NODE_COUNTS", "times", "UPDATE node SET first_at = 5 WHERE node_key = {first_pair}"),
    Damage(
        "NODE_HEAVY",
        "heavier than its children",
        "UPDATE node SET text = printf('%.*c', 400, '&'), escaped_bytes = 2000 WHERE node_key = {first_four}",
    ),
    Damage("INPUTS_CHANGED", "another hash", "UPDATE node SET inputs_sha256 = x'00' WHERE node_key = {summary}"),
    Damage(
        "INPUTS_CHANGED",
        "a summary that was edited",
        "UPDATE node SET text = replace(text, 'e', 'o') WHERE node_key ="
        " (SELECT min(node_key) FROM node WHERE node_key >> 40 = {first_tree} AND kind = 1)",
    ),
    Damage(
        "JOB_DONE",
        "a job for what is there",
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state, priority, due_at,"
        " created_at) VALUES (1, 1, {first_four}, 0, 0, 1, 2, 0, 0)",
    ),
    Damage(
        "JOB_DONE",
        "a job for a turn that is published",
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state,"
        " priority, due_at, created_at) VALUES (1, 3, 2, 0, 0, 1, 2, 0, 0)",
    ),
    Damage(
        "JOB_DONE",
        "a job to make anew what is not there",
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state,"
        " priority, due_at, created_at) VALUES (1, 5, {first_four} + 5000, 0, 0, 1, 2, 0, 0)",
    ),
    Damage(
        "PUBLICATION_LOST",
        "a job",
        "DELETE FROM waiter WHERE job_pk IN (SELECT job_pk FROM job WHERE kind = 3); DELETE FROM job WHERE kind = 3",
    ),
    Damage("WAITER", "a count that is wrong", f"UPDATE job SET missing = missing + 1 WHERE job_pk = {_WAITING}"),
    Damage("WAITER", "a waiter that is gone", f"DELETE FROM waiter WHERE job_pk = {_WAITING}"),
    Damage("WAITER", "waits for what is there", f"INSERT INTO waiter SELECT {{first_four}}, {_WAITING}"),
    Damage(
        "WAITER",
        "a publication that waits for one that is there",
        "INSERT INTO waiter SELECT 2, max(job_pk) FROM job WHERE kind = 3",
    ),
    Damage("JOB_STUCK", "leaves that nobody admits", "UPDATE job SET state = 0 WHERE kind = 0"),
    Damage(
        "JOB_STUCK",
        "waits for nothing",
        "INSERT INTO job (scope_pk, kind, subject, tree_pk, position, state, priority, due_at, created_at)"
        " VALUES (1, 5, {first_four}, 0, 0, 0, 2, 0, 0)",
    ),
    Damage(
        "VIEW", "levels that are none", "UPDATE view SET levels = x'0003' WHERE tree_pk = {first_tree}", views=False
    ),
    Damage("VIEW", "a length that is wrong", "UPDATE view SET length = length + 4 WHERE tree_pk = {shared}"),
    Damage(
        "VIEW",
        "lines that are missing",
        "UPDATE view SET levels = x'00', length = 1 WHERE tree_pk = {first_tree}",
        views=False,
    ),
    Damage("VIEW", "no line at all", "UPDATE view SET levels = x'', length = 0 WHERE tree_pk = {shared}", views=False),
    Damage("INDEX", "a page of the index", dead_index),
    Damage(
        "DOCUMENT_CHANGED",
        "another place",
        "UPDATE document SET start_seq = start_seq + 1 WHERE document_key = {document}",
    ),
    Damage(
        "DOCUMENT_CHANGED",
        "another segment",
        "UPDATE document SET segment_pk = {second} WHERE document_key = {document}",
    ),
    Damage(
        "DOCUMENT_CHANGED", "another length", "UPDATE document SET word_count = 1000 WHERE document_key = {document}"
    ),
    Damage("DOCUMENT_STATE", "hidden", "UPDATE document SET state = 1 WHERE document_key = {document}"),
    Damage(
        "DOCUMENT_STATE", "a summary that counts as replaced", "UPDATE document SET replaced_clock = 1 WHERE kind = 6"
    ),
    Damage("DOCUMENT_VISIBLE", "nobody finds it", "UPDATE document SET visible = NULL WHERE document_key = {document}"),
    Damage(
        "DOCUMENT_VISIBLE",
        "found before it was published",
        "UPDATE document SET visible = 0 WHERE kind < 6 AND visible > 3",
    ),
    Damage(
        "DOCUMENT_VISIBLE",
        "a summary that others find",
        "UPDATE document SET visible = 1 WHERE kind = 6 AND segment_pk = {alone}",
    ),
    Damage("ENTRY_MISSING", "no words", no_entry),
    Damage("ENTRY_CHANGED", "other words", other_words),
    Damage("ENTRY_ORPHAN", "words of nobody", nobodys_entry),
    Damage("ENTRY_ORPHAN", "words of what was deleted", deleted_entry_that_stayed),
    Damage("UNINDEXED", "no documents", no_documents),
    Damage("UNINDEXED", "a piece", no_piece),
    Damage("NODE_UNINDEXED", "no document", no_document_of_a_node),
    Damage("RECIPE_COUNT", "too many", "UPDATE recipe SET nodes = nodes + 3 WHERE kind = 'summary'"),
)
