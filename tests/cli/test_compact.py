"""
``optchat compact`` against fake providers on loopback: what it works, what it says, and how it ends.

What it asked is looked up at the server, what became of it in the file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from attrs import evolve, frozen

import optchat
from optchat.cli import compacting
from optchat.cli.app import run
from optchat.cli.tallies import Board, Tally, calls_between, sum_of, told
from optchat.testing import FakeAnthropic, FakeOpenAI, replies
from tests.cli import runs

pytest.importorskip("anthropic", reason="install the extra anthropic")
pytest.importorskip("openai", reason="install the extra openai")

ROOT = Path(__file__).parents[2]
LONG = "We looked at the queue and decided to keep the broker, as it was said before; " * 20  # a leaf of its own
SCOPE = "project-17"


@frozen
class Run(runs.Run):
    @property
    def scope(self) -> Any:
        (only,) = self.json["scopes"]
        return only


Cli = Callable[..., Run]
VARIABLES = (
    "OPTCHAT_DB", "OPTCHAT_SCOPE", "OPTCHAT_SUMMARIZER", "OPTCHAT_BASE_URL",
    "OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL",
)  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, database: Path) -> Cli:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPTCHAT_DB", str(database))
    monkeypatch.setenv("OPTCHAT_SCOPE", SCOPE)

    def ask(*arguments: str | Path) -> Run:
        capsysbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return Run(code, captured.out, captured.err.decode())

    return ask


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


def fill(path: Path, scope: str = SCOPE, turns: int = 2) -> None:
    """Some turns, of which nothing is summarised yet."""
    with optchat.open(path, scope=scope, compact="manual") as memory:
        for number in range(turns):
            with memory.session("alice").turn(f"question {number}: {LONG}") as turn:
                turn.assistant(f"answer {number}: {LONG}")


def by(server: FakeOpenAI, model: str = "small") -> tuple[str, ...]:
    return "--summarizer", f"openai:{model}", "--base-url", server.base_url


# ---- until nothing can run -------------------------------------------------------------------------------------------


def test_the_default_needs_no_key_and_makes_no_call(cli: Cli, database: Path) -> None:
    fill(database)
    waiting = cli("status", "--json").json["pending"]
    assert waiting > 0
    ended = cli("compact")
    assert (ended.code, ended.err) == (0, "")
    assert ended.text.startswith(f"{SCOPE}: ")
    assert ended.text.rstrip().endswith("0 pending, 0 failed; no calls")
    assert cli("status", "--json").json["ready"] is True
    again = cli("compact", "--json")
    assert (again.code, again.json["ok"], again.json["reasons"], again.scope["done"]) == (0, True, [], 0)
    assert again.scope["calls"]["calls"] == 0


def test_a_model_is_asked_and_its_figures_are_the_servers_own(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    waiting = cli("status", "--json").json["pending"]
    ended = cli("compact", *by(server), "--price", "2,8,1", "--json")
    assert ended.code == 0
    said, usage = ended.scope, server.usage
    assert said["scope"] == SCOPE
    assert said["done"] >= waiting
    assert (said["status"]["ready"], said["status"]["summarizer"]) == (True, "openai:small")
    assert said["calls"] == {
        "calls": server.answered,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cost": pytest.approx((usage.input_tokens * 2 + usage.output_tokens * 8) / 1_000_000),
    }
    assert said["calls_per_record"] == pytest.approx(server.answered / said["status"]["records"], abs=1e-4)
    assert {request.body["model"] for request in server.requests} == {"small"}


def test_what_is_not_known_is_unknown(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    ended = cli("compact", *by(server))
    assert f"{server.answered} calls, tokens {server.usage.input_tokens} in" in ended.text
    assert "cost unknown" in ended.text
    assert "calls a record" in ended.text
    shown = cli("status").text
    assert f"{server.answered} calls" in shown
    assert "cost unknown" in shown


def test_the_environment_names_it_too(
    cli: Cli, database: Path, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setenv("OPTCHAT_SUMMARIZER", "openai:from-the-environment")
    monkeypatch.setenv("OPTCHAT_BASE_URL", server.base_url)
    assert cli("compact", "--summarizer", "default", "--calls-per-hour", "0").code == 0
    assert server.requests == []
    fill(database, turns=4)
    assert cli("compact").code == 0
    assert {request.body["model"] for request in server.requests} == {"from-the-environment"}


def test_options_stand_before_the_verb_too(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    assert cli("--summarizer", "openai:other", "--base-url", server.base_url, "compact").code == 0
    assert {request.body["model"] for request in server.requests} == {"other"}


def test_anthropic(cli: Cli, database: Path) -> None:
    fill(database)
    with FakeAnthropic() as server:
        ended = cli("compact", "--summarizer", "anthropic:small", "--base-url", server.base_url, "--json")
        assert ended.code == 0
        assert ended.scope["calls"]["calls"] == server.answered > 0
        assert ended.scope["status"]["summarizer"] == "anthropic:small"


def test_a_fallback_is_asked_where_the_summarizer_declines(cli: Cli, database: Path) -> None:
    def decline(request: Any) -> replies.Reply | None:
        return replies.refuse() if request.body["model"] == "small" else None

    fill(database)
    with FakeOpenAI(decline) as server:
        ended = cli("compact", *by(server), "--fallback", "openai:other", "--json")
        assert ended.code == 0
        assert {request.body["model"] for request in server.requests} == {"small", "other"}
    assert ended.scope["status"]["stand_ins"] == 0


def test_every_scope_of_a_file(cli: Cli, database: Path, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPTCHAT_SCOPE")
    for scope in ("a", "b", "c"):
        fill(database, scope)
    ended = cli("compact", "--all-scopes", *by(server), "--json")
    assert ended.code == 0
    assert [(each["scope"], each["status"]["ready"]) for each in ended.json["scopes"]] == [
        ("a", True), ("b", True), ("c", True),
    ]  # fmt: skip
    assert sum(each["calls"]["calls"] for each in ended.json["scopes"]) == server.answered


def test_import_makes_its_summaries_by_the_model_that_is_named(
    cli: Cli, database: Path, server: FakeOpenAI, tmp_path: Path
) -> None:
    file = tmp_path / "notes.md"
    file.write_text(LONG)
    imported = cli("import", file, *by(server), "--json").json
    assert imported["status"]["summarizer"] == "openai:small"
    assert imported["status"]["total"]["calls"] == server.answered > 0
    assert imported["status"]["ready"] is True
    assert database.exists()


# ---- anew ------------------------------------------------------------------------------------------------------------


def test_an_upgrade_makes_anew_what_the_default_made(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    assert cli("compact").code == 0
    made = cli("status", "--json").json["by_default_summarizer"]
    assert made > 0
    assert cli("compact", *by(server)).code == 0
    assert server.requests == []  # what is there is there
    upgraded = cli("compact", "--upgrade", *by(server), "--json")
    assert upgraded.code == 0
    assert upgraded.scope["upgraded"] >= made
    assert upgraded.scope["status"]["by_default_summarizer"] == 0
    assert upgraded.scope["calls"]["calls"] == server.answered > 0
    assert cli("verify").code == 0
    assert cli("compact", "--upgrade", *by(server), "--json").scope["upgraded"] == 0


def test_one_summary_is_repaired(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    assert cli("compact", *by(server)).code == 0
    before = server.answered
    ref = cli("turns", "alice").rows[0]["ref"]
    repaired = cli("compact", "--repair", ref, *by(server), "--json")
    assert repaired.code == 0
    assert repaired.scope["repaired"] >= 1
    assert repaired.scope["calls"]["calls"] == server.answered - before >= 1
    assert cli("verify").code == 0
    assert cli("compact", "--repair", "pub:4096+4096", *by(server)).code == 2


def test_stand_ins_are_told_and_repaired(cli: Cli, database: Path) -> None:
    fill(database)
    with FakeOpenAI(lambda _: replies.refuse()) as declines:
        ended = cli("compact", *by(declines), "--json")
    assert ended.code == 0  # nothing is left to do
    assert ended.scope["status"]["stand_ins"] > 0
    assert "--repair stand-ins" in ended.err
    with FakeOpenAI(lambda request: replies.refuse() if "answer 1" in request.text else None) as server:
        tried = cli("compact", "--repair", "stand-ins", *by(server), "--json")
        assert tried.code == 1
        assert tried.json["ok"] is False
        assert all("is not repaired: " in reason for reason in tried.json["reasons"])
        assert 0 < tried.scope["status"]["stand_ins"] < ended.scope["status"]["stand_ins"]
    with FakeOpenAI() as server:
        repaired = cli("compact", "--repair", "stand-ins", *by(server), "--json")
        assert repaired.code == 0
        assert repaired.scope["repaired"] >= tried.scope["status"]["stand_ins"]
        assert repaired.scope["status"]["stand_ins"] == 0
        assert "--repair" not in repaired.err
        assert cli("compact", "--repair", "stand-ins", *by(server), "--json").scope["repaired"] == 0


# ---- what is left has a reason ---------------------------------------------------------------------------------------


def test_a_long_pause_is_told_and_not_waited_for(cli: Cli, database: Path) -> None:
    fill(database)
    with FakeOpenAI(lambda _: replies.rate_limit(3600)) as server:
        ended = cli("compact", *by(server), "--workers", "1", "--json")
        assert len(server.requests) == 1
    assert ended.code == 1
    assert ended.json["ok"] is False
    (reason,) = ended.json["reasons"]
    assert "paused until" in reason
    assert f"optchat: {reason}" in ended.err
    status = ended.scope["status"]
    assert datetime.fromisoformat(status["resumes_at"]) > datetime.now(UTC)
    assert status["running"] == 0
    assert status["stand_ins"] == 0
    shown = [line.split() for line in cli("status").text.splitlines()]
    assert any(line[:1] == ["paused"] and line != ["paused", "-"] for line in shown)
    assert any(line[:1] == ["resumes"] and line != ["resumes", "-"] for line in shown)


def test_a_short_pause_is_waited_for(cli: Cli, database: Path) -> None:
    fill(database)
    with FakeOpenAI([replies.rate_limit(0.01)]) as server:
        assert cli("compact", *by(server), "--workers", "1").code == 0
        assert len(server.requests) == server.answered + 1


def test_a_wrong_key_is_told_at_once(cli: Cli, database: Path) -> None:
    fill(database)
    with FakeOpenAI(lambda _: replies.unauthorized()) as server:
        ended = cli("compact", *by(server), "--workers", "1")
        assert len(server.requests) == 1
    assert ended.code == 1
    assert "authentication" in ended.err


def test_a_ceiling_pauses_and_says_so(cli: Cli, database: Path, server: FakeOpenAI) -> None:
    fill(database)
    ended = cli("compact", *by(server), "--calls-per-hour", "2", "--json")
    assert ended.code == 1
    assert server.answered == 2
    assert "calls_per_hour is 2" in ended.json["reasons"][0]
    assert cli("compact", *by(server), "--calls-per-day", "1000", "--tokens-per-hour", "10000000").code == 0


def test_another_summarizers_scope_is_left_alone_until_it_is_taken_over(
    cli: Cli, database: Path, server: FakeOpenAI
) -> None:
    fill(database)
    assert cli("compact", *by(server, "first")).code == 0
    fill(database, turns=4)
    for named in ((), by(server, "second")):
        ended = cli("compact", *named)
        assert ended.code == 1
        assert "summarised by 'openai:first'" in ended.err
        assert "--take-over" in ended.err
    assert {request.body["model"] for request in server.requests} == {"first"}
    assert cli("compact", *by(server, "second"), "--take-over", "--json").scope["status"]["summarizer"] == (
        "openai:second"
    )
    assert {request.body["model"] for request in server.requests} == {"first", "second"}
    assert cli("status", "--json").json["paused"] is None


def test_a_failed_job_is_a_reason(cli: Cli, database: Path) -> None:
    with optchat.open(database, scope=SCOPE, compact="manual") as memory:
        memory.session("s").note("a text that is kept in pieces " * 5_000)
    connection = apsw.Connection(str(database))
    connection.execute("DELETE FROM blob_piece")
    connection.close()
    ended = cli("compact", "--json")
    assert ended.code == 1
    failures = ended.scope["status"]["failures"]
    assert "leaf" in {failure["kind"] for failure in failures}
    assert f"of {failures[0]['ref']} failed: " in ended.json["reasons"][0]
    assert failures[0]["ref"] in cli("status").text


# ---- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--summarizer", "gpt-5"], "give openai:MODEL|anthropic:MODEL"),
        (["--summarizer", "openai:"], "names no model"),
        (["--summarizer", "openai:m", "--fallback", "default"], "names no model"),
        (["--summarizer", "openai:m", "--price", "1"], "IN,OUT"),
        (["--summarizer", "openai:m", "--price", "1,2,3,4,5"], "IN,OUT"),
        (["--summarizer", "openai:m", "--price", "1,-2"], "IN,OUT"),
        (["--summarizer", "openai:m", "--price", "1,cheap"], "IN,OUT"),
        (["--summarizer", "openai:m", "--window-tokens", "many"], "not a valid integer"),
        (["--base-url", "http://localhost:1", "--price", "1,2"], "--base-url, --price: of which model?"),
        (["--summarizer", "default", "--fallback", "openai:m"], "--fallback: of which model?"),
        (["--summarizer", "openai:m", "--base-url", "http://localhost:1", "--fallback-price", "1,2"], "--fallback too"),
        (["--summarizer", "openai:m", "--cost-per-hour", "1"], "--cost-per-hour needs the prices of openai:m"),
        (
            ["--summarizer", "openai:m", "--price", "1,2", "--fallback", "openai:f", "--cost-per-day", "1"],
            "--cost-per-day needs the prices of openai:f",
        ),
        (["--upgrade"], "--upgrade is for a model"),
        (["--take-over", "--summarizer", "default"], "--take-over is for a model"),
        (["--all-scopes", "--repair", "pub:0+1"], "a REF is of one scope"),
        (["--summarizer", "openai:m"], "set OPENAI_API_KEY"),
        (["--summarizer", "anthropic:m"], "set ANTHROPIC_API_KEY"),
        (["--workers", "0"], "workers must be at least 1"),
        (["--calls-per-hour", "-1"], "cannot be negative"),
        (["--api-key", "secret"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_before_anything_is_done(cli: Cli, database: Path, arguments: list[str], said: str) -> None:
    fill(database)
    before = cli("status", "--json").json["pending"]
    ended = cli("compact", *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert cli("status", "--json").json["pending"] == before


def test_an_address_in_the_environment_says_nothing_of_the_default(
    cli: Cli, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setenv("OPTCHAT_BASE_URL", "http://localhost:1")
    assert cli("compact").code == 0


@pytest.mark.parametrize("extra", ["openai", "anthropic"])
def test_a_missing_extra_is_named_before_a_file_is_made(
    cli: Cli, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    file = tmp_path / "notes.md"
    file.write_text("short")
    ended = cli("import", file, "--summarizer", f"{extra}:m", "--base-url", "http://localhost:1")
    assert (ended.code, ended.out) == (2, b"")
    assert f"optchat[{extra}]" in ended.err
    assert not database.exists()


@pytest.mark.parametrize("arguments", [[], ["--watch"], ["--all-scopes"], ["--watch", "--all-scopes"]], ids=" ".join)
def test_a_mistyped_path_is_an_error_and_never_a_new_file(cli: Cli, database: Path, arguments: list[str]) -> None:
    ended = cli("compact", *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("optchat: no database at ")
    assert not database.exists()


def test_another_scope_is_never_made(cli: Cli, database: Path) -> None:
    fill(database)
    assert cli("compact", "--scope", "mistyped").code == 2
    assert "mistyped" not in cli("scopes").text


def test_reading_verbs_need_no_key_and_work_nothing(cli: Cli, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database)
    monkeypatch.setenv("OPTCHAT_SUMMARIZER", "openai:m")
    before = cli("status", "--json")
    for verb in (["sessions"], ["turns", "alice"], ["search", "queue"], ["verify"]):
        assert cli(*verb).code == 0
    assert cli("status", "--json").json["pending"] == before.json["pending"] > 0
    assert "OPENAI_API_KEY" in cli("compact").err


# ---- until interrupted -----------------------------------------------------------------------------------------------


def started(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """A process of its own. A runner in a shell's background ignores interrupts, and its children would too."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import optchat.cli as c; c.main()"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(reached: Callable[[], bool]) -> None:
    for _ in range(600):
        if reached():
            return
        time.sleep(0.05)
    pytest.fail("it never came to that")


def state(database: Path, scope: str) -> optchat.Status:
    with optchat.open(database, scope=scope, compact="manual", mode="ro") as memory:
        return memory.status()


def test_watching_goes_on_until_it_is_interrupted(database: Path) -> None:
    fill(database, "a")
    stalled: list[Any] = []

    def script(request: Any) -> replies.Reply | None:
        if "question 99" not in request.text:
            return None
        stalled.append(request)
        return replies.stall(60)

    with FakeOpenAI(script) as server:
        worker = started("--db", database, "compact", "--watch", "--all-scopes", *by(server), "--json")
        try:
            wait_for(lambda: state(database, "a").ready)
            fill(database, "later")  # a scope that was not there when it began
            wait_for(lambda: state(database, "later").ready)
            with optchat.open(database, scope="later", compact="manual") as memory:
                memory.session("s").note("question 99: " + LONG)
            wait_for(lambda: bool(stalled))
            assert state(database, "later").running > 0
            worker.send_signal(signal.SIGINT)
            out, err = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 130
    assert b"Traceback" not in err
    left = state(database, "later")
    assert (left.running, left.pending > 0) == (0, True)  # the lease of the call that was broken off is given back
    document = json.loads(out)
    assert {each["scope"]: each["status"]["running"] for each in document["scopes"]} == {"a": 0, "later": 0}
    assert document["scopes"][0]["done"] + document["scopes"][1]["done"] > 0
    assert b"working a with openai:small" in err
    assert b"working later, too" in err


def test_a_request_to_terminate_is_no_fault(
    cli: Cli, database: Path, server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)

    def look(lines: compacting.Lines) -> None:
        if lines.board.left == 0:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(compacting, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(compacting.Lines, "say", look)
    before = signal.getsignal(signal.SIGTERM)
    ended = cli("compact", "--watch", *by(server), "--json")
    assert (ended.code, ended.scope["status"]["ready"]) == (0, True)
    assert ended.scope["calls"]["calls"] == server.answered > 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_interrupt_ends_a_run_that_is_not_watching_too(database: Path) -> None:
    fill(database)
    with FakeOpenAI(lambda _: replies.stall(60)) as server:
        worker = started("--db", database, "--scope", SCOPE, "compact", *by(server))
        try:
            wait_for(lambda: bool(server.requests))
            worker.send_signal(signal.SIGINT)
            _, err = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 130
    assert b"Traceback" not in err
    assert state(database, SCOPE).running == 0


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_the_difference_of_two_sums_keeps_the_unknown_unknown() -> None:
    none = optchat.Calls(0, None, None, None, None)
    unreported = optchat.Calls(3, None, None, None, None)
    reported = optchat.Calls(5, 100, 20, 0, None)
    priced = optchat.Calls(6, 150, 30, 0, 0.5)
    assert calls_between(none, none) == none
    assert calls_between(none, unreported) == unreported
    assert calls_between(unreported, reported) == optchat.Calls(2, 100, 20, 0, None)
    assert calls_between(reported, priced) == optchat.Calls(1, 50, 10, 0, 0.5)
    assert calls_between(priced, evolve(priced, calls=7)) == optchat.Calls(1, None, None, None, None)
    assert sum_of([none, unreported, reported, priced]) == optchat.Calls(14, 250, 50, 0, 0.5)
    assert sum_of([]) == none
    assert told(unreported) == "3 calls, tokens unknown in (unknown cached) and unknown out, cost unknown"


def test_a_board_says_what_is_done_what_is_left_and_what_holds_it_up(database: Path) -> None:
    fill(database)
    with optchat.open(database, scope=SCOPE, compact="manual") as memory:
        board = Board([Tally.of(memory)])
        waiting = board.left
        memory.settle()
        board.look()
        assert (board.done, board.left) == (waiting, 0)
        assert board.figures().startswith(f"{waiting} done, 0 pending, 0 failed; no calls; ")
        assert board.figures().endswith(" jobs/min")
        (tally,) = board.tallies
        tally.saw(evolve(tally.now, paused="rate: too many", resumes_at=datetime(2026, 1, 5, tzinfo=UTC)))
        assert board.figures().endswith(f"; {SCOPE} is paused until 2026-01-05 00:00:00+00:00: rate: too many")


def test_lines_are_told_when_something_changed_and_not_too_often(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(database)
    with optchat.open(database, scope=SCOPE, compact="manual") as memory:
        board = Board([Tally.of(memory)])
        lines = compacting.Lines(board)
        memory.settle()
        board.look()
        lines.say()  # too soon
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(compacting, "LINE_SECONDS", 0.0)
        lines.say()
        lines.say()  # nothing changed since
        assert capsys.readouterr().err.count("\n") == 1
