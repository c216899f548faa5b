"""Raw data as users give it: inputs and labels checked, remapped and divided.

Everything that is wrong with data is said here, before anything is learned from it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import TaskError
from tinysubnets.tasks.preprocessing import Preprocessing, plain
from tinysubnets.text import is_seen

Label = int | str
Pixels = Callable[[Any], np.ndarray]  # a picture of Pillow as (channels, height, width)
GRAY_MODES = ("1", "L", "LA", "I", "I;16")  # of Pillow
MAX_NAME = 500  # characters of a task's name
MAX_LABEL = 1000  # characters of a class label
MAX_LABELS_BYTES = 1 << 20  # of all labels of a task together
MAX_EXACT = 2**53  # up to here every integer is a float64 of its own
CHANNELS_CURE = (
    "Give inputs.transpose(0, 3, 1, 2) of a numpy array, inputs.permute(0, 3, 1, 2) of a tensor."
)
_LEAST_SIDE = 8  # pixels of an image that is recognized by its shape
_CHUNK = 4096  # samples looked at together
# Pixels of 0 and 1 alone have a mean and a deviation of at most 1.21 together.
_LEAST_REACH = 2.0
_STANDARD = 5.0  # pixels less their mean over their deviation are hardly beyond
_OVERSHOOT = 128.0  # resampling goes beyond 0 to 255, never that far


class Inputs(Protocol):
    """Anything that gives samples at an array of indices: a tensor, a memory map, …"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class DatasetInputs:
    """The inputs of a torch `Dataset`, fetched item by item.

    Items are (input, label) pairs, or with `labeled=False` also bare inputs; pictures of Pillow
    become uint8 pixels, by the function `pixels` or as they are.
    """

    def __init__(self, dataset: Any, *, labeled: bool = True, pixels: Pixels | None = None) -> None:
        self.dataset, self.labeled = dataset, labeled
        self.pixels = pixels or picture_pixels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any, /) -> Tensor:
        if isinstance(index, slice):
            index = range(len(self))[index]
        items = [self._input(int(i)) for i in np.atleast_1d(index)]
        if any(i.is_floating_point() and not torch.isfinite(i).all() for i in items):
            raise TaskError("the data set gave NaN or infinite inputs; clean the data first.")
        shapes = {tuple(i.shape) for i in items}
        if len(shapes) > 1:
            raise TaskError(
                f"the data set gave inputs of several shapes, {sorted(shapes)[:3]}; "
                "bring all samples to one shape first."
            )
        return torch.stack(items) if items else torch.empty(0)

    def _input(self, index: int) -> Tensor:
        item = self.dataset[index]
        if self.labeled:
            item = item_of_pair(item)[0]
        elif isinstance(item, (tuple, list)) and item:
            item = item[0]
        if is_picture(item):
            return torch.from_numpy(np.array(self.pixels(item)))
        try:
            return torch.as_tensor(item)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(
                f"the data set gave a {type(item).__name__} as input {index}, which is no tensor "
                f"({error}); let its transform give tensors, arrays or pictures of Pillow."
            ) from None


def item_of_pair(item: Any) -> tuple[Any, Any]:
    """An item of a data set as input and label."""
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        return item[0], item[1]
    what = f"a dict with {', '.join(map(str, item))}" if isinstance(item, dict) else None
    raise TaskError(
        f"the data set gives {what or f'a {type(item).__name__}'} per item; items are (input, "
        "label) pairs. Wrap it in a Dataset that gives such pairs."
    )


def is_picture(value: Any) -> bool:
    """Whether a value is a picture of Pillow, which need not be installed."""
    return type(value).__module__.startswith("PIL.") and hasattr(value, "convert")


def picture_pixels(picture: Any) -> np.ndarray:
    """A picture of Pillow as uint8 (channels, height, width): gray ones 1 channel, others 3."""
    picture = plain(picture)
    mode = "L" if picture.mode in GRAY_MODES else "RGB"
    pixels = np.array(picture if picture.mode == mode else picture.convert(mode))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def check_text(text: Any, what: str, most: int, *, controls: bool) -> None:
    """Refuse a name or label that no file could hold, before anything is learned under it.

    - `what`: what the text is, for the error.
    - `most`: the characters it may have.
    - `controls`: whether control characters, such as line ends, and others that nobody sees may be
      in it.
    """
    if not isinstance(text, str) or not text:
        raise TaskError(f"{what} is a non-empty string, not {_short(text)}.")
    if len(text) > most:
        raise TaskError(f"{what} has {len(text):,} characters; at most {most:,} are allowed.")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise TaskError(
            f"{what} holds half a character, {_short(text)}, which no file can store; decode it "
            "with the right encoding."
        )
    if not controls and any(unicodedata.category(c) == "Cc" for c in text):
        raise TaskError(f"{what} holds a control character, {_short(text)}; leave it out.")
    if not controls and not is_seen(text):
        raise TaskError(
            f"{what} is {text[:80]!a}: it has a character that nobody sees, or none that "
            "anybody does, so that it could be taken for another; leave that out."
        )


def check_classes(name: str, classes: Sequence[Label]) -> None:
    """Refuse labels of a task that no file could hold; integers always can be."""
    texts = [c for c in classes if isinstance(c, str)]
    for text in texts:
        if text:
            check_text(text, f"task {name!r}: a label", MAX_LABEL, controls=True)
    size = sum(len(c.encode()) for c in texts)
    if size > MAX_LABELS_BYTES:
        raise TaskError(
            f"task {name!r}: its {len(texts):,} labels take {size:,} bytes; at most "
            f"{MAX_LABELS_BYTES:,} are allowed. Shorten them, or number the classes."
        )


def check_seed(name: str, seed: Any) -> None:
    """Refuse a seed that is no integer of 64 bits."""
    is_whole = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not is_whole or not -(2**63) <= seed < 2**63:
        raise TaskError(f"task {name!r}: seed = {_short(seed)} is not an integer of 64 bits.")


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def of_pictures(inputs: Any) -> Preprocessing | None:
    """The preprocessing of inputs that are pictures of Pillow; None for other inputs."""
    first = inputs
    if isinstance(inputs, DatasetInputs) and len(inputs):
        item = inputs.dataset[0]
        first = item[0] if isinstance(item, (tuple, list)) and item else item
    elif isinstance(inputs, (list, tuple)) and inputs:
        first = inputs[0]
    if not is_picture(first):
        return None
    return Preprocessing("L" if first.mode in GRAY_MODES else "RGB", first.height, first.width)


def as_array(values: Any, pixels: Pixels | None = None) -> np.ndarray:
    """Numbers or labels as a numpy array; what cannot be one without a loss is a TaskError.

    - `pixels`: makes an array of a picture of Pillow; by default it is taken as it is.
    """
    pixels = pixels or picture_pixels
    if isinstance(values, Tensor):
        return _dense(values).detach().cpu().numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise TaskError(
            "a masked array is given, whose masked entries have no values; fill or leave them out."
        )
    if is_picture(values):
        return pixels(values)[None]
    if isinstance(values, (list, tuple)) and any(
        isinstance(v, (Tensor, np.ndarray)) or is_picture(v) for v in values
    ):
        return _stacked(values, pixels)
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise TaskError(f"what is given is no array of equal rows: {error}") from None


def _stacked(samples: Sequence[Any], pixels: Pixels) -> np.ndarray:
    """A list of arrays, tensors or pictures as one array with a row for each."""
    rows = [pixels(v) if is_picture(v) else as_array(v) for v in samples]
    shapes = sorted({r.shape for r in rows}, key=str)
    if len(shapes) > 1:
        shown = ", ".join(map(str, shapes[:3])) + (", …" if len(shapes) > 3 else "")
        raise TaskError(
            f"the samples given have several shapes, {shown}; bring all of them to one first."
        )
    return np.stack(rows)


def _dense(tensor: Tensor) -> Tensor:
    """A tensor that holds its values one by one; any other is a TaskError that says the cure."""
    if tensor.is_meta:
        raise TaskError("a tensor on the meta device is given, which has no values.")
    if tensor.layout != torch.strided:
        raise TaskError("a sparse tensor is given; make it dense: tensor.to_dense().")
    if tensor.is_quantized:
        raise TaskError("a quantized tensor is given; give its numbers: tensor.dequantize().")
    return tensor


def as_tensor(inputs: Any, pixels: Pixels | None = None) -> Tensor:
    """Inputs as a tensor; what torch cannot hold as it is (reversed, read-only, …) is copied.

    - `pixels`: makes an array of a picture of Pillow; by default it is taken as it is.
    """
    if isinstance(inputs, Tensor):
        return _dense(inputs)
    array = as_array(inputs, pixels)
    if array.dtype.kind in "US":
        raise TaskError(
            "text is given where numbers are needed; images in files are read by "
            "Task.from_folder, `tsn predict` and Pillow's Image.open."
        )
    kind = array.dtype.newbyteorder("=")
    if kind.kind == "f" and kind.itemsize > 8:
        kind = np.dtype(np.float64)
    return torch.from_numpy(np.require(array, kind, ["C", "W"]))


def is_tokens(inputs: Tensor) -> bool:
    """Whether raw inputs are integer tokens: any integer type but uint8, which means pixels."""
    return not inputs.is_floating_point() and inputs.dtype != torch.uint8


def check_scale(name: str, inputs: Tensor, learned: torch.dtype, reach: float) -> None:
    """Refuse pixels that were scaled or standardized where a task was learned from uint8 pixels.

    `reach` is the mean plus the deviation of what was learned from. Integers given as floats
    pass, and so do fractions beyond 1; numbers that no byte comes near do not.
    """
    if learned != torch.uint8 or inputs.dtype == torch.uint8 or inputs.numel() == 0:
        return
    inputs = inputs if inputs.is_floating_point() else inputs.double()
    low, high = (float(v) for v in inputs.aminmax())
    kind = str(inputs.dtype).removeprefix("torch.")
    if low < -_OVERSHOOT or high > 255 + _OVERSHOOT:
        raise TaskError(
            f"task {name!r} learns from raw uint8 pixels, but the inputs given go from {low:.3g} "
            f"to {high:.3g}: labels would be nonsense. Give pixels from 0 to 255."
        )
    least, most = (-_STANDARD, _STANDARD) if low < 0 else (0.0, 1.0)
    is_scaled = least <= low <= high <= most and bool((inputs != inputs.round()).any())
    if is_scaled and reach > _LEAST_REACH:
        raise TaskError(
            f"task {name!r} learns from raw uint8 pixels, but the inputs given are {kind} from "
            f"{low:.3g} to {high:.3g}: scaled already, so that labels would be nonsense. "
            "Give raw pixels, as uint8 or as the same numbers in floats (inputs * 255 if they were "
            "divided by 255); the normalization is done for you."
        )


def checked_inputs(name: str, inputs: Any) -> Inputs:
    """The inputs as a tensor or memory map, or an error that says what is wrong with them."""
    if isinstance(inputs, (np.memmap, DatasetInputs)):
        source: Any = inputs
        sample = (
            torch.from_numpy(np.array(inputs[:1])) if isinstance(inputs, np.memmap) else inputs[:1]
        )
    else:
        if not isinstance(inputs, Tensor):
            array = _of_task(name, inputs)
            if array.dtype.kind not in "uif":
                raise TaskError(
                    f"task {name!r}: inputs of type {array.dtype} cannot be learned from; "
                    "give uint8 or float images and vectors, or integer tokens."
                )
            inputs = as_tensor(array)
        try:
            source = sample = as_tensor(inputs).detach().cpu()
        except TaskError as error:
            raise TaskError(f"task {name!r}: {error}") from None
    if sample.ndim == 0:
        raise TaskError(f"task {name!r}: one number is given; (samples, features…) are needed.")
    if sample.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise TaskError(
            f"task {name!r}: inputs of type {sample.dtype} cannot be learned from; "
            "give uint8 or float images and vectors, or integer tokens."
        )
    if len(source) == 0 or sample.ndim < 2 or sample.numel() == 0:
        raise TaskError(
            f"task {name!r}: inputs have shape {tuple(getattr(source, 'shape', sample.shape))}; "
            "at least one sample with at least one feature is needed: (samples, features…)."
        )
    check_channels_first(name, tuple(sample.shape[1:]), sample.dtype)
    if sample.is_floating_point() and not isinstance(source, DatasetInputs):
        check_finite(name, source)
    return source


def check_channels_first(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse images (height, width, channels); torch's networks take channels first.

    - `shape`, `dtype`: those of one sample. Pixels are recognized by 1, 3 or 4 channels behind two
      longer axes, other numbers only where these two are equal as well.
    """
    if len(shape) != 3 or shape[2] not in (1, 3, 4) or min(shape[:2]) < _LEAST_SIDE:
        return
    if dtype == torch.uint8 or shape[0] == shape[1]:
        raise TaskError(
            f"task {name!r}: inputs of shape {shape} are images with their channels last; networks "
            f"of torch take {channels_first(shape)}. {CHANNELS_CURE}"
        )


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape (height, width, channels) with its channels first; None where it has not three."""
    return (shape[2], shape[0], shape[1]) if len(shape) == 3 else None


def task_and_inputs(task: Any, inputs: Any) -> tuple[str | None, Any]:
    """What `predict(task, inputs)` or `predict(inputs)` was given; the latter has no task."""
    if inputs is not None:
        return task, inputs
    if task is None or isinstance(task, str):
        raise TaskError(
            f"predict({task!r}) lacks inputs; give predict(task, inputs), or predict(inputs) where "
            "the task is not known."
        )
    return None, task


def check_numbers(name: str, inputs: Tensor) -> None:
    """Refuse raw inputs that are no numbers a network of a task could take."""
    if inputs.is_complex() or inputs.dtype == torch.bool:
        raise TaskError(
            f"task {name!r} cannot take inputs of type {inputs.dtype}; give uint8 or float images "
            "and vectors, or integer tokens."
        )


def layout_hint(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What to do about a batch of shape `given` where samples of shape `wanted` were learned from.

    Empty where nothing is to be done, or nothing is known to help.
    """
    if given == wanted:
        return "This is one sample without an axis of samples: give inputs[None]."
    if channels_first(given) == wanted:
        return (
            "This is one image with its channels last and without an axis of samples: give "
            "inputs.transpose(2, 0, 1)[None] of a numpy array, inputs.permute(2, 0, 1)[None] of a "
            "tensor."
        )
    sample = given[1:]
    if sample == wanted:
        return ""
    if channels_first(sample) == wanted:
        return f"The channels are last. {CHANNELS_CURE}"
    if (1, *sample) == wanted:
        return "The axis of channels is missing: give inputs[:, None]."
    if given[:1] != (0,) and math.prod(sample) == math.prod(wanted):
        return f"They hold as many numbers: give inputs.reshape(-1, {', '.join(map(str, wanted))})."
    return ""


def check_finite(name: str, source: Any) -> None:
    """Refuse NaN and infinity, chunk by chunk: a memory map need not fit in memory."""
    for start in range(0, len(source), _CHUNK):
        part = source[start : start + _CHUNK]
        part = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        fine = torch.isfinite(part).flatten(1).all(1)
        if not fine.all():
            bad = start + int((~fine).nonzero()[0])
            raise TaskError(
                f"task {name!r}: inputs contain NaN or infinite values (first in sample {bad}); "
                "clean the data first."
            )


def _of_task(name: str, values: Any) -> np.ndarray:
    """An array as `as_array` gives it; errors name the task."""
    try:
        return as_array(values)
    except TaskError as error:
        raise TaskError(f"task {name!r}: {error}") from None


def remapped_labels(name: str, labels: Any, num_samples: int) -> tuple[Tensor, tuple[Label, ...]]:
    """Class numbers 0..n-1 and the user's own labels in sorted order."""
    array = _of_task(name, labels)
    if array.ndim != 1 or len(array) != num_samples:
        raise TaskError(
            f"task {name!r}: {num_samples} inputs but labels of shape {array.shape}; "
            "one label per sample is needed."
        )
    values, numbers = np.unique(_as_classes(name, array), return_inverse=True)
    if len(values) < 2:
        raise TaskError(
            f"task {name!r} has only the class {values.tolist()}; "
            "at least two classes are needed to learn anything."
        )
    return torch.from_numpy(numbers.astype(np.int64)), tuple(values.tolist())


def _as_classes(name: str, array: np.ndarray) -> np.ndarray:
    """Labels as integers or strings (true is 1, false is 0), or an error that says what is."""
    if array.dtype.kind == "O":
        kinds = {type(v) for v in array.tolist()}
        if kinds and all(issubclass(k, (int, np.integer)) for k in kinds):
            return _as_numbers(name, array)
        if not all(issubclass(k, str) for k in kinds):
            named = ", ".join(sorted(k.__name__ for k in kinds))
            raise TaskError(
                f"task {name!r}: labels of types {named} are not classes; "
                "give integers or strings, without gaps."
            )
        return array.astype(str)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise TaskError(f"task {name!r}: labels contain NaN or infinite values.")
    if array.dtype.kind == "f" and (array == array.round()).all():
        if (np.abs(array) > MAX_EXACT).any():
            raise TaskError(
                f"task {name!r}: labels as large as {np.abs(array).max():.3g} are given as floats, "
                "where neighbors cannot be told apart; give integers or strings."
            )
        return array.astype(np.int64)
    if array.dtype.kind not in "iubUS":
        raise TaskError(
            f"task {name!r}: labels of type {array.dtype} are not classes; "
            "give integers or strings."
        )
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise TaskError(f"task {name!r}: labels are bytes that are no UTF-8 text.") from None
    return array.astype(str) if array.dtype.kind == "U" else _as_numbers(name, array)


def _as_numbers(name: str, array: np.ndarray) -> np.ndarray:
    wide = array.tolist() if array.dtype in (object, np.uint64) else ()
    if any(not -(2**63) <= int(v) < 2**63 for v in wide):
        raise TaskError(f"task {name!r}: a label of more than 63 bits is given; renumber them.")
    return array.astype(np.int64)


def stratified(name: str, labels: Tensor, share: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Disjoint, sorted training and validation positions with the same mix of classes."""
    if not isinstance(share, float) or not 0.0 < share < 1.0:
        raise TaskError(
            f"task {name!r}: valid = {share!r} is not allowed; give a share between 0 and 1 "
            "or (inputs, labels)."
        )
    check_seed(name, seed)
    generator = torch.Generator().manual_seed(int(seed))
    train, valid = [], []
    for number in range(int(labels.max()) + 1):
        where = (labels == number).nonzero().flatten()
        where = where[torch.randperm(len(where), generator=generator)]
        # Every class that has two samples or more is seen in both parts.
        count = min(max(round(share * len(where)), 1), len(where) - 1)
        valid.append(where[:count])
        train.append(where[count:])
    split = torch.cat(valid)
    if len(split) == 0:
        raise TaskError(f"task {name!r}: one sample per class leaves nothing to validate with.")
    return torch.cat(train).sort().values, split.sort().values


def class_balanced(groups: Tensor, count: int) -> Tensor:
    """Sorted positions of `count` entries, as many of each group as can be.

    Taken are the first entry of every group, then the second of every group, and so on; where
    `count` ends within such a round, those that come first. So the order of the entries decides:
    shuffled ones give a random draw.

    - `groups`: the group of every entry [n], int64: its class, or its task and class as one number.
    - `count`: how many entries; all of them where there are fewer.

        >>> class_balanced(torch.tensor([5, 5, 5, 7, 9, 9]), 4).tolist()
        [0, 1, 3, 4]
    """
    order = groups.argsort(stable=True)
    ordered = groups[order]
    # How many entries of its own group come before each entry: its round.
    rounds = torch.empty_like(order)
    rounds[order] = torch.arange(len(order)) - torch.searchsorted(ordered, ordered)
    return rounds.argsort(stable=True)[:count].sort().values
