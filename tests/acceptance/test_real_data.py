"""
Real sessions, whole: what was imported is there to the byte from whatever view it is reached, and is charged as it is.

The file is read here by its own description, apart from the code that imports it.
"""

import gzip
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

import optchat
from optchat.engine.neutral import MESSAGE_TOKENS

FILE = Path(__file__).parents[3] / "shared" / "data" / "coding-sessions.jsonl.gz"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="the real sessions are not beside the repository")


@frozen
class Told:
    """One part of one message, as the file has it."""

    kind: str
    text: str
    at: datetime
    detail: tuple[object, ...]


def told(message: dict[str, Any], part: dict[str, Any]) -> Told:
    at = datetime.fromisoformat(message["at"])
    match part["type"]:
        case "text":
            return Told(message["role"], part["text"], at, ())
        case "tool_call":
            return Told("tool_call", part["arguments"], at, (part["call_id"], part["name"]))
        case "tool_result":
            flags = (part["call_id"], part.get("is_error", False), part.get("truncated", False))
            return Told("tool_result", part["content"], at, flags)
        case other:
            raise AssertionError(f"the file has a part that this test does not read: {other}")


def detail(part: optchat.Part) -> tuple[object, ...]:
    if isinstance(part, optchat.ToolCallPart):
        return (part.call_id, part.name)
    if isinstance(part, optchat.ToolResultPart):
        return (part.call_id, part.is_error, part.truncated)
    return ()


@pytest.fixture(scope="module")
def expected() -> dict[str, list[Told]]:
    """Each session's parts in order, by its key."""
    sessions: dict[str, list[Told]] = {}
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        for message in map(json.loads, lines):
            if message["role"] != "host_summary":
                sessions.setdefault(message["session"], []).extend(told(message, part) for part in message["parts"])
    return sessions


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[optchat.Memory]:
    path = tmp_path_factory.mktemp("real") / "memory.db"
    with optchat.open(path, scope="cli", compact="manual") as memory:
        report = memory.import_file(FILE)
        assert report.skipped == {"host_summary": 1}
        status = memory.settle()
        assert status.ready
        assert status.failures == ()
        assert status.stand_ins == 0
        yield memory


def pages(reader: optchat.Reader, ref: str) -> Iterator[optchat.ZoomResult]:
    page = reader.zoom(ref, depth=4)
    yield page
    while page.cursor is not None:
        page = reader.zoom(ref, depth=4, cursor=page.cursor)
        yield page


def walk(reader: optchat.Reader, refs: list[str]) -> dict[str, bytes]:
    """Every record under refs, with its bytes as its pages rejoin; each reached once."""
    found: dict[str, bytes] = {}
    waiting = list(reversed(refs))
    while waiting:
        opened = list(pages(reader, waiting.pop()))
        assert opened[-1].complete
        if opened[0].kind != "record":
            waiting += [line.ref for page in opened for line in page.lines]
            continue
        assert opened[0].ref not in found, "two ways lead here from one view: its lines overlap"
        found[opened[0].ref] = "".join(page.text or "" for page in opened).encode("utf-8", "surrogatepass")
    return found


def by_session(memory: optchat.Memory, expected: dict[str, list[Told]]) -> dict[str, bytes]:
    """The bytes that each ref must lead to."""
    ids = {info.key: info.id for info in memory.sessions(limit=200)}
    return {
        f"session:{ids[key]}:0:{seq}+1": part.text.encode("utf-8", "surrogatepass")
        for key, parts in expected.items()
        for seq, part in enumerate(parts)
    }


def test_all_of_it_is_stored(imported: optchat.Memory, expected: dict[str, list[Told]]) -> None:
    status = imported.status()
    assert (status.sessions, status.records) == (40, sum(map(len, expected.values())))
    for info in imported.sessions(limit=200):
        parts = expected[info.key]
        assert (info.host, info.length) == ("local", len(parts))
        for seq, part in enumerate(parts):
            source = imported.source(f"session:{info.id}:0:{seq}+1")
            assert (source.kind, source.at, detail(source.part)) == (part.kind, part.at, part.detail)


def test_verification_finds_nothing(imported: optchat.Memory) -> None:
    report = imported.verify()
    assert report.faults == ()
    assert report.checked["records"] == imported.status().records


def test_a_second_import_adds_nothing(imported: optchat.Memory) -> None:
    before = imported.status()
    again = imported.import_file(FILE)
    assert (again.sealed, again.turns, again.kept) == (0, 0, before.records)
    after = imported.status()
    assert (after.sessions, after.records, after.publications, after.pending) == (
        before.sessions,
        before.records,
        before.publications,
        0,
    )


def test_every_record_is_reached_from_its_sessions_view(
    imported: optchat.Memory, expected: dict[str, list[Told]]
) -> None:
    found: dict[str, bytes] = {}
    for info in imported.sessions(limit=200):
        view = imported.view(info.id)
        assert view.through == info.length
        found |= walk(imported, [line.ref for line in view.lines])
    assert found == by_session(imported, expected)


def test_every_record_is_reached_from_the_shared_view(
    imported: optchat.Memory, expected: dict[str, list[Told]]
) -> None:
    wanted = by_session(imported, expected)
    assert walk(imported, [line.ref for line in imported.view().lines]) == wanted


def test_and_from_a_coarse_one_by_a_session_that_is_new(
    imported: optchat.Memory, expected: dict[str, list[Told]]
) -> None:
    """From the few lines of a small window, as a turn of another session: the visibility predicate hides none of it."""
    with imported.pin() as pinned:
        view = pinned.view(max_tokens=3_000)
        assert len(view.lines) < 40
        assert walk(pinned, [line.ref for line in view.lines]) == by_session(imported, expected)


@pytest.mark.parametrize("window", [32_000, 128_000, 200_000])
def test_a_new_session_sees_what_was_done(imported: optchat.Memory, window: int) -> None:
    tokenizer = optchat.tokenizer_for()
    budget = optchat.Budget(window, 4_000, tokenizer=tokenizer)
    context = imported.session("new").preview(budget, request="What was decided about the hooks?")
    use = context.receipt.tokens
    assert use.left >= 0
    assert use.instructions + use.output + use.reserve + use.active + sum(use.blocks.values()) + use.left == window
    assert dict(use.blocks) == {each.kind: tokenizer.count(each.text) + MESSAGE_TOKENS for each in context.blocks}

    shared = next(each for each in context.blocks if each.kind == "shared")
    lines = shared.text.splitlines()[1:-1]
    assert len(lines) >= 60
    assert [line.split(" ")[0] for line in lines] == list(context.receipt.refs)
    substantive = [line for line in lines if len(line.partition(" | ")[2].split()) >= 4]
    assert len(substantive) > 0.85 * len(lines), "titles alone would give no reason to look"
    assert sum(map(len, substantive)) > 20_000
    end = 0
    for ref in context.receipt.refs:
        zoomed = imported.zoom(ref)
        assert zoomed.lines
        start, count = map(int, ref.removeprefix("pub:").split("+"))
        assert start == end
        end = start + count
    assert end == context.receipt.shared_through == imported.status().publications
    assert imported.session("new").info().length == 0, "a preview writes nothing"
