"""The reference's commands, line by line; the one that watches for ever is tests/cli/test_compact.py's."""

import re
import shlex
from pathlib import Path

import pytest

import optchat
from optchat.cli.app import run
from tests.usage.programs import USAGE

SOURCE = "why not Redis?\n" * 2_000  # several pages


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands after the prompt, with sessions that are there; in the folder that they write to."""
    path = USAGE / "h_cli.txt"
    if not path.exists():
        pytest.skip("the reference programs are not beside the repository")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTCHAT_DB", "memory.db")
    monkeypatch.setenv("OPTCHAT_SCOPE", "project-17")
    ids: list[str] = []
    with optchat.open("memory.db", scope="project-17", compact="manual") as memory:
        for number in range(25):
            with memory.session(f"chat-{number % 3}").turn(f"ask {number}") as turn:
                turn.assistant(SOURCE if number == 24 else f"answer {number}")
        memory.settle()
        ids = [session.id for session in memory.sessions()]
        source = next(hit.ref for hit in memory.search("Redis", kind="assistant"))
    text = path.read_text(encoding="utf-8").replace("session:k3f9a2bq:0:17+1", source).replace("p9d4t6ze", ids[0])
    return re.findall(r"(?m)^\$ (optchat .+)$", text)


def test_each_does_what_stands_beside_it(lines: list[str], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    done: set[str] = set()
    for line in lines:
        for command in re.split(r"\s*;\s*|\s*\|\s*", line.partition("  #")[0].partition(" > ")[0].strip()):
            name, *arguments = shlex.split(command)
            if name != "optchat" or "--watch" in arguments:
                continue
            capsysbinary.readouterr()
            assert run(arguments) == 0, command
            out = capsysbinary.readouterr().out
            assert out or arguments[0] == "verify", command
            done.add(arguments[0])
            if "--all" in arguments:
                assert out.decode() == SOURCE, "the source, to the byte, all its pages"
    wanted = {"status", "sessions", "turns", "view", "context", "search", "zoom", "date", "verify", "scopes"}
    assert done == wanted
    with optchat.open("memory.db", scope="project-17", mode="ro") as memory:
        assert len(memory.sessions()) == 3, "what was rehearsed was not done"


def test_a_path_that_is_mistyped_makes_no_file(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines, "the commands"
    monkeypatch.setenv("OPTCHAT_DB", "mistyped.db")
    assert run(["status"]) == 2
    assert not Path("mistyped.db").exists()
