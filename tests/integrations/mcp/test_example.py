"""The example of a client, as somebody runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.host


def test_the_client_reads_by_the_newest_and_by_what_it_names(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "mcp_client.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    tools, before, newest, pinned = done.stdout.splitlines()
    assert tools == "memory_zoom memory_search memory_date memory_sessions memory_work"
    assert before == str(["No Redis: the broker that we have persists."])
    assert "Redis after all, for the cache." in newest
    assert pinned == f"as before:  {before}"
    assert done.stderr == ""
