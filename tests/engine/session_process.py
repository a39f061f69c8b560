"""
A process of test_concurrency.py: turns in a session of its own, notes in one that all share, and a worker.

    python session_process.py DATABASE KEY TURNS

It waits for a line before it begins, and for another before it closes; what it did, it says as one line of JSON.
"""

import json
import sys

import optchat
from optchat.testing import DeterministicSummarizer

BUDGET = optchat.Budget(window=100_000, output=1_000)


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(path: str, key: str, turns: int) -> None:
    summarizer = DeterministicSummarizer()
    with optchat.open(path, scope="shared", summarizer=summarizer) as memory:
        session, common = memory.session(key), memory.session("common")
        say("ready")
        sys.stdin.readline()
        made: list[str] = []
        notes: list[str] = []
        for number in range(turns):
            with session.turn(f"request {number} of {key} " + "at length " * (60 * (number % 3))) as turn:
                made.append(turn.id)
                first, again = turn.context(BUDGET), turn.context(BUDGET)
                assert [block.text for block in first.blocks] == [block.text for block in again.blocks]
                call = optchat.ToolCallPart(f"{key}-{number}", "memory_search", '{"query": "request"}')
                turn.assistant("", calls=[call])
                turn.tool_result(call.call_id, turn.call(call.name, call.arguments))
                turn.assistant(f"answer {number} of {key}")
            notes.append(common.note(f"note {number} of {key} " + "in full " * 80))
        memory.settle()
        say({"turns": made, "notes": notes})
        sys.stdin.readline()
        memory.settle()
        asked = len(summarizer.requests)
    say({"asked": asked})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
