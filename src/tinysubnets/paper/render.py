"""Tables as text, Markdown and LaTeX."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from tinysubnets.errors import SettingError
from tinysubnets.experiments.tables import text_table
from tinysubnets.text import for_latex, for_markdown

Format = Literal["text", "markdown", "latex"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "latex")
NOT_RUN = "not run"
NOTE_WIDTH = 100


@dataclass(frozen=True)
class Table:
    """A table of the paper with ours beside it: a title, headings, lines of strings, footnotes.

    The first `num_labels` columns name the line; the others hold numbers.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_labels: int = 2


def render(table: Table, form: str = "text") -> str:
    """The table in one of the formats."""
    if form not in FORMATS:
        raise SettingError(f"format = {form!r} is not allowed; give one of {', '.join(FORMATS)}.")
    return {"text": _text, "markdown": _markdown, "latex": _latex}[form](table)


def _grouped(table: Table) -> list[tuple[str, ...]]:
    """The lines, with a first label shown only where it changes."""
    out, last = [], None
    for row in table.rows:
        out.append(("", *row[1:]) if table.num_labels > 1 and row[0] == last else row)
        last = row[0]
    return out


def _text(table: Table) -> str:
    rows = _grouped(table)
    has_groups = table.num_labels > 1 and any(not row[0] for row in rows)
    spaced: list[tuple[str, ...]] = []
    for row in rows:
        spaced += [(), row] if spaced and row[0] and has_groups else [row]
    body = text_table(spaced, table.headings, num_labels=table.num_labels)
    notes = [
        textwrap.fill(f"[{i}] {n}", NOTE_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        for i, n in enumerate(table.notes, 1)
    ]
    return "\n".join([table.title, "", body, "", *notes]).rstrip() + "\n"


def _markdown(table: Table) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(for_markdown(c) for c in cells) + " |"

    marks = tuple(":---" if i < table.num_labels else "---:" for i in range(len(table.headings)))
    rows = [line(row) for row in _grouped(table)]
    notes = [f"{i}. {n}" for i, n in enumerate(table.notes, 1)]
    tail = ["", *notes] if notes else []
    return "\n".join(
        [f"**{table.title}**", "", line(table.headings), line(marks), *rows, *tail]
    ) + ("\n")


def _latex(table: Table) -> str:
    columns = "l" * table.num_labels + "r" * (len(table.headings) - table.num_labels)

    def line(cells: tuple[str, ...]) -> str:
        return " & ".join(for_latex(c) for c in cells) + r" \\"

    notes = [rf"\item[{i}] {for_latex(n)}" for i, n in enumerate(table.notes, 1)]
    listed = [r"\begin{itemize}\footnotesize", *notes, r"\end{itemize}"] if notes else []
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}[t]",
            r"\centering\small",
            rf"\caption{{{for_latex(table.title)}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            line(table.headings),
            r"\midrule",
            *(line(row) for row in _grouped(table)),
            r"\bottomrule",
            r"\end{tabular}",
            *listed,
            r"\end{table}",
            "",
        ]
    )
