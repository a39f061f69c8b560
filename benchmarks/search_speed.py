"""
How long does a search take among many records, under a pin?

Fills one database with records made of real text (the sessions beside the project, else this project's own files), as
published turns of many sessions; pins at nine tenths of them, and searches rare, common and two-word queries in both
orders, as a new session sees it, and once as the owner. Prints milliseconds at the 50th and 95th percentile.

    python -m benchmarks.search_speed [--records 200000]
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks._corpus import Corpus, connect
from optchat.core.searching import STOP_WORDS
from optchat.core.words import words_of
from optchat.engine.searching import search
from optchat.engine.sights import Reading

ROOT = Path(__file__).resolve().parents[1]
SESSIONS = ROOT.parent / "shared" / "data" / "coding-sessions.jsonl.gz"
RECORDS_A_TURN = 8
TURNS_A_SESSION = 40
REPEATS = 15
KINDS = ("user", "tool_call", "tool_result", "assistant")


def real_lines() -> list[str]:
    """Lines of real text, of a sentence's length."""
    if SESSIONS.exists():
        with gzip.open(SESSIONS, "rt", encoding="utf-8") as file:
            messages = [json.loads(line) for line in file]
        texts = [part.get("text") or part.get("content") or "" for message in messages for part in message["parts"]]
    else:
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    return [line.strip() for text in texts for line in text.splitlines() if 20 < len(line.strip()) < 300]


def texts(lines: list[str], count: int, chance: random.Random) -> Iterator[str]:
    """Records of about 300 bytes, and now and then a rare word that no line has."""
    for number in range(count):
        said = chance.choices(lines, k=chance.choice((1, 2, 3, 6)))
        if number % 5000 == 0:
            said.append(f"marker{number // 5000 % 20}x")
        yield "\n".join(said)


def measure(name: str, reading: Reading, corpus: Corpus, queries: list[str], order: str) -> None:
    found: list[float] = []
    hits = 0
    for query in queries:
        for _ in range(REPEATS):
            before = time.perf_counter()
            page = search(reading, corpus.db, query, order=order)  # type: ignore[arg-type]  # one of the two
            found.append((time.perf_counter() - before) * 1e3)
        hits += len(page)
    found.sort()
    p50, p95 = statistics.median(found), found[int(len(found) * 0.95)]
    print(f"{name:34}{order:8}{p50:9.2f}{p95:9.2f}{hits / len(queries):8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--records", type=int, default=200_000)
    count = parser.parse_args().records
    chance = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Corpus.create(connect(str(Path(folder) / "search.db")))
        before = time.perf_counter()
        frequencies: Counter[str] = Counter()
        session = corpus.session()
        pin: Reading | None = None
        corpus.db.execute("BEGIN")
        turn: list[tuple[str, str]] = []
        for number, text in enumerate(texts(real_lines(), count, chance)):
            frequencies.update(set(words_of(text).split()))
            turn.append((KINDS[number % 4], f"Read {text}" if number % 4 == 1 else text))
            if len(turn) == RECORDS_A_TURN:
                corpus.publish(session, corpus.turn(session, turn))
                turn = []
                if session.turns == TURNS_A_SESSION:
                    session = corpus.session()
                    corpus.db.execute("COMMIT")
                    corpus.db.execute("BEGIN")
            if number == count * 9 // 10:
                pin = corpus.pin()
        owner = corpus.as_owner()
        corpus.db.execute("COMMIT")
        assert pin is not None
        print(
            f"{corpus.documents} records in {time.perf_counter() - before:.0f} s; ms a search, p50 and p95, hits a page"
        )
        ranked = [(word, n) for word, n in frequencies.most_common() if len(word) > 3 and word not in STOP_WORDS]
        common = [word for word, _ in ranked[:5]]
        middle = [word for word, n in ranked if count // 400 > n > count // 800][:5]
        rare = [f"marker{number}x" for number in range(5)]
        pairs = [f"{one} {other}" for one, other in pairwise(common)]
        mixed = [f"{one} {other}" for one, other in zip(common, middle, strict=True)]
        question = ["where does the " + " ".join(chance.sample(common + middle, 6)) + " come from?" for _ in range(5)]
        print("common:", ", ".join(f"{word} in {frequencies[word] / count:.0%}" for word in common))
        for name, queries in (
            ("rare", rare),
            ("common", common),
            ("two words, both common", pairs),
            ("two words, one common", mixed),
            ("a question of six words", question),
            ("a word that is nowhere", ["nowherexyz"]),
        ):
            for order in ("newest", "best"):
                measure(f"{name}, pinned", pin, corpus, queries, order)
        for order in ("newest", "best"):
            measure("common, owner", owner, corpus, common, order)


if __name__ == "__main__":
    main()
