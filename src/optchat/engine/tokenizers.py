"""
Which tokenizer counts for a model (§ 7).

Decides: exact counts where the encoding is at hand, the upper bound elsewhere.
Refuses to know: budgets. It never reaches the network: tiktoken is asked only for an encoding whose vocabulary file is
here, whole, since it would download any other one, and delete and download a damaged one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from optchat.core.errors import BadArgument
from optchat.core.ports import Tokenizer
from optchat.core.render import encodable
from optchat.core.tokens import UpperBoundTokenizer

_LOG: Final = logging.getLogger("optchat")

# tiktoken's names for its files (SHA-1 of where it gets them) and their SHA-256. Two encodings share another's
# vocabulary.
_FILES: Final = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "p50k_base": (
        "ec7223a39ce59f226a68acc30dc1af2788490e15",
        "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    ),
    "r50k_base": (
        "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    ),
}
_VOCABULARY: Final = {"o200k_harmony": "o200k_base", "p50k_edit": "p50k_base"}
_TOKTOK: Final = frozenset({"cl100k_base", "o200k_base", "o200k_harmony"})


@frozen
class _Toktok:
    name: str
    _batch_count: Any

    def count(self, text: str, /) -> int:
        # One thread: counts are small, and callers have threads of their own.
        return int(self._batch_count([encodable(text)], self.name, threads=1)[0])


@frozen
class _Tiktoken:
    name: str
    _encoding: Any

    def count(self, text: str, /) -> int:
        return len(self._encoding.encode_ordinary(encodable(text)))


def tokenizer_for(model: str | None = None) -> Tokenizer:
    """
    The best tokenizer at hand for a model.

    Exact for a model that ``optchat[offline]``, or tiktoken with its file present, knows; else (and for None) the upper
    bound, said once in the log. Never downloads.
    """
    if model is None:
        _say("token counts are an upper bound, since no model is named; tokenizer_for('<model>') can be exact")
        return UpperBoundTokenizer()
    encoding = _encoding_name(model)
    if encoding is None:
        _say(f"token counts for {model!r} are an upper bound: its encoding is unknown; pass a tokenizer to be exact")
        return UpperBoundTokenizer()
    exact = _exact(encoding)
    if exact is None:
        _say(f"token counts for {model!r} are an upper bound; install optchat[offline] to be exact")
        return UpperBoundTokenizer()
    return exact


def count_things(*things: object, tokenizer: Tokenizer) -> int:
    """
    The tokens of what is sent besides the messages: text as it is, anything else as ``json.dumps`` writes it.

    Raises:
        BadArgument: something that is no JSON. A pydantic object is none: give its ``model_dump()``.
    """
    return sum(tokenizer.count(thing if isinstance(thing, str) else _json(thing)) for thing in things)


def _json(thing: object) -> str:
    try:
        return json.dumps(thing, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(
            f"a {type(thing).__name__} cannot be counted ({error}); give text, or what json.dumps takes: model_dump()"
        ) from None


def _encoding_name(model: str) -> str | None:
    from tiktoken.model import encoding_name_for_model  # here, as it takes longer to import than all of optchat

    try:
        return encoding_name_for_model(model)
    except KeyError:
        return None


@cache
def _exact(encoding: str) -> Tokenizer | None:
    # One name for both: they count the same, so stored counts serve either.
    if encoding in _TOKTOK:
        try:
            toktok = importlib.import_module("toktok")  # by name: it ships no types
        except ImportError:
            pass
        else:
            return _Toktok(encoding, toktok.batch_count)
    if not _vocabulary_present(encoding):
        return None
    import tiktoken

    return _Tiktoken(encoding, tiktoken.get_encoding(encoding))


def _vocabulary_present(encoding: str) -> bool:
    """Whether tiktoken would find this encoding's file without a download; its own search order."""
    file = _FILES.get(_VOCABULARY.get(encoding, encoding))
    if file is None:
        return False
    name, sha256 = file
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder == "":  # to tiktoken: keep no files, so download each time
        return False
    path = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"), name)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


@cache
def _say(message: str) -> None:
    _LOG.info("%s", message)
