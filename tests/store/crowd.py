"""The processes of test_many_at_once.py: each waits for the signal to go, and does its part."""

import json
import time
from pathlib import Path

import optchat

SCOPE = "crowd"


def _wait_for(go: str) -> None:
    path = Path(go)
    while not path.exists():
        time.sleep(0.0002)


def open_together(path: str, key: str, go: str) -> None:
    """Open a file, perhaps the first to do so, and say a turn."""
    _wait_for(go)
    with optchat.open(path, scope=SCOPE, compact="manual") as memory, memory.session(key).turn("hello") as turn:
        turn.assistant(f"I am {key}")


def write_on(path: str, key: str, go: str, seconds: float, out: str) -> None:
    """Seal one record after the other; how many, and how long the longest took, in seconds."""
    sealed, worst = 0, 0.0
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        turn = memory.session(key).turn("go")
        Path(f"{out}.ready").touch()
        _wait_for(go)
        until = time.monotonic() + seconds
        while (before := time.monotonic()) < until:
            turn.assistant(f"{key} says {sealed}")
            worst = max(worst, time.monotonic() - before)
            sealed += 1
        turn.end("completed")
    Path(out).write_text(json.dumps([sealed, worst]), encoding="utf-8")
