"""A patch: what turns one model file into another that continues it, and nothing else.

    patch = make_patch(old, new)            # all three are bytes of files
    assert apply_patch(old, patch) == new

A file continues another if it holds the same entries, bit for bit and in their places, and more
behind them. A patch has the config of the new file, told by its difference from the old one's, and
the sections that the old file does not have; docs/FORMAT.md has the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from tinysubnets.coding.bits import deflate, inflate
from tinysubnets.coding.byte_io import Reader, Writer
from tinysubnets.errors import (
    ArtifactError,
    ConflictError,
    DamageError,
    FormatError,
    MismatchError,
)
from tinysubnets.files import lock, read, without_empty
from tinysubnets.format import backup, limits
from tinysubnets.format.card import model_card
from tinysubnets.format.container import (
    FILE_NAME,
    ModelFile,
    assemble,
    beside_is_old,
    canonical,
    nothing_changed,
    parse,
    put_in_place,
    write_beside,
)
from tinysubnets.format.folder import load
from tinysubnets.format.io import read_contents
from tinysubnets.nn.architecture import Architecture

MAGIC = b"tsn-patch\x01"
MAX_TEXT_BYTES = 1 << 24  # of a config
MAX_FILE_BYTES = 1 << 40
HASH_BYTES = 32
DICTIONARY_BYTES = 1 << 15  # the most that deflate looks back
# What may differ in the config of a file that continues another; lists may grow as well.
FREE = {"index", "next", "banks", "library", "settings"}
KEPT = ("constants", "base")  # sections of no single task that stay as they are


def make_patch(old: bytes, new: bytes) -> bytes:
    """The patch from one file to another; a MismatchError where the second does not continue it."""
    with limits.guarded(), _opened(old, "the old file") as first:
        with _opened(new, "the new file") as second:
            check_continues(first, second)
            text, out = _text(second.config), Writer()
            out.raw(MAGIC)
            for data in (old, new):
                out.varint(len(data))
                out.raw(hashlib.sha256(data).digest())
            out.varint(len(text))
            out.block(deflate(text, _dictionary(first.config)))
            for kind in second.scheme.common:
                data = second.section(kind)
                is_old = data == first.section(kind)
                out.varint(0 if is_old else 1)
                if not is_old:
                    out.block(data)
            for task in range(first.num_tasks, second.num_tasks):
                for kind in second.scheme.kinds:
                    out.block(second.section(kind, task))
    patch = out.bytes()
    if apply_patch(old, patch) != new:
        raise ArtifactError(
            "the new file was written by another version of this package or of zlib, so that this "
            "one cannot write it again bit for bit; load and save it here first."
        )
    return patch


def apply_patch(old: bytes, patch: bytes) -> bytes:
    """The new file; a DamageError or MismatchError where the patch is altered or not for this file.

    Nothing of what it gives is unchecked: the whole file is read once, and it continues the old.
    """
    data = _begin(patch)
    sizes, hashes = [], []
    for _ in range(2):
        sizes.append(data.varint(MAX_FILE_BYTES))
        hashes.append(data.raw(HASH_BYTES))
    if len(old) != sizes[0] or hashlib.sha256(old).digest() != hashes[0]:
        raise MismatchError(
            f"the patch is for another file: one of {sizes[0]} bytes with the SHA-256 "
            f"{hashes[0].hex()[:16]}…, not this one of {len(old)} bytes."
        )
    with limits.guarded(), _opened(old, "the old file") as first:
        new = b"".join(_parts(first, data))
        if len(new) != sizes[1] or hashlib.sha256(new).digest() != hashes[1]:
            raise data.damage(
                "it does not give the file that it names: it was altered, or this machine's zlib "
                "writes a config in other bytes; copy the whole file then."
            )
        with _opened(new, "the patch") as second:
            check_continues(first, second)
            read_contents(second)
    return new


def names_result(patch: bytes, file: bytes) -> bool:
    """Whether a file is the one that a patch gives."""
    data = _begin(patch)
    for _ in range(2):
        size, found = data.varint(MAX_FILE_BYTES), data.raw(HASH_BYTES)
    return len(file) == size and hashlib.sha256(file).digest() == found


def check_continues(old: ModelFile, new: ModelFile) -> None:
    """Refuse two files of which the second does not hold the first, entry for entry."""
    is_fewer = new.num_tasks < old.num_tasks
    swapped = " Or are they swapped? It is `tsn diff OLD NEW`." if is_fewer else ""
    for key, value in old.config.items():
        other = new.config.get(key)
        if key in FREE or other == value:
            continue
        is_list = isinstance(value, list) and isinstance(other, list)
        if not is_list or list(other or ())[: len(value)] != value:
            raise MismatchError(
                f"the new file does not continue the old one: {key!r} of its config differs. Only "
                "tasks that were learned on top of the old file make a patch; after `remove`, "
                f"`rename` or another format, copy the whole file.{swapped}"
            )
    if new.num_tasks <= old.num_tasks:
        raise MismatchError(f"the new file has no task that the old one has not.{swapped}")
    for kind in KEPT:
        if old.section(kind) != new.section(kind):
            raise MismatchError(f"the new file does not continue the old one: other {kind}.")
    for task in range(old.num_tasks):
        for kind in old.scheme.kinds:
            if old.section(kind, task) != new.section(kind, task):
                raise MismatchError(
                    f"the new file does not continue the old one: the {kind} of entry {task} "
                    "differ. It was learned on top of another file."
                )


# Parts.


def _begin(patch: bytes) -> Reader:
    """A reader behind the first bytes of a patch."""
    if len(patch) < len(MAGIC) and MAGIC.startswith(patch):
        raise DamageError(f"the patch: it ends after {len(patch)} bytes, within its first words.")
    if not patch.startswith(MAGIC):
        raise FormatError("not a patch of this package, or one of another version of it.")
    data = Reader(patch, "the patch")
    data.raw(len(MAGIC))
    return data


@contextlib.contextmanager
def _opened(data: bytes, what: str) -> Iterator[ModelFile]:
    """The bytes of a file, open; damage says which one it is in."""
    try:
        with ModelFile(io.BytesIO(data)) as file:
            yield file
    except DamageError as error:
        text = str(error)
        raise DamageError(text if text.startswith("the patch") else f"{what}: {text}") from None


def _text(config: Mapping[str, Any]) -> bytes:
    """A config as text, without the hash of the index where it has one: that follows."""
    return canonical({key: value for key, value in config.items() if key != "index"}).encode()


def _dictionary(config: Mapping[str, Any]) -> bytes:
    """The end of the old file's config, where its tasks are: what the new one is deflated with."""
    return _text(config)[-DICTIONARY_BYTES:]


def _parts(old: ModelFile, data: Reader) -> list[bytes]:
    """The parts of the new file: sections of the old one, and those that the patch has."""
    config = _config(old, data)
    sections: dict[str, list[bytes]] = {kind: [] for kind in old.scheme.kinds}
    for kind in old.scheme.common:
        sections[kind] = [data.block() if data.varint(1) else old.section(kind)]
    for task in range(len(config["tasks"])):
        for kind in old.scheme.kinds:
            is_old = task < old.num_tasks
            sections[kind].append(old.section(kind, task) if is_old else data.block())
    data.done()
    return assemble(config, sections, len(config["tasks"]))


def _config(old: ModelFile, data: Reader) -> dict[str, Any]:
    """The new file's config, in which only the version and the list of tasks are looked at."""
    size, stream = data.varint(MAX_TEXT_BYTES), data.block()
    text = inflate(stream, size, "the patch: its config", _dictionary(old.config))
    config = parse(text, "config")
    if not isinstance(config, dict) or config.get("format") != old.version or "index" in config:
        raise data.damage("its config is of another format than the file it is for.")
    limits.check_task_tables(config.get("tasks"), old.version)
    if len(config["tasks"]) <= old.num_tasks:
        raise data.damage("it adds no task.")
    return config


# Files.


def write_patch(old: Path, new: Path, out: Path) -> int:
    """Write the patch from one model file to another, atomically; gives its size in bytes."""
    patch = make_patch(_read(old), _read(new))
    with nothing_changed(out):
        put_in_place(out, patch, done="the patch is", again="", is_only_writer=False)
    return len(patch)


def patch_file(
    old: Path, patch: Path, out: Path | None = None, net: nn.Module | Architecture | None = None
) -> bool:
    """Put the new file in the place of the old one, atomically; False if it was there already.

    - `out`: another place for the new file; the old one stays then.
    - `net`: the user's own network, for the card beside the model.
    """
    place, changes = out or old, _read(patch)
    if not changes.startswith(MAGIC) and not MAGIC.startswith(changes):
        raise FormatError(
            f"{patch} is not a patch of this package, or one of another version of it. Give the "
            "file that `tsn diff` wrote."
        )
    with nothing_changed(place), without_empty(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock(place.with_name(".lock"), wait=True):
            there = _read(place) if os.path.lexists(place) else None
            with _named(old, patch):
                is_there = there is not None and names_result(changes, there)
            if is_there:
                if place.name == FILE_NAME:
                    backup.forget_stale(place)
                _describe(place, net)  # which the last attempt may not have come to
                return False
            if out is not None and there is not None:
                raise ConflictError(f"{out} exists and is another model; choose another place.")
            data = _read(old)
            with _named(old, patch):
                new = apply_patch(data, changes)
            is_in_folder, again = place.name == FILE_NAME, "apply the patch"
            put_in_place(place, new, again=again if is_in_folder else "")
            if is_in_folder:
                backup.forget(place, rest=beside_is_old(again))
            _describe(place, net)
    return True


@contextlib.contextmanager
def _named(old: Path, patch: Path) -> Iterator[None]:
    """Errors say which file they are about: the patch, or the one that it is for."""
    try:
        yield
    except ArtifactError as error:
        is_patch = str(error).startswith("the patch")
        again = " It is cut or damaged: copy it again." if isinstance(error, DamageError) else ""
        raise type(error)(f"{patch}: {error}{again}" if is_patch else f"{old}: {error}") from None


def _describe(path: Path, net: nn.Module | Architecture | None) -> None:
    """Update config.json and the model card beside a model, where they are.

    The card needs the network. Where that is the user's own and not given, the old card stays.
    """
    if path.name != FILE_NAME:
        return
    files = {}
    with ModelFile(path) as file:
        if path.with_name("config.json").exists():
            files["config.json"] = json.dumps(file.config, indent=2, ensure_ascii=False) + "\n"
    if path.with_name("README.md").exists():
        with contextlib.suppress(MismatchError):
            store = load(path, net)
            files["README.md"] = model_card(store, store.ledger())
    write_beside(
        path, {name: text.encode() for name, text in files.items()}, again="apply the patch"
    )


def _read(path: Path) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}.") from None
