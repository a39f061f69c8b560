"""
How OpenAI's ``/v1/responses`` says an answer: its body, and its stream of events.

Decides: the items of an answer and the order of its events.
Refuses to know: sockets, and what a script is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optchat.testing.replies import Say, Usage


def body(say: Say, used: Usage, *, number: int, model: object) -> dict[str, Any]:
    """A response as the API gives it whole: reasoning, what is said, and each call are items of their own."""
    cut_off = say.ending == "length"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_767_600_000,
        "status": "incomplete" if cut_off else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": list(_items(say, number)),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": used.input_tokens,
            "output_tokens": used.output_tokens,
            "total_tokens": used.input_tokens + used.output_tokens,
            "input_tokens_details": {"cached_tokens": used.cache_read_tokens, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _items(say: Say, number: int) -> Iterator[dict[str, Any]]:
    if say.thinking:
        summary = [{"type": "summary_text", "text": say.thinking}]
        yield {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": "gAAAAA"}
    calls = say.made_calls(number)
    if say.text or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": say.text, "annotations": [], "logprobs": []}
        if say.ending == "refusal":
            part = {"type": "refusal", "refusal": say.text}
        said = {"role": "assistant", "status": "completed", "content": [part]}
        yield {"type": "message", "id": f"msg_{number}"} | said
    for call_id, name, arguments in calls:
        call = {"call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
        yield {"type": "function_call", "id": f"fc_{call_id}"} | call


def events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same response as a stream, each event with its type; the first two say that it has begun."""
    begun: dict[str, Any] = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        kind = item["type"]
        hollow: dict[str, Any] = dict(item)
        if kind == "message":
            hollow["content"] = []
        elif kind == "function_call":
            hollow["arguments"] = ""
        yield {"type": "response.output_item.added", "output_index": index, "item": hollow}
        if kind == "message":
            yield from _said(item["content"][0], {**at, "content_index": 0})
        elif kind == "function_call":
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _said(part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    refused = part["type"] == "refusal"
    key, name = ("refusal", "response.refusal") if refused else ("text", "response.output_text")
    logprobs: dict[str, Any] = {} if refused else {"logprobs": []}
    yield {"type": "response.content_part.added", **at, "part": {**part, key: ""}}
    yield {"type": f"{name}.delta", **at, "delta": part[key], **logprobs}
    yield {"type": f"{name}.done", **at, key: part[key], **logprobs}
    yield {"type": "response.content_part.done", **at, "part": part}
