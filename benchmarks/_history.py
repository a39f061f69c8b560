"""
Long histories for the benchmarks, made of real text and always the same.

The text is that of the sessions beside the project (../shared/data), else of this project's own files. What is made of
it is imported as any transcript is, and summarised by the summarizer for tests, which is instant: so the file is what a
project of that size would have, and only the making of it is quick.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import optchat
from optchat.core.transcripts import TranscriptTurn
from optchat.engine.history import import_turns
from optchat.testing import DeterministicSummarizer

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
SCOPE = "bench"
RECORDS_A_TURN = 8  # the request, three calls with their results, the answer
TURNS_A_SESSION = 250
TOOLS = ("read_file", "search_code", "run_tests")
START = datetime(2026, 1, 1, tzinfo=UTC)


def real_lines() -> list[str]:
    """Lines of real text, of a sentence's length."""
    sessions = DATA / "coding-sessions.jsonl.gz"
    if sessions.exists():
        with gzip.open(sessions, "rt", encoding="utf-8") as file:
            messages = [json.loads(line) for line in file]
        texts = [part.get("text") or part.get("content") or "" for message in messages for part in message["parts"]]
    else:
        texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py"))]
    return [line.strip() for text in texts for line in text.splitlines() if 20 < len(line.strip()) < 300]


def turns(count: int, session: int, lines: list[str]) -> Iterator[TranscriptTurn]:
    """The turns of one session; its number is its seed."""
    chance = random.Random(session)
    at = START + timedelta(days=session)
    for number in range(count):
        messages = [optchat.HostMessage.user(" ".join(chance.choices(lines, k=2)), at=at)]
        for step, tool in enumerate(TOOLS):
            call = optchat.ToolCallPart(f"c{number}-{step}", tool, json.dumps({"path": chance.choice(lines)[:60]}))
            said = optchat.TextPart("\n".join(chance.choices(lines, k=chance.choice((1, 3, 6)))))
            result = optchat.ToolResultPart(call.call_id, (said,))
            messages.append(optchat.HostMessage.assistant("", [call], at=at))
            messages.append(optchat.HostMessage("tool", (result,), at=at))
        messages.append(optchat.HostMessage.assistant("\n".join(chance.choices(lines, k=3)), at=at))
        at += timedelta(minutes=5)
        yield TranscriptTurn(f"turn-{number}", tuple(messages), has_request=True, outcome="completed")


def session_key(number: int) -> str:
    return f"session-{number}"


@contextmanager
def opened(path: Path) -> Iterator[optchat.Memory]:
    """A memory whose jobs run only when it is told to."""
    with optchat.open(path, scope=SCOPE, compact="manual", summarizer=DeterministicSummarizer()) as memory:
        yield memory


def grow(memory: optchat.Memory, start: int, records: int) -> int:
    """
    Import sessions until so many records are there, each published.

    Args:
        start: the number of the first session.

    Returns:
        The number of the session after the last.
    """
    lines = real_lines()
    number = start
    while records > 0:
        count = min(TURNS_A_SESSION, -(-records // RECORDS_A_TURN))
        session = memory.session(session_key(number))
        import_turns(memory._scope, session._row, tuple(turns(count, number, lines)))
        records -= count * RECORDS_A_TURN
        number += 1
    memory.settle()
    return number
