"""
A process that has the library imported and nothing open, and forks children to order: a killed process costs a test
milliseconds, and not the half second of an interpreter that starts.

A child runs one function of the tests, named ``module:function``, with JSON for arguments. It ends with the function,
or when it is killed, or when the nursery is gone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

ROOT = Path(__file__).parents[1]


@frozen
class Ended:
    """A child's end: how, as ``Popen.returncode`` says it, and what its function returned, if it came to that."""

    code: int
    result: Any = None


class Nursery:
    """The order of events is the test's: ``run`` waits for the child's end, ``spawn`` does not."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(self, target: str, **arguments: Any) -> Ended:
        code, result, error = self._ask("run", target, arguments)
        assert not error, error
        return Ended(code, result)

    def spawn(self, target: str, **arguments: Any) -> int:
        """The child's process id."""
        return int(self._ask("spawn", target, arguments))

    def kill(self, pid: int) -> Ended:
        """End a child as a power cut would, and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        return self.reap(pid)

    def reap(self, pid: int) -> Ended:
        """Wait for a child's end."""
        return Ended(int(self._ask("reap", "", {"pid": pid})))

    def _ask(self, what: str, target: str, arguments: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, target, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the nursery is gone, with exit code {self.process.wait()}"
        return json.loads(line)

    def end(self) -> None:
        """End the nursery; its children end, too."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


# ---- in the nursery --------------------------------------------------------------------------------------------------


def main() -> None:
    import_module("optchat.testing")  # once, for all children
    children: set[int] = set()
    for line in sys.stdin:
        what, target, arguments = json.loads(line)
        answer: Any
        if what == "reap":
            children.discard(arguments["pid"])
            answer = _code(arguments["pid"])
        else:
            out, into = os.pipe()
            module, _, name = target.partition(":")
            function = getattr(import_module(module), name)  # here, so that the next child has it, too
            pid = os.fork()
            if pid == 0:
                os.close(out)
                _child(function, arguments, into)
            os.close(into)
            if what == "spawn":
                children.add(pid)
                os.close(out)
                answer = pid
            else:
                with os.fdopen(out, "rb") as told:
                    said = told.read()
                answer = [_code(pid), *(json.loads(said) if said else (None, None))]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _child(function: Any, arguments: dict[str, Any], into: int) -> NoReturn:
    nursery = os.getppid()
    threading.Thread(target=_watch, args=(nursery,), daemon=True).start()
    result, error = None, None
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # orders are the nursery's
        result = function(**arguments)
    except BaseException as failure:  # noqa: BLE001 - whatever it is, the test is told
        import traceback

        error = "".join(traceback.format_exception(failure))
    try:
        os.write(into, json.dumps([result, error]).encode())
    finally:
        os._exit(1 if error else 0)


def _watch(nursery: int) -> None:
    while os.getppid() == nursery:
        time.sleep(0.2)
    os._exit(2)


if __name__ == "__main__":
    main()
