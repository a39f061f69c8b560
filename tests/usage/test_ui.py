"""The reference's buttons of a chat's interface, and its import of an old history."""

from types import ModuleType

import pytest
from openai.types.chat import ChatCompletionMessageParam

import optchat
from optchat.testing import temporary_memory
from tests.usage.programs import load


@pytest.fixture
def program() -> ModuleType:
    return load("kl_ui.py")


def test_a_branch_and_an_edit(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_memory() as memory:
        chat = memory.session("chat-42")
        for number in range(4):
            with chat.turn(f"ask {number}") as turn:
                turn.assistant(f"answer {number}")
        program.buttons(memory)
        assert "'turns': 0" not in capsys.readouterr().out
        now = memory.session("chat-42")
        assert [turn.request for turn in now.turns()] == ["ask 0", "ask 1", "edited text"]
        with pytest.raises(optchat.SessionDeleted):
            memory.session("chat-42-b")
        assert memory.verify().faults == ()


def test_an_old_history_is_read_once(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Should we use Redis?"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "The broker persists."},
    ]
    with temporary_memory() as memory:
        program.old(memory, rows)
        assert capsys.readouterr().out.split("\n")[:2] == ["4 2 {'no_source': 1}", "0"]
        assert [session.title for session in memory.sessions()] == ["May"]
