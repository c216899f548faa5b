"""The commands `tsn predict` and `evaluate`: answers, and how good they are."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands.model import LINE_END, add_net, as_json, command, loaded
from tinysubnets.errors import DataError, SettingError, TaskError
from tinysubnets.experiments.tables import text_table
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    import numpy as np

    from tinysubnets.datasets.user_files import Part
    from tinysubnets.model.evaluation import Evaluation
    from tinysubnets.model.store import SubnetStore

NOT_HELD_OUT = (
    "if the task was learned from these, this is no held-out accuracy, which needs other images, "
    "or a test/ folder"
)
MANY = 10  # inputs of folders above which their answers are counted as well


def add_parsers(subparsers: Any) -> None:
    """Add the commands."""
    _add_predict(subparsers)
    _add_evaluate(subparsers)


def _add_predict(subparsers: Any) -> None:
    predict = command(subparsers, "predict", "class names and probabilities for images", _predict)
    predict.add_argument(
        "--task", metavar="NAME", help="the task's name (default: found out for every input)"
    )
    predict.add_argument(
        "--among",
        action="append",
        metavar="NAME",
        help="a task that it may be, where not all; may be repeated",
    )
    predict.add_argument(
        "--together", action="store_true", help="all inputs are of one task: far more certain"
    )
    predict.add_argument(
        "files", nargs="+", metavar="FILE", help="images, folders of them, or .npz with `inputs`"
    )
    predict.add_argument("--top", type=int, default=1, metavar="N", help="classes to show")
    predict.add_argument("--json", action="store_true", help="print plain data instead of a table")
    add_net(predict)


def _add_evaluate(subparsers: Any) -> None:
    text = "accuracy of a task on labeled data, by class and with what is taken for what"
    evaluate = command(subparsers, "evaluate", text, _evaluate)
    evaluate.add_argument(
        "--task", metavar="NAME", help="the task's name; with --unknown by default all tasks"
    )
    evaluate.add_argument(
        "--data", required=True, metavar="DIR", help="images per class, or .npz; test/ if it has it"
    )
    evaluate.add_argument(
        "--unknown",
        metavar="DIR",
        help="images or .npz of something else: measure how well they are told from those of "
        "--data, which need no labels then",
    )
    evaluate.add_argument("--json", action="store_true", help="print plain data instead of text")
    add_net(evaluate)


def _predict(options: argparse.Namespace) -> int:
    if options.task is not None and (options.among or options.together):
        raise SettingError("--among and --together find the task; --task names it already.")
    store = loaded(options, options.task)
    if options.task is None:
        return _predict_routed(store, options)
    names, inputs, complaints = _read_inputs(store, [options.task], options.files)
    found = _top_classes(store, options.task, inputs, options.top) if names else []
    rows = [{"input": n, "classes": c} for n, c in zip(names, found, strict=True)]
    if options.json and rows:
        print(as_json({"task": options.task, "predictions": rows}))
    elif rows:
        show_predictions(rows)
        _show_counts(rows, options.files)
    return _complain(complaints)


def _predict_routed(store: SubnetStore, options: argparse.Namespace) -> int:
    """Show labels of inputs whose task is not given, and the task that each came from."""
    among = options.among or list(store.tasks)
    names, inputs, complaints = _read_inputs(store, among, options.files)
    if not names:
        return _complain(complaints)
    found = store.predict(inputs, among=options.among, together=options.together)
    rows: list[dict[str, Any]] = [{} for _ in names]
    for task in dict.fromkeys(found.tasks.tolist()):
        mine = (found.tasks == task).nonzero()[0]
        for place, classes in zip(
            mine, _top_classes(store, task, inputs[mine], options.top), strict=True
        ):
            rows[place] = {
                "input": names[place],
                "task": task,
                "confidence": float(found.confidence[place]),
                "unknown": bool(found.unknown[place]),
                "classes": classes,
            }
    if options.json:
        about = {"candidates": list(found.routing.candidates), "rule": found.routing.rule}
        print(as_json({"task": None, **about, "predictions": rows}))
    else:
        show_routed(rows)
        _show_counts(rows, options.files)
    return _complain(complaints)


def _complain(complaints: Sequence[str]) -> int:
    """Say what could not be read, a line each; gives the exit status."""
    for complaint in complaints:
        print(f"tsn: {for_terminal(complaint, keep=LINE_END)}", file=sys.stderr)
    return 2 if complaints else 0


def _show_counts(rows: Sequence[Mapping[str, Any]], files: Sequence[str]) -> None:
    """Print how many inputs got which answer, where there are many from a folder.

    Those that no task knows are counted apart.
    """
    if len(rows) <= MANY or not any(Path(file).is_dir() for file in files):
        return
    counts: dict[str, Counter[str]] = {}
    known = [row for row in rows if not row.get("unknown")]
    for row in known:
        counts.setdefault(row.get("task", ""), Counter())[str(row["classes"][0]["name"])] += 1
    told = [
        (f"{task}: " if task else "") + ", ".join(f"{c} {n:,}" for c, n in found.most_common())
        for task, found in counts.items()
    ]
    if len(known) < len(rows):
        told.append(f"unknown: {len(rows) - len(known):,}")
    print("\n" + for_terminal(f"{len(rows):,} inputs. {'; '.join(told)}"))


def _top_classes(
    store: SubnetStore, task: str, inputs: np.ndarray, count: int
) -> list[list[dict[str, Any]]]:
    """The most probable classes of a task for each input."""
    import torch

    classes = store.subnet(task).classes
    shares = torch.softmax(store.logits(task, inputs), 1)
    top = shares.topk(min(max(count, 1), len(classes)), 1)
    return [
        [{"name": classes[i], "probability": p} for p, i in zip(*best, strict=True)]
        for best in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]


def _read_inputs(
    store: SubnetStore, tasks: Sequence[str], files: list[str]
) -> tuple[list[str], np.ndarray, list[str]]:
    """The inputs in image and npz files, as these tasks take them, each with a name.

    And what is wrong with each file that cannot be read, which is left out.
    """
    import numpy as np

    from tinysubnets.datasets.user_files import image_form, images_in, read_files

    files = [f for file in files for f in (images_in(file) if Path(file).is_dir() else [file])]
    if not tasks:
        raise TaskError("the model has no tasks; learn one by `tsn learn`.")
    subnets = [store.subnet(task) for task in tasks]
    samples = {s.sample: s for s in reversed(subnets)}
    kinds = [f"{s.name}: {k.shape if k else 'unknown'}" for k, s in samples.items()]
    if len(kinds) == 1 and any(Path(file).suffix != ".npz" for file in files):
        kinds = [f"{s.name}: {f}" for f, s in {image_form(s): s for s in reversed(subnets)}.items()]
    if len(kinds) > 1:
        raise SettingError(
            f"tasks take inputs of several kinds ({for_terminal('; '.join(kinds))}); name those "
            "that it may be by --among, or the one by --task."
        )
    names: list[str] = []
    parts: list[np.ndarray] = []
    complaints = []
    for file in files:
        try:
            found, inputs = read_files([file], subnets[0])
        except DataError as error:
            complaints.append(str(error))
            continue
        names += found
        parts.append(inputs)
    shapes = sorted({p.shape[1:] for p in parts})
    if len(shapes) > 1:
        raise DataError(f"the files hold inputs of different shapes: {shapes}.")
    return names, np.concatenate(parts) if parts else np.empty(0), complaints


def show_predictions(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print predicted classes, the most probable first."""
    cells = []
    for row in rows:
        for place, found in enumerate(row["classes"]):
            name = "" if place else row["input"]
            cells.append((name, str(found["name"]), f"{found['probability']:.4f}"))
    print(text_table(cells, ("input", "class", "probability"), num_labels=2))


def show_routed(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print predicted classes with the tasks that they are from.

    Where no task knows an input, the best guess is shown as one.
    """
    cells: list[tuple[str, ...]] = []
    for row in rows:
        head, sure = (row["input"], row["task"]), f"{row['confidence']:.4f}"
        guess = "unknown; best guess " if row["unknown"] else ""
        for found in row["classes"]:
            share = f"{found['probability']:.4f}"
            cells.append((head[0], f"{guess}{found['name']}", head[1], share, sure))
            head, sure, guess = ("", ""), "", ""
    headings = ("input", "class", "task", "probability", "task's probability")
    print(text_table(cells, headings, num_labels=3))


# Measured on labeled data.


def _evaluate(options: argparse.Namespace) -> int:
    if options.unknown is not None:
        return _evaluate_unknown(options)
    if options.task is None:
        raise SettingError("--task NAME is needed, or --unknown DIR for inputs of something else.")
    store = loaded(options, options.task)
    parts = labeled(store, options)
    part = parts[0]
    if strange := strange_labels(part.labels, store.subnet(options.task).classes):
        raise SettingError(f"{options.data}: {strange}")
    found = store.evaluate(options.task, part.inputs, part.labels)
    if options.json:
        print(as_json(_as_data(found)))
        return 0
    print(_shown(found, parts, options.data))
    return 0


def _as_data(found: Evaluation) -> dict[str, Any]:
    """What was measured of a task as plain data."""
    rows = {str(c): None if math.isnan(a) else a for c, a in found.per_class.items()}
    told = {"task": found.task, "accuracy": found.accuracy, "samples": found.num_samples}
    return told | {"loss": found.loss, "per_class": rows, "confusion": found.confusion.tolist()}


def _shown(found: Evaluation, parts: tuple[Part, Part], data: str) -> str:
    """What was measured of a task as text: on what, and whether that may have been learned from."""
    part, training = parts
    where = f"{data}, {part.name}" if part.name else f"{data}, all of it"
    text = f"{for_terminal(str(found), keep=LINE_END)}\non {for_terminal(where)}"
    return f"{text}\nnote: {NOT_HELD_OUT}" if part is training else text


def _evaluate_unknown(options: argparse.Namespace) -> int:
    """Show how well inputs of something else are recognized as unknown.

    And how accurate the answers are, for one task whose data have labels.
    """
    store = loaded(options, options.task)
    tasks = list(store.tasks) if options.task is None else [options.task]
    own = _test_inputs(store, tasks, options.data)
    foreign = _test_inputs(store, tasks, options.unknown)
    found = store.evaluate_unknown(own, foreign, among=tasks)
    data = {"tasks": tasks, **asdict(found)}
    if options.task is not None and (parts := _with_labels(store, options)) is not None:
        known = store.evaluate(options.task, parts[0].inputs, parts[0].labels)
        data |= _as_data(known)
        if not options.json:
            print(f"{_shown(known, parts, options.data)}\n")
    if options.json:
        print(as_json(data))
        return 0
    print(f"{found}\non {for_terminal(options.data)} and {for_terminal(options.unknown)}")
    return 0


def _with_labels(store: SubnetStore, options: argparse.Namespace) -> tuple[Part, Part] | None:
    """The data that a task is measured on; None where they have no labels of the task."""
    try:
        parts = labeled(store, options)
    except DataError:
        return None
    return None if strange_labels(parts[0].labels, store.subnet(options.task).classes) else parts


def _test_inputs(store: SubnetStore, tasks: Sequence[str], data: str) -> np.ndarray:
    """Raw inputs for some tasks, of the test part where there is one."""
    from tinysubnets.datasets.loaders import has_test_arrays, load_npz

    if Path(data).suffix == ".npz" and has_test_arrays(data):
        return load_npz(data, "test").inputs
    held_out = Path(data) / "test"
    files = [str(held_out) if held_out.is_dir() else data]
    _, inputs, complaints = _read_inputs(store, tasks, files)
    if complaints:
        raise DataError(complaints[0])
    return inputs


def labeled(store: SubnetStore, options: argparse.Namespace) -> tuple[Part, Part]:
    """What a task is measured on, and what its export is calibrated with; see `read_labeled`."""
    from tinysubnets.datasets.user_files import read_labeled

    return read_labeled(options.data, store.subnet(options.task))


def strange_labels(labels: np.ndarray, classes: Sequence[Any]) -> str:
    """What is wrong with labels that are no classes of the task; empty where all of them are."""
    others = sorted(set(map(str, labels.tolist())) - set(map(str, classes)))
    if not others:
        return ""
    return (
        f"{', '.join(others[:5])}{' …' if len(others) > 5 else ''} are no classes of the "
        f"task, which knows {', '.join(map(str, classes[:5]))}{' …' if len(classes) > 5 else ''}."
    )
