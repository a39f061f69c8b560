"""
§ 12, invariant 12 for bytes: what was deleted or revoked is in no answer and, once scrubbed, in no file.

Canaries stand in every place where a host can say something, and in every place where the library writes down something
that it made of that; other sessions search, zoom and fork what holds them. Then the files are read, by another process.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import optchat
from optchat import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from tests.acceptance.canaries import Parrot, canary, characters, found, picture, spoken, told
from tests.engine.helpers import BUDGET, words
from tests.engine.working import open_wandering

SAID = (
    "user text",
    "assistant text",
    "arguments",
    "tool name",
    "call id",
    "result",
    "large result",
    "mixed result",
    "report",
    "report name",
    "uri",
    "picture",
    "search terms",
)
DESCRIBED = ("title", "key", "worktree", "commit", "project", "alias", "turn id", "detail", "staged")
NAMES = SAID + DESCRIBED
SUMMARISED = tuple(f"{how} {name}" for how in ("made of", "beside") for name in SAID)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="optchat-forgotten-") as folder:
        yield Path(folder)


@pytest.fixture
def open_memory(place: Path) -> Iterator[Callable[..., optchat.Memory]]:
    opened: list[optchat.Memory] = []

    def open_memory(summarizer: optchat.Summarizer | None = None, scope: str = "test") -> optchat.Memory:
        opened.append(open_wandering(place / "memory.db", scope=scope, summarizer=summarizer))
        return opened[-1]

    yield open_memory
    for memory in opened:
        memory.close()


def long(name: str) -> str:
    """Text with a canary that is no verbatim leaf, so that it is summarised."""
    return f"{spoken(name)} {words(len(name), 700)}"


def tell_everything(memory: optchat.Memory) -> optchat.Session[HostMessage]:
    """A session with a canary in every place that there is."""
    session = memory.session(
        f"key {canary('key')}",
        host="host",
        title=spoken("title"),
        project=f"/{canary('project')}",
        worktree=f"/{canary('worktree')}",
        commit=canary("commit"),
    )
    memory.link_project(f"/{canary('project')}", f"git@{canary('alias')}")
    call = f"call {canary('call id')}"
    with session.turn(long("user text"), turn_id=f"turn {canary('turn id')}") as turn:
        turn.assistant(
            long("assistant text"),
            calls=[ToolCallPart(call, canary("tool name"), json.dumps({"x": spoken("arguments")}))],
        )
        turn.tool_result(call, long("result"))
        turn.tool_call("call 2", "draw", "{}")
        turn.add(
            HostMessage(
                "tool",
                (
                    ToolResultPart(
                        "call 2",
                        (
                            TextPart(long("mixed result")),
                            BlobPart("image/png", data=picture()),
                            BlobPart("image/png", uri=f"https://{canary('uri')}/x.png"),
                        ),
                    ),
                ),
            )
        )
        turn.tool_call("call 3", "cat", "{}")
        turn.tool_result("call 3", f"{spoken('large result')} " + "line upon line " * 6_000 + long("large result"))
        turn.add(HostMessage("assistant", (ReportPart(canary("report name"), long("report")),)))
        asked = json.dumps({"query": spoken("search terms")})
        answer = turn.call("memory_search", asked)
        turn.tool_call("call 4", "memory_search", asked)
        turn.tool_result("call 4", answer)
        turn.assistant("that was all")
        turn.end("failed", f"because {canary('detail')}")
    return session


def leave_open(session: optchat.Session[HostMessage]) -> None:
    """A turn that is still open, with what is not final."""
    turn = session.turn("and further?")
    turn.stage(HostMessage.assistant(spoken("staged"), key="its key"))


def look_around(memory: optchat.Memory, key: str) -> None:
    """Another session that was shown what the first one published, and says something of its own."""
    session = memory.session(key)
    with session.turn(words(7, 700)) as turn:
        turn.context(BUDGET)
        for number, (name, arguments) in enumerate(
            [
                ("memory_zoom", {"ref": "pub:0+1"}),
                ("memory_search", {"query": "line upon speaks cause"}),
                ("memory_sessions", {}),
            ]
        ):
            answer = turn.call(name, json.dumps(arguments))
            assert not answer.is_error, answer.text
            turn.tool_call(f"look {number}", name, json.dumps(arguments))
            turn.tool_result(f"look {number}", answer)
        turn.assistant(words(8, 700))


def readings(memory: optchat.Memory, refs: list[str]) -> Iterator[object]:
    """Whatever can be asked of a memory, by its owner, by a pinned reader and by a session's turn."""
    session = memory.session("reader")
    turn = session.turn("what do we know?")
    with memory.pin() as pinned:
        for reader in (memory, pinned, turn):
            yield reader.sessions()
            yield reader.view()
            for name in SAID:
                for query in (canary(name), characters(name), canary(name)[:10].capitalize()):
                    page = reader.search(query, order="newest")
                    yield page.items, sum(page.words.values())  # the words themselves are the question's
            if not isinstance(work := attempt(lambda reader=reader: reader.work(canary("report name"))), Exception):  # type: ignore[misc]
                yield work  # an error says again what was asked for
            for ref in refs:
                yield attempt(lambda reader=reader, ref=ref: reader.zoom(ref, depth=3))  # type: ignore[misc]
                yield attempt(lambda reader=reader, ref=ref: reader.date(ref))  # type: ignore[misc]
                yield attempt(lambda reader=reader, ref=ref: reader.source(ref))  # type: ignore[misc]
    yield turn.context(BUDGET)
    for row in memory.sessions(archived=True):
        kept = memory.session_by_id(row.id)
        yield kept.info()
        yield list(kept.turns())
        yield memory.view(row.id)
    yield memory.status()
    turn.end("completed")


def shown(memory: optchat.Memory, refs: list[str], names: Iterable[str]) -> dict[str, str]:
    """Canaries that some answer tells, each with one that does."""
    names = tuple(names)
    answers = list(readings(memory, refs))
    if not told(answers, names):
        return {}
    return {name: repr(answer)[:300] for answer in answers for name in told([answer], names)}


def attempt(read: Callable[[], object]) -> object:
    try:
        return read()
    except optchat.OptchatError as error:
        return error


def all_refs(memory: optchat.Memory) -> list[str]:
    """Every record and publication of a scope, as somebody may have noted them."""
    refs = [f"session:{row.id}:0:{seq}+1" for row in memory.sessions() for seq in range(row.length)]
    return refs + [f"pub:{number}+1" for number in range(memory.status().publications)] + ["pub:0+2", "pub:0+4"]


def scrubbed(memory: optchat.Memory) -> None:
    status = memory.settle()
    assert not status.scrub_pending, steps(memory)


def steps(memory: optchat.Memory) -> object:
    with memory._scope.store.read() as db:
        return (
            db.execute("SELECT removal_pk, stage, hindered FROM removal").fetchall(),
            db.execute("SELECT removal_pk, kind, low, high FROM erasure").fetchall(),
        )


def sound(memory: optchat.Memory) -> None:
    assert memory.verify().faults == ()
    with memory._scope.store.read() as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []


@pytest.fixture
def told_all(open_memory: Callable[..., optchat.Memory]) -> tuple[optchat.Memory, optchat.Session[HostMessage], Parrot]:
    parrot = Parrot(SAID)
    memory = open_memory(parrot)
    session = tell_everything(memory)
    memory.settle()
    look_around(memory, "b")
    memory.settle()
    look_around(memory, "c")
    leave_open(session)
    memory.settle()
    return memory, session, parrot


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a fork"])
def test_no_byte_of_a_deleted_session_is_left(
    told_all: tuple[optchat.Memory, optchat.Session[HostMessage], Parrot], forked: bool
) -> None:
    memory, session, parrot = told_all
    names = SAID + SUMMARISED + ("turn id", "detail", "staged")
    if forked:  # it has its parent's description for its own
        session.fork("fork")
        memory.settle()
    else:
        names += DESCRIBED
    refs = all_refs(memory)
    before = set(found(memory.path, NAMES + SUMMARISED))
    assert before >= set(NAMES), "each place is one where something is written down"
    assert before >= parrot.said & set(SUMMARISED)
    assert {name.split()[0] for name in parrot.said} == {"made", "beside"}

    receipt = session.delete(forks="forget")

    assert not receipt.scrubbed
    assert memory.status().scrub_pending
    assert shown(memory, refs, names) == {}, "hidden at once"
    scrubbed(memory)
    assert shown(memory, refs, names) == {}
    assert found(memory.path, names) == {}
    memory.settle()  # summaries are written again, of what is left
    assert found(memory.path, names) == {}
    assert session.delete().scrubbed
    sound(memory)
