"""
Trouble with a provider, told from an attempt that failed (§ 10).

Decides: which errors of a call are the provider's or the network's, so that compaction pauses and no job loses an
attempt; which say that the provider will not handle a content; how long a pause lasts, and a job's own wait; and what
may be said of an error.
Refuses to know: the SDKs (an error is told by its class's name, its status and its headers), the time of day, chance,
and who pauses.

What is said of an error never comes from a response's body or from another's message: those may hold content, and have
held keys. A class's name, a status and a few known codes are all that is used.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, TypeAlias, cast

from attrs import frozen

from optchat.core.errors import JobError, OptchatError

TroubleKind: TypeAlias = Literal["authentication", "rate", "transport", "server"]

MOST_MESSAGE_CHARACTERS: Final = 200
LEAST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 300.0
MOST_RETRY_AFTER_SECONDS: Final = (
    3600.0  # a server that says more is wrong, or out of order for longer than anyone waits
)
MOST_RETRY_SECONDS: Final = 60.0


@frozen
class Trouble:
    """
    Why no call can be made now; ``message`` names the error's class and status, never its text.

    An exception that carries one as its attribute ``trouble`` is believed: so a summarizer says for itself what its
    error is.
    """

    kind: TroubleKind
    message: str
    retry_after_seconds: float | None = None  # as the provider asks; None: it asks for nothing


class CallFailed(JobError):
    """
    A call of a provider that gave no reply: by class, status and code, without a word of the provider's text.

    ``trouble`` is set where the provider or the network is to blame; else the attempt failed.
    """

    code = "CALL_FAILED"
    retryable = True

    def __init__(self, message: str = "", *, trouble: Trouble | None = None, status_code: int | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.status_code = status_code


# ---- what an error is ------------------------------------------------------------------------------------------------

_BY_STATUS: Final[dict[int, TroubleKind]] = {
    401: "authentication",
    402: "authentication",  # no credit left: like a key that may not, it needs a person
    403: "authentication",
    407: "authentication",
    408: "server",
    409: "server",  # both SDKs know it as a lock that was not had in time
    425: "server",
    429: "rate",
    499: "server",
}
# A stream that has begun has its status, 200, already: an error within it is told by its type or code alone.
_BY_WORD: Final[dict[str, TroubleKind]] = {
    "authentication_error": "authentication",
    "permission_error": "authentication",
    "billing_error": "authentication",
    "organization_on_hold": "authentication",
    "invalid_api_key": "authentication",
    "rate_limit_error": "rate",
    "rate_limit_exceeded": "rate",
    "insufficient_quota": "rate",
    "overloaded_error": "server",
    "api_error": "server",
    "timeout_error": "server",
    "server_error": "server",
}
# The one billing error that has neither a status nor a code of its own: a 400 like a request that is wrong. Taken for
# a failed attempt it would turn a history into stand-ins while an account is empty.
_EMPTY_ACCOUNT: Final = "credit balance is too low"
_WITHOUT_KEY: Final = "Could not resolve authentication method"  # a TypeError, before anything is sent

_REFUSALS: Final = frozenset(
    {"content_filter", "content_policy_violation", "invalid_prompt", "ResponsibleAIPolicyViolation"}
)
_FILTERED: Final = "content filtering policy"  # a 400 without a code, or an error within a stream

_SDKS: Final = ("openai", "anthropic")
_HTTPX: Final = ("httpx", "httpx2")
_HTTPCORE: Final = ("httpcore", "httpcore2")
# By the package of the class and its name, along the MRO: the roots of each library's transport errors.
_TRANSPORT: Final[frozenset[tuple[str, str]]] = frozenset(
    [
        *((package, "APIConnectionError") for package in _SDKS),
        *((package, "TransportError") for package in _HTTPX),
        *(
            (package, name)
            for package in _HTTPCORE
            for name in ("NetworkError", "TimeoutException", "ProtocolError", "ProxyError", "UnsupportedProtocol")
        ),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "MaxRetryError"),
        ("urllib3", "SSLError"),
        ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"),
        ("http", "IncompleteRead"),
        ("urllib", "URLError"),
        ("ssl", "SSLError"),
        ("socket", "gaierror"),
        ("socket", "herror"),
        ("anyio", "BrokenResourceError"),
        ("anyio", "ConnectionFailed"),
    ]
)
# A wrapped error that was no trouble of the transport: the bytes came, and were none that could be read.
_UNREADABLE: Final = frozenset({"DecodingError", "TooManyRedirects", "ContentDecodingError"})
_CREDENTIALS: Final[frozenset[tuple[str, str]]] = frozenset(
    [("openai", "SubjectTokenProviderError"), ("anthropic", "CredentialsError")]
)
_NETWORK_ERRNO: Final = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EADDRNOTAVAIL,
        errno.ENOTCONN,
        errno.ENOBUFS,
    }
)
_MOST_CAUSES: Final = 8


def trouble_of(error: BaseException, now: datetime) -> Trouble | None:
    """
    The trouble that an error tells of, or None: then the attempt failed, and a job has so many.

    A status of 400, 404, 413 or 422 is a failed attempt, and so is a refusal, and a reply that cannot be read.

    Args:
        now: what a date in a Retry-After header is measured from.
    """
    for each in _with_causes(error):
        told = getattr(each, "trouble", None)
        if isinstance(told, Trouble):
            return told
        if is_refusal(each) or _is_unreadable(each):
            return None
        kind = _kind(each)
        if kind is not None:
            return Trouble(kind, _message(each, _ADVICE[kind]), _retry_after_seconds(each, now))
        if status_of(each) is not None:
            return None  # it was answered: what was tried before has nothing to do with it
    return None


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that the provider will not handle this content: asking again gives the same answer."""
    body = _body(error)
    words = _words(error) | _words_of(_mapping(body.get("innererror")))
    return bool(
        words & _REFUSALS
        or _FILTERED in str(body.get("message", ""))
        or "flagged_input" in _mapping(body.get("metadata"))  # a moderator's 403, about one text
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error carries, under whichever name."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return value
    return None


def described(error: BaseException) -> str:
    """
    What may be said of an error, of a failed attempt too: its class, its status and a known code.

    This library's own errors hold no content, and speak for themselves.
    """
    if isinstance(error, OptchatError):
        return f"{type(error).__name__}: {error}"
    return _message(error, "")


def call_failed(error: Exception, now: datetime) -> CallFailed:
    """An SDK's error without the provider's text and the request that it carries."""
    trouble = trouble_of(error, now)
    status = status_of(error)
    if trouble is not None:
        return CallFailed(trouble.message, trouble=trouble, status_code=status)
    advice = _FAILED_ADVICE.get(status or 0, "it is tried again; look at the provider's own log if it stays")
    return CallFailed(_message(error, advice), status_code=status)


# ---- how long --------------------------------------------------------------------------------------------------------


def pause_seconds(failures: int, retry_after_seconds: float | None, chance: float) -> float:
    """
    How long compaction pauses after trouble: about twice as long each time, never less than the provider asked for.

    Args:
        failures: how often in a row, this one included.
        retry_after_seconds: what the provider asked for; at most an hour of it is believed.
        chance: a number in [0, 1), so that processes that paused together do not come back together.
    """
    ceiling = min(MOST_PAUSE_SECONDS, 2.0 ** min(max(failures, 1), 32))
    pause = ceiling / 2 * (1 + chance)
    if retry_after_seconds is not None:
        asked = min(max(retry_after_seconds, 0.0), MOST_RETRY_AFTER_SECONDS)
        pause = max(pause, min(asked * (1 + chance / 10), MOST_RETRY_AFTER_SECONDS))
    return max(pause, LEAST_PAUSE_SECONDS)


def retry_seconds(attempts: int, chance: float) -> float:
    """
    How long a job waits after an attempt that failed: about twice as long each time, at most a minute.

    Args:
        attempts: how many failed before this one.
        chance: a number in [0, 1).
    """
    return min(MOST_RETRY_SECONDS, 0.5 * 2.0 ** min(max(attempts, 0), 32)) / 2 * (1 + chance)


# ---- reading an error ------------------------------------------------------------------------------------------------

_ADVICE: Final[dict[TroubleKind, str]] = {
    "authentication": "check the key, what it may use, and the account's credit",
    "rate": "compaction goes on by itself; a higher limit or fewer workers help",
    "transport": "compaction goes on by itself; check the network and base_url",
    "server": "compaction goes on by itself",
}
_FAILED_ADVICE: Final[dict[int, str]] = {
    400: "the provider takes no such request; check the model and its settings",
    404: "check the model's name and base_url",
    405: "check base_url",
    413: "the request is too large; give a smaller window_tokens",
    422: "the provider takes no such request; check the model and its settings",
}
_KNOWN_WORDS: Final = (*_BY_WORD, *sorted(_REFUSALS), "model_not_found", "context_length_exceeded")


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, the members of a group, and what each was raised from: a wrapper's own class often says nothing."""
    waiting, seen = [error], 0
    while waiting and seen < _MOST_CAUSES:
        each = waiting.pop(0)
        seen += 1
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", each).exceptions)
        if each.__cause__ is not None:
            waiting.append(each.__cause__)


def _names(error: BaseException) -> frozenset[tuple[str, str]]:
    return frozenset((cls.__module__.partition(".")[0], cls.__name__) for cls in type(error).__mro__)


def _is_unreadable(error: BaseException) -> bool:
    return any(
        cls.__name__ in _UNREADABLE
        for each in (error, error.__cause__)
        if each is not None and status_of(each) is None
        for cls in type(each).__mro__
    )


def _kind(error: BaseException) -> TroubleKind | None:
    status, words = status_of(error), _words(error)
    if status is None or status < 300:
        for word, kind in _BY_WORD.items():
            if word in words:
                return kind
        return _kind_of_class(error) if status is None else None
    if status >= 500:
        return "server"
    if _EMPTY_ACCOUNT in str(_body(error).get("message", "")) or "organization_on_hold" in words:
        return "authentication"
    return _BY_STATUS.get(status)


def _kind_of_class(error: BaseException) -> TroubleKind | None:
    names = _names(error)
    root = type(error)
    if names & _CREDENTIALS or (root.__name__ == "OpenAIError" and root.__module__.startswith("openai")):
        return "authentication"  # raised as it is, the root class says that no credentials were found
    if isinstance(error, TypeError) and _WITHOUT_KEY in str(error):
        return "authentication"
    if names & _TRANSPORT or isinstance(error, (ConnectionError, TimeoutError)):
        return "transport"
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNO:
        return "transport"
    return None


def _body(error: BaseException) -> Mapping[str, Any]:
    """The provider's error object: OpenAI's SDK hands it out bare, Anthropic's in its envelope."""
    told = _mapping(getattr(error, "body", None))
    return _mapping(told.get("error")) or told


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _words(error: BaseException) -> set[str]:
    own = (getattr(error, "type", None), getattr(error, "code", None))
    return {word for word in own if isinstance(word, str)} | _words_of(_body(error))


def _words_of(body: Mapping[str, Any]) -> set[str]:
    return {word for word in (body.get("type"), body.get("code")) if isinstance(word, str)}


def _message(error: BaseException, advice: str) -> str:
    """Class, status and known code. A class's name is its author's, so its length is not ours to trust."""
    text = type(error).__name__[:60]
    status = status_of(error)
    if status is not None:
        text += f", status {status}"
    words = _words(error)
    known = next((word for word in _KNOWN_WORDS if word in words), None)
    if known is not None:
        text += f", {known}"
    cause = error.__cause__
    if status is None and cause is not None:
        text += f" ({type(cause).__name__[:40]})"
    return f"{text}; {advice}"[:MOST_MESSAGE_CHARACTERS] if advice else text


def _retry_after_seconds(error: BaseException, now: datetime) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        headers = getattr(error, "headers", None)
    if headers is None or not hasattr(headers, "get"):
        return None
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        value = headers.get("Retry-After")  # a plain dict tells small letters from capitals
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        at = parsedate_to_datetime(str(value))
    except (TypeError, ValueError):
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


def _number(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, (str, int, float)) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
