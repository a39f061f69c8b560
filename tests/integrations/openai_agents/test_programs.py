"""Programs as users write them: the reference's, the example, and what is said without the extra."""

import ast
import asyncio
import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents.models.multi_provider import MultiProvider

import optchat
from optchat.adapters.openai_agents import MemoryRunner, memory_tools
from optchat.testing.memories import open_beside
from tests.integrations.openai_agents.lab import BUDGET, Lab, Scripted, agent_of, answer, calls, deploy, said

pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[3]
USAGE = ROOT.parent / "shared" / "reference" / "usage"


def test_the_reference_s_program_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = USAGE / "c_agents.py"
    if not program.exists():
        pytest.skip("the reference programs are not beside the repository")
    made = [answer("Let me see."), calls("memory_sessions", call_id="c1"), calls("deploy", '{"env": "x"}', "c2")]
    model = Scripted([made, [answer("Added.")], [answer("Tested.")]])

    def scripted(_self: object, _name: object) -> Scripted:
        return model

    monkeypatch.setattr(MultiProvider, "get_model", scripted)
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program), run_name="__main__")
    said_by_it = capsys.readouterr().out.splitlines()
    assert said_by_it[0] == "Added."
    assert set(said_by_it[1:]) == {"agent_updated_stream_event", "raw_response_event", "run_item_stream_event"}
    assert names["deploy"].name == "deploy"
    assert said(model.calls[1].input[-1:]) == "result c2: deployed"
    with optchat.open("memory.db", scope="project-17") as memory:
        (info,) = memory.sessions()
        assert (info.key, info.host, info.turns) == ("chat-42", "openai-agents", 2)
        assert [turn.outcome for turn in memory.session_by_id(info.id).turns()] == ["completed", "completed"]


def test_the_reference_s_program_waits_for_an_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a tool that has to be approved, which is what its middle part is for."""
    program = USAGE / "c_agents.py"
    if not program.exists():
        pytest.skip("the reference programs are not beside the repository")
    source = program.read_text(encoding="utf-8").replace("@function_tool\n", "@function_tool(needs_approval=True)\n")
    model = Scripted([[calls("deploy", '{"env": "x"}')], [answer("Added.")], [answer("Tested.")]])

    def scripted(_self: object, _name: object) -> Scripted:
        return model

    monkeypatch.setattr(MultiProvider, "get_model", scripted)
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(program), "exec"), {"__name__": "__main__"})
    assert said(model.calls[1].input[-1:]) == "result c1: deployed"
    with optchat.open("memory.db", scope="project-17") as memory:
        (info,) = memory.sessions()
        assert [turn.outcome for turn in memory.session_by_id(info.id).turns()] == ["completed", "completed"]


@pytest.mark.anyio
async def test_the_guide_s_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```py\n(from agents import.*?)^```", guide, re.MULTILINE | re.DOTALL)
    code = compile(source, "guide.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    model = Scripted([[calls("deploy", '{"env": "x"}')], [answer("Added.")], [answer("Tested.")]])
    monkeypatch.chdir(tmp_path)
    await eval(code, {"optchat": optchat, "model": model, "deploy": deploy})
    assert said(model.calls[1].input[-1:]) == "result c1: deployed x"
    assert model.steps == []


def test_the_example_runs_offline(tmp_path: Path) -> None:
    example = ROOT / "examples" / "openai_agents.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 40
    environment = {name: value for name, value in os.environ.items() if name != "OPTCHAT_EXAMPLE_MODEL"}
    path = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
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
    for name in [name for name in sys.modules if name.startswith("optchat.adapters.openai_agents")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(optchat.ConfigError, match=r"optchat\[openai-agents\]"):
        importlib.import_module("optchat.adapters.openai_agents")


def test_an_untested_version_is_refused_at_registration(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(_distribution: str) -> str:
        return "0.19.4"

    monkeypatch.setattr("optchat.adapters.checking.version", old)
    with pytest.raises(optchat.HostUnsupported, match="openai-agents"):
        MemoryRunner(lab.memory, BUDGET)
    with pytest.raises(optchat.HostUnsupported, match="openai-agents"):
        memory_tools()


# ---- processes -------------------------------------------------------------------------------------------------------

DYING = """
import asyncio, os, sys
from pathlib import Path
from agents import function_tool
import optchat
from tests.integrations.openai_agents.lab import Lab, Scripted, agent_of, answer, build, calls

@function_tool
def die() -> str:
    os._exit(9)

async def main():
    with optchat.open(Path(sys.argv[1]) / "memory.db", scope="test", compact="manual") as memory:
        script = [[calls("build")], [answer("Hm."), calls("die", call_id="c2")]]
        await Lab(memory, Path(sys.argv[1])).run(agent_of(Scripted(script), build, die), "go")

asyncio.run(main())
"""


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_run_whose_process_died_is_interrupted_and_the_next_goes_on(tmp_path: Path, opened: str) -> None:
    def die() -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        command = [sys.executable, "-c", DYING, str(tmp_path)]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False, timeout=120)
        assert done.returncode == 9

    if opened == "after":
        die()
    with optchat.open(tmp_path / "memory.db", scope="test", compact="manual") as memory:
        if opened == "before":
            die()
        lab = Lab(memory, tmp_path)
        asyncio.run(lab.run(agent_of(Scripted([[answer("Good.")]])), "go"))
        assert lab.outcomes() == ["interrupted", "completed"]
        assert lab.sealed()[3:] == ["assistant: Hm.", "call c2: die", "user: go", "assistant: Good."]


def test_the_loop_runs_on_while_another_process_holds_the_lock(lab: Lab) -> None:
    """The lock is released only by a beat of the loop: blocked, it would never be."""
    asyncio.run(lab.run(agent_of(Scripted([[answer("Good.")]])), "go"))
    other = open_beside(lab.memory)
    waits: list[int] = []

    async def run() -> None:
        store: Any = other._house.store  # pyright: ignore[reportPrivateUsage]
        running = asyncio.create_task(lab.run(agent_of(Scripted([[answer("Good.")]])), "on"))
        with store.write(wait_seconds=5):
            for beat in range(20):
                await asyncio.sleep(0.005)
                waits.append(beat)
            assert not running.done()
        await running

    asyncio.run(run())
    assert len(waits) == 20
    assert lab.outcomes() == ["completed", "completed"]
