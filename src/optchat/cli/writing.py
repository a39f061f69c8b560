"""
The verbs that write, or may.

Decides: which mode a file is opened in, how long somebody waits, and when a check counts as failed.
Refuses to know: how anything is stored.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from attrs import frozen

import optchat
from optchat.cli import demo as example, output
from optchat.cli.compacting import looking, work_off
from optchat.cli.settings import Settings, on_file, on_memory, on_nothing, on_worker, pass_settings
from optchat.cli.tallies import Board, Tally
from optchat.core.records import readable_bytes
from optchat.core.render import one_line
from optchat.memory import scopes_of


@frozen
class Imported:
    """What ``import --json`` answers: the import, and the scope's state once its summaries were made."""

    report: optchat.ResyncReport
    status: optchat.Status


@click.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))  # looked for before a database is made
@on_worker
@pass_settings
def import_(settings: Settings, file: str) -> None:
    """
    Import a FILE: a transcript (JSON lines, plain or gzip), or plain text as a note.

    The database and the scope are made if they are not there. A file is stored whole or not at all; importing it again
    changes nothing.
    """
    with settings.open_to_work("rwc") as memory:
        with output.progress("importing"):
            report = memory.import_file(file)
        board = Board([Tally.of(memory)])
        with output.board("summarising") as show, looking(board, show):
            work_off(memory)
        status = memory.status()
    if settings.as_json:
        output.show_json(Imported(report, status))
        return
    skipped = sum(report.skipped.values())
    why = f" ({', '.join(f'{count} {reason}' for reason, count in report.skipped.items())})" if skipped else ""
    output.show_text(
        f"{one_line(file)}: {report.sealed} records sealed, {report.kept} known already, {report.turns} turns, "
        f"{skipped} skipped{why}; the scope has {status.sessions} sessions"
    )
    if status.pending or status.running or status.failures:
        reason = status.paused or f"{status.pending + status.running} waiting, {len(status.failures)} failed"
        output.note(f"summaries are still missing ({reason}); see 'optchat status'")


@click.command()
@click.option("--repair", is_flag=True, help="Make anew what is derived and wrong.")
@on_memory
@pass_settings
def verify(settings: Settings, *, repair: bool) -> int:
    """Check that everything stored agrees with everything else; exit 1 if a fault is found and left."""
    with settings.open("rw" if repair else "ro") as memory, output.progress("verifying"):
        report = memory.verify(repair=repair)
    if settings.as_json:
        output.show_json(report)
        return 0 if report.ok else 1
    output.show_fields([(f"{name} checked", count) for name, count in report.checked.items()])
    if report.repaired:
        output.show_fields([("repaired", report.repaired)])
    if report.faults:
        output.show_table(
            ("fault", "ref", "repairable", "message"),
            [(each.code, each.ref, "yes" if each.repairable else "no", each.message) for each in report.faults],
        )
    output.show_text("no fault found" if report.ok else "faults found")
    return 0 if report.ok else 1


@frozen
class BackedUp:
    """What ``backup --json`` answers."""

    file: str
    file_bytes: int


@click.command()
@click.argument("file", type=click.Path())
@on_file
@pass_settings
def backup(settings: Settings, file: str) -> None:
    """
    Copy the whole database, every scope of it, to a new FILE, while it is in use.

    The copy appears whole or not at all. What was deleted and is not erased yet ('optchat status') is in it.
    """
    held = scopes_of(settings.path())
    if not held:
        raise click.UsageError(f"{settings.path()} holds no scope; there is nothing to copy")
    with (
        optchat.open(settings.path(), scope=held[0].name, compact="manual", mode="ro") as memory,
        output.progress("copying"),
    ):
        memory.backup(file)
    size = Path(file).stat().st_size
    if settings.as_json:
        output.show_json(BackedUp(file, size))
        return
    output.show_text(f"{one_line(file)}: {readable_bytes(size)}")


@click.command()
@click.option("--db", "kept", metavar="PATH", type=click.Path(), help="Keep the demo's database in this new file.")
@on_nothing
@pass_settings
def demo(settings: Settings, kept: str | None) -> int:
    """
    Show two sessions that share one memory; needs no key and no network.

    Session A decides something; session B asks for something that this decides. B's request is printed as a model would
    get it, and A's decision is followed from its line down to the bytes that were said. Exit 1 if any of it fails.
    """
    if kept is not None and Path(kept).exists():
        raise click.UsageError(f"{kept} exists; the demo keeps its database in a new file only")
    with tempfile.TemporaryDirectory(prefix="optchat-demo-") as folder:
        path = Path(kept) if kept is not None else Path(folder) / "memory.db"
        try:
            with optchat.open(path, scope="demo", compact="manual") as memory:
                shown = example.run(memory)
        except (example.DemoFailedError, optchat.OptchatError) as error:
            if settings.as_json:
                output.show_json({"ok": False, "error": str(error)})
            output.note(f"the demo FAILED: {error}")
            return 1
    if settings.as_json:
        output.show_json({"ok": True, "demo": shown})
        return 0
    _show_demo(shown)
    if kept is not None:
        output.show_text(f"\nThe memory is kept: optchat --db {kept} --scope demo view")
    return 0


def _show_demo(shown: example.Demo) -> None:
    output.show_text("Session A was asked, looked into a file, and decided:\n")
    output.show_text(f"  {shown.decision}\n")
    output.show_text(f"Session B, another conversation, begins with {shown.request!r}.")
    output.show_text("This is its whole request, as the model gets it; no memory tool was called:\n")
    for message in shown.messages:
        output.show_text(f"--- {message.role}")
        output.show_text(message.text)
    output.show_text("---\n\nA's decision stands in it. Followed down to what was said:\n")
    output.show_table(
        ("ref", "is", "text"), [(step.ref, step.kind, _at(shown.decision, step.text)) for step in shown.steps]
    )
    output.show_text(
        f"\nThe last is the source, equal byte for byte: {shown.source_bytes} bytes, sha256 {shown.source_sha256}."
    )


def _at(decision: str, text: str) -> str:
    """A line where it says the decision, short enough to compare with the next."""
    before, _, _ = text.partition(decision)
    return f"{'… ' if before else ''}{decision.partition(':')[0]}: …"
