"""Rasters: drawings as PNG files, and small palette images as PNG bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinysubnets.report.drawing import MARGIN, Drawing, Line, Mark, Picture, Rect, Text
from tinysubnets.report.theme import LIGHT

DPI = 200
_UNIT = 100  # pixels of a drawing per inch of a figure


def encode_png(rows: Sequence[bytes], palette: Sequence[str]) -> bytes:
    """A palette image as PNG; colour 0 is transparent."""
    colours = b"".join(bytes.fromhex(c[1:]) for c in palette)
    pixels = b"".join(b"\0" + row for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"PLTE", colours),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(pixels, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def save_png(drawing: Drawing, path: str | Path) -> None:
    """Save a drawing as a PNG file in the light theme; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = drawing.width + 2 * MARGIN, drawing.height + 2 * MARGIN
    figure = Figure(figsize=(width / _UNIT, height / _UNIT), dpi=DPI)
    figure.patch.set_facecolor(LIGHT["surface"])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-MARGIN, drawing.width + MARGIN)
    axes.set_ylim(drawing.height + MARGIN, -MARGIN)
    for order, shape in enumerate(drawing.shapes):
        _paint(axes, shape, order)
    # Without a date or version in the file, the same drawing gives the same bytes.
    figure.savefig(str(path), dpi=DPI, metadata={"Software": None})


def _colour(name: str) -> str:
    return name if name.startswith("#") or name == "none" else LIGHT[name]


def _points(pixels: float) -> float:
    return pixels * 72 / _UNIT


def _paint(axes: Any, shape: Any, order: int) -> None:
    if isinstance(shape, Rect):
        _paint_rect(axes, shape, order)
    elif isinstance(shape, Line):
        xs, ys = zip(*shape.points, strict=True)
        style = (0, (4, 4)) if shape.dash else "solid"
        width = _points(shape.width)
        colour, alpha = _colour(shape.stroke), shape.opacity
        axes.plot(xs, ys, color=colour, lw=width, ls=style, alpha=alpha, zorder=order)
    elif isinstance(shape, Mark):
        _paint_mark(axes, shape, order)
    elif isinstance(shape, Text):
        _paint_text(axes, shape, order)
    elif isinstance(shape, Picture):
        _paint_picture(axes, shape, order)


def _paint_rect(axes: Any, r: Rect, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    colour, alpha = _colour(r.fill), r.opacity
    patch: Any = Rectangle((r.x, r.y), r.width, r.height)
    if r.radius and min(r.width, r.height) > 2 * r.radius:
        style = f"round,pad=0,rounding_size={r.radius}"
        patch = FancyBboxPatch((r.x, r.y), r.width, r.height, boxstyle=style)
    patch.set(facecolor=colour, edgecolor="none", alpha=alpha, zorder=order)
    axes.add_patch(patch)


def _paint_mark(axes: Any, m: Mark, order: int) -> None:
    from matplotlib.patches import Circle, Polygon

    shape: Any = Circle((m.x, m.y), m.size) if m.shape == "disc" else Polygon(m.corners())
    colour, back = _colour(m.fill), LIGHT["surface"]
    face, edge = (back, colour) if m.hollow else (colour, back)
    shape.set(facecolor=face, edgecolor=edge, linewidth=_points(1.6), zorder=order)
    axes.add_patch(shape)


def _paint_text(axes: Any, t: Text, order: int) -> None:
    aligned = {"start": "left", "middle": "center", "end": "right"}[t.anchor]
    axes.text(
        t.x,
        t.y,
        t.content.replace("$", r"\$"),
        fontsize=_points(t.size),
        color=_colour(t.fill),
        ha="center" if t.turned and t.anchor == "middle" else aligned,
        va="center" if t.turned else "baseline",
        rotation=90 if t.turned else 0,
        fontweight="bold" if t.bold else "normal",
        zorder=order,
    )


def _paint_picture(axes: Any, p: Picture, order: int) -> None:
    import numpy as np

    numbers = np.frombuffer(b"".join(p.rows), dtype=np.uint8).reshape(len(p.rows), -1)
    colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in p.palette])
    pixels = np.concatenate([colours[numbers], 255 * (numbers[..., None] > 0)], axis=-1)
    limits = axes.get_xlim(), axes.get_ylim()
    extent = (p.x, p.x + p.width, p.y + p.height, p.y)
    axes.imshow(
        pixels.astype(np.uint8), extent=extent, interpolation="nearest", aspect="auto", zorder=order
    )
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
