"""Decoded data sets on disk: uint8 images, labels, a description; rebuilt when a source changes.

Each set is a folder of `inputs.npy`, `labels.npy` and `meta.json`. The description holds the size,
time and SHA-256 of every source file: equal size and time mean the same file, otherwise its hash
decides. A folder is written under another name, flushed to disk and renamed, so that a process that
is killed leaves nothing that could be read by mistake; one process at a time writes a set.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinysubnets.errors import DataError
from tinysubnets.files import atomic_write, lock, reading, remove_leftovers, replaced_folder

CACHE_VARIABLE = "TINYSUBNETS_CACHE"
# Part of every description: raise it when the same source would be decoded to other bytes.
_VERSION = 3

# Writes `inputs.npy` into the folder given and returns the labels and the names of the classes.
Build = Callable[[Path], tuple[np.ndarray, tuple[str, ...]]]


@dataclass(frozen=True)
class Cached:
    """A decoded set: memory-mapped images, labels, class names, checksum of the source."""

    inputs: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    checksum: str


def cache_root(cache: str | Path | None = None) -> Path:
    """The cache folder: the argument, else the environment's, else ~/.cache/tinysubnets."""
    given = cache if cache is not None else os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "tinysubnets"


def fetch(
    name: str, spec: dict[str, Any], sources: Mapping[str, Path], build: Build, cache: Path
) -> Cached:
    """The decoded set of these sources, from the cache if it is there and fits, else built.

    `spec` says how the sources are decoded; another spec is another set. `sources` has the files
    in order, by the names they are recorded under.
    """
    spec = {"version": _VERSION, **spec}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:10]
    folder = cache / "decoded" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{digest}"
    with _only_one(folder) as alone:
        found = _read(folder, spec, sources)
        if found is not None:
            return found
        try:
            if alone:
                remove_leftovers(folder)
            _write(folder, spec, sources, build)
        except OSError as error:
            raise DataError(
                f"cannot write the decoded data set to {folder}: {error}. Give another folder with "
                f"{CACHE_VARIABLE} or make room there."
            ) from error
        found = _read(folder, spec, sources)
    if found is None:
        raise DataError(f"{folder} changed while it was written; is another program writing there?")
    return found


def _read(folder: Path, spec: dict[str, Any], sources: Mapping[str, Path]) -> Cached | None:
    """The set in a folder, or None where it is missing, damaged, or made from another source."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["spec"] != spec or not _same_sources(folder, meta, sources):
            return None
        # Copy-on-write: torch takes such arrays without a copy, and the file can never be altered.
        inputs = np.load(folder / "inputs.npy", mmap_mode="c", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        fits = list(inputs.shape) == meta["shape"] and inputs.dtype == np.uint8
        if not fits or labels.shape != inputs.shape[:1] or labels.dtype != np.int64:
            return None
        return Cached(inputs, labels, tuple(meta["classes"]), meta["checksum"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError):
        return None


def _same_sources(folder: Path, meta: dict[str, Any], sources: Mapping[str, Path]) -> bool:
    """Whether the recorded files are those given; files of another date are hashed again."""
    recorded = meta["sources"]
    if len(recorded) != len(sources):
        return False
    touched = False
    for entry, (name, file) in zip(recorded, sources.items(), strict=True):
        size, time = _stat(file)
        if entry["name"] != name or entry["size"] != size:
            return False
        if entry["time_ns"] != time:
            if _sha256(file) != entry["sha256"]:
                return False
            entry["time_ns"], touched = time, True
    if touched:
        # Only saves the next reader the hashing, so a read-only cache is no error.
        with contextlib.suppress(OSError):
            atomic_write(folder / "meta.json", json.dumps(meta).encode())
    return True


def _write(folder: Path, spec: dict[str, Any], sources: Mapping[str, Path], build: Build) -> None:
    """Build a set beside its place and move it there in one step."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replaced_folder(folder) as made:
        entries = [_describe(name, file) for name, file in sources.items()]
        labels, classes = build(made)
        for entry, file in zip(entries, sources.values(), strict=True):
            if (entry["size"], entry["time_ns"]) != _stat(file):
                raise DataError(f"{file} changed while it was decoded; start again.")
        np.save(made / "labels.npy", labels.astype(np.int64))
        inputs = np.load(made / "inputs.npy", mmap_mode="r", allow_pickle=False)
        meta = {
            "spec": spec,
            "sources": entries,
            "checksum": _checksum(entries),
            "shape": list(inputs.shape),
            "classes": list(classes),
        }
        del inputs
        (made / "meta.json").write_text(json.dumps(meta))


@contextlib.contextmanager
def _only_one(folder: Path) -> Iterator[bool]:
    """Let one process at a time look at or build a set; False where the cache is read-only."""
    with contextlib.ExitStack() as held:
        alone = False
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock(folder.parent / f".{folder.name}.lock", wait=True))
            alone = True
        yield alone


def _describe(name: str, file: Path) -> dict[str, Any]:
    """Name, size, time and hash of a source file; the time first, so that it is never newer."""
    size, time = _stat(file)
    return {"name": name, "size": size, "time_ns": time, "sha256": _sha256(file)}


def _stat(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}.") from error
    return status.st_size, status.st_mtime_ns


def _sha256(file: Path) -> str:
    try:
        with reading(file) as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}.") from error


def _checksum(entries: list[dict[str, Any]]) -> str:
    """One SHA-256 for all source files, by name and content."""
    text = "".join(f"{entry['name']} {entry['sha256']}\n" for entry in entries)
    return hashlib.sha256(text.encode()).hexdigest()
