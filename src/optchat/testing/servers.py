"""
Fake providers on loopback: OpenAI's and Anthropic's wire formats, answering by script.

Decides: how each provider says what a script (:mod:`optchat.testing.replies`) has: its bodies, its errors, its usage
figures, its streams.
Refuses to know: summaries. A host that is to be tested talks to these servers as well.

::

    with FakeOpenAI([replies.rate_limit(2), replies.answer("user: asked for a queue")]) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="none")
        ...
        server.requests, server.usage

A script is a list of replies, given in the order in which requests arrive, or a function of the recorded request. When
the list is used up, a request is answered with a short line made from its own words, the same for the same request.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

from attrs import evolve

from optchat.testing import responses_wire
from optchat.testing.loopback import Exchange, LoopbackServer, RecordedRequest
from optchat.testing.replies import Drop, Fail, Page, Reply, Say, Stall, Usage, answer

__all__ = ["FakeAnthropic", "FakeOpenAI", "RecordedRequest", "short_line"]


# ---- what both servers do --------------------------------------------------------------------------------------------


class _FakeProvider(LoopbackServer):
    """The script, the default answer and the count of tokens."""

    path: ClassVar[str]  # of the requests that are answered by script
    other_paths: ClassVar[tuple[str, ...]] = ()  # and of others that are, in a format of their own

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[RecordedRequest], Reply | None] = (),
        *,
        models: Iterable[str] = ("fake-model",),
    ) -> None:
        super().__init__()
        self.models: tuple[str, ...] = tuple(models)
        self.usage: Usage = Usage()
        self.answered: int = 0
        self.replies: deque[Reply] = deque() if callable(replies) else deque(replies)
        self._script = replies if callable(replies) else None

    def _next(self, request: RecordedRequest) -> Reply:
        if self._script is not None:
            return self._script(request) or answer()
        try:
            return self.replies.popleft()  # atomic: connections share the script
        except IndexError:
            return answer()

    def answer(self, exchange: Exchange) -> None:
        path = exchange.request.path.partition("?")[0]
        if (exchange.request.method, path) == ("GET", "/v1/models"):
            self._list_models(exchange)
            return
        if exchange.request.method != "POST" or path not in (self.path, *self.other_paths):
            self._fail(exchange, Fail(404, message=f"there is no {path} here"))
            return
        reply, wait_within = self._next(exchange.request), None
        while isinstance(reply, Stall):
            if reply.within:
                wait_within = reply.until
            else:
                exchange.wait(reply.until)
            reply = reply.then
        match reply:
            case Say():
                said = self._said(reply, exchange.request)
                used = self._used(said, exchange.request)
                self._say(exchange, said, used, wait_within)
                with self._lock:
                    self.usage += used
                    self.answered += 1
            case Fail():
                self._fail(exchange, reply)
            case Drop(within=False):
                exchange.hang_up()
            case Drop():
                self._break_off(exchange)
            case Page():
                exchange.send(reply.body.encode(), content_type=reply.content_type)

    def _said(self, say: Say, request: RecordedRequest) -> Say:
        text = say.text if isinstance(say.text, str) else say.text(request) if say.text else short_line(request)
        return evolve(say, text=text)

    def _used(self, say: Say, request: RecordedRequest) -> Usage:
        return say.usage or Usage(_tokens(request.text), _tokens(str(say.text)))

    def _list_models(self, exchange: Exchange) -> None:
        exchange.send_json({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    def _say(self, exchange: Exchange, say: Say, used: Usage, wait_within: float | threading.Event | None) -> None:
        raise NotImplementedError

    def _fail(self, exchange: Exchange, fail: Fail) -> None:
        raise NotImplementedError

    def _break_off(self, exchange: Exchange) -> None:
        raise NotImplementedError


def short_line(request: RecordedRequest) -> str:
    """
    A short line made from the words of a request's last message, the same for the same request.

    It has no punctuation that could end a clause, so that no word of it can be taken for a label.
    """
    last = request.messages[-1][1] if request.messages else request.text
    digest = hashlib.sha256(request.text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = dict.fromkeys(word[:12] for word in re.findall(r"[A-Za-z0-9_]{4,}", last) if not word.isdigit())
    chosen = sorted(words, key=lambda word: (-len(word), word))[:3]
    return f"line {digest} about {' '.join(chosen)}" if chosen else f"line {digest}"


def _tokens(text: str) -> int:
    return max(1, len(text.encode("utf-8", "surrogatepass")) // 4)


_BROKEN: Final = "@broken@"  # stands for the bytes until the JSON around them is made


def _encoded(data: object) -> bytes:
    return json.dumps(data).encode().replace(_BROKEN.encode(), b"\xff\xfe\x80")


# ---- OpenAI ----------------------------------------------------------------------------------------------------------

_OPENAI_ERRORS: Final[dict[int, tuple[str, str | None, str]]] = {  # type, code, message
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "Not supported here."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached."),
}
_OPENAI_ENDINGS: Final = {"stop": "stop", "length": "length", "refusal": "stop", "tool": "tool_calls"}


class FakeOpenAI(_FakeProvider):
    """
    ``/v1/chat/completions`` and ``/v1/responses``, streamed if asked for, and ``/v1/models``.

    ``requests`` has what was asked, without keys; ``usage`` sums what was answered, ``answered`` how often;
    ``abandoned`` counts requests whose client hung up first. ``replies`` may be added to while it runs.

    Args:
        replies: the script: a list, or a function of the recorded request (None from it is a plain answer).
        models: what ``/v1/models`` lists.
    """

    path = "/v1/chat/completions"
    other_paths = ("/v1/responses",)

    @property
    def base_url(self) -> str:
        """What an SDK's client is given."""
        return f"{self.address}/v1"

    def _say(self, exchange: Exchange, say: Say, used: Usage, wait_within: float | threading.Event | None) -> None:
        body = exchange.request.body
        if _is_responses(exchange.request):
            self._respond(exchange, say, used, wait_within)
            return
        if body.get("stream"):
            self._stream(exchange, say, used, wait_within)
            return
        if wait_within is not None:
            exchange.wait(wait_within)  # an answer in one piece has no middle that a client could see
        exchange.send(_encoded(self._completion(exchange.request, say, used)))

    def _completion(self, request: RecordedRequest, say: Say, used: Usage) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": self._message(request, say),
            "logprobs": None,
            "finish_reason": _OPENAI_ENDINGS[say.ending],
        }
        return {
            "id": f"chatcmpl-{request.number}",
            "object": "chat.completion",
            "created": 1_767_600_000,
            "model": request.body.get("model", self.models[0]),
            "choices": [choice],
            "usage": _openai_usage(used),
        }

    def _message(self, request: RecordedRequest, say: Say) -> dict[str, Any]:
        text = f"{say.text}{_BROKEN}" if say.broken else say.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if say.thinking:
            message["reasoning_content"] = say.thinking
        if say.ending == "refusal":
            message |= {"content": None, "refusal": text}
        elif say.ending == "tool":
            calls = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in say.made_calls(request.number)
            ]
            message |= {"content": text or None, "tool_calls": calls}
        return message

    def _response(self, request: RecordedRequest, say: Say, used: Usage) -> dict[str, Any]:
        text = f"{say.text}{_BROKEN}" if say.broken else str(say.text)
        model = request.body.get("model", self.models[0])
        return responses_wire.body(evolve(say, text=text), used, number=request.number, model=model)

    def _respond(self, exchange: Exchange, say: Say, used: Usage, wait_within: float | threading.Event | None) -> None:
        whole = self._response(exchange.request, say, used)
        if not exchange.request.body.get("stream"):
            if wait_within is not None:
                exchange.wait(wait_within)
            exchange.send(_encoded(whole))
            return
        for number, event in enumerate(responses_wire.events(whole)):
            if number == 2 and wait_within is not None:  # after what says that it has begun
                exchange.wait(wait_within)
            self._event(exchange, {**event, "sequence_number": number})
        exchange.end_stream()

    def _event(self, exchange: Exchange, event: Mapping[str, Any]) -> None:
        exchange.stream(f"event: {event['type']}\ndata: ".encode() + _encoded(event) + b"\n\n")

    def _stream(self, exchange: Exchange, say: Say, used: Usage, wait_within: float | threading.Event | None) -> None:
        whole = self._completion(exchange.request, say, used)
        shared = {**whole, "object": "chat.completion.chunk"}
        del shared["choices"], shared["usage"]
        message, ending = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
        calls = [{**call, "index": number} for number, call in enumerate(message.pop("tool_calls", ()))]

        def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> None:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
            exchange.stream(b"data: " + _encoded({**shared, "choices": choices}) + b"\n\n")

        chunk({"role": "assistant"})
        if wait_within is not None:
            exchange.wait(wait_within)
        chunk({**message, **({"tool_calls": calls} if calls else {})})
        chunk({}, ending)
        if dict[str, Any](exchange.request.body.get("stream_options") or ()).get("include_usage"):
            exchange.stream(b"data: " + _encoded({**shared, "choices": [], "usage": _openai_usage(used)}) + b"\n\n")
        exchange.stream(b"data: [DONE]\n\n")
        exchange.end_stream()

    def _fail(self, exchange: Exchange, fail: Fail) -> None:
        kind, code, message = _OPENAI_ERRORS.get(
            fail.status, ("server_error" if fail.status >= 500 else "invalid_request_error", None, "It failed.")
        )
        told = {"message": fail.message or message, "type": kind, "param": None, "code": fail.code or code}
        if fail.code == "insufficient_quota":
            told["type"] = fail.code
        if fail.within and exchange.request.body.get("stream"):
            if _is_responses(exchange.request):
                self._event(exchange, {"type": "error", "sequence_number": 0, **told})
            else:
                exchange.stream(b"data: " + _encoded({"error": told}) + b"\n\n")
            exchange.end_stream()
            return
        exchange.send_json({"error": told}, status=fail.status, **_retry_after(fail))

    def _break_off(self, exchange: Exchange) -> None:
        say = Say("a line that nobody will read whole")
        if _is_responses(exchange.request):
            whole = self._response(exchange.request, say, Usage())
            if not exchange.request.body.get("stream"):
                exchange.send_cut(_encoded(whole))
                return
            for number, event in zip(range(4), responses_wire.events(whole), strict=False):
                self._event(exchange, {**event, "sequence_number": number})
            exchange.hang_up()
            return
        if exchange.request.body.get("stream"):
            delta = {"index": 0, "delta": {"role": "assistant", "content": say.text}, "finish_reason": None}
            exchange.stream(b"data: " + _encoded({"object": "chat.completion.chunk", "choices": [delta]}) + b"\n\n")
            exchange.hang_up()
            return
        exchange.send_cut(_encoded(self._completion(exchange.request, say, Usage())))


def _is_responses(request: RecordedRequest) -> bool:
    return request.path.partition("?")[0] in FakeOpenAI.other_paths


def _openai_usage(used: Usage) -> dict[str, Any]:
    details = {"cached_tokens": used.cache_read_tokens, "audio_tokens": 0}
    if used.cache_write_tokens:
        details["cache_write_tokens"] = used.cache_write_tokens
    return {
        "prompt_tokens": used.input_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": used.input_tokens + used.output_tokens,
        "prompt_tokens_details": details,
    }


def _retry_after(fail: Fail) -> dict[str, str]:
    return {} if fail.retry_after is None else {"retry_after": str(fail.retry_after)}


# ---- Anthropic -------------------------------------------------------------------------------------------------------

_ANTHROPIC_ERRORS: Final[dict[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "It is not valid."),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Payment required."),
    403: ("permission_error", "Not allowed."),
    404: ("not_found_error", "model: not found"),
    413: ("request_too_large", "It is too large."),
    429: ("rate_limit_error", "This request would exceed the rate limit."),
    504: ("timeout_error", "It took too long."),
    529: ("overloaded_error", "Overloaded"),
}
_NO_CREDIT: Final = "Your credit balance is too low to access the Anthropic API."
_ANTHROPIC_ENDINGS: Final = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal", "tool": "tool_use"}
_LOOK_BACK_BLOCKS: Final = 20


class FakeAnthropic(_FakeProvider):
    """
    ``/v1/messages``, streamed if asked for, and ``/v1/models``; with a cache of prefixes.

    What ends in a block with a cache mark is kept, and can be read once the response of the request that wrote it has
    started: by a request with the same blocks up to there, of which a mark is at most 20 blocks further. Nothing
    expires and no prefix is too short. ``requests``, ``usage``, ``answered``, ``abandoned``, ``replies`` and the
    arguments are those of :class:`FakeOpenAI`.
    """

    path = "/v1/messages"

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[RecordedRequest], Reply | None] = (),
        *,
        models: Iterable[str] = ("fake-model",),
    ) -> None:
        super().__init__(replies, models=models)
        self._cached: set[bytes] = set()

    @property
    def base_url(self) -> str:
        """What an SDK's client is given."""
        return self.address

    def _used(self, say: Say, request: RecordedRequest) -> Usage:
        plain = super()._used(say, request)
        if say.usage is not None:
            return plain
        blocks = _blocks(request.body)
        sizes = [_tokens(text) for text, _key, _marked in blocks]
        marks = [number for number, (_text, _key, marked) in enumerate(blocks) if marked]
        with self._lock:
            found = [
                number
                for mark in marks
                for number in range(max(0, mark - _LOOK_BACK_BLOCKS + 1), mark + 1)
                if blocks[number][1] in self._cached
            ]
        read = max(found) + 1 if found else 0
        kept = max(marks) + 1 if marks else 0
        return Usage(sum(sizes), plain.output_tokens, sum(sizes[:read]), sum(sizes[read:kept]))

    def _started(self, request: RecordedRequest) -> None:
        with self._lock:
            self._cached |= {key for _text, key, marked in _blocks(request.body) if marked}

    def _say(self, exchange: Exchange, say: Say, used: Usage, wait_within: float | threading.Event | None) -> None:
        self._started(exchange.request)
        message = self._message(exchange.request, say, used)
        if not exchange.request.body.get("stream"):
            if wait_within is not None:
                exchange.wait(wait_within)  # an answer in one piece has no middle that a client could see
            exchange.send(_encoded(message))
            return
        content, ending = message["content"], message["stop_reason"]
        self._start(exchange, {**message, "usage": {**message["usage"], "output_tokens": 1}})
        if wait_within is not None:
            exchange.wait(wait_within)
        for index, block in enumerate(content):
            head, deltas = _streamed(block)
            self._event(exchange, "content_block_start", index=index, content_block=head)
            for delta in deltas:
                self._event(exchange, "content_block_delta", index=index, delta=delta)
            self._event(exchange, "content_block_stop", index=index)
        self._event(
            exchange,
            "message_delta",
            delta={"stop_reason": ending, "stop_sequence": None},
            usage={"output_tokens": used.output_tokens},
        )
        self._event(exchange, "message_stop")
        exchange.end_stream()

    def _start(self, exchange: Exchange, message: Mapping[str, Any]) -> None:
        self._event(exchange, "message_start", message={**message, "content": [], "stop_reason": None})

    def _event(self, exchange: Exchange, name: str, **data: Any) -> None:
        exchange.stream(f"event: {name}\ndata: ".encode() + _encoded({"type": name, **data}) + b"\n\n")

    def _message(self, request: RecordedRequest, say: Say, used: Usage) -> dict[str, Any]:
        text = f"{say.text}{_BROKEN}" if say.broken else say.text
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if say.ending == "refusal":
            content = []
        elif say.ending == "tool":
            calls = [
                {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
                for call_id, name, arguments in say.made_calls(request.number)
            ]
            content = [*(content if text else ()), *calls]
        if say.thinking:
            content.insert(0, {"type": "thinking", "thinking": say.thinking, "signature": "c2lnbmVk"})
        return {
            "id": f"msg_{request.number}",
            "type": "message",
            "role": "assistant",
            "model": request.body.get("model", self.models[0]),
            "content": content,
            "stop_reason": _ANTHROPIC_ENDINGS[say.ending],
            "stop_sequence": None,
            "usage": {
                "input_tokens": used.input_tokens - used.cache_read_tokens - used.cache_write_tokens,
                "cache_read_input_tokens": used.cache_read_tokens,
                "cache_creation_input_tokens": used.cache_write_tokens,
                "output_tokens": used.output_tokens,
            },
        }

    def _fail(self, exchange: Exchange, fail: Fail) -> None:
        status, kind, message = fail.status, fail.code, fail.message
        if fail.code == "insufficient_quota":
            status, kind, message = 400, "", message or _NO_CREDIT
        default_kind, default_message = _ANTHROPIC_ERRORS.get(
            status, ("api_error" if status >= 500 else "invalid_request_error", "It failed.")
        )
        told = {"type": kind or default_kind, "message": message or default_message}
        if fail.within and exchange.request.body.get("stream"):
            self._start(exchange, self._message(exchange.request, Say(""), Usage(_tokens(exchange.request.text))))
            exchange.stream(b"event: error\ndata: " + _encoded({"type": "error", "error": told}) + b"\n\n")
            exchange.end_stream()
            return
        exchange.send_json({"type": "error", "error": told, "request_id": "req_0"}, status=status, **_retry_after(fail))

    def _break_off(self, exchange: Exchange) -> None:
        say, used = Say("a line that nobody will read whole"), Usage(_tokens(exchange.request.text))
        message = self._message(exchange.request, say, used)
        if not exchange.request.body.get("stream"):
            exchange.send_cut(_encoded(message))
            return
        self._start(exchange, message)
        self._event(exchange, "content_block_start", index=0, content_block={"type": "text", "text": ""})
        exchange.hang_up()


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as its stream begins it, and what follows."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [thought, signed]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _blocks(body: Mapping[str, Any]) -> list[tuple[str, bytes, bool]]:
    """Each block of a request in order: its text, the hash of everything up to its end, and whether it is marked."""
    parts: list[tuple[str, Any]] = [("system", part) for part in _parts(body.get("system"))]
    for message in body.get("messages", ()):
        parts += [(str(message.get("role")), part) for part in _parts(message.get("content"))]
    digest = hashlib.sha256()
    found: list[tuple[str, bytes, bool]] = []
    for role, part in parts:
        plain = {key: value for key, value in part.items() if key != "cache_control"}
        digest.update(json.dumps([role, plain], sort_keys=True).encode())
        found.append((str(part.get("text", "")), digest.copy().digest(), "cache_control" in part))
    return found


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
