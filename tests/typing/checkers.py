"""mypy and pyright, both strict, over a few programs; their complaints by file and line."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
_MYPY_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+): (?P<level>error|note): (?P<text>.*)")


@frozen
class Said:
    """``level``: "error", or what was asked for by reveal_type."""

    file: str
    line: int
    level: str
    text: str


def mypy(files: Iterable[Path], cache: Path) -> list[Said]:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--config-file=", "--cache-dir", str(cache), *map(str, files)],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [_MYPY_LINE.fullmatch(line) for line in done.stdout.splitlines()]
    return [
        Said(Path(match["file"]).name, int(match["line"]), match["level"], match["text"]) for match in found if match
    ]


def pyright(folder: Path) -> list[Said]:
    """Every file of a folder; its settings are written there."""
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT / "src")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"],
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [
        Said(Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["severity"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
