"""
Figures and the one table that they make.

A figure says what it was wanted to be and whether it is: a table that hides what falls short would be of no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen


@frozen
class Figure:
    """One row. ``met``: None where nothing is aimed at."""

    what: str
    value: str
    aim: str = ""
    met: bool | None = None


def at_most(what: str, value: float, aim: float, unit: str, note: str = "") -> Figure:
    return Figure(what, f"{value:.2f}{unit}{note}", f"≤ {aim:g}{unit}", value <= aim)


def at_least(what: str, value: float, aim: float, unit: str, note: str = "") -> Figure:
    return Figure(what, f"{value:.2f}{unit}{note}", f"≥ {aim:g}{unit}", value >= aim)


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which that share lies; of an empty list there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def p50(values: Iterable[float]) -> float:
    return percentile(values, 0.5)


def markdown(figures: Sequence[Figure]) -> str:
    """The table as it stands in the docs."""
    rows = ["| what | measured | aim | met |", "|---|---:|---:|---|"]
    for figure in figures:
        met = "" if figure.met is None else "yes" if figure.met else "**no**"
        rows.append(f"| {figure.what} | {figure.value} | {figure.aim} | {met} |")
    return "\n".join(rows)


def show(figures: Sequence[Figure]) -> None:
    """The table for a terminal."""
    width = max(len(figure.what) for figure in figures)
    for figure in figures:
        met = "" if figure.met is None else "met" if figure.met else "NOT MET"
        print(f"{figure.what:{width}}  {figure.value:>26}  {figure.aim:>14}  {met}", flush=True)
