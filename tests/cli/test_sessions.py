"""
``optchat sessions …``, ``new``, ``delete-scope`` and ``backup``: what each does, says, asks and refuses; and that an
export is read back as it was.
"""

from __future__ import annotations

import gzip
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import optchat
from optchat.cli.app import run
from tests.cli.runs import Run

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "coding-sessions.jsonl.gz"
SCOPE = "project-17"

Ask = Callable[..., Run]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        alice = memory.session("alice")
        for number, text in enumerate(("why not Redis?", "and the cache?", "and the logs?")):
            with alice.turn(text, turn_id=f"t{number}") as turn:
                turn.assistant(f"canary{number} because the broker persists")
        with memory.session("bob").turn("package it") as turn:
            turn.assistant("packaged")
        memory.settle()
    return path


@pytest.fixture
def ask(path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("OPTCHAT_DB", str(path))
    monkeypatch.setenv("OPTCHAT_SCOPE", SCOPE)

    def ask(*arguments: str | Path) -> Run:
        capsysbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return Run(code, captured.out, captured.err.decode())

    return ask


def tables(path: Path) -> list[tuple[Any, ...]]:
    """What is stored, but for who has opened the file."""
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        status = memory.status()
        sessions = [(info.id, info.state, info.generation, info.turns) for info in memory.sessions(archived=True)]
        return [(status.records, status.publications), *sessions]


def texts(ask: Ask, key: str) -> list[str]:
    lines = [json.loads(line) for line in ask("sessions", "export", key).text.splitlines()]
    return [part["text"] for line in lines for part in line["parts"]]


# ---- what is gone ----------------------------------------------------------------------------------------------------


def test_a_deletion_prints_its_receipt_and_nothing_is_left(ask: Ask, path: Path) -> None:
    done = ask("sessions", "delete", "alice", "--yes")
    assert done.code == 0
    assert "6 records" in done.text
    assert "3 publications" in done.text
    assert "cannot be undone: " in done.text
    assert done.text.rstrip().endswith("erased from the file: yes")
    assert ask("search", "canary1").text.count("\n") == 1
    assert b"canary1" not in path.read_bytes()
    assert ask("sessions", "delete", "alice", "--yes").code == 2
    assert [row["key"] for row in ask("sessions", "--json").json["items"]] == ["bob"]


def test_some_turns_only(ask: Ask) -> None:
    document = ask("sessions", "delete", "alice", "--only", "t1", "--only", "pub:2+1", "--yes", "--json").json
    assert (document["dry_run"], document["receipt"]["removed"]["turns"]) == (False, 2)
    assert document["receipt"]["scrubbed"] is True
    assert texts(ask, "alice") == ["why not Redis?", "canary0 because the broker persists"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "delete", "alice"],
        ["sessions", "delete", "alice", "--only", "t1", "--forks", "forget"],
        ["sessions", "rewind", "alice", "--after", "t0"],
        ["sessions", "revoke", "alice"],
        ["sessions", "archive", "alice"],
        ["sessions", "share", "alice"],
        ["sessions", "fork", "alice", "carol"],
        ["new", "alice"],
        ["delete-scope"],
    ],
    ids=" ".join,
)
def test_a_dry_run_changes_nothing_and_says_what_would_happen(ask: Ask, path: Path, arguments: list[str]) -> None:
    before = tables(path)
    done = ask(*arguments, "--dry-run")
    assert done.code == 0
    assert "would " in done.text
    assert ask(*arguments, "--dry-run", "--json").json["dry_run"] is True
    assert tables(path) == before
    assert ask("verify").code == 0


def test_a_dry_run_says_what_the_deletion_then_says(ask: Ask) -> None:
    would = ask("sessions", "delete", "alice", "--dry-run", "--json").json["receipt"]
    done = ask("sessions", "delete", "alice", "--yes", "--json").json["receipt"]
    assert would["removed"] == done["removed"]
    assert would["kept"] == done["kept"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "delete", "alice"],
        ["sessions", "rewind", "alice", "--before", "t1"],
        ["sessions", "revoke", "alice"],
        ["delete-scope"],
    ],
    ids=" ".join,
)
def test_without_a_terminal_and_without_yes_nothing_happens(ask: Ask, path: Path, arguments: list[str]) -> None:
    before = tables(path)
    done = ask(*arguments)
    assert (done.code, done.out) == (2, b"")
    assert "--yes" in done.err
    assert "--dry-run" in done.err
    assert tables(path) == before


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_somebody_is_asked(path: Path, answer: str, code: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "optchat", "--db", path, "--scope", SCOPE, "sessions", "delete", "alice"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    os.write(ours, f"{answer}\n".encode())
    out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code
    assert b"Delete session alice" in err
    assert b"6 records" in err
    assert (b"removed: " in out) == (code == 0)
    assert not select.select([], [], [], 0)[0]


def test_what_cannot_be_is_refused_before_anybody_is_asked(ask: Ask) -> None:
    assert "no session 'nobody'" in ask("sessions", "delete", "nobody").err
    assert ask("sessions", "delete", "alice", "--only", "t9").code == 2
    assert ask("sessions", "rewind", "alice", "--after", "t9").code == 2
    assert "one of --after" in ask("sessions", "rewind", "alice").err


def test_a_scope_is_deleted_and_others_are_not(ask: Ask) -> None:
    with optchat.open(os.environ["OPTCHAT_DB"], scope="other", compact="manual") as memory:
        memory.session("x").note("stays")
    done = ask("delete-scope", "--yes", "--json").json
    assert done["receipt"]["removed"]["sessions"] == 2
    assert done["receipt"]["scrubbed"] is True
    assert [row["name"] for row in ask("scopes", "--json").json] == ["other"]
    assert ask("status").code == 2


# ---- what only moves -------------------------------------------------------------------------------------------------


def test_rewind_names_the_turns_that_are_superseded(ask: Ask) -> None:
    done = ask("sessions", "rewind", "alice", "--after", "t0", "--yes", "--json").json
    assert [turn["id"] for turn in done["superseded"]] == ["t1", "t2"]
    assert (done["session"]["generation"], done["session"]["turns"]) == (1, 1)
    assert texts(ask, "alice") == ["why not Redis?", "canary0 because the broker persists"]


def test_a_fork_has_the_past_and_goes_its_own_way(ask: Ask) -> None:
    done = ask("sessions", "fork", "alice", "carol", "--after", "t1", "--json").json
    assert (done["session"]["key"], done["session"]["turns"]) == ("carol", 2)
    assert ask("sessions", "fork", "alice", "carol", "--after", "t1", "--json").json == done
    assert ask("sessions", "fork", "alice", "bob").code == 2
    kept = ask("sessions", "delete", "alice", "--yes", "--json").json["receipt"]["kept"]
    assert any("fork" in why for why in kept.values())
    assert texts(ask, "carol")[-1] == "canary1 because the broker persists"


def test_archive_and_unarchive(ask: Ask) -> None:
    assert ask("sessions", "archive", "alice").code == 0
    assert "alice" not in ask("sessions").text
    assert "archived" in ask("sessions", "--archived").text
    assert ask("sessions", "unarchive", "alice").code == 0
    assert "alice" in ask("sessions").text


def test_revoke_and_share(ask: Ask) -> None:
    assert "withdrew 3 publications" in ask("sessions", "revoke", "alice", "--yes").text
    assert ask("sessions", "revoke", "alice", "--yes", "--json").json["session"]["state"] == "revoked"
    assert "canary0" not in ask("view").text
    assert ask("sessions", "share", "alice", "--history").code == 0
    assert "canary0" in ask("view").text


def test_begun_anew_the_key_names_the_new_one(ask: Ask) -> None:
    old = ask("sessions", "--json").json["items"][0]["id"]
    done = ask("new", "alice", "--json").json["session"]
    assert (done["key"], done["turns"]) == ("alice", 0)
    assert done["id"] != old
    assert ask("turns", "alice", "--json").json["items"] == []
    assert len(ask("turns", old, "--json").json["items"]) == 3
    assert "is new already" in ask("new", "alice").text


# ---- freshness -------------------------------------------------------------------------------------------------------


def test_status_exits_1_while_a_host_is_ahead(ask: Ask, path: Path) -> None:
    assert ask("status").code == 0
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        session = memory.session("alice", create=False)
        assert session.host_holds(9) == 3
        name = session.id
    done = ask("status")
    assert done.code == 1
    assert "3 messages since " in done.text
    assert name in done.text
    assert ask("compact").code == 0  # no summary is missing
    document = ask("status", "--json")
    assert (document.code, document.json["behind"], document.json["behind_sessions"]) == (1, 3, [name])


# ---- backup ----------------------------------------------------------------------------------------------------------


def test_a_backup_is_the_whole_file_and_needs_no_scope(
    ask: Ask, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPTCHAT_SCOPE")
    with optchat.open(path, scope="other", compact="manual") as memory:
        memory.session("x").note("also there")
    copy = tmp_path / "copy.db"
    document = ask("backup", copy, "--json").json
    assert document["file_bytes"] == copy.stat().st_size
    assert tables(copy) == tables(path)
    assert [row["name"] for row in ask("--db", copy, "scopes", "--json").json] == ["other", SCOPE]
    assert ask("backup", copy).code == 2
    assert ask("backup", tmp_path / "no folder" / "copy.db").code == 2


# ---- export ----------------------------------------------------------------------------------------------------------


def fingerprint(path: Path, scope: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every record of every session by its key: kind, time, hash of kind, structure and payload, turn and outcome."""
    with optchat.open(path, scope=scope, compact="manual", mode="ro") as memory:
        found: dict[str, list[tuple[Any, ...]]] = {}
        cursor: str | None = None
        while True:
            page = memory.sessions(archived=True, limit=200, cursor=cursor)
            for info in page:
                turns = {turn.id: turn.outcome for turn in memory.session_by_id(info.id).turns(limit=200)}
                records = [memory.source(f"session:{info.id}:{info.generation}:{seq}+1") for seq in range(info.length)]
                found[info.key] = [
                    (record.kind, record.at.isoformat(), record.sha256, record.turn_id, turns[record.turn_id])
                    for record in records
                ]
            cursor = page.cursor
            if cursor is None:
                return found


def test_what_is_exported_is_read_back_as_it_was(ask: Ask, path: Path, tmp_path: Path) -> None:
    with optchat.open(path, scope=SCOPE, compact="manual") as memory:
        odd = memory.session("odd")
        odd.note("a note on top\ud800")
        with odd.turn("look\r\n\x00", turn_id="odd turn") as turn:
            turn.add(
                optchat.HostMessage.user(
                    [optchat.BlobPart("image/png", data=b"\x00\xff"), optchat.BlobPart("text/plain", uri="file-1")]
                )
            )
            turn.assistant(
                "", calls=[optchat.ToolCallPart("c", "run", "not json"), optchat.ToolCallPart("d", "run", "")]
            )
            turn.tool_result("c", [optchat.TextPart("a"), optchat.BlobPart("image/png", data=b"x")], is_error=True)
            turn.tool_result("d", "x" * 100_000, truncated=True)
            turn.report("survey", "half of it", complete=False)
            turn.end("failed")
        odd.report("nightly", "fine")
        odd.note("a note below")
    file = tmp_path / "out.jsonl.gz"
    assert ask("sessions", "export", "--all", "-o", file, "--json").json["sessions"] == 3
    assert ask("import", file, "--scope", "copy").code == 0
    assert fingerprint(path, "copy") == fingerprint(path, SCOPE)
    assert "exists" in ask("sessions", "export", "--all", "-o", file).err


@pytest.mark.skipif(not REAL.exists(), reason="the folder shared/ is not beside the repository")
@pytest.mark.parametrize("sessions", [8, pytest.param(40, marks=pytest.mark.soak)])
def test_the_real_sessions_exported_and_imported_are_the_same_records(
    ask: Ask, path: Path, tmp_path: Path, sessions: int
) -> None:
    lines = gzip.decompress(REAL.read_bytes()).splitlines(keepends=True)
    keys = list(dict.fromkeys(json.loads(line)["session"] for line in lines))[:sessions]
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(line for line in lines if json.loads(line)["session"] in keys))
    with optchat.open(path, scope="real", compact="manual") as memory:
        memory.import_file(part)
    file = tmp_path / "out.jsonl"
    assert ask("--scope", "real", "sessions", "export", "--all", "-o", file).code == 0
    with optchat.open(path, scope="copy", compact="manual") as memory:
        memory.import_file(file)
        assert memory.import_file(file).sealed == 0
    copied = fingerprint(path, "copy")
    assert copied == fingerprint(path, "real")
    assert sum(map(len, copied.values())) > 60 * sessions


def test_an_export_without_a_file_is_the_lines_and_nothing_else(ask: Ask) -> None:
    done = ask("sessions", "export", "bob")
    lines = [json.loads(line) for line in done.text.splitlines()]
    assert [(line["session"], line["role"], line.get("end")) for line in lines] == [
        ("bob", "user", None),
        ("bob", "assistant", "completed"),
    ]
    assert ask("sessions", "export").code == 2
    assert ask("sessions", "export", "bob", "--all").code == 2


def test_what_a_memory_tool_answered_is_not_exported(ask: Ask, path: Path) -> None:
    with optchat.open(path, scope=SCOPE, compact="manual") as memory, memory.session("carol").turn("why?") as turn:
        call = optchat.ToolCallPart("m", "memory_search", '{"query": "Redis"}')
        turn.assistant("", calls=[call])
        turn.tool_result("m", turn.call(call.name, call.arguments))
        turn.assistant("because")
    lines = [json.loads(line) for line in ask("sessions", "export", "carol").text.splitlines()]
    assert lines[2]["parts"][0]["content"].startswith("[memory_search answered ")
    assert "canary" not in json.dumps(lines)
