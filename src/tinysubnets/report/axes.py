"""Axes: round tick values, and the frame of a chart with its grid and labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinysubnets.report.drawing import Drawing, Line, Text, text_width

WIDTH = 400.0
"""The width of a picture: two fit beside each other on a desk, one fits a phone."""
SMALL, NORMAL = 11.5, 12.5


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values from low to high.

    >>> ticks(0, 100), ticks(0.93, 0.99, 4)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.94, 0.96, 0.98])
    """
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    digits = max(0, 2 - math.floor(math.log10(step)))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, digits) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten between low and high; fewer where they would crowd."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]
        if len(values) <= 6:
            break
    return values or [low]


def padded(values: list[float], share: float = 0.08) -> tuple[float, float]:
    """A range that holds all values with some room on both sides."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def size_text(num_bytes: float) -> str:
    """A size for people.

    >>> size_text(900), size_text(12345), size_text(3.2e6)
    ('900 B', '12.3 kB', '3.20 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:.2f} MB"


def short_size(num_bytes: float) -> str:
    """A round size for an axis.

    >>> short_size(500), short_size(2e4), short_size(2.5e6)
    ('500 B', '20 kB', '2.5 MB')
    """
    number, unit = size_text(num_bytes).split(" ")
    return f"{float(number):g} {unit}"


def number_form(marks: Sequence[float]) -> str:
    """A number format with as many decimals as the ticks need."""
    return next((f for f in ("{:.0f}", "{:.1f}") if all(_fits(f, m) for m in marks)), "{:.2f}")


def _fits(form: str, value: float) -> bool:
    return abs(float(form.format(value)) - value) < 1e-9


@dataclass(frozen=True)
class Frame:
    """The area of a chart on a drawing, and what its sides stand for."""

    left: float
    top: float
    right: float
    bottom: float
    xs: tuple[float, float]
    ys: tuple[float, float]
    log_x: bool = False

    def x(self, value: float) -> float:
        """Where a value stands from left to right."""
        low, high = self.xs
        if self.log_x:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value stands from top to bottom."""
        low, high = self.ys
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def draw_y(
        self, drawing: Drawing, values: list[float], form: str, label: str, above: float = 14.0
    ) -> None:
        """Grid lines with their values, and the label so far above the frame."""
        for value in values:
            height = self.y(value)
            drawing.add(
                Line(((self.left, height), (self.right, height)), "grid"),
                Text(self.left - 7, height + 4, form.format(value), SMALL, "soft", "end"),
            )
        drawing.add(Text(0, self.top - above, label, SMALL, "soft"))

    def draw_x(self, drawing: Drawing, marks: list[tuple[float, str]], label: str) -> None:
        """Values below the chart, those that have room, and the label below them."""
        end = -1.0
        for value, text in marks:
            # The first and last text stay on the drawing, though their place is at its edge.
            half = text_width(text, SMALL) / 2
            place = min(max(self.x(value), half), drawing.width - half)
            if place - half > end:
                drawing.add(Text(place, self.bottom + 17, text, SMALL, "soft", "middle"))
                end = place + half + 8
        drawing.add(Text(self.right, self.bottom + 36, label, SMALL, "soft", "end"))
