"""
Write src/optchat/core/lexicon.py: what the upper-bound tokenizer knows of the vocabularies it must not undercount.

It needs tiktoken with both vocabulary files present (``TIKTOKEN_CACHE_DIR``). Run it only to change the lexicon, and
give the tokenizer a new name when you do: its name is the key of stored counts.

    TIKTOKEN_CACHE_DIR=... python tools/make_lexicon.py > src/optchat/core/lexicon.py
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict

import tiktoken

WORDS = 6000  # 4,000 give 1.5 times the true count on English, 14,000 give 1.15, at 30 or 80 KB of source
RUNS = 400
UNFIT = re.compile(rb"porn|sex|fuck")  # what nobody wants to find in a source file
FORMS = ("{}", " {}", "{c}", " {c}", "{u}", " {u}")  # bit n of a word's mask: this form is one token
HEAD = '''"""
What single tokens of cl100k_base and o200k_base the upper-bound tokenizer knows. Written by tools/make_lexicon.py.

Decides: nothing; it is a table. Only what is one token in both vocabularies is in it.
"""

from typing import Final
'''


def forms(word: str) -> list[str]:
    return [form.format(word, c=word.capitalize(), u=word.upper()) for form in FORMS]


def ranges(numbers: list[int]) -> str:
    """Numbers in hexadecimal, runs as ``first-last``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in runs)


def emit(name: str, text: str) -> None:
    lines = textwrap.wrap(text, 116, break_long_words=False, break_on_hyphens=False)
    print(f'\n{name}: Final = """\\\n' + " \\\n".join(lines) + '"""')


def main() -> None:
    encodings = [tiktoken.get_encoding(name) for name in ("cl100k_base", "o200k_base")]
    vocabularies = [{e.decode_single_token_bytes(n): n for n in e._mergeable_ranks.values()} for e in encodings]
    rank = {token: vocabularies[0][token] for token in vocabularies[0].keys() & vocabularies[1].keys()}

    best: dict[str, int] = {}
    for token, number in rank.items():
        match = re.fullmatch(rb" ?([A-Za-z][a-z]+|[A-Z]{2,})", token)
        if match and not UNFIT.search(match[1].lower()):
            word = match[1].decode().lower()
            best[word] = min(number, best.get(word, number))
    masks: defaultdict[int, list[str]] = defaultdict(list)
    for word in sorted(best, key=best.__getitem__)[:WORDS]:
        masks[sum(1 << bit for bit, form in enumerate(forms(word)) if form.encode() in rank)].append(word)
    run = re.compile(rb" ?[!-/:-@\[-`{-~]+\n?")
    runs = [t.decode() for t in sorted(rank, key=rank.__getitem__) if len(t) > 1 and run.fullmatch(t)][:RUNS]

    worst: dict[int, int] = {}
    for number in range(0x80, 0x20000):
        if not 0xD800 <= number < 0xE000:
            worst[number] = max(len(e.encode_ordinary(chr(number))) for e in encodings)
    blocks: defaultdict[int, int] = defaultdict(int)
    for number, tokens in worst.items():
        blocks[number >> 6] = max(blocks[number >> 6], tokens)

    print(HEAD)
    print("# Lowercase words by mask. Bit n of a mask says that form n is one token: the word alone and after a space,")
    print("# then the same for its capitalised and its uppercase form.")
    print("WORDS: Final[dict[int, str]] = {")
    for mask, words in sorted(masks.items(), key=lambda item: -len(item[1])):
        lines = textwrap.wrap(" ".join(words), 112)
        print(f'    {mask}: """\\\n' + " \\\n".join(lines) + '""",')
    print("}")
    print("\n# Runs of punctuation, some after a space, some with the line feed that ends them.")
    print("# fmt: off\nRUNS: Final[tuple[str, ...]] = (")
    line = "   "
    for text in runs:
        shown = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '",'
        if len(line) + len(shown) > 118:
            print(line)
            line = "   "
        line += " " + shown
    print(line + "\n)\n# fmt: on")
    print("\n# Code points that are one token each. Below: blocks of 64 code points (named by what stands before their")
    print("# last six bits) of which none takes more than two tokens, and more than three.", end="")
    emit("ONE", ranges([n for n, tokens in worst.items() if tokens == 1]))
    emit("TWO", ranges([b for b, tokens in blocks.items() if 0x20 <= b < 0x400 and tokens <= 2]))
    emit("THREE", ranges([b for b, tokens in blocks.items() if b >= 0x400 and tokens <= 3]))


if __name__ == "__main__":
    main()
