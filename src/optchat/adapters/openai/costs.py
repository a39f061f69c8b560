"""
What messages and media cost at OpenAI, as both its wires charge them.

Decides: the tokens of framing, calls, images and files; where a model is unknown, those of the dearest usual one.
Refuses to know: where in a message they stand.
"""

from typing import Final

from optchat.adapters.natives import FILE_BYTES_PER_TOKEN, base64_bytes

MESSAGE_TOKENS: Final = 4  # the marks around a message and its role; 3 and 1 by the provider's cookbook
CALL_TOKENS: Final = 8
LOW_DETAIL_TOKENS: Final = 85
HIGH_DETAIL_TOKENS: Final = 1_445  # 85 and 170 for each tile of 512 pixels: the most that fit 768 by 2,048
ORIGINAL_DETAIL_TOKENS: Final = 10_000


def image_tokens(detail: object) -> int:
    """An image's tokens by the detail that was asked for, whatever the length of its base64."""
    return {"low": LOW_DETAIL_TOKENS, "original": ORIGINAL_DETAIL_TOKENS}.get(str(detail), HIGH_DETAIL_TOKENS)


def file_tokens(data: object) -> int:
    """A file's tokens by its size; one given by id or address has no known size, and is charged as one image."""
    return max(HIGH_DETAIL_TOKENS, base64_bytes(data) // FILE_BYTES_PER_TOKEN)
