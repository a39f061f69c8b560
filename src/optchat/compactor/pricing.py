"""
What a call costs, by the prices that its owner gives.

Decides: how token counts become a price, and the most that a call can cost before it is made.
Refuses to know: any provider's price list. Prices change without notice, and a wrong figure is worse than none.

``SummaryReply.input_tokens`` is the whole input: tokens read from a cache and tokens written to one are part of it.
OpenAI counts so itself. Anthropic counts the three apart, and its summarizer adds them up.
"""

from __future__ import annotations

import math

from attrs import fields, frozen

from optchat.core.errors import BadArgument
from optchat.core.summarizing import SummaryReply

_MILLION = 1_000_000


@frozen
class Price:
    """
    Prices of a million tokens, in any currency; the ceilings of ``Policy`` are then in the same.

    ``cache_read`` and ``cache_write`` are for input that a provider read from its cache or wrote to it. Where they are
    None, that input costs as much as any other.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __attrs_post_init__(self) -> None:
        for attribute in fields(Price):
            value = getattr(self, attribute.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise BadArgument(f"Price.{attribute.name} is {value}; give what a million tokens cost")

    def cost(self, reply: SummaryReply) -> float | None:
        """
        What a reply cost; None where its input or its output was not reported.

        Cache figures that were not reported count as none: all of the input then costs what uncached input does.
        """
        if reply.input_tokens is None or reply.output_tokens is None:
            return None
        read, written = reply.cache_read_tokens or 0, reply.cache_write_tokens or 0
        plain = max(reply.input_tokens - read - written, 0)
        total = (
            plain * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + reply.output_tokens * self.output
        )
        return total / _MILLION

    def most(self, input_tokens: int, output_tokens: int) -> float:
        """The most that a call of this size can cost: every token of its input at the dearest of its prices."""
        dearest = max(price for price in (self.input, self.cache_read, self.cache_write) if price is not None)
        return (input_tokens * dearest + output_tokens * self.output) / _MILLION
