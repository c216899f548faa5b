"""The theme: the colours of pages and pictures, by name, in light and in dark.

The seven colours of the ledger are those of Okabe and Ito, which people with colour-blindness tell
apart; tasks take a ramp from blue to amber whose lightness rises steadily, so that their order
reads without colour as well.
"""

from __future__ import annotations

from typing import Literal

MarkShape = Literal["disc", "square", "diamond", "triangle"]

PARTS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "metadata")
"""The lines of the ledger, in the order in which they are drawn."""

LIGHT: dict[str, str] = {
    "page": "#f6f6f3",
    "surface": "#ffffff",
    "ink": "#1c1f24",
    "soft": "#565c66",
    "faint": "#8a909a",
    "grid": "#e4e5e2",
    "edge": "#dddeda",
    "accent": "#1f5fa8",
    "heat": "#17518f",
    "on-heat": "#ffffff",
    "warm": "#b4530a",
    "codes": "#0072b2",
    "codebooks": "#56b4e9",
    "masks": "#e69f00",
    "heads": "#009e73",
    "task_params": "#cc79a7",
    "memory": "#d55e00",
    "metadata": "#8d939c",
    "series-1": "#0072b2",
    "series-2": "#d55e00",
    "series-3": "#009e73",
    "series-4": "#aa4499",
    "series-5": "#b8860b",
    "series-6": "#56b4e9",
    "series-7": "#6a3d9a",
    "series-8": "#595f69",
}

DARK: dict[str, str] = {
    **LIGHT,
    "page": "#131519",
    "surface": "#1b1e24",
    "ink": "#eceef1",
    "soft": "#aab0ba",
    "faint": "#7b828d",
    "grid": "#2c3038",
    "edge": "#2f343c",
    "accent": "#7db4ee",
    "heat": "#6db3f5",
    "on-heat": "#0d1a28",
    "warm": "#f0a35e",
    "codes": "#3d9bd6",
    "heads": "#2dbb91",
    "memory": "#ee7d2b",
    "series-1": "#4aa3dd",
    "series-2": "#ee7d2b",
    "series-3": "#2dbb91",
    "series-4": "#cf7bc0",
    "series-5": "#d9ad3a",
    "series-6": "#8acdf5",
    "series-7": "#a98ae0",
    "series-8": "#9aa1ac",
}

_SHAPES: tuple[MarkShape, ...] = ("disc", "square", "diamond", "triangle")
NUM_SERIES = 8
"""How many colours there are for things compared; more of them differ by their marks."""

_RAMP = ("#4a57b8", "#2f7fc1", "#1fa0a0", "#55b56a", "#b0b83a", "#e3a12a")


def task_colour(index: int, count: int) -> str:
    """The colour of a task, by its place among all tasks; it stands on light and on dark."""
    place = index / max(1, count - 1) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    return mix(_RAMP[low], _RAMP[low + 1], place - low)


def series(index: int) -> tuple[str, MarkShape]:
    """The colour and the mark of one of several things compared; the first 32 all differ.

    >>> series(0), series(1), series(8)
    (('series-1', 'disc'), ('series-2', 'square'), ('series-1', 'square'))
    """
    turn, place = divmod(index, NUM_SERIES)
    return f"series-{place + 1}", _SHAPES[(place + turn) % len(_SHAPES)]


def mix(one: str, two: str, share: float) -> str:
    """A colour between two: 0 gives the first, 1 the second.

    >>> mix("#000000", "#ffffff", 0.5)
    '#808080'
    """
    pairs = [(int(one[i : i + 2], 16), int(two[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def variables(theme: dict[str, str]) -> str:
    """A theme as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in theme.items())
