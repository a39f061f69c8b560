"""
Canaries: words that are said once, and a look at everything that any reader may be shown.

What was removed must be in none of it (invariant 12, first stage), so that the look leaves out no way to read: it opens
every line that a view, a search or a listing names, down to the sources.
"""

import json
import re
from collections.abc import Iterable

import optchat
from optchat.core.summarizing import SummaryRequest
from optchat.testing import DeterministicSummarizer
from tests.engine.helpers import BUDGET

Turn = optchat.Turn[optchat.HostMessage]
CANARY = re.compile(r"canary\w+")


class Parrot(DeterministicSummarizer):
    """
    Says every canary again that it was shown, whether of its sources or of other conversations: the worst of models.
    """

    def summarize(self, request: SummaryRequest, /) -> optchat.SummaryReply:
        self.requests.append(request)
        shown = [source.text for source in request.sources]
        shown += [line for message in request.messages for line in message.text.splitlines() if line.startswith("pub:")]
        said = " ".join(dict.fromkeys(CANARY.findall("\n".join(shown)))) or "nothing"
        marks = "".join(
            f"{mark} " for mark in sorted(set(re.findall(r"failed:|interrupted:|error:", "\n".join(shown))))
        )
        label = re.search(r"\[[^\]]*(?:failed|interrupted)[^\]]*\]", "\n".join(shown))
        text = f"{marks}{label[0] + ' ' if label else ''}tells of {said}"
        return optchat.SummaryReply(text.encode()[: request.limit_bytes].decode("utf-8", "ignore"))


def canaries(text: str) -> set[str]:
    return set(CANARY.findall(text))


def seen_by(reader: optchat.Reader, words: Iterable[str] = ("tells", "note", "says")) -> str:
    """All that a reader is shown, whichever way it looks, as one text."""
    found: list[str] = []
    refs: list[str] = []

    def look(what: object) -> None:
        found.append(repr(what))

    views = [reader.view(), reader.view(max_tokens=200)]
    sessions = [*reader.sessions(), *reader.sessions(archived=True)]
    look(sessions)
    views += [reader.view(info.id) for info in sessions]
    for view in views:
        found.append(view.text)
        refs += [line.ref for line in view.lines]
    for word in (*words, *{canary for text in found for canary in canaries(text)}):
        for order in ("newest", "best"):
            page = reader.search(word, order=order, limit=50)  # type: ignore[arg-type]
            look(page)
            refs += [hit.ref for hit in page.items]
    done: set[str] = set()
    while refs:
        ref = refs.pop()
        if ref in done:
            continue
        done.add(ref)
        try:
            opened = reader.zoom(ref)
        except optchat.UnknownRef:
            continue  # a tombstone's own ref
        look(opened)
        look(reader.date(ref))
        if opened.kind == "record":
            look(reader.source(ref))
        refs += [line.ref for line in opened.lines]
        if opened.paired_ref is not None:
            refs.append(opened.paired_ref)
    return "\n".join(found)


def seen_in(turn: Turn) -> str:
    """All that a turn's model is shown: its context, and what the memory tools answer."""
    context = turn.context(BUDGET, readiness="partial")
    tools = [
        turn.call("memory_sessions", "{}").text,
        turn.call("memory_search", json.dumps({"query": "tells note says", "limit": 50})).text,
        turn.call("memory_work", json.dumps({"name": "build"})).text,
    ]
    return "\n".join([*(block.text for block in context.blocks), *tools, seen_by(turn)])


def assert_forgotten(memory: optchat.Memory, gone: Iterable[str], turns: Iterable[Turn] = ()) -> None:
    """No read of the owner's, of a new pin or of these turns shows any of these canaries, or finds it."""
    wanted = list(gone)
    with memory.pin() as pin:
        for reader in (memory, pin):
            shown = canaries(seen_by(reader))
            for canary in wanted:
                assert canary not in shown, (reader, canary)
                for order in ("newest", "best"):
                    page = reader.search(canary, order=order)  # type: ignore[arg-type]
                    assert not page.items, (reader, canary)
                    assert not any(page.words.values())
    for turn in turns:
        shown = canaries(seen_in(turn))
        for canary in wanted:
            assert canary not in shown, (turn, canary)
            assert not turn.search(canary).items
