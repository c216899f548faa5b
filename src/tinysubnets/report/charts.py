"""Charts: heat map, scatter, lines, columns and stems, from plain numbers to drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinysubnets.report.axes import (
    NORMAL,
    SMALL,
    WIDTH,
    Frame,
    number_form,
    padded,
    size_text,
    ticks,
)
from tinysubnets.report.drawing import Drawing, Line, Mark, Rect, Text, text_width
from tinysubnets.report.theme import PARTS, MarkShape

Cells = Sequence[Sequence[float | None]]
MANY = 12  # with more rows than this, cells carry no numbers


@dataclass(frozen=True)
class Scale:
    """The values between which a heat map runs, and how it writes them."""

    low: float
    high: float
    show: Callable[[float], str]


def heat_map(
    title: str,
    cells: Cells,
    scale: Scale,
    sides: tuple[str, str],
    tags: Sequence[str] = (),
) -> Drawing:
    """A matrix of cells, the deeper the larger; `sides` name what rows and columns are.

    `tags` stand to the right of the rows, where rows are tall enough for text.
    """
    rows, columns = len(cells), len(cells[0])
    side = min(44.0, (WIDTH - 40 - (60 if tags else 0)) / columns)
    width, height = side * columns, side * rows
    left, top = max(37.0, (WIDTH - width) / 2), 40.0
    drawing = Drawing(WIDTH, top + height + 44, title)
    middle = left + width / 2
    drawing.add(Text(middle, 13, sides[1], SMALL, "soft", "middle"))
    drawing.add(Text(left - 24, top + height / 2, sides[0], SMALL, "soft", "middle", turned=True))
    step = 1 if columns <= 2 * MANY else 5
    for i in range(0, columns, step):
        drawing.add(Text(left + (i + 0.5) * side, top - 7, str(i + 1), SMALL, "soft", "middle"))
    for i in range(0, rows, step):
        drawing.add(Text(left - 6, top + (i + 0.5) * side + 4, str(i + 1), SMALL, "soft", "end"))
    for i, tag in enumerate(tags if side >= 12 else ()):
        drawing.add(Text(left + width + 8, top + (i + 0.5) * side + 4, tag, SMALL, "ink"))
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            place = (left + j * side, top + i * side)
            _cell(drawing, place, side, value, scale, f"{sides[0]} {i + 1}, {sides[1]} {j + 1}")
    _heat_legend(drawing, middle, top + height + 18, scale)
    return drawing


def _cell(
    drawing: Drawing,
    place: tuple[float, float],
    side: float,
    value: float | None,
    scale: Scale,
    where: str,
) -> None:
    (x, y), gap = place, 1.5 if side > 20 else 0.4
    box = (x + gap / 2, y + gap / 2, side - gap, side - gap)
    radius = 3.0 if side > 20 else 0.0
    if value is None:
        drawing.add(Rect(*box, "grid", 0.5, radius, f"{where}: not defined"))
        return
    depth = _depth(value, scale)
    drawing.add(Rect(*box, "heat", depth, radius, f"{where}: {scale.show(value)}"))
    label = scale.show(value).removesuffix(" %")
    if side >= 24:
        ink = "on-heat" if depth > 0.55 else "ink"
        size = min(SMALL + 0.5, side * 0.33)
        drawing.add(Text(x + side / 2, y + side / 2 + size * 0.36, label, size, ink, "middle"))


def _depth(value: float, scale: Scale) -> float:
    share = (value - scale.low) / ((scale.high - scale.low) or 1.0)
    return 0.04 + 0.96 * min(1.0, max(0.0, share))


def _heat_legend(drawing: Drawing, middle: float, y: float, scale: Scale) -> None:
    steps, width = 24, 132.0
    left = middle - width / 2
    for i in range(steps):
        depth = 0.04 + 0.96 * i / (steps - 1)
        drawing.add(Rect(left + i * width / steps, y, width / steps + 0.2, 8, "heat", depth))
    drawing.add(Text(left - 7, y + 8, scale.show(scale.low), SMALL, "soft", "end"))
    drawing.add(Text(left + width + 7, y + 8, scale.show(scale.high), SMALL, "soft"))


@dataclass(frozen=True)
class Curve:
    """One line of a chart; a label is written at its end, behind a mark."""

    colour: str
    points: tuple[tuple[float, float], ...]
    note: str = ""
    label: str = ""
    shape: MarkShape = "disc"
    dash: bool = False


def curves(
    title: str, series: Sequence[Curve], labels: tuple[str, str], spans: Sequence[float] = ()
) -> Drawing:
    """Lines over a common axis; `spans` are places where one task ends and the next begins."""
    points = [p for c in series for p in c.points]
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    xs = (first, last if last > first else first + 1)
    low, high = padded([p[1] for p in points])
    named = [c for c in series if c.label]
    room = max([12.0, *(text_width(c.label, SMALL) + 22 for c in named)])
    height = max(224.0, 34.0 + 14 * len(named))
    frame = Frame(40, 34, WIDTH - room, height, xs, (max(0.0, low), high))
    drawing = Drawing(WIDTH, height + 44, title)
    marks = ticks(*frame.ys, 4)
    frame.draw_y(drawing, marks, number_form(marks), labels[1])
    for place in spans if len(spans) <= 2 * MANY else ():
        x = frame.x(place)
        drawing.add(Line(((x, frame.top), (x, frame.bottom)), "grid"))
    for curve in series:
        line = tuple((frame.x(x), frame.y(y)) for x, y in curve.points)
        drawing.add(Line(line, curve.colour, 1.75, curve.dash, note=curve.note))
        if len(line) == 1:
            drawing.add(Mark(*line[0], 3.5, curve.colour, note=curve.note))
    _end_labels(drawing, frame, named)
    whole = [v for v in ticks(*xs) if v == round(v)]
    frame.draw_x(drawing, [(v, f"{v:.0f}") for v in whole], labels[0])
    return drawing


def _end_labels(drawing: Drawing, frame: Frame, named: Sequence[Curve]) -> None:
    """Names beside the ends of their lines, apart from each other where lines end together."""
    ordered = sorted(named, key=lambda c: -c.points[-1][1])
    wanted = [frame.y(c.points[-1][1]) for c in ordered]
    for curve, y in zip(ordered, spread_out(wanted, 14.0, frame.top, frame.bottom), strict=True):
        x, end = frame.x(curve.points[-1][0]), frame.y(curve.points[-1][1])
        drawing.add(Line(((x, end), (x + 9, y)), curve.colour, 1.0))
        drawing.add(Mark(x + 12, y, 4.0, curve.colour, curve.shape))
        drawing.add(Text(x + 19, y + 4, curve.label, SMALL, "ink"))


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places near the wanted ones, at least a gap apart, inside the bounds if they fit.

    >>> spread_out([5.0, 5.0, 20.0], 4.0, 0.0, 30.0)
    [3.0, 7.0, 20.0]
    """
    groups: list[list[float]] = []  # centre and count of places that stand side by side
    for place in wanted:
        groups.append([place, 1.0])
        while len(groups) > 1:
            (above, m), (below, n) = groups[-2:]
            if below - above >= (m + n) / 2 * gap:
                break
            groups[-2:] = [[(above * m + below * n) / (m + n), m + n]]
    out = []
    for centre, count in groups:
        reach = (count - 1) / 2 * gap
        middle = min(max(centre, low + reach), max(low + reach, high - reach))
        out += [middle - reach + i * gap for i in range(int(count))]
    return out


def task_columns(
    title: str, accuracies: Sequence[float], parts: Sequence[Mapping[str, float]]
) -> Drawing:
    """Each task's accuracy as a dot above its bytes as a stacked column."""
    count = len(accuracies)
    low, high = padded([a * 100 for a in accuracies], 0.25)
    above = Frame(46, 34, WIDTH - 6, 130, (0, count), (max(0.0, low), min(100.0, high + 0.01)))
    drawing = Drawing(WIDTH, 350, title)
    marks = ticks(*above.ys, 3)
    above.draw_y(drawing, marks, number_form(marks), "accuracy at the end, %")
    for i, value in enumerate(accuracies):
        note = f"task {i + 1}: {value:.2%}"
        size = min(5.5, 120 / count)
        drawing.add(Mark(above.x(i + 0.5), above.y(value * 100), size, "accent", note=note))
    largest = max([sum(p.values()) for p in parts] or [0.0]) or 1.0
    below = Frame(46, 178, WIDTH - 6, 306, (0, count), (0, largest * 1.05))
    unit, name = (1e6, "MB") if largest >= 1e6 else (1e3, "kB") if largest >= 1e3 else (1, "bytes")
    scaled = Frame(46, 178, WIDTH - 6, 306, (0, count), (0, largest * 1.05 / unit))
    values = ticks(*scaled.ys, 4)
    scaled.draw_y(drawing, values, number_form(values), f"size, {name}")
    for i, part in enumerate(parts):
        _stack(drawing, below, i, part)
    step = 1 if count <= 2 * MANY else 5
    below.draw_x(drawing, [(i + 0.5, str(i + 1)) for i in range(0, count, step)], "task")
    return drawing


def _stack(drawing: Drawing, frame: Frame, column: int, part: Mapping[str, float]) -> None:
    share = 0.62 if len(part) and frame.xs[1] <= MANY else 0.8
    left, right = frame.x(column + 0.5 - share / 2), frame.x(column + 0.5 + share / 2)
    base = 0.0
    for name in PARTS:
        value = part.get(name, 0.0)
        top, bottom = frame.y(base + value), frame.y(base)
        if bottom - top > 0.05:
            note = f"task {column + 1}, {name}: {size_text(value)}"
            gap = 0.75 if bottom - top > 2.5 else 0.0
            drawing.add(Rect(left, top, right - left, bottom - top - gap, name, note=note))
        base += value


def ledger_bar(title: str, parts: Mapping[str, float], dense_bytes: float) -> Drawing:
    """The whole model as one stacked bar, and a line per part with bytes and shares."""
    shown = [n for n in PARTS if parts.get(n, 0.0) > 0]
    total = sum(parts[n] for n in shown) or 1.0
    drawing = Drawing(WIDTH, 92 + 23 * len(shown), title)
    drawing.add(Text(0, 19, size_text(total), 18, "ink", bold=True))
    note = f"{total / dense_bytes:.1%} of one dense float32 net, {size_text(dense_bytes)}"
    drawing.add(Text(WIDTH, 18, note, SMALL, "soft", "end"))
    left = 0.0
    for name in shown:
        width = parts[name] / total * WIDTH
        label = f"{name}: {size_text(parts[name])}"
        drawing.add(Rect(left, 32, max(0.5, width - 1.5), 26, name, note=label))
        left += width
    for i, name in enumerate(shown):
        y = 86 + 23 * i
        drawing.add(Rect(0, y - 10, 12, 12, name, 1.0, 2.0), Text(20, y, name, NORMAL))
        drawing.add(Text(WIDTH - 132, y, size_text(parts[name]), NORMAL, "ink", "end"))
        drawing.add(Text(WIDTH - 66, y, f"{parts[name] / total:.1%}", NORMAL, "soft", "end"))
        share = f"{parts[name] / dense_bytes:.2%}"
        drawing.add(Text(WIDTH, y, share, NORMAL, "soft", "end"))
    drawing.add(Text(WIDTH - 132, 70, "bytes", SMALL - 1, "faint", "end"))
    drawing.add(Text(WIDTH - 66, 70, "share", SMALL - 1, "faint", "end"))
    drawing.add(Text(WIDTH, 70, "of dense", SMALL - 1, "faint", "end"))
    return drawing
