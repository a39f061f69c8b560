"""
The contract kit: it passes for every wire and for hosts that are right, and each clause fails for a host that is wrong
in just that.
"""

import re
from collections.abc import Sequence
from typing import Any

import pytest

import optchat
from optchat.adapters.anthropic import AnthropicMessages
from optchat.adapters.openai import OpenAIChat, OpenAIResponses
from optchat.testing import AdapterContract
from tests.adapters.broken import BROKEN
from tests.adapters.lab import LabAdapter, LabContract, LabHost
from tests.adapters.wires import CHAT, MESSAGES, RESPONSES, Wire

CLAUSES = [name for name in dir(AdapterContract) if name.startswith("test_")]


class TestLab(LabContract):
    """A host that has everything: no clause skips."""


class _WireContract(LabContract):
    wire: Wire

    def adapter(self) -> Any:
        return self.wire.adapter

    def native(self, message: optchat.HostMessage) -> Sequence[Any]:
        return self.wire.native(message)


class TestOpenAIChat(_WireContract):
    wire = CHAT

    def thinking(self, text: str) -> Sequence[Any]:
        return [{"role": "assistant", "content": "Done.", "reasoning_content": text}]


class TestOpenAIResponses(_WireContract):
    wire = RESPONSES

    def thinking(self, text: str) -> Sequence[Any]:
        summary = [{"type": "summary_text", "text": text}]
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAAA"}
        return [reasoning, *self.native(optchat.HostMessage.assistant("Done."))]


class TestAnthropicMessages(_WireContract):
    wire = MESSAGES

    def thinking(self, text: str) -> Sequence[Any]:
        thought = [
            {"type": "thinking", "thinking": text, "signature": "c2lnbmVk"},
            {"type": "redacted_thinking", "data": "AAAA"},
        ]
        return [{"role": "assistant", "content": [*thought, {"type": "text", "text": "Done."}]}]


GLUE = [name for name in vars(AdapterContract) if name.startswith("test_")]  # the others never drive the host


def outcomes(contract: LabContract) -> dict[str, str]:
    """What becomes of each clause; those of the codec are TestLab's where the codec is."""
    found: dict[str, str] = {}
    for name in GLUE if type(contract.codec) is LabAdapter else CLAUSES:
        try:
            getattr(contract, name)()
        except pytest.skip.Exception:
            found[name] = "skipped"
        except Exception:  # noqa: BLE001 - a broken host may fail a clause by whatever it raises
            found[name] = "failed"
        else:
            found[name] = "passed"
    return found


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: type(broken).__name__)
def test_what_is_wrong_fails_its_clause_and_no_other(broken: Any) -> None:
    told = outcomes(broken)
    assert [name for name, outcome in told.items() if outcome == "failed"] == [broken.clause]
    assert "skipped" not in told.values()


def test_each_clause_has_a_host_that_breaks_it() -> None:
    assert {broken.clause for broken in BROKEN} == set(CLAUSES)


class OnlyCodec(AdapterContract[Any]):
    """What somebody has on the first day: the codec, and no way to drive the host."""

    def adapter(self) -> Any:
        return LabContract.codec

    def native(self, message: optchat.HostMessage) -> Sequence[Any]:
        return LabContract().native(message)


def test_the_codec_alone_is_tested_and_the_rest_skips_by_name() -> None:
    told = {}
    for name in CLAUSES:
        try:
            getattr(OnlyCodec(), name)()
        except pytest.skip.Exception as skipped:
            told[name] = str(skipped)
    codec = {name for name in CLAUSES if name not in told}
    assert {"test_pairs_hold_at_every_cut", "test_small_windows_hold_what_is_sent"} <= codec
    assert all(re.search("drive|thinking|edit", why) for why in told.values()), told
    assert "drive()" in told["test_outcomes_are_what_happened"]


def test_a_script_taken_too_early_is_told_as_that() -> None:
    class Eager(LabContract):
        def drive(self, memory: Any, key: str, request: str, script: Any) -> Any:
            return super().drive(memory, key, request, list(script))

    with pytest.raises(AssertionError, match="took the script's steps before the model was asked"):
        Eager().test_the_snapshot_is_pinned_through_the_loop()


def test_a_host_that_uses_another_key_is_told() -> None:
    class Renamed(LabContract):
        def drive(self, memory: Any, key: str, request: str, script: Any) -> Any:
            return super().drive(memory, f"renamed-{key}", request, script)

    with pytest.raises(AssertionError, match="has to use the key it is given"):
        Renamed().test_everything_is_sealed_exactly_once()


@pytest.mark.parametrize("missing", ["adapter", "native"])
def test_what_has_to_be_overridden_says_so(missing: str) -> None:
    class Bare(AdapterContract[Any]):
        pass

    with pytest.raises(NotImplementedError, match=f"override {missing}"):
        getattr(Bare(), missing)(*([] if missing == "adapter" else [optchat.HostMessage.user("x")]))


def test_the_wires_that_are_held_to_it_are_the_public_ones() -> None:
    held = {type(wire.adapter) for wire in (CHAT, RESPONSES, MESSAGES)}
    assert held == {OpenAIChat, OpenAIResponses, AnthropicMessages}
    assert LabContract.host is LabHost
