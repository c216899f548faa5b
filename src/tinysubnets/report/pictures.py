"""The pictures of a run, each with its heading and a caption that says how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinysubnets.experiments.results import Group, Run, grouped
from tinysubnets.report.axes import size_text
from tinysubnets.report.charts import (
    Curve,
    Scale,
    curves,
    heat_map,
    ledger_bar,
    task_columns,
)
from tinysubnets.report.drawing import Drawing
from tinysubnets.report.scatter import Dot, size_scatter
from tinysubnets.report.theme import NUM_SERIES, PARTS, series, task_colour

MOST_POINTS = 600  # a curve with more is thinned


@dataclass(frozen=True)
class Figure:
    """A drawing with its heading and caption; `key` names its files."""

    key: str
    heading: str
    caption: str
    drawing: Drawing


def run_figures(run: Run) -> list[Figure]:
    """All pictures of one run; those of what was not recorded are left out."""
    makers = (accuracy_matrix, per_task, ledger, learning_curves, divergence)
    figures = [figure for figure in (make(run) for make in makers) if figure is not None]
    return figures + model_figures(run)


def _percent(value: float) -> str:
    return f"{value * 100:.1f} %"


def accuracy_matrix(run: Run) -> Figure:
    """The accuracy of every task after every task."""
    scale = Scale(0.0, 1.0, lambda v: f"{v * 100:.{int(0 < v < 1)}f} %")
    drawing = heat_map("accuracy matrix", run.matrix, scale, ("after task", "accuracy on task"))
    forgetting = run.metric("forgetting")
    forgotten = (
        "No column changes below the diagonal: nothing was forgotten."
        if not forgetting
        else f"Columns that fade downwards were forgotten, by {_percent(forgetting)} on average."
    )
    caption = (
        f"Accuracy in % on each task's {_measured_on(run)} data, measured again after every task. "
        f"{forgotten} Above the diagonal: a task's own network on tasks it has not seen."
    )
    return Figure("accuracy-matrix", "Accuracy after every task", caption, drawing)


def _measured_on(run: Run) -> str:
    names = run.result.get("measured_on") or ["test"]
    return " and ".join({"valid": "validation"}.get(n, n) for n in names)


def per_task(run: Run) -> Figure | None:
    """Each task's accuracy and what it added to the model."""
    entries = (run.result.get("ledger") or {}).get("tasks") or {}
    last = run.matrix[-1]
    accuracies = [a for a in last if a is not None]
    if len(accuracies) < len(last):
        return None
    parts = [_bytes(entries.get(t["name"], {})) for t in run.tasks]
    drawing = task_columns("accuracy and bytes per task", accuracies, parts)
    caption = (
        "Above: accuracy at the end of the run. Below: the bytes each task added, in the "
        "colours of the ledger. Later tasks reuse what earlier ones own."
    )
    return Figure("per-task", "Accuracy and bytes per task", caption, drawing)


def _bytes(entry: dict[str, float]) -> dict[str, float]:
    return {name: float(entry.get(name) or 0.0) / 8 for name in PARTS}


def ledger(run: Run) -> Figure | None:
    """The size of the whole model by what its bits are for."""
    book = run.result.get("ledger") or {}
    total, weights = book.get("total"), book.get("num_weights")
    if not total or not weights:
        return None
    parts = _bytes(total)
    if sum(parts.values()) == 0:
        return None
    drawing = ledger_bar("the ledger", parts, 4.0 * weights)
    masks = "as coded in the file" if book.get("masks_from") == "coded" else "by their entropy"
    file = book.get("file_bytes")
    saved = "" if file is None else f" The file on disk takes {size_text(file)}."
    caption = f"What the model's bytes are for; masks counted {masks}.{saved}"
    return Figure("ledger", "Where the bytes go", caption, drawing)


def learning_curves(run: Run) -> Figure | None:
    """Validation accuracy over all epochs, task after task."""
    found: list[Curve] = []
    spans: list[float] = []
    lines, start = run.epochs(), 0.0
    count = len(run.tasks)
    for index, task in enumerate(run.tasks):
        mine = [e for e in lines if e["task"] == task["name"]]
        points = [(start + e["epoch"], e["valid_accuracy"] * 100) for e in mine]
        if not points:
            continue
        step = -(-len(points) * count // MOST_POINTS)
        thinned = (*points[: -1 : max(1, step)], points[-1])
        note = f"task {index + 1} ({task['name']}): best {max(p[1] for p in points):.2f} %"
        found.append(Curve(task_colour(index, count), thinned, note))
        start += mine[-1]["epoch"]
        spans.append(start + 0.5)
    if not found:
        return None
    labels = ("epochs of all tasks, one after the other", "validation accuracy, %")
    caption = (
        "Validation accuracy while learning, one line per task, first to last from blue to amber."
    )
    drawing = curves("learning curves", found, labels, spans[:-1])
    return Figure("learning-curves", "Learning curves", caption, drawing)


def divergence(run: Run) -> Figure | None:
    """How far each task was from the earlier ones."""
    table = run.result.get("divergence") or {}
    cells = table.get("matrix") or []
    values = [v for row in cells for v in row if v is not None]
    if not values:
        return None
    threshold = table.get("threshold")
    top = max([*values, threshold or 0.0])
    scale = Scale(0.0, top, lambda v: f"{v:.1f}" if v < 100 else f"{v:.0f}")
    tags = [f"bank {t['bank']}" for t in run.tasks]
    drawing = heat_map("divergence between tasks", cells, scale, ("task", "earlier task"), tags)
    limit = (
        ""
        if threshold is None
        else f" A task at {threshold:g} or more from all others asks for a new bank."
    )
    caption = (
        f"1 means: as alike as two halves of one task.{limit} To the right, the bank that each "
        "task went to; the reasons are in the table below."
    )
    return Figure("divergence", "How far tasks are apart", caption, drawing)


def model_figures(run: Run) -> list[Figure]:
    """The pictures that need the saved model."""
    store = run.store()
    if store is None or not store.tasks:
        return []
    from tinysubnets.report import mask_pictures

    shares = store.settings.get("tsn", {}).get("sharing", "values")
    kind = "value-based sharing" if shares == "values" else "disjoint values"
    return [
        Figure(
            "ownership",
            "Which task owns which weight",
            f"Weight matrices, inputs down and outputs across, with {kind}: every weight in the "
            "colour of the first task that used it; grey weights are still free.",
            mask_pictures.ownership(store),
        ),
        Figure(
            "task-masks",
            "What each task uses",
            "The same part of one layer for each task: its weights in the colours of their owners, "
            "so earlier colours show what was reused.",
            mask_pictures.task_masks(store),
        ),
        Figure(
            "mask-overlap",
            "Mask overlap",
            "The share of a task's weights that another task of the same bank uses as well. "
            "Tasks of different banks share no values.",
            mask_pictures.overlap(store),
        ),
        Figure(
            "codebooks",
            "Weights and their codebook",
            "The first task's weights: areas show how many share a centre; ticks are the centres.",
            mask_pictures.codebooks(store),
        ),
    ]


def comparison(runs: Sequence[Run], references: Sequence[Dot] = ()) -> Figure | None:
    """Accuracy against bytes: a small dot per run, a large one per group's mean."""
    groups = grouped(runs)
    if not any(g.runs[0].size_bytes for g in groups):
        return None
    dots = list(references)
    for index, (group, name) in enumerate(zip(groups, _names(groups), strict=True)):
        dots += _group_dots(group, index, name) if group.runs[0].size_bytes else []
    drawing = size_scatter("accuracy against bytes", dots)
    small = " Small dots are single runs, large ones their mean." if len(runs) > len(groups) else ""
    paper = (
        " Hollow marks are the paper's numbers: its capacity counts no heads." if references else ""
    )
    caption = f"Up and to the left is better.{small}{paper}"
    return Figure("accuracy-against-bytes", "Accuracy against bytes", caption, drawing)


def _names(groups: Sequence[Group]) -> list[str]:
    """Names of groups for a chart: the method, and in what groups of one method differ."""
    names = []
    for group in groups:
        same = [g for g in groups if g.method == group.method]
        parts = [group.method]
        if len({g.runs[0].scenario_type for g in groups}) > 1:
            parts.append(group.runs[0].scenario_type.removesuffix("-IL"))
        if len({g.recipe for g in same}) > 1:
            parts.append(group.recipe)
        names.append(", ".join(parts))
    return names


def _group_dots(group: Group, index: int, name: str) -> list[Dot]:
    colour, shape = series(index)
    size = group.spread(lambda r: r.size_bytes)
    accuracy = group.spread(lambda r: r.metric("average_accuracy"))
    if size is None or accuracy is None:
        return []
    singles = [
        Dot(r.size_bytes, r.metric("average_accuracy") or 0.0, colour, "", shape, False, 3.6)
        for r in group.runs
        if r.size_bytes and len(group.runs) > 1
    ]
    note = f"{group.method} ({group.recipe}): {accuracy.show(2, 100)} % in {size_text(size.mean)}"
    mean = Dot(size.mean, accuracy.mean, colour, name, shape, False, 6.5, note)
    return [*singles, mean]


def accuracy_over_time(runs: Sequence[Run]) -> Figure | None:
    """The mean accuracy on all tasks so far, after every task, one line per group."""
    groups = grouped(runs)
    lines = []
    for index, (group, name) in enumerate(zip(groups, _names(groups), strict=True)):
        tables = [r.matrix for r in group.runs]
        points = []
        for i in range(min(len(t) for t in tables)):
            cells = [v for t in tables for v in t[i][: i + 1] if v is not None]
            points.append((i + 1.0, 100 * sum(cells) / len(cells)))
        note = f"{group.method} ({group.recipe}): {points[-1][1]:.2f} % at the end"
        colour, shape = series(index)
        lines.append(Curve(colour, tuple(points), note, name, shape, index // NUM_SERIES % 2 == 1))
    if max(len(c.points) for c in lines) < 2:
        return None
    drawing = curves("accuracy over time", lines, ("tasks learned", "accuracy so far, %"))
    caption = "Mean accuracy on all tasks learned so far; lines that fall are forgetting."
    return Figure("accuracy-over-time", "Accuracy as tasks come in", caption, drawing)
