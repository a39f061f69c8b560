"""The reference's own summarizer and tokenizer; a fallback and ceilings; not ready, failed job, ceiling."""

from pathlib import Path
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
    llama = program.Llama(Encoder())
    with temporary_memory() as memory:
        context = memory.session("c").preview(optchat.Budget(32_000, 1_000, tokenizer=llama))
        assert context.receipt.tokenizer == "llama-3.1"
        assert context.receipt.tokens.blocks["guidance"] == len(optchat.MEMORY_GUIDANCE) + 4


class Encoder:
    def encode(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(ids=list(text))


def test_the_whole_program(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program.use(Encoder())
    assert capsys.readouterr().out == "None None\n"
    with optchat.open("m.db", scope="p", mode="ro") as memory:
        assert memory.status().publications == 1


def test_what_its_model_refuses_its_rule_summarises(program: ModuleType, tmp_path: Path) -> None:
    @optchat.summarizer("refuses", window_tokens=32_000)
    def refuses(_request: optchat.SummaryRequest) -> optchat.SummaryReply:
        return optchat.SummaryReply("", refused=True)

    policy = optchat.Policy(calls_per_hour=500, cost_per_day=2.0)
    path = tmp_path / "m.db"
    with optchat.open(
        path, scope="p", summarizer=refuses, fallback=program.First(), policy=policy, compact="manual"
    ) as memory:
        session = long_turn(memory)
        status = memory.settle()
        assert (status.ready, status.stand_ins, status.paused, status.total.cost) == (True, 0, None, None)
        assert "The broker persists" in memory.view(session.id).lines[-1].text


def test_its_ceiling_says_until_when(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reply = {"choices": [{"message": {"content": "summary"}}]}
    monkeypatch.setattr(
        program.httpx2,
        "post",
        lambda url, **_: httpx2.Response(200, json=reply, request=httpx2.Request("POST", url)),
    )
    policy = optchat.Policy(calls_per_hour=1)
    with optchat.open(tmp_path / "m.db", scope="p", summarizer=program.qwen, policy=policy, compact="manual") as memory:
        session = long_turn(memory)
        long_turn(memory)
        status = memory.settle()
        assert status.paused is not None
        assert "calls_per_hour" in status.paused
        assert status.resumes_at is not None
        turn = session.turn("And now?")
        with pytest.raises(optchat.MemoryNotReady) as caught:
            turn.context(optchat.Budget(32_000, 1_000))
        assert (caught.value.paused, caught.value.resumes_at) == (status.paused, status.resumes_at)
