"""
What is cut: each use case of the library on a small memory that has something of everything.

``CASES`` maps a name to a ``UseCase``: a base, which is a closed file (or none), and what is arranged on it, open; the
returned action is what operations are counted of. Time stands still and a summarizer answers at once, so that a case
writes much the same each time.

Those of the queue come from tests/acceptance/boundaries.py, which kills real processes in them.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import apsw
from attrs import evolve, frozen

import optchat
from optchat.engine import lifecycle
from tests.acceptance import boundaries
from tests.crash.vfs import Disk, Image, Operation, place, recording, taken_from
from tests.engine.helpers import say, words
from tests.engine.working import open_wandering

Action: TypeAlias = Callable[[], object]

SCOPE = "test"
POLICY = optchat.Policy(leaf_window=3, job_attempts=2, lock_wait_seconds=5.0)
SMALL_VIEWS = optchat.Policy(leaf_window=3, job_attempts=2, view_high_bytes=4_000, view_low_bytes=2_000)
FORMATS = Path(__file__).parents[1] / "store" / "formats"
SETTLED_TURNS = 8
BUDGET = optchat.Budget(window=100_000, output=1_000)


@frozen
class UseCase:
    """
    One use case.

    Args:
        base: makes the file in an empty folder, and closes it.
        arrange: opens what the case needs, on a stack that closes it, and returns what is to be cut.
        again: the same action may be done once more after it failed.
        anew: it can be arranged once more where it was arranged already; not where that took away what it needs.
        steady: after a failure it leaves a state that it would have gone through without one. (A worker notes its
            failures, and does other jobs first.)
        damaged: the base is not as it should be, until the case has repaired it.
        gone: what no byte of may be left once all work is done, wherever the case was cut.
    """

    base: Callable[[Path], None]
    arrange: Callable[[Path, ExitStack], Action]
    again: bool = True
    anew: bool = True
    steady: bool = True
    damaged: bool = False
    gone: bytes = b""


def opened(path: Path, policy: optchat.Policy = POLICY) -> optchat.Memory:
    return open_wandering(path, scope=SCOPE, policy=policy)


# ---- bases -----------------------------------------------------------------------------------------------------------


def nothing(_path: Path) -> None:
    """No file at all."""


def settled(path: Path) -> None:
    """Turns of two sessions, summarised and published; their views have shrunk."""
    with opened(path, SMALL_VIEWS) as memory:
        for number in range(SETTLED_TURNS):
            with memory.session("ab"[number % 2]).turn(f"request {number}") as turn:
                turn.assistant(_answer(number))
        assert memory.settle().ready


def _answer(number: int) -> str:
    return words(number, 1_500 if number % 4 == 0 else 380)


def waiting(path: Path) -> None:
    """The same, and more turns whose summaries, publications and index are still to be made."""
    settled(path)
    with opened(path) as memory:
        for number in range(3):
            with memory.session("ab"[number % 2]).turn(f"further request {number}") as turn:
                turn.assistant(words(20 + number, 1_500))
        say(memory.session("large"), "heliotrope " + "large text " * 7_000)


def queued(path: Path) -> None:
    """As tests/acceptance/boundaries.py begins."""
    boundaries.prepare(str(path))


def crashed(path: Path) -> None:
    """The settled file as a process left it that died: commits in the log, an open turn, a transaction half written."""
    settled(path)
    before = taken_from(path)
    with recording(path) as recorder, opened(path) as memory:
        say(memory.session("a"), words(95, 1_500))
        memory.session("b").turn("open when it died")
        whole = len(recorder.operations)
        say(memory.session("c"), "half written")
        operations = recorder.operations[: whole + 5]
    _left(path, before, operations)


def half_made(path: Path) -> None:
    """A file whose first page was torn when it was made, beside the journal that takes it back."""
    with recording(path) as recorder:
        opened(path).close()
        operations = list(recorder.operations)
    first = next(n for n, each in enumerate(operations) if (each.kind, each.role) == ("write", "main"))
    torn = evolve(operations[first], data=operations[first].data[:40])
    _left(path, {}, [*operations[:first], torn])


def _left(path: Path, before: Image, operations: list[Operation]) -> None:
    disk = Disk.of(before)
    for operation in operations:
        disk.apply(operation)
    for file in path.parent.iterdir():
        file.unlink()
    place(disk.image("death"), path)


def former(version: int) -> Callable[[Path], None]:
    """A file of a former format with the rows of ``waiting``, as far as that format had columns for them."""

    def make(path: Path) -> None:
        present = path.with_name("present.db")
        waiting(present)
        db = apsw.Connection(str(path))
        db.pragma("application_id", 0x6F707463)
        db.pragma("journal_mode", "wal")
        db.execute((FORMATS / f"{version}.sql").read_text(encoding="utf-8"))
        db.execute("ATTACH :present AS present", {"present": str(present)})
        db.execute("BEGIN; DELETE FROM words_data; DELETE FROM words_config")
        for table in _tables(db, "main"):
            old, new = (_columns(db, schema, table) for schema in ("main", "present"))
            common = ", ".join(f"[{name}]" for name in old if name in new)
            if common:
                db.execute(f"INSERT INTO main.[{table}] ({common}) SELECT {common} FROM present.[{table}]")
        db.pragma("user_version", version)
        db.execute("COMMIT; DETACH present")
        db.close()
        for file in path.parent.glob("present.db*"):
            file.unlink()

    return make


def _tables(db: apsw.Connection, schema: str) -> list[str]:
    sql = "SELECT name FROM pragma_table_list WHERE schema = :schema AND type IN ('table', 'shadow') ORDER BY name"
    return [name for (name,) in db.execute(sql, {"schema": schema}) if not name.startswith("sqlite_")]


def _columns(db: apsw.Connection, schema: str, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA [{schema}].table_info([{table}])")]


# ---- what is done with an open memory --------------------------------------------------------------------------------

Arranged: TypeAlias = Callable[[optchat.Memory], Action]


def on(base: Callable[[Path], None], arrange: Arranged, **options: Any) -> UseCase:
    """A case that begins on one open handle."""
    return UseCase(base, lambda path, stack: arrange(stack.enter_context(opened(path))), **options)


def _open_turn(memory: optchat.Memory) -> optchat.Turn[Any]:
    return memory.session("a").turn("what is cut")


def seal(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    return lambda: turn.assistant(words(50, 700))


def seal_many_bytes(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    turn.tool_call("call-1", "read", "{}")
    image = optchat.BlobPart("image/png", bytes(range(256)) * 800)
    return lambda: turn.tool_result("call-1", (optchat.TextPart("log line\n" * 30_000), image))


def stage(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)

    def twice() -> None:
        turn.stage(optchat.HostMessage.assistant("half of an answ", key="m1"))
        turn.stage(optchat.HostMessage.assistant("half of an answer, and mo", key="m1"))

    return twice


def finish_what_was_staged(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    turn.stage(optchat.HostMessage.assistant("half of an answ", key="m1"))
    return lambda: turn.assistant("half of an answer, and the other half", key="m1")


def batch(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    messages = [optchat.HostMessage.user("what is cut")]
    messages += [optchat.HostMessage.assistant(words(60 + number, 300)) for number in range(20)]
    return lambda: turn.observe(messages)


def admit(memory: optchat.Memory) -> Action:
    """It also ends the turn before, and publishes it."""
    _open_turn(memory).assistant("not ended yet")
    return lambda: memory.session("a").turn("the next one")


def begin_a_session(memory: optchat.Memory) -> Action:
    return lambda: memory.session("new", project="/p", worktree="/w", title="t").turn("first")


def end(memory: optchat.Memory) -> Action:
    """Short enough to be published by its end."""
    turn = _open_turn(memory)
    turn.assistant("done")
    return lambda: turn.end("completed")


def end_with_jobs(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    turn.assistant(words(70, 2_500))
    return lambda: turn.end("failed", "it did not work")


def suspend_and_resume(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)

    def both() -> None:
        turn.suspend()
        memory.session("a").resume().assistant("goes on")

    return both


def render(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)
    return lambda: turn.context(BUDGET)


def render_what_is_new(memory: optchat.Memory) -> Action:
    with memory.session("a").turn("before") as before:
        before.context(BUDGET)
        before.assistant("done")
    turn = _open_turn(memory)
    return lambda: turn.context(BUDGET)


def seal_what_a_call_was_answered(memory: optchat.Memory) -> Action:
    """The call's receipt is written down with it."""
    turn = _open_turn(memory)
    turn.context(BUDGET)
    return lambda: turn.assistant("as you said")


def retrieve(memory: optchat.Memory) -> Action:
    turn = _open_turn(memory)

    def call() -> None:
        turn.tool_call("call-1", "memory_zoom", '{"ref": "pub:0+1"}')
        turn.tool_result("call-1", turn.call("memory_zoom", '{"ref": "pub:0+1"}'))

    return call


def publish(memory: optchat.Memory) -> Action:
    """Every job there is: leaves, merges, pages, publications, views that shrink, the index."""
    return memory.settle


def shrink(memory: optchat.Memory) -> Action:
    """Turns that need no model, until both views pass their high mark."""
    session = memory.session("b")

    def all_of_them() -> None:
        for number in range(6):
            say(session, words(80 + number, 380))

    return all_of_them


def note(memory: optchat.Memory) -> Action:
    return lambda: memory.session("c").note("for whoever comes next")


def repair_a_node(memory: optchat.Memory) -> Action:
    ref = next(line.ref for line in memory.view().lines if line.kind == "summary")
    return lambda: memory.repair(ref)


def import_a_file(memory: optchat.Memory) -> Action:
    path = memory.path.with_name("notes.txt")
    path.write_text("an old note\n" * 40, encoding="utf-8")
    return lambda: memory.import_file(path)


def checkpoint(memory: optchat.Memory) -> Action:
    say(memory.session("a"), "in the log")
    return memory._scope.store.checkpoint


def truncate_the_log(memory: optchat.Memory) -> Action:
    say(memory.session("a"), "in the log")
    return memory._scope.store.truncate_log


def vacuum(memory: optchat.Memory) -> Action:
    store = memory._scope.store

    def compact() -> None:
        with store.exclusive() as db:
            db.execute("VACUUM")

    return compact


def close(memory: optchat.Memory) -> Action:
    """The last one, which moves the log into the database and keeps it; an open turn is ended by it."""
    _open_turn(memory)
    return memory.close


def write_on_a_log_begun_anew(memory: optchat.Memory) -> Action:
    """All of the log is in the database, so the next commit overwrites its beginning."""
    turn = _open_turn(memory)
    memory._scope.store.checkpoint()
    return lambda: turn.assistant("first in the log")


# ---- what is undone, and what is forgotten ---------------------------------------------------------------------------


def _turn_ids(memory: optchat.Memory, key: str) -> list[str]:
    return [turn.id for turn in memory.session(key).turns()]


def fork(memory: optchat.Memory) -> Action:
    second = _turn_ids(memory, "a")[1]
    return lambda: memory.session("a").fork("child", after=second).turn("goes its own way")


def rewind(memory: optchat.Memory) -> Action:
    """Two turns are superseded, whose publications others see no more; the open one ends."""
    first, session = _turn_ids(memory, "a")[1], memory.session("a")
    _open_turn(memory)
    return lambda: session.rewind(after=first)


def go_on_after_a_rewind(memory: optchat.Memory) -> Action:
    session = memory.session("a")
    session.rewind(before=_turn_ids(memory, "a")[2])
    return lambda: say(session, words(90, 380))


def archive(memory: optchat.Memory) -> Action:
    return memory.session("a").archive


def begin_anew(memory: optchat.Memory) -> Action:
    row = memory.session("a")._row
    return lambda: lifecycle.begin_anew(memory._scope, row)


def revoke(memory: optchat.Memory) -> Action:
    return memory.session("a").revoke


def share_again(memory: optchat.Memory) -> Action:
    memory.session("a").revoke()
    return lambda: memory.session("a").share(history=True)


def _host() -> list[optchat.HostMessage]:
    """What session a's host holds: as ``settled`` told it."""
    said = [(f"request {number}", _answer(number)) for number in range(0, SETTLED_TURNS, 2)]
    return [
        message
        for request, answer in said
        for message in (optchat.HostMessage.user(request), optchat.HostMessage.assistant(answer))
    ]


def reconcile(memory: optchat.Memory) -> Action:
    host = [*_host(), optchat.HostMessage.user("new"), optchat.HostMessage.assistant(words(91, 380))]
    return lambda: memory.session("a").reconcile(host)


def resync(memory: optchat.Memory) -> Action:
    host = [*_host()[:5], optchat.HostMessage.assistant(words(92, 380)), optchat.HostMessage.user("and so on")]
    return lambda: memory.session("a").resync(host)


def delete(memory: optchat.Memory) -> Action:
    """An open turn of another session could see it; a fork keeps what it rests on."""
    memory.session("a").fork("child", after=_turn_ids(memory, "a")[0])
    memory.session("b").turn("sees it").context(BUDGET, readiness="partial")
    return memory.session("a").delete


def delete_turns(memory: optchat.Memory) -> Action:
    ids = _turn_ids(memory, "a")
    return lambda: memory.session("a").delete(only=ids[1:3])


def delete_the_scope(memory: optchat.Memory) -> Action:
    return memory.delete_scope


def pin_anew(memory: optchat.Memory) -> Action:
    turn = memory.session("b").turn("sees it")
    turn.context(BUDGET)
    memory.session("a").delete()
    return lambda: turn.context(BUDGET)


def scrub(memory: optchat.Memory) -> Action:
    """Rows, blobs, index entries, and then the merge, the rewriting and the emptying of the log."""
    _say_canaries(memory)
    memory.session("a").delete()
    return memory.settle


def scrub_turns(memory: optchat.Memory) -> Action:
    memory.session("a").delete(only=[_say_canaries(memory)])
    return memory.settle


def scrub_what_was_revoked(memory: optchat.Memory) -> Action:
    _say_canaries(memory)
    memory.session("a").revoke()
    return memory.settle


def _say_canaries(memory: optchat.Memory) -> str:
    with memory.session("a").turn("xylocanary in what is asked") as turn:
        turn.tool_call("call-1", "read", '{"path": "/xylocanary"}')
        image = optchat.BlobPart("image/png", b"xylocanary" * 8_000)
        turn.tool_result("call-1", (optchat.TextPart("xylocanary sings " * 6_000), image))
        turn.assistant("xylocanary is in the answer, and why. " * 40)
    assert memory.settle().ready
    return turn.id


def repair_views(memory: optchat.Memory) -> Action:
    with memory._scope.store.write() as db:
        db.execute("UPDATE view SET levels = x'0203', shrinking = 1")
    return lambda: memory.verify(repair=True)


# ---- opening and closing ---------------------------------------------------------------------------------------------


def _open(path: Path, _stack: ExitStack) -> Action:
    return lambda: opened(path).close()


def _two_handles(path: Path, stack: ExitStack) -> Action:
    """Two handles write in turn; one of them closes."""
    first, second = stack.enter_context(opened(path)), stack.enter_context(opened(path))

    def both() -> None:
        say(first.session("a"), "by the first")
        say(second.session("b"), "by the second")
        first.close()
        say(second.session("b"), "after the first has closed")

    return both


CASES: dict[str, UseCase] = {
    "seal": on(settled, seal),
    "seal many bytes": on(settled, seal_many_bytes),
    "stage": on(settled, stage),
    "finish what was staged": on(settled, finish_what_was_staged),
    "batch": on(settled, batch),
    "admit": on(settled, admit),
    "begin a session": on(settled, begin_a_session),
    "end": on(settled, end),
    "end with jobs": on(settled, end_with_jobs),
    "suspend and resume": on(settled, suspend_and_resume),
    "render": on(settled, render),
    "render what is new": on(settled, render_what_is_new),
    "seal what a call was answered": on(settled, seal_what_a_call_was_answered),
    "retrieve": on(settled, retrieve),
    "publish": on(waiting, publish, steady=False),
    "shrink": on(settled, shrink),
    "note": on(settled, note),
    "import a file": on(settled, import_a_file),
    "repair a node": on(settled, repair_a_node),
    "fork": on(settled, fork),
    "rewind": on(settled, rewind),
    "go on after a rewind": on(settled, go_on_after_a_rewind, anew=False),
    "archive": on(settled, archive),
    "begin anew": on(settled, begin_anew),
    "revoke": on(settled, revoke),
    "share again": on(settled, share_again),
    "reconcile": on(settled, reconcile),
    "resync": on(settled, resync),
    "delete": on(waiting, delete, anew=False),
    "delete turns": on(waiting, delete_turns, anew=False),
    "delete the scope": on(waiting, delete_the_scope, again=False, anew=False),
    "pin anew": on(settled, pin_anew, anew=False),
    "scrub": on(settled, scrub, anew=False, steady=False, gone=b"xylocanary"),
    "scrub turns": on(settled, scrub_turns, anew=False, steady=False, gone=b"xylocanary"),
    "scrub what was revoked": on(settled, scrub_what_was_revoked, anew=False, steady=False),
    "repair views": on(settled, repair_views, damaged=True, steady=False),
    "checkpoint": on(settled, checkpoint),
    "truncate the log": on(settled, truncate_the_log),
    "vacuum": on(waiting, vacuum),
    "close": on(settled, close, again=False),
    "write on a log begun anew": on(settled, write_on_a_log_begun_anew),
    "two handles": UseCase(settled, _two_handles, again=False),
    "open fresh": UseCase(nothing, _open),
    "open again": UseCase(waiting, _open),
    "open after a crash": UseCase(crashed, _open),
    "finish a creation": UseCase(half_made, _open),
    "migrate from 1": UseCase(former(1), _open),
    "migrate from 2": UseCase(former(2), _open),
    **{f"queue: {name.replace('_', ' ')}": on(queued, arrange) for name, arrange in boundaries.CASES.items()},
}
