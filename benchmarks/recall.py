"""
Does search find what a developer asks for in a later session?

Loads the real sessions beside the project (../shared/data) as published turns, asks each question as it stands, best
first, and prints how much of its evidence the first 1, 5, 10 and 20 hits name (a hit counts where it is a part of the
evidence's message; with two pieces of evidence each counts half), by kind of question, over those that have an answer.

    python benchmarks/recall.py [--misses]

For comparison: FTS5 with porter stemming, OR of all words, and bm25 finds .31 .49 .60 .62 of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from _corpus import Corpus, Session, connect

from optchat.core.refs import parse_ref
from optchat.engine.searching import search

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FIRST = (1, 5, 10, 20)


def spoken(role: str, part: dict[str, Any]) -> tuple[str, str]:
    """A part's kind and the text that the index holds the words of."""
    match part["type"]:
        case "text":
            return role, part["text"]
        case "tool_call":
            return "tool_call", f"{part['name']} {part['arguments']}"
        case "tool_result":
            return "tool_result", f"error: {part['content']}" if part.get("is_error") else part["content"]
        case other:
            raise ValueError(f"{other} parts are not in these sessions; teach this script what they say")


def load(corpus: Corpus) -> dict[tuple[int, int], tuple[str, int]]:
    """Every session, a turn a request; which message each (session, record) is a part of."""
    messages: dict[tuple[int, int], tuple[str, int]] = {}
    sessions: dict[str, Session] = {}
    counts: Counter[str] = Counter()
    turns: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def seal(key: str) -> None:
        if turns[key]:
            corpus.publish(sessions[key], corpus.turn(sessions[key], turns.pop(key)))

    with gzip.open(DATA / "coding-sessions.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            message = json.loads(line)
            if message["role"] == "host_summary":
                continue
            key = message["session"]
            session = sessions.setdefault(key, corpus.session()) if key not in sessions else sessions[key]
            parts = [spoken(message["role"], part) for part in message["parts"]]
            if any(kind == "user" for kind, _ in parts):
                seal(key)
            for part in parts:
                messages[session.row.segment_pk, session.length + len(turns[key])] = (key, counts[key])
                turns[key].append(part)
            counts[key] += 1
    for key in list(turns):
        seal(key)
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument(
        "--misses", action="store_true", help="name the questions whose evidence is not in the first 20"
    )
    misses = parser.parse_args().misses
    if not DATA.is_dir():
        print(f"no data beside the project ({DATA.name}): nothing to measure")
        return
    corpus = Corpus.create(connect())
    with corpus.db:
        messages = load(corpus)
    reading = corpus.pin()
    segments = {session.row.session_id: session.row.segment_pk for session in corpus.sessions}
    found: dict[str, list[list[float]]] = defaultdict(list)
    seconds: list[float] = []
    for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        evidence = {(item["session"], item["message"]) for item in question["evidence"]}
        if not evidence:
            continue
        before = time.perf_counter()
        page = search(reading, corpus.db, question["question"], limit=20)
        seconds.append(time.perf_counter() - before)
        said = [messages[segments[hit.session_id], parse_ref(hit.ref).span.start] for hit in page]
        row = [len(evidence & set(said[:first])) / len(evidence) for first in FIRST]
        found[question["kind"]].append(row)
        found["all"].append(row)
        if misses and row[-1] < 1:
            print(f"{question['id']} {row[-1]:.1f} {question['question']}")
    print(f"{'evidence recall at':20}" + "".join(f"{first:>6}" for first in FIRST) + "   questions")
    for kind, rows in found.items():
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        print(f"{kind:20}" + "".join(f"{mean:6.2f}" for mean in means) + f"{len(rows):12}")
    seconds.sort()
    print(f"{corpus.documents} documents; a question takes {seconds[len(seconds) // 2] * 1e3:.1f} ms (median)")


if __name__ == "__main__":
    main()
