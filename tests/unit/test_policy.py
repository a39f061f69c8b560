"""Settings: their defaults, and which values could never work."""

from typing import Any

import pytest
from attrs import asdict, fields

from optchat.core.errors import BadArgument
from optchat.core.policy import DEFAULT_NODE_BYTES, DEFAULT_VIEW_HIGH_BYTES, DEFAULT_VIEW_LOW_BYTES, Policy


def test_defaults_are_those_that_the_specification_proposes() -> None:
    assert (DEFAULT_NODE_BYTES, DEFAULT_VIEW_HIGH_BYTES, DEFAULT_VIEW_LOW_BYTES) == (512, 128_000, 64_000)
    assert asdict(Policy()) == {
        "node_bytes": None,
        "view_high_bytes": None,
        "view_low_bytes": None,
        "shared_share": 0.30,
        "previous_exchange": True,
        "previous_exchange_bytes": 16_384,
        "compactor_view_bytes": 32_000,
        "since_bytes": 16_384,
        "page_bytes": 16_384,
        "cache_lifetime_seconds": 300.0,
        "readiness": "strict",
        "readiness_wait_seconds": 20.0,
        "on_failed": "stand_in",
        "on_invalid": "repin",
        "memory_max_tokens": None,
        "checkpoint_share": 0.5,
        "leaf_window": 8,
        "workers": 8,
        "summary_attempts": 5,
        "job_attempts": 5,
        "lease_seconds": 120.0,
        "lock_wait_seconds": 15.0,
        "calls_per_hour": None,
        "tokens_per_hour": None,
        "cost_per_hour": None,
        "calls_per_day": None,
        "tokens_per_day": None,
        "cost_per_day": None,
    }


def test_settings_are_given_by_name() -> None:
    assert all(attribute.kw_only for attribute in fields(Policy))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shared_share": 1.01}, "from 0.0 to 1.0"),
        ({"shared_share": -0.1}, "from 0.0 to 1.0"),
        ({"shared_share": float("nan")}, "from 0.0 to 1.0"),
        ({"checkpoint_share": 1.5}, "from 0.0 to 1.0"),
        ({"page_bytes": 0}, "page_bytes must be at least 1"),
        ({"page_bytes": 3}, "one character; give at least 4"),
        ({"leaf_window": 0}, "leaf_window must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"summary_attempts": 0}, "summary_attempts must be at least 1"),
        ({"job_attempts": -1}, "job_attempts must be at least 1"),
        ({"previous_exchange_bytes": -1}, "previous_exchange_bytes cannot be negative"),
        ({"readiness_wait_seconds": -0.1}, "readiness_wait_seconds cannot be negative"),
        ({"memory_max_tokens": -1}, "memory_max_tokens cannot be negative"),
        ({"lease_seconds": -1.0}, "lease_seconds cannot be negative"),
        ({"lock_wait_seconds": -1}, "lock_wait_seconds cannot be negative"),
        ({"node_bytes": 63}, "512 is the default"),
        ({"node_bytes": 0}, "512 is the default"),
        ({"view_low_bytes": 128_000}, "below view_high_bytes"),
        ({"view_high_bytes": 64_000}, "below view_high_bytes"),
        ({"view_high_bytes": 10, "view_low_bytes": 10}, "below view_high_bytes"),
        ({"readiness": "Partial"}, "use 'strict' or 'partial'"),
        ({"readiness": None}, "use 'strict' or 'partial'"),
        ({"on_failed": "standin"}, "use 'stand_in' or 'stop'"),
        ({"on_invalid": "ignore"}, "use 'repin' or 'fail'"),
    ],
)
def test_what_could_never_work_is_refused_with_advice(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        Policy(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_share": 0.0},
        {"shared_share": 1.0},
        {"node_bytes": 64},
        {"page_bytes": 4},
        {"workers": 1},
        {"view_high_bytes": 64_001},
        {"view_high_bytes": 11, "view_low_bytes": 10},
        {"readiness_wait_seconds": 0.0},
        {"memory_max_tokens": 0},
        {"readiness": "partial", "on_failed": "stop", "on_invalid": "fail"},
    ],
)
def test_the_edges_are_allowed(settings: dict[str, Any]) -> None:
    assert asdict(Policy(**settings)) == asdict(Policy()) | settings
