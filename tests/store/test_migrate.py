"""Whose file it is, of which format, and how one format becomes the next."""

import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from optchat.core.errors import ConfigError, IntegrityError, NotOurFile, SchemaTooNew
from optchat.store import migrate
from optchat.store.connection import Store
from optchat.store.migrate import APPLICATION_ID, FORMAT, Format, Migration, look_at, prepare, read_format
from tests.store.actor import Actor, Failed
from tests.store.handles import Open, contents, names, put

FORMATS = Path(__file__).parent / "formats"
JOURNAL = bytes.fromhex("d9d505f920a163d7")  # how a rollback journal begins


def schema(db: apsw.Connection) -> dict[str, object]:
    """Tables with columns and keys, and indexes with conditions. A table's SQL is not compared: ALTER edits it."""
    found: dict[str, object] = {}
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name").fetchall()
    for kind, name, table, sql in rows:
        for pragma in ("table_xinfo", "foreign_key_list") if kind == "table" else ("index_xinfo",):
            found[f"{kind} {name} on {table} {pragma}"] = db.execute(f"PRAGMA {pragma}([{name}])").fetchall()
        if kind == "index":
            found[f"sql of {name}"] = sql and " ".join(sql.split())
    for name, strict, without_rowid in db.execute("SELECT name, strict, wr FROM pragma_table_list").fetchall():
        found[f"kind of {name}"] = (strict, without_rowid)
    return found


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., apsw.Connection]]:
    opened: list[apsw.Connection] = []

    def connect(name: str = "format.db") -> apsw.Connection:
        opened.append(apsw.Connection(str(tmp_path / name)))
        opened[-1].config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        return opened[-1]

    yield connect
    for db in opened:
        db.close()


# ---- the present format ----------------------------------------------------------------------------------------------


def test_a_fresh_file_has_the_schema_and_its_number(open_store: Open, connect: Callable[..., apsw.Connection]) -> None:
    store = open_store()
    pure = connect()
    pure.execute(FORMAT.schema_sql)
    with store.read() as db:
        assert schema(db) == schema(pure)
        assert db.execute("PRAGMA application_id").get == APPLICATION_ID
        assert db.execute("PRAGMA user_version").get == FORMAT.version
        assert db.execute("PRAGMA integrity_check").get == "ok"


def test_every_table_is_strict(store: Store) -> None:
    with store.read() as db:
        loose = db.execute(
            "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict"
            " AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
    assert loose == []


def test_every_former_format_is_kept_and_becomes_the_present_one(connect: Callable[..., apsw.Connection]) -> None:
    """Before a migration is added, the schema it starts from is copied to formats/NNN.sql, and never changed again."""
    kept = sorted(FORMATS.glob("*.sql"))
    assert [int(file.stem) for file in kept] == list(range(1, FORMAT.version))
    pure = connect("pure.db")
    pure.execute(FORMAT.schema_sql)
    for file in kept:
        db = connect(f"{file.stem}.db")
        prepare(db, Path("old.db"), Format(file.read_text("utf-8"), FORMAT.migrations[: int(file.stem) - 1]))
        prepare(db, Path("old.db"))
        assert schema(db) == schema(pure)


def test_opening_again_writes_no_schema(store: Store, open_store: Open) -> None:
    with store.read() as db:
        before = db.execute("PRAGMA schema_version").get
    other = open_store()
    with other.read() as db:
        assert db.execute("PRAGMA schema_version").get == before


def test_an_empty_file_is_taken_for_fresh(path: Path, open_store: Open) -> None:
    path.touch()
    put(open_store(), "a")


def test_a_creation_that_was_cut_short_is_finished(path: Path, open_store: Open) -> None:
    db = apsw.Connection(str(path))
    db.pragma("application_id", APPLICATION_ID)
    db.close()
    with pytest.raises(ConfigError, match="never finished"):
        open_store("ro")
    put(open_store("rw"), "a")


@pytest.mark.parametrize("torn", [b"\0", bytes(4096), b"SQLite format 3\0\x10", bytes(60) + b"x" * 452])
def test_a_creation_whose_first_page_was_torn_is_begun_anew(path: Path, open_store: Open, torn: bytes) -> None:
    """The journal says that there was nothing before: SQLite rolls back to that, whatever the page looks like."""
    journal = path.with_name("memory.db-journal")
    journal.write_bytes(JOURNAL + struct.pack(">IIIII", 0, 7, 0, 512, 4096) + bytes(484))
    path.write_bytes(torn)
    with pytest.raises(ConfigError, match="mode='rwc'"):
        open_store("ro")
    assert path.read_bytes() == torn
    put(open_store("rwc"), "a")
    assert not journal.exists()


def test_the_log_is_grown_once(store: Store, path: Path, open_store: Open) -> None:
    log = path.with_name("memory.db-wal")
    grown = log.stat().st_size
    assert grown >= migrate.WAL_PAGES * migrate.PAGE_BYTES * 0.9
    put(store, "a")
    store.close()
    put(open_store(), "b")
    assert log.stat().st_size == grown


# ---- files that are not ours -----------------------------------------------------------------------------------------


def sqlite_file(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def ours(path: Path, *statements: str) -> None:
    sqlite_file(path, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA journal_mode = WAL", *statements)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("Dear diary, " * 500),
    "one byte": lambda path: path.write_bytes(b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "a header and no more": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "another application's": lambda path: sqlite_file(path, "PRAGMA application_id = 77", "CREATE TABLE theirs (a)"),
    "an anonymous application's": lambda path: sqlite_file(path, "CREATE TABLE theirs (a)", "PRAGMA user_version = 1"),
    "an anonymous one with a log": lambda path: sqlite_file(
        path, "PRAGMA journal_mode = WAL", "CREATE TABLE theirs (a)"
    ),
    "an empty database": lambda path: sqlite_file(path, "VACUUM"),
    "with other pages": lambda path: sqlite_file(path, "PRAGMA page_size = 512", "CREATE TABLE theirs (a)"),
    "cut": lambda path: (sqlite_file(path, "CREATE TABLE theirs (a)"), os.truncate(path, 4096)),
}


@pytest.mark.parametrize("mode", ["rwc", "rw", "ro"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused_untouched(path: Path, open_store: Open, kind: str, mode: str) -> None:
    FOREIGN[kind](path)
    before = contents(path.parent)
    with pytest.raises(NotOurFile, match="name another path") as raised:
        open_store(mode)
    assert str(path) in str(raised.value)
    assert contents(path.parent) == before


@pytest.mark.parametrize("mode", ["rwc", "rw", "ro"])
def test_a_foreign_file_whose_log_is_in_use_is_refused_untouched(
    path: Path, open_store: Open, new_actor: Callable[..., Actor], mode: str
) -> None:
    actor = new_actor()
    actor.ask("foreign_with_a_log")
    for living in (True, False):
        if not living:
            actor.end()
        before = contents(path.parent)
        assert "memory.db-wal" in before
        with pytest.raises(NotOurFile):
            open_store(mode)
        assert contents(path.parent) == before


def test_a_foreign_file_with_a_hot_journal_is_refused_untouched(path: Path, open_store: Open) -> None:
    script = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('CREATE TABLE theirs (a)')\n"
        "db.execute('PRAGMA cache_size = 1')\n"
        "db.execute('BEGIN')\n"
        "db.execute('INSERT INTO theirs VALUES (zeroblob(1000000))')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    before = contents(path.parent)
    assert before.keys() == {"memory.db", "memory.db-journal"}
    for mode in ("rwc", "rw", "ro"):
        with pytest.raises(NotOurFile):
            open_store(mode)
    assert contents(path.parent) == before


@pytest.mark.parametrize("header", [JOURNAL[:7] + b"x" + bytes(12), JOURNAL + struct.pack(">III", 1, 7, 1), JOURNAL])
def test_a_page_that_no_journal_takes_back_is_refused_untouched(path: Path, open_store: Open, header: bytes) -> None:
    """Of another size before, or no journal at all."""
    path.write_bytes(b"Dear diary")
    path.with_name("memory.db-journal").write_bytes(header)
    before = contents(path.parent)
    for mode in ("rwc", "rw", "ro"):
        with pytest.raises(NotOurFile):
            open_store(mode)
    assert contents(path.parent) == before


@pytest.mark.parametrize("mode", ["rwc", "rw", "ro"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_refused(path: Path, open_store: Open, make: Callable[[Path], None], mode: str) -> None:
    make(path)
    with pytest.raises(NotOurFile):
        open_store(mode)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# ---- newer and older -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["rwc", "rw", "ro"])
def test_a_newer_file_is_refused_untouched(path: Path, open_store: Open, mode: str) -> None:
    ours(path, "CREATE TABLE later (a)", f"PRAGMA user_version = {FORMAT.version + 1}")
    before = contents(path.parent)
    with pytest.raises(SchemaTooNew, match="upgrade optchat"):
        open_store(mode)
    assert contents(path.parent) == before


@pytest.mark.parametrize("mode", ["rwc", "rw", "ro"])
def test_a_newer_number_that_only_the_log_knows_is_refused(
    path: Path, open_store: Open, new_actor: Callable[..., Actor], mode: str
) -> None:
    actor = new_actor()
    actor.ask("open")
    actor.ask("set_version", FORMAT.version + 1)
    for living in (True, False):
        if not living:
            actor.end()
        before = contents(path.parent)
        with pytest.raises(SchemaTooNew):
            open_store(mode)
        after = contents(path.parent)
        assert {name for name in after if after[name] != before[name]} <= {"memory.db-shm"}


def test_a_handle_refuses_once_a_newer_one_has_migrated_the_file(store: Store, new_actor: Callable[..., Actor]) -> None:
    put(store, "a")
    actor = new_actor()
    actor.ask("open")
    actor.ask("set_version", FORMAT.version + 1)
    for use in (store.read, store.write):
        with pytest.raises(SchemaTooNew), use():
            pass
    with pytest.raises(Failed, match="upgrade"):
        actor.ask("names")


def test_an_older_file_is_not_migrated_by_a_reader(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store().close()
    newer = Format(FORMAT.schema_sql, (*FORMAT.migrations, Migration(FORMAT.version + 1, "later.sql", "")))
    monkeypatch.setattr(migrate, "FORMAT", newer)
    with pytest.raises(ConfigError, match="open it once with mode='rw'"):
        open_store("ro")


ONE = "CREATE TABLE parent (id INTEGER PRIMARY KEY) STRICT; CREATE TABLE child (a REFERENCES parent (id));"
TWO = Migration(2, "002_name.sql", "ALTER TABLE parent ADD COLUMN name TEXT; INSERT INTO parent (id) VALUES (2);")
THREE = Migration(
    3,
    "003_strict.sql",
    "CREATE TABLE child_new (a INTEGER REFERENCES parent (id)) STRICT; INSERT INTO child_new SELECT a FROM child;"
    "DROP TABLE child; ALTER TABLE child_new RENAME TO child; CREATE INDEX child_a ON child (a);",
)
NOW = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT) STRICT;"
    "CREATE TABLE child (a INTEGER REFERENCES parent (id)) STRICT; CREATE INDEX child_a ON child (a);"
)


def version(db: apsw.Connection) -> int:
    return migrate.version_of(db)


def test_migrations_lead_to_the_schema(connect: Callable[..., apsw.Connection], tmp_path: Path) -> None:
    old, new = connect("old.db"), connect("new.db")
    prepare(old, tmp_path, Format(ONE, ()))
    assert version(old) == 1
    present = Format(NOW, (TWO, THREE))
    prepare(old, tmp_path, present)
    prepare(new, tmp_path, present)
    assert schema(old) == schema(new)
    assert version(old) == version(new) == 3
    prepare(old, tmp_path, present)
    assert old.execute("SELECT count(*) FROM parent").get == 1  # none is applied twice
    assert old.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, -1) == 1


def test_a_migration_and_its_number_are_committed_together(
    connect: Callable[..., apsw.Connection], tmp_path: Path
) -> None:
    db = connect()
    prepare(db, tmp_path, Format(ONE, ()))
    broken = Migration(3, "003_broken.sql", "CREATE TABLE half (a); INSERT INTO absent VALUES (1);")
    with pytest.raises(apsw.SQLError, match="absent"):
        prepare(db, tmp_path, Format(NOW, (TWO, broken)))
    assert version(db) == 2
    assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'half'").get is None
    assert not db.in_transaction
    prepare(db, tmp_path, Format(NOW, (TWO, THREE)))
    assert version(db) == 3


def test_the_number_is_set_before_the_commit(connect: Callable[..., apsw.Connection], tmp_path: Path) -> None:
    for start in ((), (TWO,)):
        db = connect(f"{len(start)}.db")
        if start:
            prepare(db, tmp_path, Format(ONE, ()))
        ran: list[str] = []
        db.exec_trace = lambda _cursor, sql, _bindings, ran=ran: ran.append(sql) is None
        prepare(db, tmp_path, Format(ONE, start))
        number = ran.index(f'pragma "user_version"({len(start) + 1})')
        assert ran[number + 1 :] == ["COMMIT"]


def test_a_migration_that_leaves_a_row_dangling_is_undone(
    connect: Callable[..., apsw.Connection], tmp_path: Path
) -> None:
    db = connect()
    prepare(db, tmp_path, Format(ONE, ()))
    db.execute("INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1)")
    careless = Migration(2, "002_careless.sql", "DELETE FROM parent;")
    with pytest.raises(IntegrityError, match="002_careless"):
        prepare(db, tmp_path, Format(ONE, (careless,)))
    assert version(db) == 1
    assert db.execute("SELECT id FROM parent").get == 1
    assert db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, -1) == 1


def test_prepare_refuses_a_foreign_and_a_newer_file_too(
    connect: Callable[..., apsw.Connection], tmp_path: Path
) -> None:
    """Another process may have put it there after look_at."""
    foreign, newer = connect("foreign.db"), connect("newer.db")
    foreign.execute("CREATE TABLE theirs (a)")
    prepare(newer, tmp_path, Format(NOW, (TWO, THREE)))
    with pytest.raises(NotOurFile):
        prepare(foreign, tmp_path)
    with pytest.raises(SchemaTooNew):
        prepare(newer, tmp_path, Format(ONE, ()))
    assert foreign.pragma("journal_mode") == "delete"


def test_look_at_tells_what_lies_there(path: Path, open_store: Open) -> None:
    assert look_at(path) == "absent"
    path.touch()
    assert look_at(path) == "empty"
    store = open_store()
    assert look_at(path) == "ours"
    put(store, "a")  # looking has dropped none of this process's locks
    assert names(store) == ["a"]


@pytest.mark.parametrize(
    "files",
    [["003_gap.sql"], ["002_a.sql", "002_b.sql"], ["002_a.sql", "004_b.sql"], ["2_short.sql"], ["002_Upper.sql"]],
)
def test_misnamed_migrations_are_a_defect_of_the_package(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "schema.sql").touch()
    (tmp_path / "migrations").mkdir()
    for name in files:
        (tmp_path / "migrations" / name).touch()
    with pytest.raises(ValueError, match="no migration"):
        read_format(tmp_path)


def test_migrations_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "schema.sql").write_text("now")
    (tmp_path / "migrations").mkdir()
    for name in ("003_b.sql", "002_a.sql", "README"):
        (tmp_path / "migrations" / name).write_text(name)
    found = read_format(tmp_path)
    assert (found.version, found.schema_sql) == (3, "now")
    assert [(step.number, step.name, step.sql) for step in found.migrations] == [
        (2, "002_a.sql", "002_a.sql"),
        (3, "003_b.sql", "003_b.sql"),
    ]
    assert read_format().version == FORMAT.version
