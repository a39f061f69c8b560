"""
What a driver's error means.

Decides: which error of ours stands for which error of SQLite's, and what the message tells people to do.
Refuses to know: who called. An error of ours, or any other Python exception, passes through as it is.

Invariant: the driver's error is always the cause, so nothing is lost to a bug report.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import apsw

from optchat.core.errors import (
    IntegrityError,
    NotOurFile,
    OptchatError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
)

_Meaning: TypeAlias = tuple[type[apsw.Error], type[OptchatError], str]

# The first match counts. What is not listed is a statement that SQLite refused: our defect, not the caller's.
_MEANINGS: tuple[_Meaning, ...] = (
    (apsw.BusyError, StoreBusy, "another connection holds it; try again, or raise Policy.lock_wait_seconds"),
    (apsw.ProtocolError, StoreBusy, "too many processes opened it at once; try again"),
    (apsw.ReadOnlyError, StoreReadOnly, "make the file and its folder writable, or open with mode='ro'"),
    (apsw.PermissionsError, StoreReadOnly, "make the file and its folder writable, or open with mode='ro'"),
    (apsw.FullError, StoreFull, "free some space and try again; what was acknowledged before is safe"),
    (apsw.CorruptError, IntegrityError, "run `optchat verify`, and restore a backup if it cannot repair the file"),
    (apsw.FormatError, IntegrityError, "run `optchat verify`, and restore a backup if it cannot repair the file"),
    (apsw.NotADBError, NotOurFile, "it is no SQLite database; name another path"),
    (apsw.CantOpenError, StoreError, "check that the file and its folder exist and may be read"),
    (apsw.IOError, StoreError, "check the disk and the system's log; what was acknowledged before is safe"),
    (apsw.NoMemError, StoreError, "free some memory and try again; nothing of this transaction was stored"),
    (apsw.InterruptError, StoreError, "it was interrupted; try again"),
)
_DEFECT = "nothing of this transaction was stored; please report this message as a defect of optchat"
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def translate(error: apsw.Error, path: Path | None = None) -> OptchatError:
    """
    Return the error of ours that stands for a driver's error.

    Args:
        error: what APSW raised.
        path: the database, to be named in the message.
    """
    where = f"{path}: " if path is not None else ""
    if getattr(error, "system_errno", 0) in _NO_SPACE:
        return StoreFull(f"{where}the disk is full (SQLite: {error}); free some space and try again")
    for driver, ours, advice in _MEANINGS:
        if isinstance(error, driver):
            return ours(f"{where}SQLite says: {error}; {advice}")
    return StoreError(f"{where}SQLite refused a statement ({type(error).__name__}: {error}); {_DEFECT}")


@contextmanager
def translated(path: Path | None = None) -> Generator[None, None, None]:
    """
    Raise a driver's error from the block as one of ours, with the driver's error as its cause.

    Args:
        path: the database, to be named in the message.
    """
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path) from error
