"""
§ 16: small-window models get a valid bounded request or an explicit error; bytes are not mistaken for tokens.

Every window is tried from the smallest that is one to where everything fits.
"""

import itertools
import re

import pytest

import optchat
from optchat.core.errors import ContextTooLarge, CoverTooLarge
from optchat.core.refs import Span, parse_ref
from optchat.engine.neutral import MESSAGE_TOKENS
from tests.acceptance.conftest import Open

Turn = optchat.Turn[optchat.HostMessage]
Context = optchat.Context[optchat.HostMessage]
OUTPUT, INSTRUCTIONS, RESERVE = 100, 50, 20


class Bytes:
    """A tokenizer that could not be finer: a token a byte."""

    name = "bytes-1"

    def count(self, text: str, /) -> int:
        return len(text.encode())


class Words:
    """And one far coarser than any real one."""

    name = "words-1"

    def count(self, text: str, /) -> int:
        return len(text.split())


TOKENIZERS: list[optchat.Tokenizer] = [Bytes(), Words(), optchat.tokenizer_for(), optchat.tokenizer_for("gpt-5")]


def fill(memory: optchat.Memory, others: int = 12, own: int = 8) -> None:
    texts = ["the queue keeps messages", "队列会保存消息。", '\U0001f980\U0001f9ea\u0301 <tag> & "quote"', "x" * 300]
    for number in range(others):
        with memory.session(f"other-{number % 3}").turn(f"question {number}: {texts[number % 4]}") as turn:
            turn.assistant(f"answer {number}: " + texts[(number + 1) % 4] * 2)
    for number in range(own):
        with memory.session("b").turn(f"own {number}: {texts[number % 4]}") as turn:
            turn.assistant(f"reply {number}: {texts[(number + 2) % 4]}")
    memory.settle()


def check_charges(context: Context, budget: optchat.Budget, tokenizer: optchat.Tokenizer) -> None:
    """Each part counted once, by another hand than the one that charged it."""
    use = context.receipt.tokens
    assert use.left >= 0
    assert use.window == budget.window
    parts = (use.instructions, use.output, use.reserve, use.active, *use.blocks.values(), use.left)
    assert sum(parts) == budget.window
    assert (use.instructions, use.output, use.reserve) == (budget.instructions, budget.output, budget.reserve)
    counted = {each.kind: MESSAGE_TOKENS + tokenizer.count(each.text) for each in context.blocks}
    assert dict(use.blocks) == counted
    assert context.receipt.tokenizer == tokenizer.name


def spans(context: Context, kind: str) -> list[Span]:
    text = next((each.text for each in context.blocks if each.kind == kind), None)
    return [] if text is None else [parse_ref(line.split(" ")[0]).span for line in text.splitlines()[1:-1]]


def check_cover(shown: list[Span], through: int) -> None:
    assert [span.start for span in shown] == [0, *(span.end for span in shown)][: len(shown)]
    assert (shown[-1].end if shown else 0) == through


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.name)
def test_every_window_gives_a_valid_request_or_an_error(memory: optchat.Memory, tokenizer: optchat.Tokenizer) -> None:
    fill(memory)
    session = memory.session("b")
    whole = session.preview(optchat.Budget(10_000_000, OUTPUT, tokenizer=tokenizer), request="go on").receipt.tokens
    most = whole.window - whole.left + INSTRUCTIONS
    step = max(1, most // 150)
    windows = [*range(1, most, step), *range(most, most + 3)]
    outcomes: list[type[object]] = []
    for window in windows:
        budget = optchat.Budget(window, OUTPUT, INSTRUCTIONS, RESERVE, tokenizer)
        try:
            context = session.preview(budget, request="go on")
        except (ContextTooLarge, CoverTooLarge) as error:
            assert str(error).count("larger window"), error
            if isinstance(error, ContextTooLarge):
                assert error.tokens.window == window
            outcomes.append(type(error))
            continue
        outcomes.append(optchat.Context)
        check_charges(context, budget, tokenizer)
        check_cover(spans(context, "shared"), context.receipt.shared_through)
        check_cover(spans(context, "session"), context.receipt.session_through)
        assert context.messages[-1] == optchat.HostMessage.user("go on")
    kinds = [kind for kind, _ in itertools.groupby(outcomes)]
    assert kinds == [ContextTooLarge, CoverTooLarge, optchat.Context], "what a window holds, a larger one holds too"


@pytest.mark.parametrize("tokenizer", [TOKENIZERS[0], TOKENIZERS[-1]], ids=lambda tokenizer: tokenizer.name)
def test_the_edges_are_exact(memory: optchat.Memory, tokenizer: optchat.Tokenizer) -> None:
    """One token less than the fixed parts, or than the coarsest cover, is an error; as much, or more, is not."""
    fill(memory)
    session = memory.session("b")

    def outcome(window: int) -> type[object]:
        try:
            session.preview(optchat.Budget(window, OUTPUT, INSTRUCTIONS, RESERVE, tokenizer), request="go on")
        except (ContextTooLarge, CoverTooLarge) as error:
            return type(error)
        return optchat.Context

    fixed = OUTPUT + INSTRUCTIONS + RESERVE + MESSAGE_TOKENS + tokenizer.count("go on")
    assert outcome(fixed - 1) is ContextTooLarge
    assert outcome(fixed) is CoverTooLarge
    low, high = fixed, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if outcome(middle) is CoverTooLarge else (low, middle)
    assert [outcome(window) for window in range(high - 5, high + 100)] == [CoverTooLarge] * 5 + [optchat.Context] * 100


def test_a_turn_renders_again_when_the_window_shrinks(memory: optchat.Memory) -> None:
    fill(memory)
    with memory.session("b").turn("go on") as turn:
        roomy = turn.context(optchat.Budget(100_000, 100, tokenizer=Bytes()))
        tight = turn.context(optchat.Budget(8_000, 100, tokenizer=Bytes()))
        assert sum(len(each.text) for each in tight.blocks) < sum(len(each.text) for each in roomy.blocks)
        assert tight.receipt.why != roomy.receipt.why
        check_cover(spans(tight, "shared"), 20)
        check_cover(spans(tight, "session"), 16)
        again = turn.context(optchat.Budget(100_000, 100, tokenizer=Bytes()))
        assert again.blocks == tight.blocks, "what was cut stays cut: a provider's cache keeps it"
        with pytest.raises(CoverTooLarge):
            turn.context(optchat.Budget(1_500, 100, tokenizer=Bytes()))
        assert turn.context(optchat.Budget(8_000, 100, tokenizer=Bytes())).blocks == tight.blocks


def test_a_growing_transcript_takes_from_memory_up_to_its_share(memory: optchat.Memory) -> None:
    """From there on its older calls give way to a checkpoint (test_long_active_turn.py), and memory stays."""
    fill(memory)
    budget = optchat.Budget(12_000, 100, tokenizer=Bytes())
    with memory.session("b").turn("go on") as turn:
        seen: list[int] = []
        for number in range(40):
            context = turn.context(budget)
            check_charges(context, budget, budget.tokenizer or Bytes())
            blocks = dict(context.receipt.tokens.blocks)
            checkpoint = blocks.pop("checkpoint", 0)
            assert (checkpoint > 0) == (context.receipt.checkpointed > 0)
            assert context.receipt.tokens.active + checkpoint <= (12_000 - 100 - 512) // 2
            seen.append(sum(blocks.values()))
            turn.tool_call(f"c{number}", "read", "{}")
            turn.tool_result(f"c{number}", "y" * 500)
        assert turn.context(budget).receipt.checkpointed > 40
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] < seen[0]
        assert turn.messages[-1].parts[0] == optchat.ToolResultPart("c39", (optchat.TextPart("y" * 500),))


def test_a_request_that_leaves_no_room_is_too_large_by_itself(memory: optchat.Memory) -> None:
    fill(memory)
    with (
        memory.session("b").turn("x" * 3_000) as turn,
        pytest.raises(ContextTooLarge, match="request and the newest calls; use a larger window") as raised,
    ):
        turn.context(optchat.Budget(4_000, 100, tokenizer=Bytes()))
    assert raised.value.tokens.active == MESSAGE_TOKENS + 3_000
    assert raised.value.tokens.window == 4_000


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_under_pressure_memory_is_shared_out_as_the_policy_says(open_memory: Open, share: float) -> None:
    memory = open_memory(policy=optchat.Policy(shared_share=share, previous_exchange=False))
    fill(memory, others=60, own=60)
    tokenizer = Bytes()
    whole = memory.session("b").preview(optchat.Budget(10_000_000, 0, reserve=0, tokenizer=tokenizer))
    available = min(whole.receipt.tokens.blocks["shared"], whole.receipt.tokens.blocks["session"])
    tight = memory.session("b").preview(optchat.Budget(available, 0, reserve=0, tokenizer=tokenizer))
    blocks = tight.receipt.tokens.blocks
    assert blocks["shared"] / (available - blocks["guidance"]) == pytest.approx(share, abs=0.06)
    assert sum(blocks.values()) <= available


def test_what_one_side_does_not_need_the_other_has(memory: optchat.Memory) -> None:
    fill(memory, others=60, own=1)
    whole = (
        memory.session("b").preview(optchat.Budget(10_000_000, 0, reserve=0, tokenizer=Bytes())).receipt.tokens.blocks
    )
    tight = memory.session("b").preview(optchat.Budget(sum(whole.values()) - 500, 0, reserve=0, tokenizer=Bytes()))
    assert tight.receipt.tokens.blocks["session"] == whole["session"]
    assert tight.receipt.tokens.blocks["shared"] > 0.7 * whole["shared"]


def test_a_ceiling_of_the_policy_holds_in_any_window(open_memory: Open) -> None:
    memory = open_memory(policy=optchat.Policy(memory_max_tokens=3_000))
    fill(memory, others=40)
    context = memory.session("b").preview(optchat.Budget(200_000, 1_000))
    assert sum(context.receipt.tokens.blocks.values()) <= 3_000


def test_bytes_are_not_tokens(memory: optchat.Memory) -> None:
    """The same text, two tokenizers: what fits is a matter of the one that counts."""
    fill(memory)
    session = memory.session("b")
    window = session.preview(optchat.Budget(10_000_000, 0, tokenizer=Words())).receipt.tokens
    enough = window.window - window.left
    fits = session.preview(optchat.Budget(enough, 0, tokenizer=Words()))
    assert fits.receipt.tokens.left == 0
    assert sum(len(each.text.encode()) for each in fits.blocks) > enough
    try:
        as_bytes = session.preview(optchat.Budget(enough, 0, tokenizer=Bytes()))
    except CoverTooLarge:
        return
    assert sum(len(each.text.encode()) for each in as_bytes.blocks) <= enough


def test_the_upper_bound_is_one(memory: optchat.Memory) -> None:
    """What fits by the default tokenizer fits by a model's own."""
    exact = optchat.tokenizer_for("gpt-5")
    if exact.name == optchat.tokenizer_for().name:
        pytest.skip("no exact tokenizer is at hand: install optchat[offline]")
    fill(memory)
    for window in range(3_000, 9_000, 500):
        try:
            context = memory.session("b").preview(optchat.Budget(window, 100), request="go on")
        except CoverTooLarge:
            continue
        assert sum(exact.count(each.text) + MESSAGE_TOKENS for each in context.blocks) <= window - 100


def test_a_view_can_be_asked_for_in_a_size(memory: optchat.Memory) -> None:
    fill(memory, others=40)
    whole = memory.view()
    for most in range(whole.tokens, 50, -whole.tokens // 20):
        view = memory.view(max_tokens=most)
        check_cover([parse_ref(line.ref).span for line in view.lines], whole.through)
        assert view.tokens <= most or len(view.lines) == len(memory.view(max_tokens=1).lines)
    assert len(re.findall(r"^pub:", whole.text, re.MULTILINE)) == len(whole.lines)


@pytest.mark.parametrize("budget", [(0, 1), (-1, 1), (1, -1), (1, 1, -1), (1, 1, 1, -1), (1.5, 1), ("9", 1)])
def test_a_budget_that_is_none(budget: tuple[int, ...]) -> None:
    with pytest.raises(optchat.BadArgument, match="tokens"):
        optchat.Budget(*budget)
