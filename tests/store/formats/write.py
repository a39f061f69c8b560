"""
Writes a file of an older format, by the library that had it: run by that library, never by this one.

    git worktree add ../old COMMIT          # version 1: e54490c, version 2: 9ae2f92
    PYTHONPATH=../old/src python tests/store/formats/write.py tests/store/formats/1.db.xz

It holds turns with calls, results, an image, a large text and a failure; stand-ins; jobs that wait; a turn that is
suspended, and one whose process died over it. What that library answered stands beside it, as JSON.
"""

import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

import optchat
from optchat.testing import DeterministicSummarizer

PICTURE = bytes(range(256)) * 5
LONE = "half of a pair \ud83d, kept as it was"


def text(number: int, size: int) -> str:
    return (f"turn {number} decides about thing{number}: the broker persists {number}. " * (size // 40 + 1))[:size]


def turns() -> Iterator[tuple[str, list[optchat.HostMessage], str]]:
    """(session, messages, outcome): what was said, in order."""
    say, answer = optchat.HostMessage.user, optchat.HostMessage.assistant
    for number in range(6):
        call = optchat.ToolCallPart(f"c{number}", "build", f'{{"number": {number}}}')
        messages = [
            say(text(number, 300 + 500 * (number % 3))),
            answer("", [call]),
            optchat.HostMessage.result(f"c{number}", f"built {number}\n" + "log line\n" * (number * 20)),
            answer(f"answer {number}"),
        ]
        yield "first", messages, "completed"
    yield (
        "second",
        [say([optchat.TextPart("look at this"), optchat.BlobPart("image/png", PICTURE)]), answer(LONE)],
        "completed",
    )
    yield "second", [say(" ".join(f"large {number} {'long' * 15}" for number in range(1_100)))], "failed"
    yield "second", [say(text(20, 700)), answer(text(21, 900))], "interrupted"


WORDS_THAT_FAIL = ["thing1", "thing20"]
PENDING = [("first", text(30, 1_500)), ("first", text(31, 900)), ("second", text(32, 800))]


def fail(request: Any) -> BaseException | None:
    """What cannot be summarised, and is stood in for."""
    failing = WORDS_THAT_FAIL and any(word in source.text for source in request.sources for word in WORDS_THAT_FAIL)
    return ValueError("no") if failing else None


def open_file(path: Path, **options: Any) -> optchat.Memory:
    policy = optchat.Policy(view_high_bytes=4_000, view_low_bytes=2_000, job_attempts=1)
    return optchat.open(path, scope="old", policy=policy, compact="manual", **options)


def fill(path: Path) -> None:
    """Fill a file, and die over it."""
    memory = open_file(path, summarizer=DeterministicSummarizer(fail=fail))
    for key, messages, outcome in turns():
        turn = memory.session(key).turn(messages[0])
        if len(messages) > 1:
            turn.add(*messages[1:])
        turn.end(outcome)
    memory.settle()
    if hasattr(memory, "repair"):  # version 2: nodes have revisions
        WORDS_THAT_FAIL.remove("thing1")
        first = next(session.id for session in memory.sessions() if session.key == "first")
        assert memory.repair(f"session:{first}:0:4+1") > 1
    for key, said in PENDING:
        memory.session(key).turn(said).end("completed")
    memory.session("first").turn("and now?", turn_id="suspended").suspend()
    memory.session("second").turn("what was it?", turn_id="open").assistant("wait")
    os._exit(0)


def answers(memory: optchat.Memory) -> dict[str, Any]:
    """Every line of every view, and what each opens into."""
    found: dict[str, Any] = {"views": {}, "lines": {}}
    names = {session.id: session.key for session in memory.sessions()}
    for session in [None, *names]:
        view = memory.view(session)
        found["views"][names.get(session or "", "")] = [line.ref for line in view.lines]
        waiting = [line.ref for line in view.lines]
        found["lines"] |= {line.ref: line.text for line in view.lines}
        while waiting:
            zoomed = memory.zoom(waiting.pop())
            if zoomed.kind != "record":
                found["lines"] |= {line.ref: line.text for line in zoomed.lines}
                waiting += [line.ref for line in zoomed.lines]
    found["ids"] = {key: name for name, key in names.items()}
    found["hits"] = {
        query: sorted(hit.ref for hit in memory.search(query, order="newest", limit=50))
        for query in ("broker persists", "large long", "built")
    }
    return found


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        subprocess.run([sys.executable, __file__, "--fill", str(path)], check=True)
        db = apsw.Connection(str(path))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        version = db.execute("PRAGMA user_version").get
        db.close()
        assert str(version) == target.name.partition(".")[0], f"this library writes format {version}"
        target.write_bytes(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
        with open_file(path, mode="ro") as memory:
            said = json.dumps(answers(memory), indent=0, sort_keys=True)
        target.with_name(f"{version}.json.xz").write_bytes(lzma.compress(said.encode("utf-8", "surrogatepass")))


if __name__ == "__main__":
    if sys.argv[1] == "--fill":
        fill(Path(sys.argv[2]))
    main(Path(sys.argv[1]))
