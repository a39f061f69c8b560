"""The helper that the other store tests lean on finds what it should."""

from collections.abc import Iterator

import apsw
import pytest

from tests.store.plans import assert_searches, recorded, scans


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
