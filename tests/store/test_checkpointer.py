"""The log moves into the database, and commits can be told from none."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from optchat.store.checkpointer import Checkpointer
from optchat.store.connection import Store
from tests.store.handles import PUT, Open, names, put


def test_the_data_version_changes_with_commits_alone(store: Store, open_store: Open) -> None:
    other = open_store()
    seen = [store.data_version()]
    assert store.data_version() == seen[0]
    names(store)
    with pytest.raises(ValueError, match="x"), store.write() as db:
        db.execute(PUT, {"name": "a"})
        raise ValueError("x")
    assert store.data_version() == seen[0]
    for writer in (store, other):
        put(writer, f"{id(writer)}")
        assert store.data_version() not in seen
        seen.append(store.data_version())


def frames_moved(store: Store) -> bool:
    with store.exclusive() as db:
        frames, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return frames == moved


def test_a_checkpoint_moves_the_log_into_the_database(store: Store) -> None:
    put(store, "a")
    assert not frames_moved(store)
    store.checkpoint()
    assert frames_moved(store)


def test_the_background_checkpoint_comes_with_the_commits(store: Store, path: Path) -> None:
    size = path.stat().st_size
    with store.write() as db:
        db.execute(PUT, {"name": "x" * (1200 * 4096)})
    give_up = time.monotonic() + 60
    while path.stat().st_size < size + 1200 * 4096:
        assert time.monotonic() < give_up, "no checkpoint came"
        time.sleep(0.01)
    assert threading.active_count() > 1
    store.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "optchat-checkpoint"]


def test_a_log_that_never_rests_is_moved_under_the_lock(store: Store, path: Path) -> None:
    excluded = []
    writing = store._exclude_writers

    def exclude() -> Any:
        excluded.append(True)
        return writing()

    put(store, "a")
    checkpointer = Checkpointer(path, exclude)
    db = apsw.Connection(str(path))
    frames = iter([(5000, 4900), (5000, 5000)])
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("optchat.store.checkpointer.passive_checkpoint", lambda _: next(frames))
            checkpointer._checkpoint(db)
    finally:
        db.close()
    assert excluded == [True]
    assert list(frames) == []


def test_a_checkpoint_that_fails_is_said_and_tried_again(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Semaphore(0)

    def fail(_: object) -> tuple[int, int]:
        tried.release()
        raise apsw.FullError("full")

    monkeypatch.setattr("optchat.store.checkpointer.passive_checkpoint", fail)
    checkpointer = Checkpointer(path, store._exclude_writers)
    with caplog.at_level(logging.WARNING):
        for frames in (1000, 100_000):
            checkpointer.committed(frames)
            assert tried.acquire(timeout=60)
        checkpointer.stop()
    assert "will be tried again" in caplog.text


def test_the_log_is_emptied_unless_a_reader_needs_it(store: Store, path: Path) -> None:
    put(store, "a")
    log = path.with_name("memory.db-wal")
    ready, done = threading.Event(), threading.Event()

    def read() -> None:
        with store.read() as db:
            db.execute("SELECT count(*) FROM project").get  # noqa: B018  the snapshot begins here
            ready.set()
            done.wait()

    thread = threading.Thread(target=read)
    thread.start()
    ready.wait()
    put(store, "b")
    assert not store.truncate_log()
    done.set()
    thread.join()
    assert store.truncate_log()
    assert log.stat().st_size == 0
    assert names(store) == ["a", "b"]
