"""Loading a data set: by name, from a folder of images per class, or from .npz arrays."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tinysubnets.datasets import cache as cache_store
from tinysubnets.datasets import catalog, hub
from tinysubnets.datasets.images import SUFFIXES, fit, sniff
from tinysubnets.errors import DataError, SettingError, unknown
from tinysubnets.files import read, reading
from tinysubnets.tasks.preprocessing import MAX_VALUES, Preprocessing

TEST_FOLDERS = ("test", "validation", "valid", "val")


@dataclass(frozen=True)
class DecodedSet:
    """Inputs, labels 0 to n-1 and class names of one split; images are uint8, channels first.

    `inputs` is memory-mapped copy-on-write where it comes from the cache. `checksum` is the
    SHA-256 of the files it was made from, empty for .npz arrays. `preprocessing` says what was done
    to pictures; None where inputs were no pictures.
    """

    inputs: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    checksum: str = ""
    preprocessing: Preprocessing | None = None

    def fitted(self, channels: int | None, size: int | None) -> DecodedSet:
        """The set with images of that many channels and that side, as `images.fit` brings them."""
        _, given, height, width = self.inputs.shape
        channels, size = channels or given, size or max(height, width)
        done = self.preprocessing
        if done is not None:
            gray = channels == 1 or done.mode == "L"
            done = replace(
                done,
                mode="L" if gray else "RGB",
                channels=channels if gray and channels > 1 else None,
                frame=size if (height, width) != (size, size) else None,
            )
        return replace(self, inputs=fit(self.inputs, channels, size), preprocessing=done)


def load(
    name: str | Path,
    split: str = "train",
    root: str | Path | None = None,
    cache: str | Path | None = None,
    size: int | None = None,
    *,
    with_test: bool = True,
) -> DecodedSet:
    """The `train` or `test` split of a data set.

    `name` is one of `catalog.names()`, a Hub repository `owner/name[/folder]`, a folder of images
    per class or an .npz file. `root` is the local folder of Hub repositories, `cache` that of
    decoded sets. `size` resizes images to a square; it is needed where their sizes differ. Without
    `with_test` no test data are looked at, not even for the names of their classes.
    """
    text = str(name)
    if text.endswith(".npz"):
        if size is not None:
            raise SettingError(f"size={size}: the arrays of {text} are taken as they are.")
        return load_npz(text, split, with_test=with_test)
    if text not in catalog.CATALOG and Path(text).expanduser().is_dir():
        return load_folder(text, split, size, cache=cache)
    return _load_parquet(catalog.find(text), split, root, cache, size)


def load_folder(
    path: str | Path,
    split: str | None = None,
    size: int | None = None,
    mode: str | None = None,
    cache: str | Path | None = None,
    preprocessing: Preprocessing | None = None,
) -> DecodedSet:
    """The images of a folder with one sub-folder per class, in sorted order.

    The classes lie in `train/` and `test/` (or `val/`, `valid/`, `validation/`); a folder without
    these, or a call without a split, is taken whole. `mode` is RGB or L, by default that of the
    first image. `preprocessing` says all of it in the place of `size` and `mode`.
    """
    if mode not in (None, "RGB", "L"):
        raise SettingError(unknown("mode", str(mode), ("RGB", "L")))
    if size is not None and size < 1:
        raise SettingError(f"size={size}: give a number of pixels, at least 1.")
    if size is not None and 3 * size * size > MAX_VALUES:
        most = math.isqrt(MAX_VALUES // 3)
        raise SettingError(f"size={size}: images are brought to at most {most:,} pixels a side.")
    top = Path(path).expanduser()
    folder = top if split is None else _split_folder(top, split)
    classes, files, labels = _images_by_class(folder)
    if split == "test" and (train := top / "train").is_dir():
        # Labels must mean the same in both splits, even if a class has no test images.
        names = _class_names(train)
        if extra := sorted(set(classes) - set(names)):
            raise DataError(f"{folder} has classes that {train} has not: {', '.join(extra)}.")
        labels = np.array([names.index(classes[label]) for label in labels], dtype=np.int64)
        classes = names
    form = preprocessing or _folder_form(files[0], size, mode)

    def build(temporary: Path) -> tuple[np.ndarray, tuple[str, ...]]:
        from tinysubnets.datasets.decode import decode_files

        decode_files(files, form, temporary / "inputs.npy", f"decoding {folder.name}")
        return labels, classes

    spec = {"folder": str(folder.resolve()), "form": _form_spec(form), "classes": list(classes)}
    sources = {file.relative_to(folder).as_posix(): file for file in files}
    name = f"folder-{top.resolve().name}-{split or 'all'}"
    found = cache_store.fetch(name, spec, sources, build, cache_store.cache_root(cache))
    return _decoded(found, form)


def load_npz(path: str | Path, split: str = "train", *, with_test: bool = True) -> DecodedSet:
    """Arrays `inputs` and `labels` (training) and `test_inputs` and `test_labels` of an .npz file.

    Inputs may have any shape and numeric type. Labels are integers or strings; where an optional
    array `classes` names the classes, they are places in it. Without `with_test` the classes are
    those of the training labels alone.
    """
    if split not in ("train", "test"):
        raise SettingError(unknown("split", split, ("train", "test")))
    prefix = "test_" if split == "test" else ""
    wanted = (f"{prefix}inputs", f"{prefix}labels")
    try:
        # Opened here, because np.load leaves a file open that turns out to be no archive.
        with reading(Path(path).expanduser()) as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            if missing := [key for key in wanted if key not in arrays.files]:
                raise DataError(
                    f"{path} has no array {' nor '.join(missing)}; it has "
                    f"{', '.join(arrays.files)}. Training data are named inputs and labels, test "
                    "data test_inputs and test_labels."
                )
            inputs, labels = (arrays[key] for key in wanted)
            classes = tuple(map(str, arrays["classes"])) if "classes" in arrays.files else ()
            looked_at = ("labels", "test_labels") if with_test else ("labels",)
            others = [arrays[k] for k in looked_at if k in arrays.files]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as .npz of plain arrays: {error}.") from error
    return _checked_npz(path, inputs, labels, classes, others)


def has_test_arrays(path: str | Path) -> bool:
    """Whether an .npz file holds test data of its own."""
    try:
        with reading(Path(path).expanduser()) as file:
            arrays = np.load(file, allow_pickle=False)
            return isinstance(arrays, np.lib.npyio.NpzFile) and "test_inputs" in arrays.files
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False  # reading its training data says what is wrong with it


def _load_parquet(
    entry: catalog.DataSet,
    split: str,
    root: str | Path | None,
    cache: str | Path | None,
    size: int | None,
) -> DecodedSet:
    """A split of a data set in parquet files, through the cache."""
    files = hub.locate(entry.repo, entry.patterns(split), root)

    def build(temporary: Path) -> tuple[np.ndarray, tuple[str, ...]]:
        from tinysubnets.datasets.decode import decode_parquet, sniff_parquet
        from tinysubnets.datasets.parquet import read_table

        table = read_table(files, entry.image, entry.label)
        if entry.mode is None or entry.size is None:
            seen = sniff_parquet(table)
            form = seen if size is None else Preprocessing(seen.mode, size, size, size)
        else:
            side = size or entry.size
            form = Preprocessing(
                entry.mode, side, side, entry.resize if side == entry.size else side
            )
        classes = _named(entry, table.labels, table.classes, files)
        decode_parquet(table, form, temporary / "inputs.npy", f"decoding {entry.name} {split}")
        return table.labels, classes

    spec = {
        "repo": entry.repo,
        "columns": [entry.image, entry.label],
        "form": [entry.mode, entry.size, entry.resize, size],
    }
    sources = {file.name: file for file in files}
    name = f"{entry.name}-{split}"
    found = cache_store.fetch(name, spec, sources, build, cache_store.cache_root(cache))
    mode, (height, width) = "RGB" if found.inputs.shape[1] == 3 else "L", found.inputs.shape[2:]
    resize = entry.resize if height == width == entry.size else size
    return _decoded(found, Preprocessing(mode, height, width, resize))


def _named(
    entry: catalog.DataSet, labels: np.ndarray, named: tuple[str, ...], files: tuple[Path, ...]
) -> tuple[str, ...]:
    """Class names: the files', else the catalog's, else numbers; checks that labels fit them."""
    largest = int(labels.max()) if labels.size else -1
    count = entry.num_classes or len(named) or largest + 1
    if largest >= count:
        row = int(np.argmax(labels >= count))
        raise DataError(
            f"{files[0].parent}, row {row} of the split: the label is {labels[row]}, but "
            f"{entry.name} has {count} classes."
        )
    for names in (named, entry.classes):
        if len(names) == count:
            return names
    return tuple(str(number) for number in range(count))


def _split_folder(top: Path, split: str) -> Path:
    """The sub-folder of a split."""
    if split not in ("train", "test"):
        raise SettingError(unknown("split", split, ("train", "test")))
    candidates = ("train",) if split == "train" else TEST_FOLDERS
    for candidate in candidates:
        if (top / candidate).is_dir():
            return top / candidate
    if split == "train" and not any((top / name).is_dir() for name in TEST_FOLDERS):
        return top
    raise DataError(
        f"{top} has no sub-folder {' or '.join(candidates)} for the {split} split. A data set in "
        "folders is train/<class>/<images> and test/<class>/<images>."
    )


def _class_names(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    )


def _images_by_class(folder: Path) -> tuple[tuple[str, ...], list[Path], np.ndarray]:
    """The class names of a folder, its images and their labels."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder.")
    classes, files, labels = _class_names(folder), [], []
    _check_level(folder, classes)
    for label, name in enumerate(classes):
        images = sorted(p for p in (folder / name).rglob("*") if is_image(p))
        files += images
        labels += [label] * len(images)
    if not files:
        raise DataError(
            f"{folder} has no images. Expected one sub-folder per class with files that end in "
            f"{', '.join(SUFFIXES)}."
        )
    return classes, files, np.array(labels, dtype=np.int64)


def _check_level(folder: Path, classes: tuple[str, ...]) -> None:
    """Refuse a folder whose classes lie one level deeper, or that is itself one class."""
    if not classes and _has_images(folder):
        raise DataError(
            f"{folder} holds images itself, but no sub-folders of classes. Give the folder that "
            f"holds one sub-folder per class: {folder.resolve().parent}?"
        )
    inside = {name: _image_folders(folder / name) for name in classes}
    inside = {name: found for name, found in inside.items() if found or _has_images(folder / name)}
    if not inside or any(_has_images(folder / name) for name in inside):
        return
    example = next(iter(inside))
    deeper = ", ".join(f"{example}/{name}" for name in inside[example][:4])
    if len(inside) == 1:
        raise DataError(
            f"{folder} is one level too high: its only sub-folder with images, {example}, has them "
            f"in {deeper}. Give {folder / example}."
        )
    if all(len(found) > 1 for found in inside.values()):
        raise DataError(
            f"{folder} seems to be one level too high: images lie in {deeper} and so on, none "
            f"directly in {', '.join(list(inside)[:4])}. Where each of these is a task, give one "
            f"of them: {folder / example}. Where they are classes, put their images directly into "
            "them."
        )


def _has_images(folder: Path) -> bool:
    """Whether a folder holds images directly."""
    return any(is_image(p) for p in folder.iterdir())


def _image_folders(folder: Path) -> list[str]:
    """The sub-folders of a folder that hold images at any depth."""
    return [n for n in _class_names(folder) if any(map(is_image, (folder / n).rglob("*")))]


def is_image(path: Path) -> bool:
    """Whether a file is called as images are; hidden ones are not meant."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _folder_form(first: Path, size: int | None, mode: str | None) -> Preprocessing:
    """The form of a folder's images: the first image's, or the size and mode given."""
    try:
        seen = sniff(read(first))
    except (DataError, OSError) as error:
        raise DataError(f"{first}: {error}.") from error
    if size is None:
        return Preprocessing(mode or seen.mode, seen.height, seen.width)
    return Preprocessing(mode or seen.mode, size, size, size)


def _form_spec(form: Preprocessing) -> list[Any]:
    more = [] if form.frame is form.channels is None else [form.frame, form.channels]
    return [form.mode, form.height, form.width, form.resize, *more]


def _checked_npz(
    path: str | Path,
    inputs: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
    all_labels: list[np.ndarray],
) -> DecodedSet:
    """The arrays of a split after a look at their types, lengths and labels."""
    kinds = "iu" if classes else "iuU"
    if wrong := [each for each in all_labels if each.ndim != 1 or each.dtype.kind not in kinds]:
        allowed = "integer" if classes else "integer or text"
        raise DataError(
            f"{path}: labels are {wrong[0].dtype} of shape {wrong[0].shape}; give one {allowed} a "
            "sample."
        )
    if inputs.ndim < 1 or len(inputs) != len(labels):
        raise DataError(f"{path}: {inputs.shape} inputs do not match {len(labels)} labels.")
    if inputs.dtype.kind not in "buif":
        raise DataError(f"{path}: inputs are {inputs.dtype}; give numbers.")
    if labels.dtype.kind == "i" and labels.size and labels.min() < 0:
        raise DataError(f"{path}: label {labels.min()} is negative; labels count from 0.")
    if not classes:
        # Integers in their own order, not in that of their strings; any of them may be missing.
        found = np.unique(np.concatenate(all_labels))
        numbers = np.searchsorted(found, labels.astype(found.dtype))
        return DecodedSet(inputs, numbers.astype(np.int64), tuple(map(str, found.tolist())))
    count = max((int(each.max()) + 1 for each in all_labels if each.size), default=0)
    if len(classes) < count:
        raise DataError(f"{path}: {len(classes)} class names for labels up to {count - 1}.")
    return DecodedSet(inputs, labels.astype(np.int64), classes)


def _decoded(found: cache_store.Cached, done: Preprocessing) -> DecodedSet:
    return DecodedSet(found.inputs, found.labels, found.classes, found.checksum, done)
