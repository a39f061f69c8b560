"""
What an application hands to ``Runner``, with memory's part in it.

Decides: that the application's own callbacks still run, and on what; what of its settings cannot carry memory.
Refuses to know: turns.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast

from agents import RunHooks, Session, TResponseInputItem
from agents.exceptions import UserError
from agents.lifecycle import RunHooksBase
from agents.run_config import CallModelData, CallModelInputFilter, ModelInputData, RunConfig

from optchat.adapters.natives import as_json
from optchat.core.errors import ConfigError, HostUnsupported

T = TypeVar("T")
Items: TypeAlias = list[TResponseInputItem]
InputCallback: TypeAlias = Callable[[Items, Items], Items | Awaitable[Items]]

_AT_SERVER = ("conversation_id", "previous_response_id", "auto_previous_response_id")


def refuse_what_cannot_carry_memory(arguments: Mapping[str, object], session: Session) -> None:
    """
    Raises:
        HostUnsupported: history that the provider keeps: it is in each request, whatever is left out of the input. Or a
            Session that rewrites its own history.
    """
    for name in _AT_SERVER:
        if arguments.get(name):
            raise HostUnsupported(
                f"{name} has the provider keep the history, where memory cannot leave it out of a request; leave"
                f" {name} out, and pass a session=, which keeps it here"
            )
    if callable(getattr(session, "run_compaction", None)):
        raise HostUnsupported(
            f"{type(session).__name__} rewrites its history, which memory would take for an edit; memory sends none of"
            " the history, so that nothing has to be compacted: pass the session under it"
        )


def own_hooks(hooks: object) -> RunHooks[Any]:
    """
    The application's hooks.

    Raises:
        ConfigError: not hooks of a run.
    """
    if hooks is None:
        return RunHooks[Any]()
    if not isinstance(hooks, RunHooksBase):
        raise ConfigError(f"hooks= takes RunHooks, not {type(hooks).__name__}; an agent's hooks belong to the agent")
    return cast("RunHooks[Any]", hooks)


class OwnConfig:
    """The application's ``run_config``: its own callbacks, and the same config with memory's in their place."""

    def __init__(self, given: object) -> None:
        """
        Raises:
            ConfigError: it is no run_config, or a callback of it cannot be called.
        """
        if not (given is None or isinstance(given, (RunConfig, dict))):
            raise ConfigError(f"run_config= takes a RunConfig, not {type(given).__name__}; pass one, or nothing")
        self._given = cast("RunConfig | dict[str, Any] | None", given)
        self._on_input = cast("InputCallback | None", self._callback("session_input_callback"))
        self._filter = cast("CallModelInputFilter | None", self._callback("call_model_input_filter"))

    def _callback(self, name: str) -> object:
        given = self._given
        callback: object = given.get(name) if isinstance(given, dict) else getattr(given, name, None)
        if callback is not None and not callable(callback):
            raise ConfigError(
                f"run_config.{name} is a {type(callback).__name__}, which cannot be called; give a function"
            )
        return callback

    @property
    def limits_history(self) -> bool:
        """Whether a run is given only the newest items of its Session."""
        given = self._given
        settings: object = (
            given.get("session_settings") if isinstance(given, dict) else getattr(given, "session_settings", None)
        )
        if isinstance(settings, dict):
            return cast("dict[str, object]", settings).get("limit") is not None
        return getattr(settings, "limit", None) is not None

    def with_memory(self, on_input: InputCallback, model_filter: CallModelInputFilter) -> RunConfig | dict[str, Any]:
        """What ``Runner`` gets."""
        ours = {"session_input_callback": on_input, "call_model_input_filter": model_filter}
        if isinstance(self._given, RunConfig):
            return replace(self._given, **cast("dict[str, Any]", ours))
        # A dict stays one: the runner closes the model provider of a config that it has made itself.
        return {**(self._given or {}), **ours}

    def without_memory(self, running: RunConfig) -> RunConfig:
        """What a nested run inherits: what it would inherit without memory."""
        return replace(running, session_input_callback=self._on_input, call_model_input_filter=self._filter)

    async def new_items(self, history: Items, new: Items) -> Items:
        """
        What a run begins with: the new items, as the application's ``session_input_callback`` makes them, without what
        that took from the history.
        """
        if self._on_input is None:
            return new
        of_history, of_new = list(history), list(new)
        combined = await _settled(self._on_input(history, new))
        if not isinstance(combined, list):
            raise UserError("Session input callback must return a list of input items.")
        return without_history(combined, of_history, of_new)

    async def combined(self, history: Items, new: Items) -> Items:
        """A request's beginning without memory, as of a nested run."""
        return [*history, *new] if self._on_input is None else await _settled(self._on_input(history, new))

    async def filtered(self, data: CallModelData[Any]) -> ModelInputData:
        """A request as the application's ``call_model_input_filter`` makes it."""
        if self._filter is None:
            return data.model_data
        made: object = await _settled(self._filter(data))
        if not isinstance(made, ModelInputData):
            raise UserError("call_model_input_filter must return a ModelInputData instance")
        return made


def without_history(combined: Sequence[TResponseInputItem], history: Items, new: Items) -> Items:
    """
    A callback's list without the history in it, known by identity, and where a callback has copied it by content: of
    two that say the same, the later is the new one. What the callback added stays.
    """
    kept: set[int] = set()
    spare_new, spare_history = _contents(new), _contents(history)
    rest: list[int] = []
    for place, item in enumerate(combined):
        if any(item is known for known in new):
            kept.add(place)
            spare_new[_content(item)] -= 1
        elif any(item is known for known in history):
            spare_history[_content(item)] -= 1
        else:
            rest.append(place)
    for place in reversed(rest):
        content = _content(combined[place])
        if spare_new[content] <= 0 and spare_history[content] > 0:
            spare_history[content] -= 1
        else:
            spare_new[content] -= 1
            kept.add(place)
    return [item for place, item in enumerate(combined) if place in kept]


def _contents(items: Iterable[TResponseInputItem]) -> Counter[str]:
    return Counter(_content(item) for item in items)


def _content(item: TResponseInputItem) -> str:
    return as_json(dict(item), "an input item")


async def _settled(value: T | Awaitable[T]) -> T:
    settled: object = await value if inspect.isawaitable(value) else value
    return cast("T", settled)


def noting(handlers: object, note: Callable[[str], None]) -> object:
    """The application's ``error_handlers``, each telling the kind of error that it has turned into an answer."""
    if not isinstance(handlers, dict):
        return handlers

    def wrapped(kind: str, handler: Callable[[Any], object]) -> Callable[[Any], Awaitable[object]]:
        async def handle(data: Any) -> object:
            answer = await _settled(handler(data))
            if answer is not None:
                note(kind)
            return answer

        return handle

    given = cast("dict[str, Any]", handlers)
    return {kind: wrapped(kind, handler) if callable(handler) else handler for kind, handler in given.items()}
