"""A task: named data with classes, disjoint splits and a recorded normalization.

Raw inputs go in as the user has them: uint8 or float images and vectors, or integer tokens. What
the network sees is `normalization(raw)`; the normalization is part of the task, of the stored model
and of every exported module.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.random((40, 3), dtype=np.float32), np.array(["cat", "dog"] * 20)
    >>> task = Task.from_arrays("pets", x, y)
    >>> task.classes, len(task.train), len(task.valid)
    (('cat', 'dog'), 36, 4)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import TaskError
from tinysubnets.tasks.checks import (
    MAX_NAME,
    Inputs,
    Label,
    as_array,
    check_classes,
    check_text,
    checked_inputs,
    is_tokens,
    of_pictures,
    remapped_labels,
    stratified,
)
from tinysubnets.tasks.normalization import Normalization
from tinysubnets.tasks.preprocessing import Preprocessing
from tinysubnets.tasks.rearranged import RearrangedInputs
from tinysubnets.tasks.sources import class_names, is_dataset, labeled

# Fewer validation samples than this cannot tell which epoch is best, nor what a weight is worth.
FEW_VALID = 60
FITTED_AT_ONCE = 1 << 27  # values that a normalization is fitted to at once, in float64
NormalizationRule = Literal["auto", "channel", "scalar"]


@dataclass(frozen=True)
class Split:
    """Some samples of a source of inputs, by index, with their class numbers."""

    source: Inputs
    labels: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sample = self.inputs(slice(0, 1))
        return f"Split({len(self):,} samples of {sample.dtype} {tuple(sample.shape[1:])})"

    def inputs(self, where: Tensor | slice = slice(None)) -> Tensor:
        """The raw inputs at some positions of this split, as a CPU tensor."""
        if self.index is not None:
            where = self.index[where]
        if isinstance(self.source, Tensor):
            return self.source[where]
        if isinstance(where, slice):
            where = torch.arange(len(self))[where]
        picked = self.source[where.numpy()]
        return (
            picked if isinstance(picked, Tensor) else torch.from_numpy(np.ascontiguousarray(picked))
        )

    def on(self, device: torch.device) -> Tensor:
        """All raw inputs of this split on a device."""
        if isinstance(self.source, RearrangedInputs):
            where = torch.arange(len(self)) if self.index is None else self.index
            return self.source.on(where, device)
        return self.inputs().to(device)

    def size_bytes(self) -> int:
        """The bytes that all inputs of this split take in memory."""
        sample = self.inputs(slice(0, 1))
        return len(self) * sample.numel() * sample.element_size()


@dataclass(frozen=True)
class Task:
    """One task to learn: its name, classes, training and validation data, and test data if any.

    `preprocessing` says how pictures became its raw inputs, where they did; it is recorded with the
    model, and done to pictures that are predicted. Of a task `is_from_folder`, learning warns where
    its validation samples are too few for the settings.
    """

    name: str
    classes: tuple[Label, ...]
    train: Split
    valid: Split
    test: Split | None = None
    normalization: Normalization = field(default_factory=Normalization, repr=False)
    class_weights: tuple[float, ...] | None = None
    preprocessing: Preprocessing | None = None
    is_from_folder: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_text(self.name, "a task's name", MAX_NAME, controls=False)
        check_classes(self.name, self.classes)

    @property
    def num_classes(self) -> int:
        """How many classes the task's head tells apart."""
        return len(self.classes)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        inputs: Any,
        labels: Any,
        *,
        valid: float | tuple[Any, Any] = 0.1,
        test: tuple[Any, Any] | None = None,
        seed: int = 0,
        normalization: NormalizationRule | Normalization | None = "auto",
        class_weights: Literal["balanced"] | Sequence[float] | None = None,
    ) -> Task:
        """A task from numpy or torch arrays.

        - `inputs`: uint8 or float images (samples, channels, height, width) and vectors (samples,
          features), or integer tokens (samples, length); a list of pictures of Pillow, too.
        - `labels`: one per sample, integers or strings; `predict` gives them back.
        - `valid`: a share of the samples to validate with, or (inputs, labels) of your own.
        - `test`: (inputs, labels) that are kept aside and never learned from.
        - `seed`: draws the validation samples.
        - `normalization`: "auto" means per channel for images and float vectors, one number for
          uint8 vectors, nothing for tokens; None leaves inputs as they are.
        - `class_weights`: "balanced" weighs the loss by inverse class frequency; or one number per
          class.
        """
        check_text(name, "a task's name", MAX_NAME, controls=False)
        source = checked_inputs(name, inputs)
        numbers, classes = remapped_labels(name, labels, len(source))
        if isinstance(valid, tuple):
            train = Split(source, numbers)
            valid_split = _other_split(name, "validation", valid, source, classes)
        else:
            train_index, valid_index = stratified(name, numbers, valid, seed)
            train = Split(source, numbers[train_index], train_index)
            valid_split = Split(source, numbers[valid_index], valid_index)
        test_split = None if test is None else _other_split(name, "test", test, source, classes)
        if not isinstance(normalization, Normalization):
            normalization = fitted_normalization(name, train, normalization)
        normalization = _fitting(name, train, normalization)
        for other in (valid_split, test_split):
            if other is not None and other.source is not source:
                learned = train.inputs(slice(0, 1)).dtype
                normalization.check_scale(name, other.inputs(slice(0, 10)), learned)
        weights = _class_weights(name, class_weights, train.labels, len(classes))
        preprocessing = of_pictures(inputs)
        return cls(
            name, classes, train, valid_split, test_split, normalization, weights, preprocessing
        )

    @classmethod
    def from_datasets(
        cls,
        name: str,
        train: Any,
        *,
        valid: float | Any = 0.1,
        test: Any = None,
        classes: Sequence[str] | Literal["own"] | None = "own",
        seed: int = 0,
        normalization: NormalizationRule | Normalization | None = "auto",
        class_weights: Literal["balanced"] | Sequence[float] | None = None,
    ) -> Task:
        """A task from torch `Dataset`s of (input, label) pairs, or loaders of them.

        They need not fit in memory. Inputs are tensors, arrays, or pictures of Pillow, which become
        uint8 pixels. Of a loader the data set is taken: batches, their order and random draws are
        the training's own. Labels are taken from `targets` where there are any, else read once.

        - `train`, `valid`, `test`: data sets or loaders; `valid` may be a share of `train` instead.
        - `classes`: what classes are called by number. "own" takes the names that the data set
          brings as its `classes`, as those of torchvision do; None leaves numbers as they are.
        - Others are those of `from_arrays`.
        """
        check_text(name, "a task's name", MAX_NAME, controls=False)
        names = None if classes in ("own", None) else tuple(classes or ())
        if classes == "own":
            names = class_names(getattr(train, "dataset", train))

        def read(data: Any) -> tuple[Any, Any]:
            try:
                return labeled(data, names, own_names=classes == "own")
            except TaskError as error:
                raise TaskError(f"task {name!r}: {error}") from None

        return cls.from_arrays(
            name,
            *read(train),
            valid=valid if _is_plain(valid) else read(valid),
            test=test if _is_plain(test) else read(test),
            seed=seed,
            normalization=normalization,
            class_weights=class_weights,
        )

    @classmethod
    def from_folder(
        cls,
        name: str,
        folder: str | os.PathLike[str],
        *,
        size: int | None = None,
        mode: Literal["RGB", "L"] | None = None,
        valid: float = 0.1,
        seed: int = 0,
        normalization: NormalizationRule | Normalization | None = "auto",
        class_weights: Literal["balanced"] | Sequence[float] | None = None,
    ) -> Task:
        """A task from a folder of images: `folder/<class>/*.jpg`, or so in `train/` and `test/`.

        Classes are called as their folders are. Beside `train/` and `test/`, images in `val/`,
        `valid/` or `validation/` are the validation data; beside `train/` alone they are the test
        data. Decoded images are kept in the cache. Where images are few and the learner's settings
        do not fit that, learning them gives a `FewSamplesWarning`.

        - `size`: the side in pixels that images are brought to: the shorter side is resized to it
          and the middle cut out. None takes images as they are, all of one size.
        - `mode`: "RGB" or "L" (gray); by default that of the first image.
        - `valid`: the share of training images to validate with, where no folder holds them.
        - Others are those of `from_arrays`.
        """
        from tinysubnets.datasets.user_files import read_folder

        read = read_folder(os.fspath(folder), size, mode)
        parts = {part: (found.inputs, found.labels) for part, found in read.items()}
        task = cls.from_arrays(
            name,
            *parts["train"],
            valid=parts.get("valid", valid),
            test=parts.get("test"),
            seed=seed,
            normalization=normalization,
            class_weights=class_weights,
        )
        return replace(task, preprocessing=read["train"].preprocessing, is_from_folder=True)


def few_samples(task: Task) -> str:
    """A warning for a task with too few validation samples to choose by; empty for others."""
    return few_told({task.name: (len(task.train), len(task.valid))})


def few_told(sizes: Mapping[str, tuple[int, int]]) -> str:
    """The same for several tasks, in one sentence.

    - `sizes`: by names of tasks, how many samples train and validate.
    """
    few = {name: size for name, size in sizes.items() if size[1] < FEW_VALID}
    if not few:
        return ""
    least, most = min(v for _, v in few.values()), max(v for _, v in few.values())
    if len(few) == 1:
        ((name, (num_train, _)),) = few.items()
        have = f"{name} has {num_train:,} training and {least:,} validation samples"
    else:
        listed = list(few) if len(few) <= 4 else [*list(few)[:3], f"{len(few) - 3} more tasks"]
        have = f"{', '.join(listed[:-1])} and {listed[-1]} have {least:,}"
        have += f" to {most:,} validation samples" if most > least else " validation samples each"
    points = f"{100 / least:.1f}".removesuffix(".0")
    worth = f"{'up to ' if most > least else ''}{points} points"
    return (
        f"{have}; one of these is worth {worth} of accuracy, which is too coarse to tell which "
        "inputs are unknown, or to choose the best epoch by, or the weights to prune"
    )


def _is_plain(data: Any) -> bool:
    """Whether validation or test data are a share, arrays or nothing, not a data set."""
    return isinstance(data, tuple) or not (is_dataset(data) or hasattr(data, "__getitem__"))


def _other_split(
    name: str, what: str, pair: Any, source: Inputs, classes: tuple[Label, ...]
) -> Split:
    """Validation or test data given as (inputs, labels), with the training classes' numbers."""
    try:
        inputs, labels = pair
    except (TypeError, ValueError):
        raise TaskError(f"task {name!r}: {what} data are given as (inputs, labels).") from None
    other = checked_inputs(name, inputs)
    shapes = [tuple(s[np.arange(1)].shape[1:]) for s in (source, other)]
    if shapes[0] != shapes[1]:
        raise TaskError(
            f"task {name!r}: {what} inputs have shape {shapes[1]} per sample, "
            f"training inputs {shapes[0]}; they must be equal."
        )
    try:
        array = as_array(labels)
    except TaskError as error:
        raise TaskError(f"task {name!r}, {what} labels: {error}") from None
    if array.shape != (len(other),):
        raise TaskError(
            f"task {name!r}: {len(other)} {what} inputs but labels of shape {array.shape}."
        )
    number = {c: i for i, c in enumerate(classes)}
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    values = array.astype(str).tolist() if isinstance(classes[0], str) else array.tolist()
    strange = sorted({str(v) for v in values if v not in number})
    if strange:
        raise TaskError(
            f"task {name!r}: {what} labels {strange[:5]} do not occur in training "
            f"(classes: {list(classes)[:10]})."
        )
    return Split(other, torch.tensor([number[v] for v in values], dtype=torch.int64))


def fitted_normalization(name: str, train: Split, rule: Any) -> Normalization:
    """The normalization that gives training inputs mean 0 and deviation 1, from at most 10,000."""
    if rule not in ("auto", "channel", "scalar", None):
        raise TaskError(
            f"task {name!r}: normalization = {rule!r} is not allowed; choose 'auto', "
            "'channel', 'scalar', None or a Normalization."
        )
    sample = train.inputs(slice(0, 1))
    if rule is None or is_tokens(sample):
        return Normalization()
    step = max(1, len(train) // 10_000)
    by_channel = not (
        rule == "scalar" or (rule == "auto" and sample.ndim == 2 and sample.dtype == torch.uint8)
    )
    if len(train) // step * sample.numel() > FITTED_AT_ONCE:
        return _fitted_in_parts(name, train, step, by_channel)
    values = train.inputs(slice(0, None, step)).double()
    if not torch.isfinite(values).all():
        raise TaskError(
            f"task {name!r}: inputs contain NaN or infinite values; clean the data first."
        )
    values = _columns(values, by_channel)
    return _affine(values.mean(0), values.std(0, correction=0), sample)


def _fitted_in_parts(name: str, train: Split, step: int, by_channel: bool) -> Normalization:
    """What `fitted_normalization` gives, of large images a few at a time, in two passes."""
    sample = train.inputs(slice(0, 1))
    places = torch.arange(0, len(train), step)
    parts = places.split(max(1, FITTED_AT_ONCE // 8 // sample.numel()))

    def mean_of(values: Callable[[Tensor], Tensor]) -> Tensor:
        total, count = torch.zeros((), dtype=torch.float64), 0
        for where in parts:
            columns = _columns(train.inputs(where).double(), by_channel)
            total, count = total + values(columns).sum(0), count + len(columns)
        return total / count

    mean = mean_of(lambda columns: columns)
    if not torch.isfinite(mean).all():
        raise TaskError(
            f"task {name!r}: inputs contain NaN or infinite values; clean the data first."
        )
    variance = mean_of(lambda columns: (columns - mean).square_())
    return _affine(mean, variance.sqrt(), sample)


def _columns(values: Tensor, by_channel: bool) -> Tensor:
    """All values [count, channels], or [count, 1] where all are taken together."""
    return values.transpose(0, 1).flatten(1).T if by_channel else values.reshape(-1, 1)


def _affine(mean: Tensor, std: Tensor, sample: Tensor) -> Normalization:
    # A constant channel carries nothing: leave its scale alone.
    std = torch.where(std > 1e-6 * (1 + mean.abs()), std, torch.ones_like(std))
    trailing = max(sample.ndim - 2, 0)
    return Normalization(tuple(mean.float().tolist()), tuple(std.float().tolist()), trailing)


def _fitting(name: str, train: Split, given: Normalization) -> Normalization:
    """The normalization, if it fits the inputs; doing nothing to numbers is (x - 0) / 1.

    So an empty normalization always means tokens.
    """
    sample = train.inputs(slice(0, 1))
    if is_tokens(sample):
        return given
    if not given.mean:
        return Normalization((0.0,), (1.0,), max(sample.ndim - 2, 0))
    if len(given.mean) not in (1, sample.shape[1]):
        raise TaskError(
            f"task {name!r}: a normalization of {len(given.mean)} channels does not fit inputs of "
            f"shape {tuple(sample.shape[1:])}; give one number or {sample.shape[1]}."
        )
    return given


def _class_weights(
    name: str, rule: Any, labels: Tensor, num_classes: int
) -> tuple[float, ...] | None:
    if rule is None:
        return None
    if isinstance(rule, str):
        if rule != "balanced":
            raise TaskError(
                f"task {name!r}: class_weights = {rule!r} is not allowed; give 'balanced', "
                "one number per class or None."
            )
        counts = torch.bincount(labels, minlength=num_classes).clamp(min=1).double()
        return tuple((counts.sum() / (num_classes * counts)).tolist())
    weights = tuple(float(w) for w in rule)
    if len(weights) != num_classes or not all(0.0 < w < float("inf") for w in weights):
        raise TaskError(
            f"task {name!r}: {len(weights)} class weights for {num_classes} classes; "
            "give one positive number per class."
        )
    return weights
