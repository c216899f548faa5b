"""The parts of report pictures: ticks, labels, shapes, rasters and colours."""

from __future__ import annotations

import itertools
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tinysubnets.experiments.results import Spread
from tinysubnets.report.axes import log_ticks, short_size, size_text, ticks
from tinysubnets.report.charts import Curve, Scale, curves, heat_map, spread_out
from tinysubnets.report.drawing import Drawing, Line, Mark, Picture, Rect, Text
from tinysubnets.report.raster import encode_png, save_png
from tinysubnets.report.scatter import Dot, size_scatter
from tinysubnets.report.theme import DARK, LIGHT, task_colour


def _size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


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


def test_a_raster_is_a_valid_png() -> None:
    data = encode_png([bytes([0, 1, 2]), bytes([2, 1, 0])], ("#ffffff", "#ff0000", "#00ff00"))
    assert _size(data) == (3, 2)
    pillow = pytest.importorskip("PIL.Image")
    import io

    image = pillow.open(io.BytesIO(data)).convert("RGBA")
    pixels = [image.getpixel((x, 0)) for x in range(3)]
    assert pixels == [(255, 255, 255, 0), (255, 0, 0, 255), (0, 255, 0, 255)]


def test_every_kind_of_shape_is_drawn_both_ways(tmp_path: Path) -> None:
    drawing = Drawing(60, 40, "all <shapes>")
    drawing.add(
        Rect(1, 1, 9, 9, "codes", 0.5, 2, "note & more"),
        Line(((0, 0), (9, 9)), "ink", dash=True),
        Mark(20, 20, 4, "warm"),
        Mark(30, 20, 4, "warm", "square", True),
        Mark(40, 20, 4, "warm", "diamond"),
        Mark(50, 20, 4, "warm", "triangle"),
        Text(5, 35, "a $ b", turned=True, bold=True, anchor="middle"),
        Picture(1, 1, 5, 5, (b"\x00\x01",), ("#ffffff", "#123456")),
    )
    for standalone in (True, False):
        root = ElementTree.fromstring(drawing.svg(standalone=standalone))
        assert len(list(root.iter())) > len(drawing.shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_png(drawing, tmp_path / "a.png")
    assert _size((tmp_path / "a.png").read_bytes()) == (184, 144)


def test_labels_keep_their_distance_and_order() -> None:
    places = spread_out([10.0, 11.0, 11.5, 40.0, 99.0, 99.0], 5.0, 0.0, 100.0)
    assert all(b - a >= 5 - 1e-9 for a, b in itertools.pairwise(places))
    assert places == sorted(places)
    assert places[3] == 40.0
    assert max(places) <= 100


def test_charts_take_extremes() -> None:
    scale = Scale(0.0, 0.0, str)
    assert heat_map("one", [[0.0]], scale, ("a", "b")).svg()
    one = size_scatter("one", [Dot(1000.0, 1.0, "codes", "x")])
    far = size_scatter("far", [Dot(10.0, 0.0, "codes", "x"), Dot(1e9, 1.0, "codes", "y")])
    flat = curves("flat", [Curve("codes", ((1.0, 0.5),))], ("x", "y"))
    for drawing in (one, far, flat):
        assert "nan" not in drawing.svg()
        assert "inf" not in drawing.svg()


def test_colours_can_be_told_from_their_ground() -> None:
    for theme in (LIGHT, DARK):
        assert _contrast(theme["ink"], theme["surface"]) >= 7
        assert _contrast(theme["soft"], theme["surface"]) >= 4.5
        for i in range(5):
            assert _contrast(task_colour(i, 5), theme["surface"]) >= 2
    assert len({task_colour(i, 40) for i in range(40)}) == 40


def _contrast(one: str, two: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)
