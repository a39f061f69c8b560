"""
Models for tests: one that keeps what it was sent, and one that says what a script says.

Decides: what is kept of a request, and how a script is taken.
Refuses to know: any host. A host with a fake model of its own records by :class:`RequestRecorder` alone; the client of
an SDK asks the fake servers (:mod:`optchat.testing.servers`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from optchat.core.messages import HostMessage
from optchat.core.ports import HostAdapter
from optchat.engine.neutral import NeutralAdapter
from optchat.testing.contract_codec import said_by

M = TypeVar("M")
R = TypeVar("R")
Step: TypeAlias = HostMessage | BaseException


class RequestRecorder(Generic[M]):
    """
    Keeps what a model was sent, in order of arrival. Thread-safe.

    ``requests`` has the very objects, each request in a list of its own: whether a host sends on what it was given is
    seen by identity. ``texts`` has all the words of each request as they were then, whatever becomes of the objects.

    Args:
        adapter: the codec of the messages; None: they are neutral ones.
    """

    def __init__(self, adapter: HostAdapter[M] | None = None) -> None:
        self.requests: list[list[M]] = []
        self.texts: list[str] = []
        self._adapter: HostAdapter[Any] = NeutralAdapter() if adapter is None else adapter
        self._lock = threading.Lock()

    def record(self, messages: Iterable[M]) -> None:
        """
        Keep one request.

        Raises:
            BadArgument: a message that the adapter cannot read; nothing is kept.
        """
        sent = list(messages)
        text = "\n".join(said_by(self._adapter, message) for message in sent)
        with self._lock:
            self.requests.append(sent)
            self.texts.append(text)

    def around(self, model: Callable[[list[M]], R]) -> Callable[[list[M]], R]:
        """The same model, recorded before it is asked. What it returns is passed on as it is, an awaitable too."""

        def recorded(messages: list[M]) -> R:
            self.record(messages)
            return model(messages)

        return recorded

    def decoded(self, number: int = -1) -> list[HostMessage]:
        """What a request says in neutral terms; -1 is the last one."""
        return [said for message in self.requests[number] for said in self._adapter.decode(message)]


class ScriptedModel(RequestRecorder[M]):
    """
    A model that says what a script says, a step each time that it is asked, and records what it was sent.

    Call it with the messages of a request; :meth:`ask` is the same, to be awaited. It answers with the native messages
    of the step, or raises the step, if that is an exception. Threads may share it: a step is taken once.

    Args:
        script: the steps; or a function of a request's messages, which gives the step.
        native: a neutral message in the host's own form, as ``AdapterContract.native``; None: as it is.
        adapter: the codec, where ``native`` is given.
    """

    @overload
    def __init__(
        self: ScriptedModel[HostMessage],
        script: Iterable[Step] | Callable[[list[HostMessage]], Step],
    ) -> None: ...
    @overload
    def __init__(
        self,
        script: Iterable[Step] | Callable[[list[M]], Step],
        *,
        native: Callable[[HostMessage], Sequence[M]],
        adapter: HostAdapter[M],
    ) -> None: ...
    def __init__(
        self,
        script: Iterable[Step] | Callable[[list[Any]], Step],
        *,
        native: Callable[[HostMessage], Sequence[Any]] | None = None,
        adapter: HostAdapter[Any] | None = None,
    ) -> None:
        super().__init__(adapter)
        self._native = native
        self._function = cast("Callable[[list[M]], Step]", script) if callable(script) else None
        self._steps: Iterator[Step] = iter(()) if callable(script) else iter(script)
        self._taken = 0

    def __call__(self, messages: Sequence[M]) -> list[M]:
        """
        The next step's native messages.

        Raises:
            AssertionError: the script has no further step: the model is asked more often than the test expects.
        """
        sent = list(messages)
        self.record(sent)
        step = self._function(sent) if self._function is not None else self._next()
        if isinstance(step, BaseException):
            raise step
        return list(self._native(step)) if self._native is not None else [cast("M", step)]

    async def ask(self, messages: Sequence[M]) -> list[M]:
        """As calling it; for loops that await their model."""
        return self(messages)

    def _next(self) -> Step:
        with self._lock:  # the script may be a generator, which two threads must not enter
            for step in self._steps:
                self._taken += 1
                return step
        raise AssertionError(
            f"the model was asked for step {self._taken + 1}, and its script has {self._taken}; add one, or look why"
            " the host asks again"
        )
