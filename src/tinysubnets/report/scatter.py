"""Scatter: accuracy against bytes, with a label beside each dot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinysubnets.report.axes import (
    SMALL,
    WIDTH,
    Frame,
    log_ticks,
    number_form,
    padded,
    short_size,
    ticks,
)
from tinysubnets.report.drawing import Drawing, Line, Mark, Text, text_width


@dataclass(frozen=True)
class Dot:
    """A point of a scatter; a label is written beside it."""

    x: float
    y: float
    colour: str
    label: str = ""
    shape: Literal["disc", "square", "diamond", "triangle"] = "disc"
    hollow: bool = False
    size: float = 5.5
    note: str = ""


def size_scatter(title: str, dots: Sequence[Dot]) -> Drawing:
    """Accuracy (a fraction) against bytes; logarithmic where sizes differ much."""
    sizes = [d.x for d in dots]
    log = max(sizes) > 6 * min(sizes)
    xs = (min(sizes) / 1.5, max(sizes) * 1.9) if log else padded([*sizes, 0.0], 0.12)
    xs = xs if log else (0.0, xs[1] * 1.06)
    low, high = padded([d.y * 100 for d in dots], 0.16)
    frame = Frame(40, 34, WIDTH - 8, 264, xs, (max(0.0, low), min(100.0, high + 0.01)), log)
    drawing = Drawing(WIDTH, 308, title)
    marks = ticks(*frame.ys)
    frame.draw_y(drawing, marks, number_form(marks), "mean accuracy, %")
    values = log_ticks(*xs) if log else ticks(*xs, 4)
    frame.draw_x(drawing, [(v, short_size(v)) for v in values], "bytes, smaller is better")
    for dot in sorted(dots, key=lambda d: not d.hollow):
        x, y = frame.x(dot.x), frame.y(dot.y * 100)
        drawing.add(Mark(x, y, dot.size, dot.colour, dot.shape, dot.hollow, dot.note))
    _label_dots(drawing, frame, dots)
    return drawing


Box = tuple[float, float, float, float]


def _label_dots(drawing: Drawing, frame: Frame, dots: Sequence[Dot]) -> None:
    """Write labels beside their dots: the first place that touches no dot and no other label.

    Where no place at the dot is free, the label stands farther off, with a line to its dot.
    """
    taken: list[Box] = []
    for dot in dots:
        x, y, r = frame.x(dot.x), frame.y(dot.y * 100), dot.size - 1.5
        taken.append((x - r, y - r, x + r, y + r))
    for dot in sorted((d for d in dots if d.label), key=lambda d: d.hollow):
        x, y, ink = frame.x(dot.x), frame.y(dot.y * 100), "soft" if dot.hollow else "ink"
        near, far = _places(frame, dot)
        free = [b for b in (*near, *far) if not any(_touch(b, t) for t in taken)]
        box = (free or near or far)[0]
        taken.append(box)
        if box in far:
            end = (min(max(x, box[0]), box[2]), box[1] if box[1] > y else box[3])
            drawing.shapes.insert(0, Line(((x, y), end), dot.colour))
        drawing.add(Text(box[0], box[3] - 3, dot.label, SMALL, ink, bold=not dot.hollow))


def _places(frame: Frame, dot: Dot) -> tuple[list[Box], list[Box]]:
    """Where a label could stand at its dot, and farther off."""
    width = text_width(dot.label, SMALL) * 1.1
    x, y, room = frame.x(dot.x), frame.y(dot.y * 100), dot.size + 5
    right, left, middle = x + room, x - room - width, x - width / 2
    near = ((right, 4.0), (left, 4.0), (middle, -room), (middle, room + 9))
    far = [(p, s) for s in (32.0, -26.0, 46.0, -40.0) for p in (middle, right, left)]

    def boxes(places: Sequence[tuple[float, float]]) -> list[Box]:
        return [
            (p, y + shift - 10, p + width, y + shift + 3)
            for p, shift in places
            if frame.left - 5 <= p <= WIDTH - width and frame.top - 10 < y + shift < frame.bottom
        ]

    return boxes(near), boxes(far) or [(WIDTH - width, y - 24, WIDTH, y - 11)]


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
