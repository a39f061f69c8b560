"""The examples of raw loops, as somebody runs them: offline, with a scripted model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MOST_LINES = 40
WIRES = {"openai_chat": "openai", "openai_responses": "openai", "anthropic_messages": "anthropic"}


def run(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    providers = ("ANTHROPIC_", "OPENAI_", "OPTCHAT_")  # no key of this machine's, and no address
    environment = {key: value for key, value in os.environ.items() if not key.startswith(providers)}
    environment |= {"PYTHONPATH": str(ROOT / "src"), **variables}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    return subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("name", WIRES)
def test_one_conversation_knows_what_the_other_decided(name: str, tmp_path: Path) -> None:
    """The scripted model answers by what it was sent: without memory it would have been told of no decision."""
    pytest.importorskip(WIRES[name])
    done = run(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No Redis: the broker that we have persists.", "The broker."]
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WIRES)[:2])  # one of each provider
def test_a_model_that_is_named_is_asked(name: str, tmp_path: Path) -> None:
    """With the variable set nothing else changes: the provider's own client is made, and wants its key."""
    pytest.importorskip(WIRES[name])
    done = run(name, tmp_path, OPTCHAT_EXAMPLE_MODEL="some-model")
    assert done.returncode != 0
    assert "api_key" in done.stderr or "API key" in done.stderr or "authentication" in done.stderr.lower()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    if path.stem == "two_hosts":  # two hosts, two processes, and what each was sent
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES, f"{len(lines)} lines; an example is read in one look"
    assert lines[0].startswith('"""'), "it says first what it shows"
