"""A task: named data with classes, disjoint splits and a recorded normalisation.

Raw inputs go in as the user has them: uint8 or float images and vectors, or integer tokens. What
the network sees is `normalisation(raw)`; the normalisation is part of the task, of the stored model
and of every exported module.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.random((40, 3), dtype=np.float32), np.array(["cat", "dog"] * 20)
    >>> task = Task.from_arrays("pets", x, y)
    >>> task.classes, len(task.train), len(task.valid)
    (('cat', 'dog'), 36, 4)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from tinysubnets.errors import TaskError

Label = int | str
NormalisationRule = Literal["auto", "channel", "scalar"]


class Inputs(Protocol):
    """Anything that gives samples at an array of indices: a tensor, a memory map, …"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass(frozen=True)
class Normalisation:
    """An affine map of raw inputs, (x - mean) / std per channel or for all; none for tokens.

    `trailing` counts the dimensions behind the channels: 2 for images, 0 for vectors.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    trailing: int = 0

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The mean and the factor 1 / std, shaped to broadcast over a batch of inputs."""
        shape = (-1,) + (1,) * self.trailing if len(self.mean) > 1 else ()
        mean = torch.tensor(self.mean, dtype=torch.float32, device=device)
        factor = 1.0 / torch.tensor(self.std, dtype=torch.float32, device=device)
        return mean.reshape(shape), factor.reshape(shape)

    def __call__(self, inputs: Tensor) -> Tensor:
        """What the network sees: float32 images and vectors, int64 tokens."""
        if not self.mean:
            return inputs.long() if is_tokens(inputs) else inputs.float()
        mean, factor = self.tensors(inputs.device)
        return (inputs.float() - mean) * factor


@dataclass(frozen=True)
class Split:
    """Some samples of a source of inputs, by index, with their class numbers."""

    source: Inputs
    labels: Tensor
    index: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

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

    def size_bytes(self) -> int:
        """The bytes that all inputs of this split take in memory."""
        sample = self.inputs(slice(0, 1))
        return len(self) * sample.numel() * sample.element_size()


class DatasetInputs:
    """The inputs of a torch `Dataset` of (input, label) pairs, fetched item by item."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any, /) -> Tensor:
        items = [torch.as_tensor(self.dataset[int(i)][0]) for i in np.atleast_1d(index)]
        if any(i.is_floating_point() and not torch.isfinite(i).all() for i in items):
            raise TaskError("the data set gave NaN or infinite inputs; clean the data first.")
        return torch.stack(items)


@dataclass(frozen=True)
class Task:
    """One task to learn: its name, classes, training and validation data, and test data if any."""

    name: str
    classes: tuple[Label, ...]
    train: Split
    valid: Split
    test: Split | None = None
    normalisation: Normalisation = field(default_factory=Normalisation)
    class_weights: tuple[float, ...] | None = None

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
        normalisation: NormalisationRule | Normalisation | None = "auto",
        class_weights: Literal["balanced"] | Sequence[float] | None = None,
    ) -> Task:
        """A task from numpy or torch arrays; `valid` is a share of the training data or own arrays.

        `normalisation` "auto" means per channel for images and float vectors, one number for uint8
        vectors, nothing for tokens; None leaves inputs as they are. `class_weights="balanced"`
        weighs the loss by inverse class frequency.
        """
        source = checked_inputs(name, inputs)
        numbers, classes = remapped_labels(name, labels, len(source))
        return _assemble(
            cls, name, (source, numbers, classes), valid, test, seed, normalisation, class_weights
        )

    @classmethod
    def from_datasets(
        cls,
        name: str,
        train: Any,
        *,
        valid: float | Any = 0.1,
        test: Any = None,
        seed: int = 0,
        normalisation: NormalisationRule | Normalisation | None = "auto",
        class_weights: Literal["balanced"] | Sequence[float] | None = None,
    ) -> Task:
        """A task from torch `Dataset`s of (input, label) pairs, which need not fit in memory.

        Labels are taken from a `targets` attribute where there is one, else read once item by item.
        """
        source, labels = DatasetInputs(train), _dataset_labels(train)
        numbers, classes = remapped_labels(name, labels, len(source))
        pairs = [
            v if v is None or isinstance(v, float) else (DatasetInputs(v), _dataset_labels(v))
            for v in (valid, test)
        ]
        return _assemble(
            cls,
            name,
            (source, numbers, classes),
            pairs[0],
            pairs[1],
            seed,
            normalisation,
            class_weights,
        )


def _assemble(
    cls: type[Task],
    name: str,
    data: tuple[Inputs, Tensor, tuple[Label, ...]],
    valid: Any,
    test: Any,
    seed: int,
    normalisation: Any,
    class_weights: Any,
) -> Task:
    """The task from checked training data: split, normalised, weighted, with its test data."""
    source, numbers, classes = data
    if not isinstance(name, str) or not name:
        raise TaskError(f"a task's name is a non-empty text, not {name!r}.")
    if isinstance(valid, tuple):
        train = Split(source, numbers)
        valid_split = _other_split(name, "validation", valid, source, classes)
    else:
        train_index, valid_index = stratified(name, numbers, valid, seed)
        train = Split(source, numbers[train_index], train_index)
        valid_split = Split(source, numbers[valid_index], valid_index)
    test_split = None if test is None else _other_split(name, "test", test, source, classes)
    if not isinstance(normalisation, Normalisation):
        normalisation = fitted_normalisation(name, train, normalisation)
    weights = _class_weights(name, class_weights, train.labels, len(classes))
    return cls(name, classes, train, valid_split, test_split, normalisation, weights)


def is_tokens(inputs: Tensor) -> bool:
    """Whether raw inputs are integer tokens: any integer type but uint8, which means pixels."""
    return not inputs.is_floating_point() and inputs.dtype != torch.uint8


def checked_inputs(name: str, inputs: Any) -> Inputs:
    """The inputs as a tensor or memory map, or an error that says what is wrong with them."""
    if isinstance(inputs, (np.memmap, DatasetInputs)):
        source: Any = inputs
        sample = (
            torch.from_numpy(np.array(inputs[:1])) if isinstance(inputs, np.memmap) else inputs[:1]
        )
    else:
        if not isinstance(inputs, Tensor):
            array = np.asarray(inputs)
            if array.dtype.kind not in "uif":
                raise TaskError(
                    f"task {name!r}: inputs of type {array.dtype} cannot be learned from; "
                    "give uint8 or float images and vectors, or integer tokens."
                )
            inputs = torch.from_numpy(array if array.flags.writeable else array.copy())
        source = sample = inputs.detach().cpu()
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
    if (
        sample.is_floating_point()
        and isinstance(source, Tensor)
        and not torch.isfinite(source).all()
    ):
        bad = int((~torch.isfinite(source).flatten(1).all(1)).nonzero()[0])
        raise TaskError(
            f"task {name!r}: inputs contain NaN or infinite values (first in sample {bad}); "
            "clean the data first."
        )
    return source


def remapped_labels(name: str, labels: Any, num_samples: int) -> tuple[Tensor, tuple[Label, ...]]:
    """Class numbers 0..n-1 and the user's own labels in sorted order."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or len(array) != num_samples:
        raise TaskError(
            f"task {name!r}: {num_samples} inputs but labels of shape {array.shape}; "
            "one label per sample is needed."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise TaskError(f"task {name!r}: labels contain NaN or infinite values.")
    if array.dtype.kind == "f" and (array == array.round()).all():
        array = array.astype(np.int64)
    if array.dtype.kind not in "iubUSO":
        raise TaskError(
            f"task {name!r}: labels of type {array.dtype} are not classes; "
            "give whole numbers or texts."
        )
    try:
        values, numbers = np.unique(
            array.astype(str) if array.dtype.kind in "SO" else array, return_inverse=True
        )
    except TypeError as error:
        raise TaskError(f"task {name!r}: labels cannot be sorted: {error}.") from None
    if len(values) < 2:
        raise TaskError(
            f"task {name!r} has only the class {values.tolist()}; "
            "at least two classes are needed to learn anything."
        )
    classes = tuple(v if isinstance(v, str) else int(v) for v in values.tolist())
    return torch.from_numpy(numbers.astype(np.int64)), classes


def stratified(name: str, labels: Tensor, share: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Disjoint, sorted training and validation positions with the same mix of classes."""
    if not isinstance(share, float) or not 0.0 < share < 1.0:
        raise TaskError(
            f"task {name!r}: valid = {share!r} is not allowed; give a share between 0 and 1 "
            "or (inputs, labels)."
        )
    generator = torch.Generator().manual_seed(seed)
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
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (len(other),):
        raise TaskError(
            f"task {name!r}: {len(other)} {what} inputs but labels of shape {array.shape}."
        )
    number = {c: i for i, c in enumerate(classes)}
    values = array.astype(str).tolist() if isinstance(classes[0], str) else array.tolist()
    strange = sorted({str(v) for v in values if v not in number})
    if strange:
        raise TaskError(
            f"task {name!r}: {what} labels {strange[:5]} do not occur in training "
            f"(classes: {list(classes)[:10]})."
        )
    return Split(other, torch.tensor([number[v] for v in values], dtype=torch.int64))


def fitted_normalisation(name: str, train: Split, rule: Any) -> Normalisation:
    """The normalisation that gives training inputs mean 0 and deviation 1, from at most 10,000."""
    if rule not in ("auto", "channel", "scalar", None):
        raise TaskError(
            f"task {name!r}: normalisation = {rule!r} is not allowed; choose 'auto', "
            "'channel', 'scalar', None or a Normalisation."
        )
    sample = train.inputs(slice(0, 1))
    if rule is None or is_tokens(sample):
        return Normalisation()
    step = max(1, len(train) // 10_000)
    values = train.inputs(slice(0, None, step)).double()
    if not torch.isfinite(values).all():
        raise TaskError(
            f"task {name!r}: inputs contain NaN or infinite values; clean the data first."
        )
    if rule == "scalar" or (rule == "auto" and sample.ndim == 2 and sample.dtype == torch.uint8):
        values = values.reshape(-1, 1)
    else:
        values = values.transpose(0, 1).flatten(1).T
    mean, std = values.mean(0), values.std(0, correction=0)
    # A constant channel carries nothing: leave its scale alone.
    std = torch.where(std > 1e-6 * (1 + mean.abs()), std, torch.ones_like(std))
    trailing = max(sample.ndim - 2, 0)
    return Normalisation(tuple(mean.float().tolist()), tuple(std.float().tolist()), trailing)


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


def _dataset_labels(dataset: Any) -> Any:
    """The labels of a torch `Dataset`, without its inputs where it keeps them apart."""
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        return targets
    return [dataset[i][1] for i in range(len(dataset))]
