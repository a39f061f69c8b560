"""A consistent copy of a file in use: whole or not at all, and as good as the file."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import apsw
import pytest

import optchat
from optchat.store import backups, sqlite
from optchat.testing import DeterministicSummarizer, temporary_memory
from tests.engine.helpers import say, words
from tests.engine.remaking_steps import Author, claim


@pytest.fixture
def memory() -> Iterator[optchat.Memory]:
    with temporary_memory(summarizer=DeterministicSummarizer()) as memory:
        for number in range(4):
            say(memory.session("s"), words(number, 1_500))
        memory.settle()
        yield memory


def opened(path: Path, mode: Any = "rw") -> optchat.Memory:
    return optchat.open(path, scope="test", summarizer=DeterministicSummarizer(), mode=mode, compact="manual")


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_copy_says_what_the_file_said(memory: optchat.Memory, tmp_path: Path) -> None:
    memory.backup(tmp_path / "copy.db")
    assert left(tmp_path) == ["copy.db"]
    with opened(tmp_path / "copy.db") as copy:
        report = copy.verify()
        assert report.faults == ()
        assert report.checked["records"] == 4
        assert copy.view().lines == memory.view().lines
        assert [hit.ref for hit in copy.search("thing2")] == [hit.ref for hit in memory.search("thing2")]
        say(copy.session("s"), "and on it goes, apart")
        copy.settle()
        assert copy.verify().ok
    assert memory.view().through == 4


def test_every_step_is_of_one_moment_and_none_is_done_twice_beside_a_writer(
    memory: optchat.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite begins a copy again when another connection has written: here one writes between any two steps."""
    writer = opened(memory.path)
    connect, steps = sqlite.connect_copy, 0
    pages = 0

    class Copy:
        """The new file's connection, whose backup lets others write between its steps."""

        def __init__(self, db: apsw.Connection) -> None:
            self.db = db

        def backup(self, *names: Any) -> Any:
            return Steps(self.db.backup(*names))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

    class Steps:
        def __init__(self, backup: apsw.Backup) -> None:
            self.backup = backup

        def __enter__(self) -> Self:
            self.backup.__enter__()
            return self

        def __exit__(self, *error: object) -> Any:
            return self.backup.__exit__(*error)

        @property
        def done(self) -> bool:
            return self.backup.done

        def step(self, count: int) -> bool:
            nonlocal steps, pages
            steps += 1
            done = self.backup.step(count)
            pages = self.backup.page_count
            if steps % 5 == 0:
                say(writer.session("w"), f"written in between {steps}")
            return done

    real_close = sqlite.close
    monkeypatch.setattr(backups, "PAGES_A_STEP", 4)
    monkeypatch.setattr(sqlite, "connect_copy", lambda *paths: Copy(connect(*paths)))
    monkeypatch.setattr(sqlite, "close", lambda db: real_close(getattr(db, "db", db)))
    memory.backup(tmp_path / "copy.db")
    monkeypatch.undo()
    assert steps == -(-pages // 4), "a step was done twice"
    assert steps > 10
    assert len(writer.session("w").turns()) > 1, "the writer was kept from writing"
    writer.close()
    with opened(tmp_path / "copy.db") as copy:
        assert copy.verify().ok
        assert "w" not in {session.key for session in copy.sessions()}, (
            "the copy is of another moment than its beginning"
        )


def test_only_its_owner_may_read_a_copy(memory: optchat.Memory, tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        memory.backup(tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "make",
    [Path.touch, Path.mkdir, lambda path: path.symlink_to(path.parent / "nowhere")],
    ids=["a file", "a folder", "a link to nothing"],
)
def test_nothing_is_replaced(memory: optchat.Memory, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    target = tmp_path / "copy.db"
    make(target)
    before = left(tmp_path)
    with pytest.raises(optchat.BadArgument, match="free"):
        memory.backup(target)
    assert left(tmp_path) == before
    with pytest.raises(optchat.BadArgument, match="free"):
        memory.backup(memory.path)


def test_a_folder_that_is_not_there(memory: optchat.Memory, tmp_path: Path) -> None:
    with pytest.raises(optchat.BadArgument, match="make it"):
        memory.backup(tmp_path / "none" / "copy.db")


def test_a_name_that_was_taken_meanwhile_is_left_to_who_took_it(
    memory: optchat.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = backups._copy

    def slow(*arguments: Any) -> None:
        copy(*arguments)
        (tmp_path / "copy.db").write_text("somebody else's")

    monkeypatch.setattr(backups, "_copy", slow)
    with pytest.raises(optchat.BadArgument, match="free"):
        memory.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "somebody else's"
    assert left(tmp_path) == ["copy.db"]


def test_a_full_disk_leaves_nothing(memory: optchat.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite.connect_copy

    def small(*paths: Path) -> apsw.Connection:
        db = connect(*paths)
        db.pragma("max_page_count", 20)
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "connect_copy", small)
        with pytest.raises(optchat.StoreFull, match=r"copy\.db.*free some space"):
            memory.backup(tmp_path / "copy.db")
    assert left(tmp_path) == []
    memory.backup(tmp_path / "copy.db")
    assert left(tmp_path) == ["copy.db"]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (28, optchat.StoreFull),  # ENOSPC
        (30, optchat.StoreReadOnly),  # EROFS
        (5, optchat.StoreError),  # EIO
    ],
)
def test_a_name_that_cannot_be_given_leaves_nothing(
    memory: optchat.Memory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[optchat.StoreError],
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(error) as raised:
        memory.backup(tmp_path / "copy.db")
    assert type(raised.value) is error
    assert left(tmp_path) == []


def test_a_file_system_without_links(memory: optchat.Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    memory.backup(tmp_path / "copy.db")
    assert left(tmp_path) == ["copy.db"]
    with opened(tmp_path / "copy.db", "ro") as copy:
        assert copy.verify().ok


def test_what_ran_in_the_file_holds_nobody_up_in_the_copy(memory: optchat.Memory, tmp_path: Path) -> None:
    """An open turn and a leased job are their process's, which does not have the copy open."""
    memory.session("s").turn(words(9, 3_000))
    assert claim(memory, Author("deterministic-1")).jobs
    memory.backup(tmp_path / "copy.db")
    with opened(tmp_path / "copy.db") as copy:
        turn = copy.session("s").turns().items[-1]
        assert (turn.state, turn.outcome) == ("ended", "interrupted")
        assert copy.settle().ready
        assert copy.verify().ok
    assert memory.session("s").turns().items[-1].state == "open"


def test_a_reader_may_copy(memory: optchat.Memory, tmp_path: Path) -> None:
    with opened(memory.path, "ro") as reader:
        reader.backup(tmp_path / "copy.db")
    with opened(tmp_path / "copy.db", "ro") as copy:
        assert copy.verify().ok
