"""Charts: heat maps, curves and scatters from plain numbers, with their axes and labels."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinysubnets.experiments.tables import size_text
from tinysubnets.report.drawing import SMALL, Drawing, Point, shortened, text_width
from tinysubnets.report.theme import MarkShape

Box = tuple[float, float, float, float]
Mark = tuple[float, float, float]

WIDTH = 400.0
"""The width of a picture: two fit beside each other on a desk, one fits a phone."""
MANY = 24  # with more tasks than this, every fifth is numbered


# Axes


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


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """A range that holds all values with some room on both sides."""
    low, high = min(values), max(values)
    room = (high - low) * share or abs(high) * share or 1.0
    return low - room, high + room


def short_size(num_bytes: float) -> str:
    """A round size for an axis.

    >>> short_size(500), short_size(2e4), short_size(2.5e6)
    ('500 B', '20 kB', '2.5 MB')
    """
    number, unit = size_text(num_bytes).split(" ")
    return f"{float(number):g} {unit}"


@dataclass(frozen=True)
class Frame:
    """The area of a chart on a drawing, in pixels, and the values that its sides stand for."""

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

    def draw_y(self, drawing: Drawing, label: str, count: int = 5, above: float = 14.0) -> None:
        """About `count` grid lines with their values, and the label so far above the frame."""
        values = ticks(*self.ys, count)
        short = (d for d in (0, 1) if all(abs(round(v, d) - v) < 1e-9 for v in values))
        decimals = next(short, 2)
        for value in values:
            y = self.y(value)
            drawing.line(((self.left, y), (self.right, y)), "grid")
            drawing.text(self.left - 7, y + 4, f"{value:.{decimals}f}", text_anchor="end")
        drawing.text(0, self.top - above, label)

    def draw_x(self, drawing: Drawing, marks: Sequence[tuple[float, str]], label: str) -> None:
        """Values below the chart, those that have room, and the label below them."""
        end = -1.0
        for value, text in marks:
            # The first and last text stay on the drawing, though their place is at its edge.
            half = text_width(text) / 2
            place = min(max(self.x(value), half), drawing.width - half)
            if place - half > end:
                drawing.text(place, self.bottom + 17, text, text_anchor="middle")
                end = place + half + 8
        drawing.text(self.right, self.bottom + 36, label, text_anchor="end")


def task_numbers(count: int) -> range:
    """The places of the tasks whose number is written on an axis."""
    return range(0, count, 1 if count <= MANY else 5)


# Heat maps


def heat_map(
    title: str,
    cells: Sequence[Sequence[float | None]],
    sides: tuple[str, str],
    show: Callable[[float], str],
    high: float = 1.0,
    tags: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Drawing:
    """A matrix of cells from 0 to `high`, the deeper the larger; `sides` name rows and columns.

    - `tags`: stand to the right of the rows, where rows are tall enough for text.
    - `names`: of the rows, behind their numbers; shortened or left out where there is no room.
    """
    rows, columns = len(cells), len(cells[0])
    room = WIDTH - 40 - (60 if tags else 0)
    labels = _row_labels(names, min(120.0, room - 30 * columns - 12)) or [""] * rows
    beside = max(text_width(label) for label in labels)
    beside += 12 if beside else 0
    side = min(44.0, (room - beside) / columns)
    gap, radius = (1.5, 3.0) if side > 20 else (0.4, 0.0)
    rest = WIDTH - side * columns - beside - (60 if tags else 0)
    left, top = max(37.0, rest / 2) + beside, 40.0
    right, bottom, middle = left + side * columns, top + side * rows, left + side * columns / 2
    drawing = Drawing(WIDTH, bottom + 44, title)
    drawing.text(middle, 13, sides[1], text_anchor="middle")
    turned = f"translate({left - 24 - beside} {(top + bottom) / 2}) rotate(-90)"
    drawing.text(0, 0, sides[0], text_anchor="middle", transform=turned)
    for i in task_numbers(columns):
        drawing.text(left + (i + 0.5) * side, top - 7, str(i + 1), text_anchor="middle")
    for i in task_numbers(rows):
        base = top + (i + 0.5) * side + 4
        drawing.text(left - 6, base, str(i + 1), text_anchor="end")
        if labels[i]:
            drawing.text(left - 24, base, labels[i], fill="ink", text_anchor="end")
    for i, tag in enumerate(tags if side >= 12 else ()):
        drawing.text(right + 8, top + (i + 0.5) * side + 4, tag, fill="ink")
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            x, y = left + j * side, top + i * side
            box = (x + gap / 2, y + gap / 2, side - gap, side - gap)
            where = f"{sides[0]} {_named(i, names)}, {sides[1]} {_named(j, names)}"
            if value is None:
                drawing.rect(*box, "grid", f"{where}: not defined", fill_opacity=0.5, rx=radius)
                continue
            depth = _depth(value / (high or 1.0))
            drawing.rect(*box, "heat", f"{where}: {show(value)}", fill_opacity=depth, rx=radius)
            if side >= 24:
                size, ink = min(SMALL + 0.5, side * 0.33), "on-heat" if depth > 0.55 else "ink"
                center, base = x + side / 2, y + side / 2 + size * 0.36
                number = show(value).removesuffix(" %")
                drawing.text(center, base, number, size, ink, text_anchor="middle")
    _heat_legend(drawing, middle, bottom + 18, show(0.0), show(high))
    return drawing


def _row_labels(names: Sequence[str], room: float) -> list[str]:
    """Names that fit, or none at all where hardly anything of them would."""
    least = 40.0
    return [shortened(name, room) for name in names] if names and room >= least else []


def _named(index: int, names: Sequence[str]) -> str:
    return f"{index + 1} ({names[index]})" if index < len(names) else str(index + 1)


def confusion_map(
    title: str, counts: Sequence[Sequence[int]], classes: Sequence[str], *, others: str = "other"
) -> Drawing:
    """How often each class, a row, is taken for each, a column; behind a row, its accuracy.

    - `counts`: of samples [true class, answered class], with one more column for other answers.
    - `classes`: their names.
    - `others`: the name of that column.
    """
    heads = [*classes, *[others] * (len(counts[0]) - len(classes))]
    beside = min(110.0, max(map(text_width, classes)))
    width = min(30.0, (WIDTH - beside - 62) / len(heads))
    height = min(24.0, max(13.5, width))
    is_level = max(map(text_width, heads)) <= width - 1
    above = 36.0 if is_level or width < 11 else 26 + min(84.0, max(map(text_width, heads)))
    left = beside + 8 + (WIDTH - beside - 62 - width * len(heads)) / 2
    right, bottom = left + width * len(heads), above + height * len(counts)
    drawing = Drawing(WIDTH, bottom + 6, title)
    drawing.text((left + right) / 2, 12, "taken for", SMALL - 1, "faint", text_anchor="middle")
    drawing.text(right + 48, 12, "right", SMALL - 1, "faint", text_anchor="end")
    for j, head in enumerate(heads if is_level or width >= 11 else ()):
        x = left + (j + 0.5) * width
        if is_level:
            drawing.text(x, above - 6, head, text_anchor="middle")
        else:
            turned = f"translate({x + 4:.2f} {above - 5:.2f}) rotate(-90)"
            drawing.text(0, 0, shortened(head, 84), transform=turned)
    gap = 1.5 if width > 16 else 0.5
    for i, (name, row) in enumerate(zip(classes, counts, strict=True)):
        y, total = above + i * height, sum(row)
        base = y + height / 2 + 4
        drawing.text(left - 7, base, shortened(name, 110), fill="ink", text_anchor="end")
        for j, count in enumerate(row):
            box = (left + j * width + gap / 2, y + gap / 2, width - gap, height - gap)
            note = f"{name} taken for {heads[j]}: {count} of {total}"
            color, depth = "grid", 0.4
            if count:
                color = "heat" if i == j else "warm"
                depth = _depth(count / total) if i == j else 0.25 + 0.75 * (count / total) ** 0.5
            drawing.rect(*box, color, note, fill_opacity=depth, rx=2 if width > 16 else 0)
            if count and width >= 22:
                ink = "on-heat" if depth > 0.55 else "ink"
                size = min(SMALL, (width - 4) / (0.61 * len(str(count))))
                drawing.text(box[0] + box[2] / 2, base, str(count), size, ink, text_anchor="middle")
        share = f"{100 * row[i] / total:.0f} %" if total else "–"
        drawing.text(right + 48, base, share, fill="ink", text_anchor="end", font_weight=600)
    return drawing


def class_bars(title: str, rows: Sequence[tuple[str, float, str]], mean: float) -> Drawing:
    """A bar from 0 to 100 % for each class: its name, its accuracy, and a remark behind the bar.

    - `rows`: name, accuracy as a fraction, remark.
    - `mean`: of all classes, drawn as a line.
    """
    beside, right, step = min(120.0, max(text_width(r[0]) for r in rows)), WIDTH - 44, 30.0
    left, top = beside + 8, 24.0
    drawing = Drawing(WIDTH, top + step * len(rows) + 4, title)
    x = left + mean * (right - left)
    for i, (name, accuracy, remark) in enumerate(rows):
        y = top + i * step
        drawing.text(left - 8, y + 11, shortened(name, 120), fill="ink", text_anchor="end")
        drawing.rect(left, y + 1, right - left, 12, "grid", fill_opacity=0.5, rx=3)
        note = f"{name}: {accuracy:.1%}"
        drawing.rect(left, y + 1, max(1.0, accuracy * (right - left)), 12, "heat", note, rx=3)
        shown = f"{100 * accuracy:.0f} %"
        drawing.text(WIDTH, y + 11, shown, fill="ink", text_anchor="end", font_weight=600)
        drawing.text(left, y + 24, shortened(remark, WIDTH - left), SMALL - 1, "faint")
    drawing.line(((x, top - 4), (x, top + step * len(rows) - 8)), "warm", 1.5)
    drawing.text(x, 12, "all classes", SMALL - 1, "faint", text_anchor="middle")
    return drawing


def _depth(share: float) -> float:
    """The opacity of a cell; 0 can still be told from the ground."""
    return 0.04 + 0.96 * min(1.0, max(0.0, share))


def _heat_legend(drawing: Drawing, middle: float, y: float, low: str, high: str) -> None:
    steps, width, clear = 24, 132.0, 1.0
    left, right = middle - width / 2, middle + width / 2
    for i in range(steps):
        # Each step lies over all that follow and adds what they lack, so that no seam shows.
        x, rest = left + i * width / steps, 1 - _depth(i / (steps - 1))
        drawing.rect(x, y, right - x, 8, "heat", fill_opacity=f"{1 - rest / clear:.4f}")
        clear = rest
    drawing.text(left - 7, y + 8, low, text_anchor="end")
    drawing.text(right + 7, y + 8, high)


# Curves


@dataclass(frozen=True)
class Curve:
    """One line of a chart; a label is written behind a mark at its end."""

    color: str
    points: Sequence[tuple[float, float]]
    note: str = ""
    label: str = ""
    shape: MarkShape = "disc"
    dash: bool = False


def curves(
    title: str, series: Sequence[Curve], labels: tuple[str, str], spans: Sequence[float] = ()
) -> Drawing:
    """Lines of percentages over a common axis.

    - `spans`: the places where one task ends and the next begins.
    """
    points = [p for c in series for p in c.points]
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    low, high = padded([p[1] for p in points])
    named = sorted((c for c in series if c.label), key=lambda c: -c.points[-1][1])
    room = max([12.0, *(text_width(c.label) + 13 for c in named)])
    height = max(224.0, 34.0 + 14 * len(named))
    xs = (first, last if last > first else first + 1)
    frame = Frame(40, 34, WIDTH - room, height, xs, (max(0.0, low), min(100.0, high)))
    drawing = Drawing(WIDTH, height + 44, title)
    frame.draw_y(drawing, labels[1], 4)
    for place in spans if len(spans) <= MANY else ():
        x = frame.x(place)
        drawing.line(((x, frame.top), (x, frame.bottom)), "grid")
    for curve in series:
        line = [(frame.x(x), frame.y(y)) for x, y in curve.points]
        dash = "4 4" if curve.dash else None
        drawing.line(line, curve.color, 1.75, curve.note, stroke_dasharray=dash)
        if len(line) == 1 and not curve.label:
            drawing.mark(*line[0], 3.5, curve.color, note=curve.note)
    # Names beside the ends of their lines, apart from each other where lines end together.
    ends = [(frame.x(c.points[-1][0]), frame.y(c.points[-1][1])) for c in named]
    places = spread_out([y for _, y in ends], 14.0, frame.top, frame.bottom)
    for curve, (x, end), y in zip(named, ends, places, strict=True):
        width = text_width(curve.label)  # no grid line strikes through a text
        drawing.rect(x + 8, y - 6, width + 4, 12, "surface", fill_opacity=0.85)
        if abs(y - end) > 1:
            drawing.line(((x, end), (x + 9, y)), curve.color)
        drawing.text(x + 10, y + 4, curve.label, fill="ink")
    for curve, (x, end) in zip(named, ends, strict=True):
        drawing.mark(x, end, 4.0, curve.color, curve.shape, note=curve.note)
    whole = [v for v in ticks(*xs) if v == round(v)]
    frame.draw_x(drawing, [(v, f"{v:.0f}") for v in whole], labels[0])
    return drawing


def spread_out(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places near the wanted ones, at least a gap apart, inside the bounds if they fit.

    >>> spread_out([5.0, 5.0, 20.0], 4.0, 0.0, 30.0)
    [3.0, 7.0, 20.0]
    """
    groups: list[tuple[float, int]] = []  # center and count of places that stand side by side
    for place in wanted:
        groups.append((place, 1))
        while len(groups) > 1:
            (above, m), (below, n) = groups[-2:]
            if below - above >= (m + n) / 2 * gap:
                break
            groups[-2:] = [((above * m + below * n) / (m + n), m + n)]
    out = []
    for center, count in groups:
        reach = (count - 1) / 2 * gap
        middle = min(max(center, low + reach), max(low + reach, high - reach))
        out += [middle - reach + i * gap for i in range(count)]
    return out


# Scatter


FEW = 8  # with more labels than this, each shows its mark again and the picture grows
HEAD, LOWEST, TALLEST = 28.0, 264.0, 900.0  # where labels may begin and the chart may end
LINE_HEIGHT = 13.0
_SWATCH = 11.0  # the room of the mark before a label


@dataclass(frozen=True)
class Dot:
    """A point of a scatter: its bytes, its accuracy as a fraction, and how it is shown.

    - `curve`: points with the same one are joined by a line, from the smallest to the largest.
    """

    x: float
    y: float
    color: str
    label: str = ""
    shape: MarkShape = "disc"
    hollow: bool = False
    size: float = 5.5
    note: str = ""
    curve: str = ""


def size_scatter(title: str, dots: Sequence[Dot]) -> Drawing:
    """Accuracy against bytes; logarithmic where sizes differ much.

    The picture is as tall as its labels need to stand apart.
    """
    crowd = max(0, sum(bool(d.label) for d in dots) - FEW)
    swatch = _SWATCH if crowd else 0.0
    # Marks of a crowd are smaller; hollow ones lie below.
    dots = [replace(d, size=d.size * (0.8 if crowd else 1)) for d in dots]
    dots = sorted(dots, key=lambda d: not d.hollow)
    named = [d for d in dots if d.label]
    widths = [text_width(d.label) + swatch + 2 for d in named]
    height = LOWEST + 9.0 * crowd
    while True:
        frame = _scatter_frame(dots, height, HEAD + (36.0 if crowd else 12.0))
        marks = [(frame.x(d.x), frame.y(d.y * 100), d.size) for d in dots]
        owners = [mark for mark, dot in zip(marks, dots, strict=True) if dot.label]
        places = place_labels(owners, widths, marks, (frame.left - 5, HEAD, WIDTH, height))
        pairs = itertools.combinations(places, 2)
        if height >= TALLEST or not any(overlap(a.box, b.box) for a, b in pairs):
            break
        height += 40.0
    drawing = Drawing(WIDTH, height + 44, title)
    frame.draw_y(drawing, "mean accuracy, %", above=frame.top - HEAD + 8)
    values = log_ticks(*frame.xs) if frame.log_x else ticks(*frame.xs, 4)
    frame.draw_x(drawing, [(v, short_size(v)) for v in values], "bytes, smaller is better")
    for curve in dict.fromkeys(d.curve for d in dots if d.curve):
        joined = sorted((d for d in dots if d.curve == curve), key=lambda d: d.x)
        points = [(frame.x(d.x), frame.y(d.y * 100)) for d in joined]
        drawing.line(points, joined[0].color, 1.6, stroke_opacity=0.55)
    for left, top, right, bottom in (p.box for p in places):
        # No line strikes through a text.
        size = (right - left, bottom - top - 2)
        drawing.rect(left, top + 1, *size, "surface", fill_opacity=0.85)
    for dot, place in zip(named, places, strict=True):
        if place.start != place.end:
            drawing.line((place.start, place.end), dot.color)
    for dot, mark in zip(dots, marks, strict=True):
        drawing.mark(*mark, dot.color, dot.shape, dot.hollow, dot.note)
    for dot, place in zip(named, places, strict=True):
        left, _, _, bottom = place.box
        if crowd:
            drawing.mark(left + 4, bottom - 6.5, 3.4, dot.color, dot.shape, dot.hollow)
        drawing.text(left + swatch, bottom - 3, dot.label, fill="soft" if dot.hollow else "ink")
    return drawing


def _scatter_frame(dots: Sequence[Dot], height: float, top: float) -> Frame:
    """The chart's area with the ranges that hold all dots."""
    sizes = [d.x for d in dots]
    log = max(sizes) > 6 * min(sizes)
    xs = (min(sizes) / 1.5, max(sizes) * 1.9) if log else (0.0, max(sizes) * 1.12 * 1.06)
    low, high = padded([d.y * 100 for d in dots], 0.16)
    return Frame(40, top, WIDTH - 8, height, xs, (max(0.0, low), min(100.0, high + 0.01)), log)


# Labels of a scatter. Boxes are left, top, right, bottom; marks are x, y, radius. What is wrong
# with a place is counted in pixels that a label would rather be farther off.
_ON_LABEL, _ON_MARK = 4000.0, 900.0
_LINE_ON_LABEL, _LINE_ON_MARK = 140.0, 60.0
_BESIDE = ((4.0, 0), (4.0, 8), (2.0, 12), (2.0, 4))  # gap and sixteenths of a turn; best first
_RINGS = (14.0, 24.0, 36.0, 50.0, 66.0, 84.0, 104.0, 128.0)


class Place(NamedTuple):
    """A place of a label, what is wrong with it, and the line to it from its mark.

    Right beside its mark a label needs no line: it ends where it starts.
    """

    box: Box
    start: Point
    end: Point
    cost: float


def place_labels(
    owners: Sequence[Mark], widths: Sequence[float], marks: Sequence[Mark], region: Box
) -> list[Place]:
    """A place in the region for every label, near its mark and clear of marks and other labels.

    Each label in turn takes the place that is best as the others stand, a few times over. Who goes
    first matters, so some orders are tried, always the same ones. Where there is no room, labels
    overlap.
    """
    choices = [_choices(o, w, marks, region) for o, w in zip(owners, widths, strict=True)]
    mixing, order, found = random.Random(0), list(range(len(choices))), []
    for _ in range(min(24, 9600 // max(1, len(choices)) ** 2) + 1):
        mixing.shuffle(order)
        places: dict[int, Place] = {}
        for i in order * 4:
            now = places.pop(i, choices[i][0])
            places[i] = _best((now, *choices[i]), places.values())
        found.append([places[i] for i in range(len(choices))])
    return min(found, key=_total)


def _total(places: Sequence[Place]) -> float:
    pairs = itertools.combinations(places, 2)
    return sum(p.cost for p in places) + sum(_between(a, b) for a, b in pairs)


def _best(choices: Sequence[Place], others: Collection[Place]) -> Place:
    """The best place as the others stand; a bad one is left early, and most are bad."""
    best, least = choices[0], math.inf
    for place in choices:
        cost = place.cost
        for other in others:
            if cost >= least:
                break
            cost += _between(place, other)
        if cost < least:
            best, least = place, cost
    return best


def _between(one: Place, two: Place) -> float:
    """How much two labels and their lines are in each other's way."""
    if overlap(one.box, two.box):
        return _ON_LABEL
    struck = _meets(one.start, one.end, two.box) + _meets(two.start, two.end, one.box)
    return _LINE_ON_LABEL * struck


def _choices(owner: Mark, w: float, marks: Sequence[Mark], region: Box) -> list[Place]:
    """The places a label could take: beside its mark, and on rings around it."""
    (x, y, radius), h, (left, top, right, bottom) = owner, LINE_HEIGHT, region
    rims = [(u - r + 1.5, v - r + 1.5, u + r - 1.5, v + r - 1.5) for u, v, r in marks]
    others = [b for b in rims if not (b[0] < x < b[2] and b[1] < y < b[3])]
    found = []
    rings = [(gap, turn) for gap in _RINGS for turn in range(16)]
    for rank, (gap, turn) in enumerate((*_BESIDE, *rings)):
        # The side or corner of the box that faces the mark is on the ring, unless the region ends.
        dx, dy = math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)
        u = x + (radius + gap) * dx - w * (1 - dx) / 2
        v = y + (radius + gap) * dy - h * (1 - dy) / 2
        u, v = min(max(u, left), max(left, right - w)), min(max(v, top), max(top, bottom - h))
        box, end = (u, v, u + w, v + h), (min(max(x, u), u + w), min(max(y, v), v + h))
        length = math.dist(end, (x, y))
        if rank < len(_BESIDE):
            end, cost = (x, y), 2.0 * rank + _ON_MARK * (length < radius + 1.5)
        else:
            cost = 12 + length + length**2 / 100 + _ON_MARK * (length <= radius + 3)
        cost += _ON_MARK * sum(overlap(box, b) for b in rims)
        cost += _LINE_ON_MARK * sum(_meets((x, y), end, b) for b in others)
        found.append(Place(box, (x, y), end, cost))
    return sorted(found, key=lambda p: p.cost)


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _meets(start: Point, end: Point, box: Box) -> bool:
    """Whether a line passes through a box."""
    (x, y), (u, v), (left, top, right, bottom) = start, end, box
    if max(x, u) <= left or min(x, u) >= right or max(y, v) <= top or min(y, v) >= bottom:
        return False  # as most are, so that this saves the rest
    first, last = 0.0, 1.0
    for place, step, low, high in ((x, u - x, left, right), (y, v - y, top, bottom)):
        if step:
            near, far = sorted(((low - place) / step, (high - place) / step))
            first, last = max(first, near), min(last, far)
    return first < last
