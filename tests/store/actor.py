"""
Another process, one command at a time.

``Actor`` starts this file as a process that reads a line and answers with a line, so that a test decides the order of
events among processes; no test waits and hopes. A failed command answers with the error's class and message.
"""

import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Clock:
    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


class Failed(Exception):
    """The command raised: ``name`` is the error's class."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class Actor:
    def __init__(self, path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-X", "dev", "-m", "tests.store.actor", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, command: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the actor is gone, with exit code {self.process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(*answer["error"])
        return answer["result"]

    def ask(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        if number == signal.SIGKILL:
            self.process.wait()

    def leave(self) -> None:
        """End in order: the exit code is 0 only if nothing was left open and no warning was raised."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0
        self._close_pipes()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


class _Commands:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Any = None
        self.block: AbstractContextManager[Any] | None = None
        self.db: Any = None

    def open(self, mode: str = "rwc", wait: float = 30.0) -> int:
        from optchat.store.connection import Store

        self.store = Store.open(self.path, mode=mode, lock_wait_seconds=wait, clock=Clock())
        return self.store.owner_pk

    def drop_privileges(self) -> None:
        """From here on a folder's permissions count, even where tests run as root."""
        import optchat.store.connection  # noqa: F401  what is imported later could not be read

        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)

    def begin(self, wait: float | None = None) -> None:
        self.block = self.store.write(wait_seconds=wait)
        self.db = self.block.__enter__()

    def begin_reading(self) -> None:
        self.block = self.store.read()
        self.db = self.block.__enter__()

    def commit(self) -> None:
        assert self.block is not None
        self.block.__exit__(None, None, None)
        self.block = self.db = None

    def put(self, name: str) -> None:
        self.db.execute("INSERT INTO project (project_id) VALUES (:name)", {"name": name})

    def append(self, prefix: str, count: int) -> None:
        for number in range(count):
            self.begin()
            self.put(f"{prefix}{number}")
            self.commit()

    def names(self) -> list[str]:
        with self.store.read() as db:
            return [name for (name,) in db.execute("SELECT project_id FROM project ORDER BY project_id")]

    def alive(self, owner_pk: int) -> bool:
        with self.store.read() as db:
            return self.store.owner_alive(db, owner_pk)

    def set_version(self, version: int) -> None:
        with self.store.exclusive() as db:
            db.pragma("user_version", version)

    def transaction_without_the_lock(self) -> None:
        """As any SQLite program would."""
        import sqlite3

        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("BEGIN IMMEDIATE")

    def end_transaction_without_the_lock(self) -> None:
        self.db.execute("ROLLBACK")
        self.db.close()
        self.db = None

    def have_the_file_alone(self) -> None:
        """As the last process that closes it, while SQLite moves the log."""
        import sqlite3

        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self.db.execute("BEGIN IMMEDIATE")

    def foreign_with_a_log(self) -> None:
        """Another application's database whose rows are still in its log, and stay there if the process is killed."""
        import sqlite3

        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE theirs (a)")

    def probe_for_long(self, slot: int) -> None:
        """As one that asks whether the slot's owner lives, and is stopped before it lets go."""
        lock = self.store._lock
        fcntl.lockf(lock.descriptors[-1], fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 1 + slot)

    def fork(self) -> list[str]:
        """
        What each use of the inherited handle raises in a child, how many of its connections are gone once it is
        dropped, and the child's own owner. The child then ends as any program does.
        """
        import apsw

        from optchat.core.errors import OptchatError

        inward, outward = os.pipe()
        child = os.fork()
        if child:
            os.close(outward)
            with os.fdopen(inward) as pipe:
                answer = pipe.read()
            assert os.waitpid(child, 0)[1] == 0
            return json.loads(answer)
        os.close(inward)
        connections = len(apsw.connections())
        raised = []
        for use in (self.store.read, self.store.write, self.store.exclusive):
            try:
                with use():
                    raised.append("nothing")
            except OptchatError as error:
                raised.append(type(error).__name__)
        for call in (self.store.data_version, self.store.checkpoint):
            try:
                call()
                raised.append("nothing")
            except OptchatError as error:
                raised.append(type(error).__name__)
        self.store.close()
        self.store = use = call = None  # the last references to the inherited handle
        gc.collect()
        raised.append(str(len(apsw.connections()) - connections))
        own = _Commands(self.path)
        raised.append(str(own.open()))
        own.begin()
        own.put("child")
        own.commit()
        own.close()
        with os.fdopen(outward, "w") as pipe:
            json.dump(raised, pipe)
        sys.exit(0)

    def fork_in_a_block(self) -> str:
        """What a child's end of the block raises; the block is this process's own."""
        from optchat.core.errors import OptchatError

        inward, outward = os.pipe()
        child = os.fork()
        if child:
            os.close(outward)
            with os.fdopen(inward) as pipe:
                answer = pipe.read()
            os.waitpid(child, 0)
            return answer
        os.close(inward)
        try:
            self.commit()
            answer = "nothing"
        except OptchatError as error:
            answer = type(error).__name__
        with os.fdopen(outward, "w") as pipe:
            pipe.write(answer)
        os._exit(0)

    def close(self) -> None:
        self.store.close()
        self.store = None


def main() -> None:
    commands = _Commands(Path(sys.argv[1]))
    answers = sys.stdout
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(commands, command)(*arguments)}
        except Exception as error:  # noqa: BLE001  the test judges it
            answer = {"error": [type(error).__name__, str(error)]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if commands.store is not None:
        commands.store.close()


if __name__ == "__main__":
    main()
