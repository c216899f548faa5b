"""Placement of labels: beside their points, none on another, with lines to those farther off."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Point = tuple[float, float]

_RINGS = (14.0, 24.0, 36.0, 50.0, 66.0, 84.0, 104.0, 128.0)
_ANGLES = 16
_PASSES = 8
# What is wrong with a place, in pixels that a label would rather be farther off.
_ON_LABEL, _ON_POINT = 4000.0, 900.0
_LINE_ON_LABEL, _LINE_ON_LINE, _LINE_ON_POINT = 140.0, 70.0, 60.0


@dataclass(frozen=True)
class Label:
    """A text of some width and height that belongs to a point of some radius."""

    x: float
    y: float
    radius: float
    width: float
    height: float


@dataclass(frozen=True)
class Placed:
    """Where a label stands, and the line to its point unless it stands right beside it."""

    box: Box
    line: tuple[Point, Point] | None
    cost: float


def place(labels: Sequence[Label], points: Sequence[Box], region: Box) -> list[Placed]:
    """A place in the region for every label, near its point and clear of points and other labels.

    Each label in turn takes the place that is best as the others stand, until none moves; who goes
    first matters, so some orders are tried, always the same ones. Where there is no room, labels
    touch; see `touching`.
    """
    choices = [_choices(label, points, region) for label in labels]
    order = sorted(range(len(labels)), key=lambda i: (labels[i].x, labels[i].y))
    mixing, best = random.Random(0), _settled(choices, order)
    for _ in range(min(24, 9600 // max(1, len(labels)) ** 2)):
        mixing.shuffle(order)
        best = min(best, _settled(choices, order), key=_total)
    return best


def _settled(choices: Sequence[Sequence[Placed]], order: Sequence[int]) -> list[Placed]:
    chosen: dict[int, Placed] = {}
    for _ in range(_PASSES):
        before = dict(chosen)
        for i in order:
            others = [p for j, p in chosen.items() if j != i]
            chosen[i] = _best(choices[i], others, chosen.get(i))
        if chosen == before:
            break
    return [chosen[i] for i in range(len(choices))]


def _total(placed: Sequence[Placed]) -> float:
    pairs = sum(_between(a, b) for i, a in enumerate(placed) for b in placed[:i])
    return pairs + sum(p.cost for p in placed)


def touching(placed: Sequence[Placed]) -> bool:
    """Whether any two labels overlap."""
    boxes = [p.box for p in placed]
    return any(touch(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def touch(a: Box, b: Box) -> bool:
    """Whether two boxes overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _best(options: Sequence[Placed], others: Sequence[Placed], now: Placed | None) -> Placed:
    best, least = now or options[0], math.inf
    if now is not None:
        least = now.cost + sum(_between(now, other) for other in others)
    for option in options:  # from the cheapest by itself, so the rest need not be looked at
        if option.cost >= least:
            break
        cost = option.cost
        for other in others:
            cost += _between(option, other)
            if cost >= least:
                break
        else:
            best, least = option, cost
    return best


def _between(one: Placed, two: Placed) -> float:
    """How much two labels and their lines are in each other's way."""
    if touch(one.box, two.box):
        return _ON_LABEL
    cost = 0.0
    if one.line is not None:
        cost += _LINE_ON_LABEL * _meets(one.line, two.box)
    if two.line is not None:
        cost += _LINE_ON_LABEL * _meets(two.line, one.box)
    if one.line is not None and two.line is not None:
        cost += _LINE_ON_LINE * _crosses(one.line, two.line)
    return cost


def _choices(label: Label, points: Sequence[Box], region: Box) -> list[Placed]:
    """The places a label could take, the best by itself first."""
    x, y, w, h, gap = label.x, label.y, label.width, label.height, label.radius + 4
    sides = [(x + gap, y - h / 2), (x - gap - w, y - h / 2)]
    sides += [(x - w / 2, y - gap - h + 2), (x - w / 2, y + gap - 2)]
    near = [Placed(_box(*p, label), None, 2.0 * i) for i, p in enumerate(sides)]
    wanted = near + _farther(label) + _anywhere(label, region)
    found = [_judged(p, label, points) for p in wanted if _inside(p.box, region)]
    if not found:  # a label as wide as the picture: at its edge, whatever lies there
        left = min(max(x - w / 2, region[0]), max(region[0], region[2] - w))
        top = min(max(y - gap - h, region[1]), region[3] - h)
        found = [Placed(_box(left, top, label), None, 0.0)]
    return sorted(found, key=lambda p: p.cost)


def _farther(label: Label) -> list[Placed]:
    """Places on rings around the point, each with a line to it."""
    out = []
    for ring in _RINGS:
        for step in range(_ANGLES):
            dx, dy = (f(2 * math.pi * step / _ANGLES) for f in (math.cos, math.sin))
            # The side or corner that faces the point is on the ring.
            reach = label.radius + ring
            left = label.x + reach * dx - label.width * (1 - dx) / 2
            top = label.y + reach * dy - label.height * (1 - dy) / 2
            out += _led(_box(left, top, label), label)
    return out


def _anywhere(label: Label, region: Box) -> list[Placed]:
    """Places in rows over the whole region, for those that find none nearer."""
    count = int((region[3] - region[1]) / label.height)
    spare = max(0.0, region[2] - region[0] - label.width)
    return [
        spot
        for row in range(count)
        for share in (0.0, 0.5, 1.0)
        for spot in _led(
            _box(region[0] + share * spare, region[1] + row * label.height, label), label
        )
    ]


def _led(box: Box, label: Label) -> list[Placed]:
    """The place with a line from the point to its nearest edge; none on the point itself."""
    end = (min(max(label.x, box[0]), box[2]), min(max(label.y, box[1]), box[3]))
    length = math.dist(end, (label.x, label.y))
    near = length <= label.radius + 3
    return [] if near else [Placed(box, ((label.x, label.y), end), 12 + length + length**2 / 100)]


def _judged(place: Placed, label: Label, points: Sequence[Box]) -> Placed:
    """The place with what points in its way cost."""
    cost = place.cost + _ON_POINT * sum(touch(place.box, p) for p in points)
    if place.line is not None:
        others = [p for p in points if not p[0] < label.x < p[2] or not p[1] < label.y < p[3]]
        cost += _LINE_ON_POINT * sum(_meets(place.line, p) for p in others)
    return Placed(place.box, place.line, cost)


def _box(left: float, top: float, label: Label) -> Box:
    return (left, top, left + label.width, top + label.height)


def _inside(box: Box, region: Box) -> bool:
    starts = box[0] >= region[0] and box[1] >= region[1]
    return starts and box[2] <= region[2] and box[3] <= region[3]


def _meets(line: tuple[Point, Point], box: Box) -> bool:
    """Whether a line passes through a box."""
    (x, y), (u, v) = line
    left, top, right, bottom = box
    if (x <= left and u <= left) or (x >= right and u >= right):
        return False  # as most are, so that this saves the rest
    if (y <= top and v <= top) or (y >= bottom and v >= bottom):
        return False
    first, last = 0.0, 1.0
    for start, step, low, high in ((x, u - x, left, right), (y, v - y, top, bottom)):
        if step:
            near, far = sorted(((low - start) / step, (high - start) / step))
            first, last = max(first, near), min(last, far)
    return first < last


def _crosses(one: tuple[Point, Point], two: tuple[Point, Point]) -> bool:
    """Whether two lines cross."""

    def side(a: Point, b: Point, c: Point) -> float:
        return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

    return (
        side(*one, two[0]) * side(*one, two[1]) < 0 and side(*two, one[0]) * side(*two, one[1]) < 0
    )
