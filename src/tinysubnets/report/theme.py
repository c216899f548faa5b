"""The theme: the colors of pages and pictures, by name, in light and in dark.

The colors of the ledger are those of Okabe and Ito, which people with color blindness tell
apart; tasks take a ramp from blue to amber whose lightness rises steadily, so that their order
reads without color as well.
"""

from __future__ import annotations

from typing import Literal

MarkShape = Literal["disc", "square", "diamond", "triangle"]

PARTS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "routing", "metadata")
"""The lines of the ledger, in the order in which they are drawn."""

_COLORS = {  # light, dark
    "page": ("#f6f6f3", "#131519"),
    "surface": ("#ffffff", "#1b1e24"),
    "ink": ("#1c1f24", "#eceef1"),
    "soft": ("#565c66", "#aab0ba"),
    "faint": ("#8a909a", "#7b828d"),
    "grid": ("#e4e5e2", "#2c3038"),
    "edge": ("#dddeda", "#2f343c"),
    "shade": ("#b9bbb6", "#515a68"),
    "accent": ("#1f5fa8", "#7db4ee"),
    "heat": ("#17518f", "#6db3f5"),
    "on-heat": ("#ffffff", "#0d1a28"),
    "warm": ("#b4530a", "#f0a35e"),
    "codes": ("#0072b2", "#3d9bd6"),
    "codebooks": ("#56b4e9", "#56b4e9"),
    "masks": ("#e69f00", "#e69f00"),
    "heads": ("#009e73", "#2dbb91"),
    "task_params": ("#cc79a7", "#cc79a7"),
    "memory": ("#d55e00", "#ee7d2b"),
    "routing": ("#b5a900", "#f0e442"),
    "metadata": ("#8d939c", "#8d939c"),
    "series-1": ("#0072b2", "#4aa3dd"),
    "series-2": ("#d55e00", "#ee7d2b"),
    "series-3": ("#009e73", "#2dbb91"),
    "series-4": ("#aa4499", "#cf7bc0"),
    "series-5": ("#b8860b", "#d9ad3a"),
    "series-6": ("#56b4e9", "#8acdf5"),
    "series-7": ("#6a3d9a", "#a98ae0"),
    "series-8": ("#595f69", "#9aa1ac"),
}
LIGHT = {name: light for name, (light, _) in _COLORS.items()}
DARK = {name: dark for name, (_, dark) in _COLORS.items()}

_SHAPES: tuple[MarkShape, ...] = ("disc", "square", "diamond", "triangle")
NUM_SERIES = 8
"""How many colors there are for things compared; more of them differ by their marks."""

_RAMP = ("#4a57b8", "#2f7fc1", "#1fa0a0", "#55b56a", "#b0b83a", "#e3a12a")


def task_color(index: int, count: int) -> str:
    """The color of a task, by its place among all tasks; it stands on light and on dark."""
    place = index / max(1, count - 1) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    return mix(_RAMP[low], _RAMP[low + 1], place - low)


def series(index: int) -> tuple[str, MarkShape]:
    """The color and the mark of one of several things compared; the first 32 all differ.

    >>> series(0), series(1), series(8)
    (('series-1', 'disc'), ('series-2', 'square'), ('series-1', 'square'))
    """
    turn, place = divmod(index, NUM_SERIES)
    return f"series-{place + 1}", _SHAPES[(place + turn) % len(_SHAPES)]


def mix(one: str, two: str, share: float) -> str:
    """A color between two: 0 gives the first, 1 the second.

    >>> mix("#000000", "#ffffff", 0.5)
    '#808080'
    """
    pairs = [(int(one[i : i + 2], 16), int(two[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def variables(theme: dict[str, str]) -> str:
    """A theme as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in theme.items())
