"""
Scrubbing's books, and when a word has left the full-text index for good (schedules 4, 5, 23).

The index is asked by bytes here: what a search does not find may stand in its blocks all the same.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import apsw
import pytest
from hypothesis import given, settings, strategies as st

from optchat.core.words import words_of
from optchat.store import scrubs
from optchat.store.migrate import FORMAT
from optchat.store.scrubs import Erasure, RemovalRow, Segment

REMOVAL = RemovalRow(1, 1, 5, "rows", None)


@pytest.fixture
def connect() -> Iterator[Callable[[], apsw.Connection]]:
    opened: list[apsw.Connection] = []

    def connect() -> apsw.Connection:
        opened.append(fresh())
        return opened[-1]

    yield connect
    for db in opened:
        db.close()


def fresh() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute(FORMAT.schema_sql)
    add_removal(db, 1)
    return db


def add_removal(db: apsw.Connection, number: int, stage: str = "rows", scope: int = 1) -> None:
    db.execute(
        "INSERT INTO removal (removal_pk, scope_pk, kind, epoch, clock, at, removed, kept, seen, stage)"
        " VALUES (?, ?, 'turns', 1, 5, 0, '{}', '{}', '{}', ?)",
        (number, scope, stage),
    )


# ---- the list of what is to be erased --------------------------------------------------------------------------------


def test_sources_of_index_entries_come_before_what_has_none(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    for kind in reversed(scrubs.KINDS):
        scrubs.add_erasure(db, 1, kind, 3, 9)
    met: list[str] = []
    while (erasure := scrubs.next_erasure(db, REMOVAL)) is not None:
        met.append(erasure.kind)
        scrubs.move_on(db, erasure, erasure.high)
    assert met == list(scrubs.KINDS)


def test_an_erasure_moves_on_and_is_taken_off_the_list(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    scrubs.add_erasure(db, 1, "records", 3, 9)
    first = scrubs.next_erasure(db, REMOVAL)
    assert first == Erasure(REMOVAL, "records", 3, 9)
    scrubs.move_on(db, first, 5)
    assert not scrubs.still_to_do(db, first), "another process that read it before would erase it again"
    second = scrubs.next_erasure(db, REMOVAL)
    assert second == Erasure(REMOVAL, "records", 5, 9)
    scrubs.move_on(db, second, 5)
    assert scrubs.still_to_do(db, second)
    scrubs.move_on(db, second, 9)
    assert scrubs.next_erasure(db, REMOVAL) is None


def test_a_removal_is_pending_until_its_log_is_empty(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    add_removal(db, 2, "log", scope=2)
    assert [removal.removal_pk for removal in scrubs.unfinished(db)] == [1, 2]
    assert scrubs.is_pending(db, 2)
    scrubs.hinder(db, scrubs.unfinished(db), "a reader")
    assert {removal.hindered for removal in scrubs.unfinished(db)} == {"a reader"}
    scrubs.advance(db, [removal for removal in scrubs.unfinished(db) if removal.stage == "log"], "scrubbed")
    assert [removal.removal_pk for removal in scrubs.unfinished(db)] == [1]
    assert (scrubs.is_pending(db, 1), scrubs.is_pending(db, 2)) == (True, False)
    assert (scrubs.is_scrubbed(db, 1), scrubs.is_scrubbed(db, 2)) == (False, True)


def test_a_stage_that_another_process_has_left_is_not_entered_again(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    seen = scrubs.unfinished(db)
    assert scrubs.enter_index(db, REMOVAL)
    assert not scrubs.enter_index(db, REMOVAL)
    scrubs.advance(db, seen, "scrubbed")  # read while its stage was "rows"
    assert [removal.stage for removal in scrubs.unfinished(db)] == ["index"]


# ---- the index -------------------------------------------------------------------------------------------------------


def entry(db: apsw.Connection, key: int, text: str) -> None:
    db.execute("INSERT INTO words (rowid, text, place) VALUES (?, ?, 's1 k0')", (key, words_of(text)))


def delete(db: apsw.Connection, key: int, text: str) -> None:
    db.execute("INSERT INTO words (words, rowid, text, place) VALUES ('delete', ?, ?, 's1 k0')", (key, words_of(text)))


def much(key: int) -> str:
    """Text whose words no other has, so that the index has many pages."""
    return " ".join(hashlib.sha256(f"{key} {word}".encode()).hexdigest() for word in range(20))


def secret(key: int) -> str:
    """A word whose end no other has, whatever it shares with the one before it in the index."""
    return "".join("bcdfghjklmnpqrtvwxz"[byte % 19] for byte in hashlib.sha256(str(key).encode()).digest()[:14])


def left(db: apsw.Connection, keys: Iterable[int]) -> set[int]:
    """Those of the secrets of which the index has something still."""
    data = stored(db)
    return {key for key in keys if secret(key)[-8:].encode() in data}


def stored(db: apsw.Connection) -> bytes:
    """All bytes of the index: its blocks, and the first words of its pages."""
    blocks = db.execute("SELECT block FROM words_data").fetchall()
    terms = db.execute("SELECT CAST(term AS BLOB) FROM words_idx").fetchall()
    return b"\0".join(bytes(row[0]) for row in blocks + terms)


def segment_numbers(db: apsw.Connection) -> set[int]:
    """Of which segments there are blocks: FTS5 keeps a block's segment in the high bits of its key."""
    return {row[0] for row in db.execute("SELECT DISTINCT id >> 37 FROM words_data WHERE id > 10").fetchall()}


def merge(
    db: apsw.Connection, pages: int = 2, sealing: Callable[[int], None] | None = None, *, at_once: int = 1
) -> int:
    """Mark, and merge until nothing is waited for, some steps a transaction; how many steps that took."""
    scrubs.await_merge(db, 1)
    for step in range(0, 500 * at_once, at_once):
        if sealing is not None:
            sealing(step)
        with db:
            for one in range(at_once):
                if not scrubs.merge_some(db, [REMOVAL], pages):
                    assert not scrubs.awaits_merge(db, REMOVAL)
                    return step + one
    raise AssertionError("it never comes to an end")


def test_a_deleted_word_is_gone_when_all_segments_were_merged(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    secrets = ("heliotrope", "xylophone", "中文字")
    for key in range(400):
        entry(db, key, f"{secrets[key % 9 // 3]} {key} of many" if key % 3 == 0 else f"ordinary word {key} {much(key)}")
    for key in range(0, 400, 3):
        delete(db, key, f"{secrets[key % 9 // 3]} {key} of many")
    said = [b"eliotrop", b"ylophon", "文字".encode()]  # all but what they may share with the word before
    assert all(word in stored(db) for word in said), "an entry that is deleted has its words there still"
    steps = merge(db)
    assert steps > 1, "one step would hold the lock for as long as there are words"
    assert not [word for word in said if word in stored(db)]
    assert {"ordinari", "word", "1", "398"} <= terms(db)
    db.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def terms(db: apsw.Connection) -> set[str]:
    db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.all_terms USING fts5vocab ('main', 'words', 'row')")
    return {row[0] for row in db.execute("SELECT term FROM temp.all_terms").fetchall()}


def test_what_is_sealed_meanwhile_is_not_waited_for(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    for key in range(300):
        entry(db, key, f"first{key} {much(key)}")
    delete(db, 7, f"first7 {much(7)}")

    def sealing(step: int) -> None:
        entry(db, 1000 + step, f"later{step} words of many")

    steps = merge(db, pages=1, sealing=sealing)
    assert steps > 5
    assert "first7" not in terms(db)
    assert {"first8", "later0", f"later{steps - 1}"} <= terms(db)


def test_an_empty_index_is_not_waited_for(connect: Callable[[], apsw.Connection]) -> None:
    assert merge(connect()) == 0


def test_removals_that_come_together_wait_for_one_merge(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    add_removal(db, 2)
    for key in range(60):
        entry(db, key, f"word{key}")
    delete(db, 3, "word3")
    scrubs.await_merge(db, 1)
    scrubs.await_merge(db, 2)
    second = RemovalRow(2, 1, 5, "index", None)
    while scrubs.merge_some(db, [REMOVAL, second], 4):
        pass
    assert not scrubs.awaits_merge(db, REMOVAL)
    assert not scrubs.awaits_merge(db, second)
    assert "word3" not in terms(db)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("seal"), st.integers(1, 30)),
        st.tuples(st.just("delete"), st.integers(1, 10)),
        st.tuples(st.just("merge"), st.integers(1, 5)),
        st.tuples(st.just("other"), st.integers(1, 5)),
    ),
    max_size=25,
)


@settings(max_examples=settings().max_examples // 2)
@given(ACTIONS, st.integers(1, 4), st.sampled_from((1, 2, 30)))
def test_whatever_was_sealed_and_merged_no_deleted_word_is_left(
    actions: Sequence[tuple[str, int]], pages: int, at_once: int
) -> None:
    """By bytes: a note that a word is deleted says the word. And the structure is read as it is written."""
    db = fresh()
    there: dict[int, str] = {}
    gone: set[int] = set()
    following = 0
    try:
        for action, number in actions:
            with db:
                for _ in range(number):
                    if action == "seal":
                        there[following] = f"{secret(following)} of many"
                        entry(db, 1 + following, there[following])
                        following += 1
                    elif action == "delete" and there:
                        key = min(there)
                        delete(db, 1 + key, there.pop(key))
                        gone.add(key)
            if action == "merge":
                merge(db, pages, at_once=at_once)
                assert not left(db, gone)
                assert left(db, there) == there.keys()
            elif action == "other":  # what FTS5 does by itself, or another program did
                db.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (number - 3,))
            levels = scrubs._levels(db)
            segments = scrubs._segments(levels)
            assert {segment.number for segment in segments} == segment_numbers(db)
            assert len(set(segments)) == len(segments)
            assert all(level.merging <= len(level.segments) for level in levels)
        merge(db, pages, at_once=at_once)
        assert not left(db, gone)
        assert left(db, there) == there.keys()
        assert not db.execute("SELECT rowid FROM words WHERE words MATCH 'filler0'").fetchall()
        db.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    finally:
        db.close()


@pytest.mark.parametrize("at_once", [1, 50], ids=["a transaction each", "many in a transaction"])
def test_the_last_words_of_many_removals_go_too(connect: Callable[[], apsw.Connection], at_once: int) -> None:
    """Each merge of all adds a level; then everything is on a low one, where FTS5 keeps notes for good."""
    db = connect()
    for round_ in range(69):
        entry(db, 1 + round_, secret(round_))
        if round_ % 3 == 0:
            entry(db, 1_000 + round_, much(round_))
        delete(db, 1 + round_, secret(round_))
        merge(db, 16, at_once=at_once)
        assert not left(db, range(round_ + 1))
        if round_ % 3 == 2:
            delete(db, 1_000 + round_ - 2, much(round_ - 2))
            merge(db, 16, at_once=at_once)
    assert not segment_numbers(db)


def test_varints() -> None:
    assert list(scrubs._varints(bytes([0, 0x7F, 0x81, 0x00]))) == [0, 127, 128]
    assert list(scrubs._varints(b"\xff" * 8 + b"\x2a")) == [((1 << 56) - 1) << 8 | 0x2A]


def test_an_index_without_structure_is_said_to_be_broken(connect: Callable[[], apsw.Connection]) -> None:
    db = connect()
    db.execute("DELETE FROM words_data WHERE id = 10")
    scrubs.await_merge(db, 1)
    with pytest.raises(scrubs.IntegrityError, match="repair"):
        scrubs.merge_some(db, [REMOVAL], 4)


def test_segments_are_told_apart_by_number_and_end() -> None:
    assert Segment(3, 9) != Segment(3, 8)


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_large_file_is_rewritten_by_way_of_another_and_a_small_one_by_way_of_memory(
    connect: Callable[[], apsw.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = connect()
    db.pragma("temp_store", "MEMORY")
    assert scrubs.file_bytes(db) > 4096
    for limit, expected in ((1 << 40, 2), (1, 1)):
        monkeypatch.setattr(scrubs, "_IN_MEMORY_BYTES", limit)
        used: list[object] = []

        def note(_cursor: apsw.Cursor, sql: str, _bindings: object, used: list[object] = used) -> bool:
            if sql == "VACUUM":
                used.append(db.pragma("temp_store"))
            return True

        db.exec_trace = note
        scrubs.rewrite_file(db)
        db.exec_trace = None
        assert used == [expected]
        assert db.pragma("temp_store") == 2
