"""The reference's asynchronous loop, as it stands, against a scripted model: thinking goes back as it came."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import anyio
import pytest

import optchat
from tests.usage.programs import load

anthropic_types = pytest.importorskip("anthropic.types", reason="the program needs the extra anthropic")
THOUGHT = {"type": "thinking", "thinking": "Which broker was it?", "signature": "c2lnbmVk"}


class Stream:
    """One streamed answer."""

    def __init__(self, content: list[dict[str, Any]]) -> None:
        self._content = content

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        pass

    @property
    async def text_stream(self) -> AsyncIterator[str]:
        for block in self._content:
            if block["type"] == "text":
                yield block["text"]

    async def get_final_message(self) -> Any:
        return anthropic_types.Message.model_validate(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "scripted",
                "content": self._content,
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )


class Scripted:
    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self._answers = iter(answers)
        self.requests: list[dict[str, Any]] = []
        self.messages = SimpleNamespace(stream=self._stream)

    def _stream(self, **request: Any) -> Stream:
        self.requests.append(request)
        return Stream(next(self._answers))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    return load("b_anthropic_async.py")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_turn_with_tools(program: ModuleType, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = Scripted(
        [
            THOUGHT,
            {"type": "tool_use", "id": "t1", "name": "memory_search", "input": {"query": "which broker"}},
            {"type": "tool_use", "id": "t2", "name": "build", "input": {}},
        ],
        [{"type": "text", "text": "On the broker that we have."}],
    )
    program.client = model
    with optchat.open("memory.db", scope="project-17", compact="manual") as memory:
        memory.session("planning").note("The broker is kept: it persists.")
    anyio.run(program.main, backend=backend)
    assert capsys.readouterr().out == "On the broker that we have." * 2 + "\n"
    first, second = model.requests
    assert "The broker is kept" in str(first["messages"])
    assert THOUGHT in second["messages"][-2]["content"]
    results = {block["tool_use_id"]: str(block["content"]) for block in second["messages"][-1]["content"]}
    assert "The broker is kept" in results["t1"]
    assert "ok" in results["t2"]
    with optchat.open("memory.db", scope="project-17", compact="manual") as memory:
        (turn,) = memory.session("chat-42").turns()
        assert turn.outcome == "completed"
        assert "Which broker was it" not in str(memory.search("broker").hits), "no thought is kept"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_model_that_fails(program: ModuleType, backend: str) -> None:
    program.client = Scripted()
    with pytest.raises(RuntimeError, match="StopIteration"):
        anyio.run(program.main, backend=backend)
    with optchat.open("memory.db", scope="project-17", compact="manual") as memory:
        assert [turn.outcome for turn in memory.session("chat-42").turns()] == ["failed"]
