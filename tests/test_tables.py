"""Tables of text: aligned columns, rules under headings, empty lines, wide characters."""

from __future__ import annotations

from tinysubnets.experiments.tables import text_table


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    rows = [("tsn", "task-IL", "97.14"), ("ewc", "domain-IL", "8.1")]
    assert text_table(rows, ("method", "type", "acc."), num_labels=2).splitlines() == [
        "method  type        acc.",
        "──────  ─────────  ─────",
        "tsn     task-IL    97.14",
        "ewc     domain-IL    8.1",
    ]


def test_headings_may_be_missing_and_rows_empty() -> None:
    assert text_table([("a", "10"), (), ("total", "5")]).splitlines() == [
        "a      10",
        "",
        "total   5",
    ]
    assert text_table([]) == ""
    assert text_table([], ("a", "b")).splitlines() == ["a  b", "─  ─"]


def test_no_line_ends_in_spaces() -> None:
    assert text_table([("a", ""), ("bb", "c")], num_labels=2) == "a\nbb  c"


def test_wide_characters_and_accents_keep_columns_aligned() -> None:
    lines = text_table([("数字", "1"), ("e\N{COMBINING ACUTE ACCENT}t", "2"), ("abcd", "3")])
    assert lines.splitlines() == ["数字  1", "e\N{COMBINING ACUTE ACCENT}t    2", "abcd  3"]
