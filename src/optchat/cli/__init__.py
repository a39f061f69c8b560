"""
``optchat …``: the command line (extra ``cli``).

Decides: nothing of memory. It names what the façade does and shows what it answers; here, that its packages are there.
Refuses to know: everything below the public names.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """
    Run the command line on ``sys.argv`` and exit: 0, 1 where a check failed, 2 for usage and for errors of the library.

    The command is installed whether or not its extra is, so the packages are looked for only now.
    """
    try:
        from optchat.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"click", "rich"}:
            raise
        sys.stderr.write("optchat: the command line needs its extra; install it with: pip install 'optchat[cli]'\n")
        sys.exit(2)
    sys.exit(run())
