"""
The command line against a real file: what each verb answers, and how each run ends.

Verbs run in this process; what belongs to the process itself (bytes on a pipe, a reader that leaves, a missing extra)
runs in one of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

import optchat
from optchat.cli import demo as example
from optchat.cli.app import application, run
from tests.cli.runs import Run

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "coding-sessions.jsonl.gz"
HOSTILE = "x\r\n\x00\x1b[2J\ud800 & <b>\u20ac" * 4000  # several pages, and nothing a text mode would leave alone

Cli = Callable[..., Run]


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("OPTCHAT_DB", raising=False)
    monkeypatch.delenv("OPTCHAT_SCOPE", raising=False)

    def ask(*arguments: str | Path) -> Run:
        capsysbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return Run(code, captured.out, captured.err.decode())

    return ask


def fill(path: Path) -> None:
    with optchat.open(path, scope="project-17", compact="manual") as memory:
        with memory.session("alice", title="Queues").turn("why not Redis for the queue?") as turn:
            turn.assistant("Let me look.", calls=[optchat.ToolCallPart("c1", "read_file", '{"path": "broker.toml"}')])
            turn.tool_result("c1", HOSTILE)
            turn.assistant("Because the existing broker persists.")
        with memory.session("bob").turn("package the frontend") as turn:
            turn.assistant("Packaged it into one binary.")
        memory.settle()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "memory.db"
    fill(path)
    return path


@pytest.fixture
def ask(cli: Cli, filled: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line with the environment that names the filled file."""
    monkeypatch.setenv("OPTCHAT_DB", str(filled))
    monkeypatch.setenv("OPTCHAT_SCOPE", "project-17")
    return cli


def process(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "optchat", *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, **({"capture_output": True} | more))


# ---- reading --------------------------------------------------------------------------------------------------------


def test_status(ask: Cli) -> None:
    shown, document = ask("status"), ask("status", "--json").json
    assert shown.code == 0
    assert (document["ready"], document["sessions"], document["failures"]) == (True, 2, [])
    assert ["records", str(document["records"])] in [line.split() for line in shown.text.splitlines()]


def test_scopes_need_no_scope(cli: Cli, filled: Path) -> None:
    assert [row["scope"] for row in cli("scopes", "--db", filled).rows] == ["project-17"]
    (scope,) = cli("--db", filled, "scopes", "--json").json
    assert (scope["name"], scope["sessions"], scope["publications"]) == ("project-17", 2, 2)


def test_sessions_and_their_turns_by_key_and_by_id(ask: Cli) -> None:
    rows = ask("sessions").rows
    assert {row["key"]: (row["turns"], row["title"]) for row in rows} == {"alice": ("1", "Queues"), "bob": ("1", "-")}
    alice = next(row["id"] for row in rows if row["key"] == "alice")
    (turn,) = ask("turns", alice).rows
    assert (turn["outcome"], turn["request"]) == ("completed", "why not Redis for the queue?")
    assert ask("turns", "alice").out == ask("turns", alice).out
    (item,) = ask("turns", "alice", "--json").json["items"]
    assert (item["ref"], item["outcome"]) == (turn["ref"], "completed")


def test_pages_go_on_by_their_cursor(ask: Cli) -> None:
    first = ask("sessions", "--limit", "1", "--json").json
    second = ask("sessions", "--limit", "1", "--cursor", first["cursor"], "--json").json
    assert {first["items"][0]["key"], second["items"][0]["key"]} == {"alice", "bob"}
    assert second["cursor"] is None
    assert "--cursor" in ask("sessions", "--limit", "1").err


def test_views(ask: Cli) -> None:
    shared = ask("view")
    assert "existing broker persists" in shared.text
    assert "pub:" in shared.text
    own = ask("view", "bob")
    assert "Packaged it" in own.text
    assert "broker" not in own.text
    assert ask("view", "--json").json["text"] in shared.text


def test_context_is_what_a_model_would_get_with_its_receipt(ask: Cli, filled: Path) -> None:
    shown = ask("context", "bob", "--window", "32000", "--output", "2000", "--request", "add a persistent queue")
    assert shown.code == 0
    with optchat.open(filled, scope="project-17", compact="manual", mode="ro") as memory:
        session = memory.session("bob", create=False)
        expected = session.preview(optchat.Budget(window=32_000, output=2_000), request="add a persistent queue")
    for block in expected.blocks:
        assert block.text in shown.text
    assert shown.text.index("existing broker persists") < shown.text.index("\nadd a persistent queue\n")
    assert [line.split() for line in shown.text.splitlines()][-1] == ["left", str(expected.receipt.tokens.left)]
    document = ask("context", "bob", "--window", "32000", "--output", "2000", "--json").json
    assert document["receipt"]["tokens"]["window"] == 32_000
    assert document["messages"][0]["parts"][0]["type"] == "text"


def test_search_zoom_and_date_lead_to_one_another(ask: Cli) -> None:
    (hit, *_) = ask("search", "existing broker", "--kind", "assistant").rows
    assert "broker" in hit["excerpt"]
    opened = ask("zoom", hit["ref"])
    assert opened.text.rstrip("\n").endswith("\n\nBecause the existing broker persists.")
    dates = ask("date", hit["ref"], "--json").json
    assert dates["ref"] == hit["ref"]
    assert ask("date", hit["ref"]).text.splitlines()[0].split() == ["ref", hit["ref"]]
    (line,) = ask("zoom", "pub:0+1", "--json").json["lines"]
    assert line["ref"] in ask("zoom", "pub:0+1").text


def test_search_takes_its_filters(ask: Cli) -> None:
    assert ask("search", "packaged", "--session", "alice").rows == []
    assert ask("search", "packaged", "--session", "bob", "--order", "newest").rows != []
    assert ask("search", "packaged", "--before", "2001-01-01T00:00:00+02:00").rows == []
    assert ask("search", "packaged", "--after", "2001-01-01T00:00:00+02:00", "--limit", "1", "--json").json["items"]


def test_every_page_of_a_record_as_exact_bytes(filled: Path, ask: Cli) -> None:
    ref = ask("turns", "alice").rows[0]["ref"]  # the request; the result is the fourth record
    result = ref.replace(":0+1", ":3+1")
    assert ask("zoom", result, "--json").json["complete"] is False
    done = process("--db", filled, "--scope", "project-17", "zoom", result, "--all")
    assert done.returncode == 0
    assert done.stdout == HOSTILE.encode("utf-8", "surrogatepass")
    assert ask("zoom", result, "--all", "--json").json["text"] == HOSTILE
    page = ask("zoom", result)
    assert "\x1b" not in page.text
    assert "--cursor" in page.err


def test_every_page_of_a_node_is_one_table(ask: Cli) -> None:
    ref = ask("turns", "alice").rows[0]["ref"].replace(":0+1", ":0+4")
    whole = ask("zoom", ref, "--depth", "2", "--all", "--json").json
    assert whole["complete"]
    assert [line["ref"].rpartition(":")[2] for line in whole["lines"]][-1] == "3+1"


# ---- importing ------------------------------------------------------------------------------------------------------


def line(role: str, text: str, **more: Any) -> str:
    message = {
        "session": "s",
        "at": "2026-01-05T12:00:00+02:00",
        "role": role,
        "parts": [{"type": "text", "text": text}],
    }
    return json.dumps(message | more) + "\n"


def test_import_makes_the_memory_and_again_changes_nothing(cli: Cli, tmp_path: Path) -> None:
    file, where = tmp_path / "t.jsonl", ("--db", tmp_path / "new.db", "--scope", "p")
    file.write_text(line("user", "hello") + line("host_summary", "…") + line("assistant", "hi"))
    first = cli(*where, "import", file)
    assert first.code == 0
    assert "2 records sealed, 0 known already, 1 turns, 1 skipped (1 host_summary)" in first.text
    packed = tmp_path / "t.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    again = cli("import", packed, *where, "--json").json
    assert (again["report"]["sealed"], again["report"]["kept"], again["status"]["records"]) == (0, 2, 2)
    (turn,) = cli(*where, "turns", "s", "--json").json["items"]
    assert turn["started_at"] == "2026-01-05T12:00:00+02:00"
    assert cli(*where, "verify").code == 0


def test_a_bad_line_stores_nothing(cli: Cli, tmp_path: Path) -> None:
    file, where = tmp_path / "t.jsonl", ("--db", tmp_path / "new.db", "--scope", "p")
    file.write_text(line("user", "hello") + line("system", "no"))
    refused = cli(*where, "import", file)
    assert (refused.code, refused.out) == (2, b"")
    assert refused.err.startswith("optchat: line 2: unknown role 'system'")
    assert refused.err.count("\n") == 1
    file.write_text(line("user", "hello"))
    assert cli(*where, "import", file, "--json").json["report"]["sealed"] == 1


def test_a_mistyped_file_makes_no_database(cli: Cli, tmp_path: Path) -> None:
    ended = cli("--db", tmp_path / "new.db", "--scope", "p", "import", tmp_path / "mistyped")
    assert (ended.code, ended.out) == (2, b"")
    assert "does not exist" in ended.err
    assert list(tmp_path.iterdir()) == []


def test_plain_text_is_a_note(cli: Cli, tmp_path: Path) -> None:
    file, where = tmp_path / "notes.md", ("--db", tmp_path / "new.db", "--scope", "p")
    file.write_text("# Queue\n\nWe chose the broker.\n")
    assert cli(*where, "import", file, "--json").json["report"]["sealed"] == 1
    assert cli(*where, "import", file, "--json").json["report"]["sealed"] == 0
    assert cli(*where, "search", "broker", "--kind", "note").rows != []


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/coding-sessions.jsonl.gz is not beside the project")
def test_the_real_sessions(cli: Cli, tmp_path: Path) -> None:
    some = tmp_path / "some.jsonl"  # acceptance/test_real_data.py has all of them
    with gzip.open(REAL, "rt", encoding="utf-8") as lines:
        some.write_text("".join(islice(lines, 400)), encoding="utf-8")
    where = ("--db", tmp_path / "new.db", "--scope", "p")
    done = cli(*where, "import", some)
    assert done.code == 0
    assert re.search(r"\d{3} records sealed", done.text)
    assert re.search(r"the scope has \d+ sessions", done.text)
    assert "missing" not in done.err
    assert cli(*where, "verify").code == 0


# ---- how a run ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"], ["scopes"], ["sessions"], ["turns", "a"], ["view"], ["context", "a"], ["zoom", "pub:0+1"],
        ["receipt", "t"], ["search", "a"], ["date", "pub:0+1"], ["verify"], ["verify", "--repair"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistyped_path_is_an_error_and_never_a_new_file(cli: Cli, tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "mistyped.db"
    scope = [] if arguments == ["scopes"] else ["--scope", "p"]
    ended = cli(*arguments, "--db", path, *scope)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("optchat: no database at ")
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_another_scope_is_an_error_too(cli: Cli, filled: Path) -> None:
    ended = cli("--db", filled, "--scope", "other", "view")
    assert (ended.code, ended.out) == (2, b"")
    assert "other" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["view"], "no database was named; give --db PATH or set OPTCHAT_DB"),
        (["--db", "a.db", "view"], "no scope was named; give --scope NAME or set OPTCHAT_SCOPE"),
        (["nonsense"], "No such command 'nonsense'"),
        (["zoom"], "Missing argument 'REF'"),
        (["sessions", "--limit", "many"], "not a valid integer"),
        (["search", "a", "--order", "oldest"], "is not one of"),
    ],
)
def test_usage(cli: Cli, arguments: list[str], said: str) -> None:
    ended = cli(*arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("optchat: ")
    assert said in ended.err
    assert "--help'" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["zoom", "pub:24"], ["zoom", "pub:0+3"], ["zoom", "pub:512+1"], ["date", "a\nb"], ["turns", "carol"],
        ["view", "carol"], ["search", ""], ["search", "a", "--after", "2026-01-01"], ["sessions", "--limit", "0"],
        ["sessions", "--cursor", "x"], ["receipt", "nobodys"], ["context", "bob", "--window", "100", "--output", "50"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_error_of_the_library_is_one_clear_line(ask: Cli, arguments: list[str]) -> None:
    ended = ask(*arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("optchat: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err


def test_options_stand_before_the_verb_or_after_it_and_win_over_the_environment(ask: Cli, tmp_path: Path) -> None:
    assert ask("--scope", "other", "view", "--scope", "project-17").code == 0
    assert ask("view", "--db", tmp_path / "none.db").code == 2
    assert ask("--json", "view").json["text"] == ask("view", "--json").json["text"]


def test_a_fault_is_exit_1(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    fill(path)
    where = ("--db", path, "--scope", "project-17")
    assert cli(*where, "verify", "--json").json["ok"] is True
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE record SET payload = CAST('forged' AS BLOB) WHERE kind = 1 AND payload IS NOT NULL")
    connection.close()
    ended = cli(*where, "verify")
    assert ended.code == 1
    assert ended.text.splitlines()[-1] == "faults found"
    document = cli(*where, "verify", "--json")
    assert document.code == 1
    assert document.json["faults"]


def test_a_reader_that_leaves_is_no_error(filled: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = process(
            "--db", filled, "--scope", "project-17", "view", stdout=write, stderr=subprocess.PIPE, capture_output=False
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_cannot_be_written_is_an_error(filled: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = process(
            "--db", filled, "--scope", "project-17", "view", stdout=full, stderr=subprocess.PIPE, capture_output=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"optchat: ")


@pytest.mark.parametrize("absent", ["click", "rich"])
def test_without_its_extra_it_says_how_to_install_it(absent: str) -> None:
    code = f"import sys; sys.modules[{absent!r}] = None; from optchat.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False, capture_output=True)
    assert done.returncode == 2
    assert b"pip install 'optchat[cli]'" in done.stderr
    assert b"Traceback" not in done.stderr


def test_help_and_version(cli: Cli) -> None:
    assert cli("--version").text.startswith("optchat, version ")
    shown = cli("--help")
    assert shown.code == 0
    for verb in application.commands:
        assert f"\n  {verb} " in shown.text
        assert cli(verb, "--help").code == 0


# ---- the demo -------------------------------------------------------------------------------------------------------


def test_the_demo_shows_the_decision_and_its_source(cli: Cli) -> None:
    ended = cli("demo")
    assert (ended.code, ended.err) == (0, "")
    request = ended.text[ended.text.index("--- user") : ended.text.index("\n---\n")]
    assert example.DECISION in request
    assert request.rstrip().endswith(example.REQUEST)
    assert hashlib.sha256(example.DECISION.encode()).hexdigest() in ended.text


def test_the_demo_in_json(cli: Cli) -> None:
    shown = cli("demo", "--json").json
    assert shown["ok"] is True
    steps = shown["demo"]["steps"]
    assert steps[0]["ref"].startswith("pub:")
    assert steps[-1]["ref"].startswith("session:")
    assert steps[-1]["text"] == example.DECISION


def test_the_demo_keeps_its_file_on_demand_and_never_overwrites_one(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "demo.db"
    assert cli("demo", "--db", path).code == 0
    assert {row["key"] for row in cli("--db", path, "--scope", "demo", "sessions").rows} == {
        "choose-queue",
        "add-queue",
    }
    refused = cli("demo", "--db", path)
    assert (refused.code, refused.out) == (2, b"")


def test_the_demo_fails_loudly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def say_something_else(memory: optchat.Memory) -> None:
        with memory.session("choose-queue").turn(example.QUESTION) as turn:
            turn.assistant("I do not know.")

    monkeypatch.setattr(example, "decide", say_something_else)
    ended = cli("demo")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.err == "optchat: the demo FAILED: A's decision is not shared\n"
    assert cli("demo", "--json").json["ok"] is False
