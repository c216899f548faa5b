"""Scatter: accuracy against bytes, with a label beside each dot or a line to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from tinysubnets.report.drawing import Drawing, Line, Mark, Rect, Shape, Text, text_width
from tinysubnets.report.labels import Box, Label, Placed, place, touching
from tinysubnets.report.theme import MarkShape

FEW = 8  # with more labels than this, each shows its mark again and the picture grows
HEAD, LOWEST, TALLEST = 28.0, 264.0, 900.0  # where labels may begin and the chart may end
_SWATCH = 11.0  # the room of the mark before a label


@dataclass(frozen=True)
class Dot:
    """A point of a scatter; a label is written beside it."""

    x: float
    y: float
    colour: str
    label: str = ""
    shape: MarkShape = "disc"
    hollow: bool = False
    size: float = 5.5
    note: str = ""


def size_scatter(title: str, dots: Sequence[Dot]) -> Drawing:
    """Accuracy (a fraction) against bytes; logarithmic where sizes differ much.

    The picture is as tall as its labels need to stand apart.
    """
    crowd = max(0, sum(bool(d.label) for d in dots) - FEW)
    dots = [replace(d, size=d.size * 0.8) for d in dots] if crowd else dots
    height = LOWEST + 9.0 * crowd
    while True:
        frame = _frame(dots, height, HEAD + (12.0 if not crowd else 36.0))
        labels = _labels(frame, dots, bool(crowd))
        placed = place(labels, _occupied(frame, dots), (frame.left - 5, HEAD, WIDTH, frame.bottom))
        if height >= TALLEST or not touching(placed):
            return _drawn(title, dots, frame, placed, bool(crowd))
        height += 40.0


def _frame(dots: Sequence[Dot], height: float, top: float) -> Frame:
    """The chart's area with the ranges that hold all dots."""
    sizes = [d.x for d in dots]
    log = max(sizes) > 6 * min(sizes)
    xs = (min(sizes) / 1.5, max(sizes) * 1.9) if log else padded([*sizes, 0.0], 0.12)
    xs = xs if log else (0.0, xs[1] * 1.06)
    low, high = padded([d.y * 100 for d in dots], 0.16)
    return Frame(40, top, WIDTH - 8, height, xs, (max(0.0, low), min(100.0, high + 0.01)), log)


def _named(dots: Sequence[Dot]) -> list[Dot]:
    return [d for d in dots if d.label]


def _labels(frame: Frame, dots: Sequence[Dot], swatches: bool) -> list[Label]:
    room = 2.0 + (_SWATCH if swatches else 0.0)
    return [
        Label(frame.x(d.x), frame.y(d.y * 100), d.size, text_width(d.label, SMALL) + room, 13.0)
        for d in _named(dots)
    ]


def _occupied(frame: Frame, dots: Sequence[Dot]) -> list[Box]:
    out = []
    for dot in dots:
        x, y, r = frame.x(dot.x), frame.y(dot.y * 100), dot.size - 1.5
        out.append((x - r, y - r, x + r, y + r))
    return out


def _drawn(
    title: str, dots: Sequence[Dot], frame: Frame, placed: Sequence[Placed], swatches: bool
) -> Drawing:
    """Grid, lines to labels, dots and labels, from back to front."""
    drawing = Drawing(WIDTH, frame.bottom + 44, title)
    marks = ticks(*frame.ys)
    frame.draw_y(drawing, marks, number_form(marks), "mean accuracy, %", frame.top - HEAD + 8)
    values = log_ticks(*frame.xs) if frame.log_x else ticks(*frame.xs, 4)
    frame.draw_x(drawing, [(v, short_size(v)) for v in values], "bytes, smaller is better")
    grounds: list[Shape] = []
    lines: list[Shape] = []
    texts: list[Shape] = []
    for dot, spot in zip(_named(dots), placed, strict=True):
        left, top, right, bottom = spot.box
        lines += [] if spot.line is None else [Line(spot.line, dot.colour)]
        # No grid line strikes through a text.
        grounds.append(Rect(left, top + 1, right - left, bottom - top - 2, "surface", 0.85))
        if swatches:
            texts.append(Mark(left + 4, bottom - 6.5, 3.4, dot.colour, dot.shape, dot.hollow))
            left += _SWATCH
        ink = "soft" if dot.hollow else "ink"
        texts.append(Text(left, bottom - 3, dot.label, SMALL, ink))
    drawing.add(*grounds, *lines)
    for dot in sorted(dots, key=lambda d: not d.hollow):
        x, y = frame.x(dot.x), frame.y(dot.y * 100)
        drawing.add(Mark(x, y, dot.size, dot.colour, dot.shape, dot.hollow, dot.note))
    drawing.add(*texts)
    return drawing
