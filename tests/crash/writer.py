"""
The process that test_kill.py kills: one turn after the other, each acknowledged on standard output once it is sealed.

    python writer.py DATABASE SESSION FIRST
"""

import itertools
import json
import sys

import optchat


def say(**fact: object) -> None:
    """Acknowledge; a line is whole or absent, since it is one write."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main(path: str, key: str, first: int) -> None:
    """Write turns until killed; a line says what the library had acknowledged when it was printed."""
    with optchat.open(path, scope="crash") as memory:
        session = memory.session(key)
        for number in itertools.count(first):
            text = f"request {number} of {key}: " + "x" * (number * 97 % 2000)
            turn = session.turn(text)
            refs = list(turn.assistant(f"answer {number}"))
            say(turn=turn.id, refs=refs, request=text)
            turn.end("completed")
            say(ended=turn.id)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
