"""The commands `tsn learn` and `undo`: one more task for a saved model, and the way back."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.commands.inspect import show_report
from tinysubnets.commands.model import (
    add_net,
    add_task,
    command,
    given_base,
    own_network,
    saved,
    told,
    writable,
)
from tinysubnets.errors import ConflictError, MismatchError, SettingError, TaskError, unknown
from tinysubnets.files import without_empty
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from tinysubnets.datasets.user_files import Part
    from tinysubnets.method.base import Learner
    from tinysubnets.model.evaluation import Evaluation
    from tinysubnets.model.store import SubnetStore
    from tinysubnets.tasks.task import Split, Task

OF_A_MODEL = ("README.md", "config.json", "backup")  # what lies beside a model file
FULL_BITS = 32  # of a weight that is stored as it was learned
DATA_IS_GIVEN = (
    "it takes all of --data, in the form of the model's earlier tasks. Give --size PIXELS to bring "
    "images to another size."
)


def add_parsers(subparsers: Any) -> None:
    """Add the commands."""
    text = "add one more task to a model; with --base, begin a new one over a pretrained network"
    learn = command(subparsers, "learn", text, _learn)
    add_task(learn)
    learn.add_argument(
        "--data",
        required=True,
        metavar="FOLDER",
        help="a folder of images per class, or so in train/ and test/; or an .npz",
    )
    learn.add_argument(
        "--out",
        metavar="NEW",
        help="save the model in this folder and leave MODEL alone; without it MODEL gets the task, "
        "and keeps a backup for `tsn undo`",
    )
    learn.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="KEY=VALUE",
        help="another value of a setting, as epochs=5 or density=0.2; may be repeated",
    )
    learn.add_argument(
        "--replace",
        action="store_true",
        help="learn a task of the model anew, and keep the new version if it is better on the "
        "validation data of --data",
    )
    learn.add_argument(
        "--isolated",
        action="store_true",
        help="give the task a bank for itself, so that it can be removed exactly at any time",
    )
    learn.add_argument(
        "--keep-anyway", action="store_true", help="keep a task even if it is at chance level"
    )
    learn.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    learn.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="the side that images are brought to (default: as earlier tasks, or as the base says)",
    )
    learn.add_argument("--head", metavar="NAME", help="of a new model: the network's last layer")
    learn.add_argument(
        "--embed-base",
        action="store_true",
        help="put the base's weights into the model, so that it can be used without them",
    )
    add_net(learn)
    command(subparsers, "undo", "take back the task that `tsn learn` added last", _undo)


def _undo(options: argparse.Namespace) -> int:
    from tinysubnets.format import undo

    done = undo(options.model)
    changes = [f"without {for_terminal(name)!r}" for name in done.gone]
    changes += [f"with {for_terminal(name)!r} again" for name in done.back]
    what = f", {' and '.join(changes)}" if changes else ""
    print(f"{done.path}: as it was before the last task{what}, {done.path.stat().st_size:,} bytes")
    return 0


def _learn(options: argparse.Namespace) -> int:
    # The folder of the new model is made before anything is learned, and goes if nothing is.
    with without_empty(Path(options.out or options.model)):
        return _learn_task(options)


def _learn_task(options: argparse.Namespace) -> int:
    """Learn the task and save it, unless it is not worth it; gives the exit status."""
    from tinysubnets.format import FILE_NAME, model_path
    from tinysubnets.format.backup import check_place
    from tinysubnets.method.learner import TinySubNets
    from tinysubnets.method.progress import duration

    is_missing = not model_path(options.model).exists()
    if is_missing and options.base is None and options.weights is None:
        raise SettingError(
            f"no model at {options.model}. Begin one over a pretrained network by --base NAME, or "
            "from a recipe that lists your tasks by `tsn run RECIPE.toml --out FOLDER`."
        )
    is_new = is_missing and options.base is not None
    learner = _new_learner(options) if is_new else _resumed(options)
    store = learner.store
    if store is None:
        raise MismatchError(
            f"this model was made by {learner.name}, a baseline with one dense network; `tsn "
            "learn` adds tasks to models of subnets. From Python its learner goes on by "
            "resume(folder)."
        )
    # All before data are decoded and anything is learned in vain.
    if options.replace:
        store.subnet(options.task)
    elif options.task in learner.tasks:
        raise TaskError(
            f"a task named {options.task!r} has been learned already. Choose another name, or "
            "learn it anew by --replace, which keeps the better version."
        )
    isolated = options.isolated or (options.replace and store.subnet(options.task).isolated)
    if isolated and not isinstance(learner, TinySubNets):
        raise MismatchError(f"--isolated: {learner.name} keeps all tasks in the same banks.")
    if options.embed_base:
        store.embed_base_()
    file, target = _target(options, store)
    check_place(target / FILE_NAME)
    before = file.stat().st_size if file.exists() else 0
    try:
        task, parts = _read_task(options, learner, store, isolated)
        _introduce(learner, task)
        old = _set_aside(store, task) if options.replace else None
        began = time.monotonic()
        if isinstance(learner, TinySubNets):
            learner.learn(task, progress=True, isolated=isolated or None)
        else:
            learner.learn(task, progress=True)
        found = store.evaluate(task)
        is_compressed = learner.reports[task.name].bits < FULL_BITS
        print(_measured(found, task, parts, is_compressed))
        print(f"{duration(time.monotonic() - began)} in all, post-pruning and measuring included")
        is_worse = old is not None and not _is_better(store, old, task)
    except KeyboardInterrupt:
        print(
            f"\ntsn: stopped. {_nothing_written(file, target)}. There is nothing to resume: the "
            "same command learns the task from the beginning.",
            file=sys.stderr,
        )
        return 130
    if is_worse:
        print(_nothing_written(file, target))
        return 0
    if found.is_at_chance and not options.keep_anyway:
        print(_at_chance(found, _nothing_written(file, target)), file=sys.stderr)
        return 1
    was_there = (target / FILE_NAME).exists()  # MODEL in place, or a copy of it in --out
    path = saved(store, target, with_backup=was_there)
    after = path.stat().st_size
    show_report(learner.reports[task.name])
    print(f"{path}: {before:,} -> {after:,} bytes ({after - before:+,})")
    if options.assignments and not is_new:
        chosen = " ".join(f"--set {a}" for a in options.assignments)
        print(f"kept with the model, and so for later tasks: {chosen}")
    if was_there:
        print(f"back to the model before: tsn undo {options.out or options.model}")
    return 0


def _resumed(options: argparse.Namespace) -> Learner:
    """The learner of the model, with the settings given and those that fit few samples."""
    from tinysubnets.experiments import methods

    if options.head is not None:
        raise SettingError("--head is for a new model; this one has its head.")
    overrides = [_placed(a, str(methods.made_by(options.model))) for a in options.assignments]

    def resumed(assignments: list[str]) -> Learner:
        return methods.resume(
            options.model,
            own_network(options),
            device=options.device,
            overrides=assignments,
            base=given_base(options),
        )

    learner = resumed(overrides)
    if learner.pruning is None and (strange := [a for a in overrides if a.startswith("pruning.")]):
        key = strange[0].partition("=")[0]
        raise SettingError(f"{key}: {learner.name}, which made this model, prunes nothing.")
    fitting = _fitting(learner, {a.partition("=")[0].strip() for a in overrides})
    return resumed([*overrides, *fitting]) if learner.store is not None and fitting else learner


def _new_learner(options: argparse.Namespace) -> Learner:
    """A learner that begins a model over the base that the command line names."""
    from torch import nn

    from tinysubnets import config, networks
    from tinysubnets.experiments.recipe import fitting_few_samples
    from tinysubnets.method.learner import TinySubNets
    from tinysubnets.nn.architecture import Architecture

    if options.replace:
        raise SettingError(f"--replace: there is no model at {options.model} yet.")
    base = given_base(options)
    if not isinstance(base, nn.Module):
        if options.net is None:
            raise SettingError(
                f"--base {options.base} is a file of weights; say which network they are for: "
                f"--base NAME --weights {options.base}."
            )
        base = networks.pretrained(options.net, options.base, base=True, head=options.head)
    architecture = Architecture(base, options.head, base="frozen")
    if networks.is_name(options.base) and options.weights is None:
        networks.check_repeats(options.base, base, architecture.head)
    given = [_placed(a, TinySubNets.name) for a in options.assignments]
    tables = config.override(fitting_few_samples(), given)
    if strange := sorted(tables.keys() - {TinySubNets.name, "training", "pruning"}):
        known = (TinySubNets.name, "training", "pruning")
        raise SettingError(unknown("table of settings", strange[0], known))
    learner = TinySubNets(
        architecture,
        training=tables.get("training"),
        pruning=tables.get("pruning"),
        device=options.device,
        **tables.get(TinySubNets.name, {}),
    )
    known_base, expected = learner.store.base, architecture.expected_inputs
    assert known_base is not None
    print(
        f"a new model over {for_terminal(known_base.name)}: {architecture.num_shared:,} shared "
        f"weights, SHA-256 {known_base.sha256[:16]}…; head {architecture.head!r}"
        + (f"; trained on {expected}" if expected is not None else "")
    )
    return learner


def _read_task(
    options: argparse.Namespace, learner: Learner, store: SubnetStore, isolated: bool
) -> tuple[Task, dict[str, Part]]:
    """The task in the data that the command line names, in the form of earlier ones or the base's.

    Over a base all tasks are normalized alike: as the base was trained, or as the first task.
    Isolated ones leave nothing in others and take nothing of them, but the shape of inputs, since a
    network may take no other: to later tasks they leave it where there are no others.

    - `isolated`: whether the task is to be so by the command line.
    """
    import torch

    from tinysubnets.datasets.user_files import preprocessed_alike, read_task
    from tinysubnets.model.subnet import Sample

    others = [s for s in store.subnets.values() if not s.isolated]
    alike = others or list(store.subnets.values())
    samples = [s.sample for s in alike]
    if options.replace:
        samples.append(store.subnet(options.task).sample)
    expected = store.architecture.expected_inputs
    normalization = None
    if store.settings.get("base") == "frozen":
        isolated = isolated or getattr(learner.settings, "isolated", False)
        if others and not isolated:
            normalization = others[0].normalization
        elif expected is not None:
            normalization = expected.normalization
    is_folder = Path(options.data).suffix != ".npz"
    if options.size is not None and not is_folder:
        raise SettingError("--size is for folders of images; arrays are taken as they are.")
    if options.size is not None and options.size < 1:
        raise SettingError(f"--size {options.size}: give a number of pixels, at least 1.")
    known = [s for s in samples if s is not None and len(s.shape) == 3]
    channels = known[-1].shape[0] if known else 3 if expected is None else expected.channels
    size = options.size
    if size is None and not known and expected is not None:
        size = expected.size
    if size is not None and is_folder:
        samples.append(Sample(torch.uint8, (channels, size, size)))
    forms, seed = preprocessed_alike(alike), learner.settings.seed
    return read_task(options.task, options.data, samples, seed, normalization, forms)


def _fitting(learner: Learner, given: set[str]) -> list[str]:
    """Assignments that fit few samples and change nothing for others, where nobody chose."""
    from tinysubnets.experiments.recipe import fitting_few_samples

    settings: dict[str, Any] = {"training": learner.training}
    if learner.pruning is not None:
        settings["pruning"] = learner.pruning
    plain = {table: type(values)() for table, values in settings.items()}
    return [
        f"{table}.{key}={value}"
        for table, values in fitting_few_samples().items()
        for key, value in values.items()
        if table in plain
        and f"{table}.{key}" not in given
        and getattr(settings[table], key) == getattr(plain[table], key)
    ]


def _target(options: argparse.Namespace, store: SubnetStore) -> tuple[Path, Path]:
    """The model file, and the folder that the new model is saved in, which is looked at now."""
    from tinysubnets.format import model_path

    if options.out is None and not model_path(options.model).exists():
        _check_folder(Path(options.model), store)
        store.reserve(options.model)  # of a new model; makes the folder
    file = model_path(options.model)
    target = file.parent if options.out is None else Path(options.out)
    if target.exists() and target.resolve() == file.parent.resolve():
        return writable(options.model), file.parent
    _check_folder(target, store)
    store.reserve(target)
    return file, target


def _check_folder(folder: Path, store: SubnetStore) -> None:
    """Refuse a folder that holds another model, or other things and no model."""
    from tinysubnets.format import FILE_NAME, ModelFile

    if not folder.is_dir():
        return  # not there yet, or no folder, which is said when it is reserved
    file = folder / FILE_NAME
    if not file.exists():
        others = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        others = [name for name in others if name not in OF_A_MODEL]
        if others:
            shown = ", ".join(map(for_terminal, others[:3])) + (", …" if len(others) > 3 else "")
            beside = folder if folder.name not in ("", "..") else folder.resolve()
            raise ConflictError(
                f"{folder} holds other files ({shown}) and no model. Give a folder that is not "
                f"there yet, such as {beside}-model."
            )
        return
    with ModelFile(file) as there:
        if there.identity == store.saved_as:
            return
    raise ConflictError(
        f"{folder} holds another model, which stays. Give --out a folder that is not there yet, "
        f"add the task to that model by `tsn learn {folder}` without --out, or remove that folder "
        "first if it is an earlier result that you do not need."
    )


def _introduce(learner: Learner, task: Task) -> None:
    """Say what is learned from, and what is done about few samples."""
    from tinysubnets.method.base import fits_few_samples
    from tinysubnets.tasks.task import few_samples

    shape = "x".join(map(str, task.train.inputs(slice(0, 1)).shape[1:]))
    test = "" if task.test is None else f", {len(task.test)} test"
    print(
        f"{for_terminal(task.name)}: {len(task.train)} training, {len(task.valid)} validation"
        f"{test} samples of {shape}, {task.num_classes} classes"
    )
    few = few_samples(task)
    if not few:
        return
    keeps_last, leaves_out = fits_few_samples(learner.training, learner.pruning)
    done = ["the last epoch is kept"] * keeps_last
    done += ["nothing is post-pruned"] * (leaves_out and learner.pruning is not None)
    print(for_terminal(f"note: {few}" + (f": {' and '.join(done)}" if done else "")))


def _measured(found: Evaluation, task: Task, parts: Mapping[str, Part], is_compressed: bool) -> str:
    """The accuracy of a task as it is stored, and what it was measured on."""
    if found.measured_on == "test":
        where = f"of {parts['test'].name}, which nothing was learned or chosen by"
    elif "valid" in parts:
        where = f"of {parts['valid'].name}, by which epoch and bits are chosen"
    else:
        where = "drawn from the training data to validate with; test/ beside train/ would tell more"
    stored = " after compression" if is_compressed else ""
    return f"accuracy{stored} {100 * found.accuracy:.2f} % on {found.num_samples} samples {where}"


def _nothing_written(file: Path, target: Path) -> str:
    """That a command came to nothing: what became of the model, and of another folder for it."""
    as_it_was = f"{file} is as it was" if file.exists() else f"there is no model in {file.parent}"
    elsewhere = "" if target == file.parent else f", and no model was written to {target}"
    return f"{as_it_was}{elsewhere}"


def _at_chance(found: Evaluation, what_is: str) -> str:
    return (
        f"tsn: {for_terminal(found.task)!r} is not kept: always naming the commonest class would "
        f"be right in {100 * found.chance:.2f} %, and the difference is within chance. "
        f"{what_is}. Look at the labels and at what is in the images, learn longer (--set "
        "epochs=100) or denser (--set density=0.5), give more data, or keep it by --keep-anyway."
    )


def _set_aside(store: SubnetStore, task: Task) -> str:
    """Give the old version of a task another name; gives that name."""
    from tinysubnets.tasks.checks import MAX_NAME

    old = f"{task.name[: MAX_NAME // 2]} (before)"
    while old in store.tasks:
        old += "'"
    store.rename(task.name, old)
    return old


def _is_better(store: SubnetStore, old: str, task: Task) -> bool:
    """Whether a task's new version is the better one; the old one is removed then.

    Validation data decide; test data, where there are some, are measured beside them alone.
    """
    before, after = (_right_share(store, name, task, task.valid) for name in (old, task.name))
    print(f"on the new validation data: {100 * before:.2f} % before, {100 * after:.2f} % now")
    if task.test is not None:
        shares = [_right_share(store, name, task, task.test) for name in (old, task.name)]
        print(
            f"on the new test data: {100 * shares[0]:.2f} % before, {100 * shares[1]:.2f} % now; "
            "nothing is decided by these"
        )
    if after <= before:
        print("the new version is not better on validation data, so the old one stays")
        return False
    print(told(store.remove(old), f"the old version of {for_terminal(task.name)!r}"))
    return True


def _right_share(store: SubnetStore, name: str, task: Task, split: Split) -> float:
    """The share of a task's samples that a version of it answers rightly, by the classes' names."""
    import numpy as np

    labels = np.array(task.classes)[split.labels.numpy()]
    try:
        found = store.predict(name, split.inputs())
    except TaskError:
        return 0.0  # the old version cannot take such inputs
    return float((found.astype(str) == labels.astype(str)).mean())


def _placed(assignment: str, method: str) -> str:
    """The assignment with the table its key belongs to: `epochs=5` is `training.epochs=5`.

    A setting that learning one more task does not have is an error, never passed over.
    """
    from dataclasses import fields

    from tinysubnets.experiments import methods
    from tinysubnets.method.pruning import PruningSettings
    from tinysubnets.model.routing import RoutingSettings
    from tinysubnets.training.settings import TrainingSettings

    key, equals, _ = (part.strip() for part in assignment.partition("="))
    if not equals or method not in methods.METHODS:
        return assignment  # refused by who reads it, with the reason
    classes: dict[str, Any] = {
        methods.method(method).table: methods.settings_class(method),
        "training": TrainingSettings,
        "pruning": PruningSettings,
        "routing": RoutingSettings,
    }
    tables = {f.name: table for table, cls in classes.items() for f in fields(cls)}
    table, dot, _ = key.partition(".")
    if not dot and key in tables:
        return f"{tables[key]}.{assignment.strip()}"
    if table in classes and dot:
        return assignment.strip()  # of which the settings themselves are checked
    _check_fixed(key)
    if dot and (owner := _method_of(table)) is not None:
        raise SettingError(f"{key} is a setting of {owner}; this model is learned by {method}.")
    known = {f"{t}.{name}" for name, t in tables.items()} if dot else set(tables)
    raise SettingError(unknown("setting", key, known, listed_by="tsn settings"))


def _check_fixed(key: str) -> None:
    """Refuse a setting of a recipe's data or network, and name the option that does it here."""
    from dataclasses import fields

    from tinysubnets.scenarios.settings import OwnSettings

    table, dot, name = key.rpartition(".")
    if table.partition(".")[0] == "network" or key == "network":
        raise SettingError(
            f"{key} is not a setting of `tsn learn`: the model has its network, which stays as it "
            "is. A new model over another one begins with --base NAME."
        )
    known = {f.name for f in fields(OwnSettings)}
    if table not in ("", "data") or (name not in known and not dot):
        return
    if name not in known:
        told = unknown("setting", key, {f"data.{n}" for n in known}, listed_by="tsn settings")
        raise SettingError(f"{told} None of data is one of `tsn learn`: {DATA_IS_GIVEN}")
    raise SettingError(f"data.{name} is not a setting of `tsn learn`: {DATA_IS_GIVEN}")


def _method_of(table: str) -> str | None:
    """The first method whose settings are in that table of recipes."""
    from tinysubnets.experiments import methods

    return next((m for m in methods.METHODS if methods.method(m).table == table), None)
