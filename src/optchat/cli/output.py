"""
Output: JSON documents, tables, plain text and progress.

Decides: how an answer looks on a terminal and in a pipe. What was said is foreign text, and may not move a terminal's
cursor: control characters are taken out of everything but JSON and exact bytes.
Refuses to know: what is being shown.

The answer goes to standard output, whatever is about the answer (progress, a cursor to go on from, warnings) to
standard error. Tables are drawn for a terminal; piped, they are lines of tab-separated cells under a line of names.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, cast

import attrs
import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from optchat.core.messages import BlobPart, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.render import one_line

# A union's members need a name in JSON; these are the transcript format's.
_PART_NAMES: Final[dict[type, str]] = {
    TextPart: "text",
    BlobPart: "image",
    ToolCallPart: "tool_call",
    ToolResultPart: "tool_result",
    ReportPart: "report",
}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(value: object) -> object:
    """A value as JSON can say it: fields by name, bytes in base64, times in ISO 8601 with their offset."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    kind = type(value)
    if attrs.has(kind):
        named: dict[str, object] = {}
        if kind in _PART_NAMES:
            named["type"] = _PART_NAMES[kind]
        for attribute in attrs.fields(kind):
            named[attribute.name] = plain(getattr(value, attribute.name))
        return named
    if isinstance(value, Iterable):
        return [plain(item) for item in cast("Iterable[object]", value)]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def to_json(value: object) -> str:
    """One document. Text is not ASCII-escaped, but for lone surrogates, which no encoding could carry."""
    written = json.dumps(plain(value), ensure_ascii=False, indent=2)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def show_json(value: object) -> None:
    """Write one document, in UTF-8 whatever the locale."""
    show_bytes(to_json(value).encode() + b"\n")


def show_bytes(data: bytes) -> None:
    """Write bytes as they are."""
    sys.stdout.flush()  # what was written as text stands before it
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def printable(text: str) -> str:
    """Text that keeps its lines and does nothing else to a terminal."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def show_text(text: str = "") -> None:
    """Write text and end its line."""
    click.echo(printable(text))


def note(text: str) -> None:
    """Say something about the answer, on standard error."""
    click.echo(f"optchat: {one_line(text)}", err=True)


def moment(at: datetime | None) -> str:
    """A time as it was recorded, to the second."""
    return "-" if at is None else at.isoformat(sep=" ", timespec="seconds")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows: drawn for a terminal, else tab-separated. A cell is one line; None shows as ``-``."""
    cells = [[one_line("-" if cell is None else str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [list(columns), *cells]:
            click.echo("\t".join(row))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(name, no_wrap=not last, overflow="fold")  # a ref that is cut short cannot be copied
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def show_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Write names and values, a line each."""
    shown = [(name, one_line("-" if value is None else str(value))) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name:<{width}}  {value}")


def show_cursor(cursor: str | None) -> None:
    """Say how to go on, if there is more."""
    if cursor is not None:
        note(f"there is more: --cursor {cursor}")


@contextmanager
def progress(description: str) -> Generator[None]:
    """Show that something goes on, on standard error, and nothing at all where that is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Progress(*_COLUMNS, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        bar.add_task(description, total=None)
        yield


@contextmanager
def board(description: str) -> Generator[Callable[[int, int, str], None] | None]:
    """
    Progress that is counted, with a line of figures under it, on standard error.

    Yields:
        A function of what is done, of the whole, and of the line; None where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        yield None
        return
    console = Console(stderr=True)
    bar = Progress(*_COLUMNS, MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = bar.add_task(description, total=None)
    with Live(bar, console=console, transient=True) as live:

        def show(done: int, total: int, figures: str) -> None:
            bar.update(task, completed=done, total=total)
            live.update(Group(bar, Text(one_line(figures))))

        yield show


_COLUMNS: Final[tuple[ProgressColumn, ...]] = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
