"""Output: JSON that any reader reads, tables for eyes and for pipes, and foreign text that stays text."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import frozen

from optchat.cli import output
from optchat.core.messages import BlobPart, Part, TextPart, ToolResultPart
from optchat.core.retrieval import Page
from optchat.core.snapshots import Snapshot

AT = datetime.fromisoformat("2026-01-05T12:17:31.459+05:30")
SNAPSHOT = Snapshot("s1", 3, 0, AT)


@frozen
class Answer:
    path: Path
    parts: tuple[Part, ...]
    counts: dict[str, int]
    nothing: None = None


def test_json_has_every_field_by_name() -> None:
    value = Answer(Path("a.db"), (TextPart("é\ud800\n"), BlobPart("a/b", data=b"\xff")), {"x": 1})
    written = output.to_json(value)
    assert written.encode()  # no lone surrogate is left
    assert "é" in written
    assert json.loads(written) == {
        "path": "a.db",
        "parts": [
            {"type": "text", "text": "é\ud800\n"},
            {"type": "image", "media_type": "a/b", "data": "/w==", "uri": None},
        ],
        "counts": {"x": 1},
        "nothing": None,
    }


def test_json_of_a_page_keeps_its_cursor_and_its_snapshots_time() -> None:
    document = json.loads(output.to_json(Page((ToolResultPart("c", (TextPart("t"),)),), "next", SNAPSHOT)))
    assert document["cursor"] == "next"
    assert document["snapshot"]["at"] == "2026-01-05T12:17:31.459000+05:30"
    assert document["items"][0]["content"] == [{"type": "text", "text": "t"}]


def test_what_json_cannot_say_is_an_error() -> None:
    with pytest.raises(TypeError, match="object has no form"):
        output.to_json(object())


def test_a_piped_table_is_tab_separated_and_a_cell_stays_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table(("id", "title"), [("a", "one\ttwo\nthree\x1b[31m"), ("b", None)])
    assert capsys.readouterr().out == "id\ttitle\na\tone two three [31m\nb\t-\n"


def test_a_terminal_gets_a_drawn_table_without_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.show_table(("id", "title"), [("a", "[bold]not markup[/bold]")])
    out = capsys.readouterr().out
    assert "[bold]not markup[/bold]" in out
    assert "\t" not in out


def test_text_keeps_its_lines_and_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_text("a\r\nb\tc\x1b[2J\x07\u202e\ud800")
    assert capsys.readouterr().out == "a\nb\tc\ufffd[2J\ufffd\ufffd\ufffd\n"


def test_fields_stand_under_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_fields([("a", 1), ("longer", "x\ny"), ("none", None)])
    assert capsys.readouterr().out == "a       1\nlonger  x y\nnone    -\n"


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("working"), output.board("counting") as show:
        assert show is None
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminals_standard_error_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with output.progress("working"):
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "working" in captured.err


def test_a_board_has_its_figures_in_one_line_under_the_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with output.board("compacting") as show:
        assert show is not None
        show(1, 2, "cost [bold]unknown\x1b[2J\n")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1/2" in captured.err
    assert "cost [bold]unknown" in captured.err
    assert "unknown\x1b[2J" not in captured.err


def test_moments_are_shown_with_the_offset_they_were_recorded_with() -> None:
    assert output.moment(AT) == "2026-01-05 12:17:31+05:30"
    assert output.moment(datetime(2026, 1, 5, tzinfo=UTC)) == "2026-01-05 00:00:00+00:00"
    assert output.moment(None) == "-"
