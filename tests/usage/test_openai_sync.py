"""
The reference's synchronous loop, as it stands, against a scripted model: streaming, parallel calls, an approval that is
given in another process, and the style in which the application owns the list.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import optchat
from tests.acceptance.scripted import Message, Scripted, call, check_paired, says
from tests.peer import Failed, Peer
from tests.usage.programs import load

Play = Callable[..., Scripted]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return load("a_openai_sync.py")


@pytest.fixture
def play(program: ModuleType) -> Iterator[Play]:
    programs_own = program.client

    def play(*replies: Message | Callable[[list[Message]], Message]) -> Scripted:
        model = Scripted(*replies)
        program.client = model.client
        return model

    yield play
    programs_own.close()


def stored() -> optchat.Memory:
    return optchat.open("memory.db", scope="project-17", compact="manual", mode="rw")


def test_ask(program: ModuleType, play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    model = play(says("Hello, and welcome back."))
    assert program.ask("hello") == "Hello, and welcome back."
    assert capsys.readouterr().out == "Hello, and welcome back."
    (request,) = model.requests
    assert request["stream"] is True
    assert request["messages"][0] == program.SYSTEM
    assert {tool["function"]["name"] for tool in request["tools"]} >= {"deploy", "memory_search", "memory_zoom"}
    with stored() as memory:
        (turn,) = memory.session("chat-42").turns()
        assert (turn.request, turn.outcome) == ("hello", "completed")


def test_parallel_calls_of_memory_and_other_tools(program: ModuleType, play: Play) -> None:
    play(says("We decided to use the broker."))
    program.ask("Should we use Redis?")

    def after(messages: list[Message]) -> Message:
        results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        assert "We decided" in results["c1"]
        assert results["c2"] == "build done"
        assert "UNKNOWN_REF" in results["c3"]
        return says("The broker it is.")

    calls = [
        call("c1", "memory_search", query="decided on Redis"),
        call("c2", "build"),
        call("c3", "memory_zoom", ref="pub:77+1"),
    ]
    play(says("Let me look.", *calls), after)
    assert program.ask("And now?") == "The broker it is."
    with stored() as memory:
        assert memory.verify().ok
        turn = memory.session("chat-42").turns().items[-1]
        assert turn.outcome == "completed"
        assert memory.search("Redis", kind="tool_result").hits == (), "an answer from memory is no evidence"


def test_an_approval_in_another_process(program: ModuleType, play: Play, tmp_path: Path) -> None:
    play(says("I will deploy.", call("c1", "memory_sessions"), call("c2", "deploy")))
    assert program.ask("ship it") is None
    with stored() as memory:
        session = memory.session("chat-42")
        assert session.turns().items[-1].state == "suspended"
        shown = session.turns().items[-1]

    peer = Peer()
    try:
        peer("import os; os.chdir(folder); os.environ['OPENAI_API_KEY'] = 'none'", folder=str(tmp_path))
        peer("from tests.usage.programs import load; program = load('a_openai_sync.py')")
        peer("import json; from tests.acceptance.scripted import Scripted, says")
        peer("model = Scripted(says('Deployed.')); program.client = model.client")
        peer("import contextlib, io")
        peer("with contextlib.redirect_stdout(io.StringIO()): answer = program.approve(True)")
        assert peer("answer") == "Deployed."
        check_paired(json.loads(peer("json.dumps(model.messages[0])")))
        assert "deploy done" in peer("str(model.messages[0])")
        with pytest.raises(Failed, match="UnknownRef"):
            peer("program.approve(True)")
    finally:
        peer.end()
    with stored() as memory:
        turn = memory.session("chat-42").turns().items[-1]
        assert (turn.id, turn.outcome) == (shown.id, "completed")


def test_a_denial(program: ModuleType, play: Play) -> None:
    play(says(None, call("c1", "deploy")))
    program.ask("ship it")
    model = play(says("Then not."))
    assert program.approve(False) == "Then not."
    assert "denied by the user" in str(model.messages[0])


def test_the_application_owns_the_list(program: ModuleType, play: Play) -> None:
    history: list[Message] = []
    with optchat.open("memory.db", scope="project-17") as memory:
        model = play(says("One."), says("Two."))
        program.own_list(memory, history, "first")
        program.own_list(memory, history, "second")
        assert [message["content"] for message in history] == ["first", "One.", "second", "Two."]
        assert model.messages[1][-1] == {"role": "user", "content": "second"}
        assert "One." not in str(model.messages[1][-1:])
        assert "One." in str(model.messages[1]), "as memory, not as the active transcript"
        assert [turn.outcome for turn in memory.session("chat-43").turns()] == ["completed", "completed"]
        assert memory.status().records == 4
