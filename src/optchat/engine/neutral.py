"""
The codec of sessions without an adapter.

Decides: that neutral messages are their own native form, and what one costs.
Refuses to know: any provider. Pairing is checked by who sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from optchat.core.errors import BadArgument
from optchat.core.messages import BlobPart, HostMessage, ReportPart, TextPart, ToolCallPart, ToolResultPart
from optchat.core.ports import HostInfo, MemoryBlock, Tokenizer, WireAdapter

MESSAGE_TOKENS: Final = 4  # role and the marks around a message, as chat formats have them
CALL_TOKENS: Final = 8
IMAGE_TOKENS: Final = 1_100
FILE_BYTES_PER_TOKEN: Final = 4


def blob_tokens(blob: BlobPart) -> int:
    """An image's usual cost at most providers; another file by its size, if that is known, as text would cost."""
    if blob.media_type.startswith("image/") or blob.data is None:
        return IMAGE_TOKENS
    return max(IMAGE_TOKENS, len(blob.data) // FILE_BYTES_PER_TOKEN)


class NeutralAdapter(WireAdapter[HostMessage]):
    """Neutral messages in, the same out."""

    @property
    def info(self) -> HostInfo:
        return HostInfo(name="local")

    def decode(self, message: HostMessage, /) -> Sequence[HostMessage]:
        if not isinstance(message, HostMessage):
            raise BadArgument(f"{type(message).__name__} is no message; give a HostMessage, or the session an adapter")
        return (message,)

    def encode(self, blocks: Sequence[MemoryBlock], /) -> Sequence[HostMessage]:
        """A user message a block, so that a changed block leaves the messages before it as they were."""
        return tuple(HostMessage.user(block.text) for block in blocks)

    def count(self, message: HostMessage, tokenizer: Tokenizer, /) -> int:
        total = MESSAGE_TOKENS
        for part in message.parts:
            match part:
                case TextPart(text):
                    total += tokenizer.count(text)
                case BlobPart():
                    total += blob_tokens(part)
                case ReportPart(name, text):
                    total += tokenizer.count(name) + tokenizer.count(text)
                case ToolCallPart(call_id, name, arguments):
                    total += CALL_TOKENS + sum(map(tokenizer.count, (call_id, name, arguments)))
                case ToolResultPart(call_id, content):
                    total += CALL_TOKENS + tokenizer.count(call_id)
                    for item in content:
                        total += tokenizer.count(item.text) if isinstance(item, TextPart) else blob_tokens(item)
        return total

    def rebuild(self, messages: Sequence[HostMessage], /) -> Sequence[HostMessage]:
        return tuple(messages)
