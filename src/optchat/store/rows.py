"""
Reading rows.

Decides: that rows are fetched whole, so that no cursor ever leaves the store.
Refuses to know: any table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

import apsw

from optchat.core.errors import BadArgument

Connection: TypeAlias = apsw.Connection
Row: TypeAlias = tuple[Any, ...]  # one place for the driver's untyped values; each caller maps them to typed fields


def all_rows(db: Connection, sql: str, bindings: Mapping[str, Any] | None = None) -> list[Row]:
    """
    Every row of a statement.

    Raises:
        BadArgument: a name or an id that holds a lone surrogate, which no text column can. What was said may: payloads
            are bytes.
    """
    try:
        return db.execute(sql, bindings).fetchall()
    except UnicodeEncodeError as error:
        raise BadArgument("a name or an id holds half of a surrogate pair; give it as valid text") from error


def one_row(db: Connection, sql: str, bindings: Mapping[str, Any] | None = None) -> Row | None:
    """The first row of a statement, or None; the statement is finished either way."""
    rows = all_rows(db, sql, bindings)
    return rows[0] if rows else None


def one_value(db: Connection, sql: str, bindings: Mapping[str, Any] | None = None) -> Any:
    """The first column of the first row, or None."""
    row = one_row(db, sql, bindings)
    return None if row is None else row[0]


def run(db: Connection, sql: str, bindings: Mapping[str, Any] | None = None) -> int:
    """Carry out a statement; how many rows it changed."""
    all_rows(db, sql, bindings)
    return db.changes()


def run_many(db: Connection, sql: str, many: Iterable[Mapping[str, Any]]) -> None:
    """Carry out a statement that answers nothing, once for each set of bindings."""
    db.executemany(sql, many)


def insert(db: Connection, sql: str, bindings: Mapping[str, Any] | None = None) -> int:
    """Carry out an insert; the new row's integer key."""
    all_rows(db, sql, bindings)
    return db.last_insert_rowid()


def keys(values: Iterable[int]) -> Any:
    """
    Integers as a table-valued argument: ``... WHERE key IN (SELECT value FROM carray(:keys))``, one statement for
    many rows.
    """
    # An empty buffer has no aligned address, which APSW refuses; no key is negative, so -1 names nothing.
    return apsw.carray(array("q", values) or array("q", (-1,)))


def blobs(values: Sequence[bytes]) -> Any:
    """Byte strings as a table-valued argument, at least one."""
    return apsw.carray(tuple(values))


def with_flags(row: Row, *places: int) -> Row:
    """A row whose integers at those places are truth values."""
    changed = list(row)
    for place in places:
        changed[place] = bool(changed[place])
    return tuple(changed)


def moment_of(microseconds: int, utc_offset_seconds: int = 0) -> datetime:
    """A stored time, in the offset in which it was recorded."""
    at = datetime.fromtimestamp(microseconds // 1_000_000, timezone(timedelta(seconds=utc_offset_seconds)))
    return at + timedelta(microseconds=microseconds % 1_000_000)
