"""Pages of an answer: how it is cut changes nothing in it."""

from pathlib import Path

import pytest

import optchat

LONG = "words that fill a line " * 40


def pages(memory: optchat.Memory, order: optchat.Order, limit: int) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = memory.search("alpha beta", order=order, limit=limit, cursor=cursor)
        found += [hit.ref for hit in page]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("order", ["best", "newest"])
def test_an_answer_is_the_same_in_pages_of_any_size(tmp_path: Path, order: optchat.Order) -> None:
    """More summaries match than are looked under, and every third one has a source that gives it away."""

    @optchat.summarizer("both-1", window_tokens=100_000)
    def both(request: optchat.SummaryRequest) -> str:
        return f"alpha beta {len(request.sources)}"

    with optchat.open(tmp_path / "memory.db", scope="s", summarizer=both, compact="manual") as memory:
        for number in range(30):
            with memory.session(f"s{number % 4}").turn(LONG + ("alpha beta" if number % 3 == 0 else "")) as turn:
                turn.assistant(LONG)
            if number % 5 == 0:
                memory.settle()
        memory.settle()
        whole = pages(memory, order, 50)
        assert len(whole) == len(set(whole))
        assert len([ref for ref in whole if not ref.endswith("+1")]) + len(whole) > 10
        for limit in (1, 3, 7):
            assert pages(memory, order, limit) == whole
