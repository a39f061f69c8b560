"""Opening, sessions and scopes: what is made, what is found again, and what contradicts the file."""

from collections.abc import Callable
from pathlib import Path

import pytest

import optchat
from tests.acceptance.conftest import Open
from tests.peer import Peer


# ---- opening ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_what_is_absent_is_not_made(open_memory: Open, path: Path, mode: str) -> None:
    with pytest.raises(optchat.ConfigError, match="rwc"):
        open_memory(mode=mode)
    assert not path.exists()
    open_memory(scope="there").close()
    with pytest.raises(optchat.ConfigError, match="scope 'absent'"):
        open_memory(scope="absent", mode=mode)
    there = open_memory(scope="there", mode=mode)
    with pytest.raises(optchat.ConfigError, match="scope 'absent'"):
        there.scoped("absent")


def test_read_only_writes_nothing(open_memory: Open) -> None:
    writer = open_memory()
    with writer.session("s").turn("hello") as turn:
        turn.assistant("hi")
    memory = open_memory(mode="ro")
    version = writer._house.store.data_version()
    session = memory.session("s")
    writes: list[Callable[[], object]] = [
        lambda: session.turn("more"),
        lambda: session.note("more"),
        lambda: session.report("r", "more"),
        session.resume,
        lambda: memory.session("new"),
        lambda: memory.session("s", title="new"),
        memory.settle,
        memory.retry_failed,
        lambda: memory.link_project("a", "b"),
        lambda: memory.import_file(__file__),
        lambda: memory.verify(repair=True),
    ]
    for write in writes:
        with pytest.raises(optchat.StoreReadOnly, match="rw"):
            write()
    assert memory.search("hello").hits
    assert memory.verify().ok
    assert memory.status().records == 2
    memory.close()
    assert writer._house.store.data_version() == version


@pytest.mark.parametrize("scope", ["", "x" * 501, "a\nb", "a\x00", None, 7])
def test_a_scope_is_a_name(open_memory: Open, path: Path, scope: str) -> None:
    with pytest.raises(optchat.BadArgument, match="scope"):
        open_memory(scope=scope)
    assert not path.exists()


@pytest.mark.parametrize("settings", [{"compact": "later"}, {"mode": "w"}], ids=["compact", "mode"])
def test_a_setting_that_is_none(open_memory: Open, settings: dict[str, str]) -> None:
    with pytest.raises(optchat.BadArgument):
        open_memory(**settings)


def test_settings_with_a_format_live_with_the_scope(open_memory: Open) -> None:
    first = open_memory(policy=optchat.Policy(node_bytes=256, view_high_bytes=20_000, view_low_bytes=10_000))
    open_memory().close()
    open_memory(policy=optchat.Policy(node_bytes=256)).close()
    for other in (
        optchat.Policy(node_bytes=512),
        optchat.Policy(view_high_bytes=128_000),
        optchat.Policy(view_low_bytes=5_000),
    ):
        with pytest.raises(optchat.ConfigError, match="format"):
            open_memory(policy=other)
    default = open_memory(scope="default", policy=optchat.Policy(node_bytes=512))
    with pytest.raises(optchat.ConfigError, match="format"):
        default.scoped("project-17")
    assert first.scoped("another").scope == "another"


def test_scopes_of_one_file_share_its_connections_and_worker(memory: optchat.Memory) -> None:
    other = memory.scoped("other")
    assert (other.scope, other.path) == ("other", memory.path)
    with other.session("s").turn("hello") as turn:
        turn.assistant("because. " * 500)
    assert other.settle().ready
    assert memory.status().records == 0
    memory.close()
    with pytest.raises(optchat.ConfigError, match="closed"):
        other.status()


# ---- sessions --------------------------------------------------------------------------------------------------------
def test_a_session_is_its_host_and_key(memory: optchat.Memory, peer: Peer) -> None:
    session = memory.session("chat-42")
    assert memory.session("chat-42").id == session.id
    assert memory.session("chat-42", host="other").id != session.id
    assert memory.scoped("other").session("chat-42").id != session.id
    assert peer("memory.session('chat-42', create=False).id") == session.id
    assert memory.session_by_id(session.id).key == "chat-42"
    assert memory.status().sessions == 2


def test_create_false_makes_none(memory: optchat.Memory) -> None:
    with pytest.raises(optchat.UnknownRef, match="leave create out"):
        memory.session("chat-42", create=False)
    assert memory.status().sessions == 0


@pytest.mark.parametrize("key", ["", "x" * 501, "a\nb", "\ud800", None])
def test_a_key_is_a_name(memory: optchat.Memory, key: str) -> None:
    with pytest.raises(optchat.BadArgument, match="key is 1 to 500 printable"):
        memory.session(key)
    with pytest.raises(optchat.BadArgument, match="host is 1 to 500 printable"):
        memory.session("k", host=key)


def test_what_changes_is_in_info(memory: optchat.Memory) -> None:
    session = memory.session("chat-42", title="May")
    assert session.info().title == "May"
    memory.session("chat-42", title="June", commit="abc")
    assert (session.info().title, session.info().commit) == ("June", "abc")
    memory.session("chat-42")
    assert session.info().title == "June"
    with session.turn("hello") as turn:
        turn.assistant("hi")
    info = session.info()
    assert (info.length, info.turns, info.generation, info.state, info.isolated) == (2, 1, 0, "active", False)
    assert info.last_at >= info.created_at


def test_an_isolated_session_stays_one(memory: optchat.Memory) -> None:
    memory.session("hermit", isolated=True)
    memory.session("open")
    with pytest.raises(optchat.ConfigError, match="open it as it was made"):
        memory.session("hermit")
    with pytest.raises(optchat.ConfigError, match="open it as it was made"):
        memory.session("open", isolated=True)
    with memory.session("hermit", isolated=True).turn("hello") as turn:
        turn.assistant("hi")
    assert memory.status().publications == 0
    assert memory.session("hermit", isolated=True).turns().items[0].publication_ref is None
    assert memory.verify().ok


def test_pages_of_sessions_and_turns(memory: optchat.Memory) -> None:
    for number in range(7):
        memory.session(f"s{number}")
    session = memory.session("s6")
    for count in range(6):
        session.turn(f"turn {count}").end("completed")
    keys: list[str] = []
    page = memory.sessions(limit=3)
    while True:
        keys += [info.key for info in page]
        if page.cursor is None:
            break
        page = memory.sessions(limit=3, cursor=page.cursor)
    assert keys == [f"s{number}" for number in range(7)]
    page_of_turns = session.turns(limit=4)
    rest = session.turns(limit=4, cursor=page_of_turns.cursor)
    assert [info.request for info in (*page_of_turns, *rest)] == [f"turn {count}" for count in range(6)]
    assert rest.cursor is None
    for limit in (0, 201, -1):
        with pytest.raises(optchat.BadArgument, match="limit"):
            memory.sessions(limit=limit)


# ---- projects --------------------------------------------------------------------------------------------------------
def test_a_project_has_an_id_of_ours_and_many_names(memory: optchat.Memory) -> None:
    first = memory.session("a", project="/home/me/thing").info().project
    assert first is not None
    assert first != "/home/me/thing", "a path is no identity"
    memory.link_project("/home/me/thing", "git@example.org:thing.git")
    memory.link_project("/home/me/thing", "git@example.org:thing.git")
    assert memory.session("b", project="git@example.org:thing.git").info().project == first
    assert memory.session("c", project="/somewhere/else").info().project != first
    with pytest.raises(optchat.UnknownRef):
        memory.link_project("nobody's", "x")
    with pytest.raises(optchat.ConfigError, match="already names another"):
        memory.link_project("/home/me/thing", "/somewhere/else")


def test_a_project_is_provenance_and_shuts_nobody_out(memory: optchat.Memory) -> None:
    with memory.session("a", project="one").turn("the walrus is grey") as turn:
        turn.assistant("noted")
    with memory.session("b", project="two").turn("and?") as turn:
        assert turn.search("walrus").hits
        assert turn.view().through == 1


# ---- counting --------------------------------------------------------------------------------------------------------
def test_counting_takes_text_and_what_json_takes(memory: optchat.Memory) -> None:
    class Characters:
        name = "characters-1"

        def count(self, text: str, /) -> int:
            return len(text)

    assert memory.count_tokens("hello", tokenizer=Characters()) == 5
    assert memory.count_tokens("hello", {"a": [1, None]}, tokenizer=Characters()) >= 5 + len('{"a":[1,null]}')
    assert memory.count_tokens() == 0
    assert memory.count_tokens("hello") > 0
