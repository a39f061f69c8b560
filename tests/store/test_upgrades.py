"""
Files of every former format, with content, written by the library that had it (formats/write.py says how).

They open, become the present format, and say what they said.
"""

import importlib.util
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import pytest

import optchat
from optchat.store.migrate import FORMAT
from optchat.testing import DeterministicSummarizer
from tests.nursery import Nursery

FORMATS = Path(__file__).parent / "formats"
VERSIONS = [int(file.name.partition(".")[0]) for file in sorted(FORMATS.glob("*.db.xz"))]
PROCESSES = 12


def load_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("formats_write", FORMATS / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = load_writer()


def unpacked(version: int, folder: Path) -> Path:
    path = folder / f"{version}.db"
    path.write_bytes(lzma.decompress((FORMATS / f"{version}.db.xz").read_bytes()))
    return path


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path)


def said(path: Path) -> dict[str, Any]:
    """What the old library answered."""
    text = lzma.decompress((FORMATS / f"{path.stem}.json.xz").read_bytes()).decode("utf-8", "surrogatepass")
    answers: dict[str, Any] = json.loads(text)
    return answers


@pytest.fixture
def memory(old: Path) -> Iterator[optchat.Memory]:
    with WRITER.open_file(old, mode="rw", summarizer=DeterministicSummarizer()) as memory:
        yield memory


def test_every_former_format_is_kept_with_content() -> None:
    assert list(range(1, FORMAT.version)) == VERSIONS


def test_the_file_is_of_the_version_that_it_says(old: Path) -> None:
    db = apsw.Connection(str(old))
    assert db.execute("PRAGMA user_version").get == int(old.stem)
    kinds = dict(db.execute("SELECT state, count(*) FROM turn GROUP BY state").fetchall())
    assert kinds == {"ended": 12, "open": 1, "suspended": 1}
    assert db.execute("SELECT count(*) FROM job").get > 5
    assert db.execute("SELECT nodes FROM recipe WHERE kind = 'stand_in'").get > 0
    assert db.execute("SELECT count(*) FROM record_blob").get == 1
    db.close()


def test_every_record_is_exactly_what_was_sealed(memory: optchat.Memory) -> None:
    ids = {session.key: session.id for session in memory.sessions()}
    at = dict.fromkeys(ids, 0)
    for key, messages, _outcome in [
        *WRITER.turns(),
        *((key, [optchat.HostMessage.user(text)], "") for key, text in WRITER.PENDING),
    ]:
        for message in messages:
            for part in message.parts:
                ref = f"session:{ids[key]}:0:{at[key]}+1"
                record = memory.source(ref)
                assert record.part == part
                zoomed = memory.zoom(ref)
                pages = [zoomed.text]
                while zoomed.cursor is not None:
                    zoomed = memory.zoom(ref, cursor=zoomed.cursor)
                    pages.append(zoomed.text)
                if isinstance(part, optchat.TextPart):
                    assert "".join(page or "" for page in pages) == part.text.encode("utf-8", "replace").decode() or (
                        part.text == WRITER.LONE
                    )
                at[key] += 1
    assert sum(at.values()) > 25


def test_what_was_shown_is_shown(memory: optchat.Memory) -> None:
    before = said(memory.path)
    for ref, text in before["lines"].items():
        assert line_of(memory, ref) == text, ref
    for key, refs in before["views"].items():
        now = [line.ref for line in memory.view(before["ids"].get(key)).lines]
        # the turn whose process had died has ended: its session's view, and the shared one, may have grown by it
        assert now[: len(refs)] == refs
    for query, refs in before["hits"].items():
        assert set(refs) <= {hit.ref for hit in memory.search(query, order="newest", limit=50)}


def line_of(memory: optchat.Memory, ref: str) -> str:
    """A line's text, wherever the view shows it now."""
    head, _, span = ref.rpartition(":")
    start, count = map(int, span.split("+"))
    parent = f"{head}:{start - start % (2 * count)}+{2 * count}"
    for session in [None, *(each.id for each in memory.sessions())]:
        for line in memory.view(session).lines:
            if line.ref == ref:
                return line.text
    try:
        return next(line.text for line in memory.zoom(parent).lines if line.ref == ref)
    except optchat.UnknownRef:
        raise AssertionError(f"{ref} is shown by nothing") from None


def test_it_is_sound_and_its_work_goes_on(memory: optchat.Memory) -> None:
    assert memory.verify().faults == ()
    waiting = memory.status()
    assert waiting.pending > 5
    turns = {turn.id: turn for key in ("first", "second") for turn in memory.session(key).turns()}
    assert (turns["open"].state, turns["open"].outcome) == ("ended", "interrupted")
    assert turns["suspended"].state == "suspended"
    with memory.session("first").resume("suspended") as turn:
        turn.assistant("still open: the rest")
    done = memory.settle()
    assert (done.pending, done.running, done.failures) == (0, 0, ())
    assert memory.verify().faults == ()
    assert all(turn.publication_ref for turn in memory.session("first").turns() if turn.state == "ended")


def test_a_reader_does_not_migrate(old: Path) -> None:
    before = old.read_bytes()
    with pytest.raises(optchat.ConfigError, match="open it once with mode='rw'"):
        WRITER.open_file(old, mode="ro")
    assert old.read_bytes() == before


@pytest.mark.soak  # every day tests/store/test_many_at_once.py does so with files of the schema alone
@pytest.mark.parametrize("version", VERSIONS)
def test_many_processes_migrate_one_file_at_once(version: int, tmp_path: Path) -> None:
    """Each opens, writes a turn and closes; one of them migrates, and none is refused."""
    old, nursery, go = unpacked(version, tmp_path), Nursery(), tmp_path / "go"
    try:
        children = [
            nursery.spawn("tests.store.upgrading:open_old", path=str(old), go=str(go), number=number)
            for number in range(PROCESSES)
        ]
        go.touch()
        ended = [nursery.reap(child) for child in children]
    finally:
        nursery.end()
    assert [child.code for child in ended] == [0] * PROCESSES
    with WRITER.open_file(old, mode="rw") as memory:
        for number in range(PROCESSES):
            (turn,) = memory.session(f"crowd-{number}", create=False).turns()
            assert (turn.request, turn.outcome) == (f"{number} of many", "completed")
        assert memory.verify().faults == ()
