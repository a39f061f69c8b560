"""The files of a database: their names and permissions, and reading where nothing may be made."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from optchat.core.errors import (
    BadArgument,
    ConfigError,
    StoreBusy,
    StoreError,
    StoreReadOnly,
)
from optchat.store.connection import Store
from optchat.store.filesystem import network_type
from tests.store.actor import Actor, Clock, Failed
from tests.store.handles import Open, contents, make, names, only_the_file, put

# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_are_their_owners_only(path: Path, open_store: Open) -> None:
    before = os.umask(0)
    try:
        put(open_store(), "a")
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["memory.db", "memory.db-lock", "memory.db-shm", "memory.db-wal"], 0o600)


@pytest.mark.parametrize("name", ["a b?c#d%41&e=1.db", "sch\N{LATIN SMALL LETTER O WITH DIAERESIS}n.db", ":memory:"])
def test_any_name_is_a_file(tmp_path: Path, open_store: Open, name: str) -> None:
    put(open_store(at=tmp_path / name), "a")
    assert (tmp_path / name).is_file()
    assert (tmp_path / f"{name}-lock").is_file()


def test_a_name_that_is_no_text_is_a_file(tmp_path: Path, open_store: Open) -> None:
    path = tmp_path / os.fsdecode(b"\xff.db")
    put(open_store(at=path), "a")
    assert path.is_file()


def test_a_name_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadArgument, match="cannot be a path"):
        Store.open("a\0b", mode="rwc", lock_wait_seconds=1, clock=Clock())


def test_a_link_leads_to_the_files_own_lock(tmp_path: Path, path: Path, store: Store, open_store: Open) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    other = open_store(at=link)
    assert (other.path, other.owner_pk) == (path, store.owner_pk)
    assert not (tmp_path / "link.db-lock").exists()


@pytest.mark.parametrize("mode", ["rw", "ro"])
@pytest.mark.parametrize("exists", [False, True])
def test_no_database_is_an_error_that_names_the_path(open_store: Open, path: Path, mode: str, exists: bool) -> None:
    if exists:
        path.touch()
    with pytest.raises(ConfigError, match="no database at") as raised:
        open_store(mode)
    assert str(path) in str(raised.value)
    assert contents(path.parent) == ({path.name: b""} if exists else {})


def test_no_folder_is_an_error_that_names_it(open_store: Open, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder") as raised:
        open_store(at=tmp_path / "absent" / "memory.db")
    assert str(tmp_path / "absent") in str(raised.value)


def test_the_size_on_disk_is_the_files(store: Store, path: Path) -> None:
    put(store, "a")
    assert store.file_bytes() == path.stat().st_size + path.with_name("memory.db-wal").stat().st_size


@pytest.mark.parametrize("removed", ["memory.db", "memory.db-lock"])
def test_nothing_is_committed_to_a_file_that_was_removed(store: Store, path: Path, removed: str) -> None:
    put(store, "a")
    path.with_name(removed).unlink()
    with pytest.raises(StoreError, match="removed or replaced"):
        put(store, "b")


def test_a_replaced_file_is_a_new_one_to_a_new_handle(store: Store, path: Path, open_store: Open) -> None:
    put(store, "a")
    for name in ("memory.db", "memory.db-wal", "memory.db-shm"):
        path.with_name(name).unlink()
    new = open_store()
    put(new, "b")
    assert names(new) == ["b"]
    with new.read() as db:
        assert new.owner_alive(db, new.owner_pk)
    with pytest.raises(StoreError, match="removed or replaced"):
        put(store, "c")


MOUNTS = r"""
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local\040disk xfs rw 0 0
tmpfs /mnt tmpfs rw 0 0
//server/share /mnt cifs rw 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/memory.db", None),
        ("/home/a/memory.db", "nfs4"),
        ("/homely/memory.db", None),
        ("/home/local disk/memory.db", None),
        ("/mnt/memory.db", "cifs"),
    ],
)
def test_the_mount_that_a_path_lies_on_decides(path: str, expected: str | None) -> None:
    assert network_type(Path(path), MOUNTS) == expected


def test_a_network_filesystem_is_refused(path: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optchat.store.connection.network_filesystem", lambda _: "nfs4")
    with pytest.raises(ConfigError, match="local disk"):
        open_store()
    assert contents(path.parent) == {}


# ---- read-only -------------------------------------------------------------------------------------------------------


def test_ro_reads_and_changes_nothing(path: Path, open_store: Open) -> None:
    writer = open_store()
    put(writer, "a")
    writer.close()
    before = contents(path.parent)
    reader = open_store("ro")
    assert names(reader) == ["a"]
    assert reader.owner_pk == 0
    for use in (reader.write, reader.exclusive):
        with pytest.raises(StoreReadOnly, match="mode='ro'"), use():
            pass
    with pytest.raises(StoreReadOnly):
        reader.checkpoint()
    reader.close()
    after = contents(path.parent)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} <= {"memory.db-shm"}  # readers' marks


def test_ro_follows_a_living_writer(store: Store, open_store: Open) -> None:
    reader = open_store("ro")
    put(store, "a")
    assert names(reader) == ["a"]
    put(store, "b")
    assert names(reader) == ["a", "b"]
    with reader.read() as db:
        assert reader.owner_alive(db, store.owner_pk)
        assert not reader.owner_alive(db, 0)


def test_ro_first_then_a_writer_in_the_same_process(open_store: Open) -> None:
    open_store().close()
    reader = open_store("ro")
    writer = open_store("rw")
    put(writer, "a")
    assert names(reader) == ["a"]
    writer.close()
    assert names(reader) == ["a"]


@pytest.mark.parametrize("kept", [(), ("memory.db-wal", "memory.db-shm")], ids=["file alone", "with log and index"])
@pytest.mark.parametrize("locked", [False, True], ids=["writable folder", "read-only folder"])
def test_ro_needs_only_what_can_be_read(
    shared_folder: Path, new_actor: Callable[..., Actor], kept: tuple[str, ...], locked: bool
) -> None:
    path = make(shared_folder, "a")
    only_the_file(path, *kept)
    for file in shared_folder.iterdir():
        file.chmod(0o444)
    if locked:
        shared_folder.chmod(0o555)
    before = contents(shared_folder)
    actor = new_actor(path)
    actor.ask("drop_privileges")
    actor.ask("open", "ro")
    assert actor.ask("names") == ["a"]
    assert actor.ask("alive", 1) is False
    actor.leave()
    assert contents(shared_folder) == before


def test_ro_cannot_replay_a_log(path: Path, new_actor: Callable[..., Actor], open_store: Open) -> None:
    actor = new_actor()
    actor.ask("open")
    actor.ask("append", "a", 3)
    actor.end()
    path.with_name("memory.db-shm").unlink()
    before = contents(path.parent)
    with pytest.raises(StoreReadOnly, match="replayed"):
        open_store("ro")
    assert contents(path.parent) == before
    assert names(open_store("rw")) == ["a0", "a1", "a2"]


def test_a_file_read_without_locks_may_not_change_under_a_block(tmp_path: Path, open_store: Open) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    path, newer = make(tmp_path / "one", "a"), make(tmp_path / "two", "a", "b")
    only_the_file(path)
    reader = open_store("ro", at=path)
    version = reader.data_version()
    assert names(reader) == ["a"]
    assert reader.data_version() == version
    with pytest.raises(StoreBusy, match="read again"), reader.read():
        shutil.copyfile(newer, newer.with_name("copy"))
        newer.with_name("copy").replace(path)
    assert names(reader) == ["a", "b"]
    assert reader.data_version() != version


def test_ro_without_locks_turns_to_locks_when_a_writer_comes(path: Path, tmp_path: Path, open_store: Open) -> None:
    make(tmp_path, "a")
    only_the_file(path)
    reader = open_store("ro")
    assert names(reader) == ["a"]
    put(open_store("rw"), "b")
    assert names(reader) == ["a", "b"]


@pytest.mark.parametrize("mode", ["rw", "rwc"])
@pytest.mark.parametrize("forbidden", ["folder", "file", "lock"])
def test_what_cannot_be_written_says_so(
    shared_folder: Path, new_actor: Callable[..., Actor], mode: str, forbidden: str
) -> None:
    path = make(shared_folder, "a")
    if forbidden == "folder":
        only_the_file(path)
        path.chmod(0o666)
        shared_folder.chmod(0o555)
    else:
        shared_folder.chmod(0o777)
        for file in shared_folder.iterdir():
            file.chmod(0o666)
        (path if forbidden == "file" else path.with_name("memory.db-lock")).chmod(0o444)
    actor = new_actor(path)
    actor.ask("drop_privileges")
    with pytest.raises(Failed, match="writable") as raised:
        actor.ask("open", mode)
    assert raised.value.name == "StoreReadOnly"
    actor.leave()
