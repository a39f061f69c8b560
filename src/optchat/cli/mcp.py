"""
The verb that serves the memory tools to an MCP client.

Decides: that the file is opened read-only: the client starts this process, and a mistyped path, or a job of another
process's, is not its business.
Refuses to know: the protocol.
"""

from __future__ import annotations

import signal

import click

from optchat.adapters.mcp import server
from optchat.cli.settings import Settings, on_memory, pass_settings


@click.command()
@click.option("--snapshot", metavar="ID", help="Answer every call by this snapshot, as an answer or 'view' names it.")
@on_memory
@pass_settings
def mcp(settings: Settings, snapshot: str | None) -> None:
    """
    Serve the memory tools to an MCP client, on standard input and output, until the client leaves.

    Retrieval only: the client's model reads what it asks for, and nothing of its own conversation is remembered. The
    file is opened read-only. Needs the extra mcp.
    """
    with settings.open() as memory:
        serving = server(memory, snapshot=snapshot)
        # Standard input is read in a thread, which no exception of Python's reaches: Ctrl-C would wait for the next
        # line. Nothing is written here, so the signal may end the process where it stands.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            serving.run()
        finally:
            signal.signal(signal.SIGINT, before)
