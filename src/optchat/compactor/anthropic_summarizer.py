"""
Summaries by Anthropic's messages (extra ``anthropic``).

Decides: how a request becomes blocks with cache marks, which call writes a shared prefix while others wait, and what of
the answer is a reply, a refusal, or a failed call.
Refuses to know: which replies are summaries, when to ask again, and what a failure leads to. It retries nothing itself:
each call is one row of the ledger.

The answer is streamed, for the moment at which it starts is when a prefix that the call wrote can be read by others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

import anyio
from attrs import define, evolve, field, frozen

from optchat.compactor.prefixes import Block, CacheWriters, Prefixes, Turn, prefixes_of
from optchat.compactor.pricing import Price
from optchat.compactor.providers import (
    PLACEHOLDER_KEY,
    PerLoop,
    check_settings,
    count_of,
    key_in,
    no_key,
    without_content,
    without_key,
)
from optchat.core.ports import Summarizer
from optchat.core.summarizing import PromptMessage, SummaryReply, SummaryRequest
from optchat.core.trouble import is_refusal

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import MessageParam, RawMessageStreamEvent, TextBlockParam

_KEYS: Final = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_MOST_MARKS: Final = 4  # of a request; one more is a 400
_PATIENCE_SECONDS: Final = 20.0  # a response starts in a few seconds, or its call is in trouble
_DAMAGED: Final = "\ufffd"


@frozen
class _Here:
    """What belongs to one event loop."""

    client: AsyncAnthropic
    writers: CacheWriters = field(factory=CacheWriters)


class AnthropicSummarizer(Summarizer):
    """
    Asks a model by ``client.messages``, with cache marks on what consecutive requests share.

    The key is the environment's, ``ANTHROPIC_API_KEY`` or what else the SDK finds there; servers of one's own
    (``base_url``) are asked without one. It is read when the first call of an event loop is made and is kept by the
    SDK's client only.

    While a call writes a cold prefix, others that share it wait until its response starts; ``waited_seconds`` of their
    replies says how long.

    Args:
        model: as the provider names it.
        base_url: of a compatible server; None is Anthropic's own.
        window_tokens: the most input tokens that the model takes.
        price: what its tokens cost; None: unknown.
        client: one of your own, for one event loop, which you close.
        extra_body: further fields of each request, by the names of the API; they win over this class's own. What a
            model thinks counts against the output limit; ``{"thinking": {"type": "disabled"}}`` where it does unasked.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        window_tokens: int = 200_000,
        price: Price | None = None,
        client: AsyncAnthropic | None = None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        check_settings("anthropic", model, window_tokens, client, base_url)
        self.price = price
        self._model = model
        self._base_url = base_url
        self._window_tokens = window_tokens
        self._extra = dict(extra_body or {})
        self._own_client = None if client is None else client.with_options(max_retries=0)
        self._here = PerLoop(self._make_here)
        if client is None and not self._elsewhere and key_in(*_KEYS) is None:
            self._look_for_credentials()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    @property
    def name(self) -> str:
        return f"anthropic:{self._model}"

    @property
    def window_tokens(self) -> int:
        return self._window_tokens

    async def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        """
        The model's answer, whatever it is worth.

        Raises:
            CallFailed: there is none. ``trouble`` says whether that is the provider's or the network's doing.
        """
        waited = 0.0
        try:
            here = self._here.get()
            asked = asked_of(request)
            # All of it within the time that was given: whoever asked counts the wait too.
            patience = min(_PATIENCE_SECONDS, request.timeout_seconds / 3)
            async with here.writers.turn(asked.prefixes, patience) as turn:
                waited = turn.waited_seconds
                with anyio.fail_after(request.timeout_seconds - waited):
                    return await self._answer(here.client, request, asked, turn)
        except Exception as error:  # noqa: BLE001 - each is looked at: what is not the provider's goes on as it is
            if is_refusal(error):
                return SummaryReply("", refused=True, model=self._model, waited_seconds=waited)
            raise without_content(error) from None

    async def aclose(self) -> None:
        """Let go of the connections of the running event loop; the next call makes new ones."""
        here = self._here.take()
        if here is not None and self._own_client is None:
            with anyio.move_on_after(1, shield=True):  # a worker that is told to stop closes on its way out
                await here.client.close()

    # ---- asking ------------------------------------------------------------------------------------------------------

    @property
    def _elsewhere(self) -> str | None:
        return self._base_url or key_in("ANTHROPIC_BASE_URL")

    def _look_for_credentials(self) -> None:
        """There are other kinds than keys: profiles, federation. Only the SDK's client knows how to find them."""
        from anthropic import AnthropicError

        try:
            found = _has_credentials(self._make_client())
        except AnthropicError as error:
            raise without_key(_KEYS[0]) from error
        if not found:
            raise without_key(_KEYS[0])

    def _make_here(self) -> _Here:
        if self._own_client is not None:
            return _Here(self._own_client)
        client = self._make_client()
        if not _has_credentials(client):
            raise no_key(_KEYS[0])
        return _Here(client)

    def _make_client(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        client = AsyncAnthropic(api_key=key_in(_KEYS[0]), base_url=self._elsewhere, max_retries=0)
        if self._elsewhere and not _has_credentials(client):
            client.api_key = PLACEHOLDER_KEY
        return client

    async def _answer(self, client: AsyncAnthropic, request: SummaryRequest, asked: Asked, turn: Turn) -> SummaryReply:
        stream = await client.messages.create(
            model=self._model,
            max_tokens=request.max_output_tokens,
            system=asked.system,
            messages=asked.messages,
            stream=True,
            timeout=request.timeout_seconds,
            extra_body=self._extra or None,
        )
        heard = _Heard(self._model)
        async with stream:
            try:
                async for event in stream:
                    heard.take(event)
                    if event.type == "message_start":
                        turn.response_started()
            except UnicodeDecodeError:
                return heard.damaged(turn.waited_seconds)
        if heard.ending is None:
            raise ConnectionError("the stream ended before its message did")
        reply = heard.reply(turn.waited_seconds)
        return reply if self.price is None else evolve(reply, cost=self.price.cost(reply))


def _has_credentials(client: AsyncAnthropic) -> bool:
    return bool(client.api_key or client.auth_token or getattr(client, "credentials", None))


# ---- a request as blocks ---------------------------------------------------------------------------------------------


@frozen
class Asked:
    """A request in the API's terms."""

    system: list[TextBlockParam]
    messages: list[MessageParam]
    prefixes: Prefixes


def asked_of(request: SummaryRequest) -> Asked:
    """
    A request as blocks: one for the system text and one for each message, neighbours of a role under one roof.

    Of more marks than the API takes, the earliest of the context go: the system's and the last ones stay.
    """
    said = [message for message in request.messages if message.text]  # an empty block is a 400
    marked = [number for number, message in enumerate(said) if message.cache][-(_MOST_MARKS - 1) :]
    blocks = [
        Block("system", request.system, marked=True),
        *(Block(message.role, message.text, number in marked) for number, message in enumerate(said)),
    ]
    messages: list[MessageParam] = []
    for role, together in groupby(enumerate(said), key=_role):
        content = [_block(each.text, marked=number in marked) for number, each in together]
        if role == "user":
            messages.append({"role": "user", "content": content})
        else:
            messages.append({"role": "assistant", "content": content})
    return Asked([_block(request.system, marked=True)], messages, prefixes_of(blocks))


def _role(numbered: tuple[int, PromptMessage]) -> Literal["user", "assistant"]:
    return numbered[1].role


def _block(text: str, *, marked: bool) -> TextBlockParam:
    if marked:
        return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return {"type": "text", "text": text}


# ---- an answer from its events ---------------------------------------------------------------------------------------


@define
class _Heard:
    """What of a message was streamed so far."""

    model: str
    ending: str | None = None
    called_tool: bool = False
    texts: list[str] = field(factory=list[str])
    counts: dict[str, int] = field(factory=dict[str, int])

    def take(self, event: RawMessageStreamEvent) -> None:
        if event.type == "message_start":
            self.model = event.message.model or self.model
            self._count(event.message.usage)
        elif event.type == "content_block_start":
            self.called_tool = self.called_tool or event.content_block.type.endswith("tool_use")
            if event.content_block.type == "text":
                self.texts.append(event.content_block.text)
        elif event.type == "content_block_delta":
            if event.delta.type == "text_delta":
                self.texts.append(event.delta.text)
        elif event.type == "message_delta":
            self.ending = event.delta.stop_reason or self.ending
            self._count(event.usage)

    def _count(self, usage: object) -> None:
        """Figures of later events are totals, and replace those of earlier ones; a figure left out says nothing."""
        for name in _COUNTS:
            count = count_of(getattr(usage, name, None))
            if count is not None:
                self.counts[name] = count

    def reply(self, waited_seconds: float) -> SummaryReply:
        return SummaryReply(
            "".join(self.texts),
            refused=self.ending == "refusal",
            cut_off=self.ending in {"max_tokens", "model_context_window_exceeded"},
            model=self.model,
            input_tokens=self._whole_input(),
            output_tokens=self.counts.get("output_tokens"),
            cache_read_tokens=self.counts.get(_READ),
            cache_write_tokens=self.counts.get(_WRITTEN),
            waited_seconds=waited_seconds,
            called_tool=self.called_tool or self.ending == "tool_use",
        )

    def damaged(self, waited_seconds: float) -> SummaryReply:
        """Bytes came that are no text. How much was written in all was not reported any more."""
        self.texts.append(_DAMAGED)
        self.counts.pop("output_tokens", None)
        return self.reply(waited_seconds)

    def _whole_input(self) -> int | None:
        if _PLAIN not in self.counts:
            return None
        return sum(self.counts.get(name, 0) for name in (_PLAIN, _READ, _WRITTEN))


_PLAIN: Final = "input_tokens"  # what was neither read from the cache nor written to it
_READ: Final = "cache_read_input_tokens"
_WRITTEN: Final = "cache_creation_input_tokens"
_COUNTS: Final[Sequence[str]] = (_PLAIN, _READ, _WRITTEN, "output_tokens")
