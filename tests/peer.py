"""
Another process that uses the library, one line of Python at a time.

A test decides the order of events among processes; nothing waits and hopes. What a line raises is raised here, as
``Failed``, with the error's class and text.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Failed(Exception):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class Peer:
    """``peer("code")`` runs it there and returns its value, if it is an expression and JSON can say it."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __call__(self, code: str, **values: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([code, values]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the process is gone, with exit code {self.process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(*answer["error"])
        return answer["result"]

    def kill(self) -> None:
        """It dies as by a power cut: nothing of its own runs any more."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    import optchat

    names: dict[str, Any] = {"optchat": optchat}
    for line in sys.stdin:
        code, values = json.loads(line)
        names.update(values)
        try:
            try:
                compiled = compile(code, "<peer>", "eval")
            except SyntaxError:
                exec(code, names)
                result = None
            else:
                result = eval(compiled, names)
            answer = {"result": result if isinstance(result, (str, int, list, type(None))) else repr(result)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test that sent the line is told
            answer = {"error": [type(error).__name__, str(error)]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
