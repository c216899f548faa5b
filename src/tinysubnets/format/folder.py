"""A model folder: saved atomically, never over another writer's model, and loaded again.

Only `model.safetensors` is the model. `config.json` and `README.md` are derived from it for people.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn

from tinysubnets import networks
from tinysubnets.errors import ArtifactError, ConflictError, FormatError
from tinysubnets.files import lock
from tinysubnets.format import backup, limits
from tinysubnets.format.card import model_card
from tinysubnets.format.container import (
    FILE_NAME,
    ModelFile,
    beside_is_old,
    model_path,
    put_in_place,
    write_beside,
)
from tinysubnets.format.io import Contents, encode, read_contents
from tinysubnets.format.rebuild import architecture_for, base_for, is_rebuilt
from tinysubnets.model.bank import BaseSource
from tinysubnets.model.store import SubnetStore
from tinysubnets.nn.architecture import Architecture

# By what stands near their beginning files beside a model are known as such.
MARKS = {"config.json": b'"architecture"', "README.md": b"library_name: tinysubnets"}
MARKED_WITHIN = 4096  # bytes

_written: set[str] = set()  # the models that this process has saved, by the hash of their config


def save(
    store: SubnetStore,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    with_backup: bool = False,
) -> Path:
    """Write a store into a folder, in one step as others see it; returns the model file.

    - `overwrite`, `with_backup`: as for `SubnetStore.save`.
    """
    if store.is_partial:
        raise ArtifactError(
            f"this store holds only the task {store.tasks[0]!r} of its model, loaded for "
            "deployment; load the whole model to save it."
        )
    target = _made(Path(folder))
    encoded = encode(store)
    encoded.check_readable()
    identity = _identity_of(encoded.parts[0])
    path = target / FILE_NAME
    with lock(target / ".lock", wait=True):
        _check_conflict(path, store, identity, overwrite)
        if (there := _identity_at(path)) is not None:
            backup.adopt(path, there)
        is_kept = with_backup and there not in (None, identity)
        unsynced: ArtifactError | None = None
        with backup.keeping(path, identity) if is_kept else nullcontext():
            try:
                put_in_place(path, encoded.parts)
            except ArtifactError as error:  # it is there all the same
                unsynced = error
            store.saved_as = identity
            _written.add(identity)
        backup.forget(path, identity, rest=beside_is_old("save"))
        if unsynced is not None:
            raise unsynced
        with ModelFile(path) as file:
            config = json.dumps(file.config, indent=2, ensure_ascii=False) + "\n"
        card = model_card(store, encoded.ledger)
        write_beside(path, {"config.json": config.encode(), "README.md": card.encode()})
    return path


def reserve(store: SubnetStore, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Check that a store can be saved in a folder later on, before anything is learned in vain.

    - `overwrite`: as for `SubnetStore.reserve`.
    """
    path = _made(Path(folder)) / FILE_NAME
    try:
        with lock(path.with_name(".lock"), wait=True):
            if overwrite and (there := _identity_at(path)) is not None:
                store.saved_as = there
            _check_conflict(path, store, "", overwrite)
    except OSError as error:
        raise ArtifactError(f"cannot write to {path.parent}: {error.strerror}.") from error


def _made(folder: Path) -> Path:
    """The folder, made where it is not there yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"{folder} is not a folder to save in: {error.strerror}.") from None
    return folder


def load(
    where: str | os.PathLike[str],
    net: nn.Module | Architecture | None = None,
    task: str | None = None,
    device: str | torch.device = "cpu",
    base: BaseSource | None = None,
) -> SubnetStore:
    """The store in a model folder, or only what one of its tasks needs.

    - `net`, `base`: as for `SubnetStore.load`.
    """
    with limits.guarded(), _collector_resting(), ModelFile(model_path(where)) as file:
        store = store_of(read_contents(file, task), net, device, base)
        store.saved_as, store.is_partial = file.identity, task is not None
    return store


@contextmanager
def _collector_resting() -> Iterator[None]:
    """No garbage collection inside: what is read is kept, and to look through all that Python has
    imported takes three times as long as to read a model.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def store_of(
    contents: Contents,
    net: nn.Module | Architecture | None = None,
    device: str | torch.device = "cpu",
    base: BaseSource | None = None,
) -> SubnetStore:
    """What was read from a file as a store, with its network rebuilt or given again."""
    manifest = contents.manifest
    base = networks.pretrained(base) if networks.is_name(base) else base
    if net is None and isinstance(base, (nn.Module, Architecture)) and not is_rebuilt(manifest):
        net = base
    embedded = contents.base is not None and contents.base.values is not None
    architecture = architecture_for(manifest, contents.constants, net, embedded=embedded)
    store = SubnetStore(
        architecture,
        block=manifest.layout.block,
        settings=contents.settings,
        seed=manifest.seed,
        device=device,
    )
    contents.put_into(store)
    store.base = base_for(store, base)
    return store


def _check_conflict(path: Path, store: SubnetStore, identity: str, overwrite: bool) -> None:
    """Refuse to replace a model that this store does not know, or with `overwrite` a newer one."""
    there = _identity_at(path)
    if there is None:
        _check_beside(path)
    if there is None or there in (store.saved_as, identity):
        return
    if not overwrite:
        raise ConflictError(
            f"{path} is not the model this store was loaded from or last saved as: another writer "
            "has put it there, or you have in an earlier run. Load it and learn on top of it, save "
            "elsewhere, or replace it by save(folder, overwrite=True)."
        )
    if there not in _written and path.stat().st_mtime_ns > store.began_ns:
        raise ConflictError(
            f"{path} was put there by another process while this store was at work, so it is not "
            "replaced, overwrite or not. Load it and learn on top of it, or save elsewhere."
        )


def _check_beside(path: Path) -> None:
    """Refuse to replace files of others where no model is yet, such as a project's README."""
    for name, mark in MARKS.items():
        place = path.with_name(name)
        if not place.is_file() or place.is_symlink():  # a link is replaced, not what it leads to
            continue
        with open(place, "rb") as file:
            start = file.read(MARKED_WITHIN)
        if mark not in start:
            raise ConflictError(
                f"{place} is no model's, and saving here would replace it. Save into a folder of "
                "the model's own."
            )


def _identity_at(path: Path) -> str | None:
    """The hash that stands for the model in a place; None where there is none yet."""
    if not os.path.lexists(path):
        return None
    try:
        with ModelFile(path) as file:
            return file.identity
    except ArtifactError as error:
        raise ConflictError(
            f"what is there is not a model that can be read ({error}). Move it away, or save "
            "elsewhere."
        ) from error


def _identity_of(header: bytes) -> str:
    """The config's hash, which stands for the whole file: everything hangs on it."""
    value = json.loads(header[8:])["__metadata__"]["blake2b"]
    if not isinstance(value, str):
        raise FormatError("a header without its hash.")
    return value
