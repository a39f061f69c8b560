"""Two processes, two frameworks, one database: the script as it stands, and what it captured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.host
ROOT = Path(__file__).parents[3]


def test_what_one_host_decides_the_other_knows_in_its_captured_request(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "two_hosts.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    first, mark, second = done.stdout.partition("captured by pydantic-ai:")
    assert mark
    assert "no Redis" not in first.partition("it said:")[0], "nobody had decided yet"
    (shown,) = [line for line in second.splitlines() if line.startswith("pub:0+1 ")]
    assert "no Redis for the queue" in shown, "A's decision stands in B's request, as a publication"
    assert second.index(shown) < second.index("Where does the queue live?")
    assert second.splitlines()[-1] == "it said: The broker."
