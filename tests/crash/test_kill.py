"""
Invariant 9 for process death: what was acknowledged before a SIGKILL is there after it, exactly once and whole.

A supervisor's log of acknowledgements is the truth. Two writers at a time are killed, over and over, on the same file.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import optchat

ROUNDS = int(os.environ.get("OPTCHAT_CRASH_ROUNDS", "3"))
WRITER = Path(__file__).with_name("writer.py")


class Acknowledged:
    """What one writer's lines said, over all rounds."""

    def __init__(self) -> None:
        self.requests: dict[str, str] = {}
        self.refs: dict[str, list[str]] = {}
        self.ended: set[str] = set()

    def read(self, line: str) -> None:
        fact = json.loads(line)
        if "ended" in fact:
            self.ended.add(fact["ended"])
        else:
            self.requests[fact["turn"]] = fact["request"]
            self.refs[fact["turn"]] = fact["refs"]


def kill_after(process: "subprocess.Popen[str]", lines: int, log: Acknowledged) -> None:
    """Read so many acknowledgements, kill, and read what was still in the pipe: that had been acknowledged too."""
    with process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if line.endswith("\n"):
                log.read(line)
            if number + 1 == lines:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended by itself"


@pytest.mark.long
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    path, logs = tmp_path / "memory.db", {"a": Acknowledged(), "b": Acknowledged()}
    chance = random.Random(20260109)
    for _ in range(ROUNDS):
        threads = []
        for key, log in logs.items():
            command = [sys.executable, str(WRITER), str(path), key, str(len(log.requests))]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threads.append(threading.Thread(target=kill_after, args=(process, chance.randint(1, 40), log)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        check(path, logs)


def all_turns(session: optchat.Session[optchat.HostMessage]) -> list[optchat.TurnInfo]:
    page = session.turns(limit=50)
    turns = list(page)
    while page.cursor is not None:
        page = session.turns(limit=50, cursor=page.cursor)
        turns.extend(page)
    return turns


def check(path: Path, logs: dict[str, Acknowledged]) -> None:
    with optchat.open(path, scope="crash", mode="rw") as memory:
        report = memory.verify()
        assert report.ok, report.faults
        for key, log in logs.items():
            session = memory.session(key, create=False)
            turns = all_turns(session)
            found = {turn.id: turn for turn in turns}
            assert len(found) == len(turns)
            assert set(log.requests) <= set(found), "an acknowledged turn was lost"
            assert len(turns) <= len(log.requests) + ROUNDS, "a turn that nobody began"
            for turn_id, refs in log.refs.items():
                request = memory.source(found[turn_id].ref).part
                assert isinstance(request, optchat.TextPart)
                assert request.text == log.requests[turn_id]
                assert [memory.source(ref).turn_id for ref in refs] == [turn_id]
            for turn_id in log.ended:
                assert found[turn_id].outcome == "completed"
            with session.turn("goes on") as turn:
                turn.assistant("after the kill")
            log.requests[turn.id] = "goes on"
            log.ended.add(turn.id)
        memory.settle(timeout_seconds=60)
        sessions = [memory.session(key, create=False) for key in logs]
        published = [turn.publication_ref for session in sessions for turn in all_turns(session)]
        assert None not in published, "an ended turn was not published"
        assert len(set(published)) == len(published), "two turns under one publication"
