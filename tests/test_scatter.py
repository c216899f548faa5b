"""The picture of accuracy against bytes: marks and labels that can be told apart."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

import chromium
from tiny_runs import make_run
from tinysubnets.experiments.methods import METHODS
from tinysubnets.report import scatter, write_report
from tinysubnets.report.axes import WIDTH
from tinysubnets.report.drawing import Drawing, Line, Mark, Text
from tinysubnets.report.labels import Label, Placed, _between, place, touch, touching
from tinysubnets.report.scatter import Dot, size_scatter
from tinysubnets.report.theme import series

Box = tuple[float, float, float, float]

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
        colour, shape = series(index)
        dots.append(Dot(size, accuracy, colour, name, shape, False, 6.5, name))
    return dots


def text_boxes(drawing: Drawing) -> dict[str, Box]:
    """Where each text really is in a common font, not where the drawing takes it to be."""
    fonts = pytest.importorskip("matplotlib.font_manager")
    paths = pytest.importorskip("matplotlib.textpath")
    found = {}
    for text in (s for s in drawing.shapes if isinstance(s, Text)):
        font = fonts.FontProperties(family="DejaVu Sans", weight="bold" if text.bold else "normal")
        ink = paths.TextPath((0, 0), text.content, size=text.size, prop=font).get_extents()
        left = text.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor] * ink.x1
        found[text.content] = (left, text.y - ink.y1, left + ink.x1, text.y - ink.y0)
    return found


def marks(drawing: Drawing) -> list[Mark]:
    return [s for s in drawing.shapes if isinstance(s, Mark)]


def test_every_method_is_here() -> None:
    assert set(NAMES) == set(METHODS)
    assert all(len(measured(scenario)) == 17 for scenario in MEASURED)


@pytest.mark.parametrize("scenario", list(MEASURED))
def test_no_two_texts_overlap_with_all_methods(scenario: str) -> None:
    drawing = size_scatter(scenario, dots_of(scenario))
    boxes = text_boxes(drawing)
    assert set(NAMES) < set(boxes)
    for (one, a), (two, b) in itertools.combinations(boxes.items(), 2):
        assert not touch(a, b), f"{one} / {two}"
    for name, (left, top, right, bottom) in boxes.items():
        assert -0.5 <= left and right <= WIDTH + 0.5, name
        assert top >= 0 and bottom <= drawing.height, name
    for mark in marks(drawing):
        for name in NAMES:
            left, top, right, bottom = boxes[name]
            assert not (left < mark.x < right and top < mark.y < bottom), (name, mark)


@pytest.mark.parametrize("scenario", list(MEASURED))
def test_every_label_leads_to_its_dot(scenario: str) -> None:
    dots = dots_of(scenario)
    drawing = size_scatter(scenario, dots)
    boxes = text_boxes(drawing)
    lines = {s.stroke: s for s in drawing.shapes if isinstance(s, Line) and s.stroke != "grid"}
    for dot in dots[-17:]:
        there = [m for m in marks(drawing) if (m.fill, m.shape) == (dot.colour, dot.shape)]
        large = next(m for m in there if m.note == dot.label)
        (small,) = (m for m in there if m is not large)  # the mark again, before the label
        left, top, right, bottom = boxes[dot.label]
        assert 0 < left - small.x < 12 and top - 3 < small.y < bottom + 3
        nearest = (min(max(large.x, left - 11), right), min(max(large.y, top), bottom))
        if math.dist(nearest, (large.x, large.y)) > 24:
            assert dot.colour in lines, f"no line from {dot.label} to its dot"


def test_marks_differ_in_colour_or_shape() -> None:
    assert len({series(i) for i in range(32)}) == 32
    first, second = series(0), series(1)
    assert first[0] != second[0] and first[1] != second[1]


def test_the_same_dots_give_the_same_picture() -> None:
    dots = dots_of("permuted-mnist")
    assert size_scatter("a", dots).svg() == size_scatter("a", list(dots)).svg()


def test_few_labels_stand_beside_their_dots() -> None:
    dots = dots_of("split-digits")[10:13]
    drawing = size_scatter("few", dots)
    assert len(marks(drawing)) == 3
    assert not [s for s in drawing.shapes if isinstance(s, Line) and s.stroke != "grid"]


def test_a_picture_grows_until_its_labels_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "LOWEST", 90.0)
    alike = [Dot(1000.0 + i, 0.5, "ink", f"a method with a very long name {i}") for i in range(12)]
    drawing = size_scatter("alike", alike)
    found = text_boxes(drawing)
    boxes = [found[d.label] for d in alike]
    assert not any(touch(a, b) for a, b in itertools.combinations(boxes, 2))
    assert 90 + 9 * 4 + 44 < drawing.height < 400


def test_labels_wider_than_the_picture_and_labels_without_room() -> None:
    region = (0.0, 0.0, 100.0, 40.0)
    assert place([], [], region) == []
    (wide,) = place([Label(50, 20, 4, 300, 13)], [], region)
    assert wide.box[0] == 0.0
    many = place([Label(50, 20, 4, 90, 13)] * 9, [], region)
    assert len(many) == 9 and touching(many)
    assert size_scatter("wide", [Dot(10.0, 0.5, "ink", "w" * 200)]).svg()


def test_lines_keep_out_of_each_other_s_way() -> None:
    def spot(box: Box, *line: tuple[float, float]) -> Placed:
        return Placed(box, (line[0], line[1]) if line else None, 0.0)

    low, high = (50.0, 40.0, 60.0, 50.0), (50.0, 0.0, 60.0, 10.0)
    apart = _between(spot(high, (0, 0), (50, 5)), spot(low, (0, 40), (50, 45)))
    crossed = _between(spot(high, (0, 40), (50, 5)), spot(low, (0, 0), (50, 45)))
    struck = _between(spot(high, (100, 90), (55, 10)), spot((60.0, 20.0, 70.0, 50.0)))
    on_top = _between(spot(high), spot((55.0, 5.0, 65.0, 15.0)))
    assert apart == 0 < crossed < struck < on_top
    assert struck == _between(spot((60.0, 20.0, 70.0, 50.0)), spot(high, (100, 90), (55, 10)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that compares all methods on permuted MNIST."""
    folder = tmp_path_factory.mktemp("all")
    run = make_run(folder / "one")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    for name, size, accuracy in measured("permuted-mnist"):
        ledger = result["ledger"] | {"file_bytes": round(size), "num_weights": 88_400}
        metrics = result["metrics"] | {"average_accuracy": accuracy}
        changed = {"method": name, "scenario": "permuted-mnist", "ledger": ledger}
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "result.json").write_text(
            json.dumps(result | changed | {"metrics": metrics}), encoding="utf-8"
        )
    return write_report(folder / "runs", folder / "page")


@pytest.mark.skipif(chromium.find() is None, reason="CHROMIUM IS MISSING")
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_all_methods_in_a_browser(width: int, page: Path) -> None:
    seen = chromium.measure(page, width)
    assert not seen["wide"]
    for name in ("accuracy against bytes", "accuracy over time"):
        picture = next(p for p in seen["pictures"] if p["name"] == name)
        assert not picture["outside"] and not picture["touching"], picture
        assert picture["smallest"] >= 8, picture
    shot = page.parent / f"all-{width}.png"
    assert chromium.screenshot(page, width, shot, height=1600).stat().st_size > 10_000
