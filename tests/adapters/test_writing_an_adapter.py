"""docs/writing-an-adapter.md, as it stands: its toy host, its codec, its glue, and its contract."""

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import optchat
from optchat.testing import AdapterContract, temporary_memory

PAGE = Path(__file__).parents[2] / "docs" / "writing-an-adapter.md"
CODE = "\n\n".join(re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8")))


def load() -> ModuleType:
    module = ModuleType("writing_an_adapter")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(CODE, str(PAGE), "exec"), vars(module))
    return module


page: Any = load()
TestToy = page.TestToy


def test_the_codec_is_as_short_as_the_page_says() -> None:
    codec = next(node for node in ast.parse(CODE).body if isinstance(node, ast.ClassDef) and node.name == "ToyAdapter")
    lines = ast.unparse(codec).splitlines()
    assert len([line for line in lines if line.strip()]) <= 18


def test_the_table_has_each_clause_once() -> None:
    rows = re.findall(r"(?m)^\| ([a-z][^|]+?) \|", PAGE.read_text(encoding="utf-8"))
    named = {row.replace("'", "_").replace(" ", "_").replace("__", "_") for row in rows if row != "clause"}
    clauses = {name.removeprefix("test_") for name in dir(AdapterContract) if name.startswith("test_")}
    short = {clause for clause in clauses if clause.startswith("unanswered_calls")}
    assert {"unanswered_calls_are_not_sent_again"} | (clauses - short) == named


def test_the_toy_s_model_knows_what_another_session_decided() -> None:
    with temporary_memory() as memory:
        with memory.session("other").turn("Redis?") as turn:
            turn.assistant("Zanzibar: no Redis.")
        seen: list[Any] = []

        def model(messages: list[Any]) -> Any:
            seen.append(messages)
            return page.Toy("bot", "Added.") if len(seen) > 1 else page.Toy("bot", "", ("c1", "build", "{}"))

        agent = page.run_with_memory(memory, "toy", "Add a queue.", model)
        assert [message.who for message in agent.log] == ["me", "bot", "tool", "bot"]
        assert "Zanzibar" in "".join(message.text for message in seen[0])
        (info,) = memory.session("toy", host="toy").turns()
        assert info.outcome == "completed"


def test_a_hook_that_is_forgotten_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy in a version that no longer calls its hook."""

    class Newer(page.ToyAgent):  # type: ignore[misc, name-defined]
        def __init__(self, model: Any, before_model: Any) -> None:
            del before_model
            super().__init__(model, lambda messages: messages)

    monkeypatch.setattr(page, "ToyAgent", Newer)
    with temporary_memory() as memory, pytest.raises(optchat.HostUnsupported, match="never ran"):
        page.run_with_memory(memory, "toy", "Add a queue.", lambda _messages: page.Toy("bot", "Added."))
