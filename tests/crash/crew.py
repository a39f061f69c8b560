"""
The processes of test_beside_the_living.py: each does one thing over and over on a file that all share, until killed.

What was acknowledged to one is written down in a log of the supervisor's, a line at a time: a line is whole or absent,
since it is one write, and it outlives the process.
"""

import itertools
import json
import os
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Literal

import optchat
from optchat.testing import DeterministicSummarizer

SCOPE = "crew"
POLICY = optchat.Policy(workers=2, leaf_window=8, view_high_bytes=16_000, view_low_bytes=8_000)
DOOMED = "quetzalcanary"  # what a deleter's sessions say

Say = Callable[..., None]


def opened(path: str, **options: object) -> optchat.Memory:
    return optchat.open(path, scope=SCOPE, policy=POLICY, summarizer=DeterministicSummarizer(), **options)


def told(role: Callable[..., None]) -> Callable[..., None]:
    """An error ends a process, which its supervisor takes for a failure; what it was is written down."""

    @wraps(role)
    def told(*, log: str, **arguments: str) -> None:
        say = _log(log)
        try:
            role(say=say, **arguments)
        except BaseException as error:
            say(refused="".join(traceback.format_exception(error)))
            raise

    return told


def _log(path: str) -> Say:
    into = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(**fact: object) -> None:
        os.write(into, (json.dumps(fact) + "\n").encode())

    return say


@told
def write(path: str, key: str, say: Say) -> None:
    """Turns of a session, some long enough to need summaries."""
    with opened(path, compact="manual") as memory:
        session = memory.session(key)
        for number in itertools.count():
            request = f"request {os.getpid()}-{number} of {key}"
            with session.turn(request) as turn:
                say(began=turn.id, key=key, request=request)
                answer = f"answer {number} of {key} and the cause of it. " * (30 if number % 3 == 0 else 3)
                refs = turn.assistant(answer)
                say(sealed=turn.id, refs=list(refs), answer=answer)
            say(ended=turn.id, outcome=turn.outcome)


@told
def read(path: str, say: Say) -> None:
    """Every read there is. Nothing of it may fail, whoever dies, but for what has been deleted since."""
    with opened(path, mode="ro") as memory:
        for number in itertools.count():
            try:
                _read_all(memory, "best" if number % 2 else "newest")
            except (optchat.SnapshotInvalid, optchat.UnknownRef):
                continue
            say(read=number)


def _read_all(memory: optchat.Memory, order: Literal["best", "newest"]) -> None:
    with memory.pin() as pinned:
        view = pinned.view()
        assert view.through == pinned.snapshot.through
        for line in view.lines[-2:]:
            pinned.zoom(line.ref)
    memory.search("answer cause", order=order)
    for session in memory.sessions():
        memory.session_by_id(session.id).turns(limit=5)
    memory.status()


@told
def work(path: str, say: Say) -> None:
    """Make summaries, publish, scrub."""
    with opened(path) as memory:
        while True:
            say(pending=memory.settle(timeout_seconds=1).pending)


@told
def delete(path: str, say: Say) -> None:
    """Say something in a session of its own, and have it forgotten: a turn of it first, then all."""
    with opened(path, compact="manual") as memory:
        for number in itertools.count():
            key = f"doomed {os.getpid()}-{number}"
            session = memory.session(key)
            for part in range(3):
                with session.turn(f"{DOOMED} {part} of {key}") as turn:
                    turn.assistant(f"{DOOMED} answers {part}. " * (40 if part == 1 else 2))
            say(said=key)
            session.delete(only=[turn.id])
            say(turn_deleted=turn.id, key=key)
            session.delete()
            say(deleted=key)


@told
def come_and_go(path: str, key: str, say: Say) -> None:
    """Open the file, note something, close it: often as the first one there, or as the last."""
    for number in itertools.count():
        text = f"note {os.getpid()}-{number}"
        with opened(path, compact="manual") as memory:
            say(noted=memory.session(key).note(text), text=text)
        say(closed=number)
