"""
What the database lies on.

Decides: which filesystems are known to be remote. There SQLite's shared index and record locks do not hold.
Refuses to know: every other one, which is taken for local.
"""

from __future__ import annotations

import re
from pathlib import Path

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs"})
_MOUNTS = Path("/proc/self/mounts")  # Linux; elsewhere the platform does not tell
_ESCAPED = re.compile(r"\\([0-7]{3})")


def network_filesystem(path: Path) -> str | None:
    """Return the type of the network filesystem that an absolute path lies on; None for a local or an unknown one."""
    try:
        table = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    return network_type(path, table)


def network_type(path: Path, mounts: str) -> str | None:
    """As ``network_filesystem``, by a mount table in the format of ``/proc/mounts``."""
    depth, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        # Of two mounts on one folder the later hides the earlier.
        if path.is_relative_to(mount) and len(mount.parts) >= depth:
            depth, kind = len(mount.parts), fields[2]
    return kind if kind in _NETWORK else None
