"""
Moves the write-ahead log into the database in the background.

Decides: when a checkpoint runs, and when it must hold the writer lock for a moment.
Refuses to know: what was written.

Inside a commit a checkpoint costs a writer up to 43 ms (measured), so commits only report how long the log is. The
log is used from its start again only once all of it is in the database and nobody reads it. Under a writer that never
pauses a passive checkpoint always leaves a few frames that were added meanwhile; past ``_FULL_FRAMES`` the rest, which
is short by then, is done under the writer lock. A pinned reader can hold up either: then the next attempt waits until
the log has grown by another step, so that a stuck reader does not cost a checkpoint a commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from optchat.core.errors import OptchatError
from optchat.store import sqlite
from optchat.store.migrate import WAL_PAGES

_FULL_FRAMES = 4 * WAL_PAGES
_STEP_FRAMES = WAL_PAGES

_log = logging.getLogger(__name__)


class Checkpointer:
    """One daemon thread with its own connection; it starts with the first checkpoint that is due."""

    def __init__(self, path: Path, exclude_writers: Callable[[], AbstractContextManager[object]]) -> None:
        self._path = path
        self._exclude_writers = exclude_writers
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._due_frames = WAL_PAGES

    def committed(self, log_frames: int) -> None:
        """Take note of the log's length after a commit; returns at once."""
        if log_frames < WAL_PAGES:
            self._due_frames = WAL_PAGES  # the log was begun anew
        elif log_frames >= self._due_frames and not self._wake.is_set():
            self._start()

    def stop(self) -> None:
        """Let a running checkpoint end, and the thread with it. Idempotent."""
        with self._guard:
            self._stopped = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        with self._guard:
            if self._stopped:
                return
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="optchat-checkpoint", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        db: apsw.Connection | None = None
        try:
            while True:
                self._wake.wait()
                self._wake.clear()
                if self._stopped:
                    return
                try:
                    if db is None:
                        db = sqlite.connect_checkpointer(self._path)
                    self._checkpoint(db)
                except (apsw.Error, OptchatError) as error:
                    # Nothing is lost: the log holds every commit, and a later one tries again.
                    self._due_frames += _STEP_FRAMES
                    _log.warning("a checkpoint failed and will be tried again: %s", error)
        finally:
            if db is not None:
                sqlite.close(db)

    def _checkpoint(self, db: apsw.Connection) -> None:
        frames, moved = passive_checkpoint(db)
        if frames >= _FULL_FRAMES and 0 <= moved < frames:
            with self._exclude_writers():
                frames, moved = passive_checkpoint(db)
        self._due_frames = WAL_PAGES if moved == frames else frames + _STEP_FRAMES


def passive_checkpoint(db: apsw.Connection) -> tuple[int, int]:
    """
    Move what no reader needs any more from the log into the database; wait for nobody.

    Returns:
        The frames in the log and those moved; (0, -1) when another process is at it just now.
    """
    try:
        frames, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    except apsw.BusyError:
        return 0, -1
    return frames, moved
