"""``python -m optchat``: the command line."""

from __future__ import annotations

from optchat.cli import main

if __name__ == "__main__":
    main()
