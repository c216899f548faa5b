"""The user's own files as raw inputs of a task: images, folders of them, .npz arrays."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tinysubnets.datasets.images import SUFFIXES, decode_image
from tinysubnets.datasets.loaders import (
    TEST_FOLDERS,
    has_test_arrays,
    is_image,
    load_folder,
    load_npz,
)
from tinysubnets.errors import DataError, TaskError
from tinysubnets.files import read, reading
from tinysubnets.model.subnet import Sample, Subnet
from tinysubnets.tasks.checks import as_tensor, check_finite
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.preprocessing import Preprocessing
from tinysubnets.tasks.task import Task


def images_in(folder: str) -> list[str]:
    """All images in a folder and the folders in it, sorted by name."""
    found = sorted(str(p) for p in Path(folder).rglob("*") if is_image(p))
    if not found:
        raise DataError(f"{folder}: there are no images in this folder ({', '.join(SUFFIXES)}).")
    return found


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


@dataclass(frozen=True)
class Part:
    """Some labeled data of a folder or an .npz file.

    - `inputs`, `labels`: raw inputs and the names of their classes.
    - `name`: what it is called where it lies, as `test/`; empty where all data are one part.
    - `preprocessing`: what was done to pictures.
    """

    inputs: np.ndarray
    labels: np.ndarray
    name: str = ""
    preprocessing: Preprocessing | None = None

    def __len__(self) -> int:
        return len(self.labels)


def read_parts(
    data: str, sample: Sample | None, task: str, preprocessing: Preprocessing | None = None
) -> dict[str, Part]:
    """The parts of a folder of images per class or of an .npz file, as inputs of a task.

    They are "train", and "valid" and "test" where there are such; see `read_folder`.

    - `sample`: what inputs are to look like; None leaves them as they are.
    - `task`: its name, for errors.
    - `preprocessing`: what is done to pictures; by default what gives such a sample.
    """
    if Path(data).suffix == ".npz":
        return _npz_parts(data, sample)
    if preprocessing is None and sample is not None:
        preprocessing = _form(sample, task)
    parts = read_folder(data, preprocessing=preprocessing)
    if sample is None:
        return parts
    shape = sample.shape
    return {n: replace(p, inputs=p.inputs.reshape(len(p), *shape)) for n, p in parts.items()}


def _npz_parts(data: str, sample: Sample | None) -> dict[str, Part]:
    found = {"train": load_npz(data)}
    if has_test_arrays(data):
        found["test"] = load_npz(data, "test")
    names = {"train": "inputs" if len(found) > 1 else "", "test": "test_inputs"}
    return {
        part: Part(
            _as_sample(each.inputs, sample, data), np.array(each.classes)[each.labels], names[part]
        )
        for part, each in found.items()
    }


def read_folder(
    folder: str | Path,
    size: int | None = None,
    mode: str | None = None,
    preprocessing: Preprocessing | None = None,
) -> dict[str, Part]:
    """The parts of a folder of images per class: pixels and the names of their classes.

    A folder with `train/` has a part "train", and "test" where it has `test/`; `val/`, `valid/` or
    `validation/` is the part "valid" beside a test part, and else the test part itself. Another
    folder is all "train".

    - `size`: the side in pixels that images are brought to: the shorter side is resized to it and
      the middle cut out. None takes images as they are, all of one size.
    - `mode`: "RGB" or "L"; by default that of the first image.
    - `preprocessing`: says all of it, in the place of both.
    """
    top = Path(folder).expanduser()
    folders = {"train": top}
    if (top / "train").is_dir():
        held = [top / name for name in TEST_FOLDERS if (top / name).is_dir()]
        folders = {"train": top / "train"} | dict(zip(("test", "valid"), held, strict=False))
    parts = {}
    for part, place in folders.items():
        found = load_folder(place, None, size, mode, preprocessing=preprocessing)
        mode = mode or ("L" if found.inputs.shape[1] == 1 else "RGB")
        labels, name = np.array(found.classes)[found.labels], "" if place == top else place.name
        parts[part] = Part(found.inputs, labels, name and f"{name}/", found.preprocessing)
    return parts


def read_task(
    name: str,
    data: str,
    samples: Sequence[Sample | None],
    seed: int,
    normalization: Normalization | None = None,
    alike: Mapping[Sample, Preprocessing] | None = None,
) -> tuple[Task, dict[str, Part]]:
    """A task from a folder or an .npz, with inputs like those the model knows, and its parts.

    - `samples`: what inputs of earlier tasks look like, or should; the last come first.
    - `normalization`: that of a pretrained network, where its channels fit; else it is fitted.
    - `alike`: how pictures became such samples in earlier tasks.
    """
    known = [s for s in reversed(samples) if s is not None]
    if Path(data).suffix != ".npz":
        # Of tasks learned from pixels and from other numbers, images are to be like the former.
        known.sort(key=lambda s: s.dtype != torch.uint8)
    sample = known[0] if known else None
    parts = read_parts(data, sample, name, None if sample is None else (alike or {}).get(sample))
    train, valid, test = parts["train"], parts.get("valid"), parts.get("test")
    shape, is_raw = train.inputs.shape, train.inputs.dtype == np.uint8
    if normalization is not None and (
        not is_raw or len(shape) != 4 or shape[1] != len(normalization.mean)
    ):
        normalization = None
    task = Task.from_arrays(
        name,
        train.inputs,
        train.labels,
        valid=0.1 if valid is None else (valid.inputs, valid.labels),
        test=None if test is None else (test.inputs, test.labels),
        seed=seed,
        normalization=normalization or "auto",
    )
    return replace(task, preprocessing=train.preprocessing), parts


def read_labeled(data: str, subnet: Subnet) -> tuple[Part, Part]:
    """What a learned task is measured on, and the training data beside it; each of them mixed.

    Measured are the test data where there are some; else both are the same, all of it. Pictures
    become inputs as the model records, labels are the task's own.
    """
    done = recorded_preprocessing(subnet)
    parts = read_parts(data, subnet.sample, subnet.name, done and done.for_any_size())
    measured = _mixed(parts.get("test", parts["train"]), subnet, data)
    return measured, _mixed(parts["train"], subnet, data) if "test" in parts else measured


def _mixed(part: Part, subnet: Subnet, data: str) -> Part:
    """Raw inputs and the task's own labels, in an order that has all classes among the first."""
    check_raw(data, part.inputs, subnet)
    labels = part.labels
    if isinstance(subnet.classes[0], int):
        own = {str(c): c for c in subnet.classes}
        if all(label in own for label in labels.tolist()):
            labels = np.array([own[label] for label in labels.tolist()])
    order = np.random.default_rng(0).permutation(len(part))
    return Part(part.inputs[order], labels[order], part.name)


def _form(sample: Sample, task: str) -> Preprocessing:
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
    return Preprocessing("L" if shape[0] == 1 else "RGB", shape[1], shape[2], min(shape[1:]))


def image_form(subnet: Subnet) -> Preprocessing:
    """How an image has to be decoded to become an input of a learned task."""
    if subnet.sample is None:
        raise DataError(
            f"the model does not record what inputs of task {subnet.name!r} look like; give .npz "
            "files."
        )
    done = recorded_preprocessing(subnet)
    return _form(subnet.sample, subnet.name) if done is None else done.for_any_size()


def preprocessed_alike(subnets: Iterable[Subnet]) -> dict[Sample, Preprocessing]:
    """How pictures became inputs of tasks, by what these look like, for further tasks alike.

    Where tasks differ the last one counts. Gray pictures that were framed or repeated to look like
    others are left out: a further task may have colors.
    """
    found = {}
    for subnet in subnets:
        try:
            done = recorded_preprocessing(subnet)
        except DataError:  # of another version
            continue
        if (
            done is not None
            and subnet.sample is not None
            and (done.frame, done.channels) == (None,) * 2
        ):
            found[subnet.sample] = done.for_any_size()
    return found


def recorded_preprocessing(subnet: Subnet) -> Preprocessing | None:
    """What the model says was done to the pictures of a task; None where it says nothing."""
    if subnet.preprocessing is None or subnet.sample is None:
        return None
    done = Preprocessing.from_dict(subnet.preprocessing)
    if math.prod(done.shape) != math.prod(subnet.sample.shape):
        raise DataError(
            f"the preprocessing recorded for task {subnet.name!r} gives inputs of shape "
            f"{done.shape}, and it takes {subnet.sample.shape}; give .npz files."
        )
    return done


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
        encoded = read(Path(file))
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}.") from None
    try:
        return image_input(encoded, subnet)
    except DataError as error:
        raise DataError(f"{file}: {error}.") from None


def _arrays(file: str) -> np.ndarray:
    """The array `inputs` of an .npz file, or its only one."""
    try:
        with reading(Path(file)) as opened, np.load(opened, allow_pickle=False) as arrays:
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
