"""
Verification: every kind of damage is found under its code; what is derived is made anew, and reads as before.

One file is prepared, and copied for each damage.
"""

import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from attrs import evolve

import optchat
from optchat.core.faults import FAULTS, REPAIR_ORDER, fault_of
from optchat.core.refs import exact_cover
from optchat.engine.verification import index_checks, ledger_checks, tree_checks, upkeep_checks
from optchat.engine.verification.repairing import REPAIRS
from optchat.testing import temporary_memory
from tests.engine.damages import DAMAGES, POLICY, QUERIES, Damage, SmallWindow, damaged, do, make_file, open_file
from tests.engine.helpers import say, words

# What a repair may write of these: nothing. A turn names its publication by a derived column, which is left out.
SOURCES = {
    "record": "*",
    "blob": "*",
    "blob_piece": "*",
    "record_blob": "*",
    "event": "*",
    "staged": "*",
    "session": "*",
    "generation": "*",
    "publication": "*",
    "turn": "turn_pk, turn_id, generation_pk, segment_pk, ordinal, state, outcome, start_seq, end_seq, removed",
    "turn_descriptor": "*",
    "rendering": "*",
    "retrieval": "*",
    "removal": "*",
    "segment": "segment_pk, tree_pk, base_segment, base_length, kept_length",
}


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prepared.db"
        make_file(path)
        yield path


@pytest.fixture(scope="module")
def sound(prepared: Path) -> dict[str, Any]:
    """What the file answers once its jobs are done, undamaged."""
    path = damaged(prepared, prepared.with_name("sound.db"), Damage("", "nothing", "UPDATE scope SET clock = clock"))
    with open_file(path) as memory:
        return settled(memory)


def settled(memory: optchat.Memory) -> dict[str, Any]:
    """Every answer after the jobs are done. Numbers of documents and snapshots are no part of what is read."""
    assert memory.settle().ready
    found: dict[str, Any] = {"views": [], "lines": [], "sources": [], "hits": {}}
    for session in [None, *memory.sessions()]:
        view = memory.view(None if session is None else session.id)
        found["views"].append([(line.ref, line.text, line.not_completed, line.first_at) for line in view.lines])
        assert view.missing == ()
        length = view.through if session is None else session.length
        name = "pub" if session is None else f"session:{session.id}:0"
        for span in exact_cover(0, length):
            opened = memory.zoom(f"{name}:{span}", depth=4)
            found["lines"] += [
                (line.ref, line.kind, line.text, line.not_completed, line.first_at, line.last_at)
                for line in opened.lines
            ]
        if session is None:
            found["lines"] += [memory.zoom(f"pub:{number}+1").lines for number in range(length)]
        else:
            found["sources"] += [memory.source(f"{name}:{seq}+1") for seq in range(length)]
    with memory.pin() as pinned:
        for query in QUERIES:
            for order in ("best", "newest"):
                page = memory.search(query, order=order, limit=50)
                hits = {(hit.ref, hit.excerpt, hit.publication_ref) for hit in page}
                found["hits"][query, order] = hits, page.unindexed
            found["hits"][query, "pinned"] = {hit.ref for hit in pinned.search(query, limit=50)}
    return found


def sources(path: Path) -> dict[str, list[Any]]:
    db = apsw.Connection(str(path))
    rows = {table: db.execute(f"SELECT {columns} FROM {table}").fetchall() for table, columns in SOURCES.items()}
    db.close()
    return rows


@pytest.fixture
def opened(prepared: Path, damage: Damage) -> Iterator[optchat.Memory]:
    with TemporaryDirectory() as folder, open_file(damaged(prepared, Path(folder) / "memory.db", damage)) as memory:
        yield memory


# Every damage is found every day, the first one of each code; these are repaired by themselves every day, too. All that
# can be repaired is so at once in one test, and by itself in the soak.
REPAIRED_DAILY = {"MERGE_LOST", "WAITER", "ENTRY_CHANGED"}
UNTOUCHED_DAILY = {"PAYLOAD_CHANGED", "PUBLICATION_GAP"}


def each(wanted: Callable[[Damage], bool], daily: Collection[str]) -> list[Any]:
    """Damages; the first of each code that is named daily, and the others in the soak."""
    chosen: list[Any] = []
    seen: set[str] = set()
    for damage in filter(wanted, DAMAGES):
        marks = [] if damage.code in daily and damage.code not in seen else [pytest.mark.soak]
        chosen.append(pytest.param(damage, id=str(damage), marks=marks))
        seen.add(damage.code)
    return chosen


def repairable(damage: Damage) -> bool:
    return FAULTS[damage.code].repairable


def assert_named(report: optchat.VerifyReport, damage: Damage) -> None:
    """A report names a damage, and each fault says what to do about it."""
    assert not report.ok
    assert damage.code in {fault.code for fault in report.faults}, report.faults
    for fault in report.faults:
        kind = FAULTS[fault.code]
        assert fault.repairable == kind.repairable
        assert fault.message.endswith(kind.advice)
        assert fault.message.partition(";")[0]


def test_the_prepared_file_is_sound_and_has_something_of_everything(prepared: Path) -> None:
    with open_file(prepared, "ro") as memory:
        report = memory.verify()
    assert report.faults == ()
    assert report.ok
    assert all(report.checked.values()), report.checked


def test_every_code_has_a_damage_that_brings_it_about_and_every_repairable_one_a_repair() -> None:
    assert {damage.code for damage in DAMAGES} == set(FAULTS)
    assert set(REPAIRS) == set(REPAIR_ORDER) == {code for code, kind in FAULTS.items() if kind.repairable}


def test_a_code_that_is_not_in_the_table_is_none() -> None:
    with pytest.raises(optchat.BadArgument, match="add it to the table"):
        fault_of("ODD", None, "odd")


@pytest.mark.parametrize("damage", each(lambda _: True, FAULTS))
def test_a_damage_is_found_under_its_code(opened: optchat.Memory, damage: Damage) -> None:
    assert_named(opened.verify(), damage)


@pytest.mark.parametrize("damage", each(lambda damage: not repairable(damage), UNTOUCHED_DAILY))
def test_what_is_wrong_with_a_source_stays_and_is_said(opened: optchat.Memory, damage: Damage) -> None:
    before = sources(opened.path)
    assert_named(opened.verify(repair=True), damage)
    assert_untouched(before, opened)


@pytest.mark.parametrize("damage", each(repairable, REPAIRED_DAILY))
def test_what_is_derived_is_made_anew_and_reads_as_before(
    opened: optchat.Memory, damage: Damage, sound: dict[str, Any]
) -> None:
    assert_repaired(opened, sound, views=damage.views)


def test_everything_that_can_be_repaired_is_repaired_at_once(prepared: Path, sound: dict[str, Any]) -> None:
    chosen = {damage.code: damage for damage in reversed(DAMAGES) if repairable(damage)}
    del chosen["INDEX"]  # of a damaged index nothing else is known
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        shutil.copy(prepared, path)
        done = [damage for damage in chosen.values() if do(path, damage)]
        assert len(done) > 20
        with open_file(path) as memory:
            assert len({fault.code for fault in memory.verify().faults}) > 15
            assert_repaired(memory, sound, views=False)


def assert_untouched(before: dict[str, list[Any]], memory: optchat.Memory) -> None:
    after = sources(memory.path)
    for table, rows in before.items():
        assert [row for row in rows if row not in after[table]] == [], f"a source in {table} was changed"
        # a turn that waited for what was lost, or lost its publication, may be published now
        assert len(rows) == len(after[table]) or table == "publication"


def assert_repaired(memory: optchat.Memory, sound: dict[str, Any], *, views: bool) -> None:
    """Repaired by one call, which then has nothing to do; and read as before."""
    before = sources(memory.path)
    report = memory.verify(repair=True)
    assert report.faults == ()
    assert report.ok
    assert report.repaired > 0
    written = memory._scope.store.data_version()
    again = memory.verify(repair=True)
    assert (again.ok, again.repaired) == (True, 0)
    assert memory._scope.store.data_version() == written, "a repair of what is sound wrote something"
    assert_untouched(before, memory)
    answers = settled(memory)
    for what, expected in sound.items():
        if what != "views" or views:
            assert answers[what] == expected, what
    assert memory.verify().ok


# ---- beside writers --------------------------------------------------------------------------------------------------


def test_what_changes_between_two_steps_is_no_fault(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every read transaction of a check somebody else commits something, and each step is as short as can be."""
    for module in (ledger_checks, tree_checks, upkeep_checks, index_checks):
        monkeypatch.setattr(module, "STEP", 30)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        shutil.copy(prepared, path)
        with open_file(path) as memory, open_file(path) as other:
            store, worker = memory._scope.store, other._house.worker
            read, count = store.read, 0
            assert worker is not None

            @contextmanager
            def with_others() -> Iterator[apsw.Connection]:
                nonlocal count
                count += 1
                session = other.session(("first", "second", "new")[count % 3])
                match count % 5:
                    case 0:
                        worker.round(other._scope)
                    case 1:
                        session.turn(words(count, 100 + 37 * count % 900)).end("completed")
                    case 2:
                        session.turn(f"open {count}").assistant("not yet")
                    case 3:
                        session.turn(words(count, 2_500)).end("failed")
                    case _:
                        pass
                with read() as db:
                    yield db

            monkeypatch.setattr(store, "read", with_others)
            report = memory.verify()
            assert report.faults == ()
            assert count > 60, "the check took few steps: nothing came between them"
            monkeypatch.undo()
            assert other.settle().ready
            assert memory.verify().ok


def test_nobody_waits_for_a_check(prepared: Path) -> None:
    """A writer that waits for nothing at all writes between and during its steps."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        shutil.copy(prepared, path)
        policy = evolve(POLICY, lock_wait_seconds=0.0)
        with open_file(path) as memory, optchat.open(path, scope="test", policy=policy, compact="manual") as writer:
            done = threading.Event()
            reports: list[optchat.VerifyReport] = []

            def check() -> None:
                while not done.is_set():
                    reports.append(memory.verify())

            thread = threading.Thread(target=check)
            thread.start()
            try:
                for number in range(30):
                    writer.session("first").turn(words(number, 200)).end("completed")
            finally:
                done.set()
                thread.join()
            assert all(report.faults == () for report in reports)


# ---- forks, rewinds, removals ----------------------------------------------------------------------------------------


def undone(memory: optchat.Memory) -> dict[str, Any]:
    """A fork, a fork of it, a rewind below it, a revoked session, a turn deleted; and what can be read of it all."""
    first = memory.session("first")
    for number in range(6):
        say(first, words(number, 900 if number % 2 else 3_000))
    memory.settle()
    turns = first.turns().items
    fork = first.fork("fork", after=turns[3].id)
    say(fork, words(20, 900))
    second = fork.fork("fork of a fork")
    say(second, words(21, 3_000))
    first.rewind(after=turns[2].id)
    first = memory.session("first")
    say(first, words(22, 700))
    private = memory.session("private")
    say(private, words(23, 700))
    private.revoke()
    other = memory.session("other")
    for number in range(30, 34):
        say(other, words(number, 700))
    other.delete(only=[other.turns().items[1].id])
    return read_of(memory)


def text_of(memory: optchat.Memory, ref: str) -> str | None:
    """A record's text; None where it was deleted."""
    try:
        return memory.zoom(ref).text
    except optchat.UnknownRef:
        return None


def read_of(memory: optchat.Memory) -> dict[str, Any]:
    assert memory.settle().ready
    found: dict[str, Any] = {"shared": [line.text for line in memory.view().lines]}
    for session in memory.sessions():
        name = f"session:{session.id}:{session.generation}"
        found[session.key] = [text_of(memory, f"{name}:{seq}+1") for seq in range(session.length)]
    found["hits"] = {hit.ref for number in (0, 4, 20, 21, 22, 23, 31, 32) for hit in memory.search(f"thing{number}")}
    return found


def test_what_forks_and_rewinds_left_is_repaired_too() -> None:
    with temporary_memory(policy=POLICY, summarizer=SmallWindow()) as memory:
        before = undone(memory)
        assert memory.verify().faults == ()
        with memory._scope.store.write() as db:
            db.execute("DELETE FROM node WHERE kind <> 3")
            db.execute("UPDATE view SET length = 0, levels = x''")
            db.execute("UPDATE segment SET ended_length = 0")
        found = {fault.code for fault in memory.verify().faults}
        assert {"LEAF_LOST", "MERGE_LOST", "VIEW", "PUBLICATION_LEAF", "ENDED_LENGTH"} <= found
        assert memory.verify(repair=True).faults == ()
        assert read_of(memory) == before
        assert memory.verify().faults == ()


def test_what_was_removed_is_hidden_again_where_an_index_entry_was_not() -> None:
    with temporary_memory(policy=POLICY) as memory:
        session = memory.session("s")
        say(session, "the needle")
        say(session, "the haystack")
        session.delete(only=[session.turns().items[0].id])
        with memory._scope.store.write() as db:
            db.execute("UPDATE document SET state = 0 WHERE state = 1")
            shown = db.changes()
        if not shown:
            pytest.skip("its entries are erased already")
        assert {fault.code for fault in memory.verify().faults} == {"DOCUMENT_STATE"}
        assert memory.verify(repair=True).ok
        assert memory.search("needle").items == ()


# ---- what verification is asked for ----------------------------------------------------------------------------------


def test_another_scope_of_the_file_is_left_alone(prepared: Path) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        shutil.copy(prepared, path)
        with open_file(path, "rwc") as memory:
            other = memory.scoped("other")
            other.session("s").turn("broker and needle").end("completed")
            other.settle()
        for damage in sorted(DAMAGES, key=lambda damage: damage.code == "INDEX"):
            if damage.code in {"ENTRY_MISSING", "VIEW", "INDEX", "MERGE_LOST"}:
                do(path, damage)
        with open_file(path) as memory:
            other = memory.scoped("other")
            assert {fault.code for fault in other.verify().faults} == {"INDEX"}
            assert memory.verify(repair=True).ok
            assert other.verify().ok
            assert [hit.excerpt for hit in other.search("needle")] == ["broker and needle"]


def test_a_reader_may_check_and_not_repair(prepared: Path) -> None:
    with open_file(prepared, "ro") as memory:
        assert memory.verify().ok
        with pytest.raises(optchat.StoreReadOnly):
            memory.verify(repair=True)
