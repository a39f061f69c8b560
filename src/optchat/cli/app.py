"""
The group of verbs, and how a run ends.

Decides: exit codes and the one line that an error is. 0: done. 1: a check failed. 2: usage, no such database, or any
error of the library. 130 and 141 are what shells report for an interrupt and for a reader that left.
Refuses to know: what a verb does.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

import optchat
from optchat.cli import compacting, mcp, output, reading, sessions, writing
from optchat.cli.settings import on_group

USAGE_ERROR = 2
INTERRUPTED = 130
READER_LEFT = 141


class Application(click.Group):
    """The group; it sees to it that an answer is written before its exit code is chosen."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and see its answer written."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()  # else the interpreter would find at its end that this fails
        except OSError as error:
            _drop_unwritten()
            if error.errno != errno.EPIPE:
                raise
            ctx.exit(READER_LEFT)  # `| head` has seen enough
        return answer


def _drop_unwritten() -> None:
    """Let go of an answer that cannot be written: the interpreter would try once more at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version("optchat")
    except PackageNotFoundError:  # run from its sources
        return "(not installed)"


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(_version(), prog_name="optchat")
@on_group
def application() -> None:
    """Shared hierarchical memory for independent agent conversations."""


for _verb in (
    writing.demo,
    writing.import_,
    compacting.compact,
    reading.status,
    reading.scopes,
    sessions.sessions,
    sessions.new,
    reading.turns,
    reading.view,
    reading.context,
    reading.receipt,
    reading.zoom,
    reading.search,
    reading.date,
    writing.verify,
    writing.backup,
    mcp.mcp,
    sessions.delete_scope,
):
    application.add_command(_verb)


def run(arguments: Sequence[str] | None = None) -> int:
    """
    Run one command line; errors are one line on standard error, and standard output has answers only.

    Args:
        arguments: without the program's name; None: those of this process.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale that lacks a character shows a mark for it
            stream.reconfigure(errors="replace")
    try:
        code = application.main(arguments, prog_name="optchat", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "optchat"
        output.note(f"{error.format_message()} (see '{where} --help')")
    except click.ClickException as error:
        output.note(error.format_message())
    except optchat.OptchatError as error:
        output.note(str(error))
    except OSError as error:
        output.note(f"{error.strerror or error}: {error.filename or 'standard output'}")
    except click.Abort:
        output.note("interrupted")
        return INTERRUPTED
    else:
        return code if isinstance(code, int) else 0
    return USAGE_ERROR
