"""
What a query means (§ 8).

Decides: how query text is read, and which of its words count in which order.
Refuses to know: the index and its syntax, ranking (:mod:`optchat.core.ranking`), excerpts
(:mod:`optchat.core.excerpts`).

A query is words and ``"phrases"``, nothing else: whatever a user types is only ever split into words of the index, so
no operator, quote or column name can reach the index's own syntax. A word with inner punctuation or capitals
(``gpt-4o``, ``a/b``, ``camelCase``) is a phrase of its parts besides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, get_args

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.retrieval import Order
from optchat.core.terms import HitKind
from optchat.core.words import RUN, Phrase, normalized, phrases_of, run_words

MAX_CHARACTERS: Final = 512
MAX_WORDS: Final = 32
MAX_SCORED_WORDS: Final = 64  # a query in a script without spaces is many pairs: the first ones are ranked by
MAX_LIMIT: Final = 50

# English words that say nothing of a subject. In other languages frequency alone decides: that costs time, not answers.
STOP_WORDS: Final = frozenset(
    """
    a about after again all also am an and any are as at be been before being both but by can could did do does doing
    done down each ever few for from get gets got had has have having he her here hers him his how i if in into is it
    its just me might more most must my no nor not now of off on once one only or other our out over own same shall she
    should so some still such than that the their them then there these they this those through to too under until up
    upon us very was we were what when where whether which while who whom whose why will with would yet you your
    aren couldn didn doesn don hadn hasn haven isn mustn shouldn wasn weren won wouldn
    """.split()  # noqa: SIM905 - a word list reads as one
)
_QUOTED: Final = re.compile(r'["“”„«»]([^"“”„«»]*)["“”„«»]|([^\s"“”„«»]+)')


@frozen
class Term:
    """
    One thing that was typed: a word, or a phrase.

    ``spellings``: the ways it may stand in the index; any of them is it. ``words``: its parts, each a word on its own
    where any word may match. ``quoted``: the user asked for exactly this phrase. ``stop``: it says nothing of a
    subject.
    """

    text: str
    spellings: tuple[Phrase, ...]
    words: tuple[Phrase, ...]
    quoted: bool = False
    stop: bool = False

    @property
    def is_phrase(self) -> bool:
        return self.quoted or len(self.spellings) > 1 or any(len(one.words) > 1 for one in self.spellings)


@frozen
class Query:
    """A query as read. ``terms`` is never empty."""

    terms: tuple[Term, ...]

    @property
    def telling(self) -> tuple[Term, ...]:
        """The terms that ``order="best"`` goes by: stop words fall away, unless there is nothing else."""
        return tuple(term for term in self.terms if not term.stop) or self.terms

    @property
    def words(self) -> tuple[Phrase, ...]:
        """The single words that ``order="best"`` ranks by, each once."""
        return tuple(dict.fromkeys(word for term in self.telling for word in term.words))[:MAX_SCORED_WORDS]

    @property
    def phrases(self) -> tuple[Term, ...]:
        """The telling terms that are phrases."""
        return tuple(term for term in self.telling if term.is_phrase)

    def leads(self, term: Term) -> bool:
        """
        Whether documents with this phrase come before all others: the user quoted it, or typed phrases only.

        In a question of many words an identifier among them only counts more: what answers often names the thing by its
        words, and putting the identifier first lost evidence (docs/decisions/0007-search-ranks-what-words-say.md).
        """
        return term.quoted or all(one.is_phrase for one in self.telling)


def read_query(text: str) -> Query:
    """
    Read what a user or a model typed.

    Raises:
        BadArgument: not text, longer than 512 characters or 32 words, or without any word. Nothing else.
    """
    if not isinstance(text, str):
        raise BadArgument(f"a query is text, not {type(text).__name__}; pass the words to look for")
    if len(text) > MAX_CHARACTERS:
        raise BadArgument(
            f"the query has {len(text)} characters, at most {MAX_CHARACTERS} are read; keep the words that matter"
        )
    terms: dict[tuple[bool, tuple[Phrase, ...]], Term] = {}
    count = 0
    for quoted, word in _QUOTED.findall(normalized(text)):
        typed = quoted or word
        spellings = phrases_of(typed)
        if not spellings:
            continue
        count += len(typed.split())
        terms.setdefault((bool(quoted), spellings), _term(typed.strip(), spellings, bool(quoted)))
    if count > MAX_WORDS:
        raise BadArgument(f"the query has {count} words, at most {MAX_WORDS} are read; keep the words that matter")
    if not terms:
        raise BadArgument("the query holds no word; name a word, a number or an identifier to look for")
    return Query(tuple(terms.values()))


def _term(typed: str, spellings: tuple[Phrase, ...], quoted: bool) -> Term:
    runs = RUN.findall(typed)
    plain = not quoted and len(runs) == 1
    words: list[Phrase] = []
    for run in runs:
        if not plain and run.casefold() in STOP_WORDS and len(runs) > 1:
            continue  # the phrase keeps it; alone it would draw in everything
        own = phrases_of(run)[0]
        last = len(own.words) - 1
        words += [Phrase((word,), own.open_end and place == last) for place, word in enumerate(own.words)]
    if not words:
        words = [Phrase((word,)) for run in runs for word in run_words(run)]
    return Term(
        text=typed,
        spellings=spellings,
        words=tuple(dict.fromkeys(words)),
        quoted=quoted,
        stop=plain and re.sub(r"['’].*", "", runs[0]).casefold() in STOP_WORDS,
    )


def check_limit(limit: int) -> int:
    """The limit, if it is one that search takes; BadArgument otherwise."""
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise BadArgument(f"limit is {limit!r}; give a whole number from 1 to {MAX_LIMIT} and read on by cursor")
    return limit


def check_order(order: Order) -> Order:
    """The order, if it is one; BadArgument otherwise."""
    if order not in get_args(Order):
        raise BadArgument(f"unknown order {order!r}; use 'best' or 'newest'")
    return order


def check_kind(kind: HitKind | None) -> HitKind | None:
    """The kind, if it is one; BadArgument otherwise."""
    if kind is not None and kind not in get_args(HitKind):
        raise BadArgument(f"unknown kind {kind!r}; use one of {', '.join(get_args(HitKind))}")
    return kind


def words_counted(terms: Iterable[Term], counts: Iterable[int]) -> dict[str, int]:
    """How often each term of a query that matched nothing stands in what may be seen, by the term as typed."""
    found: dict[str, int] = {}
    for term, count in zip(terms, counts, strict=True):
        found.setdefault(term.text, count)
    return found
