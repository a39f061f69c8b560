"""
Summaries by OpenAI's chat completions, and by every server that speaks them (extra ``openai``).

Decides: how a request becomes a chat completion, and what of the answer is a reply, a refusal, or a failed call.
Refuses to know: which replies are summaries, when to ask again, and what a failure leads to. It retries nothing itself:
each call is one row of the ledger.

The answer is read from its bytes and not through the SDK's types: compatible servers leave fields out or fill them
their own way, and bytes that are no UTF-8 become a damaged reply, which is rejected like any other that breaks a rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from attrs import evolve

from optchat.compactor.pricing import Price
from optchat.compactor.providers import (
    PLACEHOLDER_KEY,
    PerLoop,
    check_settings,
    count_of,
    key_in,
    mapping_of,
    no_key,
    without_content,
    without_key,
)
from optchat.core.ports import Summarizer
from optchat.core.summarizing import SummaryReply, SummaryRequest
from optchat.core.trouble import is_refusal, status_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

_KEY: Final = "OPENAI_API_KEY"
# OpenAI's newer models take only the new name and say so in a 400. Other servers know the old name all the same; those
# that do not know the new one either refuse it by name (Mistral, older vLLM: 400 or 422), or ignore it without a word
# and write without a limit (Ollama, LM Studio, llama.cpp until 2026). So a server that is not OpenAI's is asked with
# the old name first, for that mistake cannot be seen.
_NEW_LIMIT: Final = "max_completion_tokens"
_OLD_LIMIT: Final = "max_tokens"
_OTHER_LIMIT: Final = {_NEW_LIMIT: _OLD_LIMIT, _OLD_LIMIT: _NEW_LIMIT}
_NEW_LIMIT_HOSTS: Final = (".openai.com", ".openai.azure.com")


class OpenAISummarizer(Summarizer):
    """
    Asks a model by ``client.chat.completions``.

    The key is the environment's, ``OPENAI_API_KEY``; servers of one's own (``base_url``) are asked without one. It is
    read when the first call of an event loop is made and is kept by the SDK's client only.

    Args:
        model: as the server names it.
        base_url: of a compatible server, ``http://localhost:11434/v1``; None is OpenAI's own.
        window_tokens: the most input tokens that the model takes.
        price: what its tokens cost; None: unknown.
        client: one of your own, for one event loop, which you close.
        extra_body: further fields of each request, by the names of the server's API; they win over this class's own. A
            model that thinks before it answers needs one, ``{"reasoning_effort": "minimal"}`` or a larger
            ``max_completion_tokens``: what it thinks counts against the output limit.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        window_tokens: int = 128_000,
        price: Price | None = None,
        client: AsyncOpenAI | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        check_settings("openai", model, window_tokens, client, base_url)
        self.price = price
        self._model = model
        self._base_url = base_url
        self._window_tokens = window_tokens
        self._extra = dict(extra_body or {})
        self._own_client = None if client is None else client.with_options(max_retries=0)
        self._clients = PerLoop(self._make_client)
        self._limit_name: str | None = None
        if client is None and not self._elsewhere and key_in(_KEY) is None:
            raise without_key(_KEY)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def name(self) -> str:
        return f"openai:{self._model}"

    @property
    def window_tokens(self) -> int:
        return self._window_tokens

    async def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        """
        The model's answer, whatever it is worth.

        Raises:
            CallFailed: there is none. ``trouble`` says whether that is the provider's or the network's doing.
        """
        try:
            with anyio.fail_after(request.timeout_seconds):
                return self._read(await self._answer(self._client(), request))
        except Exception as error:  # noqa: BLE001 - each is looked at: what is not the provider's goes on as it is
            if is_refusal(error):
                return SummaryReply("", refused=True, model=self._model)
            raise without_content(error) from None

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop; the next call makes new ones."""
        client = self._clients.take()
        if client is not None:
            with anyio.move_on_after(1, shield=True):  # a worker that is told to stop closes on its way out
                await client.close()

    # ---- asking ------------------------------------------------------------------------------------------------------

    @property
    def _elsewhere(self) -> str | None:
        return self._base_url or key_in("OPENAI_BASE_URL")

    def _client(self) -> AsyncOpenAI:
        return self._clients.get() if self._own_client is None else self._own_client

    def _make_client(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI

        key = key_in(_KEY)
        if key is None and not self._elsewhere:
            raise no_key(_KEY)
        return AsyncOpenAI(api_key=key or PLACEHOLDER_KEY, base_url=self._elsewhere, max_retries=0)

    async def _answer(self, client: AsyncOpenAI, request: SummaryRequest) -> bytes:
        if self._extra.keys() & _OTHER_LIMIT.keys():
            return await self._post(client, request, {})
        name = self._limit_name or (_NEW_LIMIT if client.base_url.host.endswith(_NEW_LIMIT_HOSTS) else _OLD_LIMIT)
        try:
            answer = await self._post(client, request, {name: request.max_output_tokens})
        except Exception as error:
            # The SDK's message has the whole body in it, under whichever field the server names the parameter.
            if status_of(error) not in {400, 422} or name not in str(error):
                raise
            name = _OTHER_LIMIT[name]
            answer = await self._post(client, request, {name: request.max_output_tokens})
        self._limit_name = name
        return answer

    async def _post(self, client: AsyncOpenAI, request: SummaryRequest, limit: Mapping[str, int]) -> bytes:
        response = await client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=cast("list[ChatCompletionMessageParam]", request.chat()),
            timeout=request.timeout_seconds,
            extra_body={**limit, **self._extra},
        )
        return response.content

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self, answer: bytes) -> SummaryReply:
        data = mapping_of(json.loads(answer.decode("utf-8", "replace")))
        choices: Any = data.get("choices")
        if not isinstance(choices, list) or not choices:
            raise EmptyAnswer(data)
        choice = mapping_of(cast("list[object]", choices)[0])
        message = mapping_of(choice.get("message"))
        usage = mapping_of(data.get("usage"))
        details = mapping_of(usage.get("prompt_tokens_details"))
        ending = choice.get("finish_reason")
        model = data.get("model")
        reply = SummaryReply(
            _text(message.get("content")),
            refused=bool(message.get("refusal")) or ending == "content_filter",
            cut_off=ending == "length",
            model=model if isinstance(model, str) else self._model,
            input_tokens=count_of(usage.get("prompt_tokens")),
            output_tokens=count_of(usage.get("completion_tokens")),
            cache_read_tokens=count_of(details.get("cached_tokens")),
            cache_write_tokens=count_of(details.get("cache_write_tokens")),
            called_tool=bool(message.get("tool_calls") or message.get("function_call"))
            or ending in {"tool_calls", "function_call"},
        )
        return reply if self.price is None else evolve(reply, cost=self.price.cost(reply))


class EmptyAnswer(ValueError):
    """A 200 without an answer in it: some gateways put an error of theirs there, with its status as the code."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__("the answer has no choices")
        self.body = data
        self.code = mapping_of(data.get("error")).get("code")


def _text(content: object) -> str:
    """A message's text; some servers give it in parts, of which others are thoughts."""
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else []
    return "".join(str(part["text"]) for each in parts if isinstance((part := mapping_of(each)).get("text"), str))
