"""
``optchat sessions``: the list, and what becomes of a session.

Decides: what is asked before something is gone, and how a receipt reads. Whoever is not at a terminal says ``--yes``,
or nothing happens. ``--dry-run`` does the same work and undoes it, so that it refuses what the real one would refuse.
Refuses to know: how sessions are forked, rewound and forgotten.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click
from attrs import evolve, frozen

import optchat
from optchat.cli import output
from optchat.cli.reading import cursor_option, limit_option
from optchat.cli.settings import Settings, on_memory, pass_settings, session_id
from optchat.core.render import one_line
from optchat.memory import undoing

Session = optchat.Session[optchat.HostMessage]

DECLINED = 1


@frozen
class Removed:
    """What a verb that removes answers in JSON. ``hindered``: why its bytes are still in the file."""

    dry_run: bool
    receipt: optchat.DeletionReceipt
    hindered: str | None = None


@frozen
class Changed:
    """What a verb that changes a session answers in JSON: the session as it is now, or would still be."""

    dry_run: bool
    session: optchat.SessionInfo


@frozen
class Rewound:
    """What ``sessions rewind --json`` answers: also the turns that are superseded."""

    dry_run: bool
    session: optchat.SessionInfo
    superseded: tuple[optchat.TurnInfo, ...]


@frozen
class Exported:
    """What ``sessions export -o --json`` answers."""

    file: str
    sessions: int
    turns: int
    messages: int


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen; nothing is changed.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


# ---- asking ----------------------------------------------------------------------------------------------------------


def agreed(question: str, *, yes: bool) -> bool:
    """
    Whether somebody wants what cannot be undone: asked on a terminal, else said by ``--yes``.

    Raises:
        click.UsageError: there is nobody to ask.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone; give --yes to do it unasked, or --dry-run to see what it does")
    if click.confirm(one_line(question), err=True):
        return True
    output.note("nothing was changed")
    return False


def counted(receipt: optchat.DeletionReceipt) -> str:
    """What a receipt removes, in a few words."""
    return ", ".join(f"{count} {what}" for what, count in receipt.removed.items() if count) or "nothing"


def show_removed(settings: Settings, done: Removed) -> None:
    """Write a receipt."""
    if settings.as_json:
        output.show_json(done)
        return
    receipt = done.receipt
    output.show_text(f"{'would remove' if done.dry_run else 'removed'}: {counted(receipt)}")
    for what, why in receipt.kept.items():
        output.show_text(f"{'would keep' if done.dry_run else 'kept'}: {what}: {why}")
    for copy in receipt.cannot_undo:
        output.show_text(f"cannot be undone: {copy}")
    if not done.dry_run:
        output.show_text(f"erased from the file: {'yes' if receipt.scrubbed else 'not yet'}")
        if done.hindered is not None:
            output.note(f"{done.hindered}; 'optchat status' says whether something is still to be erased")


# ---- the list --------------------------------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@limit_option
@cursor_option
@click.option("--archived", is_flag=True, help="Archived sessions too, and the state of each.")
@on_memory
@pass_settings
@click.pass_context
def sessions(context: click.Context, settings: Settings, limit: int, cursor: str | None, *, archived: bool) -> None:
    """List the sessions of a scope, or do something with one. A SESSION is given by its id or its key."""
    if context.invoked_subcommand is not None:
        return
    with settings.open() as memory:
        page = memory.sessions(archived=archived, limit=limit, cursor=cursor)
    if settings.as_json:
        output.show_json(page)
        return
    output.show_table(
        ("id", "key", "turns", "last", "title") + (("state",) if archived else ()),
        [
            (
                each.id,
                each.key,
                each.turns,
                output.moment(each.last_at),
                each.title,
                *((each.state,) if archived else ()),
            )
            for each in page
        ],
    )
    output.show_cursor(page.cursor)


def _verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A verb of the group, with the shared options."""

    def made(function: Callable[..., Any]) -> click.Command:
        return sessions.command(name=name)(on_memory(pass_settings(function)))

    return made


# ---- what is gone ----------------------------------------------------------------------------------------------------


@_verb("delete")
@click.argument("session")
@click.option("--only", multiple=True, metavar="TURN", help="Of it only this turn: its id, or its publication's ref.")
@click.option(
    "--forks",
    type=click.Choice(("preserve", "forget")),
    default="preserve",
    show_default=True,
    help="Forks keep what they rest on, or it is gone there, too.",
)
@dry_run_option
@yes_option
def delete(
    settings: Settings,
    session: str,
    only: tuple[str, ...],
    forks: Literal["preserve", "forget"],
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete a SESSION, or some of its turns: nothing finds it any more, and its bytes are erased from the file."""
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        some = list(only) or None
        receipt = undoing.rehearsed_deletion(memory, name, some, forks)
        if dry_run:
            show_removed(settings, Removed(True, receipt))
            return 0
        what = f"{len(only)} turns of session {session}" if only else f"session {session}"
        if not agreed(f"Delete {what} ({counted(receipt)}) for good?", yes=yes):
            return DECLINED
        receipt = memory.session_by_id(name).delete(only=some, forks=forks)
        show_removed(settings, _erased(memory, receipt))
        waiting = memory.status().pending
        if waiting:
            output.note(f"{waiting} summaries are to be made; 'optchat compact' makes them")
    return 0


def _erased(memory: optchat.Memory, receipt: optchat.DeletionReceipt) -> Removed:
    """What was removed, once its bytes are erased from the file as far as nothing hinders it."""
    hindered = _erase(memory)
    return Removed(False, evolve(receipt, scrubbed=hindered is None), hindered)


def _erase(memory: optchat.Memory) -> str | None:
    with output.progress("erasing"):
        return undoing.erase(memory)


@click.command(name="delete-scope")
@dry_run_option
@yes_option
@on_memory
@pass_settings
def delete_scope(settings: Settings, *, dry_run: bool, yes: bool) -> int:
    """Delete a whole scope with every session in it; other scopes of the file are not concerned."""
    with settings.open("rw") as memory:
        receipt = undoing.rehearsed_scope_deletion(memory)
        if dry_run:
            show_removed(settings, Removed(True, receipt))
            return 0
        if not agreed(f"Delete scope {settings.scope_name()} ({counted(receipt)}) for good?", yes=yes):
            return DECLINED
        show_removed(settings, _erased(memory, memory.delete_scope()))
    return 0


@_verb("revoke")
@click.argument("session")
@dry_run_option
@yes_option
def revoke(settings: Settings, session: str, *, dry_run: bool, yes: bool) -> int:
    """Share nothing of a SESSION any more: what it published is gone for everybody else; it goes on in private."""
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        published = sum(turn.publication_ref is not None for turn in _turns(memory, name))
        if dry_run:
            undoing.rehearsed(memory, name).revoke()
        elif not agreed(f"Withdraw what session {session} shares ({published} publications)?", yes=yes):
            return DECLINED
        else:
            memory.session_by_id(name).revoke()
            _erase(memory)
        info = memory.session_by_id(name).info()
    done = "would withdraw" if dry_run else "withdrew"
    _show_changed(settings, Changed(dry_run, info), f"{done} {published} publications of {info.id}")
    return 0


@_verb("rewind")
@click.argument("session")
@click.option("--after", metavar="TURN", help="The id of the last turn that is kept.")
@click.option("--before", metavar="TURN", help="The id of the first turn that is not.")
@dry_run_option
@yes_option
def rewind(settings: Settings, session: str, after: str | None, before: str | None, *, dry_run: bool, yes: bool) -> int:
    """Go back to the end of a turn, or to before one: what came later is superseded, and answers to its old refs."""
    if (after is None) == (before is None):
        raise click.UsageError("give one of --after TURN and --before TURN; 'optchat turns' lists their ids")
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        undoing.rehearsed(memory, name).rewind(after=after, before=before)  # refused before anybody is asked
        there = _turns(memory, name)
        place = [turn.id for turn in there].index(after or before or "") + (after is not None)
        superseded = tuple(there[place:])
        if not dry_run:
            if not agreed(f"Rewind session {session}, {len(superseded)} turns back?", yes=yes):
                return DECLINED
            memory.session_by_id(name).rewind(after=after, before=before)
        info = memory.session_by_id(name).info()
    if settings.as_json:
        output.show_json(Rewound(dry_run, info, superseded))
        return 0
    output.show_text(f"{'would rewind' if dry_run else 'rewound'} {info.id} to its first {place} turns; superseded:")
    output.show_table(
        ("id", "outcome", "ref", "publication"),
        [(turn.id, turn.outcome or turn.state, turn.ref, turn.publication_ref) for turn in superseded],
    )
    return 0


def _turns(memory: optchat.Memory, name: str) -> Sequence[optchat.TurnInfo]:
    """All turns of a session's present history."""
    handle = memory.session_by_id(name)
    page = handle.turns(limit=200)
    found = list(page)
    while page.cursor is not None:
        page = handle.turns(limit=200, cursor=page.cursor)
        found += page
    return found


# ---- what only moves -------------------------------------------------------------------------------------------------


def _show_changed(settings: Settings, done: Changed, what: str) -> None:
    if settings.as_json:
        output.show_json(done)
        return
    output.show_text(what)


def _change(
    settings: Settings, session: str, dry_run: bool, words: tuple[str, str], action: Callable[[Session], object]
) -> None:
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        action(undoing.rehearsed(memory, name) if dry_run else memory.session_by_id(name))
        info = memory.session_by_id(name).info()
    _show_changed(settings, Changed(dry_run, info), f"{words[not dry_run]} {info.id} ({info.key})")


@_verb("archive")
@click.argument("session")
@dry_run_option
def archive(settings: Settings, session: str, *, dry_run: bool) -> None:
    """Hide a SESSION from the list; nothing of it is forgotten."""
    _change(settings, session, dry_run, ("would archive", "archived"), lambda handle: handle.archive())


@_verb("unarchive")
@click.argument("session")
@dry_run_option
def unarchive(settings: Settings, session: str, *, dry_run: bool) -> None:
    """Show a SESSION in the list again."""
    _change(settings, session, dry_run, ("would unarchive", "unarchived"), lambda handle: handle.unarchive())


@_verb("share")
@click.argument("session")
@click.option("--history", is_flag=True, help="Also what it said before, at new numbers.")
@dry_run_option
def share(settings: Settings, session: str, *, history: bool, dry_run: bool) -> None:
    """Share a SESSION that was revoked, from its next turn on."""
    _change(settings, session, dry_run, ("would share", "shared"), lambda handle: handle.share(history=history))


@_verb("fork")
@click.argument("session")
@click.argument("key")
@click.option("--after", metavar="TURN", help="The id of the last turn that the fork has; all that ended, if left out.")
@dry_run_option
def fork(settings: Settings, session: str, key: str, after: str | None, *, dry_run: bool) -> None:
    """Begin another session, under a KEY of its own, whose own past is that of a SESSION."""
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        if dry_run:
            undoing.rehearsed(memory, name).fork(key, after=after)
            info = memory.session_by_id(name).info()
        else:
            info = memory.session_by_id(name).fork(key, after=after).info()
    what = f"would fork {name} as {key}" if dry_run else f"{info.id} ({info.key}) is a fork of {name}"
    _show_changed(settings, Changed(dry_run, info), what)


@click.command()
@click.argument("session")
@dry_run_option
@on_memory
@pass_settings
def new(settings: Settings, session: str, *, dry_run: bool) -> None:
    """Begin anew under the key of a SESSION: the old one is archived, and found by its id from now on."""
    with settings.open("rw") as memory:
        name = session_id(memory, session)
        before = memory.session_by_id(name).info()
        info = undoing.begin_anew(memory, name, dry_run=dry_run) or before
    what = f"would archive {name} and begin anew as {before.key}"
    if not dry_run:
        what = (
            f"{info.id} ({info.key}) begins anew; {name} is archived" if info.id != name else f"{name} is new already"
        )
    _show_changed(settings, Changed(dry_run, info), what)


# ---- export ----------------------------------------------------------------------------------------------------------


@_verb("export")
@click.argument("names", metavar="[SESSION]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every session of the scope, archived ones too.")
@click.option(
    "-o", "--output", "file", metavar="FILE", type=click.Path(), help="A new file (.gz: packed); else standard output."
)
def export(settings: Settings, names: tuple[str, ...], file: str | None, *, every: bool) -> None:
    """
    Write a SESSION, or several, as a transcript: JSON lines that 'optchat import' reads back.

    Its present history: what was rewound or deleted is not in it, and what memory tools answered was never kept.
    """
    if bool(names) == every:
        raise click.UsageError("name the sessions to export, or give --all")
    if file is not None and Path(file).exists():
        raise click.UsageError(f"{file} exists; an export is written to a new file only")
    with settings.open() as memory:
        ids = [session_id(memory, name) for name in names] if names else _all_ids(memory)
        done = [0, 0]
        if file is None:
            for name in ids:
                _export_to(memory, name, output.show_bytes, done)
            return
        with (
            output.progress("exporting"),
            gzip.open(file, "xb") if file.endswith(".gz") else Path(file).open("xb") as opened,
        ):
            for name in ids:
                _export_to(memory, name, opened.write, done)
    exported = Exported(file, len(ids), *done)
    if settings.as_json:
        output.show_json(exported)
        return
    output.show_text(
        f"{one_line(file)}: {exported.messages} messages, {exported.turns} turns, {exported.sessions} sessions"
    )


def _export_to(memory: optchat.Memory, name: str, write: Callable[[bytes], object], done: list[int]) -> None:
    for turn in undoing.export_session(memory, name):
        write(turn.lines)
        done[0] += 1
        done[1] += turn.messages


def _all_ids(memory: optchat.Memory) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = memory.sessions(archived=True, limit=200, cursor=cursor)
        found += [info.id for info in page]
        cursor = page.cursor
        if cursor is None:
            return found
