"""Transactions of one handle, what they refuse, and how a handle is set up, closed and inherited."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from optchat.core.errors import (
    ConfigError,
    NotOurFile,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from optchat.store.connection import Store
from tests.store.actor import Actor, Clock
from tests.store.handles import PUT, Open, names, put

# ---- transactions ----------------------------------------------------------------------------------------------------


def test_a_block_that_ends_normally_is_committed(store: Store, open_store: Open) -> None:
    put(store, "a", "b")
    assert names(open_store()) == ["a", "b"]


@pytest.mark.parametrize("error", [ValueError("theirs"), StoreFull("ours"), KeyboardInterrupt()])
def test_any_exception_undoes_the_block_and_passes_through(store: Store, error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, store.write() as db:
        db.execute(PUT, {"name": "a"})
        raise error
    assert raised.value is error
    assert names(store) == []
    put(store, "b")
    assert names(store) == ["b"]


def test_a_drivers_error_is_only_a_cause(store: Store) -> None:
    put(store, "a")
    with pytest.raises(StoreError, match="UNIQUE constraint failed") as raised, store.write() as db:
        db.execute(PUT, {"name": "b"})
        db.execute(PUT, {"name": "a"})
    assert isinstance(raised.value.__cause__, apsw.ConstraintError)
    assert names(store) == ["a"]
    with pytest.raises(StoreError, match="no such table"), store.read() as db:
        db.execute("SELECT * FROM absent")
    assert names(store) == ["a"]


def test_a_drivers_error_can_be_handled_within_the_block(store: Store) -> None:
    put(store, "a")
    with store.write() as db:
        with pytest.raises(apsw.ConstraintError):
            db.execute(PUT, {"name": "a"})
        db.execute(PUT, {"name": "b"})
    assert names(store) == ["a", "b"]


def test_what_a_reader_sees_does_not_move(store: Store, open_store: Open) -> None:
    put(store, "a")
    other = open_store()
    with store.read() as db:
        thread = threading.Thread(target=put, args=(other, "b"))
        thread.start()
        thread.join()
        assert db.execute("SELECT count(*) FROM project").get == 1
    assert names(store) == ["a", "b"]


@pytest.mark.parametrize("outer", ["read", "write", "exclusive"])
@pytest.mark.parametrize("inner", ["read", "write", "exclusive"])
def test_blocks_do_not_nest_on_one_thread(store: Store, outer: str, inner: str) -> None:
    with getattr(store, outer)(), pytest.raises(RuntimeError, match="already"), getattr(store, inner)():
        pass
    put(store, "a")
    assert names(store) == ["a"]


def test_the_writers_of_two_handles_do_not_nest_on_one_thread(store: Store, open_store: Open) -> None:
    other = open_store()
    with store.write(), pytest.raises(RuntimeError, match="already"), other.write():
        pass


def test_two_files_can_be_written_at_once(store: Store, open_store: Open, tmp_path: Path) -> None:
    other = open_store(at=tmp_path / "other.db")
    with store.write() as db, other.write() as other_db:
        db.execute(PUT, {"name": "a"})
        other_db.execute(PUT, {"name": "b"})
    assert (names(store), names(other)) == (["a"], ["b"])


@pytest.mark.parametrize("block", ["read", "write"])
def test_a_cursor_cannot_outlive_its_block(store: Store, block: str) -> None:
    put(store, "a", "b", "c")
    cursors: list[Any] = []
    with pytest.raises(RuntimeError, match="outlived"), getattr(store, block)() as db:
        cursors.append(db.execute("SELECT project_id FROM project"))
        next(cursors[0])
    put(store, "d")
    assert names(store) == ["a", "b", "c", "d"]
    assert store.truncate_log()  # no snapshot is held any more


def test_a_statement_cannot_be_left_unfinished(store: Store) -> None:
    put(store, "a", "b")
    cursors: list[Any] = []
    with pytest.raises(RuntimeError, match="fetch its rows"), store.write() as db:
        cursors.append(db.execute("UPDATE project SET project_id = project_id || '!' RETURNING project_id"))
    put(store, "c")
    assert "c" in names(store)


def test_an_unfinished_cursor_does_not_hide_the_blocks_error(store: Store) -> None:
    put(store, "a", "b")
    for block in (store.read, store.write):
        cursors: list[Any] = []
        with pytest.raises(ValueError, match="theirs"), block() as db:
            cursors.append(db.execute("SELECT project_id FROM project"))
            next(cursors[0])
            raise ValueError("theirs")
    put(store, "c")
    assert store.truncate_log()


def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreReadOnly), store.read() as db:
        db.execute(PUT, {"name": "a"})
    assert names(store) == []


def test_vacuum_runs_under_the_lock_without_a_transaction(store: Store) -> None:
    put(store, "a")
    with store.exclusive() as db:
        db.execute("VACUUM")
    assert names(store) == ["a"]


def test_a_transaction_left_open_in_exclusive_is_undone(store: Store) -> None:
    with pytest.raises(RuntimeError, match="left open"), store.exclusive() as db:
        db.execute("BEGIN")
        db.execute(PUT, {"name": "a"})
    assert names(store) == []


def test_threads_write_and_read_together(store: Store) -> None:
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(25):
                put(store, f"{thread}-{number}-a", f"{thread}-{number}-b")
                assert len(names(store)) % 2 == 0  # never half a transaction
        except BaseException as error:  # noqa: BLE001  a thread's error is the test's
            problems.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(names(store)) == 6 * 25 * 2


# ---- settings --------------------------------------------------------------------------------------------------------

COMMON = {"foreign_keys": 1, "temp_store": 2, "page_size": 4096, "journal_mode": "wal", "mmap_size": 0}


def pragmas(db: apsw.Connection, *wanted: str) -> dict[str, Any]:
    return {name: db.execute(f"PRAGMA {name}").get for name in wanted}


def test_the_writers_settings(store: Store) -> None:
    expected = {**COMMON, "synchronous": 2, "secure_delete": 1, "cache_size": -65536, "wal_autocheckpoint": 0}
    with store.exclusive() as db:
        assert pragmas(db, *expected) == expected
        assert db.cache_stats()["size"] > 0


def test_only_one_reader_has_the_large_cache(store: Store) -> None:
    def cache(db: apsw.Connection) -> Any:
        assert pragmas(db, *COMMON) == COMMON
        return pragmas(db, "cache_size")["cache_size"]

    seen: list[int] = []
    both_read, done = threading.Barrier(3), threading.Event()

    def read() -> None:
        with store.read() as db:
            seen.append(cache(db))
            both_read.wait()
            done.wait()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    both_read.wait()
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [-65536, -4096]
    for _ in range(3):
        with store.read() as db:  # the warm one is lent first
            assert cache(db) == -65536


@pytest.mark.parametrize("block", ["read", "write"])
def test_double_quotes_are_names_only(store: Store, block: str) -> None:
    with pytest.raises(StoreError, match="no such column"), getattr(store, block)() as db:
        db.execute('SELECT "no name of a column"')


def test_foreign_keys_are_enforced(store: Store) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY"), store.write() as db:
        db.execute("INSERT INTO project_alias (alias, project_pk) VALUES ('a', 77)")


def test_settings_of_the_process_are_left_alone(path: Path) -> None:
    before = (list(apsw.connection_hooks), apsw.vfs_names())
    Store.open(path, mode="rwc", lock_wait_seconds=30, clock=Clock()).close()
    assert (list(apsw.connection_hooks), apsw.vfs_names()) == before


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_close_is_idempotent_and_final(store: Store) -> None:
    put(store, "a")
    store.close()
    store.close()
    for use in (store.read, store.write, store.exclusive):
        with pytest.raises(ConfigError, match="closed"), use():
            pass
    for call in (store.data_version, store.checkpoint, store.truncate_log):
        with pytest.raises(ConfigError, match="closed"):
            call()


@pytest.mark.parametrize("block", ["read", "write", "exclusive"])
def test_close_is_refused_within_a_block(store: Store, block: str) -> None:
    with getattr(store, block)(), pytest.raises(RuntimeError, match="leave the block"):
        store.close()
    put(store, "a")


def test_close_waits_for_another_threads_transaction(store: Store, open_store: Open) -> None:
    inside, closing = threading.Event(), threading.Event()

    def write() -> None:
        with store.write() as db:
            inside.set()
            closing.wait()
            db.execute(PUT, {"name": "a"})

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    threading.Timer(0.05, closing.set).start()
    store.close()
    thread.join()
    assert names(open_store()) == ["a"]


def test_close_gives_up_at_its_deadline_and_can_be_called_again(open_store: Open) -> None:
    store = open_store(wait=0.02)
    inside, done = threading.Event(), threading.Event()

    def write() -> None:
        with store.write() as db:
            inside.set()
            done.wait()
            db.execute(PUT, {"name": "a"})

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    with pytest.raises(StoreBusy, match="another thread"):
        store.close()
    done.set()
    thread.join()
    store.close()
    assert names(open_store()) == ["a"]


def test_a_reader_that_outlives_its_handle_ends_in_order(store: Store) -> None:
    put(store, "a")
    connections = len(apsw.connections())
    inside, done = threading.Event(), threading.Event()
    found: list[list[str]] = []

    def read() -> None:
        with store.read() as db:
            inside.set()
            done.wait()
            found.append([name for (name,) in db.execute("SELECT project_id FROM project")])

    thread = threading.Thread(target=read)
    thread.start()
    inside.wait()
    store.close()
    done.set()
    thread.join()
    assert found == [["a"]]
    assert len(apsw.connections()) == connections - 1  # the writer's; a reader was lent before any was kept


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system has no /proc/self/fd to count")
def test_nothing_stays_open(path: Path) -> None:
    before = descriptors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = Store.open(path, mode="rwc", lock_wait_seconds=30, clock=Clock())
        second = Store.open(path, mode="rw", lock_wait_seconds=30, clock=Clock())
        third = Store.open(path, mode="ro", lock_wait_seconds=30, clock=Clock())
        put(second, "a")
        for store in (first, second, third):
            assert names(store) == ["a"]
            assert store.data_version() > 0
        assert descriptors() > before
        for store in (second, third, first):
            store.close()
    assert descriptors() == before
    with pytest.raises(NotOurFile):
        Store.open(path.parent, mode="rwc", lock_wait_seconds=30, clock=Clock())
    with pytest.raises(ConfigError):
        Store.open(path.with_name("absent"), mode="rw", lock_wait_seconds=30, clock=Clock())
    assert descriptors() == before


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_an_inherited_handle_refuses_and_harms_nothing(new_actor: Callable[..., Actor], open_store: Open) -> None:
    actor = new_actor()
    owner = actor.ask("open")
    actor.ask("append", "before", 3)
    assert actor.ask("names")  # a reader is inherited, too
    raised = actor.ask("fork")
    assert raised[:-1] == [*["ConfigError"] * 5, "0"]
    assert int(raised[-1]) != owner
    actor.ask("append", "after", 3)
    here = open_store()
    with here.read() as db:
        assert here.owner_alive(db, owner)  # the child's end has not freed the parent's slot
        assert not here.owner_alive(db, int(raised[-1]))
        assert db.execute("PRAGMA integrity_check").get == "ok"
    assert names(here) == ["after0", "after1", "after2", "before0", "before1", "before2", "child"]
    actor.leave()


@pytest.mark.parametrize("block", ["begin", "begin_reading"])
def test_a_block_cannot_be_ended_by_a_child(new_actor: Callable[..., Actor], open_store: Open, block: str) -> None:
    actor = new_actor()
    actor.ask("open")
    actor.ask("append", "a", 1)
    actor.ask(block)
    if block == "begin":
        actor.ask("put", "b")
    assert actor.ask("fork_in_a_block") == "ConfigError"
    actor.ask("commit")
    assert names(open_store()) == (["a0", "b"] if block == "begin" else ["a0"])
    actor.leave()
