"""Text from files: harmless on terminals, in Markdown, LaTeX and HTML."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest

import models
from tinysubnets.cli import main
from tinysubnets.experiments.progress import PlainDisplay
from tinysubnets.experiments.run import Note, TaskBegun
from tinysubnets.experiments.tables import text_table
from tinysubnets.format.card import model_card
from tinysubnets.model.store import SubnetStore
from tinysubnets.paper.render import Table, render
from tinysubnets.report.drawing import Drawing
from tinysubnets.text import for_latex, for_markdown, for_terminal, is_seen

NASTY = "\x1b]0;owned\x07\x1b[31mred\u202e\x9b2J\r\n|<script>alert(1)</script>`*_[x](y)\\"
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def nasty_store() -> SubnetStore:
    store = models.store(tasks=1)
    models.add_task(store, 1, name=NASTY, classes=(NASTY, "b", "c"))
    return store


def test_ordinary_text_stays_as_it_is() -> None:
    for text in ("task 0", "split-cifar100", "été", "日本語", "👩\u200d🔬", "a b"):
        assert for_terminal(text) == text
    assert for_markdown("sea_lion, task-1 (50 %)") == "sea_lion, task-1 (50 %)"


def test_nothing_that_a_terminal_obeys_is_left() -> None:
    for text in (NASTY, "\ud800", "\x85", "\u2028", "\x00"):
        assert not OBEYED.search(for_terminal(text)) and "\n" not in for_terminal(text)
    assert for_terminal("a\nb\x1b", keep="\n") == "a\nb\\u001b"
    assert json.loads('"' + for_terminal("\x9b\x1b") + '"') == "\x9b\x1b"


def test_a_table_has_one_line_per_row() -> None:
    shown = text_table([(NASTY, "1"), ("b", "2")], ("name", "n"))
    assert len(shown.splitlines()) == 4 and not OBEYED.search(shown)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_inspect_shows_names_harmlessly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    nasty_store().save(tmp_path)
    assert main(["inspect", str(tmp_path), *more]) == 0
    shown = capsys.readouterr().out
    assert "u001b" in shown and not OBEYED.search(shown)
    if more:
        assert json.loads(shown)["tasks"][1]["name"] == NASTY


def test_errors_show_names_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nasty_store().save(tmp_path)
    assert main(["predict", str(tmp_path), "--task", "other", "x.npz"]) == 2
    shown = capsys.readouterr().err
    assert "unknown task" in shown and not OBEYED.search(shown)


def test_progress_shows_names_harmlessly() -> None:
    stream = StringIO()
    display = PlainDisplay(stream)
    display.show(TaskBegun(0, 1, NASTY, 2, 10, 0, 1))
    display.show(Note(NASTY))
    assert not OBEYED.search(stream.getvalue()) and not OBEYED.search(display._place)


def test_a_live_display_takes_brackets_for_what_they_are() -> None:
    pytest.importorskip("rich")
    from tinysubnets.experiments.progress import LiveDisplay

    with LiveDisplay() as display:
        display.show(TaskBegun(0, 1, "[/bold] [red]", 2, 10, 0, 1))
        display.show(Note("[/]"))


def test_the_model_card_holds_no_markup_of_names() -> None:
    store = nasty_store()
    card = model_card(store, store.ledger())
    rows = [line for line in card.splitlines() if "owned" in line and line.startswith("| ")]
    assert len(rows) == 2 and "<script>" not in card and not OBEYED.search(card)
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 8, "the cells of one row"
    assert "](y)" not in card.replace("\\](y)", "")


def test_tables_of_the_paper_are_escaped() -> None:
    table = Table("t", "title", ("a", "b"), ((NASTY + "^~{}%#", "1"),), num_labels=1)
    markdown = render(table, "markdown")
    assert "<script>" not in markdown and not OBEYED.search(markdown)
    latex = render(table, "latex")
    line = next(x for x in latex.splitlines() if "owned" in x)
    assert not OBEYED.search(latex) and "\\textasciicircum{}" in line
    assert not re.search(r"(?<!\\)[%#_]", line)
    assert for_latex("50 % ± 3") == r"50 \% $\pm$ 3"
    assert not OBEYED.search(render(table, "text"))


def test_drawings_escape_names() -> None:
    drawing = Drawing(10, 10, NASTY)
    drawing.text(0, 0, NASTY)
    assert "<script>" not in drawing.svg()


def test_what_a_reader_sees() -> None:
    for text in ("task 0", "été", "日本語", "👩\u200d🔬", "a", "-", "e\u0301"):
        assert is_seen(text)
    for text in ("", " ", "\u3000", "\u200d", "\u3164", "a\u200b", "a\u202e", "\ufeff", "a\x1b"):
        assert not is_seen(text)
