"""The renderer: a canvas that writes SVG, for the page or as a file of its own.

Colors are names of the theme. Lengths are pixels, and y grows downwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from tinysubnets.files import atomic_write
from tinysubnets.report.theme import DARK, LIGHT, MarkShape
from tinysubnets.text import for_terminal

SMALL, NORMAL = 11.5, 12.5
"""Font sizes."""
MARGIN = 16.0
"""The room around a drawing in a file of its own."""

Point = tuple[float, float]
Value = str | float | None

_CORNERS: dict[MarkShape, tuple[Point, ...]] = {  # in multiples of the mark's size
    "square": ((-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)),
    "diamond": ((0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)),
    "triangle": ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
}


class Drawing:
    """A canvas with a title for those who cannot see it; what is drawn later lies on top.

    A `note` is shown when the pointer rests on the shape. Any `style` is an attribute of SVG, with
    _ for -. The size may be changed until the drawing is written.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._shapes: list[str] = []

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, note: str = "", **style: Value
    ) -> None:
        """A filled rectangle."""
        box = {"x": x, "y": y, "width": w, "height": h}
        self._add("rect", {**box, "fill": fill, **style}, note=note)

    def line(
        self, points: Sequence[Point], stroke: str, w: float = 1.0, note: str = "", **style: Value
    ) -> None:
        """A line through points."""
        paint: dict[str, Value] = {"fill": "none", "stroke": stroke, "stroke_width": w}
        ends = {"stroke_linejoin": "round", "stroke_linecap": "round"}
        self._add("polyline", {"points": _points(points), **paint, **ends, **style}, note=note)

    def mark(
        self,
        x: float,
        y: float,
        size: float,
        color: str,
        shape: MarkShape = "disc",
        hollow: bool = False,
        note: str = "",
    ) -> None:
        """A point of a chart, with a rim that sets it off from what it lies on."""
        fill, stroke, width = ("surface", color, 1.75) if hollow else (color, "surface", 1.5)
        paint: dict[str, Value] = {"fill": fill, "stroke": stroke, "stroke_width": width}
        if shape == "disc":
            self._add("circle", {"cx": x, "cy": y, "r": size, **paint}, note=note)
        else:
            corners = [(x + dx * size, y + dy * size) for dx, dy in _CORNERS[shape]]
            self._add("polygon", {"points": _points(corners), **paint}, note=note)

    def text(
        self, x: float, y: float, text: str, size: float = SMALL, fill: str = "soft", **style: Value
    ) -> None:
        """A line of text on the base line y, from x on unless `text_anchor` says otherwise."""
        self._add("text", {"x": x, "y": y, "font_size": size, "fill": fill, **style}, text)

    def cells(
        self, x: float, y: float, side: float, numbers: np.ndarray, palette: Sequence[str]
    ) -> None:
        """A matrix of squares: number n has color n of the palette, counted from 1; 0 is clear."""
        for number, color in enumerate(palette, 1):
            # A stroke for each run of equal squares in a row: steps are 1 where a run begins and
            # -1 behind its end, and runs come in the same order both times.
            steps = np.diff((numbers == number).astype(np.int8), axis=1, prepend=0, append=0)
            (rows, starts), (_, ends) = np.nonzero(steps == 1), np.nonzero(steps == -1)
            runs = zip(starts.tolist(), rows.tolist(), (ends - starts).tolist(), strict=True)
            path = "".join(f"M{start} {row}h{length}" for start, row, length in runs)
            if path:
                place = f"translate({_number(x)} {_number(y + side / 2)}) scale({side:.5g})"
                crisp = {"shape_rendering": "crispEdges"}  # no seams between rows
                self._add("path", {"d": path, "stroke": color, "transform": place, **crisp})

    def _add(
        self, tag: str, attributes: Mapping[str, Value], text: str = "", note: str = ""
    ) -> None:
        """The one place where names and notes, which users choose, become markup."""
        inside = _escaped(text) + (f"<title>{_escaped(note)}</title>" if note else "")
        given = ""
        for name, value in attributes.items():
            if isinstance(value, float | int):
                value = _number(value)
            elif value and name in ("fill", "stroke") and value != "none" and value[0] != "#":
                value = f"var(--{value})"
            if value is not None:
                given += f' {name.replace("_", "-")}="{_escaped(value)}"'
        self._shapes.append(f"<{tag}{given}>{inside}</{tag}>" if inside else f"<{tag}{given}/>")

    def svg(self) -> str:
        """The drawing for a page that defines the theme's variables."""
        size = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        style = f'style="max-width:{_number(self.width * 1.3)}px"'
        label = f'role="img" aria-label="{_escaped(self.title)}"'
        return "\n".join((f"<svg {size} {style} {label}>", *self._shapes, "</svg>"))

    def save(self, path: str | Path) -> None:
        """Write the drawing as a file of its own, which follows the reader's theme as well."""
        atomic_write(Path(path), self.file_text().encode("utf-8", "replace"))

    def file_text(self) -> str:
        """The drawing as a file of its own.

        Colors are written out in light, for viewers and converters that know no CSS variables;
        where the reader wants it dark, a style sheet overrules them.
        """
        used: set[tuple[str, str]] = set()

        def written_out(found: re.Match[str]) -> str:
            kind, name = found.groups()
            used.add((kind, name))
            return f'{kind}="{LIGHT[name]}" data-{kind}="{name}"'

        edge, width, height = _number(-MARGIN), self.width + 2 * MARGIN, self.height + 2 * MARGIN
        size = f'width="{_number(width)}" height="{_number(height)}"'
        ground = f'<rect x="{edge}" y="{edge}" {size} rx="12" fill="var(--surface)"/>'
        body = "\n".join((ground, *self._shapes))
        body = re.sub(r'\b(fill|stroke)="var\(--([\w-]+)\)"', written_out, body)
        dark = " ".join(f"[data-{k}={n}] {{ {k}: {DARK[n]} }}" for k, n in sorted(used))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="{edge} {edge} {_number(width)} {_number(height)}" '
            f'font-family="system-ui, sans-serif">\n<title>{_escaped(self.title)}</title>\n'
            f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>\n{body}\n</svg>\n"
        )


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading and caption; `key` names its file."""

    key: str
    heading: str
    drawing: Drawing
    caption: str


def text_width(text: str, size: float = SMALL) -> float:
    """About how wide a line of text is in a plain sans-serif; rather too much than too little."""
    narrow = sum(c in "iljtf.,:;'|!()[] " for c in text)
    wide = sum(c in "mwMW" for c in text)
    return size * (0.61 * (len(text) - narrow - wide) + 0.35 * narrow + 0.87 * wide)


def shortened(text: str, width: float) -> str:
    """The text, or its beginning and end around a …, so that it is about that wide at most.

    >>> shortened("permutation-12", 60), shortened("short", 60)
    ('perm…-12', 'short')
    """
    if text_width(text) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        end = kept * 2 // 5  # numbers at the end of names tell them apart
        short = f"{text[: kept - end]}…{text[len(text) - end :]}"
        if text_width(short) <= width:
            return short
    return f"{text[:1]}…"


def _escaped(text: str) -> str:
    """Text as markup shows it; XML has no place for control characters at all."""
    return escape(for_terminal(text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
