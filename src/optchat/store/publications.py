"""
Publications.

Decides: how publications are stored, and how those that a pin counts are found.
Refuses to know: when a turn may be published.
"""

from __future__ import annotations

from attrs import frozen

from optchat.core.jobs import KIND_NUMBER
from optchat.core.refs import KEY_BITS, KEY_MASK
from optchat.core.snapshots import PublicationState, Published, Sight
from optchat.core.terms import Outcome
from optchat.store.rows import Connection, Row, all_rows, keys, one_row, one_value, run, with_flags


@frozen
class PublicationRow:
    """A publication; times are microseconds."""

    publication_key: int
    turn_pk: int
    generation_pk: int
    start_seq: int
    end_seq: int
    outcome: Outcome
    completed_at: int
    published_at: int
    born: int
    retired_clock: int | None
    removed: bool

    @property
    def number(self) -> int:
        return self.publication_key & KEY_MASK

    @property
    def state(self) -> PublicationState:
        return PublicationState(self.number, self.retired_clock, self.removed)


_PUBLICATION = (
    "SELECT publication_key, turn_pk, generation_pk, start_seq, end_seq, outcome, completed_at, published_at, born,"
    " retired_clock, state FROM publication "
)


def _publication(row: Row) -> PublicationRow:
    return PublicationRow(*with_flags(row, 10))


def insert_publication(
    db: Connection,
    *,
    publication_key: int,
    turn_pk: int,
    generation_pk: int,
    start_seq: int,
    end_seq: int,
    outcome: Outcome,
    completed_at: int,
    published_at: int,
    born: int,
) -> None:
    run(
        db,
        "INSERT INTO publication (publication_key, turn_pk, generation_pk, start_seq, end_seq, outcome, completed_at,"
        " published_at, born) VALUES (:key, :turn, :generation, :start, :end, :outcome, :completed, :published, :born)",
        {
            "key": publication_key,
            "turn": turn_pk,
            "generation": generation_pk,
            "start": start_seq,
            "end": end_seq,
            "outcome": outcome,
            "completed": completed_at,
            "published": published_at,
            "born": born,
        },
    )


def load_publication(db: Connection, publication_key: int) -> PublicationRow | None:
    row = one_row(db, _PUBLICATION + "WHERE publication_key = :key", {"key": publication_key})
    return None if row is None else _publication(row)


def load_publications(db: Connection, scope_pk: int, numbers: list[int]) -> dict[int, PublicationRow]:
    """Publications of a scope by number."""
    return {
        row[0] & KEY_MASK: _publication(row)
        for row in all_rows(
            db,
            _PUBLICATION + "WHERE publication_key IN (SELECT value FROM carray(:keys))",
            {"keys": keys([scope_pk << KEY_BITS | number for number in numbers])},
        )
    }


def retire_publication(db: Connection, publication_key: int, clock: int) -> None:
    """Pins from this clock on do not count it; those from before do."""
    run(
        db,
        "UPDATE publication SET retired_clock = :clock WHERE publication_key = :key AND retired_clock IS NULL",
        {"key": publication_key, "clock": clock},
    )


def remove_publication(db: Connection, publication_key: int) -> None:
    """Nobody counts it any more, whenever it was pinned."""
    run(db, "UPDATE publication SET state = 1 WHERE publication_key = :key", {"key": publication_key})


def publication_of_record(db: Connection, generation_pk: int, seq: int, sight: Sight) -> PublicationRow | None:
    """The publication under a sight's mark that covers a record, if any counts."""
    row = one_row(
        db,
        _PUBLICATION
        + "WHERE generation_pk = :generation AND publication_key < :mark AND start_seq <= :seq AND end_seq > :seq"
        " AND state = 0 AND (retired_clock IS NULL OR retired_clock > :clock) ORDER BY publication_key DESC LIMIT 1",
        {
            "generation": generation_pk,
            "mark": sight.scope << KEY_BITS | sight.publications,
            "seq": seq,
            "clock": sight.clock,
        },
    )
    return None if row is None else _publication(row)


def published_range(db: Connection, generation_pk: int, sight: Sight) -> Published | None:
    """
    The records of a generation that publications under a sight's mark cover.

    They are made in turn order, so that the first and the last of them say it, however many lie between.
    """
    counting = (
        "FROM publication WHERE generation_pk = :generation AND publication_key < :mark AND state = 0"
        " AND (retired_clock IS NULL OR retired_clock > :clock) ORDER BY publication_key"
    )
    row = one_row(
        db,
        f"SELECT (SELECT start_seq {counting} LIMIT 1), (SELECT end_seq {counting} DESC LIMIT 1)",
        {
            "generation": generation_pk,
            "mark": sight.scope << KEY_BITS | sight.publications,
            "clock": sight.clock,
        },
    )
    return None if row is None or row[0] is None else Published(row[0], row[1])


def number_of_turn(db: Connection, turn_pk: int, sight: Sight) -> int | None:
    """The number of a turn's publication that counts under a sight."""
    value = one_value(
        db,
        "SELECT publication_key FROM publication WHERE turn_pk = :turn AND publication_key < :mark AND state = 0"
        " AND (retired_clock IS NULL OR retired_clock > :clock) ORDER BY publication_key DESC LIMIT 1",
        {"turn": turn_pk, "mark": sight.scope << KEY_BITS | sight.publications, "clock": sight.clock},
    )
    return None if value is None else int(value) & KEY_MASK


def count_of_generation(db: Connection, generation_pk: int, sight: Sight) -> int:
    """How many publications of a generation count under a sight's mark."""
    return int(
        one_value(
            db,
            "SELECT count(*) FROM publication WHERE generation_pk = :generation AND publication_key < :mark"
            " AND state = 0 AND (retired_clock IS NULL OR retired_clock > :clock)",
            {
                "generation": generation_pk,
                "mark": sight.scope << KEY_BITS | sight.publications,
                "clock": sight.clock,
            },
        )
    )


def has_job(db: Connection, turn_pk: int) -> bool:
    """Whether a turn's publication is still to be made."""
    return (
        one_row(
            db,
            "SELECT 1 FROM job WHERE kind = :kind AND subject = :turn",
            {"kind": KIND_NUMBER["publication"], "turn": turn_pk},
        )
        is not None
    )


def cancel(db: Connection, turn_pk: int) -> None:
    """A publication that is still to be made never is: a worker that has made its text finds no job to commit."""
    run(
        db,
        "DELETE FROM job WHERE kind = :kind AND subject = :turn",
        {"kind": KIND_NUMBER["publication"], "turn": turn_pk},
    )


def live_number(db: Connection, turn_pk: int) -> int | None:
    """The number of a turn's live publication."""
    value = one_value(
        db,
        "SELECT publication_key FROM publication WHERE turn_pk = :turn AND retired_clock IS NULL AND state = 0",
        {"turn": turn_pk},
    )
    return None if value is None else int(value) & KEY_MASK


def numbers_of_turn(db: Connection, turn_pk: int) -> list[int]:
    """The numbers of a turn's publications that are not removed, retired ones included."""
    return [
        row[0] & KEY_MASK
        for row in all_rows(
            db, "SELECT publication_key FROM publication WHERE turn_pk = :turn AND state = 0", {"turn": turn_pk}
        )
    ]


def numbers_of_generation(db: Connection, generation_pk: int) -> list[int]:
    """The same of a generation."""
    return [
        row[0] & KEY_MASK
        for row in all_rows(
            db,
            "SELECT publication_key FROM publication WHERE generation_pk = :generation AND state = 0"
            " ORDER BY publication_key",
            {"generation": generation_pk},
        )
    ]


def last_live(db: Connection, low: int, high: int) -> int | None:
    """The number of the last live publication whose key lies in ``[low, high)``."""
    value = one_value(
        db,
        "SELECT publication_key FROM publication WHERE publication_key >= :low AND publication_key < :high"
        " AND state = 0 AND retired_clock IS NULL ORDER BY publication_key DESC LIMIT 1",
        {"low": low, "high": high},
    )
    return None if value is None else int(value) & KEY_MASK


def user_asked(db: Connection, low: int, high: int) -> bool:
    """Whether some publication whose key lies in ``[low, high)`` is of a turn that a user asked for."""
    return bool(
        one_value(
            db,
            "SELECT EXISTS (SELECT 1 FROM publication JOIN turn USING (turn_pk)"
            " WHERE publication.publication_key >= :low AND publication.publication_key < :high AND has_request)",
            {"low": low, "high": high},
        )
    )


def first_published_start(db: Connection, generation_pk: int) -> int | None:
    """Where a generation's published records begin: with its first publication, since they are made in turn order."""
    value = one_value(
        db,
        "SELECT start_seq FROM publication WHERE generation_pk = :generation AND state = 0 AND retired_clock IS NULL"
        " ORDER BY publication_key LIMIT 1",
        {"generation": generation_pk},
    )
    return None if value is None else int(value)


def count_publications(db: Connection, scope_pk: int) -> int:
    """Live publications of a scope."""
    return int(
        one_value(
            db,
            "SELECT count(*) FROM publication WHERE publication_key BETWEEN :low AND :high AND state = 0 AND"
            " retired_clock IS NULL",
            {"low": scope_pk << KEY_BITS, "high": scope_pk << KEY_BITS | KEY_MASK},
        )
    )
