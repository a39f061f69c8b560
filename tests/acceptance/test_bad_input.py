"""
Bad input: each item of it gives its own error of the hierarchy, or is stored exactly; and loses nothing.

After each test, what was there before is there still, to the byte, and verification finds nothing.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.acceptance.scripted import WIRE, check_paired, says
from tests.peer import Failed, Peer

ODD = [
    "",
    " ",
    "\n\t \r\n",
    "\x00",
    "before\x00after",
    "\ud800",
    "a\udfffb\ud800\udc00c",  # two surrogates that would be one character, if anything joined them
    "\ufeff\ufffe\uffff",
    "e\u0301\u202e\u200b",
    "\x1b[2J\x07",
]


def sources(memory: optchat.Memory) -> dict[str, optchat.SourceRecord]:
    found: dict[str, optchat.SourceRecord] = {}
    for info in memory.sessions(limit=200):
        for seq in range(info.length):
            record = memory.source(f"session:{info.id}:0:{seq}+1")
            found[record.ref] = record
    return found


@pytest.fixture
def kept(open_memory: Open) -> Iterator[optchat.Memory]:
    memory = open_memory(policy=optchat.Policy(lock_wait_seconds=0.3))
    with memory.session("before").turn("What came before?") as turn:
        turn.tool_call("c1", "read", "{}")
        turn.tool_result("c1", "x" * 3000)
        turn.assistant("This, and it stays.")
    memory.settle()
    before = sources(memory)
    yield memory
    after = sources(memory)
    assert {ref: after.get(ref) for ref in before} == before
    memory.settle()
    assert memory.verify().faults == ()


# ---- what is said ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_any_text_is_stored_exactly(kept: optchat.Memory, text: str) -> None:
    # Names are kept as JSON, which knows no two surrogates in a row that are no character.
    name = text.replace("\ud800\udc00", "\U00010000") or "f"
    call = optchat.ToolCallPart("c1\x00\ud800", name, text)
    with kept.session("odd").turn(text) as turn:
        refs = [turn.messages and kept.session("odd").turns().items[0].ref]
        refs += turn.assistant(text, calls=[call])
        refs += turn.tool_result("c1\x00\ud800", text)
        refs += turn.report(name, text)
        refs.append(kept.session("odd").note(text))
        refs += turn.assistant(text)
        context = turn.context(optchat.Budget(32_000, 1_000))
    said = [optchat.TextPart(text)] if text else []  # no text beside a call is none
    parts = [kept.source(str(ref)).part for ref in refs]
    assert parts == [
        optchat.TextPart(text),
        *said,
        call,
        optchat.ToolResultPart("c1\x00\ud800", (optchat.TextPart(text),)),
        optchat.ReportPart(name, text),
        optchat.TextPart(text),
        optchat.TextPart(text),
    ]
    assert "".join(kept.zoom(str(refs[-1])).text or "") == text
    assert all(block.text.encode() for block in context.blocks), "what is sent is valid UTF-8"
    kept.settle()
    with kept.session("reader").turn("and?") as turn:
        for block in turn.context(optchat.Budget(32_000, 1_000)).blocks:
            block.text.encode()
        turn.call("memory_zoom", {"ref": str(refs[0])}).text.encode()


def test_even_an_odd_name_is_checked_as_it_is_kept(kept: optchat.Memory) -> None:
    with kept.session("odd").turn("go") as turn:
        turn.tool_call("\ud800\udc00", "\ud800\udc00", "{}")
        turn.tool_result("\ud800\udc00", "x")
        assert turn.pending == ()
        turn.report("\ud800\udc00", "x")
        turn.assistant("done")


def test_a_message_of_no_parts_is_none(kept: optchat.Memory) -> None:
    session = kept.session("odd")
    with pytest.raises(optchat.BadArgument, match="user's message"):
        session.turn(optchat.HostMessage("user", ()))
    with pytest.raises(optchat.BadArgument, match="user's message"):
        session.turn(optchat.HostMessage.assistant("hello"))
    assert session.info().turns == 0


@pytest.mark.parametrize("megabytes", [2, pytest.param(50, marks=pytest.mark.soak)])
def test_a_tool_result_of_many_megabytes(kept: optchat.Memory, megabytes: int) -> None:
    """Stored exactly, paged exactly, indexed by jobs in pieces, summarised over the whole of it by a chunk tree."""
    line = "%07d the build printed a line; \u00e9\u20ac\U0001f980 path/to/file_%d.py: error E%d\n"
    size = megabytes * 1_000_000
    count = size // len((line % (1, 1, 1)).encode())
    text = "".join(line % (number, number % 97, number % 1000) for number in range(count)) + "the needle is heliotrope"
    session = kept.session("large")
    with session.turn("run it") as turn:
        turn.tool_call("c1", "run", "{}")
        (ref,) = turn.tool_result("c1", text)
        turn.assistant("It printed a lot.")
    waiting = kept.search("heliotrope")
    assert waiting.hits == ()
    assert waiting.unindexed == 1
    status = kept.settle()
    assert status.ready
    assert status.stand_ins == 0
    part = kept.source(ref).part
    assert isinstance(part, optchat.ToolResultPart)
    assert part.content == (optchat.TextPart(text),)
    page, joined, pages = kept.zoom(ref), [], 0
    while True:
        assert len((page.text or "").encode()) <= 16_384
        joined.append(page.text or "")
        pages += 1
        if page.cursor is None:
            break
        page = kept.zoom(ref, cursor=page.cursor)
    assert "".join(joined) == text
    assert pages >= size // 16_384
    found = kept.search("heliotrope")
    assert found.unindexed == 0
    assert [(hit.ref, "heliotrope" in hit.excerpt) for hit in found] == [(ref, True)]
    view = kept.view(session.id)
    leaf = next(line for line in view.lines if line.ref == ref)
    assert leaf.kind == "summary"
    assert len(leaf.text.encode()) <= 512
    # A summary over pages rests on all of them: the tree's leaves are there, and verification reads it all.
    assert status.by_default_summarizer > size // 1_000_000


def test_an_unknown_role(kept: optchat.Memory, tmp_path: Path) -> None:
    with pytest.raises(optchat.BadArgument, match="unknown role 'robot'"):
        optchat.HostMessage("robot", ())  # type: ignore[arg-type]  # the point
    turn = kept.session("wire", adapter=WIRE).turn("go")
    with pytest.raises(optchat.BadArgument, match="unknown role 'robot'"):
        turn.add({"role": "robot", "content": "beep"})
    with pytest.raises(optchat.BadArgument, match="role"):
        turn.add(says("fine"), {"content": "nobody said this"})
    assert len(turn.messages) == 1, "and not the half of a delivery"
    file = tmp_path / "robot.jsonl"
    line = (
        '{"session": "s", "at": "2026-01-05T12:17:31Z", "role": "%s", "parts": [{"type": "text", "text": "hello"}]}\n'
    )
    file.write_text(line % "user" + line % "robot", encoding="utf-8")
    with pytest.raises(optchat.ImportRejected, match="robot") as caught:
        kept.import_file(file)
    assert caught.value.line == 2
    with pytest.raises(optchat.UnknownRef):
        kept.session("s", create=False)


def test_a_part_in_the_wrong_mouth() -> None:
    for role, part in (
        ("user", optchat.ToolCallPart("c", "f", "{}")),
        ("tool", optchat.TextPart("x")),
        ("assistant", optchat.ToolResultPart("c", ())),
    ):
        with pytest.raises(optchat.BadArgument, match="cannot hold"):
            optchat.HostMessage(role, (part,))  # type: ignore[arg-type]  # the roles are literals


def test_a_result_without_a_call(kept: optchat.Memory) -> None:
    """It is evidence, so it is kept; no provider takes it as a result, so it is sent as what was reported."""
    turn = kept.session("odd", adapter=WIRE).turn("go")
    (ref,) = turn.tool_result("nobody asked", "an answer")
    assert kept.zoom(ref).text == "an answer"
    assert kept.zoom(ref).paired_ref is None
    messages = turn.context(optchat.Budget(32_000, 1_000)).messages
    check_paired(messages)
    assert messages[-1]["role"] == "user"
    assert "an answer" in messages[-1]["content"]
    turn.end("failed")


def test_a_result_without_a_call_in_the_hosts_own_list(kept: optchat.Memory) -> None:
    """The host's own objects are sent as they are or not at all."""
    request, orphan = (
        {"role": "user", "content": "go"},
        {"role": "tool", "tool_call_id": "nobody asked", "content": "x"},
    )
    turn = kept.session("odd", adapter=WIRE).turn(request)
    turn.observe([request, orphan])
    for active in (None, [request, orphan]):
        with pytest.raises(optchat.ToolProtocolError, match="nobody asked"):
            turn.context(optchat.Budget(32_000, 1_000), active=active)
    assert len(turn.messages) == 2
    turn.end("failed")


def test_a_call_id_used_again_in_a_later_turn(kept: optchat.Memory) -> None:
    session = kept.session("odd")
    pairs: list[tuple[str, str]] = []
    for number in range(3):
        with session.turn(f"go {number}") as turn:
            refs = turn.tool_call("call_1", "read", f'{{"n": {number}}}') + turn.tool_result(
                "call_1", f"contents {number}"
            )
            assert turn.pending == ()
            turn.assistant("done")
            pairs.append((refs[0], refs[1]))
    assert len(set(pairs)) == 3
    for number, (call, result) in enumerate(pairs):
        assert kept.zoom(call).paired_ref == result
        assert kept.zoom(result).paired_ref == call
        assert kept.zoom(result).text == f"contents {number}"


def test_a_duplicate_key_with_other_content(kept: optchat.Memory) -> None:
    turn = kept.session("odd").turn("go", key="m0")
    turn.assistant("one thing", key="m1")
    with pytest.raises(optchat.RevisionConflict) as caught:
        turn.assistant("another thing", key="m1")
    assert not caught.value.retryable
    with pytest.raises(optchat.RevisionConflict):
        kept.session("odd").turn("another request", turn_id=turn.id)
    assert [message.parts for message in turn.messages] == [(optchat.TextPart("go"),), (optchat.TextPart("one thing"),)]


# ---- what is asked for -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "span", ["0+3", "1+2", "0+0", "0+6", "2+4", "00+1", "0+01", "-1+1", "0+1.0", "0 + 1", "0+1 ", ""]
)
def test_a_ref_that_is_none(kept: optchat.Memory, span: str) -> None:
    ident = kept.session("before").id
    for ref in (f"pub:{span}", f"session:{ident}:0:{span}"):
        for read in (kept.zoom, kept.date, kept.source):
            with pytest.raises(optchat.MalformedRef):
                read(ref)


@pytest.mark.parametrize(
    "ref", ["session", "session:x", "pub:1099511627775+1", "pub:0+1\n", "p\x00", "\ud800", "x" * 10_000]
)
def test_text_that_is_no_ref(kept: optchat.Memory, ref: str) -> None:
    with pytest.raises(optchat.MalformedRef) as caught:
        kept.zoom(ref)
    assert len(str(caught.value)) < 300


def test_a_count_beyond_the_history(kept: optchat.Memory) -> None:
    ident = kept.session("before").id
    assert kept.zoom(f"session:{ident}:0:0+4").lines
    for ref in (f"session:{ident}:0:0+8", f"session:{ident}:0:4+1", f"session:{ident}:0:4+4", "pub:0+2", "pub:1+1"):
        with pytest.raises(optchat.UnknownRef):
            kept.zoom(ref)


def test_a_cursor_of_another_query(kept: optchat.Memory) -> None:
    with kept.session("more").turn("What came before, and before?") as turn:
        turn.assistant("Before that? This.")
    ref = kept.search("what came", limit=1)
    record = f"session:{kept.session('before').id}:0:2+1"
    text = kept.zoom(record, max_tokens=10)
    assert ref.cursor
    assert text.cursor
    for wrong in (
        lambda: kept.search("another thing", cursor=ref.cursor),
        lambda: kept.search("what came", order="newest", cursor=ref.cursor),
        lambda: kept.search("what came", kind="user", cursor=ref.cursor),
        lambda: kept.search("what came", cursor=text.cursor),
        lambda: kept.zoom("pub:0+1", cursor=text.cursor),
        lambda: kept.zoom(record, cursor=ref.cursor),
        lambda: kept.sessions(cursor=ref.cursor),
        lambda: kept.zoom(record, cursor="made up"),
        lambda: kept.zoom(record, cursor="\ud800"),
        lambda: kept.zoom(record, cursor="A" * 100_000),
    ):
        with pytest.raises(optchat.BadCursor):
            wrong()


def test_a_budget_smaller_than_the_smallest_cover(kept: optchat.Memory) -> None:
    with kept.session("b").turn("go") as turn:
        with pytest.raises(optchat.CoverTooLarge, match="larger window") as caught:
            turn.context(optchat.Budget(700, 100))
        assert not caught.value.retryable
        with pytest.raises(optchat.ContextTooLarge):
            turn.context(optchat.Budget(100, 100))
        assert turn.context(optchat.Budget(32_000, 1_000)).messages


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("x" * 513, {}),
        ("word " * 33, {}),
        ("x", {"limit": 0}),
        ("x", {"limit": 51}),
        ("x", {"before": "2026-01-05T12:17:31"}),
        ("x", {"after": "yesterday"}),
        ("x", {"order": "oldest"}),
        ("x", {"kind": "thought"}),
    ],
)
def test_a_search_that_cannot_be(kept: optchat.Memory, query: str, options: dict[str, str]) -> None:
    with pytest.raises(optchat.BadArgument):
        kept.search(query, **options)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize(
    "query", ['"', 'NEAR("a" b)', "a AND NOT b*", "col:x ^y", "'; DROP TABLE record; --", "\x00", "( ) -", "\ud800"]
)
def test_a_query_is_never_a_syntax(kept: optchat.Memory, query: str) -> None:
    for order in ("best", "newest"):
        try:
            kept.search(query, order=order)
        except optchat.BadArgument as error:
            assert "word" in str(error), "only for having no word to look for"


# ---- where it is kept ------------------------------------------------------------------------------------------------
def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(optchat.NotOurFile, match="directory"):
        optchat.open(tmp_path, scope="s")
    assert list(tmp_path.iterdir()) == []


def test_somebody_elses_database(tmp_path: Path) -> None:
    path = tmp_path / "browser.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE history (url TEXT)")
        db.execute("INSERT INTO history VALUES ('https://example.org')")
        db.commit()
    before = path.read_bytes()
    for mode in ("rwc", "rw", "ro"):
        with pytest.raises(optchat.NotOurFile, match=r"browser\.db"):
            optchat.open(path, scope="s", mode=mode)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 100, encoding="utf-8")
    with pytest.raises(optchat.NotOurFile):
        optchat.open(path, scope="s")
    assert path.read_text(encoding="utf-8") == "my notes\n" * 100


def test_no_folder_there(tmp_path: Path) -> None:
    with pytest.raises(optchat.ConfigError, match="make the folder first"):
        optchat.open(tmp_path / "absent" / "memory.db", scope="s")


def test_a_locked_file(kept: optchat.Memory, peer: Peer) -> None:
    peer("block = memory._house.store.write(); db = block.__enter__()")
    with pytest.raises(optchat.StoreBusy, match=rf"process {peer.process.pid} was still writing") as caught:
        kept.session("more").turn("go")
    assert caught.value.retryable
    assert kept.search("came before").hits, "readers do not wait"
    peer("block.__exit__(None, None, None)")
    with kept.session("more").turn("go") as turn:
        turn.assistant("went")
    assert turn.outcome == "completed"


def test_a_full_disk(kept: optchat.Memory) -> None:
    """SQLite meets its page limit as it meets a full disk: the same code, at the same places."""
    store = kept._house.store
    turn = kept.session("more").turn("go")
    turn.assistant("before it was full")
    with store.exclusive() as db:
        pages = db.pragma("page_count")
        db.pragma("max_page_count", pages + 2)
    stored = kept.status().records
    with pytest.raises(optchat.StoreFull, match="free some space") as caught:
        turn.assistant("too much " * 20_000)
    assert caught.value.retryable
    assert kept.status().records == stored
    assert kept.search("before it was full").hits
    with store.exclusive() as db:
        db.pragma("max_page_count", 2**32 - 2)
    (ref,) = turn.assistant("too much " * 20_000)
    assert kept.source(ref).part == optchat.TextPart("too much " * 20_000)
    turn.end("completed")
    assert kept.settle().ready


def test_a_read_only_disk(open_memory: Open) -> None:
    """A folder and file that this process may not write, as on read-only media."""
    with tempfile.TemporaryDirectory() as name:  # unlike pytest's own, one that another user may enter
        folder = Path(name)
        memory = open_memory(folder / "memory.db")
        with memory.session("before").turn("hello") as turn:
            turn.assistant("hi")
        memory.close()
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        peer = Peer()
        try:
            if os.geteuid() == 0:  # a superuser may write anywhere; this process may no longer
                peer("path = database", database=str(folder / "memory.db"))
                peer("memory = optchat.open(path, scope='project-17', mode='ro'); memory.search('x'); memory.close()")
                peer("import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)")
            with pytest.raises(Failed) as caught:
                peer("optchat.open(path, scope='project-17')", path=str(folder / "memory.db"))
            assert caught.value.name == "StoreReadOnly"
            assert "mode='ro'" in caught.value.message
            peer("memory = optchat.open(path, scope='project-17', mode='ro')")
            assert peer("memory.search('hello').hits[0].excerpt") == "hello"
            with pytest.raises(Failed) as caught:
                peer("memory.session('before').turn('more')")
            assert caught.value.name == "StoreReadOnly"
            peer("memory.close()")
        finally:
            peer.end()
            folder.chmod(0o755)
        again = open_memory(folder / "memory.db", mode="ro")
        assert again.status().records == 2
        assert again.verify().ok
        again.close()


def test_a_handle_that_is_closed(open_memory: Open) -> None:
    memory = open_memory()
    memory.close()
    memory.close()
    with pytest.raises(optchat.ConfigError, match="open it again"):
        memory.status()


@pytest.mark.parametrize("odd", [3, None, b"bytes", {"role": "user", "content": "a native without its adapter"}])
def test_what_is_no_message(memory: optchat.Memory, odd: Any) -> None:
    session = memory.session("s")
    with pytest.raises(optchat.BadArgument):
        session.turn(odd)
    turn = session.turn("go")
    with pytest.raises(optchat.BadArgument):
        turn.add(odd)
    with pytest.raises(optchat.BadArgument):
        turn.observe([odd])
    with pytest.raises(optchat.BadArgument):
        turn.tool_result("c", odd)
    with pytest.raises(optchat.BadArgument):
        turn.context(optchat.Budget(32_000, 100), readiness=odd if odd is not None else cast("Any", "soon"))
    assert memory.status().records == 1
