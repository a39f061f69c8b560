"""
Index jobs: large texts become searchable in pieces, outside the transaction that sealed them.

Decides: how many pieces a transaction numbers, and how often the text is read for them.
Refuses to know: what a word is, and how a search ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from optchat.core.errors import IntegrityError
from optchat.core.records import to_bytes
from optchat.core.words import pieces, words_of
from optchat.engine.documents import add_pieces
from optchat.engine.handle import Scope
from optchat.engine.inputs import clean
from optchat.engine.landing import Landing
from optchat.engine.work import fail_for_good
from optchat.store import ledger, payloads, queue
from optchat.store.queue import JobRow

_PIECES: Final = 4  # of 64 KiB, a transaction: no other writer waits for a 50 MB text
_STEPS: Final = 16  # so many such transactions for each time that the text is read


def index_step(scope: Scope, job: JobRow) -> None:
    """
    Index the next pieces of a large text, some in each of several transactions; then the job is anybody's again.

    The text is read once for all of them: read for each, 50 MB would be read two hundred times. Words are made outside
    the transactions; each piece is numbered when indexed.
    """
    try:
        with scope.store.read() as db:
            text = payloads.load_spoken(db, [job.subject]).get(job.subject, "")
    except IntegrityError as error:
        fail_for_good(scope, job, str(error))
        return
    cuts = pieces(text)
    data = to_bytes(text)
    for step in range(_STEPS):
        done = job.position + step * _PIECES
        ready = [
            (start, end, words_of(clean(data[start:end]), scope.row.pretokenizer))
            for start, end in cuts[done : done + _PIECES]
        ]
        done += len(ready)
        if not _keep_pieces(scope, job, ready, None if done >= len(cuts) else done, step + 1 < _STEPS):
            return


def _keep_pieces(
    scope: Scope, job: JobRow, ready: Sequence[tuple[int, int, str]], following: int | None, keep_lease: bool
) -> bool:
    """Number pieces of a text: (start, end, words). Whether there is more, and it is still ours to do."""
    with scope.store.write(wait_seconds=scope.policy.lock_wait_seconds) as db:
        if not queue.held(db, job):
            return False
        record = ledger.load_record(db, job.subject)
        if record is None or record.state:
            queue.remove_job(db, job.job_pk)
            return False
        landing = Landing(scope, db, scope.now())
        add_pieces(scope, db, record, ready)
        landing.now_visible()
        if following is None:
            queue.remove_job(db, job.job_pk)
        else:
            queue.advance_index(db, job, following, keep_lease=keep_lease)
        landing.finish()
    landing.after_commit()
    return following is not None and keep_lease
