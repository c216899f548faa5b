"""Drawings: a few kinds of shapes on a canvas, written as SVG for a page or for a file.

Colours are names of a theme. On a page they become CSS variables, so that one picture serves light
and dark; in a file they become the light theme's colours. Sizes are in pixels.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from tinysubnets.report.theme import LIGHT, MarkShape

MARGIN = 16.0
"""The room around a drawing in a file of its own."""

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Rect:
    """A filled rectangle; `note` is shown when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    radius: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: tuple[Point, ...]
    stroke: str
    width: float = 1.0
    dash: bool = False
    opacity: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """A point of a chart: a disc, square, diamond or triangle, filled or hollow."""

    x: float
    y: float
    size: float
    fill: str
    shape: MarkShape = "disc"
    hollow: bool = False
    note: str = ""

    def corners(self) -> tuple[Point, ...]:
        """The corners of every shape but the disc."""
        x, y, r = self.x, self.y, self.size
        if self.shape == "square":
            r *= 0.88
            return ((x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r))
        if self.shape == "diamond":
            r *= 1.2
            return ((x, y - r), (x + r, y), (x, y + r), (x - r, y))
        return ((x, y - 1.15 * r), (x + 1.1 * r, y + 0.85 * r), (x - 1.1 * r, y + 0.85 * r))


@dataclass(frozen=True)
class Text:
    """A line of text; `x` is where its start, middle or end stands."""

    x: float
    y: float
    content: str
    size: float = 12.0
    fill: str = "ink"
    anchor: Anchor = "start"
    bold: bool = False
    turned: bool = False


@dataclass(frozen=True)
class Picture:
    """A raster of palette numbers, one per cell; number 0 is left clear."""

    x: float
    y: float
    width: float
    height: float
    rows: tuple[bytes, ...]
    palette: tuple[str, ...]


Shape = Rect | Line | Mark | Text | Picture


@dataclass
class Drawing:
    """A canvas with a title for those who cannot see it, and its shapes from back to front."""

    width: float
    height: float
    title: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Put shapes on top."""
        self.shapes.extend(shapes)

    def svg(self, *, standalone: bool = False) -> str:
        """The drawing as SVG text: for a page with the theme's variables, or for a file."""
        body = "\n".join(_shape(s, standalone) for s in self.shapes)
        title = escape(self.title)
        if not standalone:
            size = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
            style = f'style="max-width:{_n(self.width * 1.3)}px"'
            return f'<svg {size} {style} role="img" aria-label="{title}">\n{body}\n</svg>'
        width, height = _n(self.width + 2 * MARGIN), _n(self.height + 2 * MARGIN)
        view = f'viewBox="{_n(-MARGIN)} {_n(-MARGIN)} {width} {height}"'
        ground = f'x="{_n(-MARGIN)}" y="{_n(-MARGIN)}" width="{width}" height="{height}"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {view} width="{width}" height="{height}" '
            f'font-family="system-ui, sans-serif">\n<title>{title}</title>\n'
            f'<rect {ground} fill="{LIGHT["surface"]}"/>'
        )
        return f"{head}\n{body}\n</svg>\n"


def text_width(content: str, size: float) -> float:
    """About how wide a line of text is in a plain sans-serif."""
    narrow = sum(c in "iljtf.,:;'|!()[] " for c in content)
    wide = sum(c in "mwMW" for c in content)
    return size * (0.61 * (len(content) - narrow - wide) + 0.35 * narrow + 0.87 * wide)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _colour(name: str, standalone: bool) -> str:
    if name.startswith("#") or name == "none":
        return name
    return LIGHT[name] if standalone else f"var(--{name})"


def _shape(shape: Shape, standalone: bool) -> str:
    if isinstance(shape, Rect):
        return _rect(shape, standalone)
    if isinstance(shape, Line):
        return _line(shape, standalone)
    if isinstance(shape, Mark):
        return _mark(shape, standalone)
    if isinstance(shape, Text):
        return _text(shape, standalone)
    return _picture(shape)


def _closed(tag: str, attributes: str, note: str) -> str:
    if not note:
        return f"<{tag} {attributes}/>"
    return f"<{tag} {attributes}><title>{escape(note)}</title></{tag}>"


def _rect(r: Rect, standalone: bool) -> str:
    opacity = f' fill-opacity="{_n(r.opacity)}"' if r.opacity < 1 else ""
    radius = f' rx="{_n(r.radius)}"' if r.radius else ""
    place = f'x="{_n(r.x)}" y="{_n(r.y)}" width="{_n(r.width)}" height="{_n(r.height)}"'
    return _closed("rect", f'{place} fill="{_colour(r.fill, standalone)}"{opacity}{radius}', r.note)


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _line(line: Line, standalone: bool) -> str:
    dash = ' stroke-dasharray="4 4"' if line.dash else ""
    opacity = f' stroke-opacity="{_n(line.opacity)}"' if line.opacity < 1 else ""
    style = f'stroke="{_colour(line.stroke, standalone)}" stroke-width="{_n(line.width)}"'
    joints = ' fill="none" stroke-linejoin="round" stroke-linecap="round"'
    attributes = f'points="{_points(line.points)}" {style}{dash}{opacity}{joints}'
    return _closed("polyline", attributes, line.note)


def _mark(m: Mark, standalone: bool) -> str:
    colour = _colour(m.fill, standalone)
    back = _colour("surface", standalone)
    paint = (
        f'fill="{back}" stroke="{colour}" stroke-width="1.75"'
        if m.hollow
        else f'fill="{colour}" stroke="{back}" stroke-width="1.5"'
    )
    if m.shape == "disc":
        return _closed("circle", f'cx="{_n(m.x)}" cy="{_n(m.y)}" r="{_n(m.size)}" {paint}', m.note)
    return _closed("polygon", f'points="{_points(m.corners())}" {paint}', m.note)


def _text(t: Text, standalone: bool) -> str:
    anchor = "" if t.anchor == "start" else f' text-anchor="{t.anchor}"'
    weight = ' font-weight="600"' if t.bold else ""
    turn = f' transform="rotate(-90 {_n(t.x)} {_n(t.y)})"' if t.turned else ""
    place = f'x="{_n(t.x)}" y="{_n(t.y)}" font-size="{_n(t.size)}"'
    colour = _colour(t.fill, standalone)
    return f'<text {place} fill="{colour}"{anchor}{weight}{turn}>{escape(t.content)}</text>'


def _picture(p: Picture) -> str:
    from tinysubnets.report.raster import encode_png

    data = base64.b64encode(encode_png(p.rows, p.palette)).decode()
    place = f'x="{_n(p.x)}" y="{_n(p.y)}" width="{_n(p.width)}" height="{_n(p.height)}"'
    pixels = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    return f'<image {place} {pixels} href="data:image/png;base64,{data}"/>'
