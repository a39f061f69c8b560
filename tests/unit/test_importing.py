"""Files that are imported: plain, gzip, damaged, absent."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from optchat.core.errors import BadArgument, ImportRejected
from optchat.core.transcripts import Note, Transcript
from optchat.engine import importing
from optchat.engine.importing import load_file

LINE = b'{"session": "s", "at": "2026-01-05T12:00:00Z", "role": "user", "parts": [{"type": "text", "text": "hi"}]}\n'


def test_plain_and_gzip_are_told_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(LINE)
    (tmp_path / "b.jsonl").write_bytes(gzip.compress(LINE[:20]) + gzip.compress(LINE[20:]))
    plain = load_file(tmp_path / "a.gz")
    assert isinstance(plain, Transcript)
    assert plain == load_file(str(tmp_path / "b.jsonl"))
    assert plain.sessions[0].key == "s"


def test_a_transcript_may_begin_with_blank_lines_and_a_note_is_kept_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf\n\n" + LINE)
    assert isinstance(load_file(tmp_path / "a"), Transcript)
    (tmp_path / "b").write_bytes(b"\n\n we chose\n{the broker}")
    note = load_file(tmp_path / "b")
    assert isinstance(note, Note)
    assert note.text == "\n\n we chose\n{the broker}"


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(LINE,))
    writer.start()
    try:
        assert isinstance(load_file(pipe), Transcript)
    finally:
        writer.join()


@pytest.mark.parametrize("keep", [5, 20, -1])
def test_damaged_gzip_blames_the_file(tmp_path: Path, keep: int) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(LINE * 100)[:keep])
    with pytest.raises(ImportRejected, match="damaged gzip") as raised:
        load_file(tmp_path / "a.gz")
    assert raised.value.line == 0


def test_a_flipped_bit_in_gzip_blames_the_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(LINE * 100))
    packed[-6] ^= 1  # in the checksum
    (tmp_path / "a.gz").write_bytes(packed)
    with pytest.raises(ImportRejected, match="damaged gzip"):
        load_file(tmp_path / "a.gz")


def test_what_is_no_file_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no file at"):
        load_file(tmp_path / "absent")
    with pytest.raises(BadArgument, match="is a directory"):
        load_file(tmp_path)
    with pytest.raises(BadArgument, match="is no path"):
        load_file("a\0b")


def test_a_line_without_end_is_refused_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_LINE_BYTES", 200)
    (tmp_path / "a").write_bytes(LINE + b"{" * 1000)
    with pytest.raises(ImportRejected, match="split the message") as raised:
        load_file(tmp_path / "a")
    assert raised.value.line == 2
    (tmp_path / "b").write_bytes(b"x\n" * 1000)
    with pytest.raises(ImportRejected, match="split the file"):
        load_file(tmp_path / "b")
