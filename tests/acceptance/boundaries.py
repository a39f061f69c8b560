"""
The child process of test_crash_boundaries_jobs.py: one use case of the queue, on a disk that it dies at.

A virtual file system counts what SQLite writes and syncs; at the number it was told, the process is killed, before
that write is done. Time stands still, so that the same use case writes the same each time.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from attrs import define

import optchat
from optchat.core.trouble import Trouble
from optchat.engine import calls, remaking, work
from optchat.engine.indexing import index_step
from optchat.store import connection
from tests.engine.helpers import say, words
from tests.engine.working import begin, begun, claim, ended, lease, open_wandering, summary

POLICY = optchat.Policy(leaf_window=3, job_attempts=2)
# What a crash must leave whole. Owners are the processes themselves, and words have tables of their own.
TABLES = [
    "scope",
    "moment",
    "session",
    "segment",
    "generation",
    "turn",
    "record",
    "event",
    "tree",
    "recipe",
    "node",
    "node_history",
    "node_foreign",
    "view",
    "publication",
    "job",
    "pause",
    "waiter",
    "document",
    "call",
]


def opened(path: str) -> optchat.Memory:
    return open_wandering(Path(path), policy=POLICY)


def state_of(path: str) -> str:
    """All rows of the file, as SQLite finds them after a crash."""
    db = apsw.Connection(path)
    try:
        return repr({table: list(db.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in TABLES})
    finally:
        db.close()


# ---- use cases -------------------------------------------------------------------------------------------------------


def fill(memory: optchat.Memory) -> None:
    """Before every case: turns that need leaves, merges and publications, and a text that needs pages and an index."""
    for number in range(4):
        with memory.session("ab"[number % 2]).turn(f"request {number}") as turn:
            turn.assistant(words(number, 3_000))
            turn.assistant(words(number, 400))
    say(memory.session("large"), "heliotrope " + "large text " * 7_000)


def _claims(memory: optchat.Memory) -> Callable[[], object]:
    return lambda: claim(memory, 3)


def _begins_a_call(memory: optchat.Memory) -> Callable[[], object]:
    first, second = claim(memory, 2)
    call = begun(memory, first)
    return lambda: begin(memory, second, finished=(ended(call, "rejected", 10, 5),))


def _commits(memory: optchat.Memory) -> Callable[[], object]:
    """Leaves that publish turns, make merges ready, and move views."""
    tasks = claim(memory, 3)
    finished = [ended(begun(memory, task), "accepted", 10, 5) for task in tasks]
    results = [summary(task) for task in tasks]
    return lambda: work.commit(memory._scope, results, finished)


def _commits_what_is_above(memory: optchat.Memory) -> Callable[[], object]:
    for _ in range(2):
        work.commit(memory._scope, [summary(task) for task in claim(memory, 8)])
    tasks = claim(memory, 8)
    assert {task.job.kind for task in tasks} >= {"merge"}, "what leaves were made of"
    finished = [ended(begun(memory, task), "accepted", 10, 5) for task in tasks]
    results = [summary(task) for task in tasks]
    return lambda: work.commit(memory._scope, results, finished)


def _fails(memory: optchat.Memory) -> Callable[[], object]:
    (task,) = claim(memory)
    call = begun(memory, task)
    return lambda: work.fail(memory._scope, task, "RuntimeError", 5.0, [ended(call, "failed")])


def _is_given_up(memory: optchat.Memory) -> Callable[[], object]:
    (task,) = claim(memory)
    call = begun(memory, task)

    def give_up() -> None:
        assert work.fail(memory._scope, task, "RuntimeError", None, [ended(call, "failed")])
        assert work.commit(memory._scope, [work.stand_in(memory._scope, task)]) == 1

    return give_up


def _meets_trouble(memory: optchat.Memory) -> Callable[[], object]:
    (task,) = claim(memory)
    call = begun(memory, task)
    trouble = Trouble("rate", "RateLimitError", 30.0)
    return lambda: calls.met_trouble(memory._scope, task.job, trouble, [ended(call, "trouble")], 0.5)


def _gives_back(memory: optchat.Memory) -> Callable[[], object]:
    tasks = claim(memory, 3)
    call = begun(memory, tasks[0])
    leases = {task.job.job_pk: task.job.fence for task in tasks}
    return lambda: work.give_back(memory._scope, leases, [ended(call, "cancelled")], wait_seconds=5)


def _cuts_a_text_into_pages(memory: optchat.Memory) -> Callable[[], object]:
    for _ in range(2):
        claim(memory, 3)
    return lambda: lease(memory, 8)


def _indexes(memory: optchat.Memory) -> Callable[[], object]:
    indexing = [job for _ in range(4) for job in lease(memory, 8).indexing]
    return lambda: [index_step(memory._scope, job) for job in indexing]


def _ends_leases(memory: optchat.Memory) -> Callable[[], object]:
    claim(memory, 3)
    with memory._scope.store.write() as db:
        db.execute("UPDATE job SET lease_until = 0 WHERE state = 2")
    return lambda: work.end_dead_leases(memory._scope)


def _takes_over(memory: optchat.Memory) -> Callable[[], object]:
    work.commit(memory._scope, [summary(task) for task in claim(memory, 3)])
    return lambda: remaking.take_over(memory._scope, "another-1")


CASES: dict[str, Callable[[optchat.Memory], Callable[[], object]]] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and callable(function) and getattr(function, "__module__", "") == __name__
}


# ---- the disk --------------------------------------------------------------------------------------------------------


@define
class Disk:
    """Counts from ``begin`` on; at ``dies_at`` the process is killed, before the write is done."""

    dies_at: int | None
    count: int = 0
    counting: bool = False

    def touched(self) -> None:
        if self.counting:
            self.count += 1
            if self.count == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def counted(dies_at: int | None) -> Iterator[Disk]:
    disk = Disk(dies_at)

    class File(apsw.VFSFile):
        def __init__(self, name: Any, flags: Any) -> None:
            super().__init__("unix", name, flags)

        def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - APSW's name
            disk.touched()
            super().xWrite(data, offset)

        def xSync(self, flags: int) -> None:  # noqa: N802
            disk.touched()
            super().xSync(flags)

    class Vfs(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("counting", "unix", makedefault=True)

        def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802
            return File(name, flags)

    vfs = Vfs()
    try:
        yield disk
    finally:
        vfs.unregister()


# ---- what the nursery is told to run ---------------------------------------------------------------------------------


def prepare(path: str) -> None:
    """The file as each case finds it, and closed."""
    with opened(path) as memory:
        fill(memory)


def rehearse(path: str, case: str) -> list[Any]:
    """The case, undisturbed: how often it writes, and the state before it and after each of its transactions."""
    with counted(None) as disk:
        memory = opened(path)
        act = CASES[case](memory)
        states = [state_of(path)]
        real = connection._commit

        def commit(db: apsw.Connection) -> None:
            real(db)
            disk.counting = False
            states.append(state_of(path))
            disk.counting = True

        connection._commit = commit
        disk.counting = True
        act()
        disk.counting = False
    return [disk.count, states]


def crash(path: str, case: str, dies_at: int) -> None:
    """The case, on a disk that it dies at."""
    with counted(dies_at) as disk:
        act = CASES[case](opened(path))
        disk.counting = True
        act()
        os.kill(os.getpid(), signal.SIGKILL)  # after the last write, and before anything is closed
