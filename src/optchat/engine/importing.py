"""
Files that are imported: from a path to a transcript or a note.

Decides: how a file is opened, that gzip is told by its first bytes and not by its name, and whose fault a failure is.
Refuses to know: what a line means (:mod:`optchat.core.transcripts`), and how what it says is sealed.

A file is read to its end, and checked whole, before this returns: so an import stores all of it or nothing.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from optchat.core.errors import BadArgument, ImportRejected
from optchat.core.transcripts import Note, Transcript, is_transcript, read_note, read_transcript

MAX_LINE_BYTES: Final = 256 * 1024 * 1024  # five times the largest result we promise to take; a bomb ends here

_GZIP: Final = b"\x1f\x8b"


def load_file(path: str | PathLike[str]) -> Transcript | Note:
    """
    Read a transcript or a note, plain or gzip.

    Args:
        path: a file, or anything that can be read once from its start, such as a pipe.

    Raises:
        BadArgument: no file, a directory, or one that may not be read.
        ImportRejected: what it holds is no transcript and no text; ``line`` is 0 if the file itself is damaged.
    """
    where = Path(fspath(path))
    try:
        with where.open("rb") as file:
            return _load(file)
    except FileNotFoundError:
        raise BadArgument(f"no file at {where}; check the path") from None
    except IsADirectoryError:
        raise BadArgument(f"{where} is a directory; give the file to import") from None
    except PermissionError:
        raise BadArgument(f"{where} may not be read; change its permissions, or copy it") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ImportRejected(f"{where} is damaged gzip ({error}); make the file again") from error
    except OSError as error:
        raise ImportRejected(
            f"{where} could not be read to its end ({error.strerror or error}); copy it elsewhere"
        ) from error
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise BadArgument(f"{str(where)!r} is no path ({error}); check it") from None


def _load(file: io.BufferedReader) -> Transcript | Note:
    if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            return _read(io.BufferedReader(unpacked))
    return _read(file)


def _read(stream: io.BufferedReader) -> Transcript | Note:
    lines = _lines(stream)
    head: list[bytes] = []
    for line in lines:
        head.append(line)
        if line.removeprefix(b"\xef\xbb\xbf").strip():
            break
    if is_transcript(b"".join(head)):
        return read_transcript(_chained(head, lines))
    rest = stream.read(MAX_LINE_BYTES + 1)
    if len(rest) > MAX_LINE_BYTES:
        raise ImportRejected(f"a text of more than {MAX_LINE_BYTES} bytes is no note; split the file")
    return read_note(b"".join(head) + rest)


def _lines(stream: io.BufferedReader) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise ImportRejected(f"line {number}: more than {MAX_LINE_BYTES} bytes; split the message", line=number)
        yield line


def _chained(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest
