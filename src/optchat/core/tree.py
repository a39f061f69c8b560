"""
Summary nodes (§ 4).

Decides: what a node is, when two children join without a call, what a node's inputs hash to, what becomes ready when a
node lands, what stands in for a summary that could not be made, and how a large payload is cut into the pages of a
chunk tree. Refuses to know: how a summarizer produces text.

A leaf that fits is verbatim and has no row; two children that fit together are joined by a line feed. Every other
node's text comes from a summarizer, and satisfies: text ≤ ``node_bytes``, escaped bytes ≤ those of its children
together + 1. The second half keeps a view shrinkable: one parent heavier than its children would block its ancestors
for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from attrs import frozen

from optchat.core.records import readable_bytes
from optchat.core.refs import Span
from optchat.core.render import escaped_size
from optchat.core.retrieval import LineKind
from optchat.core.speakers import quote_labels

NODE_KINDS: Final[tuple[LineKind, ...]] = ("verbatim", "summary", "stand_in", "tombstone")
NODE_KIND_NUMBER: Final[dict[str, int]] = {kind: number for number, kind in enumerate(NODE_KINDS)}
RecipeKind: TypeAlias = Literal["summary", "join", "stand_in", "tombstone"]
NODE_FORMAT: Final = 1


@frozen
class Recipe:
    """How a node's text came to be: interned, since thousands of nodes share one."""

    kind: RecipeKind
    model: str = ""
    prompt_version: int = 0
    format: int = NODE_FORMAT
    parameters: str = "{}"


JOIN: Final = Recipe("join")


@frozen
class Node:
    """
    One revision of a position's text; ``first_at`` and ``last_at`` are microseconds, the earliest and the latest
    under it.
    """

    span: Span
    revision: int
    kind: LineKind
    text: str
    escaped_bytes: int
    failed: int
    interrupted: int
    first_at: int
    last_at: int

    @property
    def not_completed(self) -> int:
        return self.failed + self.interrupted


def inputs_sha256(inputs: Sequence[tuple[int, int, bytes]]) -> bytes:
    """
    One hash over ordered inputs: (position key, revision, SHA-256 of the text or payload).

    A result commits only if this is unchanged. The context that a summarizer was shown is provenance and not in it: it
    moves while the call runs, and the commit would fail again and again.
    """
    digest = hashlib.sha256()
    for key, revision, content in inputs:
        digest.update(key.to_bytes(8, "big"))
        digest.update(revision.to_bytes(4, "big"))
        digest.update(content)
    return digest.digest()


def text_sha256(text: str) -> bytes:
    """The hash of a node's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def joined(left: Node, right: Node, node_bytes: int) -> Node | None:
    """
    Two adjacent children as one node without a call, if both fit together. Tombstones say once what they all say: a
    thousand of them weigh no more than one.
    """
    if left.kind == right.kind == "tombstone":
        text = "\n".join(dict.fromkeys([*left.text.split("\n"), *right.text.split("\n")]))
        return merged(left, right, text, escaped_size(text), "tombstone")
    text = f"{left.text}\n{right.text}"
    if len(text.encode()) > node_bytes:
        return None
    return merged(left, right, text, left.escaped_bytes + 1 + right.escaped_bytes, _joined_kind(left, right))


def _joined_kind(left: Node, right: Node) -> LineKind:
    # A join is what its children are where they agree; a mixed one reads as a summary: it is not all verbatim, and
    # not all a stand-in either.
    return left.kind if left.kind == right.kind else "summary"


def merged(left: Node, right: Node, text: str, escaped_bytes: int, kind: LineKind) -> Node:
    """
    The parent of two adjacent children, with outcomes counted and times spanned from structure. A tombstone's time says
    when it was put there: it counts only among tombstones.
    """
    living = [child for child in (left, right) if child.kind != "tombstone"] or [left, right]
    return Node(
        span=left.span.parent,
        revision=0,
        kind=kind,
        text=text,
        escaped_bytes=escaped_bytes,
        failed=left.failed + right.failed,
        interrupted=left.interrupted + right.interrupted,
        first_at=min(child.first_at for child in living),
        last_at=max(child.last_at for child in living),
    )


REMOVED: Final = "[removed]"
SUPERSEDED: Final = "[superseded]"


def tombstone(before: Node, label: str, at: int) -> Node:
    """
    What is left in a node's place when its source is gone: the position, and a label that is no heavier than it was.

    Nothing of the source is in it, neither outcome nor time: ``at`` is when it was put there.
    """
    limit = before.escaped_bytes
    text = next(each for each in (label, "[-]", "-", "") if len(each) <= limit)
    return Node(before.span, before.revision, "tombstone", text, len(text), 0, 0, at, at)


def rebuilt(before: Node, parent: Node | None, inputs: Sequence[str], what: str, mark: str, node_bytes: int) -> Node:
    """
    What stands in for a node of which a source is gone, until a summarizer writes it again (§ 12).

    Labelled, made of what is left, and no heavier than what it replaces, so that no view grows by a removal.

    Args:
        parent: the node with outcomes and times as its inputs have them now, its size the most that they allow; None:
            they stay as they were.
        inputs: the texts of what is left of its sources.
        what: the kinds under it, in the house's words.
        mark: what a text must say of outcomes, left out where it does not fit: the line's label says it too.
    """
    limit = min(before.escaped_bytes, node_bytes, before.escaped_bytes if parent is None else parent.escaped_bytes)
    said = mark if len(mark) + len("[-]") <= limit else ""
    rest = [text.partition("] ")[2] if text.startswith("[not summarised") else text for text in inputs]
    rest = [" ".join(text.split()) for text in rest if text.strip()]
    share = limit // max(1, len(rest))
    start = " / ".join(text.encode("utf-8", "replace")[:share].decode("utf-8", "ignore") for text in rest)
    size = sum(len(text.encode("utf-8", "replace")) for text in inputs)
    text = said + stand_in_text(limit - len(said), what, size, start)
    like = before if parent is None else parent
    return Node(
        before.span,
        before.revision,
        "stand_in",
        text,
        escaped_size(text),
        like.failed,
        like.interrupted,
        like.first_at,
        like.last_at,
    )


def stand_in_text(limit_bytes: int, what: str, source_bytes: int, start: str) -> str:
    """
    What stands in for a summary after every attempt failed: labelled, and never counted as a summary (§ 10).

    Args:
        limit_bytes: it must not be heavier than what it stands for, or the view could not shrink past it; where not
        even
            the label fits, the label is shortened, and at one byte only a dot remains.
        what: the kinds under it, in the house's words.
        start: the source's first words, if they are of use; they are cut to what fits.
    """
    label = f"[not summarised: {what}, {readable_bytes(source_bytes)}]"
    for shorter in (label, "[not summarised]", "[-]", "-"):
        if len(shorter) <= limit_bytes:
            label = shorter
            break
    else:
        return ""
    room = limit_bytes - len(label.encode()) - 1
    if room < 24 or label == "[-]":
        return label
    # Escaping can grow a character to five bytes; a stand-in must hold its bound for any source. And it claims nothing:
    # words of a source that stand where an author would be named are quoted, whoever they name as the user.
    safe = "".join(character if character not in "&<>" else " " for character in start)
    quoted = quote_labels(" ".join(safe.split()), "user")
    piece = " ".join(quoted.encode("utf-8", "replace")[: room - 4].decode("utf-8", "ignore").split())
    return f"{label} {piece}…" if piece else label


def page_starts(payload: bytes, page_bytes: int) -> tuple[int, ...]:
    """
    Where the pages of a payload start: every ``page_bytes``, moved back to the start of a character.

    Deterministic and recorded: the chunk tree over them covers every byte, and no byte twice.
    """
    starts = [0]
    while starts[-1] + page_bytes < len(payload):
        at = starts[-1] + page_bytes
        while payload[at] & 0xC0 == 0x80 and at > starts[-1] + 1:
            at -= 1
        starts.append(at)
    return tuple(starts)


def page_of(payload: bytes, page_bytes: int, page: int) -> bytes:
    """One page, by its number; the pages in order rejoin to exactly the payload."""
    starts = page_starts(payload, page_bytes)
    end = starts[page + 1] if page + 1 < len(starts) else len(payload)
    return payload[starts[page] : end]
