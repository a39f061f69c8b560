"""`optchat mcp` where there is no SDK, or nothing to serve. What it serves is tests/integrations/mcp's business."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import optchat
from optchat.cli.app import application, run
from optchat.memory import scopes_of

ROOT = Path(__file__).parents[2]
# As on a machine without the extra, whatever is installed on this one.
WITHOUT = """
import sys
sys.modules["mcp"] = None
from optchat.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="s", compact="manual") as memory:
        memory.session("a").note("note")
    return path


def test_without_the_extra_it_is_named(path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, "--db", str(path), "--scope", "s", "mcp"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "optchat[mcp]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_adapter_is_imported_without_the_extra() -> None:
    script = "import sys; sys.modules['mcp'] = None; from optchat.adapters.mcp import INFO; print(INFO.version_floor)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "2.0"


def test_nothing_is_made_for_a_mistyped_path_or_scope(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent.db"
    assert run(["--db", str(absent), "--scope", "s", "mcp"]) == 2
    assert "absent.db" in capsys.readouterr().err
    assert not absent.exists()
    assert run(["--db", str(path), "--scope", "other", "mcp"]) == 2
    assert "'other'" in capsys.readouterr().err
    assert [scope.name for scope in scopes_of(path)] == ["s"]


def test_its_help_says_that_it_is_retrieval_only() -> None:
    told = application.commands["mcp"].help or ""
    assert "Retrieval only" in told
    assert "nothing of its own conversation is remembered" in " ".join(told.split())
