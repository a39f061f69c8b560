"""
Who still reads what a log holds.

Decides: which processes have a read transaction open on a database.
Refuses to know: why it matters.

SQLite keeps a reader's mark as a record lock on the log's index. Asking the file for its locks would mean to open it,
and closing it again would drop this process's own; the kernel's table of locks tells the same without touching it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from optchat.store.files import inode

_LOCKS: Final = Path("/proc/locks")
_MARKS: Final = range(123, 128)  # the bytes of the log's index that readers lock (SQLite's WAL_READ_LOCK)
_LINE: Final = re.compile(r"\d+: POSIX +\S+ +(?:READ|WRITE) +(\d+) +[0-9a-f]+:[0-9a-f]+:(\d+) +(\d+) +(\d+|EOF)")


def reading_processes(database: Path) -> tuple[int, ...]:
    """The ids of the processes that are in a read transaction, as far as the system tells; () where it does not."""
    index = inode(database.with_name(database.name + "-shm"))
    try:
        table = _LOCKS.read_text("ascii", "replace")
    except OSError:
        return ()
    found: set[int] = set()
    for line in table.splitlines():
        match = _LINE.match(line)
        if match is None or index is None or int(match[2]) != index[1]:
            continue
        last = int(match[4]) if match[4] != "EOF" else _MARKS.stop
        if int(match[3]) < _MARKS.stop and last >= _MARKS.start and int(match[1]) > 0:
            found.add(int(match[1]))
    return tuple(sorted(found))


def describe_readers(database: Path) -> str:
    """Who reads, for people."""
    named = [f"{pid} (this one)" if pid == os.getpid() else str(pid) for pid in reading_processes(database)]
    if not named:
        return "a reader is open, or a checkpoint is under way, in some process"
    return f"a reader is open in process {', '.join(named)}"
