"""What the processes do that open one old file at once."""

import time
from pathlib import Path

import optchat


def open_old(path: str, go: str, number: int) -> None:
    """Wait for the sign, open, read, write, close."""
    while not Path(go).exists():
        time.sleep(0.001)
    with optchat.open(path, scope="old", mode="rw", compact="manual") as memory:
        assert memory.view().lines
        memory.session(f"crowd-{number}").turn(f"{number} of many").end("completed")
