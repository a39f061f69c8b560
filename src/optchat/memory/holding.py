"""
What a turn holds of its active transcript (§ 5, § 7): the natives that this process was handed.

Decides: which of a turn's messages are sent as they were handed over, and which are made anew.
Refuses to know: how they are put in order (:mod:`optchat.core.active`), and what is left out of them.

Not thread-safe: its turn has the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from optchat.core.active import Entry, Sent, arrange, sent
from optchat.core.errors import ConfigError
from optchat.core.pairing import check_pairs
from optchat.core.ports import HostAdapter, Tokenizer
from optchat.engine import answering, dispatch
from optchat.engine.checkpointing import Active, records_by_message, records_of
from optchat.engine.handle import Scope
from optchat.memory.messages import Taken, can_rebuild

M = TypeVar("M")


@frozen
class _Built(Generic[M]):
    """An active transcript that was put together, and what it was put together from."""

    last_record: int | None
    handed: int
    active: Active[M]


class Holding(Generic[M]):
    """The natives of one turn, by the ordinal of their message."""

    def __init__(self, scope: Scope, turn_pk: int, adapter: HostAdapter[M]) -> None:
        self._scope, self._pk, self._adapter = scope, turn_pk, adapter
        self._natives: dict[int, tuple[M, ...]] = {}
        self._counted: dict[tuple[str, int], tuple[M, int]] = {}  # by tokenizer and identity of held natives
        self._built: _Built[M] | None = None
        self._silent: list[Taken[M]] = []

    def with_silent(self, taken: Sequence[Taken[M]]) -> tuple[list[Taken[M]], list[Taken[M]]]:
        """
        Messages to seal, with those before them that say nothing by themselves; and such as come last, which wait.

        Reasoning decodes to nothing and has no place of its own: it goes with what it led to, which may come later.
        """
        together = [*self._silent, *taken] if any(map(_speaks, taken)) else list(taken)
        end = len(together)
        while end and not _speaks(together[end - 1]):
            end -= 1
        return together[:end], together[end:]

    def hold_new(
        self, ordinals: Sequence[int], taken: Sequence[Taken[M]], fresh: Sequence[bool], wanted: Sequence[bool]
    ) -> None:
        """
        Hold the natives of what was sealed now, and of the silent ones before it. What was there before is held, or
        rebuilt, at its own place.

        Args:
            wanted: by message; others are sent otherwise than as they came.
        """
        follows = False
        for ordinal, each, is_new, is_wanted in zip(
            reversed(ordinals), reversed(taken), reversed(fresh), reversed(wanted), strict=True
        ):
            follows = is_new if _speaks(each) else follows
            if each.natives and follows and is_wanted:
                self.hold(ordinal, each.natives)

    def wait_for_words(self, silent: Sequence[Taken[M]], *, sealed: bool) -> None:
        """
        Keep what says nothing for the next message that is sealed.

        Args:
            sealed: what waited until now has gone with something.
        """
        waiting = [] if sealed else self._silent
        known = {id(native) for each in waiting for native in each.natives}
        self._silent = [*waiting, *(each for each in silent if known.isdisjoint(map(id, each.natives)))]

    def hold(self, ordinal: int, natives: tuple[M, ...]) -> None:
        """Keep a message as it was handed over: the very objects are sent."""
        self._natives[ordinal] = natives

    def handed_again(self) -> None:
        """The same messages may have come as other objects, and those are sent by identity."""
        self._built = None

    def passed(self, active: Sequence[M]) -> Active[M]:
        """
        A host's own list, as it is.

        Raises:
            ToolProtocolError: its calls and results do not pair.
        """
        natives = list(active)
        check_pairs(
            [message for native in natives for message in self._adapter.decode(native)],
            as_sent=not self._adapter.info.words_between,
        )
        return Active(natives, "passed", None)

    def held(self, last_record: int | None, tokenizer: Tokenizer) -> Active[M]:
        """
        The natives that this process was handed; what it was not, rebuilt from what is sealed.

        Args:
            last_record: of the turn, as read before: what is sealed since may be in the answer, and is looked for anew.

        Raises:
            ToolProtocolError: calls and results do not pair.
            ConfigError: something has to be rebuilt, and the adapter cannot.
        """
        built = self._built
        if built is not None and built.last_record == last_record and built.handed == len(self._natives):
            return built.active
        with self._scope.store.read() as db:
            recall = answering.recaller(self._scope, tokenizer)
            sealed = dispatch.sendable_messages(db, self._pk, recall, without=frozenset(self._natives))
            records = records_by_message(db, self._pk)
        said = {
            ordinal: tuple(message for native in natives for message in self._adapter.decode(native))
            for ordinal, natives in self._natives.items()
        }
        for ordinal, message in sealed:
            said[ordinal] = (*said.get(ordinal, ()), message)
        ordered = [
            Entry(messages, self._natives.get(ordinal, ()), records_of(records.get(ordinal), messages))
            for ordinal, messages in sorted(said.items())
        ]
        check_pairs([message for entry in arrange(ordered) for message in entry.messages])
        if can_rebuild(self._adapter):
            pieces = sent(ordered, self._adapter)
        elif sealed:
            raise ConfigError(
                f"the adapter {self._adapter.info.name!r} cannot make native messages; pass the turn's as active="
            )
        else:
            pieces = [Sent(entry.natives, entry.messages, entry.records) for entry in arrange(ordered)]
        natives = [native for piece in pieces for native in piece.natives]
        active = Active(natives, "held" if self._natives else "rebuilt", tuple(pieces))
        alive = {id(native) for native in natives}  # what was rebuilt before is sent no more
        for key in [key for key in self._counted if key[1] not in alive]:
            del self._counted[key]
        self._built = _Built(last_record, len(self._natives), active)
        return active

    def counter(self, tokenizer: Tokenizer, *, held: bool) -> Callable[[Sequence[M]], int]:
        """
        What counts natives for one call, each once. Held ones are final, so that a later call need not count them
        again; others may have changed by then.
        """
        counted: dict[tuple[str, int], tuple[M, int]] = self._counted if held else {}

        def count(natives: Sequence[M]) -> int:
            total = 0
            for native in natives:
                key = (tokenizer.name, id(native))
                known = counted.get(key)
                if known is None or known[0] is not native:
                    known = (native, self._adapter.count(native, tokenizer))
                    counted[key] = known
                total += known[1]
            return total

        return count


def _speaks(taken: Taken[M]) -> bool:
    return any(message.parts for message in taken.neutral)
