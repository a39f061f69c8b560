"""
Settings.

Decides: every tunable, its default and its unit, and which of them are a format that lives with the scope.
Refuses to know: who reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from attrs import fields, frozen

from optchat.core.errors import BadArgument

Readiness: TypeAlias = Literal["strict", "partial"]
OnFailed: TypeAlias = Literal["stand_in", "stop"]
OnInvalid: TypeAlias = Literal["repin", "fail"]

DEFAULT_NODE_BYTES = 512
DEFAULT_VIEW_HIGH_BYTES = 128_000
DEFAULT_VIEW_LOW_BYTES = 64_000


@frozen(kw_only=True)
class Policy:
    """
    The tunables, defaults as § 6 and § 7 propose them.

    The first three are the scope's format: None means as the scope has it (a new one: 512, 128_000, 64_000), and a
    value other than the scope's is a ConfigError. The rest belongs to this process only.
    """

    node_bytes: int | None = None
    view_high_bytes: int | None = None
    view_low_bytes: int | None = None

    shared_share: float = 0.30
    previous_exchange: bool = True
    previous_exchange_bytes: int = 16_384
    compactor_view_bytes: int = 32_000
    since_bytes: int = 16_384
    page_bytes: int = 16_384
    cache_lifetime_seconds: float = 300.0
    readiness: Readiness = "strict"
    readiness_wait_seconds: float = 20.0
    on_failed: OnFailed = "stand_in"
    on_invalid: OnInvalid = "repin"
    memory_max_tokens: int | None = None
    checkpoint_share: float = 0.5
    leaf_window: int = 8
    workers: int = 8
    summary_attempts: int = 5
    job_attempts: int = 5
    lease_seconds: float = 120.0
    lock_wait_seconds: float = 15.0
    calls_per_hour: int | None = None
    tokens_per_hour: int | None = None
    cost_per_hour: float | None = None
    calls_per_day: int | None = None
    tokens_per_day: int | None = None
    cost_per_day: float | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("shared_share", "checkpoint_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise BadArgument(f"Policy.{name} is a share; give it from 0.0 to 1.0")
        choices = (
            ("readiness", get_args(Readiness)),
            ("on_failed", get_args(OnFailed)),
            ("on_invalid", get_args(OnInvalid)),
        )
        for name, words in choices:
            if getattr(self, name) not in words:  # a word that nothing compares with would quietly mean the other one
                raise BadArgument(f"Policy.{name} is {getattr(self, name)!r}; use {' or '.join(map(repr, words))}")
        for name in ("page_bytes", "leaf_window", "workers", "summary_attempts", "job_attempts"):
            if getattr(self, name) < 1:
                raise BadArgument(f"Policy.{name} must be at least 1; leave it out for the default")
        for attribute in fields(Policy):
            value = getattr(self, attribute.name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not value >= 0:  # NaN included
                raise BadArgument(f"Policy.{attribute.name} cannot be negative; leave it out for the default")
        if self.page_bytes < 4:
            raise BadArgument("Policy.page_bytes is too small for one character; give at least 4")
        if self.node_bytes is not None and self.node_bytes < 64:
            raise BadArgument("Policy.node_bytes below 64 leaves no room for a summary; 512 is the default")
        high, low = self.view_high_bytes, self.view_low_bytes
        if (high or DEFAULT_VIEW_HIGH_BYTES) <= (low or DEFAULT_VIEW_LOW_BYTES):
            raise BadArgument("a batch of merges could never end; give Policy.view_low_bytes below view_high_bytes")


def pinned_setting(settings: Mapping[str, Any], name: str) -> Any:
    """A setting as a turn began with it; the default for one that began before there was such a setting."""
    return settings.get(name, getattr(fields(Policy), name).default)
