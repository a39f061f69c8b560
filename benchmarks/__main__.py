"""
All figures in one table.

    python -m benchmarks [--records 200000] [--folder DIRECTORY] [--keep DIRECTORY] [--write]

``--write`` puts the table into docs/benchmarks.md, with the machine's class; what is said about it is written by hand.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

import apsw

from benchmarks import append, cache, frontier, recall, scale, stable_prefix, workers
from benchmarks._table import Figure, markdown, show

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def machine() -> str:
    """The class of machine, without its name."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{os.cpu_count()} cores ({model}), {platform.system()}, Python {python},"
        f" SQLite {apsw.sqlite_lib_version()}; load average at the end {load}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="of single appends")
    parser.add_argument("--records", type=int, default=200_000, help="in the large file")
    parser.add_argument("--folder", type=Path, help="where files are made; on the disk that is to be measured")
    parser.add_argument("--keep", type=Path, help="a folder in which the histories are kept for later runs")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    found: list[Figure] = []
    for part in (
        lambda: append.figures(options.folder, options.rounds),
        lambda: scale.figures(options.folder, options.records, options.keep),
        frontier.figures,
        recall.figures,
        lambda: workers.figures(options.folder),
        stable_prefix.figures,
        cache.figures,
    ):
        figures = part()
        show(figures)
        found += figures
    print(machine())
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        table = f"{BEGIN}\n\n{markdown(found)}\n\n{machine()}.\n\n{END}"
        PAGE.write_text(before + table + after, encoding="utf-8")


if __name__ == "__main__":
    main()
