"""
What a reply is, where it is no summary (§ 10).

Decides: whether a reply declines the task or calls a tool, though its provider did not say so in structure.
Refuses to know: what follows from that.

Both are judged by the whole reply, and not where a source reads so: a conversation about refusals or tools has
summaries that quote them, and a summary lost to suspicion is worse than a refusal that is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final, cast

_LONGEST_REFUSAL: Final = 1_000  # characters; what is longer did the task, whatever it begins with
_LONGEST_CALL: Final = 100_000  # characters that are read as JSON
_APOSTROPHES: Final = str.maketrans("\u2019\u02bc", "''")

# An apology or an "as an AI" in front; then that the speaker cannot or will not; then what it was asked to do.
_FRONT: Final = (
    r"(?:(?:(?:i'm|i am)(?: very| really| so)? sorry|sorry|(?:my )?apologies|i apologi[sz]e|unfortunately|thank you|"
    r"as an? (?:ai|language model)\b[\w -]{0,40})[,.:;! \u2013\u2014-]+(?:but |however,? )?){0,2}"
)
_CANNOT: Final = (
    r"(?:i (?:can't|can ?not|won't|will not|am unable to|am not able to|am not comfortable(?: with)?|"
    r"(?:(?:must|have to|need to) )?(?:respectfully )?(?:decline|refuse)(?: to)?|"
    r"(?:don't|do not) feel comfortable(?: with)?)|"
    r"i'm (?:unable to|not able to|not comfortable(?: with)?|going to decline))"
)
_TASK: Final = (
    r"(?: be able to| in good conscience)? ?(?:(?:help|assist|compl[yi]|provid|summari[sz]|creat|writ|generat|produc|"
    r"process|fulfil|continu|engag|discuss|answer|repeat|reproduc|respond|accommodat|participat|do (?:that|this|so)\b|"
    r"with (?:that|this)\b|(?:this|that|your) request)|[.!]|\Z)"
)
_REFUSAL: Final = re.compile(_FRONT + _CANNOT + _TASK, re.IGNORECASE)
_DECLINING: Final = re.compile(rf"\b{_CANNOT}{_TASK}", re.IGNORECASE)
_LABELLED: Final = re.compile(r"(?:\A|[\n;.]) ?(?:user|assistant|tool_call|tool_result|report|note):", re.IGNORECASE)

_CALL_TAG: Final = re.compile(
    r"<\|?(?:tool_calls?|function_calls?|tool_use|invoke|python_tag)\b|<function=|\[tool_calls\]|"
    r"<\uff5ctool",
    re.IGNORECASE,
)


def _plain(text: str) -> str:
    return " ".join(text.translate(_APOSTROPHES).split())


def declines(reply: str, texts: Iterable[str]) -> bool:
    """
    Whether a reply is nothing but a refusal ("I'm sorry, but I can't help with that"), in words that no text has.

    A reply that names an author of its parts did the task; what it quotes is its sources' business.
    """
    if len(reply) > _LONGEST_REFUSAL:
        return False
    said = _plain(reply)
    if not _REFUSAL.match(said) or _LABELLED.search(said):
        return False
    return not any(_DECLINING.search(_plain(text)) for text in texts)


def calls_tool(reply: str, texts: Iterable[str]) -> bool:
    """Whether a reply is a tool call written as text: a tag that no text has, or JSON of a call and nothing else."""
    tags = {tag.lower() for tag in _CALL_TAG.findall(reply)}
    written = _is_call(_json(reply))
    if not tags and not written:
        return False
    sources = [text.lower() for text in texts]
    return any(all(tag not in text for text in sources) for tag in tags) or (
        written and all(reply.strip().lower() not in text for text in sources)
    )


def _json(reply: str) -> object:
    text = reply.strip()
    if len(text) > _LONGEST_CALL:
        return None
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2].removesuffix("```").strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _is_call(value: object) -> bool:
    if isinstance(value, list):
        return any(isinstance(item, dict) and _is_call(cast("object", item)) for item in cast("list[object]", value))
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, object]", value)
    if "tool_calls" in fields or "function_call" in fields:
        return True
    named = isinstance(fields.get("name"), str) and any(key in fields for key in ("arguments", "parameters", "input"))
    return named or fields.get("type") in ("function", "function_call", "tool_call", "tool_use")
