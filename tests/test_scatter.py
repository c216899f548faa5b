"""The picture of accuracy against bytes: marks and labels that can be told apart."""

from __future__ import annotations

import functools
import itertools
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import pytest

import chromium
from tinysubnets.experiments.methods import METHODS
from tinysubnets.report import charts
from tinysubnets.report.charts import WIDTH, Curve, Dot, curves, overlap, place_labels, size_scatter
from tinysubnets.report.drawing import Drawing, text_width
from tinysubnets.report.theme import LIGHT, series, variables

Box = tuple[float, float, float, float]
Point = tuple[float, float]

NAMES = (
    "naive cumulative independent replay gdumb gem a-gem ewc si lwf cwr-star packnet wsn "
    "ada-qpacknet tsn tsn-wr tsn-wr-wpp"
).split()
# Accuracy with the task known, and the file in % of the dense weights, as docs/LOG.md has them.
MEASURED: dict[str, tuple[int, str, str]] = {
    "permuted-mnist": (
        88_400,
        "58.54 97.08 98.02 84.38 65.41 90.90 83.50 91.76 95.15 29.26 79.50 95.56 97.15 96.20 97.37 "
        "97.32 97.36",
        "112.4 112.4 1015.9 224 224 683 669.7 313.1 212.8 112.5 112.6 127.9 143.4 34 16.3 15 15.1",
    ),
    "split-cifar100": (
        6_499_328,
        "46.84 78.99 76.65 62.77 35.11 70.77 67.79 67.06 68.03 55.45 64.98 68.78 75.47 69.43 75.15 "
        "75.58 76.15",
        "103.5 103.5 1006.1 109.4 109.4 133.7 133 303.7 203.6 103.5 103.5 119.3 135.5 27.8 9.5 9.1 "
        "10.1",
    ),
    "permuted-digits": (
        16_400,
        "86.9 97.3 97.1 94.8 89.2 95.4 95.4 94 95.3 90.2 88.9 96.3 97.3 96 96.5 96.7 97",
        "135 135 543 187 187 268 265 338 236 135 135 150 151 59 35 29 34",
    ),
    "split-digits": (
        16_400,
        "98.6 99.7 99.7 99.7 99.2 99.7 100 99.7 99.4 99.2 95 99.7 100 99.4 98.9 98.9 100",
        "110 110 518 162 162 243 240 313 211 110 110 125 125 23 12 11 16",
    ),
}
PAPER = {"permuted-mnist": ((77.73, 96.41), (22.65, 96.63), (37.5, 97.14))}


def measured(scenario: str) -> list[tuple[str, float, float]]:
    """Each method with its bytes and its accuracy as a fraction."""
    weights, *lines = MEASURED[scenario]
    accuracies, files = ([float(v) for v in line.split()] for line in lines)
    sizes = [f / 100 * 4 * weights for f in files]
    return [(n, s, a / 100) for n, s, a in zip(NAMES, sizes, accuracies, strict=True)]


def dots_of(scenario: str) -> list[Dot]:
    """All methods, and the paper's points where it has some."""
    dense = 4.0 * MEASURED[scenario][0]
    dots = [
        Dot(c / 100 * dense, a / 100, "faint", f"{n}, paper", "disc", True, 5.0)
        for n, (c, a) in zip(("WSN", "TSN-wr", "TSN"), PAPER.get(scenario, ()), strict=False)
    ]
    for index, (name, size, accuracy) in enumerate(measured(scenario)):
        color, shape = series(index)
        dots.append(Dot(size, accuracy, color, name, shape, False, 6.5, name))
    return dots


class Mark(NamedTuple):
    place: Point
    color: str
    shape: str
    note: str


class Seen(NamedTuple):
    """What is on a drawing, read back from its SVG."""

    texts: dict[str, Box]
    marks: list[Mark]
    lines: list[tuple[str, list[Point]]]


@functools.lru_cache
def picture(scenario: str) -> Drawing:
    """The picture of all methods on one scenario."""
    return size_scatter(scenario, dots_of(scenario))


def seen(drawing: Drawing) -> Seen:
    out = Seen({}, [], [])
    for element in ElementTree.fromstring(drawing.svg()):
        given, text = element.attrib, str(element.text)
        pairs = [p.split(",") for p in given.get("points", "").split()]
        points = [(float(x), float(y)) for x, y in pairs]
        if element.tag == "text":
            x, y, size = (float(given[name]) for name in ("x", "y", "font-size"))
            width = text_width(text, size)
            left = x - {"middle": 0.5, "end": 1.0}.get(given.get("text-anchor", ""), 0.0) * width
            out.texts[text] = (left, y - 0.75 * size, left + width, y + 0.2 * size)
        elif element.tag in ("circle", "polygon"):
            disc = [(float(given.get("cx", 0)), float(given.get("cy", 0)))]
            shape = {0: "disc", 3: "triangle", 4: "square"}[len(points)]
            if shape == "square" and points[0][1] != points[1][1]:
                shape = "diamond"
            xs, ys = zip(*(points or disc), strict=True)
            place = (sum(xs) / len(xs), sum(ys) / len(ys))
            out.marks.append(Mark(place, given["fill"], shape, element.findtext("title", "")))
        elif element.tag == "polyline" and given["stroke"] != "var(--grid)":
            out.lines.append((given["stroke"], points))
    return out


def test_every_method_is_here() -> None:
    assert set(NAMES) == set(METHODS) - {"separate"}  # which came after these tables
    assert all(len(measured(scenario)) == 17 for scenario in MEASURED)


@pytest.mark.parametrize("scenario", list(MEASURED))
def test_no_text_lies_on_another_or_on_a_mark(scenario: str) -> None:
    drawing = picture(scenario)
    found = seen(drawing)
    assert set(NAMES) < set(found.texts)
    for (one, a), (two, b) in itertools.combinations(found.texts.items(), 2):
        assert not overlap(a, b), f"{one} / {two}"
    for name, (left, top, right, bottom) in found.texts.items():
        assert -0.5 <= left and right <= WIDTH + 0.5, name
        assert top >= 0 and bottom <= drawing.height, name
        for mark in found.marks:
            x, y = mark.place
            assert not (left < x < right and top < y < bottom), (name, mark)


@pytest.mark.parametrize("scenario", list(MEASURED))
def test_every_label_leads_to_its_dot(scenario: str) -> None:
    dots = dots_of(scenario)
    found = seen(picture(scenario))
    for dot in dots[-17:]:
        color = f"var(--{dot.color})"
        there = [m for m in found.marks if (m.color, m.shape) == (color, dot.shape)]
        large = next(m for m in there if m.note == dot.label)
        (small,) = (m for m in there if m is not large)  # the mark again, before the label
        left, top, right, bottom = found.texts[dot.label]
        assert 0 < left - small.place[0] < 12 and top - 3 < small.place[1] < bottom + 3
        x, y = large.place
        nearest = (min(max(x, left - 11), right), min(max(y, top), bottom))
        if math.dist(nearest, (x, y)) > 24:
            assert color in {c for c, _ in found.lines}, f"no line from {dot.label} to its dot"


@pytest.mark.parametrize("scenario", list(MEASURED))
def test_no_line_strikes_through_a_label(scenario: str) -> None:
    found = seen(picture(scenario))
    for _, ((x, y), (u, v)) in found.lines:
        for step in range(101):
            p, q = x + (u - x) * step / 101, y + (v - y) * step / 101
            for name, (left, top, right, bottom) in found.texts.items():
                assert not (left + 1 < p < right - 1 and top + 1 < q < bottom - 1), name


def test_marks_differ_in_color_or_shape() -> None:
    assert len({series(i) for i in range(32)}) == 32
    first, second = series(0), series(1)
    assert first[0] != second[0] and first[1] != second[1]


@pytest.mark.slow
def test_the_same_dots_give_the_same_picture() -> None:
    dots = dots_of("permuted-mnist")
    assert size_scatter("a", dots).svg() == size_scatter("a", list(dots)).svg()


def test_few_labels_stand_beside_their_dots() -> None:
    found = seen(size_scatter("few", dots_of("split-digits")[10:13]))
    assert len(found.marks) == 3
    assert not found.lines


@pytest.mark.slow
def test_a_picture_grows_until_its_labels_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "LOWEST", 90.0)
    alike = [Dot(1000.0 + i, 0.5, "ink", f"a method with a very long name {i}") for i in range(12)]
    drawing = size_scatter("alike", alike)
    found = seen(drawing).texts
    boxes = [found[d.label] for d in alike]
    assert not any(overlap(a, b) for a, b in itertools.combinations(boxes, 2))
    assert 90 + 9 * 4 + 44 < drawing.height < 500


def test_labels_wider_than_the_picture_and_labels_without_room() -> None:
    region, mark = (0.0, 0.0, 100.0, 40.0), (50.0, 20.0, 4.0)
    assert place_labels([], [], [], region) == []
    (wide,) = place_labels([mark], [300.0], [mark], region)
    assert wide.box[0] == 0.0
    many = place_labels([mark] * 9, [90.0] * 9, [mark], region)
    assert len(many) == 9
    assert any(overlap(a.box, b.box) for a, b in itertools.combinations(many, 2))
    assert size_scatter("wide", [Dot(10.0, 0.5, "ink", "w" * 200)]).svg()


@pytest.mark.skipif(chromium.find() is None, reason="CHROMIUM IS MISSING")
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_all_methods_in_a_browser(width: int, tmp_path: Path) -> None:
    """Where each text really is, in a real font, not where the drawing takes it to be."""
    drawings = [size_scatter(scenario, dots_of(scenario)) for scenario in MEASURED]
    lines = [
        Curve(series(i)[0], [(1.0, 99.0), (2.0, 100 * accuracy)], name, name, series(i)[1])
        for i, (name, _, accuracy) in enumerate(measured("permuted-mnist"))
    ]
    drawings.append(curves("accuracy over time", lines, ("tasks learned", "accuracy, %")))
    page = tmp_path / "all.html"
    style = f"<style>:root {{ {variables(LIGHT)} }} body {{ font-family: sans-serif }}</style>"
    page.write_text(style + "".join(d.svg() for d in drawings), encoding="utf-8")
    pictures = chromium.measure(page, width)["pictures"]
    assert len(pictures) == 5
    for picture in pictures:
        assert not picture["outside"] and not picture["touching"], picture
        assert picture["smallest"] >= 8, picture


def test_points_of_a_curve_are_joined_from_the_smallest_to_the_largest() -> None:
    dots = [Dot(x, y, "ink", curve="c") for x, y in ((300, 0.9), (100, 0.7), (200, 0.8))]
    joined = size_scatter("t", [*dots, Dot(150, 0.6, "warm")]).file_text()
    lines = [
        e.get("points", "").split()
        for e in ElementTree.fromstring(joined).iter()
        if "points" in e.keys()
    ]
    (line,) = (points for points in lines if len(points) == 3)
    places = [tuple(map(float, point.split(","))) for point in line]
    assert places == sorted(places) and [y for _, y in places] == sorted(
        (y for _, y in places), reverse=True
    )
