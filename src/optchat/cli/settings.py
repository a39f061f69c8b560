"""
What every verb is told: the file, the scope, whether to answer in JSON; and those that make summaries, by what.

Decides: where these come from, and how a session is named on a command line.
Refuses to know: what any verb does.

These options stand before the verb or after it; after it wins. The environment is asked last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource

import optchat
from optchat.cli.summarizers import DEFAULT, MODEL_FORM, PRICE_FORM, Choice, read_model, read_price

F = TypeVar("F", bound=Callable[..., Any])


class Settings:
    """The options that all verbs share, as far as they have been read."""

    def __init__(self) -> None:
        self.database: str | None = None
        self.scope: str | None = None
        self.as_json = False
        self.choice = Choice()

    def path(self) -> str:
        """The file; UsageError if none was named."""
        if self.database is None:
            raise click.UsageError("no database was named; give --db PATH or set OPTCHAT_DB")
        return self.database

    def scope_name(self) -> str:
        """The scope; UsageError if none was named."""
        if self.scope is None:
            raise click.UsageError(
                "no scope was named; give --scope NAME or set OPTCHAT_SCOPE ('optchat scopes' lists them)"
            )
        return self.scope

    def open(self, mode: Literal["rw", "ro"] = "ro") -> optchat.Memory:
        """The memory of a verb that works no jobs: no summarizer is made, and no key looked for."""
        return optchat.open(self.path(), scope=self.scope_name(), compact="manual", mode=mode)

    def open_to_work(
        self,
        mode: Literal["rwc", "rw"],
        *,
        scope: str | None = None,
        policy: optchat.Policy | None = None,
        compact: Literal["background", "manual"] = "manual",
    ) -> optchat.Memory:
        """
        The memory of a verb that works jobs, with the summarizer that was named.

        Args:
            scope: another than was named.
            compact: "manual": the verb does so itself, while somebody waits for it.
        """
        path, name = self.path(), scope or self.scope_name()
        summarizer, fallback = self.choice.make()  # before a file is made
        return optchat.open(
            path, scope=name, summarizer=summarizer, fallback=fallback, policy=policy, compact=compact, mode=mode
        )


def _set_database(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).database = value


def _set_scope(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).scope = value


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Settings).as_json = True


def _set_summarizer(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Settings).choice.model = None if value == DEFAULT else read_model(value)


def _of_a_model(read: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that keeps an option under its own name, and whether it was given on the command line."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None:
            return
        choice = context.ensure_object(Settings).choice
        assert parameter.name is not None, "options have names"
        setattr(choice, parameter.name, read(value))
        if context.get_parameter_source(parameter.name) is not ParameterSource.ENVIRONMENT:
            choice.given.add(parameter.opts[0])

    return keep


def _same(value: Any) -> Any:
    return value


def _with_summarizer(function: F, *, environment: bool) -> F:
    """The options of a summarizer; reading verbs have none of them, and leave those of the group alone."""
    for name, metavar, kind, read, explained in reversed(_MODEL_OPTIONS):
        variable = _MODEL_VARIABLES.get(name) if environment else None
        function = click.option(
            name,
            metavar=metavar,
            type=kind,
            envvar=variable,
            expose_value=False,
            callback=_of_a_model(read),
            help=explained,
        )(function)
    return click.option(
        "--summarizer",
        metavar=f"{MODEL_FORM}|{DEFAULT}",
        envvar="OPTCHAT_SUMMARIZER" if environment else None,
        expose_value=False,
        callback=_set_summarizer,
        help="What makes summaries, or OPTCHAT_SUMMARIZER; its key is OPENAI_API_KEY or ANTHROPIC_API_KEY.",
    )(function)


_MODEL_VARIABLES = {"--base-url": "OPTCHAT_BASE_URL"}
_MODEL_OPTIONS: tuple[tuple[str, str, type, Callable[[str], object], str], ...] = (
    ("--base-url", "URL", str, _same, "The address of a compatible server, or OPTCHAT_BASE_URL."),
    ("--window-tokens", "N", int, _same, "The most input tokens that the model takes."),
    ("--price", PRICE_FORM, str, read_price, "What a million tokens cost."),
    ("--fallback", MODEL_FORM, str, read_model, "Asked once where the summarizer refuses."),
    ("--fallback-price", PRICE_FORM, str, read_price, "What a million tokens of the fallback cost."),
)


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
    return _shared(_with_summarizer(function, environment=True), environment=True)


def on_worker(function: F) -> F:
    """The shared options of a verb that makes summaries."""
    return _shared(_with_summarizer(function, environment=False), environment=False)


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

    An id wins over a key that looks like one, and of two sessions with one key that which is not archived.

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
        found = [info for info in found if info.state != "archived"] or found
    if len(found) > 1:
        named = ", ".join(f"{info.id} ({info.host})" for info in found)
        raise click.UsageError(f"several sessions have the key {name!r}; give an id: {named}")
    if not found:
        raise click.UsageError(f"no session {name!r} in scope {memory.scope!r}; 'optchat sessions' lists them")
    return found[0].id
