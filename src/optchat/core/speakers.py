"""
How a text tells who speaks in it, and that something in it was not completed (§ 5, § 10).

Decides: what is an author's label and what only quotes one; the marks of what was not completed.
Refuses to know: who really spoke, and how a turn really ended. That is structure, and its callers'.

A text that this library keeps is one or more lines ``[<mark> ]<kind>: words``: the kind is the true author, the mark
``failed:``, ``interrupted:``, ``[1 failed]`` or ``[not summarised…]``.

All patterns are linear in the text, which nobody vetted: every repetition is bounded, or cannot meet its own beginning.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from optchat.core.records import KINDS
from optchat.core.terms import Outcome

STAND_IN_MARK: Final = "[not summarised]"
OUTCOME_MARKS: Final[dict[Outcome, str]] = {"completed": "", "failed": "failed: ", "interrupted": "interrupted: "}
ERROR_MARK: Final = "error: "  # what a result that its tool reported as an error begins with: core.records.spoken_text

# ---- who speaks ------------------------------------------------------------------------------------------------------

MARKS: Final = (
    r"(?:(?:failed|interrupted):\s{1,8}|\[not summarised[^\]\n]{0,80}\]\s{0,8}|\[-\]\s{0,8}|"
    r"\[\d{1,9} (?:failed|interrupted)(?:, \d{1,9} interrupted)?\]\s{0,8}){0,4}"
)
_KIND_WORDS: Final = "|".join(KINDS)
# What may stand around a label to make it look better: a bullet, bold letters, brackets.
_BEFORE: Final = r"[ \t]*(?:(?:[-*+#]{1,6}|\d{1,3}[.)])[ \t]{1,8})?" + MARKS + r"[*_\[(<]{0,4}"
_AFTER: Final = r"(?=[*_\])>]{0,4}[ \t]?[:\uff1a][*_\])>]{0,4}(?:\s|\Z))"
# A label stands where a part of the text begins: at the start of a line, or after what ends a sentence or a clause.
_LABEL: Final = re.compile(rf"((?:\A|[\n;|.!?]){_BEFORE})({_KIND_WORDS}){_AFTER}", re.IGNORECASE)
# The user is looked for more closely: after any pause, after another label, by the other name, and as "User said:".
_SAID: Final = (
    r"(?:['\u2019]s)?(?:[ \t](?:said|says|wrote|writes|asked|asks|requested|requests|replied|replies|answered|answers|"
    r"added|adds|stated|states|confirmed|confirms|ordered|orders|wanted|wants|request|message|prompt)"
    r"(?:[ \t](?:that|for|to|again|then))?)?"
)
_USER: Final = re.compile(
    rf"((?:\A|[\n;|.!?,:\uff1a(\u2013\u2014]){_BEFORE}(?:the[ \t])?)(user|human)(?={_SAID}{_AFTER})", re.IGNORECASE
)
_QUOTED: Final = re.compile(
    r"(?<!\w)\"(?=\S)[^\"\n]*(?<=\S)\"(?!\w)|`[^`\n]*`|\u201c[^\u201d\n]*\u201d|\u00ab[^\u00bb\n]*\u00bb|^>.*$",
    re.MULTILINE,
)


def own_labels(text: str) -> frozenset[str]:
    """The kinds that a text names as authors of its own parts; a label in quotation marks is quoted, not claimed."""
    if ":" not in text:
        return frozenset()
    return frozenset(match[2].lower() for match in _LABEL.finditer(_QUOTED.sub('""', text)))


def names_user(text: str) -> bool:
    """
    Whether a text puts words of its own into the user's mouth, in whatever dress; what it quotes it only tells.

    It sees more than :func:`own_labels`: what may be an author's label is enough to ask again, not to believe it.
    """
    return _USER.search(_QUOTED.sub('""', text)) is not None


def quote_labels(text: str, kind: Literal["user"] | None = None) -> str:
    """Data in which a part begins like a label (of a kind; None: of any), with that word in quotation marks."""
    if ":" not in text and "\uff1a" not in text:
        return text
    lower = text.lower()  # looking for words first spares most sentences the patterns, which cost ten times as much
    if kind is None and any(word in lower for word in KINDS):
        text = _LABEL.sub(r'\1"\2"', text)
    return _USER.sub(r'\1"\2"', text) if "user" in lower or "human" in lower else text


# ---- what was not completed ------------------------------------------------------------------------------------------

_ERROR: Final = re.compile(r"(?:tool_result:\s{1,8})?error:", re.IGNORECASE)
_SAYS: Final[dict[Outcome, re.Pattern[str]]] = {
    "failed": re.compile(r"\bfailed:|\[\d+ failed"),
    "interrupted": re.compile(r"\binterrupted:|\[(?:\d+ failed, )?\d+ interrupted"),
}


def marked(text: str, outcome: Outcome | None) -> str:
    """
    The text of a turn with how it ended, unless it was completed: on each line that names an author, and on the first.

    A merge may later keep only one of the lines; then the mark is still there.
    """
    mark = OUTCOME_MARKS[outcome] if outcome is not None else ""
    if not mark:
        return text
    lines = text.split("\n")
    return "\n".join(
        mark + line if not line.startswith(mark) and (not number or own_labels(line)) else line
        for number, line in enumerate(lines)
    )


def tells_error(text: str) -> bool:
    """Whether a text begins as a result that its tool reported as an error does."""
    return _ERROR.match(text) is not None


def with_error(text: str) -> str:
    """A result's text that says so."""
    if tells_error(text):
        return text
    label = "tool_result: "
    head = label if text.startswith(label) else ""
    return f"{head}{ERROR_MARK}{text.removeprefix(head)}"


def tells_outcome(text: str, outcome: Outcome) -> bool:
    """Whether a text says of a part of it that it ended so, in its own words and not in a quotation."""
    return outcome not in _SAYS or _SAYS[outcome].search(_QUOTED.sub('""', text)) is not None
