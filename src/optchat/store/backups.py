"""
A consistent copy of a file that is in use.

Decides: how it is copied while others write, and that there is a whole copy or none.
Refuses to know: what is in it.

SQLite's online backup begins again whenever another connection has written between two of its steps, for ever beside a
busy writer. It does not where its source is in a read transaction already: then all steps are of that one moment. So
one read transaction is held, and pages are copied under it a few at a time. Writers go on; what they write in the
meantime stays in the log, which is used over again once the copy is done.

The copy is made under another name beside its own, synced, and then given its name, which nobody may have: a crash
leaves no file that looks like a copy and is none.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

import apsw

from optchat.core.errors import BadArgument, StoreError, StoreFull, StoreReadOnly
from optchat.store import sqlite
from optchat.store.connection import Store
from optchat.store.errors import translated
from optchat.store.files import StrPath, resolve

PAGES_A_STEP = 64  # 256 KiB
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def copy_to(store: Store, path: StrPath) -> None:
    """
    Copy the whole file, as of one moment, to a path that does not exist.

    Atomic: at that path there is the whole copy or nothing. It can be read and written by its owner alone.

    Raises:
        BadArgument: something is at the path, or its folder is not there.
        StoreFull, StoreReadOnly: there is no room, or the folder may not be written; nothing is left behind.
    """
    target = resolve(path)
    if os.path.lexists(path):  # a link, too, that leads nowhere
        raise _taken(target)
    _check_free(target)
    part = target.with_name(f"{target.name}.part-{secrets.token_hex(4)}")
    try:
        with store.read() as source, translated(target):
            _copy(source, part, store.path)
        _give_name(part, target)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreFull(f"{target}: the disk is full ({error}); free some space and try again") from error
        if error.errno in _NOT_ALLOWED:
            raise StoreReadOnly(f"{target}: {error}; make the folder writable, or name another") from error
        raise StoreError(f"{target}: {error}; check the disk, or name another folder") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                part.with_name(part.name + suffix).unlink()


def _taken(target: Path) -> BadArgument:
    return BadArgument(f"{target} exists; a backup never replaces anything: name a path that is free")


def _check_free(target: Path) -> None:
    if os.path.lexists(target):
        raise _taken(target)
    if not target.parent.is_dir():
        raise BadArgument(f"the folder of {target} does not exist; make it, or name another path")


def _copy(source: apsw.Connection, part: Path, like: Path) -> None:
    copy = sqlite.connect_copy(part, like)
    try:
        source.execute(
            "SELECT 1 FROM sqlite_schema LIMIT 1"
        ).fetchall()  # from here on the transaction is of one moment
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(PAGES_A_STEP)
    finally:
        sqlite.close(copy)


def _give_name(part: Path, target: Path) -> None:
    """Give the copy its name if that is still free, and sync the folder that knows it."""
    try:
        os.link(part, target)  # unlike a renaming, it replaces nothing
    except FileExistsError:
        _check_free(target)
        raise
    except OSError as error:
        if error.errno in _NO_SPACE or error.errno in _NOT_ALLOWED - {errno.EPERM}:
            raise
        _check_free(target)  # a file system without links: nothing better is to be had
        os.rename(part, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
