"""Tables of text and sizes: the one layout that every command prints."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from tinysubnets.text import for_terminal

GAP = "  "  # between columns


def text_table(
    rows: Sequence[Sequence[str]], headings: Sequence[str] = (), *, num_labels: int = 1
) -> str:
    """Rows of cells as lines in which every column has one width.

    - `rows`: the cells of each row, equally many; a row of none is an empty line. What a terminal
      would obey in them is written out.
    - `headings`: one over each column, with a rule below; none by default.
    - `num_labels`: so many columns, from the left, hold words and stand to the left; the others
      hold numbers and stand to the right.

    >>> print(text_table([["tsn", "97.10"], ["naive", "8.00"]], ["method", "accuracy %"]))
    method  accuracy %
    ──────  ──────────
    tsn          97.10
    naive         8.00
    """
    lines = [[for_terminal(cell) for cell in row] for row in rows]
    lines = [list(headings), *lines] if headings else lines
    num_columns = max(map(len, lines), default=0)
    widths = [max(_width(line[i]) for line in lines if line) for i in range(num_columns)]
    out = [_line(line, widths, num_labels) for line in lines]
    if headings:
        out.insert(1, GAP.join("─" * width for width in widths))
    return "\n".join(out)


def size_text(num_bytes: float) -> str:
    """Bytes as people say them.

    >>> size_text(900), size_text(12345), size_text(3.2e6)
    ('900 B', '12.3 kB', '3.20 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:.2f} MB"


def _line(cells: Sequence[str], widths: Sequence[int], num_labels: int) -> str:
    parts = []
    for i, cell in enumerate(cells):
        space = " " * (widths[i] - _width(cell))
        parts.append(cell + space if i < num_labels else space + cell)
    return GAP.join(parts).rstrip()


def _width(text: str) -> int:
    """The columns that a text takes on a terminal: two for wide characters, none for accents."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(bool(unicodedata.combining(c)) for c in text)
