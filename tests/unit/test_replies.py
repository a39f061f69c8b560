"""Replies that refuse or call a tool without their provider saying so; and texts that only look like it (§ 10)."""

import json

import pytest

from optchat.core.replies import calls_tool, declines

SOURCE = ("assistant: We use the existing broker, because it persists.",)

REFUSALS = [
    "I can't help with that.",
    "I can\u2019t help with that.",
    "I cannot assist with this request.",
    "I'm sorry, but I can't help with that.",
    "I'm sorry, but I cannot summarize this content.",
    "I am so sorry; I can't assist with that request.",
    "Sorry, I cannot comply.",
    "Sorry - I won't be able to help with that.",
    "I apologize, but I'm not able to provide a summary of this text.",
    "Unfortunately, I am unable to process this.",
    "As an AI language model, I cannot summarise material of this kind. Please consult an expert.",
    "I must decline.",
    "I must respectfully decline to write this line.",
    "I have to decline this request.",
    "I won't do that.",
    "I will not produce this.",
    "I'm not comfortable with this.",
    "I do not feel comfortable summarizing this conversation.",
    "I can't\nhelp with that.",
]

SUMMARIES = [
    "assistant: says that it can't help with that",
    "assistant: I can't help with that",
    "user: I cannot assist on Friday",
    "I cannot reach the broker from the staging host; port 5672 is refused",
    "I'm sorry about the outage; the broker was restarted at 12:04",
    "I can help with that.",
    "The assistant can't help with the deployment.",
    "Sorry for the noise: the test was flaky.",
    "I won the argument about Redis.",
    "Unfortunately the migration failed.",
    "I'm sorry, but I can't provide exact sizes. user: asked for a queue; assistant: chose the broker",
    "I refused the connection on port 5672",
    "I decline\u2014the log level is a setting",
]


@pytest.mark.parametrize("reply", REFUSALS)
def test_a_reply_that_is_nothing_but_a_refusal_is_one(reply: str) -> None:
    assert declines(reply, SOURCE)
    assert declines(f"  {reply}\n", SOURCE)


@pytest.mark.parametrize("reply", SUMMARIES)
def test_a_summary_that_sounds_like_a_refusal_is_none(reply: str) -> None:
    assert not declines(reply, SOURCE)


@pytest.mark.parametrize(
    "source",
    [
        "assistant: I'm sorry, but I can't help with that.",
        "user: why did it answer \u201cI cannot assist with this request\u201d?",
        "tool_result: {'refusal': 'I must decline to answer'}",
        "assistant: I won\u2019t do that; deleting the table needs your word.",
    ],
)
def test_where_a_source_refuses_its_summary_may_say_so(source: str) -> None:
    for reply in REFUSALS:
        assert not declines(reply, [*SOURCE, source])


def test_a_long_reply_is_no_refusal() -> None:
    assert not declines("I can't help with that. " + "The broker persists. " * 60, SOURCE)


CALLS = [
    '<tool_call>{"name": "zoom", "arguments": {"ref": "0+1"}}</tool_call>',
    '<tool_call>\n{"name": "zoom"}',
    "<function_call name='zoom'/>",
    '<function_calls><invoke name="zoom"></invoke></function_calls>',
    "<function=zoom>{}</function>",
    '[TOOL_CALLS] [{"name": "zoom"}]',
    '<|python_tag|>zoom("0+1")',
    "<\uff5ctool\u2581calls\u2581begin\uff5c>zoom",
    'Let me look. <tool_call>{"name": "zoom"}</tool_call>',
    json.dumps({"tool_calls": [{"id": "c1", "function": {"name": "zoom", "arguments": "{}"}}]}),
    json.dumps({"name": "zoom", "arguments": {"ref": "0+1"}}),
    json.dumps({"name": "zoom", "parameters": {}}),
    json.dumps([{"type": "tool_use", "id": "t1", "name": "zoom", "input": {}}]),
    json.dumps({"type": "function", "function": {"name": "zoom"}}),
    json.dumps({"function_call": {"name": "zoom"}}),
    '```json\n{"name": "zoom", "arguments": {}}\n```',
]

TALK = [
    "tool_call: zoom 0+1",
    "assistant: called zoom with <ref>",
    "tool_result: the function zoom was called, name and arguments as given",
    '{"status": "ok", "name": "queue"}',
    '["a", "b"]',
    "[1, 2",
    "{not json}",
    "[" * 50_000,
    'assistant: sends {"name": "zoom", "arguments": {}}',
]


@pytest.mark.parametrize("reply", CALLS)
def test_a_tool_call_written_as_text_is_one(reply: str) -> None:
    assert calls_tool(reply, SOURCE)
    assert calls_tool(f"\n{reply} ", SOURCE)


@pytest.mark.parametrize("reply", CALLS)
def test_a_summary_may_quote_the_call_that_its_source_shows(reply: str) -> None:
    assert not calls_tool(reply, [*SOURCE, f"user: what is {reply} for?"])


@pytest.mark.parametrize("reply", TALK)
def test_talk_of_tools_is_no_call(reply: str) -> None:
    assert not calls_tool(reply, SOURCE)
