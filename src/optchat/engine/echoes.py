"""
Echoes (§ 12): summaries of what was said later that repeat words of what is removed.

Decides: which nodes may have their words from what was said before them and is gone now.
Refuses to know: how nodes are replaced, and why something is removed.

A summarizer is shown the earlier lines of a conversation, to understand what it summarises (§ 4). Which of them it used
is not recorded, as it is for what was retrieved of others. So a node is an echo if it holds a word that what is removed
said, and that no record which is left in its session says. What tells the same in other words cannot be found so: the
receipt says that it may be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from optchat.core.lineage import ordinal_of, owner_of
from optchat.core.records import to_bytes, to_text
from optchat.core.refs import KEY_BITS, span_of_post_order
from optchat.core.words import INDEXED_AT_ONCE_BYTES, words_of
from optchat.engine.handle import Scope
from optchat.engine.origins import resting_segments
from optchat.store import echoes as index, forest, payloads, publications, registry
from optchat.store.rows import Connection

_MOST_WORDS: Final = 5_000  # of a removal in one segment: each is looked up; a log of a megabyte has no more of use


def words_said(scope: Scope, db: Connection, record_keys: Iterable[int]) -> set[str]:
    """The words of records; of a very long one, those of its first part, which a view's lines are made of."""
    found: set[str] = set()
    for text in payloads.load_spoken(db, record_keys).values():
        start = to_text(to_bytes(text)[:INDEXED_AT_ONCE_BYTES]) if len(text) > INDEXED_AT_ONCE_BYTES else text
        found.update(words_of(start, scope.row.pretokenizer).split())
    return found


def echoes(scope: Scope, db: Connection, said: Mapping[int, set[str]]) -> set[int]:
    """The nodes that repeat what was said in segments, and is hidden by now: theirs, and of what rests on them."""
    found: set[int] = set()
    for segment, words in said.items():
        places = [segment, *resting_segments(db, segment, 0)]
        sessions = {made_by[1] for made_by in _generations(db, places)}
        for word in sorted(words)[:_MOST_WORDS]:
            if any(index.is_said(db, place, word) for place in places):
                continue
            for place in places:
                found.update(index.summaries_with(db, place, word))
            found.update(key for key in index.summaries_with(db, None, word) if _of_sessions(scope, db, key, sessions))
    return found | _pages_of(db, found)


def _generations(db: Connection, segments: Iterable[int]) -> list[tuple[int, int, int]]:
    """The generations that segments were made for."""
    made_by = (registry.generation_of_segment(db, segment) for segment in segments)
    return [generation for generation in made_by if generation is not None]


def _of_sessions(scope: Scope, db: Connection, key: int, sessions: set[int]) -> bool:
    """Whether a node of the shared tree is the leaf of a publication of one of these sessions."""
    span = span_of_post_order(ordinal_of(key))
    if owner_of(key) != scope.row.shared_tree or span.count > 1:
        return False
    row = publications.load_publication(db, scope.pk << KEY_BITS | span.start)
    return row is not None and registry.session_of_generation(db, row.generation_pk)[0].session_pk in sessions


def _pages_of(db: Connection, keys: Iterable[int]) -> set[int]:
    """The pages of long records that leaves among nodes were made of: they were written beside it, too."""
    found: set[int] = set()
    for key in keys:
        span, segment = span_of_post_order(ordinal_of(key)), registry.segment_of_tree(db, owner_of(key))
        if segment is None or span.count > 1:
            continue
        chunks = forest.find_chunk_tree(db, segment[0] << KEY_BITS | span.start)
        if chunks is not None:
            found.update(page for page, _recipe in forest.recipes_of_tree(db, chunks.tree_pk, after=-1, limit=-1))
    return found
