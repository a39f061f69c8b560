"""
Cursors: where a paged answer goes on.

Decides: what a cursor carries: the verb, a digest of the whole query, the snapshot's clock, and a position.
Refuses to know: what a position means to its verb.

A cursor is opaque text and grants nothing: it says where to go on in an answer that the reader could ask for anyhow.
"""

from __future__ import annotations

import base64
import hashlib
import json

from attrs import frozen

from optchat.core.errors import BadCursor

_MOST_CHARACTERS = 400


@frozen
class Cursor:
    """A position in an answer that was begun under a clock."""

    clock: int
    position: tuple[int, ...]


def query_digest(verb: str, *arguments: object) -> str:
    """What ties a cursor to its query: every argument but the cursor itself."""
    return hashlib.sha256(json.dumps([verb, *map(str, arguments)]).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_cursor(digest: str, clock: int, *position: int) -> str:
    """A cursor as text; :func:`read_cursor` is its inverse."""
    plain = json.dumps([digest, clock, *position], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(plain).decode().rstrip("=")


def read_cursor(text: str, digest: str) -> Cursor:
    """
    Read a cursor of the query that ``digest`` stands for.

    Raises:
        BadCursor: it is none, or another query's.
    """
    if len(text) > _MOST_CHARACTERS:
        raise _no_cursor()
    try:
        found, clock, *position = json.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, TypeError, RecursionError):
        raise _no_cursor() from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (clock, *position)):
        raise _no_cursor()
    if found != digest:
        raise BadCursor("that cursor belongs to another query; repeat the query that gave it, or ask without one")
    return Cursor(clock, tuple(position))


def _no_cursor() -> BadCursor:
    return BadCursor("that is no cursor of this memory; ask again without one")
