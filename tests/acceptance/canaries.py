"""
Canaries: words that nothing else says, and a search for what is left of them in the files of a database.

A canary is looked for in every form in which some part of the file may hold it: as UTF-8, as the words of the index
(folded, in pairs of characters, without the beginning that they share with the word before), escaped as JSON, as a
digest. Any few characters of it in a row count as found.

The files are read by a process of their own: to close a descriptor of a database here would drop the locks of this
process's handles.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from optchat.core.summarizing import SummaryReply, SummaryRequest

SUFFIXES = ("", "-wal", "-shm", "-lock", "-journal")
_LETTERS = "bcdfghjklmnpqrtvwxz"  # without vowels nothing folds
_WORD = 20
PICTURE = "picture"  # the canary that is bytes
_LEAST = 7  # letters in a row, at every third place of the word: whatever nine in a row are left are found

# What is text in a file: words, what is not ASCII, and what JSON escapes. Each once, it is looked through in no time.
_TEXT = rb"[0-9A-Za-z]{7,}|[\x80-\xff]{4,}|(?:\\u[0-9a-f]{4})+"
_SCAN = f"""
import json, pathlib, re, sys
wanted = json.load(sys.stdin)
found = {{}}
for path in map(pathlib.Path, sys.argv[1:]):
    data = path.read_bytes() if path.exists() else b""
    text = b" ".join(set(re.findall({_TEXT!r}, data)))
    for name, in_text, anywhere in wanted:
        for place, needles in ((text, in_text), (data, anywhere)):
            for needle in map(bytes.fromhex, needles):
                if needle in place:
                    found.setdefault(name, []).append(f"{{path.name}}: {{needle!r}}")
print(json.dumps(found))
"""


@cache
def canary(name: str) -> str:
    """A word of 20 letters, the same for the same name."""
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in hashlib.sha256(name.encode()).digest()[:_WORD])


def spoken(name: str) -> str:
    """Text with the canary as a word, as parts of an identifier, in capitals and as characters without spaces."""
    word = canary(name)
    camel = f"{word[:10].capitalize()}{word[10:].capitalize()}"
    return f"{word} or {camel} or {word.upper()} or {characters(name)} \u00e9{word}"


def characters(name: str) -> str:
    """Eight rare characters of a script without spaces."""
    digest = hashlib.sha256(b"characters " + name.encode()).digest()
    return "".join(
        chr(0x20000 + int.from_bytes(digest[2 * place : 2 * place + 2], "big") % 0xA000) for place in range(8)
    )


def picture() -> bytes:
    return b"\x89PNG" + hashlib.sha512(PICTURE.encode()).digest() * 2


@cache
def text_needles(name: str) -> set[bytes]:
    """What must not be found in text: parts of each form in which the canary may be written."""
    word, signs = canary(name), characters(name)
    forms: set[bytes] = set()
    for written in (word, word.upper(), word[:10].capitalize() + word[10:].capitalize()):
        places = [*range(0, _WORD - _LEAST, 3), _WORD - _LEAST]
        forms |= {written[place : place + _LEAST].encode() for place in places}
    for place in range(len(signs) - 1):
        pair = signs[place : place + 2]
        # A word of the index leaves out what it shares with the one before: of two such characters, up to three bytes.
        forms |= {pair.encode()[3:], json.dumps(pair).strip('"').encode()}
    if name == PICTURE:
        forms.add(hashlib.sha256(picture()).hexdigest()[:12].encode())
    return forms


def byte_needles(name: str) -> set[bytes]:
    """What must not be found anywhere: parts of the picture, and its digest."""
    if name != PICTURE:
        return set()
    data = picture()
    return {hashlib.sha256(data).digest()} | {data[place : place + 16] for place in range(4, 116, 16)}


def found(path: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """The canaries of which the database's files hold something, by name, with where and what."""
    wanted = [
        (name, [each.hex() for each in text_needles(name)], [each.hex() for each in byte_needles(name)])
        for name in names
    ]
    files = [str(path.with_name(path.name + suffix)) for suffix in SUFFIXES]
    done = subprocess.run(
        [sys.executable, "-c", _SCAN, *files], input=json.dumps(wanted), check=True, capture_output=True, text=True
    )
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def told(answers: Iterable[object], names: Iterable[str]) -> set[str]:
    """The canaries of which answers say something."""
    words: set[bytes] = set()
    for said in answers:
        words.update(re.findall(_TEXT, repr(said).encode("utf-8", "surrogatepass")))
    text = b" ".join(words)
    return {name for name in names if any(needle in text for needle in text_needles(name))}


class Parrot:
    """
    A summarizer that says which canaries it met, each by another one, so that summaries are told from sources.

    ``made of NAME`` stands for one that it met in its sources, ``beside NAME`` for one in the context beside them.
    ``said``: those that it ever said.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.said: set[str] = set()

    @property
    def name(self) -> str:
        return "parrot-1"

    @property
    def window_tokens(self) -> int:
        return 65_536

    def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        room = min(request.limit_bytes, request.limit_escaped_bytes or request.limit_bytes)
        words = [request.purpose]
        for how, text in (("made of", sources_of(request)), ("beside", repr([each.text for each in request.messages]))):
            for name in self.names:
                if any(canary(each) in text for each in (name, f"made of {name}", f"beside {name}")):
                    word = canary(f"{how} {name}")
                    if word not in words and len(" ".join([*words, word])) <= room:
                        words.append(word)
                        self.said.add(f"{how} {name}")
        return SummaryReply(" ".join(words)[:room])


def sources_of(request: SummaryRequest) -> str:
    return repr([source.text for source in request.sources])
