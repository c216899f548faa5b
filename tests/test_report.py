"""Report pages: what they say, that they stand alone, and how they look in a real browser."""

from __future__ import annotations

import copy
import json
import math
import random
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import chromium
import models
from quick import mostly_slow
from test_text import OBEYED
from tiny_runs import make_run
from tinysubnets.cli import main
from tinysubnets.errors import RunError
from tinysubnets.experiments.compare import summary as compare_summary
from tinysubnets.experiments.progress import summary as run_summary
from tinysubnets.experiments.published import read_file
from tinysubnets.experiments.result_kinds import NEEDED
from tinysubnets.experiments.results import Run, changes, find_runs, grouped, read_run
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.report import write_report
from tinysubnets.report.figures import per_task, references
from tinysubnets.report.theme import DARK, LIGHT
from tinysubnets.text import for_terminal

SHAPES = {"svg", "g", "rect", "text", "tspan", "title", "style", "path", "polyline"}
SCREENSHOTS = Path(__file__).parent.parent / ".cache" / "screenshots"
ALL_PICTURES = {
    "accuracy-matrix",
    "per-task",
    "ledger",
    "learning-curves",
    "task-confusion",
    "confidences",
    "divergence",
    "ownership",
    "task-masks",
    "mask-overlap",
    "codebooks",
    "classes-1",
    "classes-2",
    "classes-3",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of TSN and two of TSN-wr."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "tsn" / "seed-0")
    for seed in (0, 1):
        make_run(folder / "tsn-wr" / f"seed-{seed}", "tsn-wr", seed)
    return folder


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the one TSN run."""
    return write_report(runs / "tsn" / "seed-0", tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def compared(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of all runs, and of one whose shape is harder to draw: forty tasks."""
    folder = tmp_path_factory.mktemp("compared")
    many = forty_tasks(read_run(runs / "tsn" / "seed-0").result)
    (folder / "forty").mkdir()
    (folder / "forty" / "result.json").write_text(json.dumps(many), encoding="utf-8")
    return write_report([runs, folder / "forty"], folder)


def forty_tasks(result: dict) -> dict:
    """A result of forty tasks that forgets, made from one of three."""
    task, entry = result["tasks"][0], next(iter(result["ledger"]["tasks"].values()))
    names = [f"a task with a long name {i}" for i in range(40)]
    matrix = [[0.9 - 0.01 * max(0, i - j) - 0.7 * (j > i) for j in range(40)] for i in range(40)]
    cells = [[1.0 + (i * j) % 7 if j < i else None for j in range(40)] for i in range(40)]
    ledger = result["ledger"] | {"tasks": {n: entry for n in names}, "file_bytes": 9_876_543}
    return result | {
        "method": "a-method-with-a-very-long-name",
        "accuracy_matrix": matrix,
        "metrics": result["metrics"] | {"average_accuracy": 0.7, "forgetting": 0.2},
        "tasks": [task | {"name": n} for n in names],
        "ledger": ledger,
        "divergence": {"threshold": 3.0, "matrix": cells, "decisions": {}},
    }


@pytest.mark.slow
def test_the_page_stands_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<link" not in text
    assert "@import" not in text
    assert not re.search(r"(?:href|src)=", text)
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text


def test_the_page_says_what_the_run_measured(page: Path, runs: Path) -> None:
    text = page.read_text(encoding="utf-8")
    run = read_run(runs / "tsn" / "seed-0")
    accuracy = run.metric("average_accuracy")
    assert accuracy is not None
    assert f"{accuracy * 100:.1f}" in text
    assert "nothing forgotten" in text
    for task in run.tasks:
        assert task["name"] in text
        assert task["reason"].split("'")[0] in text
    for name in ("training.epochs", "tsn.density", "torch", "threads"):
        assert name in text


def written(result: dict, folder: Path) -> str:
    """The page of a changed result."""
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return write_report(folder).read_text(encoding="utf-8")


def test_accuracy_on_validation_data_is_called_so(page: Path, runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    assert "on validation data" not in page.read_text(encoding="utf-8")
    text = written(result | {"measured_on": ["valid"]}, tmp_path / "run")
    assert " % mean accuracy on validation data, nothing forgotten" in text
    assert ">mean accuracy (ACC) on validation data<" in text


def test_a_network_is_not_blamed_for_classes_it_has_not_learned(
    page: Path, runs: Path, tmp_path: Path
) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    tasks = [t | {"classes": [f"{t['name']}-{c}" for c in t["classes"]]} for t in result["tasks"]]
    said = "after task 1 (permutation-0), accuracy on task 2 (permutation-1): "
    text = written(result | {"tasks": tasks}, tmp_path / "run")
    assert f"{said}not defined" in text and "not defined where their classes are others" in text
    assert f"{said}not defined" not in page.read_text(encoding="utf-8")
    printed = run_summary(result | {"tasks": tasks})
    assert "on classes that it has not learned" in printed
    assert "not learned" not in run_summary(result)


def test_one_task_is_shown_without_what_needs_two(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "one", "tsn", 0, "data.num_tasks=1")
    page = write_report(folder)
    text = page.read_text(encoding="utf-8")
    pictures = {path.stem for path in (page.parent / "pictures").iterdir()}
    several = {"accuracy-matrix", "task-confusion", "confidences", "divergence", "mask-overlap"}
    assert pictures == ALL_PICTURES - several - {"classes-2", "classes-3"}
    printed = run_summary(read_run(folder).result)
    for word in ("forgotten", "1 to 1", "not defined", "1 passes", "one line per task"):
        assert word not in text and word not in printed
    assert "average accuracy (ACC)" in printed and "after task" not in printed


def test_every_picture_is_saved_as_svg(page: Path) -> None:
    files = list((page.parent / "pictures").iterdir())
    assert {p.name for p in files} == {f"{name}.svg" for name in ALL_PICTURES}
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "var(--" not in text
        assert "prefers-color-scheme: dark" in text


def test_the_page_shows_what_is_known_without_the_tasks_name(page: Path, runs: Path) -> None:
    found = read_run(runs / "tsn" / "seed-0").without_task
    text = page.read_text(encoding="utf-8")
    assert "without the task&#39;s name" in text
    assert f"task found {100 * found['task_accuracy']:.1f} %" in text
    assert f"AUROC {found['unknown']['auroc']:.2f}" in text
    for row, name in zip(found["confusion"], ("permutation-0", "permutation-1"), strict=False):
        assert f"{name} taken for permutation-0: {row[0]} of {sum(row)}" in text


def test_the_same_runs_give_the_same_page(page: Path, runs: Path, tmp_path: Path) -> None:
    again = write_report(runs / "tsn" / "seed-0", tmp_path / "again.html")
    assert again.name == "again.html"
    assert again.read_bytes() == page.read_bytes()
    for path in (page.parent / "pictures").iterdir():
        assert (tmp_path / "pictures" / path.name).read_bytes() == path.read_bytes()


def test_comparisons_show_means_over_seeds(compared: Path, runs: Path) -> None:
    text = compared.read_text(encoding="utf-8")
    group = next(g for g in grouped(find_runs([runs])) if g.method == "tsn-wr")
    spread = group.spread(lambda r: r.metric("average_accuracy"))
    assert spread is not None
    assert len(group.runs) == 2
    assert f"{spread.mean * 100:.2f} ± {spread.std * 100:.2f}" in text


def test_a_comparison_says_what_its_runs_have_in_common(
    compared: Path, runs: Path, tmp_path: Path
) -> None:
    text = compared.read_text(encoding="utf-8")
    assert "3 methods compared in 4 runs of 3 to 40 tasks, task-IL." in text
    assert "Mean ± standard deviation over seeds." in text
    assert "measured on" not in text
    result = read_run(runs / "tsn" / "seed-0").result
    one = result | {"method": "wsn", "measured_on": ["valid"]}
    for name, found in (("tsn", result), ("wsn", one)):
        written(found, tmp_path / name)
    text = write_report(tmp_path, tmp_path / "both").read_text(encoding="utf-8")
    assert "2 methods compared in 2 runs of 3 tasks, task-IL." in text
    assert "standard deviation" not in text  # there is one run of each
    assert "see the column “measured on”" in text and ">validation data<" in text


def test_groups_of_one_recipe_keep_their_pictures_apart(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    for epochs in (2, 7):
        result["settings"]["training"]["epochs"] = epochs
        (tmp_path / str(epochs)).mkdir()
        (tmp_path / str(epochs) / "result.json").write_text(json.dumps(result), encoding="utf-8")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    names = re.findall(r' id="([^"]*)"', text)
    assert len(names) == len(set(names))
    assert len(list((tmp_path / "pictures").glob("*-accuracy-matrix*.svg"))) == 2


def test_the_papers_points_stand_beside_whole_scenarios_alone(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result | {"scenario": "permuted-mnist"}
    result["settings"] = result["settings"] | {"data": {"dataset": "mnist"}}
    few, whole = result, result | {"tasks": [result["tasks"][0]] * 10}
    other = whole | {"settings": result["settings"] | {"data": {"dataset": "notmnist-small"}}}
    for shown, given in ((0, few), (3, whole), (0, other)):
        assert len(references([Run(tmp_path, given)])) == shown


def test_a_method_in_two_settings_has_two_names(tmp_path: Path) -> None:
    for setting in ("task-IL", "class-IL"):
        make_run(tmp_path / setting, "naive", 0, f"naive.scenario_type={setting}")
    text = write_report(tmp_path).read_text("utf-8")
    assert {"naive", "naive:class"} <= set(re.findall(r"<h2>(.*?)</h2>", text))
    assert any("-naive-class-" in p.name for p in (tmp_path / "pictures").iterdir())


def test_names_are_escaped(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    result = result | {"scenario": "<img src=x onerror=alert(1)>"}
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<img" not in text
    assert "&lt;img" in text


NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='alert(1)",
    "</title></svg></style></td><iframe src=//x>",
    'fill="var(--surface)" {{ 7 * 7 }} {% raw %} &lt;b&gt; &#60;',
    "\x1b]0;owned\x07\x1b[31mred\u202e\x9b2J\x00",
    "|`*_[x](http://y)\\ $x$ \\input{x} %",
)


class Markup(HTMLParser):
    """The elements of a page and the names of their attributes, each as often as it is there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.found.update(f"{tag} {name}" for name, _ in attrs)


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_names_of_tasks_and_classes_are_only_text(nasty: str, runs: Path, tmp_path: Path) -> None:
    """The page and its pictures have the elements of one with plain names, as long ones."""
    found = {}
    for kind, text in (("plain", "x" * len(for_terminal(nasty))), ("nasty", nasty)):
        result = copy.deepcopy(read_run(runs / "tsn" / "seed-0").result)
        names = {t["name"]: f"{i}{text}" for i, t in enumerate(result["tasks"])}
        for task in result["tasks"]:
            task |= {"name": names[task["name"]], "reason": f"like {text!r}: {text}"}
            task["classes"] = [f"{text}{i}" for i, _ in enumerate(task["classes"])]
        ledger = result["ledger"]["tasks"]
        result["ledger"]["tasks"] = {names[n]: entry for n, entry in ledger.items()}
        result |= {"scenario": text, "method": f"tsn{text}", "notes": [text]}
        page = written(result, tmp_path / kind)
        pictures = sorted((tmp_path / kind / "pictures").iterdir())
        drawn = [ElementTree.fromstring(p.read_text(encoding="utf-8")) for p in pictures]
        found[kind] = Markup(page).found, [[e.tag for e in d.iter()] for d in drawn]
    assert found["nasty"] == found["plain"]
    assert not OBEYED.search(page) and escape(for_terminal(nasty)) in page


def test_names_in_a_model_are_only_text(tmp_path: Path) -> None:
    """Those of the pictures of masks, which come from the model's file."""
    from tinysubnets.report import model_figures

    for nasty in NASTY:
        store = models.store(tasks=2)
        models.add_task(store, 4, name=nasty, classes=(nasty, "b", "c"))
        for figure in model_figures.of_model(store):
            drawn = ElementTree.fromstring(figure.drawing.file_text())
            assert {e.tag.rpartition("}")[2] for e in drawn.iter()} <= SHAPES
            assert not OBEYED.search(figure.drawing.svg())


def test_old_or_strange_folders_get_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished run"):
        write_report(tmp_path)
    with pytest.raises(RunError, match="no folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(RunError, match="at least one run"):
        write_report([])
    (tmp_path / "result.json").write_text('{"scenario": "x"}', encoding="utf-8")
    with pytest.raises(RunError, match="lacks"):
        write_report(tmp_path)
    text = '{"scenario": "x", "format": 2, "library": "9.0"}'
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"format 2, written by tinysubnets 9\.0"):
        write_report(tmp_path)
    (tmp_path / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="cannot be read"):
        write_report(tmp_path)


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match=r"no finished run.*tsn resume"):
        write_report(tmp_path)


def test_missing_extras_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RunError, match=r"\[report\]"):
        write_report(runs)


def test_a_run_without_model_or_metrics_still_has_a_page(runs: Path, tmp_path: Path) -> None:
    nothing = {"divergence": None, "ledger": {}, "without_task": None}
    result = read_run(runs / "tsn" / "seed-0").result | nothing
    result["capacity"] = {}
    result["tasks"] = [
        {k: v for k, v in task.items() if k not in ("confusion", "class_accuracy")}
        for task in result["tasks"]
    ]
    (tmp_path / "result.json").write_text(json.dumps(result), encoding="utf-8")
    write_report(tmp_path)
    assert {p.stem for p in (tmp_path / "pictures").glob("*.svg")} == {
        "accuracy-matrix",
        "per-task",
    }


@pytest.mark.parametrize(
    "settings",
    mostly_slow(
        [
            "tsn.block=8",
            "tsn.sharing=none tsn.density=0.2",
            "tsn.bits=32 data.num_tasks=1",
            "tsn.codebooks=task tsn.memory=samples",
        ],
        quick=["tsn.bits=32 data.num_tasks=1"],
    ),
)
def test_every_kind_of_run_has_a_page(settings: str, tmp_path: Path) -> None:
    make_run(tmp_path, "tsn", 0, *settings.split())
    write_report(tmp_path)
    drawn = {p.stem for p in (tmp_path / "pictures").glob("*.svg")}
    assert {"ownership", "task-masks", "codebooks"} <= drawn
    assert ("mask-overlap" in drawn) == ("data.num_tasks=1" not in settings)


def test_a_page_is_called_by_the_run_s_own_name(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    assert Run(Path("runs/birds"), result).name == "birds"
    for folder in ("runs/best-permuted-digits/tsn/seed-0", "runs/x/tsn/seed-3-2"):
        assert Run(Path(folder), result).name == "permuted-digits"
    own = result | {"recipe": "~/recipes/my birds.toml", "scenario": "own"}
    assert Run(Path("runs/my birds/tsn/seed-0"), own).name == "my birds"
    (tmp_path / "leaves").mkdir()
    (tmp_path / "leaves" / "result.json").write_text(json.dumps(own), encoding="utf-8")
    text = write_report(tmp_path / "leaves").read_text(encoding="utf-8")
    assert "<h1>leaves</h1>" in text and "<title>leaves · " in text
    both = write_report([runs / "tsn", tmp_path / "leaves"], tmp_path / "both")
    assert "<h1>permuted-digits, my birds</h1>" in both.read_text(encoding="utf-8")


def test_bytes_come_first_and_settings_are_folded(page: Path, runs: Path) -> None:
    text = page.read_text(encoding="utf-8")
    run = read_run(runs / "tsn" / "seed-0")
    lead = re.search(r'<p class="lead">(.*?)</p>', text)
    assert lead is not None and run.size_bytes is not None
    dense = 4 * run.result["ledger"]["num_weights"]
    said = f"3 tasks in {run.size_bytes / 1e3:.1f} kB instead of {dense / 1e3:.1f} kB for one dense"
    assert lead[1].startswith(said)
    assert "<details><summary>Settings" in text and "paper's capacity" not in text
    assert "Accuracy against bytes" not in text  # one dot would say nothing


def test_tasks_and_classes_are_shown_by_name(page: Path, runs: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for index, task in enumerate(read_run(runs / "tsn" / "seed-0").tasks, 1):
        assert f"after task {index} ({task['name']})" in text
        assert f"<h3>{task['name']}: {100 * task['final_accuracy']:.1f} %</h3>" in text
        counts = task["confusion"]
        for i, j in ((0, 0), (3, 8)):
            assert f"{i} taken for {j}: {counts[i][j]} of {sum(counts[i])}" in text


def made_up(classes: int, extra: int = 0, **more: object) -> dict:
    """A task of a result whose class 0 is always taken for the last one."""
    names = [f"class {i}" for i in range(classes)]
    counts = [[9 * (i == j) for j in range(classes + extra)] for i in range(classes)]
    counts[0] = [0] * (classes + extra - 1) + [9]
    shares = [float(i > 0) for i in range(classes)]
    task = {"name": "many", "classes": names, "final_accuracy": 1 - 1 / classes}
    return task | {"confusion": counts, "class_accuracy": shares} | more


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (made_up(4), "Most often taken wrongly: class 0 for class 3 (9 of 9)."),
        (made_up(4, extra=1), "class 0 for classes of other tasks (9 of 9)"),
        (made_up(40), "The 15 least accurate of 40 classes."),
        (made_up(40, confusion=None), "The 15 least accurate of 40 classes."),
    ],
)
def test_classes_that_are_confused_are_named(task: dict, said: str, tmp_path: Path) -> None:
    from tinysubnets.report import figures

    (figure,) = figures.classes(Run(tmp_path, {"tasks": [task]}))
    assert said in figure.caption
    drawn = ElementTree.fromstring(figure.drawing.svg())
    assert "class 0" in {t.text for t in drawn.iter("text")}


@pytest.mark.parametrize(
    "damage",
    [
        {"confusion": [[1, 2]]},
        {"confusion": [[1, 2], [3]]},
        {"confusion": [["x", 1], [2, 3]]},
        {"confusion": "no", "class_accuracy": [0.5, {}]},
        {"classes": None},
        {"confusion": None, "class_accuracy": [None, None]},
        {"confusion": [[0, 0], [0, 0]], "class_accuracy": []},
    ],
)
def test_damaged_counts_are_left_out(damage: dict, runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    tasks = [
        task | {"classes": ["a", "b"], "class_accuracy": []} | damage for task in result["tasks"]
    ]
    tasks = [{k: v for k, v in task.items() if v is not None} for task in tasks]
    (tmp_path / "result.json").write_text(json.dumps(result | {"tasks": tasks}), encoding="utf-8")
    assert "<h3>Classes</h3>" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_of_many_tasks_the_least_accurate_are_shown(tmp_path: Path) -> None:
    from tinysubnets.report import figures

    tasks = [made_up(3, name=f"t{i}", final_accuracy=(i * 7 % 20) / 20) for i in range(20)]
    shown = figures.classes(Run(tmp_path, {"tasks": tasks}))
    wanted = sorted(sorted(range(20), key=lambda i: i * 7 % 20)[: figures.MAX_CONFUSED])
    assert [f.key for f in shown] == [f"classes-{i + 1}" for i in wanted]


def test_columns_end_about_together() -> None:
    from tinysubnets.report.drawing import Drawing, Figure
    from tinysubnets.report.page import balanced

    def figure(height: float) -> Figure:
        return Figure("key", "heading", Drawing(400, height, "title"), "")

    shown = [figure(height) for height in (100, 300, 300, 50, 700, 50)]
    left, right = balanced(shown)
    assert [*left, *right] == shown and len(left) == 3
    assert balanced([]) == ([], [])


def test_dense_methods_have_a_page_without_masks(tmp_path: Path) -> None:
    make_run(tmp_path, "naive")
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "points forgotten" in text
    drawn = {p.stem for p in (tmp_path / "pictures").glob("*.svg")}
    assert {"accuracy-matrix", "ledger", "per-task"} <= drawn
    assert "ownership" not in drawn


def test_overlap_and_ownership_follow_the_masks(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinysubnets.report import model_figures

    store = read_run(runs / "tsn-wr" / "seed-0").store()
    assert store is not None
    first, second = (store.subnet(t).mask for t in store.tasks[:2])
    monkeypatch.setattr(model_figures, "CHUNK", 1000)
    drawn = model_figures.mask_overlap(store).drawing.svg()
    share = float((first & second).sum() / first.sum())
    sides = ("of task 1 (permutation-0)", "also used by task 2 (permutation-1)")
    assert f"{', '.join(sides)}: {share * 100:.0f} %" in drawn
    owner = model_figures.owners(store, 0)
    assert torch.equal(owner == 1, first)
    assert torch.equal(owner == 2, second & ~first)


def test_what_is_free_after_each_task_is_shown(runs: Path) -> None:
    run = read_run(runs / "tsn" / "seed-0")
    owned, names = [0.25, None, 0.625], [task["name"] for task in run.tasks]
    for task, share in zip(run.tasks, owned, strict=True):
        task["owned_after_pruning"] = share
    figure = per_task(run)
    assert figure is not None and "Last: the share of its bank" in figure.caption
    found = re.findall(
        r"<title>([\d.]+) % of the bank free after (.+?)</title>", figure.drawing.svg()
    )
    assert found == [("75.0", names[0]), ("37.5", names[2])]
    for bank in (None, NO_BANK):  # a dense network, and differences to another task
        for task in run.tasks:
            task["bank"] = bank
        figure = per_task(run)
        assert figure is not None and "free" not in figure.drawing.svg() + figure.caption


def test_changed_settings_are_named(runs: Path) -> None:
    group = grouped(find_runs([runs / "tsn"]))[0]
    assert group.label.startswith("best/permuted-digits with ")
    changed = changes(group.runs[0])
    assert changed["training.epochs"] == 2
    assert "tsn.density" not in changed


needs_chromium = pytest.mark.skipif(
    chromium.find() is None,
    reason="CHROMIUM IS MISSING: report pages are NOT tested in a browser; "
    "run scripts/install_chromium.sh",
)


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["page", "compared"])
def test_pages_in_a_browser(kind: str, width: int, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(kind)
    seen = chromium.measure(path, width)
    assert seen["width"] == width
    assert seen["scroll"] <= width, f"the page is wider than the window: {seen['wide']}"
    assert not seen["wide"]
    if width >= 1280:
        assert not seen["cut"], "a table is cut off where there is room for it"
        assert all(abs(a - b) <= 1 for a, b in seen["ends"]), "columns do not end together"
    else:
        assert seen["cut"] and seen["swipes"] == seen["tables"], "nothing says that a table goes on"
    text = path.read_text(encoding="utf-8")
    assert len(seen["pictures"]) == text.count("<svg ")
    for picture in seen["pictures"]:
        assert picture["width"] > 0.8 * min(width, 400) - 60, picture
        assert picture["height"] > 60, picture
        assert picture["shapes"] >= 3, picture
        assert not picture["outside"], picture
        assert not picture["touching"], picture
        assert picture["smallest"] >= 8, picture


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("kind", "width"), [("page", 390), ("page", 1280), ("compared", 1280)])
def test_screenshots(kind: str, width: int, dark: bool, request: pytest.FixtureRequest) -> None:
    np = pytest.importorskip("numpy")
    image = pytest.importorskip("PIL.Image")
    path: Path = request.getfixturevalue(kind)
    name = f"{kind}-{width}-{'dark' if dark else 'light'}.png"
    shot = chromium.screenshot(path, width, SCREENSHOTS / name, dark=dark)
    pixels = np.asarray(image.open(shot).convert("RGB")) / 255
    theme = DARK if dark else LIGHT
    ground = np.array([int(theme["page"][i : i + 2], 16) / 255 for i in (1, 3, 5)])
    assert np.abs(pixels[5, 5] - ground).max() < 0.02
    colors = np.unique((pixels[::2, ::2].reshape(-1, 3) * 31).astype(int), axis=0)
    assert len(colors) > 100  # pictures are there, not just text on a ground


def test_a_matrix_with_unmeasured_cells_says_so(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    matrix = [[None] * 3, [None] * 3, result["accuracy_matrix"][-1]]
    unknown = {n: None for n in result["metrics"] if n != "average_accuracy"}
    some = result | {"accuracy_matrix": matrix, "matrix": "last"}
    some["metrics"] = result["metrics"] | unknown
    (tmp_path / "result.json").write_text(json.dumps(some), encoding="utf-8")
    text = write_report(tmp_path, tmp_path / "page").read_text(encoding="utf-8")
    assert "nothing forgotten" not in text and "nothing was forgotten" not in text
    assert "forgetting not measured" in text and "--matrix last" in text
    table = compare_summary(tmp_path, ["tsn"])
    assert "--matrix last" in table and "–" in table


# Results that are damaged, or forged


ODD = (None, True, -1, 3, 1.5, 10**30, math.nan, "", "../x", "\ud800", [], [0.5], ["a"], {"a": 1})
SEEN_BEFORE = (  # each was an error of Python's own
    (("divergence", "threshold"), None),
    (("metrics", "backward_transfer"), {"a": 1}),
    (("tasks", 1, "final_accuracy"), []),
    (("tasks", 1, "rungs"), [0.5]),
    (("tasks", 1, "rungs"), [{"name": "a", "gain": None}, {}]),
    (("ledger", "tasks", "permutation-1", "codes"), 10**30),
    (("without_task", "confidence", "edges", 2), "a"),
    (("without_task", "confidence", "wrong"), ["a"]),
    (("divergence", "matrix"), [[1.0, 2.0]]),
    (("accuracy_matrix",), []),
    (("environment",), [[]]),
    (("measured_on",), 3),
    (("notes",), 3),
    (("matrix",), "some"),
    (("settings", "data"), [3]),
    (("seconds",), math.inf),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in plain data."""
    if path:
        yield path
    entries = dict(enumerate(value)) if isinstance(value, list) else value
    for key, entry in entries.items() if isinstance(entries, dict) else ():
        yield from places(entry, (*path, key))


def changed(result: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy of plain data with another value at a path; without it where that is Ellipsis."""
    whole = holder = copy.deepcopy(result)
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return whole


def reported(folder: Path, result: dict[str, Any]) -> int:
    """What `tsn report` makes of a result: its exit status."""
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return main(["report", str(folder)])


def test_damaged_results_have_a_page_or_an_error_that_names_the_place(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, drawn = read_run(runs / "tsn" / "seed-0").result, random.Random(0)
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for path in places(result):
        groups.setdefault(path[0], []).append(path)
    mutants = list(SEEN_BEFORE)
    for _ in range(40):
        path = drawn.choice(groups[drawn.choice(list(groups))])
        mutants.append((path, drawn.choice((..., *ODD))))
    for path, value in mutants:
        status, said = reported(tmp_path, changed(result, path, value)), capsys.readouterr().err
        assert status in (0, 2), (path, value)
        if status:
            assert said.startswith(f"tsn: {tmp_path / 'result.json'}"), (path, value)
            assert str(path[0]) in said, (path, value)


def test_an_error_about_a_result_names_the_value(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    assert reported(tmp_path, changed(result, ("tasks", 1, "rungs"), [0.5])) == 2
    assert "tasks[1].rungs[0] is 0.5, and should be a table" in capsys.readouterr().err
    assert reported(tmp_path, changed(result, ("tasks", 2, "name"), ...)) == 2
    assert "tasks[2].name is not there, and should be text" in capsys.readouterr().err
    (tmp_path / "metrics.jsonl").write_text('{"task": "permutation-0", "epoch": "1"}')
    assert reported(tmp_path, result) == 2
    assert "metrics.jsonl is damaged in line 1: epoch is '1'" in capsys.readouterr().err


def test_results_that_lack_what_is_new_have_a_page(runs: Path, tmp_path: Path) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    assert reported(tmp_path, {k: result[k] for k in NEEDED}) == 0


def test_all_published_results_are_read() -> None:
    files = sorted((Path(__file__).parent.parent / "results").glob("*/**/*.json"))
    assert len(files) > 200
    for file in files:
        read_file(file)


def test_no_name_in_a_result_leads_out_of_the_folder_of_pictures(
    runs: Path, tmp_path: Path
) -> None:
    result = read_run(runs / "tsn" / "seed-0").result
    for i, name in enumerate(("../../../out", "x" * 400, "a\0b", "\ud800")):
        (tmp_path / "in" / str(i)).mkdir(parents=True)
        text = json.dumps(result | {"scenario": name, "method": name})
        (tmp_path / "in" / str(i) / "result.json").write_text(text, encoding="utf-8")
    assert main(["report", str(tmp_path / "in")]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    assert {p.name for p in (tmp_path / "in").iterdir()} == {*"0123", "report.html", "pictures"}


def test_no_report_calls_what_a_result_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a function of a module that is imported already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reported_network.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU())\n"
        "    made.add_module('fc', nn.Linear(20, 10))\n"
        "    return made\n"
    )
    (tmp_path / "mine.toml").write_text(
        'scenario = "permuted-digits"\n[network]\nname = "reported_network:net"\n'
        "[data]\nnum_tasks = 1\n[training]\nepochs = 1\n"
    )
    assert main(["run", "mine.toml", "--out", "run", "--device", "cpu"]) == 0
    assert read_run("run").store() is not None  # this process has called it before
    result = read_run("run").result
    network = {"name": "os:mkdir", "path": str(tmp_path / "made")}
    assert reported(tmp_path / "run", changed(result, ("settings", "network"), network)) == 0
    assert not (tmp_path / "made").exists()
