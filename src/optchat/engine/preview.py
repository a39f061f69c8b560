"""
A preview: the context that a session's next turn would get, with nothing written (§ 7).

Decides: what the next turn would pin, if it began now.
Refuses to know: waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from attrs import evolve

from optchat.core.budget import Budget
from optchat.core.context import Context
from optchat.core.ports import HostAdapter, Tokenizer
from optchat.engine.anchoring import last_request
from optchat.engine.handle import Scope
from optchat.engine.rendering import assemble, render
from optchat.engine.sights import snapshot_of
from optchat.engine.turns import check_usable, descriptor_of
from optchat.store import registry, scopes
from optchat.store.registry import SessionRow

M = TypeVar("M")
_NO_TURN = 0  # no row bears this key: the descriptor is a value here, never stored


def preview(
    scope: Scope,
    session: SessionRow,
    adapter: HostAdapter[M],
    active: Sequence[M],
    budget: Budget,
    tokenizer: Tokenizer,
) -> Context[M]:
    """
    The next turn's context under a budget, over the records of ended turns.

    Raises:
        ResyncNeeded, SessionDeleted: there is no next turn.
    """
    active_tokens = sum(adapter.count(native, tokenizer) for native in active)
    with scope.store.read() as db:
        current = registry.session_by_pk(db, session.session_pk)
        check_usable(current, current.generation_pk)
        moment = scopes.current_moment(db, scope.pk)
        stored = registry.segment_of_tree(db, scope.chain(db, current.segment_pk).own.tree)
        end = 0 if stored is None else stored[1]
        descriptor = descriptor_of(scope, db, current, _NO_TURN, moment, end)
        snapshot = snapshot_of(moment)
        if current.isolated:
            snapshot = evolve(snapshot, through=0)
        rendered, _row = render(
            scope,
            db,
            current,
            descriptor,
            None,
            last=last_request(db, current.generation_pk, descriptor),
            snapshot_label=snapshot.id,
            first_step=0,
            budget=budget,
            tokenizer=tokenizer,
            adapter=adapter,
            active_tokens=active_tokens,
            readiness=scope.policy.readiness,
        )
    return assemble(
        rendered,
        snapshot,
        list(active),
        active_tokens,
        budget,
        tokenizer,
        waited_seconds=0.0,
        active_source="rebuilt",
        repeated_bytes=rendered.repeated,
    )
