"""
What every verb is told: the file, the scope, and whether to answer in JSON.

Decides: where these come from, and how a session is named on a command line.
Refuses to know: what any verb does.

``--db``, ``--scope`` and ``--json`` stand before the verb or after it; after it wins. The environment is asked last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click

import optchat

F = TypeVar("F", bound=Callable[..., Any])


class Settings:
    """The options that all verbs share, as far as they have been read."""

    def __init__(self) -> None:
        self.database: str | None = None
        self.scope: str | None = None
        self.as_json = False

    def path(self) -> str:
        """The file; UsageError if none was named."""
        if self.database is None:
            raise click.UsageError("no database was named; give --db PATH or set OPTCHAT_DB")
        return self.database

    def open(self, mode: Literal["rwc", "rw", "ro"] = "ro") -> optchat.Memory:
        """The memory, without a worker: a verb that works jobs does so itself, while somebody waits for it."""
        path = self.path()
        if self.scope is None:
            raise click.UsageError(
                "no scope was named; give --scope NAME or set OPTCHAT_SCOPE ('optchat scopes' lists them)"
            )
        return optchat.open(path, scope=self.scope, compact="manual", mode=mode)


def _set_database(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).database = value


def _set_scope(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).scope = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Settings).as_json = True


def _shared(function: F, *, environment: bool, database: bool = True, scope: bool = True) -> F:
    """Options that leave their values in the Settings. Only the group asks the environment: so a verb's option wins."""
    if scope:
        function = click.option(
            "--scope",
            metavar="NAME",
            envvar="OPTCHAT_SCOPE" if environment else None,
            expose_value=False,
            callback=_set_scope,
            help="The scope, or OPTCHAT_SCOPE.",
        )(function)
    if database:
        function = click.option(
            "--db",
            metavar="PATH",
            envvar="OPTCHAT_DB" if environment else None,
            expose_value=False,
            callback=_set_database,
            help="The database file, or OPTCHAT_DB.",
        )(function)
    return click.option(
        "--json", is_flag=True, expose_value=False, callback=_set_json, help="Answer with one JSON document."
    )(function)


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def on_group(function: F) -> F:
    """The shared options before a verb."""
    return _shared(function, environment=True)


def on_memory(function: F) -> F:
    """The shared options of a verb that opens a memory."""
    return _shared(function, environment=False)


def on_file(function: F) -> F:
    """The shared options of a verb that looks at the whole file."""
    return _shared(function, environment=False, scope=False)


def on_nothing(function: F) -> F:
    """The shared options of a verb that needs no memory, or makes its own."""
    return _shared(function, environment=False, database=False, scope=False)


def session_id(memory: optchat.Memory, name: str) -> str:
    """
    The id of the session that a person named, by its id or by its host's key.

    An id wins over a key that looks like one.

    Raises:
        click.UsageError: no session is called so, or several hosts have one of this key.
    """
    found: list[optchat.SessionInfo] = []
    for archived in (False, True):
        cursor: str | None = None
        while True:
            page = memory.sessions(archived=archived, cursor=cursor)
            for info in page:
                if info.id == name:
                    return info.id
                if info.key == name and all(info.id != other.id for other in found):
                    found.append(info)
            cursor = page.cursor
            if cursor is None:
                break
    if len(found) > 1:
        named = ", ".join(f"{info.id} ({info.host})" for info in found)
        raise click.UsageError(f"several sessions have the key {name!r}; give an id: {named}")
    if not found:
        raise click.UsageError(f"no session {name!r} in scope {memory.scope!r}; 'optchat sessions' lists them")
    return found[0].id
