"""The pictures of the report, one function each: heading, drawing, and how to read it.

A new picture of one run or of several is a function here, and its name in `of_run` or `of_all`;
those of a saved model are in `model_figures.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from tinysubnets.experiments.metrics import MATRICES, parts_told
from tinysubnets.experiments.results import Group, Run, grouped
from tinysubnets.experiments.tables import size_text
from tinysubnets.model.subnet import NO_BANK
from tinysubnets.report.charts import (
    WIDTH,
    Curve,
    Dot,
    Frame,
    class_bars,
    confusion_map,
    curves,
    heat_map,
    padded,
    size_scatter,
    task_numbers,
)
from tinysubnets.report.drawing import NORMAL, SMALL, Drawing, Figure
from tinysubnets.report.model_figures import of_model
from tinysubnets.report.theme import NUM_SERIES, PARTS, series, task_color
from tinysubnets.scenarios import SCENARIOS

MAX_CONFUSED = 8  # tasks whose classes are shown
MAX_MATRIX, MAX_BARS = 30, 15  # classes up to which pairs are shown, and of more the worst
NAME_PIXELS = 7.5  # of a character of a task's name, at most on average


def of_run(run: Run) -> list[Figure]:
    """All pictures of one run; those of what was not recorded are left out."""
    makers = (
        accuracy_matrix,
        per_task,
        ledger,
        beside_separate_networks,
        learning_curves,
        task_confusion,
        confidences,
        divergence,
    )
    figures = [figure for figure in (make(run) for make in makers) if figure is not None]
    store = run.store()
    return figures + (of_model(store) if store is not None and store.tasks else [])


def of_all(runs: Sequence[Run]) -> list[Figure]:
    """The pictures that compare runs."""
    figures = (make(runs) for make in (accuracy_against_bytes, accuracy_over_time))
    return [figure for figure in figures if figure is not None]


# Of one run


def accuracy_matrix(run: Run) -> Figure | None:
    """The accuracy on every task after every task; None of one task."""
    if len(run.tasks) < 2:
        return None
    sides, cells = ("after task", "accuracy on task"), run.defined_matrix
    drawing = heat_map(
        "accuracy matrix",
        cells,
        sides,
        lambda v: f"{v * 100:.{int(0 < v < 1)}f} %",
        names=_task_names(run),
    )
    measured = parts_told(run.measured_on)
    lost = run.metric("forgetting")
    forgotten = (
        f"Columns that fade downwards were forgotten, by {lost * 100:.1f} % on average."
        if lost
        else "No column changes below the diagonal: nothing was forgotten."
    )
    if run.matrix_kind != "full":
        which = MATRICES.get(run.matrix_kind, "some cells")
        return Figure(
            "accuracy-matrix",
            "Accuracy of the tasks",
            drawing,
            f"Accuracy in % on each task's {measured} data. Measured: {which} (--matrix "
            f"{run.matrix_kind}). Empty cells were not measured, and nothing is said of them.",
        )
    is_empty = any(value is None for row in cells for value in row)
    return Figure(
        "accuracy-matrix",
        "Accuracy after every task",
        drawing,
        f"Accuracy in % on each task's {measured} data, measured again after every task. "
        f"{forgotten} Above the diagonal: a task's own network on tasks it has not seen"
        f"{', not defined where their classes are others' if is_empty else ''}.",
    )


def _task_names(run: Run) -> list[str]:
    return [str(task["name"]) for task in run.tasks]


def classes(run: Run) -> list[Figure]:
    """For each task, how well its classes are told apart; for many, the least accurate tasks."""
    known = [(i, task) for i, task in enumerate(run.tasks, 1) if _counts(task) or _by_class(task)]
    known.sort(key=lambda item: item[1].get("final_accuracy") or 0.0)
    return [_classes(number, task) for number, task in sorted(known[:MAX_CONFUSED], key=_first)]


def _first(item: tuple[int, Mapping[str, Any]]) -> int:
    return item[0]


def _classes(number: int, task: Mapping[str, Any]) -> Figure:
    """One task's confusion matrix, or its least accurate classes where there are very many."""
    names, counts = [str(c) for c in task["classes"]], _counts(task)
    final = task.get("final_accuracy")
    shown = "" if final is None else f": {100 * final:.1f} %"
    heading, key = f"{task['name']}{shown}", f"classes-{number}"
    title = f"classes of task {number}"
    if counts and len(names) <= MAX_MATRIX:
        if not any(row[len(names) :] != [0] and len(row) > len(names) for row in counts):
            counts = [row[: len(names)] for row in counts]  # nothing was taken for another task's
        drawing = confusion_map(title, counts, names, others="another task")
        return Figure(key, heading, drawing, _confused(names, counts))
    found = sorted((a, name, i) for i, (name, a) in enumerate(_by_class(task).items()))
    rows = [(name, a, _mistake(i, names, counts)) for a, name, i in found[:MAX_BARS]]
    few = f"The {len(rows)} least accurate of {len(found)} classes. " if len(found) > 15 else ""
    mean = sum(a for a, *_ in found) / len(found)
    return Figure(key, heading, class_bars(title, rows, mean), f"{few}The line is their mean.")


def _counts(task: Mapping[str, Any]) -> list[list[int]]:
    """A task's confusion matrix [true, answered]; empty where it is not recorded, or damaged."""
    counts, names = task.get("confusion"), task.get("classes")
    if not isinstance(counts, list) or not isinstance(names, list) or len(counts) != len(names):
        return []
    widths = {len(row) if isinstance(row, list) else 0 for row in counts}
    fine = len(widths) == 1 and widths <= {len(names), len(names) + 1} and names
    whole = fine and all(type(v) is int and v >= 0 for row in counts for v in row)
    return counts if whole and any(map(sum, counts)) else []


def _by_class(task: Mapping[str, Any]) -> dict[str, float]:
    """The accuracy of each class that has samples."""
    shares, names = task.get("class_accuracy"), task.get("classes")
    if not isinstance(shares, list) or not isinstance(names, list) or len(shares) != len(names):
        return {}
    known = {str(n): a for n, a in zip(names, shares, strict=True) if a is not None}
    fine = all(isinstance(a, (int, float)) and 0 <= a <= 1 for a in known.values())
    return known if fine else {}


def _confused(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The pairs that are confused most often, in words."""
    heads = [*names, "classes of other tasks"]
    pairs = [
        (-count, i, j) for i, row in enumerate(counts) for j, count in enumerate(row) if i != j
    ]
    worst = [pair for pair in sorted(pairs)[:2] if pair[0] < -1]
    if not worst:
        times = "more than once" if any(pair[0] for pair in pairs) else "ever"
        return f"No class is taken for another one {times}."
    told = [f"{names[i]} for {heads[j]} ({-n} of {sum(counts[i])})" for n, i, j in worst]
    return f"Most often taken wrongly: {', '.join(told)}."


def _mistake(index: int, names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """What a class is taken for most often."""
    if not counts or not sum(counts[index]):
        return ""
    heads = [*names, "classes of other tasks"]
    count, j = max((c, -j) for j, c in enumerate(counts[index]) if j != index)
    return f"taken for {heads[-j]} {count / sum(counts[index]):.0%}" if count else ""


def per_task(run: Run) -> Figure | None:
    """Each task's accuracy as a dot above the bytes it added, and the weights still free.

    What is free is left out where no task has weights of a bank.
    """
    accuracies = [a * 100 for a in run.matrix[-1] if a is not None]
    if len(accuracies) < len(run.matrix[-1]):
        return None
    entries = (run.result.get("ledger") or {}).get("tasks") or {}
    parts = [_bytes(entries.get(task["name"], {})) for task in run.tasks]
    count, largest = len(accuracies), max(sum(p.values()) for p in parts) or 1.0
    unit, name = (1e6, "MB") if largest >= 1e6 else (1e3, "kB") if largest >= 1e3 else (1, "bytes")
    low, high = padded(accuracies, 0.25)
    free = _free(run)
    # Two charts or three, one above the other, over the same columns.
    above = Frame(46, 34, WIDTH - 6, 130, (0, count), (max(0.0, low), min(100.0, high + 0.01)))
    below = Frame(46, 178, WIDTH - 6, 306, (0, count), (0, largest * 1.05 / unit))
    lowest = Frame(46, 352, WIDTH - 6, 420, (0, count), (0, 100)) if free else below
    drawing = Drawing(WIDTH, lowest.bottom + 44, "accuracy and bytes per task")
    above.draw_y(drawing, "accuracy at the end, %", 3)
    for i, value in enumerate(accuracies):
        note = f"{run.tasks[i]['name']}: {value:.2f} %"
        drawing.mark(
            above.x(i + 0.5), above.y(value), max(2.0, min(5.5, 120 / count)), "accent", note=note
        )
    below.draw_y(drawing, f"size, {name}", 4)
    half = 0.31 if count <= 12 else 0.4  # of a column's width, from 0 to 1
    for i, part in enumerate(parts):
        left, right, base = below.x(i + 0.5 - half), below.x(i + 0.5 + half), 0.0
        for kind, size in part.items():
            top, bottom = below.y((base + size) / unit), below.y(base / unit)
            if bottom - top > 0.05:
                gap = 0.75 if bottom - top > 2.5 else 0.0
                note = f"{run.tasks[i]['name']}, {kind}: {size_text(size)}"
                drawing.rect(left, top, right - left, bottom - top - gap, kind, note=note)
            base += size
    if free:
        lowest.draw_y(drawing, "weights still free, %", 2)
        for i, value in free.items():
            note = f"{value:.1f} % of the bank free after {run.tasks[i]['name']}"
            drawing.mark(
                lowest.x(i + 0.5), lowest.y(value), max(1.6, min(4.0, 90 / count)), "ink", note=note
            )
    names = _task_names(run)
    room = (lowest.x(count) - lowest.x(0)) / count / NAME_PIXELS  # characters below a column
    shown = names if max(map(len, names)) < room else [str(i + 1) for i in range(count)]
    lowest.draw_x(drawing, [(i + 0.5, shown[i]) for i in task_numbers(count)], "task")
    return Figure(
        "per-task",
        "Accuracy and bytes per task",
        drawing,
        "Above: accuracy at the end of the run. Below: the bytes each task added, in the "
        "colors of the ledger."
        + (" Later tasks reuse what earlier ones own." if count > 1 else "")
        + (" Last: the share of its bank that no task owns after it." if free else ""),
    )


def _free(run: Run) -> dict[int, float]:
    """By the number of each task that has a bank: the share of it in % that is free afterwards."""
    return {
        i: 100 * (1 - task["owned_after_pruning"])
        for i, task in enumerate(run.tasks)
        if task.get("owned_after_pruning") is not None and task.get("bank") not in (None, NO_BANK)
    }


def _bytes(entry: Mapping[str, float]) -> dict[str, float]:
    """A line of the ledger, given in bits, as bytes."""
    return {name: float(entry.get(name) or 0.0) / 8 for name in PARTS}


def ledger(run: Run) -> Figure | None:
    """The whole model as one stacked bar, and a line per part with bytes and shares."""
    book = run.result.get("ledger") or {}
    parts = {name: size for name, size in _bytes(book.get("total") or {}).items() if size}
    if not parts or not book.get("num_weights"):
        return None
    dense, total, left = 4.0 * book["num_weights"], sum(parts.values()), 0.0
    drawing = Drawing(WIDTH, 92 + 23 * len(parts), "the ledger")
    drawing.text(0, 19, size_text(total), 18, "ink", font_weight=600)
    note = f"{total / dense:.1%} of one dense float32 net, {size_text(dense)}"
    drawing.text(WIDTH, 18, note, text_anchor="end")
    for back, heading in ((132, "bytes"), (66, "share"), (0, "of dense")):
        drawing.text(WIDTH - back, 70, heading, SMALL - 1, "faint", text_anchor="end")
    for i, (name, size) in enumerate(parts.items()):
        width, y = size / total * WIDTH, 86 + 23 * i
        drawing.rect(left, 32, max(0.5, width - 1.5), 26, name, note=f"{name}: {size_text(size)}")
        left += width
        drawing.rect(0, y - 10, 12, 12, name, rx=2)
        drawing.text(20, y, name.replace("_", " "), NORMAL, "ink")
        drawing.text(WIDTH - 132, y, size_text(size), NORMAL, "ink", text_anchor="end")
        drawing.text(WIDTH - 66, y, f"{size / total:.1%}", NORMAL, text_anchor="end")
        drawing.text(WIDTH, y, f"{size / dense:.2%}", NORMAL, text_anchor="end")
    masks = "as coded in the file" if book.get("masks_from") == "coded" else "by their entropy"
    file = book.get("file_bytes")
    saved = "" if file is None else f" The file on disk takes {size_text(file)}."
    caption = f"What the model's bytes are for; masks counted {masks}.{saved}"
    return Figure("ledger", "Where the bytes go", drawing, caption)


def learning_curves(run: Run) -> Figure | None:
    """Validation accuracy over all epochs, task after task."""
    epochs, count, most_points = run.epochs(), len(run.tasks), 600
    found: list[Curve] = []
    spans: list[float] = []
    start = 0.0
    for index, task in enumerate(run.tasks):
        mine = [e for e in epochs if e["task"] == task["name"]]
        if not mine:
            continue
        points = [(start + e["epoch"], e["valid_accuracy"] * 100) for e in mine]
        step = max(1, -(-len(points) * count // most_points))
        note = f"task {index + 1} ({task['name']}): best {max(p[1] for p in points):.2f} %"
        found.append(Curve(task_color(index, count), [*points[:-1:step], points[-1]], note))
        start += mine[-1]["epoch"]
        spans.append(start + 0.5)
    if not found:
        return None
    epoch = "epochs of all tasks, one after the other" if count > 1 else "epoch"
    labels = (epoch, "validation accuracy, %")
    return Figure(
        "learning-curves",
        "Learning curves",
        curves("learning curves", found, labels, spans[:-1]),
        "Validation accuracy while learning"
        + (", one line per task, first to last from blue to amber." if count > 1 else "."),
    )


def divergence(run: Run) -> Figure | None:
    """How far each task was from the earlier ones."""
    table = run.result.get("divergence") or {}
    cells, threshold = table.get("matrix") or [], table.get("threshold")
    values = [v for row in cells for v in row if v is not None]
    if not values:
        return None
    drawing = heat_map(
        "divergence between tasks",
        cells,
        ("task", "earlier task"),
        lambda v: f"{v:.1f}" if v < 100 else f"{v:.0f}",
        max([*values, threshold or 0.0]),
        [f"bank {task.get('bank', '–')}" for task in run.tasks],
        _task_names(run),
    )
    limit = ""
    if threshold is not None:
        limit = f" A task at {threshold:g} or more from all others asks for a new bank."
    return Figure(
        "divergence",
        "How far tasks are apart",
        drawing,
        f"1 means: as alike as two halves of one task.{limit} To the right, the bank that each "
        "task went to; the reasons are in the table below.",
    )


def task_confusion(run: Run) -> Figure | None:
    """Which task's network answers for which task's inputs when nobody tells the task."""
    names = _task_names(run)
    counts = _counts({"confusion": run.without_task.get("confusion"), "classes": names})
    if len(names) < 2 or not counts or len(counts[0]) != len(names):
        return None
    found, rule = run.routed("task_accuracy"), run.without_task.get("rule")
    told = []
    for kind, text in (("class-IL", "task and class"), ("domain-IL", "the label")):
        share, transfer = (run.routed(kind, k) for k in ("average_accuracy", "backward_transfer"))
        moved = "" if transfer is None else f", BWT {100 * transfer:.2f} points"
        told += [] if share is None else [f"{text} right for {100 * share:.1f} % ({kind}{moved})"]
    area, passes = run.routed("unknown", "auroc"), run.routed("passes")
    price = "" if passes is None else f" Passes of networks an input takes: {passes:.0f}."
    strange = "" if area is None else f" Inputs of a task left out are told with AUROC {area:.2f}."
    return Figure(
        "task-confusion",
        "Without the task's name",
        confusion_map("tasks taken for each other", counts, names),
        f"Rows: inputs of a task. Columns: the task whose network claimed them, by {rule}, among "
        f"all {len(names)}. Right for {100 * (found or 0):.1f} % of inputs; {', '.join(told)}."
        f"{strange}{price}",
    )


def confidences(run: Run) -> Figure | None:
    """How sure the choice of a task was, right or wrong; None where there is no choice."""
    table = run.without_task.get("confidence")
    kinds = ("edges", "right", "wrong")
    if len(run.tasks) < 2 or not isinstance(table, dict):
        return None
    if not all(table.get(k) for k in kinds):
        return None
    edges, right, wrong = (table[k] for k in kinds)
    if not len(right) == len(wrong) == len(edges) - 1 or not sum(right) + sum(wrong):
        return None
    total, high = sum(right) + sum(wrong), max(map(sum, zip(right, wrong, strict=True)))
    drawing = Drawing(WIDTH, 220, "confidence of the choice of a task")
    frame = Frame(46, 34, WIDTH - 6, 166, (0.0, 1.0), (0.0, 105.0 * high / total))
    frame.draw_y(drawing, "share of inputs, %", 4)
    for low, end, good, bad in zip(edges, edges[1:], right, wrong, strict=False):
        x, width, base = frame.x(low) + 1, frame.x(end) - frame.x(low) - 2, 0.0
        for count, color, word in ((good, "accent", "right"), (bad, "warm", "wrong")):
            share = 100.0 * count / total
            top, bottom = frame.y(base + share), frame.y(base)
            note = f"confidence {low:g} to {end:g}, {word}: {count:,} inputs"
            if count:
                drawing.rect(x, top, width, max(0.6, bottom - top), color, note=note)
            base += share
    frame.draw_x(drawing, [(e, f"{e:g}") for e in edges[::2]], "probability of the chosen task")
    for place, (color, word) in enumerate((("accent", "task found"), ("warm", "another task"))):
        drawing.rect(WIDTH - 210 + 110 * place, 4, 10, 10, color, rx=2)
        drawing.text(WIDTH - 195 + 110 * place, 13, word)
    half = len(right) // 2
    sure = sum(right[half:]) / max(1, sum(right[half:]) + sum(wrong[half:]))
    return Figure(
        "confidences",
        "How sure the choice of a task is",
        drawing,
        f"All inputs by the probability that their chosen task had. Above 0.5 it is the right one "
        f"for {100 * sure:.1f} %.",
    )


def beside_separate_networks(run: Run) -> Figure | None:
    """Accuracy against bytes of one run; None where separate networks were not measured."""
    return accuracy_against_bytes([run]) if separate_networks([run]) else None


# Of several runs


def accuracy_against_bytes(runs: Sequence[Run]) -> Figure | None:
    """A small dot per run, a large one per group's mean, a hollow one per number of the paper."""
    groups, dots = grouped(runs), []
    for index, (group, name) in enumerate(_named(groups)):
        color, shape = series(index)
        size = group.spread(lambda r: r.size_bytes)
        accuracy = group.spread(lambda r: r.metric("average_accuracy"))
        if size is None or not size.mean or accuracy is None:
            continue
        for run in group.runs if len(group.runs) > 1 else ():
            if run.size_bytes:
                place = (run.size_bytes, run.metric("average_accuracy") or 0.0)
                dots.append(Dot(*place, color, shape=shape, size=3.6))
        means = f"{accuracy.show(2, 100)} % in {size_text(size.mean)}"
        note = f"{group.method} ({group.recipe}): {means}"
        dots.append(Dot(size.mean, accuracy.mean, color, name, shape, size=6.5, note=note))
    theirs, rival = references(runs), separate_networks(runs)
    if not dots or len(dots) + len(theirs) + len(rival) < 2:
        return None  # a single dot says no more than its numbers
    small = " Small dots are single runs, large ones their mean." if len(runs) > len(groups) else ""
    paper = " Hollow marks are the paper's numbers: its capacity counts no heads." if theirs else ""
    return Figure(
        "accuracy-against-bytes",
        "Accuracy against bytes",
        size_scatter("accuracy against bytes", [*theirs, *rival, *dots]),
        f"Up and to the left is better.{small}{paper}{SEPARATE if rival else ''}",
    )


SEPARATE = " Separate networks are small ones, one for each task, by our codec."


def separate_networks(runs: Sequence[Run]) -> list[Dot]:
    """What separate small networks reach on the scenario, where all runs are of all its tasks.

    Nothing where it was not measured, or where the runs have such networks themselves.
    """
    scenarios = {r.scenario for r in runs}
    if len(scenarios) != 1 or not all(_is_whole(r) for r in runs):
        return []
    if any(r.method == "separate" for r in runs):
        return []
    text = files("tinysubnets.report").joinpath("separate_networks.json").read_text("utf-8")
    points = json.loads(text).get(scenarios.pop(), [])
    dots = []
    for point in points:
        size, accuracy = point["bytes"], point["accuracy"]
        note = f"{point['label']}: {100 * accuracy:.2f} % in {size_text(size)}"
        label = "separate networks" if point is points[-1] else ""
        dots.append(Dot(size, accuracy, "soft", label, size=4.5, note=note, curve="separate"))
    return dots


def references(runs: Sequence[Run]) -> list[Dot]:
    """The paper's own points for the scenario, where all runs are of all tasks of one it has."""
    from tinysubnets.paper.numbers import ACCURACY, CAPACITY

    kinds = {(r.scenario, (r.result.get("ledger") or {}).get("num_weights")) for r in runs}
    scenario, weights = next(iter(kinds))
    if len(kinds) != 1 or weights is None or not all(_is_whole(r) for r in runs):
        return []
    dots = []
    for method, label in (("wsn", "WSN"), ("tsn-wr", "TSN-wr"), ("tsn", "TSN")):
        accuracy, capacity = ACCURACY[method].get(scenario), CAPACITY[method].get(scenario)
        if accuracy is not None and capacity is not None:
            note = f"{label} in the paper: {accuracy} % at {capacity} %"
            place = (capacity / 100 * 4.0 * weights, accuracy / 100)  # of dense float32
            dots.append(Dot(*place, "faint", f"{label}, paper", "disc", True, 5.0, note))
    return dots


def _is_whole(run: Run) -> bool:
    """Whether a run has the scenario's own data and tasks: fewer tasks take fewer bytes."""
    known = SCENARIOS.get(run.scenario)
    if known is None or not known.datasets:
        return False
    data = run.setting_of("data") or {}
    used = tuple(data.get("datasets") or [data.get("dataset")])
    tasks, classes = map(int, known.tasks.split(" x "))
    return (
        used == known.datasets
        and [len(t.get("classes") or ()) for t in run.tasks] == [classes] * tasks
    )


def accuracy_over_time(runs: Sequence[Run]) -> Figure | None:
    """The mean accuracy on all tasks so far, after every task, one line per group."""
    lines = []
    for index, (group, name) in enumerate(_named(grouped(runs))):
        tables, points = [r.matrix for r in group.runs], []
        for i in range(min(len(t) for t in tables)):
            if any(v is None for t in tables for v in t[i][: i + 1]):
                continue  # not all tasks were measured here
            cells = [v for t in tables for v in t[i][: i + 1] if v is not None]
            points.append((i + 1.0, 100 * sum(cells) / len(cells)))
        if not points:
            continue
        note = f"{group.method} ({group.recipe}): {points[-1][1]:.2f} % at the end"
        color, shape = series(index)
        lines.append(Curve(color, points, note, name, shape, index // NUM_SERIES % 2 == 1))
    if len(lines) < 2 or max(len(c.points) for c in lines) < 2:
        return None
    return Figure(
        "accuracy-over-time",
        "Accuracy as tasks come in",
        curves("accuracy over time", lines, ("tasks learned", "accuracy so far, %")),
        "Mean accuracy on all tasks so far. A line falls where earlier tasks are forgotten, "
        "and also where the new task is harder; a run's accuracy matrix tells which.",
    )


def _named(groups: Sequence[Group]) -> list[tuple[Group, str]]:
    """Groups with their names: the method, and in what groups of one method differ."""
    out = []
    for group in groups:
        parts = [group.method]
        if len({g.runs[0].scenario_type for g in groups}) > 1:
            parts.append(group.runs[0].scenario_type.removesuffix("-IL"))
        if len({g.recipe for g in groups if g.method == group.method}) > 1:
            parts.append(group.recipe)
        out.append((group, ", ".join(parts)))
    return out
