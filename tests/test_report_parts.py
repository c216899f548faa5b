"""The parts of report pictures: ticks, labels, shapes, files and colors."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from tinysubnets.experiments.results import Spread
from tinysubnets.report.charts import (
    Curve,
    Dot,
    curves,
    heat_map,
    log_ticks,
    short_size,
    size_scatter,
    size_text,
    spread_out,
    ticks,
)
from tinysubnets.report.drawing import Drawing
from tinysubnets.report.theme import DARK, LIGHT, task_color


def test_spreads() -> None:
    assert str(Spread.of([1.0, 3.0])) == "2.00 ± 1.41 (2)"
    assert str(Spread.of([1.0])) == "1.00 (1)"


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0, 1), (0.931, 0.987), (3, 1e6), (-0.03, 0.04)):
        values = ticks(low, high)
        assert 2 <= len(values) <= 12
        assert all(low - 1e-9 <= v <= high + 1e-9 for v in values)
    assert ticks(2, 2) == [2]
    assert all(100 <= v <= 9e5 for v in log_ticks(100, 9e5))
    assert size_text(1536) == "1.5 kB"
    assert short_size(2e6) == "2 MB"


def all_shapes() -> Drawing:
    drawing = Drawing(60, 40, "all <shapes>")
    drawing.rect(1, 1, 9, 9, "codes", 'note & "more"', fill_opacity=0.5, rx=2)
    drawing.line(((0, 0), (9, 9)), "ink", stroke_dasharray="4 4")
    drawing.mark(20, 20, 4, "warm")
    drawing.mark(30, 20, 4, "warm", "square", hollow=True)
    drawing.mark(40, 20, 4, "warm", "diamond")
    drawing.mark(50, 20, 4, "#123456", "triangle", note="<b>")
    drawing.text(5, 35, '</text><script> fill="var(--page)"', font_weight=600)
    drawing.cells(1, 1, 5, np.array([[0, 1]]), ["#123456"])
    return drawing


def test_names_in_a_drawing_are_escaped(tmp_path: Path) -> None:
    all_shapes().save(tmp_path / "all.svg")
    for text in (all_shapes().svg(), (tmp_path / "all.svg").read_text(encoding="utf-8")):
        root = ElementTree.fromstring(text)
        found = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert found <= {*"svg title style rect polyline circle polygon text path".split()}
        content = [e.text for e in root.iter() if e.tag.endswith("text")]
        assert content == ['</text><script> fill="var(--page)"']
        assert {'note & "more"', "<b>"} <= {e.text for e in root.iter() if e.tag.endswith("title")}


def test_a_file_is_light_without_css_and_dark_where_the_reader_wants_it(tmp_path: Path) -> None:
    all_shapes().save(tmp_path / "all.svg")
    text = (tmp_path / "all.svg").read_text(encoding="utf-8")
    head, _, shapes = text.partition("</style>")
    assert "var(--" not in shapes.replace("&quot;var(--page)&quot;", "")
    assert "prefers-color-scheme: dark" in head
    named = re.findall(r'(fill|stroke)="(#\w+)" data-(fill|stroke)="([\w-]+)"', shapes)
    assert {name for *_, name in named} == {"surface", "codes", "ink", "warm", "soft"}
    for kind, color, same, name in named:
        assert (same, color) == (kind, LIGHT[name])
        assert f"[data-{kind}={name}] {{ {kind}: {DARK[name]} }}" in head


def test_cells_are_drawn_as_runs_of_their_color() -> None:
    numbers = np.random.default_rng(0).integers(0, 4, (7, 9))
    drawing = Drawing(9, 7, "cells")
    drawing.cells(0, 0, 1, numbers, ["#000001", "#000002", "#000003"])
    drawn = np.zeros_like(numbers)
    for path in ElementTree.fromstring(drawing.svg()):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path.attrib["d"]):
            run = drawn[int(row), int(start) : int(start) + int(length)]
            assert not run.any()
            run[:] = int(path.attrib["stroke"][1:], 16)
    assert (drawn == numbers).all()


def test_labels_keep_their_distance_and_order() -> None:
    places = spread_out([10.0, 11.0, 11.5, 40.0, 99.0, 99.0], 5.0, 0.0, 100.0)
    assert all(b - a >= 5 - 1e-9 for a, b in itertools.pairwise(places))
    assert places == sorted(places)
    assert places[3] == 40.0
    assert max(places) <= 100


def test_a_line_has_its_mark_where_it_ends() -> None:
    """Above its place on the axis, also where other lines go on."""
    short = Curve("accent", [(1, 50), (2, 70)], label="short", shape="disc")
    long = Curve("warm", [(1, 40), (2, 30), (4, 20)], label="long", shape="square")
    text = curves("a title", [short, long], ("tasks", "%")).svg()
    tick = re.search(r'<text x="([\d.]+)"[^>]*>2</text>', text)
    mark = re.search(r'<circle cx="([\d.]+)"', text)
    assert tick and mark and tick[1] == mark[1]


@pytest.mark.parametrize("values", [(20.0, 100.0), (98.5, 100.0), (100.0, 100.0)])
def test_no_axis_of_percentages_goes_beyond_100(values: tuple[float, float]) -> None:
    line = Curve("accent", list(enumerate(values)))
    drawn = curves("a title", [line], ("epoch", "%")).svg()
    labels = [float(v) for v in re.findall(r'text-anchor="end"[^>]*>([\d.]+)</text>', drawn)]
    assert max(labels) == 100
    points = re.search(r'points="([^"]+)"[^>]*stroke-width="1.75"', drawn)
    assert points and min(float(p.split(",")[1]) for p in points[1].split()) == 34  # the top


def test_charts_take_extremes() -> None:
    zero = heat_map("one", [[0.0, None]], ("a", "b"), str, 0.0)
    one = size_scatter("one", [Dot(1000.0, 1.0, "codes", "x")])
    far = size_scatter("far", [Dot(10.0, 0.0, "codes", "x"), Dot(1e9, 1.0, "codes", "y")])
    flat = curves("flat", [Curve("codes", [(1.0, 0.5)])], ("x", "y"))
    for drawing in (zero, one, far, flat):
        assert not re.search("nan|inf", drawing.svg())


def test_colors_can_be_told_from_their_ground() -> None:
    for theme in (LIGHT, DARK):
        assert _contrast(theme["ink"], theme["surface"]) >= 7
        assert _contrast(theme["soft"], theme["surface"]) >= 4.5
        for i in range(5):
            assert _contrast(task_color(i, 5), theme["surface"]) >= 2
    assert len({task_color(i, 40) for i in range(40)}) == 40


def _contrast(one: str, two: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)
