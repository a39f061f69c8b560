"""
What it costs to forget some turns among very many: the transaction, what is to be summarised again, and who waits.

A scope of 100,000 publications is made, everything summarised. 100 turns, scattered over as many sessions, are
deleted, one session after the other, as their users would. Right after that every session asks for a context at 32,000
tokens; then the calls are counted that a summarizer gets.

    python -m benchmarks.forgetting [--publications 100000] [--deleted 100] [--folder DIRECTORY]

Making the scope takes some minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from datetime import UTC, datetime, timedelta
from math import log2
from pathlib import Path
from time import perf_counter

import optchat
from benchmarks._table import Figure, at_most, p50, show
from optchat.core.grouping import TranscriptTurn
from optchat.engine.history import import_turns
from optchat.testing import DeterministicSummarizer

TURNS = 100  # of a session
SCOPE = "forgetting"
POLICY = optchat.Policy(workers=256)  # this summarizer takes no time: fewer commits make the scope sooner
WINDOW = optchat.Budget(window=32_000, output=1_000)


def grow(memory: optchat.Memory, publications: int) -> list[optchat.Session[optchat.HostMessage]]:
    """Sessions of a hundred turns of one message each, all published and summarised."""
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    sessions: list[optchat.Session[optchat.HostMessage]] = []
    for number in range(publications // TURNS):
        session = memory.session(f"s{number}")
        turns = tuple(
            TranscriptTurn(
                f"t{turn}",
                (
                    optchat.HostMessage.user(
                        f"session {number} speaks of thing {number * TURNS + turn} and of its cause, in some words",
                        at=begun + timedelta(seconds=number * TURNS + turn),
                    ),
                ),
                has_request=True,
                outcome="completed",
            )
            for turn in range(TURNS)
        )
        import_turns(memory._scope, session._row, turns)
        sessions.append(session)
    memory.settle()
    return sessions


def figures(folder: Path | None, publications: int = 100_000, deleted: int = 100) -> list[Figure]:
    summarizer = DeterministicSummarizer()
    with (
        tempfile.TemporaryDirectory(dir=folder) as directory,
        optchat.open(
            Path(directory) / "memory.db", scope=SCOPE, summarizer=summarizer, policy=POLICY, compact="manual"
        ) as memory,
    ):
        sessions = grow(memory, publications)
        return measured(memory, sessions, summarizer, deleted)


def measured(
    memory: optchat.Memory,
    sessions: list[optchat.Session[optchat.HostMessage]],
    summarizer: DeterministicSummarizer,
    deleted: int,
) -> list[Figure]:
    """Delete a turn of each of so many sessions of a scope where everything is summarised."""
    assert memory.status().publications == len(sessions) * TURNS
    asked = len(summarizer.requests)
    before = len(memory.view().text.encode())
    chosen = sessions[:: max(1, len(sessions) // deleted)][:deleted]
    times: list[float] = []
    nodes = 0
    for place, session in enumerate(chosen):
        began = perf_counter()
        receipt = session.delete(only=[f"t{(place * 37) % TURNS}"])
        times.append(perf_counter() - began)
        nodes += receipt.removed["nodes"]
    left = memory.status()
    during = len(summarizer.requests) - asked
    after = len(memory.view().text.encode())
    began = perf_counter()
    for session in sessions:
        session.preview(WINDOW, request="what is known?")
    contexts = (perf_counter() - began) / len(sessions)
    memory.settle()
    again = len(summarizer.requests) - asked - during
    what = f"{len(chosen)} of {left.publications + len(chosen):,} turns deleted"
    most = int(len(chosen) * log2(left.publications + len(chosen)))
    return [
        at_most(f"{what}: the transaction, p50", p50(times) * 1000, 50, " ms"),
        at_most(f"{what}: the transaction, slowest", max(times) * 1000, 1000, " ms"),
        Figure(f"{what}: nodes with another text, tombstones and joins included", f"{nodes:,}"),
        at_most(f"{what}: to be summarised again", left.pending, most, ""),
        at_most(f"{what}: calls of a summarizer then", again, most, ""),
        at_most(f"{what}: calls within the transactions", during, 0, ""),
        at_most(f"{what}: the shared view grows by", after - before, 0, " B"),
        Figure(f"{len(sessions):,} contexts at 32k right after it, mean", f"{contexts * 1000:.1f} ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publications", type=int, default=100_000)
    parser.add_argument("--deleted", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the file is made; on the disk that is to be measured")
    options = parser.parse_args()
    show(figures(options.folder, options.publications, options.deleted))


if __name__ == "__main__":
    main()
