"""
Translates. One host a module, each a codec; no rule of memory is decided here.

Decides: nothing; it names what every integration needs.
Refuses to know: any host's SDK.
"""

from optchat.adapters.checking import check_host

__all__ = ["check_host"]
