"""
What a statement will do, before it runs.

``recorded`` notes the statements that a function runs; ``assert_searches`` asks SQLite for the plan of one, and refuses
a SCAN: a statement of a hot path must not grow with the table. To prepare a statement is to check its columns, too.
"""

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import apsw.ext
from attrs import frozen

# What may be scanned anywhere: a row of constants, the values that were bound, and an index of words by a MATCH.
HARMLESS = ("SCAN CONSTANT ROW", "SCAN carray VIRTUAL TABLE")


@frozen
class Statement:
    sql: str
    bindings: Any

    def __str__(self) -> str:
        return " ".join(self.sql.split())


@contextmanager
def recorded(db: apsw.Connection) -> Generator[list[Statement], None, None]:
    """Collect the statements that run on the connection in the block, each text once, transactions left out."""
    found: dict[str, Statement] = {}

    def note(_cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        if not sql.split(maxsplit=1)[0].upper().startswith(("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "SAVEPOINT")):
            found.setdefault(sql, Statement(sql, bindings))
        return True

    statements: list[Statement] = []
    before = db.exec_trace
    db.exec_trace = note
    try:
        yield statements
    finally:
        db.exec_trace = before
        statements.extend(found.values())


def plan(db: apsw.Connection, sql: str, bindings: Any = None) -> list[str]:
    """The lines of the statement's query plan, outer ones first."""
    top = apsw.ext.query_info(db, sql, bindings, explain_query_plan=True).query_plan
    assert top is not None

    def walk(step: apsw.ext.QueryPlan) -> Iterator[str]:
        yield step.detail
        for inner in step.sub or ():
            yield from walk(inner)

    return list(walk(top))[1:]


def scans(db: apsw.Connection, sql: str, bindings: Any = None) -> list[str]:
    """Those lines of the plan that read a whole table or index."""
    return [
        line
        for line in plan(db, sql, bindings)
        if line.startswith("SCAN")
        and not line.startswith(HARMLESS)
        and not ("VIRTUAL TABLE INDEX" in line and "M" in line)
    ]


def assert_searches(db: apsw.Connection, sql: str, bindings: Any = None, *, allowed: Collection[str] = ()) -> None:
    """
    Refuse a statement that scans.

    Args:
        allowed: names that may be scanned: a common table expression's, or a table's that stays small.
    """
    bad = [line for line in scans(db, sql, bindings) if line.split()[1] not in allowed]
    assert not bad, f"{Statement(sql, bindings)}\n  scans: {bad}\n  plan: {plan(db, sql, bindings)}"
