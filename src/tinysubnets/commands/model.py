"""The commands that use saved models; nothing heavy is imported before one of them runs."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.errors import ArtifactError, DataError, MismatchError, SettingError, TaskError
from tinysubnets.experiments.tables import text_table
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from tinysubnets.datasets.user_files import Part
    from tinysubnets.format.onnx import Exported
    from tinysubnets.model.evaluation import Evaluation
    from tinysubnets.model.removal import Removal
    from tinysubnets.model.store import SubnetStore


CALIBRATION = 200  # samples that the ranges of int8 activations are measured on
LINE_END = "\n"
MAX_OVERLAPS = 12  # tasks of which every pair is shown
MAX_TENSORS = 30  # shared tensors that are shown one by one
NOT_HELD_OUT = (
    "if the task was learned from these, this is no held-out accuracy, which needs other images, "
    "or a test/ folder"
)
MANY = 10  # inputs of folders above which their answers are counted as well
PARTS = ("codes", "codebooks", "masks", "heads", "task_params", "memory", "routing", "metadata")
_MODEL = "a model folder, the folder of a finished run, or a model.safetensors"


# Arguments.


def command(subparsers: Any, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    """A command on a model."""
    parser = subparsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("model", metavar="MODEL", help=_MODEL)
    parser.set_defaults(run=run)
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def add_task(parser: argparse.ArgumentParser) -> None:
    """Let the command take one task."""
    parser.add_argument("--task", required=True, metavar="NAME", help="the task's name")


def add_net(parser: argparse.ArgumentParser) -> None:
    """Let the command take the user's own network, and a base."""
    parser.add_argument(
        "--net",
        metavar="MODULE:FUNCTION",
        help="builds your own network, where it is one; or timm:NAME, torchvision:NAME",
    )
    parser.add_argument(
        "--base",
        metavar="NAME|FILE",
        help="the pretrained network that tasks are learned over, with its weights: timm:NAME, "
        "torchvision:NAME, MODULE:FUNCTION, or a network of the package; or its weights in a file",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="with --base NAME: its weights, .safetensors or .pth, instead of fetched ones",
    )


def own_network(options: argparse.Namespace) -> nn.Module | None:
    """The user's own network, named on the command line; never one that a file names."""
    if options.net is None:
        return None
    from tinysubnets import networks

    with redirect_stdout(sys.stderr):  # what its code prints is no part of a command's answer
        return networks.build(options.net)


def given_base(options: argparse.Namespace) -> nn.Module | str | None:
    """The base that the command line names: a network with its weights, or a file of them."""
    from tinysubnets import networks

    if options.base is None:
        if options.weights is not None:
            raise SettingError("--weights goes with --base NAME, the network that they are for.")
        return None
    if networks.is_name(options.base):
        head = getattr(options, "head", None)
        if head is None and options.weights is not None:
            head = _head_of(options.model)
        with redirect_stdout(sys.stderr):
            return networks.pretrained(options.base, options.weights, base=True, head=head)
    if options.weights is not None:
        raise SettingError(f"--weights with --base {options.base}: give --base the network's name.")
    if not Path(options.base).is_file():
        raise SettingError(
            f"--base {options.base}: neither a file of weights nor the name of a network, such as "
            f"timm:resnet18, my_package.models:build, or one of {', '.join(networks.names())}."
        )
    return str(options.base)


def _head_of(model: str) -> str | None:
    """The name of the head of a model's network; None where there is no model that says it."""
    from tinysubnets.format.container import ModelFile, model_path

    try:
        with ModelFile(model_path(model)) as file:
            return str(file.config["architecture"]["head"])
    except (ArtifactError, KeyError, TypeError):  # told by whoever reads it whole
        return None


def add_parsers(subparsers: Any) -> None:
    """Add the commands that use saved models."""
    contents = "tasks, banks, sizes and overlaps of a model"
    inspect = command(subparsers, "inspect", contents, _inspect)
    inspect.add_argument("--json", action="store_true", help="print plain data instead of tables")
    damage = "check everything in a model file; exit status 1 on damage"
    add_net(command(subparsers, "verify", damage, _verify))
    _add_predict(subparsers)
    _add_evaluate(subparsers)
    _add_rename(subparsers)
    _add_remove(subparsers)
    _add_export(subparsers)
    _add_patch(subparsers)


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


def _add_rename(subparsers: Any) -> None:
    rename = command(subparsers, "rename", "give a task another name", _rename)
    rename.add_argument("old", metavar="OLD", help="the task's name")
    rename.add_argument("new", metavar="NEW", help="what it is to be called")
    add_net(rename)


def _add_remove(subparsers: Any) -> None:
    remove = command(subparsers, "remove", "take a task away; all others stay as they are", _remove)
    add_task(remove)
    remove.add_argument(
        "--exact",
        action="store_true",
        help="leave nothing that depends on the task's data: later tasks go too, unless the task "
        "or they are isolated",
    )
    remove.add_argument("--yes", action="store_true", help="do not ask before later tasks go")
    add_net(remove)


def _add_export(subparsers: Any) -> None:
    export = command(subparsers, "export", "one task or all as ONNX or .pt2", _export)
    which = export.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", metavar="NAME", help="the task's name")
    which.add_argument(
        "--all-tasks",
        action="store_true",
        help="every task, and what finds out which of them an input belongs to, in one file",
    )
    export.add_argument("out", metavar="OUT.onnx", help="the file to write, .onnx or .pt2")
    export.add_argument("--plain", action="store_true", help="float32 weights instead of codes")
    export.add_argument(
        "--int8",
        action="store_true",
        help="static quantization; needs --data, and writes OUT.md: accuracy and time beside float",
    )
    export.add_argument(
        "--data", metavar="FOLDER", help="images per class, or .npz, to calibrate and measure with"
    )
    add_net(export)


def _add_patch(subparsers: Any) -> None:
    diff = subparsers.add_parser(
        "diff",
        help="only what a model has learned since, as a patch",
        description="Only what a model has learned since, as a patch for `tsn apply`.",
    )
    diff.add_argument("model", metavar="OLD", help=f"what devices have: {_MODEL}")
    diff.add_argument("new", metavar="NEW", help="the same model with more tasks")
    diff.add_argument(
        "--out", default="model.tsnpatch", metavar="PATCH", help="default: model.tsnpatch"
    )
    diff.set_defaults(run=_diff)
    apply = subparsers.add_parser(
        "apply",
        help="put the new model that a patch makes in the place of the old one",
        description="Put the new model that a patch makes in the place of the old one, bit for bit "
        "and at one instant.",
    )
    apply.add_argument("model", metavar="OLD", help=_MODEL)
    apply.add_argument("patch", metavar="PATCH", help="what `tsn diff` wrote")
    apply.add_argument("--out", metavar="NEW", help="leave OLD, and write to this folder or file")
    add_net(apply)
    apply.set_defaults(run=_apply)


# Commands.


def _inspect(options: argparse.Namespace) -> int:
    from tinysubnets import format as artifact

    found = artifact.inspect(options.model)
    if options.json:
        print(_as_json(found))
        return 0
    show_model(found)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from tinysubnets import format as artifact

    try:
        checked = artifact.check(options.model, own_network(options), given_base(options))
    except ArtifactError as error:
        given = options.net is not None or options.base is not None
        if given and isinstance(error, MismatchError):
            raise  # the network that was given is wrong, not the file
        named = "" if str(options.model) in str(error) else f"{options.model}: "
        print(f"tsn: {named}{for_terminal(str(error), keep=LINE_END)}", file=sys.stderr)
        return 1
    network = "network rebuilt"
    if not checked.is_rebuilt:
        what, option = ("own, over a base", "--base") if checked.without_base else ("own", "--net")
        network = f"network not at hand (your {what}; give it with {option} to check that it fits)"
    elif checked.without_base:
        network += f"; {len(checked.without_base)} tasks not put together: give their --base"
    print(
        f"fine: {checked.file_bytes:,} bytes, {checked.num_sections} sections, "
        f"{checked.num_tasks} tasks, every hash right, everything decoded; {network}."
    )
    return 0


def _loaded(options: argparse.Namespace, task: str | None = None) -> SubnetStore:
    """The model that the command line names, with the network and base that it gives."""
    from tinysubnets.model.store import SubnetStore

    base = given_base(options)
    return SubnetStore.load(options.model, own_network(options), task=task, base=base)


def _predict(options: argparse.Namespace) -> int:
    if options.task is not None and (options.among or options.together):
        raise SettingError("--among and --together find the task; --task names it already.")
    store = _loaded(options, options.task)
    if options.task is None:
        return _predict_routed(store, options)
    names, inputs, complaints = _read_inputs(store, [options.task], options.files)
    found = _top_classes(store, options.task, inputs, options.top) if names else []
    rows = [{"input": n, "classes": c} for n, c in zip(names, found, strict=True)]
    if options.json and rows:
        print(_as_json({"task": options.task, "predictions": rows}))
    elif rows:
        show_predictions(rows)
        if _are_many(rows, options.files):
            print(f"\n{_counted(rows)}")
    return _complain(complaints)


def _complain(complaints: Sequence[str]) -> int:
    """Say what could not be read, a line each; gives the exit status."""
    for complaint in complaints:
        print(f"tsn: {for_terminal(complaint, keep=LINE_END)}", file=sys.stderr)
    return 2 if complaints else 0


def _are_many(rows: Sequence[Any], files: Sequence[str]) -> bool:
    return len(rows) > MANY and any(Path(file).is_dir() for file in files)


def _counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many inputs got which answer, in one line; those that no task knows are counted apart."""
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
    return for_terminal(f"{len(rows):,} inputs. {'; '.join(told)}")


def _evaluate(options: argparse.Namespace) -> int:
    if options.unknown is not None:
        return _evaluate_unknown(options)
    if options.task is None:
        raise SettingError("--task NAME is needed, or --unknown DIR for inputs of something else.")
    store = _loaded(options, options.task)
    parts = _labeled(store, options)
    part = parts[0]
    if strange := _strange(part.labels, store.subnet(options.task).classes):
        raise SettingError(f"{options.data}: {strange}")
    found = store.evaluate(options.task, part.inputs, part.labels)
    if options.json:
        print(_as_json(_as_data(found)))
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
    """How well inputs of something else are told from those of the tasks.

    And, of one task whose data have labels, how well these are answered.
    """
    store = _loaded(options, options.task)
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
        print(_as_json(data))
        return 0
    print(f"{found}\non {for_terminal(options.data)} and {for_terminal(options.unknown)}")
    return 0


def _with_labels(store: SubnetStore, options: argparse.Namespace) -> tuple[Part, Part] | None:
    """The data that a task is measured on; None where they have no labels of the task."""
    try:
        parts = _labeled(store, options)
    except DataError:
        return None
    return None if _strange(parts[0].labels, store.subnet(options.task).classes) else parts


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


def _predict_routed(store: SubnetStore, options: argparse.Namespace) -> int:
    """Labels of inputs whose task is not told, and the task that each came from."""
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
        print(_as_json({"task": None, **about, "predictions": rows}))
        return _complain(complaints)
    show_routed(rows)
    if _are_many(rows, options.files):
        print(f"\n{_counted(rows)}")
    return _complain(complaints)


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


def _rename(options: argparse.Namespace) -> int:
    file = writable(options.model)
    store = _loaded(options)
    store.rename(options.old, options.new)
    old, new = for_terminal(options.old), for_terminal(options.new)
    with _telling_of_backup(file):
        print(f"{saved(store, file.parent)}: {old!r} is now called {new!r}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    file = writable(options.model)
    store = _loaded(options)
    before = file.stat().st_size
    later = store.learned_beside(options.task) if options.exact else ()
    if later:
        names = ", ".join(map(for_terminal, later))
        print(f"learned after {for_terminal(options.task)!r} and removed with it: {names}")
        if not options.yes and not _agreed(len(later)):
            raise SettingError("nothing was removed; give --yes to remove them too.")
    removal = store.remove(options.task, exact=options.exact)
    with _telling_of_backup(file):
        after = saved(store, file.parent).stat().st_size
        print(told(removal, ", ".join(repr(for_terminal(n)) for n in removal.names)))
        print(f"{file}: {before:,} -> {after:,} bytes")
    return 0


@contextmanager
def _telling_of_backup(file: Path) -> Iterator[None]:
    """Say afterwards that a backup went, where there was one."""
    from tinysubnets.format.backup import FOLDER

    had_one = (file.parent / FOLDER).is_dir()
    yield
    if had_one and not (file.parent / FOLDER).exists():
        print("its backup, of before the last task, is removed: tsn undo cannot go back to it")


def told(removal: Removal, what: str) -> str:
    """What a removal did, in words."""
    text = f"{what} removed; {removal.freed:,} of its own weights are free again"
    if removal.kept:
        text += f", {removal.kept:,} stay without a name, used by "
        text += ", ".join(map(for_terminal, removal.used_by))
    if removal.exact:
        text += "; nothing in the model depends on its data"
    return text


def _agreed(count: int) -> bool:
    """Whether the user says yes; never where nobody can be asked."""
    if not sys.stdin.isatty():
        return False
    return input(f"remove these {count} tasks too? [y/N] ").strip().lower() in ("y", "yes")


def _diff(options: argparse.Namespace) -> int:
    from tinysubnets.format import model_path
    from tinysubnets.format.patch import write_patch

    old, new, out = model_path(options.model), model_path(options.new), Path(options.out)
    try:
        size = write_patch(old, new, out)
    except ArtifactError as error:
        if str(error).startswith(("the old file", "the new file")):  # which of them is which
            raise type(error)(f"old {old}, new {new}: {error}") from None
        raise
    print(f"{out}: {size:,} bytes, instead of {new.stat().st_size:,} for the whole model")
    return 0


def _apply(options: argparse.Namespace) -> int:
    from tinysubnets.format import FILE_NAME, model_path
    from tinysubnets.format.patch import patch_file

    out = None
    if options.out is not None:
        given = Path(options.out)
        out = given if given.suffix == ".safetensors" else given / FILE_NAME
    if Path(options.patch).is_dir():
        raise SettingError(
            f"{options.patch} is a folder, not the file that `tsn diff` wrote. Or are they "
            "swapped? It is `tsn apply OLD PATCH`."
        )
    old = model_path(options.model) if out is not None else writable(options.model)
    is_new = patch_file(old, Path(options.patch), out, own_network(options))
    place = out or old
    told = "the new model" if is_new else "is that model already"
    print(f"{place}: {told}, {place.stat().st_size:,} bytes")
    return 0


def writable(model: str) -> Path:
    """The model file, in a folder that can be written to."""
    from tinysubnets.format import model_path

    file = model_path(model)
    if file.exists() and not os.access(file.parent, os.W_OK):
        raise ArtifactError(f"cannot write to {file.parent}; work on a copy of it.")
    return file


def saved(store: SubnetStore, folder: Path, *, with_backup: bool = False) -> Path:
    """Save a store in a folder; an error of the disk says that the model is as it was."""
    try:
        return store.save(folder, with_backup=with_backup)
    except OSError as error:
        raise ArtifactError(
            f"the model was not saved, the old one is as it was: {error.strerror}."
        ) from error


def _export(options: argparse.Namespace) -> int:
    from tinysubnets.datasets.user_files import recorded_preprocessing
    from tinysubnets.format import onnx as export

    suffix = Path(options.out).suffix
    if suffix not in (".onnx", ".pt2"):
        raise SettingError(f"{options.out}: write to a file that ends in .onnx or .pt2.")
    if options.int8 and options.data is None:
        raise SettingError("--int8 needs --data: images per class or .npz to calibrate with.")
    store = _loaded(options, options.task)
    if options.all_tasks:
        return _export_all(store, options)
    if suffix == ".pt2":
        done = export.to_torch(store, options.task, options.out)
        print(f"{done.path}: {done.file_bytes:,} bytes, for torch.export.load")
        return 0
    data = None if options.data is None else _labeled(store, options)
    done = export.to_onnx(
        store,
        options.task,
        options.out,
        packed=not options.plain,
        int8=data[1].inputs[:CALIBRATION] if options.int8 and data is not None else None,
    )
    print(f"{done.path}: {done.file_bytes:,} bytes (float32 weights: {done.plain_bytes:,})")
    if (sample := store.subnet(options.task).sample) is not None:
        kind = str(sample.dtype).removeprefix("torch.")
        print(f"takes {kind} inputs of shape {('batch', *sample.shape)}, raw")
    if (done_to := recorded_preprocessing(store.subnet(options.task))) is not None:
        print(f"from pictures: {done_to.for_any_size()}; in its metadata")
    if data is None:
        return 0
    part = data[0]
    where = f"the {len(part)} samples of {options.data}" + (f", part {part.name}" * bool(part.name))
    if strange := _strange(part.labels, store.subnet(options.task).classes):
        print(f"accuracy on {where} not measured: {for_terminal(strange)}")
        return 0
    exported = export.onnx_accuracy(done.path, part.inputs, part.labels)
    live = store.evaluate(options.task, part.inputs, part.labels).accuracy
    print(f"accuracy on {where}: {100 * exported:.2f} % exported, {100 * live:.2f} % in torch")
    if part is data[1]:  # no test part
        print(f"note: {NOT_HELD_OUT}")
    if options.int8:
        print(_int8_card(store, options.task, done, data))
    return 0


def _export_all(store: SubnetStore, options: argparse.Namespace) -> int:
    """All tasks in one file, with routing inside."""
    from tinysubnets.format import onnx as export
    from tinysubnets.format.routed import OUTPUTS
    from tinysubnets.model.routing import Router

    if options.int8 or options.data is not None:
        raise SettingError("--int8 and --data are for one task; give --task instead.")
    if Path(options.out).suffix == ".pt2":
        done = export.to_torch(store, None, options.out)
        print(f"{done.path}: {done.file_bytes:,} bytes, for torch.export.load")
    else:
        done = export.to_onnx(store, None, options.out, packed=not options.plain)
        print(f"{done.path}: {done.file_bytes:,} bytes (float32 weights: {done.plain_bytes:,})")
    sample = store.subnet(store.tasks[0]).sample
    if sample is not None:
        kind = str(sample.dtype).removeprefix("torch.")
        print(f"takes {kind} inputs of shape {('batch', *sample.shape)}, raw")
    passes = Router(store, list(store.subnets.values())).passes(all_answers=True)
    print(f"gives {', '.join(OUTPUTS)}; passes of networks per input: {passes}")
    return 0


def _int8_card(store: SubnetStore, task: str, done: Exported, data: tuple[Part, Part]) -> str:
    """Measure int8 beside float32, and write the table beside the exported file."""
    import tempfile

    from tinysubnets.files import atomic_write
    from tinysubnets.format import onnx as export
    from tinysubnets.format.card import onnx_snippet

    part, calibration = data
    inputs, labels = part.inputs, part.labels
    about = f"the {len(inputs)} samples of --data, by which ranges were calibrated as well"
    if part is not calibration:
        about = f"the {len(inputs)} samples of {part.name} that nothing was calibrated with"
    elif len(inputs) >= 2 * CALIBRATION:
        inputs, labels = inputs[CALIBRATION:], labels[CALIBRATION:]
        about = f"{len(inputs)} samples of --data that nothing was calibrated with"
    if part is calibration:
        about += f"; {NOT_HELD_OUT}"
    with tempfile.TemporaryDirectory() as folder:
        plain = export.to_onnx(store, task, Path(folder) / "float.onnx")
        card = export.export_card(task, {"float32": plain, "int8": done}, inputs, labels, about)
    place = done.path.with_suffix(".md")
    snippet = onnx_snippet(store.subnet(task), done.path.name)
    how = f"\nA picture's label, in Python:\n\n```python\n{snippet}```\n" if snippet else ""
    atomic_write(place, f"{card}{how}".encode())
    return f"{card.partition(LINE_END * 2)[2].rstrip()}{LINE_END}written to {place}"


def _labeled(store: SubnetStore, options: argparse.Namespace) -> tuple[Part, Part]:
    """What a task is measured on, and what its export is calibrated with; see `read_labeled`."""
    from tinysubnets.datasets.user_files import read_labeled

    return read_labeled(options.data, store.subnet(options.task))


def _strange(labels: np.ndarray, classes: Sequence[Any]) -> str:
    """What is wrong with labels that are no classes of the task; empty where all of them are."""
    others = sorted(set(map(str, labels.tolist())) - set(map(str, classes)))
    if not others:
        return ""
    return (
        f"{', '.join(others[:5])}{' …' if len(others) > 5 else ''} are no classes of the "
        f"task, which knows {', '.join(map(str, classes[:5]))}{' …' if len(classes) > 5 else ''}."
    )


# Tables.


def show_report(report: Any) -> None:
    """Print what learning a task came to, rung by rung where it climbed a ladder."""
    from tinysubnets.model.subnet import NO_BANK

    if not report.rungs:
        where = report.reason if report.bank == NO_BANK else f"bank {report.bank} ({report.reason})"
        print(f"{for_terminal(where)}; {report.bits} bits")
        return
    rows = [
        (
            rung.name,
            "climbed" if rung.taken else "not worth it",
            _percent(rung.valid_accuracy),
            "" if not place else f"{rung.gain:+.2f}",
            f"{rung.extra_bytes:,}",
        )
        for place, rung in enumerate(report.rungs)
    ]
    print(text_table(rows, ("rung", "", "valid. acc.", "gain, points", "more bytes"), num_labels=2))


def show_model(found: Mapping[str, Any]) -> None:
    """Print what `format.inspect` found."""
    ledger, masks, room = found["ledger"], found["masks"], found["room"]
    network = found["network"]
    named = network.get("network", "not named") if isinstance(network, dict) else network
    print(
        f"{found['path']}: {ledger['file_bytes']:,} bytes, format {found['format']}, network "
        f"{for_terminal(str(named))}, {found['num_weights']:,} shared weights "
        f"({4 * found['num_weights']:,} bytes dense), one mask bit per {_block(found['block'])}"
    )
    if (base := found["base"]) is not None:
        held = "its weights are in the file" if base["embedded"] else "its weights are not in it"
        print(
            f"base {for_terminal(base['name'])} ({for_terminal(base['source'])}), SHA-256 "
            f"{base['sha256']}; {held}"
        )
    print(f"\ntasks\n{_tasks(found['tasks'])}")
    for text, names in _preprocessing(found["tasks"]).items():
        print(f"pictures of {names}: {text}")
    if len(found["tensors"]) <= MAX_TENSORS:
        print(f"\nshared tensors\n{_tensors(found['tensors'])}")
    print(f"\nledger, bytes\n{_ledger(ledger)}")
    if 1 < len(found["tasks"]) <= MAX_OVERLAPS and found["overlap"]:
        title = "overlap of masks: shared by both / held by either"
        print(f"\n{title}\n{_overlap(found['tasks'], found['overlap'])}")
    print(
        f"\n{_percent(ledger['file'])} of the dense network ({4 * found['num_weights']:,} bytes); "
        f"{_percent(ledger['paper'])} by the paper's way of counting: without heads, routing and "
        f"metadata ({_percent(ledger['printed'])} by the formula that it prints)"
    )
    print(
        f"masks: {masks['stored_bytes']:,} bytes stored, {masks['seven_task_huffman_bytes']:,} as "
        f"the paper's seven-task Huffman code, {masks['raw_bytes']:,} raw"
    )
    for number, bank in enumerate(found["banks"]):
        left = bank["nameless_weights"]
        kept = f", {left:,} weights of removed tasks in use" if left else ""
        many = f"{len(bank['tasks'])} task{'s' if len(bank['tasks']) != 1 else ''}"
        print(f"bank {number}: {many}, {_percent(bank['free_share'])} free{kept}")
    if room["bytes_per_task"] is not None:
        print(_room(room, found["free_share"]))


def _preprocessing(tasks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What is done to pictures, in words, and the names of the tasks that do it."""
    from tinysubnets.errors import DataError
    from tinysubnets.tasks.preprocessing import Preprocessing

    alike: dict[str, list[str]] = {}
    for task in (t for t in tasks if t["preprocessing"] is not None):
        try:
            text = str(Preprocessing.from_dict(task["preprocessing"]))
        except DataError:
            text = for_terminal(str(task["preprocessing"]))
        alike.setdefault(text, []).append(for_terminal(task["name"]))
    return {
        text: ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        for text, names in alike.items()
    }


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


def _tasks(tasks: Sequence[Mapping[str, Any]]) -> str:
    columns: dict[str, list[str]] = {
        "task": [t["name"] for t in tasks],
        "classes": [_names(t["classes"]) for t in tasks],
        "mask coded against": [t["mask_against"] for t in tasks],
    }
    if any(t["added_to"] for t in tasks):
        columns["added to"] = [t["added_to"] or "" for t in tasks]
    num_labels = len(columns)
    columns |= {
        "bank": ["" if t["bank"] < 0 else str(t["bank"]) for t in tasks],
        "bits": [str(t["bits"]) for t in tasks],
        "density": [f"rank {t['rank']}" if t["rank"] else f"{t['density']:.4f}" for t in tasks],
        "new weights": [f"{t['new_weights']:,}" for t in tasks],
        "valid. acc.": [
            "" if t["valid_accuracy"] is None else _percent(t["valid_accuracy"]) for t in tasks
        ],
        "bytes": [f"{t['bytes']:,}" for t in tasks],
    }
    rows = list(zip(*columns.values(), strict=True))
    return text_table(rows, tuple(columns), num_labels=num_labels)


def _tensors(tensors: Sequence[Mapping[str, Any]]) -> str:
    headings = ("tensor", "shape", "density, mean over tasks", "free, mean over banks")
    rows = []
    for tensor in tensors:
        shares = (tensor["densities"], tensor["free_shares"])
        means = [f"{sum(s) / len(s):.4f}" if s else "" for s in shares]
        rows.append((tensor["name"], "x".join(map(str, tensor["shape"])), *means))
    return text_table(rows, headings, num_labels=2)


def _ledger(ledger: Mapping[str, Any]) -> str:
    def row(name: str, entry: Mapping[str, float]) -> tuple[str, ...]:
        bits = [entry[part] for part in PARTS]
        return (name, *(f"{round(b) // 8:,}" for b in (*bits, sum(bits))))

    entries = [*ledger["tasks"].items(), ("common", ledger["common"])]
    rows = [row(name, entry) for name, entry in entries]
    return text_table([*rows, (), row("total", ledger["total"])], ("task", *PARTS, "total"))


def _overlap(tasks: Sequence[Mapping[str, Any]], overlap: Sequence[Sequence[float]]) -> str:
    rows = [
        (f"{number} {task['name']}", *(f"{share:.2f}" for share in row))
        for number, (task, row) in enumerate(zip(tasks, overlap, strict=True))
    ]
    return text_table(rows, ("", *map(str, range(len(tasks)))))


def _room(room: Mapping[str, Any], free_share: float) -> str:
    left = room["until_no_free_weights"]
    weights = (
        "the last task took no new weights, so any number fit by mask alone"
        if left is None
        else f"{left} more until none is left, then by mask alone"
    )
    return (
        f"{_percent(free_share)} of all weights free. Tasks like the last one: {weights}; "
        f"{room['bytes_per_task']:,} bytes each, {room['until_dense_size']:,} more until the file "
        "is as large as one dense network"
    )


def _names(classes: Sequence[Any], most: int = 6) -> str:
    shown = ", ".join(str(c) for c in classes[:most])
    return shown if len(classes) <= most else f"{shown}, … ({len(classes)})"


def _as_json(value: Any) -> str:
    """Plain data as JSON; what a terminal would obey is written out in it, as JSON allows."""
    return for_terminal(json.dumps(value, indent=1, ensure_ascii=False), keep=LINE_END)


def _block(block: int) -> str:
    return "weight" if block == 1 else f"{block} weights of a row or one kernel"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
