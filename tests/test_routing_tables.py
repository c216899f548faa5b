"""Numbers without the task's name, wherever they are shown: of every method with masks."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from quick import mostly_slow
from tiny_runs import make_run
from tinysubnets import paper
from tinysubnets.experiments import published
from tinysubnets.experiments.compare import summary as compare_summary
from tinysubnets.experiments.progress import summary as run_summary
from tinysubnets.experiments.results import Run, Spread, grouped, read_run
from tinysubnets.report import write_report
from tinysubnets.report.figures import confidences, task_confusion
from tinysubnets.report.page import ROUTED_COLUMNS

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

import make_results  # noqa: E402

MASKED = ("tsn", "tsn-wr", "tsn-wr-wpp", "wsn", "packnet", "ada-qpacknet")
COLUMNS = {
    "class-IL %": ("class-IL", "average_accuracy"),
    "class-IL BWT %": ("class-IL", "backward_transfer"),
    "domain-IL %": ("domain-IL", "average_accuracy"),
    "domain-IL BWT %": ("domain-IL", "backward_transfer"),
    "task found %": ("task_accuracy",),
    "class-IL, entropy %": ("entropy_rule", "class-IL"),
    "domain-IL, entropy %": ("entropy_rule", "domain-IL"),
    "unknown, AUROC %": ("unknown", "auroc"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of WSN, and a method without masks beside them."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        make_run(folder / "wsn" / f"seed-{seed}", "wsn", seed)
    make_run(folder / "naive" / "seed-0", "naive")
    return folder


def wsn(runs: Path) -> list[Run]:
    return [read_run(runs / "wsn" / f"seed-{seed}") for seed in (0, 1)]


def rows_of(printed: str, table: int = 0) -> dict[str, dict[str, str]]:
    """The rows of one of the printed tables by their first cell, each by its headings."""
    head, _, *lines = printed.split("\n\n")[table].splitlines()
    names = re.split(r" {2,}", head.strip())
    cells = [re.split(r" {2,}", line.strip()) for line in lines]
    return {c[0]: dict(zip(names, c, strict=True)) for c in cells if len(c) == len(names)}


@pytest.mark.parametrize("method", mostly_slow(MASKED, quick=("wsn",)))
def test_every_method_with_masks_is_measured_without_the_name(method: str, tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / method, method))
    assert run.scenario_type == "task-IL"
    for path in COLUMNS.values():
        assert run.routed(*path) is not None, path
    found, known = run.routed("domain-IL", "average_accuracy"), run.metric("average_accuracy")
    one = run.routed("class-IL", "average_accuracy")
    assert found is not None and known is not None and one is not None
    assert 0.1 < one <= found <= 1 and found < known + 0.05
    assert run.routed("passes") == 3 and run.without_task["together"]["size"] == 16


def test_a_comparison_shows_them(runs: Path) -> None:
    printed = compare_summary(runs, ["wsn", "naive"])
    known, unnamed = rows_of(printed), rows_of(printed, table=1)
    assert set(known) == {"wsn", "naive"}, "every method has its row with the task known"
    assert set(unnamed) == {"wsn"}, "and those that are measured without its name another"
    for heading, path in COLUMNS.items():
        values = [v for r in wsn(runs) if (v := r.routed(*path)) is not None]
        assert unnamed["wsn"][heading] == Spread.of(values).show(factor=100.0), heading
        assert heading not in known["wsn"]
    assert unnamed["wsn"]["passes"] == "3"
    assert "earlier runs" not in printed
    told = compare_summary(runs, ["naive"]).splitlines()[-1]
    assert told == f"not of this command, but of earlier runs that are in {runs}: wsn"


def test_a_comparison_shows_kilobytes(runs: Path) -> None:
    rows = rows_of(compare_summary(runs, ["wsn", "naive"]))
    sizes = [r.size_bytes for r in wsn(runs)]
    assert rows["wsn"]["kB"] == Spread.of([s for s in sizes if s is not None]).show(factor=1e-3)
    assert float(rows["naive"]["kB"].partition(" ")[0]) > 1


def test_nothing_lost_to_later_tasks_is_shown_as_0(runs: Path, tmp_path: Path) -> None:
    (run, _) = wsn(runs)
    routed = run.without_task | {
        "class-IL": run.without_task["class-IL"] | {"backward_transfer": 0}
    }
    folder = tmp_path / "wsn"
    folder.mkdir()
    text = json.dumps(run.result | {"without_task": routed})
    (folder / "result.json").write_text(text, encoding="utf-8")
    printed = compare_summary(tmp_path, ["wsn"])
    assert rows_of(printed, table=1)["wsn"]["class-IL BWT %"] == "0.00 (1)"


def test_a_run_prints_them(runs: Path) -> None:
    run = wsn(runs)[0]
    text = run_summary(run.result)
    assert f"without the task's name, by {run.without_task['rule']}, 3 passes of networks" in text
    lines = dict(re.findall(r"^\s*(\S.*?) {2,}(-?[\d.]+) %$", text, re.MULTILINE))
    for row, path in {
        "class-IL: task and class right": ("class-IL", "average_accuracy"),
        "class-IL: BWT": ("class-IL", "backward_transfer"),
        "domain-IL: label right": ("domain-IL", "average_accuracy"),
        "domain-IL: BWT": ("domain-IL", "backward_transfer"),
        "task found": ("task_accuracy",),
    }.items():
        assert lines[row] == f"{100 * (run.routed(*path) or 0):.2f}", row
    # Batches of one task are another question.
    assert "together" not in text
    one = run.result | {"without_task": run.without_task | {"passes": 1}}
    assert "1 pass of networks" in run_summary(one)


def test_pages_show_them(runs: Path, tmp_path: Path) -> None:
    text = write_report(runs, tmp_path / "all").read_text(encoding="utf-8")
    (group,) = [g for g in grouped(wsn(runs)) if g.method == "wsn"]
    shown = {c.heading: c.show(group) for c in ROUTED_COLUMNS}
    for heading in ("class-IL, %", "class-IL BWT, points", "domain-IL, %", "domain-IL BWT, points"):
        kind, _, rest = heading.partition("-IL")
        name = "backward_transfer" if "BWT" in rest else "average_accuracy"
        values = [v for r in group.runs if (v := r.routed(f"{kind}-IL", name)) is not None]
        assert shown[heading] == Spread.of(values).show(factor=100.0).removesuffix(" (2)")
        assert heading in text and shown[heading] in text
    assert shown["passes of networks"] == "3"
    # And that of one run, in words.
    run = wsn(runs)[0]
    figure = task_confusion(run)
    assert figure is not None
    assert "Passes of networks an input takes: 3." in figure.caption
    for kind in ("class-IL", "domain-IL"):
        moved = run.routed(kind, "backward_transfer")
        assert f"({kind}, BWT {100 * (moved or 0):.2f} points)" in figure.caption
    alone = write_report(runs / "wsn" / "seed-0", tmp_path / "one").read_text(encoding="utf-8")
    assert f"task found {100 * (run.routed('task_accuracy') or 0):.1f} %, passes: 3" in alone


def test_the_papers_table_shows_them(runs: Path, tmp_path: Path) -> None:
    for run in wsn(runs):
        folder = tmp_path / f"seed-{run.seed}"
        folder.mkdir()
        text = json.dumps(run.result | {"scenario": "permuted-mnist"})
        (folder / "result.json").write_text(text, encoding="utf-8")
    table = paper.table("accuracy", [tmp_path])
    (row,) = [r for r in table.rows if r[:2] == ("p-MNIST", "WSN")]
    shown = dict(zip(table.headings, row, strict=True))
    for heading, path in {
        "ours without the task: class-IL": ("class-IL", "average_accuracy"),
        "domain-IL": ("domain-IL", "average_accuracy"),
        "by entropy (SupSup)": ("entropy_rule", "domain-IL"),
        "unknown inputs, AUROC": ("unknown", "auroc"),
    }.items():
        values = [v for r in wsn(runs) if (v := r.routed(*path)) is not None]
        assert shown[heading] == Spread.of(values).show(factor=100.0), heading


def test_published_runs_keep_batches_apart(runs: Path, tmp_path: Path) -> None:
    run = wsn(runs)[0]
    published.publish(run.result, tmp_path / "some-table" / "wsn-s0.json")
    (again,) = published.read_tables(tmp_path)["some-table"]
    together = again.without_task["together"]
    assert together["size"] == 16
    for key, value in run.without_task["together"].items():
        assert together[key] == pytest.approx(value, abs=1e-6)
    # A run of before, or of few inputs, has none.
    bare = {k: v for k, v in run.without_task.items() if k != "together"}
    for routed in (bare, bare | {"together": None}):
        assert (
            "together"
            not in published.published(run.result | {"without_task": routed})["without_task"]
        )


def test_the_price_stands_beside_the_numbers_of_the_front_page(runs: Path) -> None:
    found = wsn(runs)
    text = make_results.headline_table([("ours", found)])
    assert text.endswith("class-IL, domain-IL: without the task's name; 3 passes an input.")
    alone = [
        replace(r, result=r.result | {"without_task": r.without_task | {"domain-IL": None}})
        for r in found
    ]
    text_of_one = make_results.headline_table([("ours", alone)])
    assert text_of_one.endswith("\n\nclass-IL: without the task's name; 3 passes an input.")
    values = [v for r in found if (v := r.routed("class-IL", "average_accuracy")) is not None]
    assert "class-IL %" in text and f"| {100 * sum(values) / 2:.2f} ± " in text
    bare = replace(found[0], result=found[0].result | {"without_task": None})
    text = make_results.headline_table([("ours", [bare])])
    assert "class-IL" not in text and "passes" not in text


def test_bars_of_confidences_are_their_counts(runs: Path) -> None:
    run = wsn(runs)[0]
    table = {"edges": [0.0, 0.5, 0.75, 1.0], "right": [10, 0, 60], "wrong": [20, 10, 0]}
    changed = replace(run, result=run.result | {"without_task": {"confidence": table}})
    figure = confidences(changed)
    assert figure is not None
    assert "Above 0.5 it is the right one for 85.7 %" in figure.caption  # 60 of 70
    bars = _bars(figure.drawing.svg())
    assert {note: count for note, (_, _, count) in bars.items()} == {
        "confidence 0 to 0.5, right": 10,
        "confidence 0 to 0.5, wrong": 20,
        "confidence 0.5 to 0.75, wrong": 10,
        "confidence 0.75 to 1, right": 60,
    }
    heights = {note: box["height"] / count for note, (box, _, count) in bars.items()}
    assert max(heights.values()) == pytest.approx(min(heights.values()), rel=0.02)
    first, second = (bars[f"confidence 0 to 0.5, {w}"][0] for w in ("right", "wrong"))
    assert second["y"] + second["height"] == pytest.approx(first["y"], abs=0.2)  # stacked
    assert first["x"] == second["x"] and first["width"] == second["width"]
    third = bars["confidence 0.75 to 1, right"][0]
    assert first["width"] + 2 == pytest.approx(2 * (third["width"] + 2), abs=0.3)
    assert first["x"] < bars["confidence 0.5 to 0.75, wrong"][0]["x"] < third["x"]
    colors = {note.rpartition(" ")[2]: color for note, (_, color, _) in bars.items()}
    assert colors == {"right": "var(--accent)", "wrong": "var(--warm)"}


def test_the_picture_of_a_run_has_all_its_inputs(runs: Path) -> None:
    run = wsn(runs)[0]
    figure, table = confidences(run), run.without_task["confidence"]
    assert figure is not None
    counts = {"right": 0, "wrong": 0}
    for note, (_, _, count) in _bars(figure.drawing.svg()).items():
        counts[note.rpartition(" ")[2]] += count
    assert counts == {kind: sum(table[kind]) for kind in counts}
    assert sum(counts.values()) == sum(map(sum, run.without_task["confusion"]))


def _bars(svg: str) -> dict[str, tuple[dict[str, float], str, int]]:
    """The bars of a picture by what is told of them: their box, color and count."""
    found = {}
    for rect in ElementTree.fromstring(svg).iter("rect"):
        title = rect.find("title")
        if title is not None and title.text and title.text.startswith("confidence"):
            note, count = title.text.rsplit(": ", 1)
            box = {k: float(rect.attrib[k]) for k in ("x", "y", "width", "height")}
            number = int(count.removesuffix(" inputs").replace(",", ""))
            found[note] = box, rect.attrib["fill"], number
    return found
