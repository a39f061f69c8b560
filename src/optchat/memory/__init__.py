"""
The façade that people hold: Memory, Session, Turn. Synchronous; the one implementation.

Decides: how use cases look to a caller.
Refuses to know: SQL, and what a summarizer does.
"""

from optchat.memory.memory import Memory
from optchat.memory.opening import ScopeInfo, open, scopes_of  # noqa: A004 - `optchat.open` is the contract's name
from optchat.memory.reader import Reader
from optchat.memory.receipts import KeptReceipt, kept_receipt
from optchat.memory.session import Session
from optchat.memory.turn import Turn

__all__ = [
    "KeptReceipt",
    "Memory",
    "Reader",
    "ScopeInfo",
    "Session",
    "Turn",
    "kept_receipt",
    "open",
    "scopes_of",
]
