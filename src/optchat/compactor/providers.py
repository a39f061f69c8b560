"""
What the summarizers of providers share.

Decides: that a client lives and ends with its event loop, where a key comes from, and that no error leaves a summarizer
with a provider's text, a request or a key in it.
Refuses to know: any provider's API.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final, Generic, TypeVar, cast

from anyio.lowlevel import RunVar

from optchat.core.errors import BadArgument, ConfigError, OptchatError
from optchat.core.trouble import CallFailed, Trouble, call_failed, trouble_of

T = TypeVar("T")

PLACEHOLDER_KEY: Final = "none"  # servers of one's own ask for no key, and the SDKs send nothing without one
_numbers: Final = itertools.count()  # before anyio 4.13 run variables of one name are one variable


class PerLoop(Generic[T]):
    """
    One thing for each running event loop: a connection that was opened in one loop is of no use in another.

    Whoever asks for it runs in the loop, so no two threads ever meet here.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: RunVar[T | None] = RunVar(f"optchat-per-loop-{next(_numbers)}", None)

    def get(self) -> T:
        """The running loop's, made when it is first asked for."""
        held = self._held.get()
        if held is None:
            held = self._make()
            self._held.set(held)
        return held

    def take(self) -> T | None:
        """The running loop's, which is then no longer held; None where there was none."""
        held = self._held.get()
        self._held.set(None)
        return held


def check_settings(package: str, model: str, window_tokens: int, client: object, base_url: str | None) -> None:
    """
    What every provider's summarizer refuses to be made of.

    Raises:
        ConfigError: the package is not installed. It is told here, and not by the first call.
        BadArgument: no model, no window, or a client that has another base_url already.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise ConfigError(f"this summarizer needs the package {package}; install optchat[{package}]") from error
    if not model:
        raise BadArgument("a summarizer needs a model; give its name")
    if window_tokens < 1:
        raise BadArgument("window_tokens must be at least 1; leave it out for the default")
    if client is not None and base_url is not None:
        raise BadArgument("a client has its base_url already; give one of the two")


def without_key(variable: str) -> ConfigError:
    """There is nobody to ask with and nobody who could be asked without."""
    return ConfigError(f"no key in the environment; set {variable}, or give the base_url of a server of your own")


def key_in(*variables: str) -> str | None:
    """The key that the environment has now, under the first of these names that is set."""
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)


def no_key(variable: str) -> CallFailed:
    """The environment has no key any more."""
    message = f"no key in the environment; set {variable}"
    return CallFailed(message, trouble=Trouble("authentication", message))


_ORIGINS: Final = frozenset({"openai", "anthropic", "httpx", "httpx2", "httpcore", "httpcore2", "pydantic_core"})


def without_content(error: Exception) -> Exception:
    """
    An error as it may leave a summarizer: raise it ``from None``.

    An SDK's error quotes the provider's answer, and carries the request with its key; a decoder's carries what it could
    not decode. An error of neither kind is a mistake of ours, and is left as it is.
    """
    if isinstance(error, OptchatError):
        return error
    now = datetime.now(UTC)
    origin = type(error).__module__.partition(".")[0]
    if origin in _ORIGINS or isinstance(error, (OSError, ValueError)) or trouble_of(error, now) is not None:
        return call_failed(error, now)
    return error


# ---- reading what a provider reports ---------------------------------------------------------------------------------


def count_of(value: object) -> int | None:
    """A token count as reported; None where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def mapping_of(value: object) -> Mapping[str, Any]:
    """A JSON object, empty where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
