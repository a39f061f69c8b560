"""What the tests of a handle do with one: rows of ``project`` stand for whatever is written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from optchat.store.connection import Store
from tests.store.actor import Clock

Open = Callable[..., Store]
PUT = "INSERT INTO project (project_id) VALUES (:name)"


def put(store: Store, *names: str) -> None:
    with store.write() as db:
        for name in names:
            db.execute(PUT, {"name": name})


def names(store: Store) -> list[str]:
    with store.read() as db:
        return [name for (name,) in db.execute("SELECT project_id FROM project ORDER BY project_id")]


def only_the_file(path: Path, *also: str) -> None:
    for name in ("memory.db-wal", "memory.db-shm", "memory.db-lock"):
        if name not in also:
            path.with_name(name).unlink()


def make(folder: Path, *inserted: str) -> Path:
    path = folder / "memory.db"
    store = Store.open(path, mode="rwc", lock_wait_seconds=30, clock=Clock())
    put(store, *inserted)
    store.close()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """
    Every file of a folder with its bytes.

    Read by another process: to close a descriptor of a database here would drop the locks of this process's handles.
    """
    script = (
        "import pathlib, sys\n"
        "for f in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    print(f.name, f.read_bytes().hex() if f.is_file() else 'no file')\n"
    )
    lines = subprocess.run(
        [sys.executable, "-c", script, str(folder)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return {name: value.encode() for name, _, value in (line.rpartition(" ") for line in lines)}
