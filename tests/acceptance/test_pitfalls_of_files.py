"""What goes wrong in systems like this one, continued: older and newer libraries on one file."""

import subprocess
import sys
from pathlib import Path

import pytest

import optchat
from optchat.store.migrate import FORMAT
from tests.acceptance.conftest import Open
from tests.peer import Failed, Peer

# As a newer library leaves a file behind: it knows a version that this one does not.
MIGRATE = (
    "db = memory._house.store.exclusive(); db.__enter__().pragma('user_version', version); db.__exit__(*[None] * 3)"
)


def bytes_of(path: Path) -> list[str]:
    """Read by another process: to close a descriptor here would drop the locks of this process's handles."""
    script = "import pathlib, sys\nfor name in sys.argv[1:]: print(pathlib.Path(name).read_bytes().hex())"
    names = [str(path), f"{path}-wal"]
    return subprocess.run(
        [sys.executable, "-c", script, *names], check=True, capture_output=True, text=True
    ).stdout.splitlines()


def test_pitfall_25_an_older_library_refuses_what_a_newer_one_wrote_and_harms_nothing(
    memory: optchat.Memory, peer: Peer, open_memory: Open, path: Path
) -> None:
    turn = memory.session("a").turn("before the upgrade")
    turn.assistant("said by the older library")
    peer(MIGRATE, version=FORMAT.version + 1)
    before = bytes_of(path)
    uses = [
        lambda: turn.assistant("after the upgrade"),
        lambda: turn.end("completed"),
        lambda: memory.session("b").turn("another"),
        memory.status,
        memory.view,
        lambda: memory.search("library"),
        memory.settle,
        memory.verify,
        lambda: memory.session("a"),
    ]
    for use in uses:
        with pytest.raises(optchat.SchemaTooNew, match="upgrade optchat"):
            use()
    for mode in ("rwc", "rw", "ro"):
        with pytest.raises(optchat.SchemaTooNew, match="upgrade optchat"):
            open_memory(mode=mode)
    with pytest.raises(Failed, match="SchemaTooNew"):
        peer("optchat.open(path, scope='project-17')", path=str(path))
    assert bytes_of(path) == before, "an older library wrote into a newer file"
    peer(MIGRATE, version=FORMAT.version)
    turn.assistant("said by the newer library")
    assert len(turn.messages) == 3
    report = memory.verify()
    assert report.ok, report.faults


SCRATCH = (
    "apsw = __import__('apsw'); db = apsw.Connection(str(memory.path));"
    " db.execute(\"UPDATE words_data SET block = x'0102' WHERE id > 1000\"); db.close()"
)


def test_pitfall_26_an_index_that_is_destroyed_under_load_is_made_anew_from_the_sources(
    memory: optchat.Memory, peer: Peer, path: Path
) -> None:
    """By another process, while this one goes on writing; what is written meanwhile is in it too."""
    for number in range(5):
        with memory.session("a").turn(f"message {number} about the broker") as turn:
            turn.assistant("noted")
    memory.settle()
    peer(SCRATCH)
    damaged = memory.verify()
    assert "INDEX" in {fault.code for fault in damaged.faults}
    repaired = memory.verify(repair=True)
    assert repaired.faults == ()
    assert repaired.repaired > 0
    with memory.session("b").turn("one more message about the broker") as turn:
        turn.assistant("noted")
    assert len(memory.search("broker", kind="user").hits) == 6
    assert path.exists()
