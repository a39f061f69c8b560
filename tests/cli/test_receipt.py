"""`optchat receipt TURN`: what a turn's last call was given, from the file alone."""

from pathlib import Path

import pytest

import optchat
from optchat.cli.app import run
from tests.cli.runs import Run
from tests.engine.helpers import BUDGET


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "memory.db"
    with optchat.open(path, scope="p", compact="manual") as memory:
        for key in ("alice", "bob"):
            with memory.session(key).turn("why not Redis?", turn_id="shared-id") as turn:
                turn.context(BUDGET)
                turn.assistant("Because the broker persists.")
        with memory.session("bob").turn("go on", turn_id="t") as turn:
            turn.context(BUDGET)
            turn.assistant("done")
        with memory.session("bob").turn("nobody was asked", turn_id="silent"):
            pass
    return path


@pytest.fixture
def ask(filled: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> object:
    def asked(*arguments: str) -> Run:
        capsysbinary.readouterr()
        code = run([*arguments, "--db", str(filled), "--scope", "p"])
        captured = capsysbinary.readouterr()
        return Run(code, captured.out, captured.err.decode())

    return asked


def test_it_says_what_was_shown_and_what_it_cost(ask, filled: Path) -> None:  # type: ignore[no-untyped-def] # a closure
    before = filled.read_bytes()
    shown = ask("receipt", "t")
    assert (shown.code, shown.err) == (0, "")
    fields, _, refs = shown.text.partition("\n\n")
    told = dict(line.split(None, 1) for line in fields.splitlines())
    assert told["turn"] == "t"
    assert told["why"].startswith("the turn's first context: what the last request said")
    assert int(told["since"]) > 0
    assert refs.splitlines()[:2] == ["pub:0+1", "pub:1+1"]
    assert filled.read_bytes() == before
    document = ask("receipt", "t", "--json").json
    assert document["turn_id"] == "t"
    assert document["receipt"]["refs"] == refs.splitlines()
    assert document["receipt"]["tokens"]["window"] == BUDGET.window
    assert document["receipt"]["snapshot"]["id"] == told["snapshot"]


def test_an_id_of_several_sessions_wants_the_session(ask) -> None:  # type: ignore[no-untyped-def] # a closure
    several = ask("receipt", "shared-id")
    assert (several.code, several.out) == (2, b"")
    assert "name the session" in several.err
    named = ask("receipt", "shared-id", "--session", "alice")
    assert named.code == 0
    assert named.text.startswith("turn")


@pytest.mark.parametrize(("turn", "said"), [("silent", "made no call"), ("nobodys", "is not known here")])
def test_without_a_receipt_it_says_why(ask, turn: str, said: str) -> None:  # type: ignore[no-untyped-def] # a closure
    ended = ask("receipt", turn)
    assert (ended.code, ended.out) == (2, b"")
    assert said in ended.err
    assert ended.err.count("\n") == 1
