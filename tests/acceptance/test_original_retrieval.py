"""§ 16: expansion from a shared parent reaches a publication, its session range, and the exact retained source."""

import json
from collections.abc import Iterator

import pytest

import optchat
from tests.acceptance.conftest import Open

LONG = "".join(f"{number}: päge \u20ac \U0001f980 line\r\n" for number in range(4_000)) + "\ud800 end"  # several pages
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20


@pytest.fixture
def told(memory: optchat.Memory) -> dict[str, bytes]:
    """Four turns of two sessions; what was said, by canonical ref."""
    said: dict[str, bytes] = {}
    for number in range(4):
        session = memory.session("ab"[number % 2])
        with session.turn(f"question {number}?") as turn:
            refs = turn.tool_call("c1", "read", '{"path": "x"}')
            refs += turn.tool_result("c1", [optchat.TextPart(LONG), optchat.BlobPart("image/png", data=PNG)])
            refs += turn.report("scout", f"found {number}")
            refs += turn.assistant(f"answer {number}: " + "because. " * 200)
            first = session.turns().items[-1].ref
        texts = [
            f"question {number}?",
            '{"path": "x"}',
            LONG,
            f"found {number}",
            f"answer {number}: " + "because. " * 200,
        ]
        said |= {ref: text.encode("utf-8", "surrogatepass") for ref, text in zip((first, *refs), texts, strict=True)}
    assert memory.settle().ready
    return said


def pages(reader: optchat.Reader, ref: str) -> Iterator[optchat.ZoomResult]:
    page = reader.zoom(ref)
    yield page
    while page.cursor is not None:
        page = reader.zoom(ref, cursor=page.cursor)
        yield page
    assert page.complete


def walk(reader: optchat.Reader, ref: str) -> dict[str, bytes]:
    """Every record under a ref, with its bytes as the pages rejoin."""
    found = list(pages(reader, ref))
    if found[0].kind == "record":
        text = "".join(page.text or "" for page in found)
        return {found[0].ref: text.encode("utf-8", "surrogatepass")}
    below: dict[str, bytes] = {}
    for line in (line for page in found for line in page.lines):
        below |= walk(reader, line.ref)
    return below


def test_from_the_shared_parent_to_every_byte(memory: optchat.Memory, told: dict[str, bytes]) -> None:
    assert walk(memory, "pub:0+4") == told


def test_a_foreign_turn_reaches_the_same(memory: optchat.Memory, told: dict[str, bytes]) -> None:
    with memory.session("c").turn("what was found?") as turn:
        assert walk(turn, "pub:0+4") == told
    with memory.pin() as pinned:
        assert walk(pinned, "pub:0+4") == told


@pytest.mark.usefixtures("told")
def test_each_step_names_where_it_leads(memory: optchat.Memory) -> None:
    a = memory.session("a")
    parent = memory.zoom("pub:0+4")
    assert (parent.kind, [line.ref for line in parent.lines]) == ("node", ["pub:0+2", "pub:2+2"])
    both = memory.zoom("pub:0+2")
    assert [line.ref for line in both.lines] == ["pub:0+1", "pub:1+1"]
    assert both.lines[0].session_id == a.id
    publication = memory.zoom("pub:2+1")
    assert publication.kind == "publication"
    assert publication.outcome == "completed"
    assert publication.turn is not None
    assert publication.turn.request == "question 2?"
    assert publication.turn.publication_ref == "pub:2+1"
    spans = [line.ref.rpartition(":")[2] for line in publication.lines]
    assert spans == ["5+1", "6+2", "8+2"], "the cover is exact: the turn's records and no others"
    record = memory.zoom(f"session:{a.id}:0:7+1")
    assert record.kind == "record"
    assert record.paired_ref == f"session:{a.id}:0:6+1"
    assert record.attachments == (optchat.BlobPart("image/png", data=PNG),)
    assert memory.zoom(f"session:{a.id}:0:6+1").paired_ref == record.ref
    assert record.turn is not None
    assert record.turn.ref == f"session:{a.id}:0:5+1"


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_depth_is_as_many_single_steps(memory: optchat.Memory, depth: int) -> None:
    a = memory.session("a")
    for ref in ("pub:0+4", f"session:{a.id}:0:0+8"):
        wanted = [ref]
        for _ in range(depth):
            opened: list[str] = []
            for each in wanted:
                zoomed = memory.zoom(each)
                leaf = zoomed.kind != "node"
                opened += [each] if leaf else [line.ref for line in zoomed.lines]
            wanted = opened
        assert [line.ref for line in memory.zoom(ref, depth=depth).lines] == wanted


@pytest.mark.usefixtures("told")
def test_the_source_is_the_part_that_was_given(memory: optchat.Memory) -> None:
    a = memory.session("a")
    source = memory.source(f"session:{a.id}:0:2+1")
    content = (optchat.TextPart(LONG), optchat.BlobPart("image/png", data=PNG))
    assert source.part == optchat.ToolResultPart("c1", content)
    assert memory.source(f"session:{a.id}:0:1+1").part == optchat.ToolCallPart("c1", "read", '{"path": "x"}')
    assert memory.source(f"session:{a.id}:0:3+1").part == optchat.ReportPart("scout", "found 0")


def test_by_the_memory_tools_alone(open_memory: Open, told: dict[str, bytes]) -> None:
    """As a model does it: JSON in, JSON out, from the line that it is shown."""
    with open_memory().session("c").turn("what was found?") as turn:
        block = next(block for block in turn.context(optchat.Budget(32_000, 1_000)).blocks if block.kind == "shared")
        waiting = [line.split(" ")[0] for line in block.text.splitlines()[1:-1]]
        found: dict[str, str] = {}
        while waiting:
            ref, cursor = waiting.pop(), None
            while True:
                answer = turn.call("memory_zoom", {"ref": ref, "cursor": cursor})
                assert not answer.is_error, answer.text
                assert len(answer.text.encode()) <= 32_768
                result = json.loads(answer.text)
                waiting += [line["ref"] for line in result["lines"]]
                if result["text"] is not None:
                    found[result["ref"]] = found.get(result["ref"], "") + result["text"]
                cursor = result["cursor"]
                if cursor is None:
                    break
    # What is shown to a model is text: the one lone surrogate is shown as U+FFFD. The bytes are in the tests above.
    assert found == {
        ref: data.decode("utf-8", "surrogatepass").replace("\ud800", "\ufffd") for ref, data in told.items()
    }
