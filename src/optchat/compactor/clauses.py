"""
Reading sources as clauses: what the embedded summarizer chooses from.

Decides: where a clause begins and ends, who said it, what is boilerplate, and what is exact in it (paths, identifiers,
numbers). Refuses to know: sizes, and which clauses are chosen.

A sentence is never split. "If the tests pass, we deploy" has a part that says the opposite of the whole, so what does
not fit is left out or, with nothing else to show, visibly cut. For the same reason the items of a list carry the line
that introduces them where that line changes what they mean ("Not done:"). All patterns are linear in the text:
sources are untrusted, and pages of 16 KiB come by the thousand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, cast

from attrs import define

from optchat.core.records import KINDS
from optchat.core.render import one_line
from optchat.core.speakers import MARKS, STAND_IN_MARK, quote_labels
from optchat.core.summarizing import SourceLine

NAMES_KIND: Final = "also"  # the label of names without a sentence around them
CLAUSE_CHARS: Final = 480  # a longer one is a blob or a dump; it can be cut, but not chosen
_EDGE_LINES: Final = 40
_TROUBLE: Final = ("rror", "RROR", "ail", "FAIL", "anic", "arning", "denied", "refused", "undefined")
_SCAN_CHARS: Final = 400_000  # JSON beyond this is read as plain text

_CONTROL_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b[()][A-Z0-9]")
_NUMBERED: Final = re.compile(r"\s{0,8}\d{1,6}(?:→|\t|[:|-](?=\s|\t))")
_BULLET: Final = re.compile(r"(?:[#>*+•⎿-]{1,6}|\d{1,3}[.)])\s+")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[\"'`(\[*]?[A-Z0-9`*])|(?<=[。！？])|;\s+")
_HEAD: Final = re.compile(
    rf"({MARKS})"
    rf"(?:({'|'.join((*KINDS, NAMES_KIND))}):(?:\s+|$))?"
)
_MID_LABEL: Final = re.compile(
    rf"(?<=[;.!?|])\s+(?=(?:(?:failed|interrupted): )?(?:{'|'.join((*KINDS, NAMES_KIND))}): )"
)
_UNREADABLE: Final = re.compile(r"[\W_]*\Z", re.ASCII)
_TOKEN: Final = re.compile(r"[^\s\"'`,;()\[\]{}<>|=…“”«»]+")
_TAIL: Final = ".:!?*_#&-–—/\\→✓✅❌~^+"
_INTRO: Final = re.compile(
    r"\b(?:not|never|no|fail\w*|error\w*|todo|remaining|open|next|plan\w*|won't|reject\w*|skip\w*|would|should|could|"
    r"propos\w*|option\w*|alternative\w*|pending|broken|missing|without|instead|later|if|before|removed?|deleted?)\b",
    re.IGNORECASE,
)
# What hosts put around the words of people and tools; it says nothing about the work.
_HOST_TAG: Final = re.compile(
    r"</?(?:command-(?:name|message|args|contents)|local-command-\w{1,20}|system-reminder|user-prompt-submit-hook|"
    r"ide_\w{1,20}|bash-(?:input|stdout|stderr)|tool_use_error)>"
)
_HOST_PHRASES: Final = (
    "result of running `cat -n`",
    "Todos have been modified successfully",
    "Caveat: The messages below were generated",
    "Co-Authored-By:",
    "Base directory for this skill",
    "Implement the following plan:",
    "no need to include this information in your response",
)
_HIDDEN: Final = ("system-reminder", "local-command-caveat")


@define
class Clause:
    """One clause as it may stand in a summary; ``run`` numbers consecutive clauses of one author."""

    mark: str
    kind: str
    text: str
    run: int
    place: int  # counted within the run
    weight: float  # of the passage it stands in: prose 1.0, code and dumps less
    names: tuple[str, ...] = ()
    bytes_: int = 0
    escaped: int = 0
    value: float = 0.0


# The words of a decision, an outcome, a reason or a failure, in the forms in which they are said.
_CUES: Final = frozenset(
    """
    decide decided deciding decision agreed chose chosen instead because cause caused causes reason insight
    turns actually actual fix fixed fixes fixing resolved resolves removed remove removes removing deleted
    deletes delete renamed rename renames replaced replace replaces added add adds changed change changes moved
    move creates created create updated updates update default defaults reject rejected revert reverted rolled
    only must should always never not no longer don't doesn't didn't won't can't pass passed passes passing todo
    remaining open missing without obsolete unsupported
    """.split()  # noqa: SIM905 - words in lines can be read, one a line cannot
)
_FAILURES: Final = frozenset(
    """
    fail fails failed failing failure failures error errors panic fatal exception traceback undefined denied
    refused timeout cannot couldn't unable rolled abort aborted crash crashed crashes crashing interrupted broke
    broken breaks
    """.split()  # noqa: SIM905 - words in lines can be read, one a line cannot
)


def _is_word(token: str) -> bool:
    """Whether a token is a word of prose: lower case, or capitalised; scripts without case count as prose."""
    if token.isascii():
        return token.isalpha() and (token.islower() or token[1:].islower() or len(token) == 1)
    return not any(char.isdigit() or char in "/._" for char in token)


def _read_token(token: str) -> tuple[str, bool, bool, bool]:
    """A token's exact name ("" for a plain word), and whether it is a word, a cue, a word of failure."""
    name = token.rstrip(_TAIL) if token[0] in "-./" else token.strip(_TAIL)
    if not name:
        return "", False, False, False
    if _is_word(name) or (name[0] != "-" and _is_word(name.replace("-", "").replace("’", "").replace("'", ""))):
        word = name.lower().replace("’", "'")  # "non-interactive" is a word; "--telemetry" and "ENT-98" are not
        failure = word in _FAILURES
        return "", True, failure or word in _CUES, failure
    exact = 3 <= len(name) <= 100 and name[0] != "%" and (len(name) > 3 or not name.isdigit())
    return (name if exact else ""), False, False, False


# Prose repeats its tokens; looking one up costs a tenth of reading it. Long tokens would fill the cache with blobs.
_read_short_token = lru_cache(maxsize=8192)(_read_token)


@define
class Reading:
    """What the tokens of a clause tell: exact names in order, and counts of words, tokens and cues."""

    names: tuple[str, ...]
    words: int
    tokens: int
    cues: int
    failed: bool


def read(text: str) -> Reading:
    """
    Read a clause's tokens.

    Names are what is no plain word: paths, identifiers, flags, numbers, acronyms.
    """
    names: dict[str, None] = {}
    words = cues = 0
    failed = False
    tokens = _TOKEN.findall(text)
    for token in tokens:
        name, word, cue, failure = _read_short_token(token) if len(token) <= 40 else _read_token(token)
        if word:
            words += 1
            cues += cue
            failed = failed or failure
        elif name:
            names[name] = None
    return Reading(tuple(names), words, len(tokens), cues, failed)


def _is_boilerplate(line: str) -> bool:
    return ("<" in line and _HOST_TAG.search(line) is not None) or any(phrase in line for phrase in _HOST_PHRASES)


def tidy(text: str) -> str:
    """A passage on one line: control sequences gone, spaces single, labels of ours quoted."""
    if "\x1b" in text:
        text = _CONTROL_SEQUENCE.sub("", text)
    if not text.isprintable():
        text = one_line(text)
    return " ".join(text.replace("**", "").split())


def _without_hidden(text: str) -> str:
    """A text without the passages that a host wrapped in its own tags; an open tag without its end hides nothing."""
    for tag in _HIDDEN:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if opening not in text:
            continue
        kept: list[str] = []
        at = 0
        while (start := text.find(opening, at)) >= 0:
            end = text.find(closing, start)
            if end < 0:
                break
            kept.append(text[at:start])
            at = end + len(closing)
        kept.append(text[at:])
        text = "\n".join(kept)
    return text


def _short_value(name: str, value: object) -> str:
    """A scalar as it is said in passing; "" for one that has lines of its own, or says nothing."""
    if isinstance(value, str):
        return value if len(value) <= 160 and "\n" not in value else ""
    return f"{name}={value}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _json_passages(value: object) -> Iterator[tuple[str, float]]:
    """What JSON says, without its punctuation: short values together, long ones as the text that they are."""
    stack: list[tuple[object, str]] = [(value, "")]
    while stack:  # no recursion: nobody vetted how deep it goes
        item, name = stack.pop()
        if isinstance(item, dict):
            fields = [(str(key), content) for key, content in cast("dict[object, object]", item).items()]
            if short := [said for key, content in fields if (said := _short_value(key, content))]:
                yield " ".join((f"{name}:", *short) if name else short), 0.8
            stack.extend(
                (content, key)
                for key, content in reversed(fields)
                if not isinstance(content, (bool, int, float)) and not _short_value(key, content)
            )
        elif isinstance(item, list):
            contents = cast("list[object]", item)
            plain = [str(content) for content in contents if isinstance(content, (str, int, float))]
            if plain and len(plain) == len(contents) and sum(map(len, plain)) <= 200:
                yield f"{name}: {', '.join(plain)}" if name else ", ".join(plain), 0.6
            else:
                stack.extend((content, "") for content in reversed(contents))
        elif isinstance(item, str):
            yield item, 0.6


def _parsed(text: str) -> object:
    if len(text) > _SCAN_CHARS or text[:1] not in ("{", "[") or text[-1:] not in ("}", "]"):
        return None
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _passages(kind: str, text: str) -> Iterator[tuple[str, float]]:
    """The parts of a record that are to be read as text, each with its weight."""
    if kind == "tool_call":
        name, _, arguments = text.partition(" ")
        value = _parsed(arguments.strip())
        if isinstance(value, dict):
            passages = _json_passages(cast("object", value))
            first = next(passages, None)
            if first is None:
                yield name, 1.0
                return
            # The first line of a call says what was called with what; its long values are mostly file contents.
            yield f"{name} {first[0]}", 1.0
            for passage, _ in passages:
                yield passage, 0.35
            return
    elif kind in ("tool_result", "report") and (value := _parsed(text.strip())) is not None:
        yield from _json_passages(value)
        return
    yield text, 1.0


def _sentences(line: str) -> list[str]:
    return _SENTENCE.split(line) if len(line) > 40 else [line]


def _worth_reading(kind: str, lines: list[str]) -> Sequence[str]:
    """
    All lines; of a tool's long output or argument the first, the last, and those between that tell of trouble.

    At most five lines of it can stand in a summary. Reading thousands closely would cost more than all else together.
    """
    if len(lines) <= 2 * _EDGE_LINES or kind not in ("tool_call", "tool_result"):
        return lines
    between = (line for line in lines[_EDGE_LINES:-_EDGE_LINES] if any(word in line for word in _TROUBLE))
    return [*lines[:_EDGE_LINES], *between, *lines[-_EDGE_LINES:]]


def record_clauses(kind: str, text: str, run: int, mark: str = "") -> Iterator[Clause]:
    """The clauses of what one author said."""
    place = 0
    seen: set[str] = set()
    for passage, weight in _passages(kind, _without_hidden(text)):
        intro, fenced = "", False
        for raw in _worth_reading(kind, passage.split("\n")):
            line = raw.strip()
            if not line:
                continue
            if line.startswith("```"):
                fenced = not fenced
                continue
            here = weight * (0.45 if fenced else 1.0)
            if (numbered := _NUMBERED.match(raw)) and kind in ("tool_result", "tool_call"):
                line, here = raw[numbered.end() :].strip(), 0.25  # a file shown with its line numbers
            bullet = _BULLET.match(line)
            if bullet:
                line = line[bullet.end() :]
            heading = bullet is not None and bullet[0][0] == "#"
            if _UNREADABLE.match(line) or _is_boilerplate(line):
                continue
            if not bullet or heading:
                intro = ""
            if (line.endswith(":") or heading) and len(line) <= 120 and not fenced:
                intro = tidy(line).rstrip(":") if _INTRO.search(line) else ""
                here *= 0.5
            for sentence in _sentences(line):
                clause = tidy(sentence)
                if intro and bullet and not heading:
                    clause = f"{intro}: {clause}"
                clause = quote_labels(clause).rstrip(";")
                if len(clause) < 2 or clause in seen or _UNREADABLE.match(clause):
                    continue
                seen.add(clause)
                if len(clause) <= CLAUSE_CHARS:
                    yield Clause(mark, kind, clause, run, place, here)
                    place += 1


def _own_text(source: SourceLine) -> str:
    """A record's words without the label that its verbatim leaf has."""
    label = f"{source.kind}: "
    return source.text.removeprefix(label)


def source_clauses(source: SourceLine, first_run: int) -> list[Clause]:
    """
    The clauses of one source, its runs numbered from ``first_run``.

    A summary is read by its own labels, so that every clause keeps its author and its marks; a record has one author.
    """
    mark = f"{STAND_IN_MARK} " if source.stand_in else ""
    if source.kind != "summary":
        return list(record_clauses(source.kind, _own_text(source), first_run, mark))
    clauses: list[Clause] = []
    run = first_run
    head_mark, kind = mark, ""
    lines = source.text.split("\n")
    for line in (part for whole in lines for part in (_MID_LABEL.split(whole) if ": " in whole else [whole])):
        head = _HEAD.match(line)
        words = line
        if head and (head[1] or head[2]):
            own = head[1].strip()
            head_mark = f"{own} " if own else ""
            if mark and STAND_IN_MARK[:-1] not in own:
                head_mark = mark + head_mark
            kind = head[2] or ""
            words = line[head.end() :]
            run += 1
        if kind == NAMES_KIND:
            names = tuple(name for part in words.rstrip(";").split(", ") if (name := tidy(part)))
            clauses.append(Clause(head_mark, NAMES_KIND, "", run, 0, 1.0, names))
            continue
        if head_mark.startswith("[") and not words.strip():
            clauses.append(Clause(head_mark, kind, "", run, 0, 1.0))
            continue
        place = 0
        for sentence in _sentences(words.strip()):
            clause = quote_labels(tidy(sentence)).rstrip(";")
            if _is_boilerplate(clause):
                continue
            if len(clause) >= 2 and not _UNREADABLE.match(clause) and len(clause) <= CLAUSE_CHARS:
                clauses.append(Clause(head_mark, kind, clause, run, place, 1.0))
                place += 1
    return clauses


def measure(clause: Clause) -> None:
    """Fill in a clause's sizes."""
    text = clause.text
    clause.bytes_ = len(text) if text.isascii() else len(text.encode())
    # A tidied text is one safe line already, so that only markup grows.
    clause.escaped = clause.bytes_ + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
