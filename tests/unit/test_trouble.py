"""What is the provider's trouble and what a failed attempt: by the errors that SDKs and networks really raise."""

from __future__ import annotations

import errno
import json
import pickle
import socket
import ssl
import urllib.error
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.message import Message
from functools import cache
from typing import Any

import pytest

from optchat.core.errors import SummaryRejected
from optchat.core.trouble import (
    CallFailed,
    Trouble,
    TroubleKind,
    call_failed,
    described,
    is_refusal,
    pause_seconds,
    retry_seconds,
    trouble_of,
)

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
SECRET = "sk-live-0123456789 and what the user said"
URL = "https://provider.example/v1"


def kind_of(error: BaseException) -> TroubleKind | None:
    trouble = trouble_of(error, NOW)
    assert trouble is None or len(trouble.message) <= 200
    return None if trouble is None else trouble.kind


# ---- the SDKs' own errors --------------------------------------------------------------------------------------------


def sdk_error(sdk: str, status: int, body: object, headers: Mapping[str, str] | None = None) -> Exception:
    """The error that the SDK itself makes of a response."""
    http = pytest.importorskip("httpx2")
    response = http.Response(status, headers=dict(headers or {}), json=body, request=http.Request("POST", URL))
    error: Exception = client(sdk)._make_status_error_from_response(response)
    return error


@cache
def client(sdk: str) -> Any:
    made = getattr(pytest.importorskip(sdk), {"openai": "OpenAI", "anthropic": "Anthropic"}[sdk])
    return made(api_key="k", base_url=URL, http_client=pytest.importorskip("httpx2").Client(verify=False))


def openai_error(status: int, headers: Mapping[str, str] | None = None, **body: Any) -> Exception:
    return sdk_error("openai", status, {"error": {"message": SECRET, "type": "x", "param": None, **body}}, headers)


def anthropic_error(
    status: int, kind: str, message: str = SECRET, headers: Mapping[str, str] | None = None
) -> Exception:
    return sdk_error("anthropic", status, {"type": "error", "error": {"type": kind, "message": message}}, headers)


STATUSES: list[tuple[int, TroubleKind | None]] = [
    (400, None),
    (401, "authentication"),
    (402, "authentication"),
    (403, "authentication"),
    (404, None),
    (405, None),
    (408, "server"),
    (409, "server"),
    (413, None),
    (422, None),
    (429, "rate"),
    (500, "server"),
    (502, "server"),
    (503, "server"),
    (504, "server"),
    (529, "server"),
]


@pytest.mark.parametrize(("status", "kind"), STATUSES)
def test_a_status_says_whose_fault_it_is(status: int, kind: TroubleKind | None) -> None:
    assert kind_of(openai_error(status)) == kind
    assert kind_of(anthropic_error(status, "some_error")) == kind


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        ("overloaded_error", "server"),
        ("api_error", "server"),
        ("timeout_error", "server"),
        ("rate_limit_error", "rate"),
        ("authentication_error", "authentication"),
        ("permission_error", "authentication"),
        ("billing_error", "authentication"),
        ("invalid_request_error", None),
    ],
)
def test_an_error_within_a_stream_is_told_by_its_type(kind: str, trouble: TroubleKind | None) -> None:
    """Its status is 200: that of the stream."""
    assert kind_of(anthropic_error(200, kind)) == trouble


def test_an_empty_account_is_trouble_though_anthropic_says_400() -> None:
    said = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade."
    assert kind_of(anthropic_error(400, "invalid_request_error", said)) == "authentication"


def test_an_account_without_quota_is_named() -> None:
    trouble = trouble_of(openai_error(429, type="insufficient_quota", code="insufficient_quota"), NOW)
    assert trouble is not None
    assert trouble.kind == "rate"
    assert "insufficient_quota" in trouble.message


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_connections_that_fail_are_trouble(sdk: str) -> None:
    module, http = pytest.importorskip(sdk), pytest.importorskip("httpx2")
    request = http.Request("POST", URL)
    lost = module.APIConnectionError(request=request)
    lost.__cause__ = http.ConnectError("[Errno -2] Name or service not known", request=request)
    assert kind_of(lost) == "transport"
    assert kind_of(module.APITimeoutError(request=request)) == "transport"
    trouble = trouble_of(lost, NOW)
    assert trouble is not None
    assert "APIConnectionError (ConnectError)" in trouble.message


@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_reply_that_cannot_be_decoded_is_a_failed_attempt(sdk: str) -> None:
    """The SDK wraps what was wrong with the bytes as if the connection had been lost."""
    module, http = pytest.importorskip(sdk), pytest.importorskip("httpx2")
    request = http.Request("POST", URL)
    wrapped = module.APIConnectionError(request=request)
    wrapped.__cause__ = http.DecodingError("bad gzip", request=request)
    assert kind_of(wrapped) is None
    response = http.Response(200, text="<html>", request=request)
    assert kind_of(module.APIResponseValidationError(response=response, body="<html>")) is None


def test_a_missing_key_is_trouble() -> None:
    openai = pytest.importorskip("openai")
    assert kind_of(openai.OpenAIError("Missing credentials.")) == "authentication"
    assert kind_of(TypeError('"Could not resolve authentication method. Expected …"')) == "authentication"
    assert kind_of(TypeError("unsupported operand")) is None


@pytest.mark.parametrize(
    "name",
    [
        "ConnectError", "ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout", "ReadError", "WriteError",
        "CloseError", "RemoteProtocolError", "LocalProtocolError", "ProxyError", "UnsupportedProtocol",
    ],
)  # fmt: skip
def test_errors_of_the_http_client_itself(name: str) -> None:
    """A stream that breaks off raises them as they are."""
    http = pytest.importorskip("httpx2")
    assert kind_of(getattr(http, name)(SECRET)) == "transport"
    assert kind_of(http.DecodingError(SECRET)) is None


# ---- errors of other libraries, by their shape -----------------------------------------------------------------------


def made_by(package: str, name: str, *bases: type[Exception]) -> type[Exception]:
    return type(name, bases or (Exception,), {"__module__": f"{package}.exceptions"})


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("httpx", "TransportError"), ("requests", "ConnectionError"), ("requests", "Timeout"),
        ("requests", "ChunkedEncodingError"),
        ("urllib3", "MaxRetryError"), ("urllib3", "ProtocolError"), ("aiohttp", "ClientConnectionError"),
        ("aiohttp", "ClientPayloadError"), ("httpcore", "NetworkError"), ("anyio", "BrokenResourceError"),
    ],
)  # fmt: skip
def test_transport_errors_of_libraries_that_nobody_imports(package: str, name: str) -> None:
    root = made_by(package, name)
    assert kind_of(root("x")) == "transport"
    assert kind_of(made_by(package, "SomeSubclass", root)("x")) == "transport"
    assert kind_of(made_by("elsewhere", name)("x")) is None


class Answered(Exception):
    def __init__(self, **fields: Any) -> None:
        super().__init__(SECRET)
        vars(self).update(fields)


@pytest.mark.parametrize("field", ["status_code", "status", "code"])
def test_a_status_is_found_under_each_name(field: str) -> None:
    assert kind_of(Answered(**{field: 503})) == "server"
    assert kind_of(Answered(**{field: 404})) is None
    assert kind_of(Answered(**{field: True})) is None
    assert kind_of(Answered(**{field: "503"})) is None


def test_a_status_of_the_response_counts() -> None:
    assert kind_of(Answered(response=Answered(status_code=429))) == "rate"


def test_the_standard_librarys_http_errors() -> None:
    error = urllib.error.HTTPError(URL, 503, SECRET, Message(), None)
    assert kind_of(error) == "server"
    error.close()
    assert kind_of(urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))) == "transport"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("lost"),
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        BrokenPipeError(errno.EPIPE, "pipe"),
        TimeoutError("timed out"),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLError(1, "handshake failure"),
        ssl.SSLCertVerificationError(1, "certificate verify failed"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_sockets(error: Exception) -> None:
    assert kind_of(error) == "transport"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        KeyError("choices"),
        RuntimeError("bug"),
        FileNotFoundError(errno.ENOENT, "no file"),
        PermissionError(errno.EACCES, "no"),
        OSError(errno.ENOSPC, "full"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        json.JSONDecodeError("Expecting value", "<html>", 0),
        SummaryRejected("no summary; use another", refused=True),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_everything_else_is_a_failed_attempt(error: BaseException) -> None:
    assert kind_of(error) is None


def test_what_an_error_was_raised_from_counts_where_it_says_nothing_itself() -> None:
    wrapper = RuntimeError("the chain failed")
    wrapper.__cause__ = ConnectionResetError("reset")
    assert kind_of(wrapper) == "transport"
    answered = Answered(status_code=422)
    answered.__cause__ = ConnectionResetError("of an earlier try")
    assert kind_of(answered) is None
    assert kind_of(ExceptionGroup("tasks", [ValueError("x"), Answered(status_code=429)])) == "rate"


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert kind_of(first) is None


def test_an_error_may_say_for_itself() -> None:
    own = Trouble("rate", "the local model is busy; wait", 3.0)
    assert trouble_of(Answered(trouble=own, status_code=400), NOW) == own
    assert kind_of(Answered(trouble="busy")) is None


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_refusals_are_no_trouble() -> None:
    filtered = openai_error(400, code="content_filter", innererror={"code": "ResponsibleAIPolicyViolation"})
    flagged = openai_error(400, code="invalid_prompt")
    moderated = openai_error(403, code=403, metadata={"reasons": ["x"], "flagged_input": SECRET})
    blocked = anthropic_error(400, "invalid_request_error", "Output blocked by content filtering policy")
    in_stream = anthropic_error(200, "invalid_request_error", "Output blocked by content filtering policy")
    for error in (filtered, flagged, moderated, blocked, in_stream):
        assert is_refusal(error)
        assert kind_of(error) is None
    assert not is_refusal(openai_error(400))
    assert not is_refusal(openai_error(403))
    assert not is_refusal(ValueError("content_filter"))


# ---- Retry-After -----------------------------------------------------------------------------------------------------

DATE = (NOW + timedelta(seconds=90)).strftime("%a, %d %b %Y %H:%M:%S GMT")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "7.5"}, 7.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": DATE}, 90.0),
        ({"retry-after": "Mon, 05 Jan 2026 08:00:00 GMT"}, 0.0),
        ({"retry-after": "86400"}, 86_400.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
)
def test_what_the_provider_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    for error in (
        openai_error(429, headers),
        anthropic_error(529, "overloaded_error", headers=headers),
        Answered(status=429, headers=headers),
        Answered(response=Answered(status_code=429, headers=headers)),
    ):
        trouble = trouble_of(error, NOW)
        assert trouble is not None
        assert trouble.retry_after_seconds == seconds


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_nothing_of_a_body_or_a_message_is_repeated() -> None:
    for error in (
        openai_error(401),
        openai_error(429, code=SECRET, type=SECRET),
        anthropic_error(500, SECRET),
        ConnectionError(SECRET),
        made_by("requests", "ConnectionError")(SECRET),
    ):
        trouble = trouble_of(error, NOW)
        assert trouble is not None
        assert SECRET not in trouble.message
        assert "; " in trouble.message  # and then what to do
    for error in (openai_error(400), ValueError(SECRET), Answered(status_code=404)):
        assert SECRET not in described(error)
        assert SECRET not in str(call_failed(error, NOW))


def test_an_endless_name_is_cut() -> None:
    assert kind_of(made_by("x", "E" * 10_000, ConnectionError)("x")) == "transport"
    assert len(described(made_by("x", "E" * 10_000)("x"))) < 200


def test_class_status_and_known_code_are_said() -> None:
    assert described(openai_error(404, code="model_not_found")) == "NotFoundError, status 404, model_not_found"
    assert described(ValueError(SECRET)) == "ValueError"
    assert described(SummaryRejected("too long; write less")) == "SummaryRejected: too long; write less"


def test_a_call_that_failed_keeps_what_was_known() -> None:
    told = call_failed(openai_error(429, {"retry-after": "4"}), NOW)
    assert told.trouble == trouble_of(told, NOW) == Trouble("rate", str(told), 4.0)
    assert told.status_code == 429
    plain = call_failed(openai_error(404), NOW)
    assert (plain.trouble, plain.status_code, trouble_of(plain, NOW)) == (None, 404, None)
    assert "base_url" in str(plain)
    again = pickle.loads(pickle.dumps(told))
    assert (str(again), vars(again)) == (str(told), vars(told))
    assert str(CallFailed("x")) == "x"


# ---- how long --------------------------------------------------------------------------------------------------------

CHANCES = [0.0, 0.25, 0.5, 0.999999]


@pytest.mark.parametrize("chance", CHANCES)
def test_pauses_grow_within_their_bounds(chance: float) -> None:
    pauses = [pause_seconds(failures, None, chance) for failures in range(1, 40)]
    assert pauses == sorted(pauses)
    assert all(1.0 <= pause <= 300.0 for pause in pauses)
    assert pauses[0] < 3.0
    assert pauses[-1] >= 150.0
    assert pause_seconds(0, None, chance) == pauses[0]
    assert pause_seconds(10**9, None, chance) == pauses[-1]


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("asked", [0.0, 0.5, 30.0, 1_000.0, 3_600.0, 1e9])
def test_a_pause_is_never_shorter_than_asked_for(asked: float, chance: float) -> None:
    for failures in (1, 5, 50):
        pause = pause_seconds(failures, asked, chance)
        assert pause >= min(asked, 3_600.0)
        assert pause >= pause_seconds(failures, None, chance)
        assert pause <= 3_600.0


def test_processes_that_paused_together_come_back_apart() -> None:
    assert pause_seconds(5, None, 0.1) != pause_seconds(5, None, 0.9)
    assert pause_seconds(1, 60.0, 0.1) != pause_seconds(1, 60.0, 0.9)


@pytest.mark.parametrize("chance", CHANCES)
def test_a_jobs_wait_grows_to_a_minute(chance: float) -> None:
    waits = [retry_seconds(attempts, chance) for attempts in range(30)]
    assert waits == sorted(waits)
    assert 0 < waits[0] < 1.0
    assert 30.0 <= waits[-1] <= 60.0
    assert retry_seconds(-1, chance) == waits[0]
