"""What commands on saved models share; and those that check a model, or change it.

Nothing heavy is imported before one of them runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinysubnets.errors import ArtifactError, MismatchError, SettingError
from tinysubnets.text import for_terminal

if TYPE_CHECKING:
    from torch import nn

    from tinysubnets.model.removal import Removal
    from tinysubnets.model.store import SubnetStore

LINE_END = "\n"
_MODEL = "a model folder, the folder of a finished run, or a model.safetensors"


# What commands share.


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


def loaded(options: argparse.Namespace, task: str | None = None) -> SubnetStore:
    """The model that the command line names, with the network and base that it gives."""
    from tinysubnets.model.store import SubnetStore

    base = given_base(options)
    return SubnetStore.load(options.model, own_network(options), task=task, base=base)


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


def as_json(value: Any) -> str:
    """Plain data as JSON; what a terminal would obey is written out in it, as JSON allows."""
    return for_terminal(json.dumps(value, indent=1, ensure_ascii=False), keep=LINE_END)


# Verify, rename, remove, diff, apply.


def add_parsers(subparsers: Any) -> None:
    """Add the commands that check a model, or change it."""
    damage = "check everything in a model file; exit status 1 on damage"
    add_net(command(subparsers, "verify", damage, _verify))
    _add_rename(subparsers)
    _add_remove(subparsers)
    _add_patch(subparsers)


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


def _rename(options: argparse.Namespace) -> int:
    file = writable(options.model)
    store = loaded(options)
    store.rename(options.old, options.new)
    old, new = for_terminal(options.old), for_terminal(options.new)
    with _telling_of_backup(file):
        print(f"{saved(store, file.parent)}: {old!r} is now called {new!r}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    file = writable(options.model)
    store = loaded(options)
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
