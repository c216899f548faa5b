"""The user's own files as raw inputs of a task: images, folders of them, .npz arrays."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tinysubnets.datasets.images import Form, decode_image
from tinysubnets.datasets.loaders import TEST_FOLDERS, load_folder, load_npz
from tinysubnets.errors import DataError, TaskError
from tinysubnets.model.subnet import Sample, Subnet
from tinysubnets.tasks.checks import as_tensor, check_finite
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.task import Task


def read_files(files: Sequence[str], subnet: Subnet) -> tuple[list[str], np.ndarray]:
    """The inputs in image and npz files, as a learned task takes them, each with a name."""
    names: list[str] = []
    parts: list[np.ndarray] = []
    for file in files:
        if Path(file).suffix == ".npz":
            batch = _as_sample(_arrays(file), subnet.sample, file)
            check_raw(file, batch, subnet)
            names += [f"{file}[{i}]" for i in range(len(batch))]
        else:
            batch = _image(file, subnet)[None]
            names.append(file)
        parts.append(batch)
    shapes = {p.shape[1:] for p in parts}
    if len(shapes) > 1:
        raise DataError(f"the files hold inputs of different shapes: {sorted(shapes)}.")
    return names, np.concatenate(parts)


def check_raw(file: str, inputs: np.ndarray, subnet: Subnet) -> None:
    """Refuse a file with NaN, or of scaled pixels for a task that was learned from raw ones."""
    if inputs.dtype.kind not in "uif":
        raise DataError(f"{file}: inputs are {inputs.dtype}; give numbers.")
    raw = as_tensor(inputs)
    try:
        if raw.is_floating_point():
            check_finite(subnet.name, raw)
        subnet.check_scale(raw)
    except TaskError as error:
        raise DataError(f"{file}: {error}") from None


def read_labeled(data: str, sample: Sample | None, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Raw inputs and the names of their classes, from a folder of images per class or an .npz."""
    if Path(data).suffix == ".npz":
        found = load_npz(data)
        inputs = _as_sample(found.inputs, sample, data)
    else:
        form = None if sample is None else _form(sample, task)
        size, mode = (None, None) if form is None else (form.height, form.mode)
        found = load_folder(data, _whole_or_train(data), size, mode)
        inputs = np.asarray(found.inputs)
        if sample is not None:
            inputs = inputs.reshape(len(inputs), *sample.shape)
    return inputs, np.array(found.classes)[found.labels]


def read_folder(
    folder: str | Path, size: int | None = None, mode: str | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The parts of a folder of images per class: pixels and the names of their classes.

    A folder with `train/` has a part "train", and "test" where it has `test/`; `val/`, `valid/` or
    `validation/` is the part "valid" beside a test part, and else the test part itself. Another
    folder is all "train".

    - `size`: the side in pixels that images are brought to: the shorter side is resized to it and
      the middle cut out. None takes images as they are, all of one size.
    - `mode`: "RGB" or "L"; by default that of the first image.
    """
    top = Path(folder).expanduser()
    folders = {"train": top}
    if (top / "train").is_dir():
        held = [top / name for name in TEST_FOLDERS if (top / name).is_dir()]
        folders = {"train": top / "train"} | dict(zip(("test", "valid"), held, strict=False))
    parts = {}
    for part, place in folders.items():
        found = load_folder(place, None, size, mode)
        mode = mode or ("L" if found.inputs.shape[1] == 1 else "RGB")
        parts[part] = found.inputs, np.array(found.classes)[found.labels]
    return parts


def read_task(
    name: str,
    data: str,
    samples: Sequence[Sample | None],
    seed: int,
    normalization: Normalization | None = None,
) -> Task:
    """A task from a folder or an .npz, with inputs like those the model knows already.

    - `normalization`: that of a pretrained network, where its channels fit; else it is fitted.
    """
    known = [s for s in reversed(samples) if s is not None]
    if Path(data).suffix != ".npz":
        # Of tasks learned from pixels and from other numbers, images are to be like the former.
        known.sort(key=lambda s: s.dtype != torch.uint8)
    inputs, labels = read_labeled(data, known[0] if known else None, name)
    fits = normalization is not None and inputs.dtype == np.uint8 and inputs.ndim == 4
    if normalization is not None and fits and inputs.shape[1] == len(normalization.mean):
        return Task.from_arrays(name, inputs, labels, seed=seed, normalization=normalization)
    return Task.from_arrays(name, inputs, labels, seed=seed)


def _whole_or_train(data: str) -> str | None:
    return "train" if (Path(data).expanduser() / "train").is_dir() else None


def _form(sample: Sample, task: str) -> Form:
    """How an image has to be decoded to become such an input."""
    shape = sample.shape
    if len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]:
        shape = (1, math.isqrt(shape[0]), math.isqrt(shape[0]))
    if sample.dtype != torch.uint8 or len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(
            f"task {task!r} takes {sample.dtype} inputs of shape {sample.shape}, which images "
            "cannot become; give .npz files."
        )
    if shape[1] != shape[2]:
        raise DataError(f"task {task!r} takes images of {shape[2]}x{shape[1]}; give .npz files.")
    return Form("L" if shape[0] == 1 else "RGB", shape[1], shape[2], min(shape[1:]))


def image_form(subnet: Subnet) -> Form:
    """How an image has to be decoded to become an input of a learned task."""
    if subnet.sample is None:
        raise DataError(
            f"the model does not record what inputs of task {subnet.name!r} look like; give .npz "
            "files."
        )
    return _form(subnet.sample, subnet.name)


def image_input(
    encoded: bytes, subnet: Subnet, formats: tuple[str, ...] | None = None
) -> np.ndarray:
    """An encoded image as one input of a learned task.

    - `formats`: the kinds of files that are read, as Pillow names them; all by default.
    """
    form = image_form(subnet)
    assert subnet.sample is not None
    return decode_image(encoded, form, formats).reshape(subnet.sample.shape)


def _image(file: str, subnet: Subnet) -> np.ndarray:
    image_form(subnet)
    try:
        encoded = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}.") from None
    try:
        return image_input(encoded, subnet)
    except DataError as error:
        raise DataError(f"{file}: {error}.") from None


def _arrays(file: str) -> np.ndarray:
    """The array `inputs` of an .npz file, or its only one."""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            names = list(arrays.files)
            name = "inputs" if "inputs" in names else names[0] if len(names) == 1 else None
            if name is None:
                raise DataError(f"{file} has the arrays {names}; which one? Name it 'inputs'.")
            return np.asarray(arrays[name])
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as .npz of plain arrays: {error}.") from None


def _as_sample(inputs: np.ndarray, sample: Sample | None, file: str) -> np.ndarray:
    """The inputs, checked against what the task takes."""
    if sample is not None and inputs.shape[1:] != sample.shape:
        raise DataError(
            f"{file} holds inputs of shape {inputs.shape[1:]}; the task takes {sample.shape}."
        )
    return inputs
