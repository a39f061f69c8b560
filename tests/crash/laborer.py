"""
The process that test_workers.py kills: a worker of one call at a time, on a database that several work.

Each call of its summarizer is written down in a file of the supervisor's before it is answered: what the ledger of the
database must then know of.
"""

import os
import time
from pathlib import Path

import optchat
from optchat.testing import DeterministicSummarizer

SCOPE = "crash"
POLICY = optchat.Policy(workers=1, leaf_window=8)


class Logged:
    """Answers after a while, and says first that it was asked: a line is whole or absent, since it is one write."""

    def __init__(self, log: str, seconds: float) -> None:
        self.inner = DeterministicSummarizer()
        self.name, self.window_tokens = self.inner.name, self.inner.window_tokens
        self.seconds = seconds
        self.into = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def summarize(self, request: optchat.SummaryRequest, /) -> optchat.SummaryReply:
        os.write(self.into, f"{os.getpid()} {request.purpose} {request.attempt}\n".encode())
        time.sleep(self.seconds)
        return self.inner.summarize(request)


def work(path: str, log: str, seconds: float) -> None:
    """Work until killed."""
    with optchat.open(path, scope=SCOPE, policy=POLICY, summarizer=Logged(log, seconds)):
        while True:
            time.sleep(60)


def fill(path: str, sessions: int, turns: int) -> None:
    """Turns whose answers need summaries, in several sessions."""
    with optchat.open(path, scope=SCOPE, policy=POLICY, compact="manual") as memory:
        for key in range(sessions):
            for number in range(turns):
                with memory.session(f"session-{key}").turn(f"request {number} of {key}") as turn:
                    turn.assistant(f"answer {number} of {key} and the cause of it. " * 30)


def seal(path: str, key: str, log: str) -> None:
    """Say turns until killed; each is written down once it has ended."""
    into = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    number = 0
    with optchat.open(path, scope=SCOPE, policy=POLICY, compact="manual") as memory:
        session = memory.session(key)
        while not Path(f"{log}.stop").exists():
            with session.turn(f"request {number} of {key}") as turn:
                turn.assistant(f"answer {number} of {key} and the cause of it. " * 30)
            os.write(into, f"{turn.id}\n".encode())
            number += 1
            time.sleep(0.02)
