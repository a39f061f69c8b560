"""
§ 12: scrubbing is resumable, may be done by anybody, says what hinders it, and erases no more than was removed.

Schedules 4 (what a row leaves behind), 5 (steps that hold nobody up), 10 (the files are SQLite's alone) and 30 (blobs),
pitfall 27 (a file that never shrinks).
"""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import optchat
from optchat import BlobPart, HostMessage, TextPart
from optchat.engine import ingest, scrubbing
from optchat.store import erasing, payloads, scrubs
from optchat.store.connection import Store
from tests.acceptance.canaries import canary, found, picture, spoken
from tests.engine.helpers import say, words
from tests.engine.working import open_wandering
from tests.peer import Peer

Open = Callable[..., optchat.Memory]
SMALL = {"_ROWS": 3, "_ENTRIES": 2, "_WORDS": 30, "_NODES": 1, "_PIECES": 1, "_PAGES": 1, "STEP_SECONDS": 0.0002}


@pytest.fixture
def open_memory() -> Iterator[Open]:
    opened: list[optchat.Memory] = []
    with tempfile.TemporaryDirectory(prefix="optchat-scrubbing-") as folder:

        def open_memory(name: str = "memory.db", scope: str = "test", **policy: Any) -> optchat.Memory:
            opened.append(open_wandering(Path(folder) / name, scope=scope, policy=optchat.Policy(**policy)))
            return opened[-1]

        yield open_memory
        for memory in opened:
            memory.close()


@pytest.fixture
def memory(open_memory: Open) -> optchat.Memory:
    return open_memory()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that end everywhere: within a record's entries, between nodes, after one piece of a blob."""
    for name, value in SMALL.items():
        monkeypatch.setattr(scrubbing, name, value)


def tell(session: optchat.Session[HostMessage], name: str, turns: int = 3) -> None:
    """Turns with a canary in short, long and very long texts, in a picture and in summaries."""
    for number in range(turns):
        with session.turn(f"{spoken(name)} {number}") as turn:
            turn.assistant(f"{spoken(name)} {words(number, 700)}")
            turn.tool_call("call", "cat", "{}")
            turn.tool_result("call", f"{spoken(name)} {words(number, 9_000 if number else 70_000)}")
            turn.add(HostMessage.user((TextPart(spoken(name)), BlobPart("image/png", data=picture() + name.encode()))))


def stages(memory: optchat.Memory) -> list[tuple[str, str | None]]:
    with memory._scope.store.read() as db:
        return db.execute("SELECT stage, hindered FROM removal ORDER BY removal_pk").fetchall()


def sound(memory: optchat.Memory) -> None:
    assert memory.verify().faults == ()
    with memory._scope.store.read() as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("SELECT count(*) FROM erasure").get == 0


# ---- how much of it --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_steps")
def test_turns_that_are_deleted_go_and_their_neighbours_stay(memory: optchat.Memory) -> None:
    session = memory.session("a")
    for name in ("before", "gone", "after"):
        tell(session, name, turns=1)
    memory.settle()
    chosen = list(session.turns())[1]
    assert not session.delete(only=[chosen.id]).scrubbed
    memory.settle()
    assert stages(memory) == [("scrubbed", None)]
    assert session.delete(only=[chosen.id]).scrubbed, "whoever has its id still is told that it is done"
    assert chosen.publication_ref is not None
    assert session.delete(only=[chosen.publication_ref]).scrubbed
    left = found(memory.path, ["before", "gone", "after"])
    assert set(left) == {"before", "after"}
    assert [hit.excerpt for hit in memory.search(canary("after")[:10].capitalize())]
    with memory.pin() as reader:
        assert canary("before") in str(reader.source(next(iter(session.turns())).ref).part)
    sound(memory)


@pytest.mark.usefixtures("small_steps")
def test_what_a_revoked_session_shared_goes_and_its_own_words_stay(memory: optchat.Memory) -> None:
    session = memory.session("a")
    tell(session, "secret", turns=2)
    say(memory.session("b"), words(3, 700))
    memory.settle()
    shared = memory._scope.row.shared_tree
    session.revoke()
    memory.settle()
    assert stages(memory) == [("scrubbed", None)]
    with memory._scope.store.read() as db:
        texts = db.execute(
            "SELECT text FROM node WHERE node_key >> 40 = ?1 UNION ALL SELECT text FROM node_history"
            " WHERE node_key >> 40 = ?1",
            (shared,),
        ).fetchall()
    assert texts
    assert canary("secret") not in repr(texts)
    assert memory.search(canary("secret")).items, "its owner's"
    with memory.pin() as reader:
        assert not reader.search(canary("secret")).items
    sound(memory)


@pytest.mark.usefixtures("small_steps")
def test_a_scope_goes_whole_and_another_in_the_file_stays(open_memory: Open) -> None:
    memory, other = open_memory(scope=f"scope {canary('scope')}"), open_memory(scope="other")
    for name, of in (("gone", memory), ("kept", other)):
        tell(of.session(f"key {canary(name)}", project=f"/{canary(name)}"), name)
        of.settle()
    assert set(found(memory.path, ["gone", "kept", "scope"])) == {"gone", "kept", "scope"}
    assert not memory.delete_scope().scrubbed
    other.settle()  # nobody has the removed one open any more: whoever works the file scrubs it
    assert stages(other) == [("scrubbed", None)]
    assert set(found(memory.path, ["gone", "kept", "scope"])) == {"kept"}
    assert other.search(canary("kept")).items
    assert open_memory(scope=f"scope {canary('scope')}").status().records == 0, "its name is free"
    sound(other)


@pytest.mark.usefixtures("small_steps")
def test_a_blob_goes_with_the_last_that_needs_it(memory: optchat.Memory) -> None:
    """Schedule 30's other half: unique by scope and digest, owned by rows."""
    large = f"{spoken('shared')} {words(1, 200_000)}"
    for key in ("a", "b"):
        with memory.session(key).turn("see") as turn:
            turn.assistant(large)
            turn.add(HostMessage.user((BlobPart("image/png", data=picture()),)))
    memory.settle()

    def blobs() -> tuple[int, int]:
        with memory._scope.store.read() as db:
            return db.execute("SELECT (SELECT count(*) FROM blob), (SELECT count(*) FROM blob_piece)").fetchall()[0]

    before = blobs()
    memory.session("a").delete()
    memory.settle()
    assert blobs() == before
    assert set(found(memory.path, ["shared", "picture"])) == {"shared", "picture"}
    say(memory.session("c"), large)  # taken up by its digest, though one of its owners is gone
    memory.session("b").delete()
    memory.settle()
    assert blobs()[0] == 1
    assert set(found(memory.path, ["shared", "picture"])) == {"shared"}
    source = memory.source(next(iter(memory.session("c").turns())).ref)
    assert source.part == TextPart(large)
    memory.session("c").delete()
    memory.settle()
    assert blobs() == (0, 0)
    assert found(memory.path, ["shared", "picture"]) == {}


def test_a_blob_that_is_being_staged_is_nobodys_and_stays(memory: optchat.Memory) -> None:
    """A disowned blob is known by what it is called, and not by its number, which another may have by now."""
    scope = memory._scope
    with scope.store.write() as db:
        db.execute("INSERT INTO blob (scope_pk, sha256, bytes, complete) VALUES (?, ?, 9, 0)", (scope.pk, bytes(32)))
        pk = db.last_insert_rowid()
        db.execute("INSERT INTO blob_piece VALUES (?, 0, x'00')", (pk,))
        assert not erasing.erase_blob_pieces(db, pk, 8)
        assert db.execute("SELECT count(*) FROM blob_piece").get == 1


def test_bytes_that_were_staged_and_never_sealed_go_too(memory: optchat.Memory) -> None:
    """A process died, or the session was deleted, between the two; and whoever stages just now begins again."""
    session = memory.session("a")
    scope, large = memory._scope, f"{spoken('staged')} {words(1, 9_000_000)}"
    parts = ingest.prepare(scope, [HostMessage.user(large)], turn_id="turn", ordinal=0)
    ingest.stage_bytes(scope, parts)
    assert set(found(memory.path, ["staged"])) == {"staged"}
    say(session, "something")
    session.delete()
    memory.settle()
    assert found(memory.path, ["staged"]) == {}

    other, real = memory.session("b"), payloads.write_pieces
    deleted: list[object] = []

    def deleted_meanwhile(db: Any, blob_pk: int, data: bytes, first: int, count: int) -> None:
        if first and not deleted:
            deleted.append(db.execute("DELETE FROM blob_piece WHERE blob_pk = ?", (blob_pk,)))
        real(db, blob_pk, data, first, count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "write_pieces", deleted_meanwhile)
        turn = say(other, large)
    assert deleted
    assert memory.source(next(iter(other.turns())).ref).part == TextPart(large)
    assert turn.outcome == "completed"


def test_what_was_rewound_is_not_erased(memory: optchat.Memory) -> None:
    session = memory.session("a")
    tell(session, "kept", turns=2)
    memory.settle()
    ref = list(session.turns())[1].ref
    session.rewind(after=next(iter(session.turns())).id)
    memory.settle()
    assert not memory.status().scrub_pending
    assert canary("kept") in str(memory.source(ref).part)


def test_most_of_a_file_is_deleted_and_the_file_shrinks(memory: optchat.Memory) -> None:
    """Pitfall 27."""
    for key in range(10):
        tell(memory.session(f"s{key}"), f"name {key}", turns=1)
    memory.settle()
    memory._scope.store.truncate_log()
    before = memory.status().file_bytes
    for key in range(9):
        memory.session(f"s{key}").delete()
    status = memory.settle()
    assert not status.scrub_pending
    memory._scope.store.truncate_log()
    assert memory.status().file_bytes < before / 2
    assert memory.search(canary("name 9")).items


# ---- who hinders it --------------------------------------------------------------------------------------------------


def test_an_open_reader_hinders_it_and_is_named(memory: optchat.Memory, open_memory: Open) -> None:
    """Schedule 4: the truncating checkpoint answers busy while the secret stays in the log."""
    session = memory.session("a")
    tell(session, "secret")
    memory.settle()
    other = open_memory()
    with other._scope.store.read() as db:
        assert db.execute("SELECT count(*) FROM record").get
        session.delete()
        status = memory.settle()
        assert status.scrub_pending
        ((stage, hindered),) = stages(memory)
        assert stage == "log"
        assert hindered is not None
        assert "(this one)" in hindered
        assert found(memory.path, ["secret"]), "it is in the log still"
        receipt = session.delete()
        assert not receipt.scrubbed
        assert hindered in receipt.kept["file"]
    assert not memory.settle().scrub_pending
    assert stages(memory) == [("scrubbed", None)]
    assert found(memory.path, ["secret"]) == {}
    assert session.delete().scrubbed
    assert "file" not in session.delete().kept


def test_another_process_reader_is_named_and_never_waited_for(
    memory: optchat.Memory, new_peer: Callable[[], Peer]
) -> None:
    session = memory.session("a")
    tell(session, "secret")
    memory.settle()
    peer = new_peer()
    peer("memory = optchat.open(path, scope='test', mode='ro')", path=str(memory.path))
    peer("reading = memory._scope.store.read()")
    peer("rows = reading.__enter__().execute('SELECT count(*) FROM record').get")
    session.delete()
    held: list[float] = []
    with timed_locks(held):
        assert memory.settle().scrub_pending
    assert max(held) < 5, "it waits with the lock for nobody"
    hindered = stages(memory)[0][1]
    assert hindered is not None
    assert str(peer.process.pid) in hindered
    say(memory.session("b"), "others write meanwhile")
    peer.kill()
    assert not memory.settle().scrub_pending
    assert found(memory.path, ["secret"]) == {}


@contextmanager
def timed_locks(held: list[float]) -> Iterator[None]:
    """Seconds for which the writer lock was held, each time."""
    import time

    real = Store.write, Store.exclusive

    def timing(enter: Callable[..., AbstractContextManager[apsw.Connection]]) -> Any:
        @contextmanager
        def block(self: Store, **keywords: Any) -> Iterator[apsw.Connection]:
            began = 0.0
            with enter(self, **keywords) as db:
                began = time.monotonic()
                yield db
            held.append(time.monotonic() - began)

        return block

    Store.write, Store.exclusive = timing(real[0]), timing(real[1])  # type: ignore[method-assign]
    try:
        yield
    finally:
        Store.write, Store.exclusive = real  # type: ignore[method-assign]


def test_a_large_file_is_rewritten_only_for_somebody_who_waits(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = memory.session("a")
    tell(session, "secret")
    memory.settle()
    monkeypatch.setattr(scrubbing, "REWRITTEN_UNASKED_BYTES", 1)
    session.delete()
    while scrubbing.scrub_slice(memory._scope):
        pass
    ((stage, hindered),) = stages(memory)
    assert stage == "pages"
    assert hindered is not None
    assert "settle()" in hindered
    assert not memory.settle().scrub_pending
    assert found(memory.path, ["secret"]) == {}


def test_a_disk_that_is_full_is_said_and_tried_again(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    session = memory.session("a")
    tell(session, "secret", turns=1)
    memory.settle()

    def full(_db: object) -> None:
        raise optchat.StoreFull("the disk is full; free some space and try again")

    session.delete()
    with monkeypatch.context() as patch:
        patch.setattr(scrubs, "rewrite_file", full)
        assert memory.settle().scrub_pending
    assert stages(memory) == [("pages", "the disk is full; free some space and try again")]
    assert not memory.settle().scrub_pending


def test_an_entry_whose_source_is_lost_hinders_its_removal_alone(memory: optchat.Memory) -> None:
    """Schedule 23: with other words it would be deleted with success, and stay findable."""
    for key in ("a", "b"):
        tell(memory.session(key), key, turns=1)
    memory.settle()
    memory.session("a").delete()
    memory.session("b").delete()
    with memory._scope.store.write() as db:
        db.execute("UPDATE record SET payload = NULL WHERE record_key = (SELECT min(record_key) FROM record)")
    assert memory.settle().scrub_pending
    (first, hindered), second = stages(memory)
    assert first == "rows"
    assert hindered is not None
    assert "restore a backup" in hindered
    assert second == ("scrubbed", None)
    assert "b" not in found(memory.path, ["b"])


# ---- who does it, and where it goes on -------------------------------------------------------------------------------


def step_by_step(memory: optchat.Memory) -> Iterator[int]:
    """Scrub, and stop after each step: everything that is known only to the one who scrubs is gone."""
    for number in range(10_000):
        asked = iter((False, True))
        if scrubbing.scrub(memory._scope, lambda asked=asked: next(asked), whole=True) != scrubbing.Scrubbed(False):  # type: ignore[misc]
            return
        yield number


@pytest.mark.usefixtures("small_steps")
def test_it_goes_on_after_any_step(memory: optchat.Memory) -> None:
    session = memory.session("a")
    tell(session, "secret", turns=2)
    say(memory.session("b"), "stays in the file")
    memory.settle()
    session.delete()
    count = 0
    for count in step_by_step(memory):
        if count % 20 == 0:
            say(memory.session("b"), f"between two steps {count}")
    assert count > 20, "there were steps to stop after"
    assert not memory.status().scrub_pending
    assert found(memory.path, ["secret"]) == {}
    assert memory.search("stays").items
    sound(memory)


@pytest.mark.long
@pytest.mark.usefixtures("small_steps")
def test_a_step_that_fails_at_its_end_is_done_again(memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that it took off the list and those that it erased are of one transaction."""
    session = memory.session("a")
    tell(session, "secret", turns=1)
    memory.settle()
    session.delete()
    real, failures = scrubs.move_on, 0

    def fails_first(db: apsw.Connection, erasure: scrubs.Erasure, low: int) -> None:
        nonlocal failures
        real(db, erasure, low)
        failures += 1
        if failures % 2:
            raise optchat.StoreError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(scrubs, "move_on", fails_first)
        while memory.status().scrub_pending:
            try:
                memory.settle()
            except optchat.StoreError:
                continue
    assert failures > 10
    assert found(memory.path, ["secret"]) == {}
    sound(memory)


@pytest.mark.usefixtures("small_steps")
def test_two_that_scrub_at_once_erase_once(memory: optchat.Memory, open_memory: Open) -> None:
    for key in ("a", "b"):
        tell(memory.session(key), key, turns=2)
    memory.settle()
    memory.session("a").delete()
    memory.session("b").delete()
    errors: list[BaseException] = []

    def work(of: optchat.Memory) -> None:
        try:
            of.settle()
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(of,)) for of in (memory, open_memory(), open_memory())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    memory.settle()
    assert stages(memory) == [("scrubbed", None), ("scrubbed", None)]
    assert found(memory.path, ["a", "b"]) == {}
    sound(memory)


def test_two_processes_that_scrub_at_once(memory: optchat.Memory, new_peer: Callable[[], Peer]) -> None:
    for key in ("a", "b"):
        tell(memory.session(key), key, turns=3)
    memory.settle()
    peer = new_peer()
    peer("from optchat.testing import DeterministicSummarizer")
    peer(
        "memory = optchat.open(path, scope='test', summarizer=DeterministicSummarizer(), compact='background')",
        path=str(memory.path),
    )
    memory.session("a").delete()
    memory.session("b").delete()
    memory.settle()
    peer("status = memory.settle()")
    peer("memory.close()")
    assert not memory.settle().scrub_pending
    assert found(memory.path, ["a", "b"]) == {}
    sound(memory)


def test_opening_goes_on_where_it_was_broken_off(memory: optchat.Memory, open_memory: Open) -> None:
    tell(memory.session("a"), "secret", turns=1)
    memory.settle()
    memory.session("a").delete()
    assert memory.status().scrub_pending
    memory.close()
    assert not open_memory().status().scrub_pending
    assert found(memory.path, ["secret"]) == {}


def test_a_worker_in_the_background_scrubs_by_itself(memory: optchat.Memory, new_peer: Callable[[], Peer]) -> None:
    tell(memory.session("a"), "secret", turns=1)
    memory.settle()
    peer = new_peer()
    peer("memory = optchat.open(path, scope='test', compact='background')", path=str(memory.path))
    memory.session("a").delete()
    peer(
        "import time\nfor _ in range(2000):\n    if not memory.status().scrub_pending:\n        break\n"
        "    time.sleep(0.01)"
    )
    assert not memory.status().scrub_pending
    assert found(memory.path, ["secret"]) == {}


@pytest.mark.usefixtures("small_steps")
def test_settle_ends_at_its_time_and_keeps_what_is_left(
    memory: optchat.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(memory.session("a"), "secret", turns=1)
    memory.settle()
    memory.session("a").delete()
    monkeypatch.setattr(scrubbing, "SLICE_SECONDS", 0.0)
    assert memory.settle(timeout_seconds=0).scrub_pending
    assert not memory.settle().scrub_pending


def test_nothing_but_sqlite_opens_the_files(memory: optchat.Memory, new_peer: Callable[[], Peer]) -> None:
    """Schedule 10: asking who reads, too, must not open what is read."""
    tell(memory.session("a"), "secret", turns=1)
    memory.settle()
    peer = new_peer()
    peer("import sys\nopened = []")
    peer("sys.addaudithook(lambda event, about: event == 'open' and opened.append(str(about[0])))")
    peer("memory = optchat.open(path, scope='test', compact='manual')", path=str(memory.path))
    with memory._scope.store.read() as db:
        assert db.execute("SELECT count(*) FROM record").get
        peer("memory.session('a').delete()")
        assert peer("memory.settle().scrub_pending and 1") == 1
    peer("memory.settle()")
    peer("memory.close()")
    assert not memory.status().scrub_pending
    beside = {name for name in peer("opened") if name.startswith(str(memory.path))}
    # A journal has no locks that could be dropped, and only a file that was never finished has one: see store.migrate.
    assert beside <= {f"{memory.path}-lock", f"{memory.path}-journal"}
