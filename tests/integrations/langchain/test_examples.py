"""The examples, and the guide's code, as somebody runs them: offline, with a scripted model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import optchat
from tests.integrations.langchain.host import Fake, Script

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.host


@pytest.mark.parametrize("name", ["langchain_agent.py", "langgraph_node.py"])
def test_what_one_thread_decides_the_other_is_told(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OPTCHAT_EXAMPLE_MODEL"}
    path = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No Redis: the broker that we have persists.", "The broker."]


@pytest.mark.parametrize("name", ["langchain_agent.py", "langgraph_node.py"])
def test_an_example_is_short(name: str) -> None:
    assert (ROOT / "examples" / name).read_text(encoding="utf-8").count("\n") <= 40


def test_the_guide_s_agent_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(from langchain\.agents.*?)^```", guide, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"optchat": optchat, "model": Fake(script=Script.of("In the broker."))}
    exec(compile(source, "guide.md", "exec"), names)
    assert names["result"]["messages"][-1].content == "In the broker."
    with optchat.open("agents.db", scope="project-17") as memory:
        assert [(info.key, info.turns) for info in memory.sessions()] == [("chat-42", 1)]
