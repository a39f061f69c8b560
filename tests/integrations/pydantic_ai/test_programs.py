"""Programs: the example as it stands, and what is said where the framework is not there."""

import asyncio
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import optchat
from optchat.testing.memories import open_beside, temporary_memory
from tests.integrations.pydantic_ai.host import Script, agent, do, kinds, turns

pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "pydantic_agent.py"


def test_the_example_runs_offline(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 40
    environment = {name: value for name, value in os.environ.items() if name != "OPTCHAT_EXAMPLE_MODEL"}
    path = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No Redis: the broker that we have persists.", "The broker."]


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("optchat.adapters.pydantic_ai")]:
        monkeypatch.delitem(sys.modules, name)

    def absent(name: str, package: str | None = None) -> None:
        del name, package

    monkeypatch.setattr("importlib.util.find_spec", absent)
    with pytest.raises(optchat.ConfigError, match=r"optchat\[pydantic-ai\]"):
        importlib.import_module("optchat.adapters.pydantic_ai")


DYING = """
import os, sys
import optchat
from optchat import HostMessage
from tests.integrations.pydantic_ai.host import Script, agent, call, do

with optchat.open(sys.argv[1], scope="test", compact="manual") as memory:
    host = agent(Script.of(call("c1", "die"), HostMessage.assistant("?")), memory, "chat-42")

    @host.tool_plain
    def die() -> str:
        os._exit(9)

    do(host, "go")
"""


def test_a_run_whose_process_died_is_interrupted_and_the_next_goes_on(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    database = str(tmp_path / "memory.db")
    command = [sys.executable, "-c", DYING, database]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False, timeout=120)
    assert done.returncode == 9
    with optchat.open(database, scope="test", compact="manual") as memory:
        do(agent(Script.of(optchat.HostMessage.assistant("Good.")), memory, "chat-42"), "on")
        assert [turn.outcome for turn in turns(memory, "chat-42")] == ["interrupted", "completed"]
        assert kinds(memory, "chat-42") == ["user", "tool_call", "user", "assistant"], (
            "the call was sealed as it was made"
        )


def test_the_loop_runs_on_while_another_process_holds_the_lock() -> None:
    """The lock is released only by a beat of the loop: blocked, it would never be."""
    with temporary_memory() as memory:
        host = agent(Script.of(optchat.HostMessage.assistant("Good.")), memory, "chat-42")
        store = open_beside(memory)._house.store  # pyright: ignore[reportPrivateUsage] - the lock itself

        async def run() -> None:
            running = asyncio.create_task(host.run("go"))
            with store.write(wait_seconds=5):
                for _ in range(20):
                    await asyncio.sleep(0.005)
                assert not running.done()
            await running

        asyncio.run(run())
        assert [turn.outcome for turn in turns(memory, "chat-42")] == ["completed"]
