"""
Every statement of hot paths is a SEARCH; and the helper that says so finds what it should.

A scripted scenario runs while every connection's statements are recorded; then SQLite is asked for the plan of each.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import optchat
from optchat.engine import lifecycle
from optchat.memory.retrieving import retrieve
from optchat.store import search
from optchat.testing import DeterministicSummarizer
from tests.store.plans import Statement, assert_searches, recorded, scans


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
    db.execute("CREATE INDEX t_b ON t (b)")
    db.execute("CREATE VIRTUAL TABLE words USING fts5 (text, content = '')")
    yield db
    db.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t WHERE b = :b",
        "SELECT a FROM t WHERE a IN (SELECT value FROM carray(:many))",
        "INSERT INTO t VALUES (:a, :b)",
        "UPDATE t SET b = 1 WHERE a = :a RETURNING b",
        "SELECT rowid FROM words WHERE words MATCH :m AND rowid < 9",
    ],
)
def test_a_search_passes(db: apsw.Connection, sql: str) -> None:
    assert_searches(db, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t",
        "SELECT count(*) FROM t",
        "DELETE FROM t WHERE b + 1 = :b",
        "SELECT a FROM t WHERE a IN (SELECT a FROM t WHERE b + 1 = 2)",
        "SELECT rowid FROM words",
    ],
)
def test_a_scan_is_refused(db: apsw.Connection, sql: str) -> None:
    with pytest.raises(AssertionError, match="scans"):
        assert_searches(db, sql)


def test_a_named_scan_is_allowed(db: apsw.Connection) -> None:
    sql = (
        "WITH RECURSIVE c (x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM c WHERE x < 5) SELECT b FROM c JOIN t ON a = x"
    )
    assert scans(db, sql)
    assert_searches(db, sql, allowed={"c"})


def test_an_unknown_column_fails(db: apsw.Connection) -> None:
    with pytest.raises(apsw.SQLError, match="no such column"):
        assert_searches(db, "SELECT c FROM t")


def test_statements_are_recorded_once_with_their_bindings(db: apsw.Connection) -> None:
    with recorded(db) as statements:
        db.execute("BEGIN")
        for number in range(3):
            db.execute("SELECT a FROM t WHERE a = :a", {"a": number})
        db.execute("COMMIT")
    assert [(str(statement), statement.bindings) for statement in statements] == [
        ("SELECT a FROM t WHERE a = :a", {"a": 0})
    ]
    db.execute("SELECT 1")
    assert len(statements) == 1


# ---- the library's own statements ------------------------------------------------------------------------------------

BUDGET = optchat.Budget(window=60_000, output=1_000)

# What may be scanned, and why that does not grow with what is said.
ALLOWED = {
    "job_leased": "a partial index of the leases: as many as calls run at once",
    "turn_live": "a partial index of the turns that run",
    "owner": "a row a process; read only while a context waits for summaries",
    "pragma_page": "the size of the file, of a status",
}


@pytest.fixture
def statements() -> Iterator[dict[str, Statement]]:
    """Every statement of every connection that is opened in the test, each text once."""
    found: dict[str, Statement] = {}

    def note(_cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        found.setdefault(sql, Statement(sql, bindings))
        return True

    def watch(db: apsw.Connection) -> None:
        db.exec_trace = note

    apsw.connection_hooks.append(watch)
    yield found
    apsw.connection_hooks.remove(watch)


def scenario(path: Path, statements: dict[str, Statement]) -> None:
    """Turns with everything in them, by two sessions; every read; summaries, pages, the index of a large text."""
    policy = optchat.Policy(view_high_bytes=6_000, view_low_bytes=3_000)
    summarizer = DeterministicSummarizer()
    with optchat.open(path, scope="hot", policy=policy, summarizer=summarizer, compact="manual") as memory:
        statements.clear()  # opening happens once
        for number in range(12):
            session = memory.session(f"s{number % 3}", isolated=number % 3 == 2)
            with session.turn(f"request {number} " + "about the queue " * (number * 13)) as turn:
                found = turn.call("memory_search", {"query": "queue request"})
                turn.add(optchat.HostMessage.assistant("", [optchat.ToolCallPart(f"c{number}", "memory_search", "{}")]))
                turn.tool_result(f"c{number}", found)
                turn.stage(optchat.HostMessage.assistant("half", key=f"m{number}"))
                turn.report("build", f"report {number} " + "x" * 5_000)
                turn.context(BUDGET, readiness="partial")
                turn.assistant(f"answer {number}", key=f"m{number}")
            if number == 7:
                session.turn("large " * 20_000).end("failed")
            if number % 4 == 3:
                memory.settle()
        session.note("a note")
        held = session.turn("held", turn_id="t")
        held.suspend()
        session.resume().observe([optchat.HostMessage.user("held"), optchat.HostMessage.assistant("observed")])
        undo(memory)
        follow_a_host(memory)
        reader = memory.session("s0").turn("read")
        with memory.pin() as pinned:
            for eyes in (memory, pinned, reader):
                read_all(eyes, memory)
            retrieve(memory, "memory_sessions", {}, snapshot=pinned.snapshot.id)
        retrieve(memory, "memory_sessions", {}, turn=reader.id, session=memory.session("s0").id)
        reader.end("completed")
        memory.settle()


def follow_a_host(memory: optchat.Memory) -> None:
    """A host's list: what is new in it, and where it departs from what is sealed; a turn of it that was deleted."""
    said = optchat.HostMessage
    call = optchat.ToolCallPart("h", "memory_search", "{}")
    listed = [said.user("h 0", key="h0"), said.assistant("h 1"), said.user("h 2"), said.assistant("", [call])]
    hosted = memory.session("hosted")
    hosted.reconcile([*listed, said.user("h 3")])
    hosted.host_holds(9)
    memory.status()
    hosted.delete(only=[next(iter(hosted.turns())).id])
    with pytest.raises(optchat.ResyncNeeded):
        hosted.reconcile(listed)
    hosted.resync(listed)
    hosted.reconcile([*listed, said.user("h 4")])


def undo(memory: optchat.Memory) -> None:
    """Forks, rewinds and edits, a cut inside of a turn, and what hides and shares."""
    session = memory.session("s0")
    fork = session.fork("s0-fork")
    last = list(session.turns())[-1]
    session.rewind(before=last.id)
    session.rewind(before=last.id)
    for revision in range(2):
        request = optchat.HostMessage(
            "user", (optchat.TextPart(f"request {revision}"),), key="edited", revision=revision
        )
        with session.turn(request) as turn:
            turn.assistant("answer to an edit")
            turn.assistant("queue request")
    length = session.info().length
    lifecycle.rewind_within(memory._scope, session._row, length - 1)
    memory.settle()
    session = memory.session("s0")
    memory.search("queue request", session=fork.id)
    memory.zoom(f"session:{session.id}:0:{last.ref.rsplit(':', 1)[1]}")
    session.archive()
    session.unarchive()
    fork.revoke()
    fork.share(history=True)
    lifecycle.begin_anew(memory._scope, fork._row)


def read_all(eyes: Any, memory: optchat.Memory) -> None:
    eyes.view()
    eyes.sessions()
    eyes.work("build")
    for order in ("best", "newest"):
        page = eyes.search("queue request", order=order, limit=2)
        eyes.search("queue request", order=order, limit=2, cursor=page.cursor)
    session = memory.session("s0").id
    eyes.search("answer", session=session, kind="assistant")
    eyes.view(session)
    for ref in ("pub:0+1", "pub:0+2", f"session:{session}:0:0+1", f"session:{session}:0:0+2"):
        eyes.zoom(ref)
        eyes.date(ref)
    eyes.source(f"session:{session}:0:0+1")


def test_every_statement_of_turns_summaries_and_reads_is_a_search(path: Path, statements: dict[str, Statement]) -> None:
    scenario(path, statements)
    verbs = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
    ran = [each for each in statements.values() if each.sql.split(maxsplit=1)[0].upper() in verbs]
    assert len(ran) > 80, "the scenario did too little"
    db = apsw.Connection(str(path))
    search._teach_places(db)  # to prepare the statement that ranks
    bad = [
        f"{line}: {each}"
        for each in ran
        for line in scans(db, each.sql, each.bindings)
        if not any(name in line for name in ALLOWED)
    ]
    db.close()
    assert not bad, "\n".join(bad)


def test_every_statement_that_erases_is_a_search(path: Path, statements: dict[str, Statement]) -> None:
    """A whole session, one of two that share a blob and a project, and a scope; with pages, pieces and pictures."""
    with optchat.open(path, scope="other", summarizer=DeterministicSummarizer(), compact="manual") as memory:
        for name in ("erased", "kept"):
            scope = memory.scoped(name)
            for key in ("a", "b"):
                with scope.session(key, project=f"/{name}").turn(f"request {key} " + "large " * 30_000) as turn:
                    turn.call("memory_search", {"query": "queue request"})
                    turn.add(optchat.HostMessage.user((optchat.BlobPart("image/png", data=b"png"),)))
                    turn.context(BUDGET, readiness="partial")
            scope.settle()
        statements.clear()
        memory.scoped("kept").session("a").delete()
        memory.scoped("erased").session("a").delete()
        memory.scoped("erased").delete_scope()
        assert not memory.settle().scrub_pending
    ran = [
        each for each in statements.values() if each.sql.split(maxsplit=1)[0].upper() in ("SELECT", "UPDATE", "DELETE")
    ]
    erased = {
        name
        for name in ("blob_piece", "project_alias", "tombstone", "event", "node_history")
        for each in ran
        if f"DELETE FROM {name} " in each.sql
    }
    assert len(erased) == 5
    db = apsw.Connection(str(path))
    bad = [
        f"{line}: {each}"
        for each in ran
        for line in scans(db, each.sql, each.bindings)
        if not any(name in line for name in ALLOWED)
    ]
    db.close()
    assert not bad, "\n".join(bad)
