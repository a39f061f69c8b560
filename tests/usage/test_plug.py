"""The reference's own summarizer and tokenizer. (``fallback=`` and ceilings are of a later part.)"""

from types import ModuleType, SimpleNamespace

import httpx2
import pytest

import optchat
from optchat.testing import temporary_memory
from tests.usage.programs import load


@pytest.fixture
def program() -> ModuleType:
    return load("ij_plug.py")


def long_turn(memory: optchat.Memory) -> optchat.Session[optchat.HostMessage]:
    session = memory.session("c")
    with session.turn("Should we?") as turn:
        turn.assistant("The broker persists. " * 100)
    return session


def test_a_function_that_asks_a_server(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def post(url: str, *, timeout: float, json: dict[str, object]) -> httpx2.Response:
        assert timeout > 0
        asked.append(json)
        reply = {"choices": [{"message": {"content": f"summary {len(asked)}"}}]}
        return httpx2.Response(200, json=reply, request=httpx2.Request("POST", url))

    monkeypatch.setattr(program.httpx2, "post", post)
    with temporary_memory(summarizer=program.qwen) as memory:
        session = long_turn(memory)
        status = memory.settle()
        assert (status.ready, status.summarizer) == (True, "qwen3-4b@box")
        assert {line.text for line in memory.view(session.id).lines if line.kind == "summary"} == {"summary 1"}
    messages = asked[0]["messages"]
    assert isinstance(messages, list)
    assert messages[0]["role"] == "system"
    assert "The broker persists." in str(messages)


def test_a_rule_that_is_async(program: ModuleType) -> None:
    with temporary_memory(summarizer=program.First()) as memory:
        session = long_turn(memory)
        assert memory.settle().summarizer == "first-sentence-1"
        assert "The broker persists" in memory.view(session.id).lines[-1].text


def test_a_models_own_tokenizer(program: ModuleType) -> None:
    class Encoder:
        def encode(self, text: str) -> SimpleNamespace:
            return SimpleNamespace(ids=list(text))

    llama = program.Llama(Encoder())
    with temporary_memory() as memory:
        context = memory.session("c").preview(optchat.Budget(32_000, 1_000, tokenizer=llama))
        assert context.receipt.tokenizer == "llama-3.1"
        assert context.receipt.tokens.blocks["guidance"] == len(optchat.MEMORY_GUIDANCE) + 4
