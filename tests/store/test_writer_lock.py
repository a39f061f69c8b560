"""Who writes next, among threads and processes; and how the living tell the dead."""

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import apsw
import pytest

from optchat.core.errors import StoreBusy, StoreError, StoreReadOnly
from optchat.store import owners, writer_lock
from optchat.store.connection import Store
from optchat.store.files import lock_path
from optchat.store.writer_lock import HandoverMutex, LockFile, poll
from tests.store.actor import Actor, Failed
from tests.store.handles import Open, names, put

NewActor = Callable[..., Actor]
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="only Linux tells who holds a lock")


def always() -> float:
    return time.monotonic() + 60


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_twelve_processes_open_a_fresh_file_together(new_actor: NewActor, open_store: Open) -> None:
    actors = [new_actor() for _ in range(12)]
    for actor in actors:
        actor.tell("open")
    owners = [actor.answer() for actor in actors]
    for actor in actors:
        actor.tell("append", f"{actor.pid}-", 5)
    for actor in actors:
        actor.answer()
    store = open_store()
    with store.read() as db:
        rows = db.execute("SELECT owner_pk, slot FROM owner").fetchall()
        assert db.execute("PRAGMA integrity_check").get == "ok"
    assert sorted([*owners, store.owner_pk]) == sorted(owner for owner, _ in rows)
    assert sorted(slot for _, slot in rows) == list(range(13))
    assert len(names(store)) == 12 * 5
    for actor in actors:
        actor.leave()


@pytest.mark.long
def test_no_acknowledged_commit_is_lost(new_actor: NewActor, open_store: Open) -> None:
    actors = [new_actor() for _ in range(4)]
    for actor in actors:
        actor.ask("open")
    for actor in actors:
        actor.tell("append", f"{actor.pid}-", 200)
    for actor in actors:
        actor.answer()
        actor.leave()
    assert len(names(open_store())) == 4 * 200


@LINUX
def test_a_stopped_holder_is_named_and_others_go_on_once_it_does(new_actor: NewActor, open_store: Open) -> None:
    store, holder, other = open_store(), new_actor(), new_actor()
    holder.ask("open")
    other.ask("open")
    holder.ask("begin")
    holder.ask("put", "held")
    holder.send(signal.SIGSTOP)
    with (
        pytest.raises(StoreBusy, match=f"process {holder.pid}, which is stopped") as raised,
        store.write(wait_seconds=0.1),
    ):
        pass
    assert f"kill -CONT {holder.pid}" in str(raised.value)
    assert "lock_wait_seconds" in str(raised.value)
    assert names(store) == []  # readers go on
    holder.send(signal.SIGCONT)
    with pytest.raises(StoreBusy, match=f"process {holder.pid} was still writing"), store.write(wait_seconds=0.05):
        pass
    other.tell("append", "after", 1)
    holder.ask("commit")
    other.answer()
    assert names(store) == ["after0", "held"]


def test_a_killed_holder_frees_the_lock_and_its_transaction_is_undone(new_actor: NewActor, store: Store) -> None:
    holder = new_actor()
    holder.ask("open")
    holder.ask("begin")
    holder.ask("put", "lost")
    holder.send(signal.SIGKILL)
    with store.write(wait_seconds=0.0):  # at once: no lease has to run out
        pass
    assert names(store) == []


def test_a_stopped_holder_that_is_killed_frees_the_lock(new_actor: NewActor, store: Store) -> None:
    holder = new_actor()
    holder.ask("open")
    holder.ask("begin")
    holder.send(signal.SIGSTOP)
    holder.send(signal.SIGKILL)
    put(store, "a")


def test_opening_waits_for_the_lock_too(new_actor: NewActor, open_store: Open) -> None:
    holder = new_actor()
    holder.ask("open")
    holder.ask("begin")
    with pytest.raises(StoreBusy, match="still writing"):
        open_store(wait=0.05)
    holder.ask("commit")
    put(open_store(wait=0.05), "a")


def test_a_program_that_knows_no_lock_is_told_from_one_that_does(new_actor: NewActor, store: Store) -> None:
    holder = new_actor()
    holder.ask("transaction_without_the_lock")
    with pytest.raises(StoreBusy, match="does not keep optchat's lock") as raised, store.write(wait_seconds=0.05):
        pass
    assert raised.value.__cause__ is not None
    holder.ask("end_transaction_without_the_lock")
    put(store, "a")


@LINUX
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_an_opener_waits_for_the_last_process_that_closes(
    new_actor: NewActor, store: Store, open_store: Open, path: Path, mode: str
) -> None:
    """It has the file to itself meanwhile: an opener was told "database is locked" at once."""
    put(store, "a")
    store.close()
    closer, opener = new_actor(), new_actor()
    closer.ask("have_the_file_alone")
    with pytest.raises(StoreBusy):
        open_store(mode, wait=0.05)
    opener.tell("open", mode)
    if mode == "rw":
        lock = writer_lock.LockFile.open(path.with_name("memory.db-lock"), create=True)
        assert lock is not None
        assert poll(lambda: writer_lock._holder_pid(lock.descriptors[-1], 0) == opener.pid, always())
        lock.close()
    closer.ask("end_transaction_without_the_lock")
    opener.answer()
    assert opener.ask("names") == ["a"]


def test_a_waiter_gets_the_lock_when_it_is_freed(new_actor: NewActor, store: Store) -> None:
    waiter = new_actor()
    waiter.ask("open")
    with store.write():
        waiter.tell("append", "a", 1)
        with pytest.raises(Failed, match="still writing"):
            impatient = new_actor()
            impatient.ask("open", "rw", 0.05)
    waiter.answer()
    assert names(store) == ["a0"]


def test_a_process_that_writes_on_and_on_lets_a_waiter_go_first(
    new_actor: NewActor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, pauses = store._lock, []

    def pauses_before_writing(*, written_for_seconds: float) -> int:
        pauses.clear()
        now = time.monotonic()
        lock._released_at, lock._writing_since = now, now - written_for_seconds
        with monkeypatch.context() as patch:
            patch.setattr(
                writer_lock, "_COURTESY_SECONDS", 60.0
            )  # however slow this machine is, there was no pause yet
            patch.setattr(time, "sleep", pauses.append)
            put(store, f"{now}")
        return len(pauses)

    assert pauses_before_writing(written_for_seconds=1) == 0
    waiter = new_actor()
    waiter.ask("open")
    waiter.ask("probe_for_long", writer_lock._MOST_SLOTS)  # the byte by which waiters show themselves
    assert pauses_before_writing(written_for_seconds=1) == 1
    assert pauses_before_writing(written_for_seconds=-60) == 0  # it has only just begun
    waiter.leave()
    assert pauses_before_writing(written_for_seconds=1) == 0


def test_a_waiter_shows_itself_while_it_waits(new_actor: NewActor, store: Store) -> None:
    def somebody_waits() -> bool:
        if not store._lock._try_lock(writer_lock._WAITING_BYTE):
            return True
        store._lock._unlock(writer_lock._WAITING_BYTE)
        return False

    waiter = new_actor()
    waiter.ask("open")
    assert not somebody_waits()
    with store.write():
        waiter.tell("append", "a", 1)
        assert poll(somebody_waits, always())
    waiter.answer()
    assert not somebody_waits()


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_another_thread_is_named(store: Store, open_store: Open) -> None:
    other = open_store()
    with store.write():
        raised: list[BaseException] = []

        def write() -> None:
            try:
                with other.write(wait_seconds=0.02):
                    pass
            except StoreBusy as error:
                raised.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert "another thread of this process" in str(raised[0])


def waiting(mutex: HandoverMutex, count: int) -> None:
    assert poll(lambda: len(mutex._waiters) == count, always())


def test_the_mutex_is_handed_to_the_longest_waiter() -> None:
    mutex, order = HandoverMutex(), []
    assert mutex.acquire(always())

    def work(number: int) -> None:
        assert mutex.acquire(always())
        assert mutex.held_by_this_thread
        order.append(number)
        mutex.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        waiting(mutex, count)
    mutex.release()
    assert not mutex.held_by_this_thread  # nor can the releasing thread take it before them
    for thread in threads:
        thread.join()
    assert order == list(range(5))
    assert mutex.acquire(time.monotonic())


def test_a_waiter_past_its_deadline_leaves_the_queue() -> None:
    mutex, got = HandoverMutex(), []
    mutex.acquire(always())
    thread = threading.Thread(target=lambda: got.append(mutex.acquire(time.monotonic() + 0.01)))
    thread.start()
    thread.join()
    assert got == [False]
    mutex.release()
    assert mutex.acquire(time.monotonic())


def test_a_waiter_that_a_signal_takes_away_leaves_the_queue() -> None:
    mutex = HandoverMutex()
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        mutex.acquire(always())
        holding.set()
        done.wait()
        mutex.release()

    main = threading.get_ident()

    def interrupt() -> None:
        waiting(mutex, 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    def handle(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        threads = [threading.Thread(target=hold), threading.Thread(target=interrupt)]
        threads[0].start()
        holding.wait()
        threads[1].start()
        with pytest.raises(InterruptedError):
            mutex.acquire(always())
    finally:
        signal.signal(signal.SIGUSR1, before)
    waiting(mutex, 0)
    done.set()
    for thread in threads:
        thread.join()
    assert mutex.acquire(time.monotonic())


def test_polling_tries_once_even_past_its_deadline() -> None:
    tried: list[bool] = []

    def attempt() -> bool:
        tried.append(True)
        return len(tried) > 1

    assert not poll(attempt, time.monotonic() - 1)
    assert len(tried) == 1
    assert poll(attempt, time.monotonic() - 1)


# ---- the lock file ---------------------------------------------------------------------------------------------------


def test_the_lock_file_is_opened_once_a_process_and_closed_last(path: Path) -> None:
    place = lock_path(path)
    assert LockFile.open(place, create=False) is None
    first = LockFile.open(place, create=True)
    assert first is not None
    assert place.name == "memory.db-lock"
    assert LockFile.open(place, create=True) is first
    assert LockFile.open(place, create=False) is first
    for _ in range(3):
        assert first.descriptors
        first.close()
    assert not first.descriptors
    again = LockFile.open(place, create=True)
    assert again is not None
    assert again is not first
    again.close()


def test_a_reader_may_come_before_the_writer(tmp_path: Path) -> None:
    """A process that had only a readable descriptor gets a second one; closing neither before both can go."""
    place = tmp_path / "memory.db-lock"
    place.touch(0o600)
    reader = LockFile.open(place, create=False)
    assert reader is not None
    reader.writable = False
    writer = LockFile.open(place, create=True)
    assert writer is reader
    assert len(writer.descriptors) == 2
    with writer.hold(always(), 60):
        reader.close()
        assert len(writer.descriptors) == 2
    writer.close()
    assert not writer.descriptors


def test_a_link_in_the_lock_files_place_is_refused(path: Path, open_store: Open) -> None:
    lock_path(path).symlink_to(path.with_name("elsewhere"))
    with pytest.raises(StoreError, match="out of the way"):
        open_store()
    assert not path.with_name("elsewhere").exists()


def test_a_folder_without_permission_is_read_only(shared_folder: Path, new_actor: NewActor) -> None:
    actor = new_actor(shared_folder / "memory.db")
    shared_folder.chmod(0o555)
    actor.ask("drop_privileges")
    with pytest.raises(Failed, match="lock file") as raised:
        actor.ask("open")
    assert raised.value.name == StoreReadOnly.__name__
    assert list(shared_folder.iterdir()) == []


# ---- who lives -------------------------------------------------------------------------------------------------------


def alive(store: Store, owner_pk: int) -> bool:
    with store.read() as db:
        return store.owner_alive(db, owner_pk)


def test_an_owner_lives_as_long_as_its_process(store: Store, new_actor: NewActor) -> None:
    actor = new_actor()
    owner = actor.ask("open")
    assert alive(store, owner)
    assert actor.ask("alive", store.owner_pk)
    actor.send(signal.SIGSTOP)
    assert alive(store, owner)  # stopped is not dead
    actor.send(signal.SIGKILL)
    assert not alive(store, owner)


def test_an_owner_is_gone_when_its_last_handle_closes(store: Store, new_actor: NewActor) -> None:
    actor = new_actor()
    owner = actor.ask("open")
    actor.ask("close")
    assert not alive(store, owner)
    again = actor.ask("open")
    assert again != owner
    assert alive(store, again)
    assert not alive(store, owner)


def test_a_slot_is_used_again_and_its_new_owner_alone_lives(store: Store, new_actor: NewActor) -> None:
    first = new_actor()
    dead = first.ask("open")
    first.send(signal.SIGKILL)
    second = new_actor()
    living = second.ask("open")
    with store.read() as db:
        slots = dict(db.execute("SELECT owner_pk, slot FROM owner"))
    assert slots[dead] == slots[living]
    assert (alive(store, dead), alive(store, living)) == (False, True)
    assert (second.ask("alive", dead), second.ask("alive", living)) == (False, True)


def test_an_absent_owner_is_not_alive(store: Store) -> None:
    assert not alive(store, 77)
    assert not alive(store, 0)


def test_the_handles_of_a_process_share_slot_and_owner(store: Store, open_store: Open, new_actor: NewActor) -> None:
    other, actor = open_store(), new_actor()
    actor.ask("open")
    assert other.owner_pk == store.owner_pk
    with store.read() as db:
        assert db.execute("SELECT count(*) FROM owner").get == 2
        row = db.execute("SELECT pid, started_at FROM owner WHERE owner_pk = :pk", {"pk": store.owner_pk}).get
    assert row == (os.getpid(), 1767323045_000678)
    other.close()
    assert actor.ask("alive", store.owner_pk)  # closing one of two drops no lock
    put(store, "a")


def test_asking_does_not_take_the_answer_away(store: Store, open_store: Open, new_actor: NewActor) -> None:
    """To try one's own byte and let go would free the slot: a process would declare itself dead."""
    actor = new_actor()
    owner = actor.ask("open")
    reader = open_store("ro")
    for _ in range(2):
        assert alive(store, store.owner_pk)
        assert alive(reader, store.owner_pk)
        assert alive(store, owner)
        assert actor.ask("alive", store.owner_pk)
        assert actor.ask("alive", owner)
    store._lock.slot_taken(store._lock.slot)
    assert actor.ask("alive", store.owner_pk)


def test_one_who_asks_is_not_taken_for_the_owner(store: Store, new_actor: NewActor) -> None:
    asker, first = new_actor(), new_actor()
    asker.ask("open")
    dead = first.ask("open")
    first.send(signal.SIGKILL)
    asker.ask("probe_for_long", 2)
    with store.read() as db:
        assert db.execute("SELECT slot FROM owner WHERE owner_pk = :pk", {"pk": dead}).get == 2
    assert not alive(store, dead)


def test_a_slot_is_given_back_when_its_row_could_not_be_written(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store().close()
    reader = open_store("ro")  # keeps the lock file open
    enter = owners.enter

    def fail(db: apsw.Connection, lock: LockFile, now: datetime) -> int:
        enter(db, lock, now)
        raise StoreError("no row")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="no row"):
        patch.setattr(owners, "enter", fail)
        open_store()
    assert reader._lock.slot is None
    again = open_store()
    assert again._lock is reader._lock
    assert alive(reader, again.owner_pk)


@pytest.mark.long
def test_many_processes_ask_at_once_and_none_takes_another_for_the_owner(new_actor: NewActor) -> None:
    dead = new_actor()
    owner = dead.ask("open")
    actors = [new_actor() for _ in range(3)]
    for actor in actors:
        actor.ask("open")
    dead.send(signal.SIGKILL)
    for actor in actors:
        for _ in range(20):
            actor.tell("alive", owner)
    assert not any(actor.answer() for actor in actors for _ in range(20))
