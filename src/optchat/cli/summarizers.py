"""
Which summarizer a command line names.

Decides: how ``openai:MODEL`` and prices are written, and what belongs together: a fallback, a window or a price without
a model is a mistake, and so is a ceiling on costs where no price is known. That is looked at before a file is opened.
Refuses to know: what a summarizer does. No key is ever an option: an argument stands in the process table and in the
shell's history, so keys come from the environment only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from attrs import define, field, frozen

import optchat

if TYPE_CHECKING:
    from optchat.compactor import Price

DEFAULT: Final = "default"
_PROVIDERS: Final = ("openai", "anthropic")
MODEL_FORM: Final = "|".join(f"{provider}:MODEL" for provider in _PROVIDERS)
PRICE_FORM: Final = "IN,OUT[,CACHE_READ[,CACHE_WRITE]]"


@frozen
class Model:
    """A provider's model."""

    provider: str
    name: str

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


def read_model(text: str) -> Model:
    """``openai:MODEL`` or ``anthropic:MODEL``; BadParameter for anything else."""
    provider, _, name = text.partition(":")
    if provider not in _PROVIDERS or not name.strip():
        raise click.BadParameter(f"{text!r} names no model; give {MODEL_FORM}")
    return Model(provider, name.strip())


def read_price(text: str) -> Price:
    """``IN,OUT[,CACHE_READ[,CACHE_WRITE]]``, each for a million tokens; BadParameter for anything else."""
    from optchat.compactor import Price

    try:
        return Price(*map(float, text.split(",")))
    except (TypeError, ValueError):  # too few or too many; no figure, or, as BadArgument, none that a price can be
        raise click.BadParameter(f"{text!r} is no price; give {PRICE_FORM}, for a million tokens each") from None


@define
class Choice:
    """
    The summarizer's options, as far as they have been read; ``model`` None is the embedded default.

    ``given`` are options of a command line that belong to a model. The same from the environment stand there for
    whenever a model is named, and say nothing where none is.
    """

    model: Model | None = None
    fallback: Model | None = None
    base_url: str | None = None
    window_tokens: int | None = None
    price: Price | None = None
    fallback_price: Price | None = None
    given: set[str] = field(factory=set[str])

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return DEFAULT if self.model is None else str(self.model)

    def needs_price(self, option: str) -> None:
        """UsageError where costs are to be limited and would not be known."""
        if self.model is not None and self.price is None:
            raise click.UsageError(f"{option} needs the prices of {self.model}; give --price {PRICE_FORM}")
        if self.fallback is not None and self.fallback_price is None:
            raise click.UsageError(f"{option} needs the prices of {self.fallback}; give --fallback-price {PRICE_FORM}")

    def make(self) -> tuple[optchat.Summarizer | None, optchat.Summarizer | None]:
        """
        The summarizer, None for the embedded default, and its fallback.

        Raises:
            click.UsageError: options that belong to a model, and no model.
            ConfigError: an extra is missing, or a key.
        """
        if self.model is None:
            if self.given:
                raise click.UsageError(
                    f"{', '.join(sorted(self.given))}: of which model? give --summarizer {MODEL_FORM}"
                )
            return None, None
        if self.fallback is None:
            if self.fallback_price is not None:
                raise click.UsageError("--fallback-price: of which model? give --fallback too")
            return self._make(self.model, self.price), None
        return self._make(self.model, self.price), self._make(self.fallback, self.fallback_price)

    def _make(self, model: Model, price: Price | None) -> optchat.Summarizer:
        from optchat.compactor import AnthropicSummarizer, OpenAISummarizer

        kind = OpenAISummarizer if model.provider == "openai" else AnthropicSummarizer
        # An address is the named provider's; a fallback of another provider is asked at its own.
        here = self.model is not None and model.provider == self.model.provider
        base_url = self.base_url if here else None
        if self.window_tokens is None:
            return kind(model.name, base_url=base_url, price=price)
        return kind(model.name, base_url=base_url, window_tokens=self.window_tokens, price=price)
